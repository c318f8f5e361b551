"""What a supervisor does for runs that it can't execute: their graph isn't known to it, or it has no room. H16."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from limpet import (
    ChildFailed,
    DeadlinePassed,
    MemoryStore,
    RunPaused,
    Runs,
    RunWaiting,
    State,
    StateGraph,
    Workflow,
    pause,
    receive,
    supervise,
)
from limpet.engine.node_context.node_context import NodeContext
from limpet.engine.supervisor import stranded_runs
from limpet.testing.conformance.store_calls import ManualClock
from support.graphs import fan, single
from support.waiting import until

AN_HOUR = 3600.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    """A store whose time passes when the test says so."""
    return MemoryStore(clock=clock)


def double() -> StateGraph:
    return single(lambda state: {"n": state["n"] * 2}, "work", {"n": int}, "child")


def parent(node: Callable[..., Any]) -> StateGraph:
    return single(node, "plan", {"n": int}, "parent")


def late_child(calls: list[int]) -> StateGraph:
    """A graph whose run starts a child that begins after an hour, and waits for it."""

    def plan(state: State, ctx: NodeContext) -> dict[str, Any]:
        calls.append(1)
        return {"n": ctx.join(ctx.start(double(), {"n": 4}, delay=AN_HOUR))["n"]}

    return parent(plan)


def leave_waiting(store: Any, graph: Any, run_id: str = "p") -> None:
    """Execute a run to where it waits, by a supervisor that is gone then."""
    handle = graph.compile(store=store, preserve=True).start({}, run_id=run_id)
    with supervise(store, [graph], poll=0.02):
        until(lambda: handle.shown_status == "waiting", "it waits for its child")


def test_a_worker_that_knows_the_parent_executes_the_children_of_one_that_is_gone(
    clock: ManualClock, store: MemoryStore
) -> None:
    """H16: it was given no other graph, and the parent has been waiting since before it was started."""
    calls: list[int] = []
    leave_waiting(store, late_child([]))
    clock.advance(AN_HOUR)
    graph = late_child(calls).compile(store=store)
    assert sorted(graph.recover()) == sorted(["p", graph.get("p").children()[0].run_id])
    assert graph.get("p").state["n"] == 8
    # Once to name the graph of its child, and once when the child had ended.
    assert len(calls) == 2


def test_a_child_that_isn_t_due_wakes_no_parent(clock: ManualClock, store: MemoryStore) -> None:
    """H16: a parent that waits for months costs nothing meanwhile."""
    calls: list[int] = []
    leave_waiting(store, late_child([]))
    graph = late_child(calls).compile(store=store)
    clock.advance(AN_HOUR - 1)
    assert graph.recover() == []
    assert calls == []


@pytest.mark.parametrize("levels", [2, 3])
def test_graphs_become_known_from_parent_to_child_to_grandchild(
    levels: int, clock: ManualClock, store: MemoryStore
) -> None:
    """H16: each from the node that waits for it."""

    def tree() -> StateGraph:
        graph = late_child([])
        for number in range(1, levels):

            def plan(state: State, ctx: NodeContext, inner: StateGraph = graph) -> dict[str, Any]:
                return {"n": ctx.join(ctx.start(inner))["n"]}

            graph = single(plan, "plan", {"n": int}, f"parent {number}")
        return graph

    first = tree().compile(store=store, preserve=True)
    first.start({}, run_id="p")
    with supervise(store, [first], poll=0.02):
        until(lambda: len(Runs(store).list(status="waiting")) == levels, "all wait")
    clock.advance(AN_HOUR)
    graph = tree().compile(store=store)
    graph.recover()
    assert graph.get("p").state["n"] == 8


def test_a_later_node_can_name_the_graph_when_it_joins(clock: ManualClock, store: MemoryStore) -> None:
    """H16: `join(run_id, graph)`, where the node that started the child has completed."""

    def begin(state: State, ctx: NodeContext) -> dict[str, Any]:
        return {"child": ctx.start(double(), {"n": 4}, delay=AN_HOUR).run_id}

    def end(state: State, ctx: NodeContext) -> dict[str, Any]:
        return {"n": ctx.join(state["child"], double())["n"]}

    def build() -> StateGraph:
        graph = StateGraph({"n": int, "child": str}, name="parent")
        graph.add_node("begin", run=begin).add_node("end", run=end).add_edge("begin", "end")
        return graph.set_entry_point("begin").set_finish_point("end")

    leave_waiting(store, build())
    clock.advance(AN_HOUR)
    graph = build().compile(store=store)
    graph.recover()
    assert graph.get("p").state["n"] == 8


def test_a_branch_that_waits_names_the_graph_while_another_branch_runs(
    clock: ManualClock, store: MemoryStore
) -> None:
    """H16: its run is under way, so no process but that knows what it waits for."""
    is_first = threading.Event()
    begun = threading.Event()
    free = threading.Event()

    def wait(state: State, ctx: NodeContext) -> dict[str, Any]:
        return {"n": ctx.join(ctx.start(double(), {"n": 4}, delay=AN_HOUR))["n"]}

    def work(state: State) -> dict[str, Any]:
        if is_first.is_set():
            begun.set()
            free.wait(60)
        else:
            receive("go")
        return {}

    def build() -> StateGraph:
        return fan({"wait": wait, "work": work}, schema={"n": int}, join=lambda state: {})

    leave_waiting(store, build())
    is_first.set()
    graph = build().compile(store=store, preserve=True)
    graph.send("p", "go", 1)
    with supervise(store, [graph], poll=0.02, lease=0.5):
        assert begun.wait(60)
        clock.advance(AN_HOUR)
        child = graph.get("p").children()[0].run_id
        until(lambda: Runs(store).get(child).status == "completed", "the child ends")
        free.set()
        until(lambda: graph.get("p").status == "completed", "the parent ends")


def test_a_node_that_doesn_t_name_the_graph_is_asked_ever_more_rarely(
    clock: ManualClock, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """H16: nothing is executed that no code has named, and no loop is busy with asking."""
    calls = []

    def begin(state: State, ctx: NodeContext) -> dict[str, Any]:
        return {"child": ctx.start(double(), {"n": 4}, delay=AN_HOUR).run_id}

    def end(state: State, ctx: NodeContext) -> dict[str, Any]:
        calls.append(1)
        return {"n": ctx.join(state["child"])["n"]}

    def build() -> StateGraph:
        graph = StateGraph({"n": int, "child": str}, name="parent")
        graph.add_node("begin", run=begin).add_node("end", run=end).add_edge("begin", "end")
        return graph.set_entry_point("begin").set_finish_point("end")

    leave_waiting(store, build())
    clock.advance(AN_HOUR)
    calls.clear()
    graph = build().compile(store=store)
    now = [0.0]
    monkeypatch.setattr(stranded_runs, "monotonic", lambda: now[0])
    supervisor = supervise(store, [graph])
    asked = []
    for now[0] in range(0, 1000, 5):
        supervisor.drain()
        clock.advance(5)
        if len(calls) > len(asked):
            asked.append(int(now[0]))
    assert asked == [0, 60, 180, 420, 900]
    child = graph.get("p").children()[0]
    assert supervisor.skipped == {child.run_id: "graph 'child' isn't known to this supervisor"}
    assert child.shown_status == "queued"
    with supervise(store, [graph, double()], poll=0.02):
        until(lambda: graph.get("p").status == "completed", "a worker with both graphs executes it")


def test_one_parent_of_many_is_asked(clock: ManualClock, store: MemoryStore) -> None:
    """H16: a graph that is known is known for all of its runs."""
    first: list[int] = []
    graph = late_child(first).compile(store=store, preserve=True)
    for number in range(10):
        graph.start({}, run_id=f"p{number}")
    with supervise(store, [graph], poll=0.02):
        until(lambda: len(Runs(store).list(status="waiting")) == 10, "all wait")
    clock.advance(AN_HOUR)
    calls: list[int] = []
    again = late_child(calls).compile(store=store)
    again.recover()
    assert {again.get(f"p{number}").state["n"] for number in range(10)} == {8}
    assert len(calls) == 11


def test_a_resume_calls_the_node_that_waits_and_then_no_more(clock: ManualClock, store: MemoryStore) -> None:
    """H16: where the child is executed elsewhere, and takes long, its parent doesn't look at it again and again."""
    calls: list[int] = []
    graph = late_child(calls).compile(store=store, preserve=True)
    leave_waiting(store, graph)
    graph.get("p").children()[0]
    calls.clear()
    other = parent(lambda state, ctx: {"n": ctx.join(graph.get("p").children()[0].run_id)["n"]})
    other.compile(store=store, preserve=True)
    with pytest.raises(RunWaiting):
        other.resume("p")
    assert graph.get("p").info.due is None


def overdue(store: Any, graph: Any, run_id: str) -> None:
    """Execute a run to where it pauses or waits, with a deadline."""
    with pytest.raises((RunPaused, RunWaiting)):
        graph.compile(store=store, preserve=True).execute({}, run_id=run_id, deadline=AN_HOUR)


def test_any_supervisor_fails_runs_at_their_deadlines(clock: ManualClock, store: MemoryStore) -> None:
    """H16: whether they are queued, paused or waiting; of graphs that it doesn't know."""
    asking = single(lambda state: pause("How many?"), "ask", {"n": int}, "asking")
    waiting = single(lambda state: receive("go"), "wait", {"n": int}, "waiting")
    flow = Workflow("flow", store=store, preserve=True).add_task("ask", lambda: pause("Which?"))
    overdue(store, asking, "asks")
    overdue(store, waiting, "waits")
    with pytest.raises(RunPaused):
        flow.execute(run_id="flows", deadline=AN_HOUR)
    double().compile(store=store).start({"n": 1}, run_id="queued", deadline=AN_HOUR)
    double().compile(store=store).start({"n": 1}, run_id="delayed", deadline=AN_HOUR, delay=2 * AN_HOUR)
    stranger = single(lambda state: {}, "work", {"n": int}, "stranger").compile(store=store)
    supervisor = supervise(store, [stranger])
    clock.advance(AN_HOUR - 1)
    supervisor.drain()
    assert {info.status for info in Runs(store).list()} == {"paused", "running"}
    clock.advance(1 + stranded_runs.OVERDUE_GRACE)
    supervisor.drain()
    for info in Runs(store).list():
        assert (info.status, info.error["type"]) == ("failed", "DeadlinePassed")  # type: ignore[index]
    with pytest.raises(DeadlinePassed, match="give it a new one"):
        asking.resume("asks")
    asking.get("asks").retry(deadline=AN_HOUR)
    asking.recover()
    assert asking.resume("asks", {"n": 3})["n"] == 3
    flow.get("flows").retry(deadline=AN_HOUR)
    flow.recover()
    assert flow.resume("flows", "this").results == {"ask": "this"}


def test_a_worker_without_the_graph_fails_a_run_at_its_deadline(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H16: by the clock of every store; and observers of the worker are notified."""
    monkeypatch.setattr(stranded_runs, "OVERDUE_GRACE", 0.0)
    handle = double().compile(store=store_url).start({"n": 0}, run_id="r", deadline=0.3)
    stranger = single(lambda state: {}, "work", {"n": int}, "stranger").compile(store=store_url)
    seen: list[Any] = []
    with supervise(store_url, [stranger], poll=0.1, lease=0.5, observers=[seen.append]):
        until(lambda: handle.status == "failed", "it fails")
    assert handle.info.error["type"] == "DeadlinePassed"  # type: ignore[index]
    assert [(event.type, event.data["run_id"]) for event in seen] == [("run.fail", "r")]


def test_a_worker_without_room_fails_a_run_at_its_deadline(clock: ManualClock, store: MemoryStore) -> None:
    """H16: a run of its own graph that it can't begin."""
    busy = threading.Event()
    free = threading.Event()

    def work(state: State) -> dict[str, Any]:
        busy.set()
        free.wait(60)
        return {}

    graph = single(work, "work", {"n": int}, "busy").compile(store=store, preserve=True)
    graph.start({}, run_id="first", priority=1)
    second = graph.start({}, run_id="second", deadline=AN_HOUR)
    with supervise(store, [graph], poll=0.02, lease=0.5, concurrency=1):
        assert busy.wait(60)
        clock.advance(AN_HOUR + stranded_runs.OVERDUE_GRACE)
        until(lambda: second.status == "failed", "it fails")
        free.set()
    assert graph.get("first").status == "completed"


def test_the_parent_of_a_child_that_fails_at_its_deadline_continues(
    clock: ManualClock, store: MemoryStore
) -> None:
    """H16: whichever supervisor has failed it."""

    def plan(state: State, ctx: NodeContext) -> dict[str, Any]:
        child = single(lambda state: pause("How many?"), "ask", {"n": int}, "child")
        try:
            return {"n": ctx.join(ctx.start(child, {}, deadline=AN_HOUR))["n"]}
        except ChildFailed:
            return {"n": -1}

    leave_waiting(store, parent(plan))
    clock.advance(AN_HOUR + stranded_runs.OVERDUE_GRACE)
    stranger = single(lambda state: {}, "work", {"n": int}, "stranger").compile(store=store)
    supervise(store, [stranger]).drain()
    graph = parent(plan).compile(store=store)
    assert graph.recover() == ["p"]
    assert graph.get("p").state["n"] == -1
