"""Runs that start others, and wait for them. H16."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import Annotated, Any

import pytest

from limpet import (
    ChildFailed,
    DeadlinePassed,
    ExecutionError,
    MemoryStore,
    RunCancelled,
    RunExists,
    RunPaused,
    Runs,
    RunWaiting,
    State,
    StateGraph,
    UsageError,
    Workflow,
    WorkflowState,
    append,
    pause,
    receive,
    supervise,
)
from limpet.engine.node_context.node_context import NodeContext
from limpet.testing.conformance.store_calls import ManualClock
from support.graphs import Via, chain, fan, single
from support.waiting import until


def child_graph(function: Any = lambda state: {"n": state["n"] * 2}, name: str = "child") -> StateGraph:
    return single(function, "work", {"n": int}, name)


def parent_graph(node: Callable[..., Any], store: Any, **options: Any) -> StateGraph:
    return single(node, "plan", {"n": int, "log": list}, "parent").compile(
        store=store, preserve=True, **options
    )


def joining(child: StateGraph, count: int = 1) -> Callable[..., Any]:
    """A node that starts children, and then joins them."""

    def plan(state: State, ctx: NodeContext) -> dict[str, Any]:
        started = [ctx.start(child, {"n": number}) for number in range(1, count + 1)]
        return {"n": sum(ctx.join(each)["n"] for each in started)}

    return plan


@pytest.mark.parametrize("kind", ["graph", "workflow"])
def test_the_state_of_a_child_can_be_kept_as_it_is(kind: str, store: Any) -> None:
    """H16, H4: as a value of the state, or as the result of a task; a resumed run finds the same."""
    child: Any = child_graph()
    if kind == "workflow":
        child = Workflow("child").add_task("n", lambda n: n * 2)

    def page(ctx: NodeContext) -> Any:
        return ctx.join(ctx.start(child, {"n": 2}))

    flow = Workflow("parent", store=store, preserve=True)
    flow.add_task("page", page).add_task("ask", lambda page: pause("Print?"))
    with pytest.raises(RunPaused):
        flow.execute(run_id="r")
    kept = flow.resume("r", True).results["page"]
    assert type(kept) is (State if kind == "graph" else WorkflowState)
    assert (kept["n"] if kind == "graph" else kept.results["n"]) == 4
    assert kept.run_id == children_of(flow, "r")[0].run_id


def test_the_layers_of_a_workflow_that_waits_for_a_child_are_reported_once() -> None:
    """H16, H13: the loop begins again after the wait, and its layer doesn't."""
    child = child_graph()
    flow = Workflow("parent", store=MemoryStore())
    flow.add_task("page", lambda ctx: ctx.join(ctx.start(child, {"n": 2}))["n"])
    flow.add_task("end", lambda page: page)
    events = list(flow.stream({}))
    assert [event["layer"] for event in events if event["type"] == "layer_start"] == [0, 1]


def children_of(graph: Any, run_id: str) -> list[Any]:
    return Runs(graph.compiled().client.store).list(parent=run_id)


def test_a_run_joins_children_that_its_own_process_executes(via: Via, store: Any) -> None:
    """H16: without any worker; and the children are runs of their own."""
    graph = parent_graph(joining(child_graph(), 3), store)
    assert via.execute(graph, {}, run_id="p")["n"] == 12
    found = children_of(graph, "p")
    assert {(info.status, info.parent, info.graph) for info in found} == {("completed", "p", "child")}
    assert len(found) == 3
    assert [info.run_id for info in graph.get("p").children()] == [info.run_id for info in found]
    assert graph.get("p").info.parent is None


def test_async_nodes_start_and_join_children(via: Via, store: Any) -> None:
    """H16: with the async calls or with the others."""

    async def plan(state: State, ctx: NodeContext) -> dict[str, Any]:
        first = await ctx.astart(child_graph(), {"n": 1})
        second = ctx.start(child_graph(), {"n": 2})
        return {"n": (await ctx.ajoin(first))["n"] + ctx.join(second)["n"]}

    assert via.execute(parent_graph(plan, store), {})["n"] == 6


def test_a_result_is_of_the_kind_that_the_child_s_graph_has(store: Any) -> None:
    """H16: also by its id alone, in a later node."""
    flow = Workflow("flow")
    flow.add_task("one", lambda: 1)

    def begin(state: State, ctx: NodeContext) -> dict[str, Any]:
        return {"child": ctx.start(flow).run_id}

    def end(state: State, ctx: NodeContext) -> dict[str, Any]:
        found = ctx.join(state["child"])
        return {"n": found["tasks"]["one"]["result"], "kind": type(found).__name__}

    done = chain(begin, end).compile(store=store, preserve=True).execute({})
    assert (done["n"], done["kind"]) == (1, "WorkflowState")


def test_branches_maps_graphs_in_nodes_and_tasks_join_children(via: Via, store: Any) -> None:
    """H16."""
    child = child_graph()

    def one(state: State, ctx: NodeContext) -> dict[str, Any]:
        return {"found": [ctx.join(ctx.start(child, {"n": 5}))["n"]]}

    schema = {"found": Annotated[list, append], "results": list}
    branches = fan({"a": one, "b": one}, schema=schema).compile(store=store)
    assert [each["found"] for each in via.execute(branches, {})["results"]] == [[10], [10]]

    def item(state: State, ctx: NodeContext) -> dict[str, Any]:
        return {"n": ctx.join(ctx.start(child, {"n": state["item"]}))["n"]}

    spread = StateGraph(name="spread").add_node("src", run=None).add_node("each", run=item)
    spread.add_map("src", "each", lambda state: range(4), "join")
    spread.add_fanin_node(
        "join", run=lambda state, parallel_results: {"all": [each["n"] for each in parallel_results]}
    )
    spread.set_entry_point("src").set_finish_point("join").compile(store=store)
    assert via.execute(spread, {})["all"] == [0, 2, 4, 6]

    outer = single(single(one, "inner", schema, "inner"), "deep", schema, "outer").compile(store=store)
    assert via.execute(outer, {})["found"] == [10]

    flow = Workflow("joins", store=store)
    flow.add_task("left", lambda ctx: ctx.join(ctx.start(child, {"n": 1}))["n"])
    flow.add_task("right", lambda ctx: ctx.join(ctx.start(child, {"n": 2}))["n"])
    flow.add_task("sum", lambda left, right: left + right, depends_on=["left", "right"])
    assert via.execute(flow, {})["tasks"]["sum"]["result"] == 6


def test_children_have_children(via: Via, store: Any) -> None:
    """H16."""
    middle = single(joining(child_graph(), 2), "plan", {"n": int}, "middle")
    assert via.execute(parent_graph(joining(middle, 2), store), {})["n"] == 12


def test_several_nodes_join_one_child(via: Via, store: Any) -> None:
    """H16: all of them get its result."""

    def begin(state: State, ctx: NodeContext) -> dict[str, Any]:
        return {"child": ctx.start(child_graph(), {"n": 4}).run_id}

    def join(state: State, ctx: NodeContext) -> dict[str, Any]:
        return {"n": ctx.join(state["child"])["n"]}

    graph = fan({"a": join, "b": join}, source=begin).compile(store=store)
    assert [each["n"] for each in via.execute(graph, {})["results"]] == [8, 8]


def ask(state: State) -> dict[str, Any]:
    return {"n": pause("How many?")}


def test_a_worker_releases_a_run_while_its_child_asks(store_url: str) -> None:
    """H16: on every store; the run is shown as waiting, and continues when the child has ended."""
    child = child_graph(ask)
    graph = parent_graph(joining(child), store_url)
    handle = graph.start({}, run_id="p")
    with supervise(store_url, [graph], poll=0.1):
        until(lambda: handle.shown_status == "waiting", "it waits")
        (info,) = handle.children()
        asking = child.compile(store=store_url).get(info.run_id)
        until(lambda: asking.questions, "the child asks")
        assert (handle.info.holder, handle.info.waits_for) == (None, "child run")
        asking.answer(21)
        assert handle.result(timeout=30)["n"] == 21


def test_a_run_says_that_its_child_can_t_go_on(via: Via, store: Any) -> None:
    """H16: it doesn't wait for ever without a word; the child is answered, and then it continues."""
    child = child_graph(ask)
    graph = parent_graph(joining(child), store)
    with pytest.raises(RunWaiting, match="child run") as caught:
        via.execute(graph, {}, run_id="p")
    (info,) = graph.get("p").children()
    assert info.run_id in str(caught.value)
    assert (info.status, graph.get("p").shown_status) == ("paused", "waiting")
    child.compile(store=graph.compiled().client.store).answer(info.run_id, 3)  # type: ignore[union-attr]
    assert via.resume(graph, "p")["n"] == 3


def test_a_child_that_fails_fails_its_parent_until_it_is_retried(via: Via, store: Any) -> None:
    """H16: the error names it, and both can be retried."""
    broken = [True]

    def work(state: State) -> dict[str, Any]:
        if broken:
            raise ValueError("no paper")
        return {"n": 7}

    child = child_graph(work)
    graph = parent_graph(joining(child), store)
    with pytest.raises(ExecutionError) as caught:
        via.execute(graph, {}, run_id="p")
    failed = caught.value.cause
    assert isinstance(failed, ChildFailed)
    assert (failed.status, failed.run_id) == ("failed", "p")
    assert "no paper" in str(failed)
    with pytest.raises(ExecutionError, match=failed.child):
        via.resume(graph, "p")
    broken.clear()
    Runs(graph.compiled().client.store).retry(failed.child)  # type: ignore[union-attr]
    assert via.resume(graph, "p")["n"] == 7


def test_a_node_that_is_called_again_finds_its_child(store: Any) -> None:
    """H16: after a failed attempt, too, whatever the input is then; with another key, it starts another."""
    seen: list[str] = []

    def plan(state: State, ctx: NodeContext) -> dict[str, Any]:
        seen.append(ctx.start(child_graph(), {"n": len(seen)}).run_id)
        seen.append(ctx.start(child_graph(), {"n": 0}, key="other").run_id)
        if len(seen) == 2:
            raise ValueError("once more")
        return {}

    graph = parent_graph(plan, store)
    with pytest.raises(ExecutionError):
        graph.execute({}, run_id="p")
    graph.resume("p")
    assert seen[:2] == seen[2:]
    assert len(set(seen)) == 2
    assert len(children_of(graph, "p")) == 2


def test_a_node_that_is_called_again_sends_its_child_a_message_with_a_key_once(via: Via, store: Any) -> None:
    """H16: when the child has ended, too, as after each join."""
    child = child_graph(lambda state: {"n": receive("number")})

    def plan(state: State, ctx: NodeContext) -> dict[str, Any]:
        started = ctx.start(child, {})
        started.send("number", 7, key="number")
        return {"n": ctx.join(started)["n"]}

    assert via.execute(parent_graph(plan, store), {})["n"] == 7


def test_a_fork_and_a_rollback_start_children_of_their_own(store: Any) -> None:
    """H16: and a fork can join the children that its origin has started."""

    def begin(state: State, ctx: NodeContext) -> dict[str, Any]:
        return {"child": ctx.start(child_graph(), {"n": 4}).run_id}

    def join(state: State, ctx: NodeContext) -> dict[str, Any]:
        return {"n": ctx.join(state["child"])["n"]}

    graph = chain(begin, join).compile(store=store, preserve=True)
    assert graph.execute({}, run_id="p")["n"] == 8
    forked = graph.fork("p", 1)
    assert forked.result()["n"] == 8
    assert graph.get(forked.id).info.forked_from == "p@1"
    assert graph.get(forked.id).info.parent is None
    assert children_of(graph, forked.id) == []
    graph.rollback("p", 0)
    assert graph.resume("p")["n"] == 8
    assert len(children_of(graph, "p")) == 2


def test_a_cancel_goes_down_to_children_and_theirs(clock_store: MemoryStore) -> None:
    """H16: also where no process holds any of them; a child that has ended stays as it is."""
    middle = single(joining(child_graph(ask)), "plan", {"n": int}, "middle")

    def plan(state: State, ctx: NodeContext) -> dict[str, Any]:
        ctx.join(ctx.start(child_graph(name="quick"), {"n": 1}))
        return {"n": ctx.join(ctx.start(middle))["n"]}

    graph = parent_graph(plan, clock_store)
    with pytest.raises(RunWaiting):
        graph.execute({}, run_id="p")
    graph.cancel("p")
    statuses = {info.graph: info.status for info in Runs(clock_store).list()}
    assert statuses == {
        "parent": "cancelled",
        "middle": "cancelled",
        "child": "cancelled",
        "quick": "completed",
    }


@pytest.fixture
def clock_store() -> MemoryStore:
    return MemoryStore()


def test_a_run_that_is_cancelled_while_it_joins_cancels_the_children_that_it_executes(
    via: Via, store: Any
) -> None:
    """H16: their async nodes are interrupted."""
    begun: list[int] = []

    async def hang(state: State) -> dict[str, Any]:
        begun.append(1)
        await asyncio.sleep(60)
        return {}

    graph = parent_graph(joining(child_graph(hang)), store)

    def cancel() -> None:
        until(lambda: begun, "the child begins")
        graph.cancel("p")

    from threading import Thread

    thread = Thread(target=cancel)
    thread.start()
    with pytest.raises(RunCancelled):
        via.execute(graph, {}, run_id="p")
    thread.join()
    until(lambda: children_of(graph, "p")[0].status == "cancelled", "the child is cancelled")


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_a_child_that_is_cancelled_or_deleted_fails_the_join(end: str, store: Any) -> None:
    """H16: a post wakes the run, so that a worker finds it."""

    def begin(state: State, ctx: NodeContext) -> dict[str, Any]:
        return {"child": ctx.start(child_graph(ask)).run_id}

    def join(state: State, ctx: NodeContext) -> dict[str, Any]:
        return {"n": ctx.join(state["child"])["n"]}

    graph = chain(begin, join).compile(store=store, preserve=True)
    with pytest.raises(RunWaiting):
        graph.execute({}, run_id="p")
    (info,) = children_of(graph, "p")
    getattr(Runs(graph.compiled().client.store), end)(info.run_id)  # type: ignore[union-attr]
    assert graph.recover() == ["p"]
    assert graph.get("p").info.error["type"] == "limpet.errors.ChildFailed"  # type: ignore[index]


def test_a_child_ends_at_the_deadline_of_its_parent_or_earlier() -> None:
    """H16."""
    clock = ManualClock(1_000_000.0)
    store = MemoryStore(clock)
    child = child_graph(ask)

    def plan(state: State, ctx: NodeContext) -> dict[str, Any]:
        later = ctx.start(child, deadline="9h")
        earlier = ctx.start(child, deadline=datetime.fromtimestamp(1_000_060, UTC))
        return {"n": ctx.join(later)["n"] + ctx.join(earlier)["n"]}

    graph = parent_graph(plan, store)
    with pytest.raises(RunWaiting):
        graph.execute({}, run_id="p", deadline="1h")
    assert sorted(info.deadline for info in children_of(graph, "p")) == [1_000_060, 1_003_600]
    clock.advance(3600)
    with pytest.raises(DeadlinePassed):
        graph.resume("p")


def test_the_result_of_a_child_is_kept_whatever_its_graph_says(store: Any) -> None:
    """H16: it outlives the join."""
    child = child_graph()
    child.compile(store=store, keep_result=False)
    graph = parent_graph(joining(child), store)
    graph.execute({}, run_id="p")
    (info,) = children_of(graph, "p")
    assert child.get(info.run_id).state["n"] == 2


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda ctx: ctx.start("child"), "a StateGraph or a Workflow"),
        (lambda ctx: ctx.start(StateGraph), "a StateGraph or a Workflow"),
        (lambda ctx: ctx.start(child_graph(), key="1"), "numbers are for"),
        (lambda ctx: ctx.start(child_graph(), priority="high"), "priority"),
        (lambda ctx: ctx.start(child_graph(), deadline="soon"), "deadline"),
        (lambda ctx: ctx.join(7), "what start"),
        (lambda ctx: ctx.join(ctx.run_id), "wait for itself"),
    ],
)
def test_a_wrong_start_or_join_is_refused(call: Any, what: str, store: Any) -> None:
    """H16."""
    graph = parent_graph(lambda state, ctx: call(ctx), store)
    with pytest.raises(ExecutionError, match=what) as caught:
        graph.execute({})
    assert isinstance(caught.value.cause, UsageError)
    assert len(Runs(graph.compiled().client.store).list()) == 1  # type: ignore[union-attr]


def test_children_need_a_store(tmp_path: Path) -> None:
    """H16."""
    graph = single(joining(child_graph()), "plan", {"n": int}).compile()
    with pytest.raises(ExecutionError, match="needs a store"):
        graph.execute({})


def test_a_join_of_a_run_that_isn_t_there_says_so(store: Any) -> None:
    """H16."""
    graph = parent_graph(lambda state, ctx: ctx.join("nowhere"), store)
    with pytest.raises(ExecutionError) as caught:
        graph.execute({})
    assert isinstance(caught.value.cause, ChildFailed)
    assert caught.value.cause.status == "deleted"


def test_a_key_means_one_graph(store: Any) -> None:
    """H16: a child of another graph isn't taken for it."""
    names = ["one", "two"]

    def plan(state: State, ctx: NodeContext) -> dict[str, Any]:
        ctx.start(child_graph(name=names.pop(0)), {"n": 1})
        raise ValueError("again")

    graph = parent_graph(plan, store)
    with pytest.raises(ExecutionError):
        graph.execute({}, run_id="p")
    with pytest.raises(ExecutionError) as caught:
        graph.resume("p")
    assert isinstance(caught.value.cause, RunExists)


@pytest.mark.parametrize("kind", ["graph", "workflow"])
def test_children_that_an_earlier_process_has_started_are_executed_at_once(kind: str, store: Any) -> None:
    """H16: though the process that resumes their parent joins them one by one."""
    together = Barrier(3, timeout=30)

    def meet(n: int) -> int:
        together.wait()
        return n

    child: Any = child_graph(lambda state: {"n": meet(state["n"])})
    if kind == "workflow":
        child = Workflow("child").add_task("n", meet, depends_on=[])

    def spread(state: State, ctx: NodeContext) -> dict[str, Any]:
        return {"log": [ctx.start(child, {"n": number}).run_id for number in (1, 2, 3)]}

    def gather(state: State, ctx: NodeContext) -> dict[str, Any]:
        ended = [ctx.join(run_id, child) for run_id in state["log"]]
        return {"n": sum(each.results["n"] if kind == "workflow" else each["n"] for each in ended)}

    graph = StateGraph({"n": int, "log": list}, name="parent").add_node(spread).add_node(gather)
    graph.set_entry_point("spread").add_edge("spread", "gather").set_finish_point("gather")
    graph.compile(store=store, interrupt_before=["gather"])
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="p")
    assert graph.resume("p")["n"] == 6
