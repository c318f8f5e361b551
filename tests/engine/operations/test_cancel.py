"""Cancelling stored runs: again, and on the way to an interrupt."""

from __future__ import annotations

import pytest

from limpet import MemoryStore, RunPaused, State, StateGraph, pause
from support.graphs import chain, stored_chain
from support.posts import post_cancel


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


def test_a_request_to_cancel_is_durable_when_it_returns() -> None:
    """G12, H10: though the caller leaves the run before its next node, or its process crashes."""
    graph = chain(lambda state: {}, lambda state: {"second": True}).compile(store=MemoryStore())
    run = graph.stream({}, run_id="r")
    next(run)
    graph.cancel("r")
    run.close()
    assert graph.recover() == ["r"]
    assert graph.get("r").status == "cancelled"


def test_a_request_that_was_carried_out_does_not_come_again() -> None:
    """G12, H10: an answer, or a retry, is a newer wish."""
    store = MemoryStore()
    graph = chain(lambda state: {"said": pause("well?")}).compile(store=store)
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="r")
    post_cancel(store, "r")
    graph.cancel("r")
    graph.answer("r", "yes")
    assert graph.recover() == ["r"]
    assert graph.get("r").result(0)["said"] == "yes"
