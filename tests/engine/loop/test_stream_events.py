"""The events of a streamed run besides those of its steps: calls that begin, attempts that fail, sleeps, saves."""

from __future__ import annotations

from typing import Any

from limpet import END, START, MemoryStore, NodeContext, Retry, State, StateGraph, Workflow, sleep
from support.graphs import Via, chain


def flaky(state: State, ctx: NodeContext) -> None:
    if ctx.attempt == 1:
        raise ConnectionError("no answer")
    sleep(0.01)


def flaky_graph(**more: Any) -> StateGraph:
    graph = StateGraph(name="flaky").add_node("try", run=flaky, retry=Retry(2, backoff=0.01, jitter=0.0))
    graph.add_node("last", run=lambda state: {"n": 1})
    return graph.add_edge(START, "try").add_edge("try", "last").add_edge("last", END).compile(**more)


def bare(events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(event["type"], event.get("node"), event.get("attempt")) for event in events]


def test_a_detailed_stream_has_calls_attempts_sleeps_and_saves(via: Via) -> None:
    """H12."""
    events = via.events(flaky_graph(store=MemoryStore()), {}, run_id="r", detailed=True)
    assert bare(events) == [
        ("node_start", "try", 1),
        ("retry", "try", 1),
        ("node_start", "try", 2),
        ("sleep", "try", None),
        ("node_start", "try", 2),
        ("state", "try", None),
        ("checkpoint_saved", "try", None),
        ("node_start", "last", 1),
        ("state", "last", None),
        ("checkpoint_saved", "last", None),
        ("final", None, None),
    ]
    assert (events[1]["delay"], events[1]["error"]) == (0.01, "ConnectionError: no answer")
    assert events[3]["until"] > 0
    assert [event["checkpoint_id"] for event in events if event["type"] == "checkpoint_saved"] == [
        "r@1",
        "r@2",
    ]


def test_any_stream_has_attempts_and_sleeps_and_one_state_for_each_node(via: Via) -> None:
    """H12, F4: without a store, too; `invoke` has only the end."""
    kinds = [event["type"] for event in via.events(flaky_graph(), {})]
    assert kinds == ["retry", "sleep", "state", "state", "final"]
    assert [event["type"] for event in via.events(flaky_graph(), {}, stream=False)] == ["final"]


def test_a_save_is_reported_only_where_steps_are_saved(via: Via) -> None:
    """H12: not for each step, if not each is saved; and none without a store."""
    graph = chain(*[lambda state: None] * 4).compile(store=MemoryStore(), interval=2)
    events = via.events(graph, {}, run_id="r", detailed=True)
    assert [event["checkpoint_id"] for event in events if event["type"] == "checkpoint_saved"] == [
        "r@2",
        "r@4",
    ]
    unsaved = via.events(chain(lambda state: None), {}, detailed=True)
    assert [event["type"] for event in unsaved] == ["node_start", "state", "final"]


def test_calls_in_branches_are_reported_with_their_branch(via: Via) -> None:
    """H12, F12."""
    graph = (
        StateGraph(name="split").add_node("begin").add_node("side", run=flaky, retry=Retry(2, backoff=0.0))
    )
    graph.add_fanin_node("join").add_edge(START, "begin").add_parallel_edge("begin", "side", "join")
    graph.add_edge("side", "join").add_edge("join", END).compile(store=MemoryStore())
    events = via.events(graph, {}, detailed=True)
    found = [event["type"] for event in events if event.get("branch") == "side"]
    assert found == [
        "node_start",
        "retry",
        "node_start",
        "sleep",
        "node_start",
        "state",
        "checkpoint_saved",
        "branch",
    ]


def test_a_task_that_sleeps_is_reported(via: Via) -> None:
    """H12: its other events a workflow has in any stream."""
    flow = Workflow("nap", store=MemoryStore()).add_task("nap", lambda: sleep(0.01))
    events = via.events(flow, {})  # type: ignore[arg-type]  # a workflow has the same calls
    found = [(event["type"], event.get("task")) for event in events]
    assert found[1:4] == [("task_start", "nap"), ("sleep", "nap"), ("task_start", "nap")]


def test_the_event_of_a_node_whose_error_is_handled_has_the_error(via: Via) -> None:
    """Its step is done, without an update; and no other event has an error."""

    def fail(state: State) -> None:
        raise ConnectionError("no answer")

    graph = StateGraph(name="caught").add_node("fetch", run=fail)
    graph.add_node("handle", run=lambda state: {"n": 1}).add_node("last", run=lambda state: {"n": 2})
    graph.add_edge(START, "fetch").add_edge("fetch", "last").add_error_edge("fetch", "handle")
    graph.add_edge("handle", "last").add_edge("last", END).compile(store=MemoryStore())
    events = [event for event in via.events(graph, {}) if event["type"] == "state"]
    assert [(event["node"], event.get("error")) for event in events] == [
        ("fetch", "ConnectionError: no answer"),
        ("handle", None),
        ("last", None),
    ]
    assert events[0]["update"] == {}
