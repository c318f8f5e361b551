"""Cancelling stored runs: again, and on the way to an interrupt."""

from __future__ import annotations

from limpet import MemoryStore, State, StateGraph
from support.graphs import chain, stored_chain


def test_cancelling_a_cancelled_run_isnt_an_error() -> None:
    """G12."""
    graph = stored_chain(lambda state: {"a": 1}, lambda state: {"b": 1})
    run = graph.stream({}, run_id="r")
    next(run)
    run.close()
    graph.cancel("r")
    graph.cancel("r")
    assert graph.resume("r") == {"a": 1, "b": 1}


def test_a_run_that_is_cancelled_on_its_way_to_an_interrupt_still_stops_there() -> None:
    """D11, F5: the approval was never asked for, so a resume doesn't skip it."""
    store, ran = MemoryStore(), []

    def first(state: State) -> None:
        elsewhere.cancel(state.run_id)

    def build(lease: float) -> StateGraph:
        graph = chain(first, lambda state: ran.append("n2"))
        return graph.compile(store=store, interrupt_before=["n2"], lease=lease)

    graph, elsewhere = build(10.0), build(20.0)
    run = graph.invoke({})
    assert [event["type"] for event in run] == ["cancelled"]
    (event,) = graph.invoke(None, checkpoint=f"{run.id}@1")
    assert (event["type"], ran) == ("interrupt", [])
