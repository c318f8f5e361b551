"""Odd moments: what is left behind, asked twice, cancelled on the way or given in an unusual form."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Annotated, Any

import pytest

from limpet import (
    DefinitionError,
    Event,
    ExecutionError,
    MemoryStore,
    Retry,
    State,
    StateGraph,
    append,
    pause,
)
from support.graphs import chain


def test_a_state_kept_from_a_node_that_is_over_reaches_nothing() -> None:
    """G1: what a node holds is its own; assigning to it later doesn't change the run."""
    kept: list[State] = []

    def keep(state: State) -> None:
        kept.append(state)

    def meddle(state: State) -> dict[str, Any]:
        kept[0]["x"] = "meddled"
        return {"seen": "x" in state}

    final = chain(keep, meddle).compile(store="memory://").execute({"a": 1})
    assert final == {"a": 1, "seen": False}


@pytest.mark.parametrize("make", [OrderedDict, lambda **values: type("Sub", (dict,), {})(values)])
def test_any_mapping_that_a_node_returns_is_reduced(make: Any) -> None:
    """F2: an OrderedDict, or another dict, of updates is one as a dict is."""
    graph = chain(lambda state: make(log=["b"]), schema={"log": Annotated[list, append]})
    assert graph.execute({"log": ["a"]}) == {"log": ["a", "b"]}


def test_a_reducer_that_alters_what_it_is_given_is_saved_as_it_left_it() -> None:
    """H4: a reducer that updates an old item in place counts, after a resume too."""

    def upsert(old: list[dict[str, Any]], new: dict[str, Any]) -> list[dict[str, Any]]:
        for each in old:
            if each["id"] == new["id"]:
                each.update(new)
                return old
        return [*old, new]

    graph = chain(
        lambda state: {"m": {"id": 1, "text": "a"}},
        lambda state: {"m": {"id": 1, "text": "b"}},
        schema={"m": Annotated[list, upsert]},
    ).compile(store="memory://", preserve=True)
    assert graph.execute({}, run_id="r") == {"m": [{"id": 1, "text": "b"}]} == graph.state_at("r")


def test_choices_that_can_not_be_stored_fail_the_node() -> None:
    """P1, H4: a question is stored, so it is data; the run fails as for any other mistake of the node."""
    graph = chain(lambda state: {"answer": pause("Which?", choices=[print])}).compile(store="memory://")
    with pytest.raises(ExecutionError):
        graph.execute({}, run_id="r")
    assert [info.status for info in graph.runs()] == ["failed"]


def test_an_answer_that_the_pydantic_model_refuses_leaves_the_question_open() -> None:
    """P1: what a validator of the model says counts, too; another answer can be given."""
    import pydantic

    class Even(pydantic.BaseModel):
        number: int

        @pydantic.field_validator("number")
        @classmethod
        def check(cls, value: int) -> int:
            if value % 2:
                raise ValueError("odd")
            return value

    graph = chain(lambda state: {"n": pause("Even?", schema=Even).number}).compile(store="memory://")
    run = graph.invoke({}).wait()
    with pytest.raises(Exception, match="odd"):
        graph.resume(run.id, {"number": 3})
    assert graph.resume(run.id, {"number": 4}) == {"n": 4}


@pytest.mark.parametrize("store", [None, "memory://"])
def test_once_with_an_async_function_can_be_awaited_when_its_result_was_kept(store: str | None) -> None:
    """H8: what it returns is awaited, the first time and when the node runs again."""
    import asyncio

    calls: list[int] = []
    attempts: list[int] = []

    async def fetch(value: int) -> int:
        await asyncio.sleep(0)
        calls.append(value)
        return value

    async def node(state: State) -> dict[str, Any]:
        from limpet import once

        attempts.append(1)
        found = await once("fetch", fetch, 7)
        if len(attempts) == 1:
            raise ValueError
        return {"value": found}

    graph = StateGraph().add_node("only", run=node, retry=Retry(attempts=2, backoff=0))
    graph.set_entry_point("only").set_finish_point("only").compile(store=store)
    assert graph.execute({}) == {"value": 7}
    assert calls == [7]


def test_a_thread_that_was_left_behind_can_not_alter_the_state_in_place() -> None:
    """H8, H4: what it does after its time ran out reaches neither the next attempt nor the run."""
    release, over = threading.Event(), threading.Event()

    def node(state: State, ctx: Any) -> dict[str, Any]:
        items = state["items"]
        if ctx.attempt == 1:
            release.wait(10)
            items.append("ghost")
            over.set()
        release.set()
        assert over.wait(10)
        return {"seen": list(state["items"])}

    graph = StateGraph().add_node("only", run=node, timeout=0.05, retry=Retry(attempts=50, backoff=0))
    graph.set_entry_point("only").set_finish_point("only").compile(store="memory://")
    assert graph.execute({"items": []}) == {"items": [], "seen": []}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_node_with_a_timeout_that_ends_the_process_does_so(error: type[BaseException]) -> None:
    """H8: what isn't an Exception passes through, with a timeout as without one; it isn't a timeout."""

    def node(state: State) -> None:
        raise error

    graph = StateGraph().add_node("only", run=node, timeout=60)
    graph.set_entry_point("only").set_finish_point("only")
    with pytest.raises(error):
        graph.execute({})


def test_a_fork_from_a_step_that_was_approved_asks_for_approval_again() -> None:
    """D11, H6: as it asks its questions again; an approval counts for one run only."""
    graph = chain(lambda state: {"a": 1}, lambda state: {"b": 2})
    graph.compile(store="memory://", interrupt_before=["n2"], preserve=True)
    run = graph.invoke({}).wait()
    graph.resume(run.id)
    assert [event["type"] for event in graph.fork(run.id, 1)] == ["interrupt"]


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


@pytest.mark.parametrize("place", ["edge", "choice"])
def test_an_async_predicate_is_a_definition_error(place: str) -> None:
    """G3: it would never be awaited, and what it returns would always be true."""

    async def ask(state: State) -> bool:
        return False

    graph = StateGraph()
    with pytest.raises(DefinitionError):
        graph.add_edge("a", "b", ask) if place == "edge" else graph.add_conditional_edges("a", ask, {})


def test_a_first_parameter_is_not_the_state_when_another_is() -> None:
    """F2: `def f(factor, state)` asks for a parameter that has no source."""
    with pytest.raises(DefinitionError):
        StateGraph().add_node("a", run=lambda factor, state: None)


def test_interrupts_given_as_a_generator_are_kept_when_the_graph_changes() -> None:
    """F3: what was compiled once is compiled again with the same settings."""
    graph = chain(lambda state: None, lambda state: None)
    graph.compile(store="memory://", interrupt_before=(name for name in ["n2"]))
    graph.add_node("n3").set_finish_point("n3").add_edge("n1", "n3", lambda state: False)
    assert [event["type"] for event in graph.invoke({})] == ["interrupt"]


def test_a_revisit_is_reported_once_however_often_it_is_tried() -> None:
    """G4: each revisit emits one cycle.detected."""
    seen: list[Event] = []
    calls: list[int] = []

    def node(state: State) -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 2:
            raise ValueError
        return {"n": state.get("n", 0) + 1}

    graph = StateGraph(observer=seen.append).add_node("a", run=node, retry=Retry(backoff=0))
    graph.set_entry_point("a").set_finish_point("a").add_edge("a", "a", lambda state: state["n"] < 2)
    graph.execute({})
    assert len([event for event in seen if event.type == "cycle.detected"]) == 1


def test_checkpoint_resume_names_the_node_that_runs_next() -> None:
    """G11: also after `interrupt_after`, where it isn't the node that the checkpoint is of."""
    seen: list[Event] = []
    graph = chain(lambda state: None, lambda state: None, observer=seen.append)
    graph.compile(store="memory://", interrupt_after=["n1"])
    run = graph.invoke({}).wait()
    graph.resume(run.id)
    (event,) = [event for event in seen if event.type == "checkpoint.resume"]
    assert (event.data["checkpoint_node"], event.data["resume_node"]) == ("n1", "n2")


# test_checkpointer.py
