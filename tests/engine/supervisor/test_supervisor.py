"""Supervisors resume the runs that no process advances, never too many, and release them when stopped. H1."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import pytest

import limpet
from limpet import (
    DefinitionError,
    MemoryStore,
    RunCancelled,
    RunPaused,
    State,
    StateGraph,
    StoreUnavailable,
    UsageError,
    Workflow,
    append,
    pause,
    supervise,
)
from limpet.engine.supervisor.catalog import REGISTERED, GraphCatalog
from limpet.engine.supervisor.supervisor import Supervisor
from limpet.journal.store import NewRun
from support.waiting import SOON, until


def one(run: Any, name: str = "one", **settings: Any) -> StateGraph:
    """A graph of one node."""
    graph = StateGraph({"log": Annotated[list, append]}, name=name, **settings).add_node("node", run=run)
    return graph.set_entry_point("node").set_finish_point("node")


def hello(state: State) -> dict[str, Any]:
    return {"log": ["hello"]}


class BlockingNode:
    """A node that says when it has begun, and ends when the test opens it."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()
        self.open = threading.Event()

    def __call__(self, state: State, ctx: Any) -> dict[str, Any]:
        with self._lock:
            self.begun.append(ctx.run_id)
            self._now += 1
            self.most = max(self.most, self._now)
        assert self.open.wait(SOON)
        with self._lock:
            self._now -= 1
        return {"log": [ctx.run_id]}


@pytest.fixture
def blocking_node() -> Iterator[BlockingNode]:
    made = BlockingNode()
    yield made
    made.open.set()


class Moody(MemoryStore):
    """A memory store that counts what it is asked, and can be away."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.away = False
        super().__init__()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in OPERATIONS:
            return found

        def asked(*args: Any, **kwargs: Any) -> Any:
            self.asked[name] += 1
            if self.away:
                raise StoreUnavailable("it is away")
            return found(*args, **kwargs)

        return asked


OPERATIONS = {"create", "append", "head", "read", "claim", "renew", "release", "signal", "ready", "list"}


def test_a_supervisor_executes_what_is_queued(store: Any) -> None:
    """H1: what was there before it, and what comes while it works, at once."""
    graph = one(hello).compile(store=store)
    before = graph.start()
    with supervise(store, [graph], poll=SOON) as supervisor:
        assert before.result(SOON)["log"] == ["hello"]
        began = monotonic()
        for _ in range(3):
            assert graph.start().result(SOON)["log"] == ["hello"]
        assert monotonic() - began < SOON
        until(lambda: supervisor.running == [])
    assert supervisor.skipped == {}


def test_many_short_runs_do_not_wait_for_the_next_look(store: Any) -> None:
    """H1: when one is over, the next begins; also where it is the graph that has no room."""
    graphs = [one(hello, name=name).compile(store=store) for name in ("a", "b")]
    runs = [graph.start() for _ in range(15) for graph in graphs]
    with supervise(store, graphs, poll=2 * SOON, concurrency=3, per_graph=1):
        for run in runs:
            run.wait(SOON)


def test_no_more_runs_are_under_way_than_may_be(blocking_node: BlockingNode) -> None:
    """H1: in the process as a whole."""
    store = MemoryStore()
    graph = one(blocking_node).compile(store=store)
    runs = [graph.start() for _ in range(7)]
    with supervise(store, [graph], concurrency=3, poll=0.02) as supervisor:
        until(lambda: len(blocking_node.begun) == 3)
        assert len(supervisor.running) == 3
        blocking_node.open.set()
        for run in runs:
            run.wait(SOON)
    assert blocking_node.most == 3
    assert sorted(blocking_node.begun) == sorted(run.id for run in runs)


@pytest.mark.parametrize("limit", [2, {"a": 2, "b": 2}])
def test_no_graph_has_more_runs_under_way_than_it_may(limit: Any) -> None:
    """H1: and none waits for another's."""
    store = MemoryStore()
    blocking_nodes = {"a": BlockingNode(), "b": BlockingNode()}
    graphs = [one(blocking_nodes[name], name=name).compile(store=store) for name in blocking_nodes]
    runs = [graphs[0].start() for _ in range(6)] + [graphs[1].start() for _ in range(3)]
    with supervise(store, graphs, per_graph=limit, poll=0.02):
        until(lambda: [len(blocking_node.begun) for blocking_node in blocking_nodes.values()] == [2, 2])
        blocking_nodes["b"].open.set()
        for run in runs[6:]:
            run.wait(SOON)
        assert len(blocking_nodes["a"].begun) == 2
        blocking_nodes["a"].open.set()
        for run in runs:
            run.wait(SOON)
    assert [blocking_node.most for blocking_node in blocking_nodes.values()] == [2, 2]


def test_a_graph_with_many_runs_does_not_starve_another(blocking_node: BlockingNode) -> None:
    """H1: of those that are as urgent, each graph has its turn."""
    store = MemoryStore()
    many = one(blocking_node, name="many").compile(store=store)
    few = one(blocking_node, name="few").compile(store=store)
    for number in range(50):
        many.start(run_id=f"many-{number}")
    few.start(run_id="few")
    with supervise(store, [many, few], concurrency=4, poll=0.02):
        until(lambda: len(blocking_node.begun) == 4)
        assert "few" in blocking_node.begun
        blocking_node.open.set()


def test_an_urgent_run_overtakes_those_that_wait(blocking_node: BlockingNode) -> None:
    """H1."""
    store = MemoryStore()
    graph = one(blocking_node).compile(store=store)
    first = graph.start(run_id="first")
    with supervise(store, [graph], concurrency=1, poll=0.02):
        until(lambda: blocking_node.begun == ["first"])
        for name, priority in (("idle", -1), ("plain", 0), ("urgent", 1)):
            graph.start(run_id=name, priority=priority)
        blocking_node.open.set()
        until(lambda: len(blocking_node.begun) == 4)
    assert blocking_node.begun == ["first", "urgent", "plain", "idle"]
    assert first.status == "completed"


def test_a_run_of_an_unknown_graph_is_skipped_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    """H1: nothing of it is touched."""
    store = MemoryStore()
    known = one(hello).compile(store=store)
    unknown = one(hello, name="strange").compile(store=store)
    strange = unknown.start()
    before = store.read(strange.id)
    with supervise(store, [known], poll=0.02) as supervisor:
        known.start().wait(SOON)
        until(lambda: strange.id in supervisor.skipped)
        assert supervisor.skipped[strange.id] == "graph 'strange' isn't known to this supervisor"
    assert store.read(strange.id) == before
    assert sum(strange.id in record.message for record in caplog.records) == 1


def test_a_run_whose_graph_has_changed_too_much_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    """H1: its node was removed; that is logged once, the run stays as it is, and others continue."""
    store = MemoryStore()
    old = StateGraph(name="g").add_node("gone").add_node("a").add_edge("gone", "a")
    old.set_entry_point("gone").set_finish_point("a").compile(store=store)
    outdated = old.start()
    new = StateGraph(name="g").add_node("a").set_entry_point("a").set_finish_point("a").compile(store=store)
    with supervise(store, [new], poll=0.02) as supervisor:
        until(lambda: outdated.id in supervisor.skipped)
        assert "'gone', which is no longer in the graph" in supervisor.skipped[outdated.id]
        new.start().result(SOON)
        head = store.head(outdated.id)
        assert (head.status, head.holder, head.crashes) == ("running", None, 0)
    with supervise(store, [old], poll=0.02):
        outdated.wait(SOON)
    assert outdated.status == "completed"


def test_a_node_that_raises_fails_its_run_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """H1."""

    def node(state: State) -> dict[str, Any]:
        if state.get("bad"):
            raise ValueError("no")
        return hello(state)

    store = MemoryStore()
    graph = one(node).compile(store=store)
    bad = graph.start({"bad": True})
    good = graph.start()
    with supervise(store, [graph], poll=0.02):
        assert bad.wait(SOON).reason == "ValueError: no"
        assert good.wait(SOON).status == "completed"
    assert bad.status == "failed"


@pytest.mark.parametrize("sort", ["sync", "async", "branch"])
def test_a_node_that_would_end_the_process_is_skipped(sort: str, caplog: pytest.LogCaptureFixture) -> None:
    """H1: it isn't resumed again at once, the supervisor continues, and a drain ends."""
    calls: list[int] = []

    def node(state: State) -> None:
        calls.append(1)
        sys.exit(3)

    async def anode(state: State) -> None:
        node(state)

    store = MemoryStore()
    graph = one(anode if sort == "async" else node)
    if sort == "branch":
        graph = (
            StateGraph({"log": Annotated[list, append]}, name="one").add_node("src").add_node("a", run=node)
        )
        graph.add_node("b").add_fanin_node("join").set_entry_point("src").set_finish_point("join")
        graph.add_parallel_edge("src", "a", "join").add_parallel_edge("src", "b", "join")
    graph.compile(store=store)
    other = one(hello, name="other").compile(store=store)
    bad = graph.start()
    with supervise(store, [graph, other], poll=0.02) as supervisor:
        until(lambda: bad.id in supervisor.skipped)
        assert other.start().result(SOON)["log"] == ["hello"]
        assert supervisor.skipped[bad.id] == "SystemExit: 3"
        assert len(calls) == 1
    assert graph.recover() == [bad.id]
    assert len(calls) == 2
    assert store.head(bad.id).holder is None


class GreenTimeout(BaseException):
    """What some libraries raise to get past every `except Exception`."""


def in_place(
    sort: str, node: Callable[[State], None], beside: Callable[[State], object] | None = None
) -> StateGraph:
    """A graph with this node, alone or in a branch, sync or async; the other branch has the node `beside`."""

    async def anode(state: State) -> None:
        node(state)

    run: Any = anode if sort.startswith("async") else node
    if not sort.endswith("branch"):
        return one(run)
    graph = StateGraph(name="one").add_node("src").add_node("a", run=run)
    graph.add_node("b", run=beside).add_fanin_node("join").set_entry_point("src").set_finish_point("join")
    return graph.add_parallel_edge("src", "a", "join").add_parallel_edge("src", "b", "join")


@pytest.mark.parametrize("error", [GreenTimeout, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("sort", ["sync", "async", "sync branch", "async branch"])
def test_a_run_whose_node_raises_a_bare_base_exception_ends_in_quarantine(
    sort: str, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """H1: it isn't called again at once, each call counts as a crash, and the reason is reported."""
    calls: list[int] = []
    over = threading.Event()

    def node(state: State) -> None:
        calls.append(1)
        raise error("slow")

    store = MemoryStore()
    # What the other branch saved would be progress, after which crashes count from zero.
    graph = in_place(sort, node, beside=lambda state: over.wait(SOON) and None).compile(store=store)
    bad = graph.start()
    other = one(hello, name="other").compile(store=store)
    with supervise(store, [graph, other], poll=0.01) as supervisor:
        until(lambda: bad.id in supervisor.skipped)
        assert other.start().result(SOON)["log"] == ["hello"]
        assert supervisor.skipped[bad.id] == f"{error.__name__}: slow"
        assert f"run {bad.id} is skipped: {error.__name__}: slow" in caplog.text
        assert len(calls) == 1
    head = store.head(bad.id)
    assert (head.crashes, head.status, head.holder) == (1, "running", None)
    while bad.status == "running" and len(calls) < 9:
        graph.recover()
    over.set()
    assert (bad.status, len(calls)) == ("failed", 3)
    assert "its process crashed 3 times in a row at node" in (bad.wait(0).reason or "")
    assert "so the run was quarantined" in caplog.text


def test_crashes_are_counted_from_zero_once_another_branch_has_saved() -> None:
    """H1: a run that gets further isn't quarantined; from there on it may crash as often again."""
    calls: list[int] = []
    may_end = threading.Event()
    store = MemoryStore()

    def node(state: State) -> None:
        calls.append(1)
        if len(calls) == 3:
            before = store.head("r").sequence
            may_end.set()
            until(lambda: store.head("r").sequence > before)
        raise GreenTimeout("slow")

    graph = in_place("sync branch", node, beside=lambda state: may_end.wait(SOON) and None)
    bad = graph.compile(store=store).start(run_id="r")
    while bad.status == "running" and len(calls) < 9:
        graph.recover()
    assert (bad.status, len(calls)) == ("failed", 5)


@pytest.mark.parametrize("error", [GreenTimeout, SystemExit])
@pytest.mark.parametrize("sort", ["sync", "async", "sync branch", "async branch"])
def test_an_async_supervisor_counts_a_crash_for_a_bare_base_exception(
    sort: str, error: type[BaseException]
) -> None:
    """H1: the same on an event loop."""
    calls: list[int] = []

    def node(state: State) -> None:
        calls.append(1)
        raise error("slow")

    store = MemoryStore()
    graph = in_place(sort, node).compile(store=store)

    async def main() -> None:
        bad = await graph.astart()
        async with supervise(store, [graph], poll=0.01) as supervisor:
            while bad.id not in supervisor.skipped:
                await asyncio.sleep(0.01)
        head = store.head(bad.id)
        assert (len(calls), head.crashes, head.holder, head.status) == (1, 1, None, "running")

    asyncio.run(asyncio.wait_for(main(), SOON))


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("sort", ["sync", "sync branch"])
@pytest.mark.parametrize("timeout", [None, SOON])
def test_a_sync_node_that_cancels_itself_has_failed(
    sort: str, error: type[BaseException], timeout: float | None
) -> None:
    """H1, H7: no caller can cancel a sync node, so it is the node's failure: in a worker and with both APIs."""
    calls: list[int] = []

    def node(state: State) -> None:
        calls.append(1)
        raise error("itself")

    store = MemoryStore()
    graph = StateGraph(name="one").add_node("src").add_node("a", run=node, timeout=timeout).add_node("b")
    graph.set_entry_point("src").add_fanin_node("join").set_finish_point("join")
    if sort == "sync":
        graph.add_edge("src", "a").add_edge("a", "join").add_edge("b", "join").add_edge("src", "b")
    else:
        graph.add_parallel_edge("src", "a", "join").add_parallel_edge("src", "b", "join")
    graph.compile(store=store)
    reason = f"{error.__name__}: itself"
    for execute in (graph.execute, lambda: asyncio.run(graph.aexecute())):
        with pytest.raises(limpet.ExecutionError, match=reason):
            execute()
    bad = graph.start()
    with supervise(store, [graph], poll=0.01):
        assert bad.wait(SOON).reason == reason
    assert [info.status for info in graph.runs()] == ["failed"] * 3
    assert len(calls) == 3


@pytest.mark.parametrize("sort", ["sync", "async", "sync branch", "async branch"])
def test_a_bare_base_exception_comes_out_of_execute(sort: str) -> None:
    """F12, H3: it is for the caller of the run, which stays where it is."""

    def node(state: State) -> None:
        if store.head("r").fence == 1:
            raise GreenTimeout("slow")

    store = MemoryStore()
    graph = in_place(sort, node).compile(store=store, preserve=True)
    with pytest.raises(GreenTimeout, match="slow"):
        graph.execute(run_id="r")
    head = store.head("r")
    assert (head.status, head.holder, head.crashes) == ("running", None, 0)
    graph.resume("r")
    assert store.head("r").status == "completed"


def test_a_run_that_another_process_has_claimed_is_dropped_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """H1: its node may run twice, so the log says why."""

    def claimed_meanwhile(state: State) -> None:
        store.claim("r", "another", 1000.0, instead_of=store.head("r").fence)

    store = MemoryStore()
    graph = one(claimed_meanwhile).compile(store=store)
    graph.start(run_id="r")
    with supervise(store, [graph], poll=0.01):
        until(lambda: "run r of one is dropped" in caplog.text, "the log says so")
    (record,) = [each for each in caplog.records if "is dropped" in each.message]
    assert (record.name, record.levelno) == ("limpet.supervisor", logging.WARNING)
    assert "the run was claimed since" in record.message
    assert (store.head("r").status, store.head("r").holder) == ("running", "another")


def test_a_stop_lets_running_nodes_finish_and_another_supervisor_resume(blocking_node: BlockingNode) -> None:
    """H1: what is done is saved, the lease is given back, and nothing more is begun."""
    store = MemoryStore()
    graph = StateGraph({"log": Annotated[list, append]}, name="two").add_node("first", run=blocking_node)
    graph.add_node("second", run=hello).add_edge("first", "second")
    graph.set_entry_point("first").set_finish_point("second").compile(store=store)
    run = graph.start()
    supervisor = supervise(store, [graph], poll=0.02).start()
    until(lambda: blocking_node.begun)
    stopping = threading.Thread(target=supervisor.stop)
    stopping.start()
    later = graph.start()
    blocking_node.open.set()
    stopping.join(SOON)
    head = store.head(run.id)
    assert (head.status, head.holder, head.due, run.state["log"]) == ("running", None, 0.0, [run.id])
    assert later.state["log"] == []
    assert supervisor.running == []
    assert sorted(graph.recover()) == sorted([run.id, later.id])
    assert run.state["log"] == [run.id, "hello"]
    assert blocking_node.begun.count(run.id) == 1


def test_a_stop_does_not_wait_for_ever(blocking_node: BlockingNode, caplog: pytest.LogCaptureFixture) -> None:
    """H1: after the grace the lease is released at once; the late result of the node isn't saved."""
    store = MemoryStore()
    graph = one(blocking_node).compile(store=store)
    run = graph.start()
    supervisor = supervise(store, [graph], poll=0.02).start()
    until(lambda: blocking_node.begun)
    supervisor.stop(grace=0.01)
    assert store.head(run.id).holder is None
    assert any("released unfinished" in record.message for record in caplog.records)
    other = one(hello).compile(store=store)
    assert other.recover() == [run.id]
    assert run.state["log"] == ["hello"]
    blocking_node.open.set()
    until(lambda: supervisor.running == [])
    assert run.state["log"] == ["hello"]


def test_a_stop_while_a_run_pauses_leaves_it_paused() -> None:
    """H1, G12: it isn't cancelled, and its question stands."""
    asked = threading.Event()
    go = threading.Event()

    def node(state: State) -> dict[str, Any]:
        asked.set()
        assert go.wait(SOON)
        return {"log": [pause("Well?")]}

    store = MemoryStore()
    graph = one(node).compile(store=store)
    run = graph.start()
    supervisor = supervise(store, [graph], poll=0.02).start()
    assert asked.wait(SOON)
    stopping = threading.Thread(target=supervisor.stop)
    stopping.start()
    until(lambda: supervisor.resumer.stopping)
    go.set()
    stopping.join(SOON)
    assert run.status == "paused"
    assert [each.prompt for each in run.info.questions] == ["Well?"]
    assert graph.resume(run.id, "yes")["log"] == ["yes"]


def test_a_stop_while_branches_run_leaves_the_run(blocking_node: BlockingNode) -> None:
    """H1: what the branches did is saved, the rest is for others."""
    store = MemoryStore()
    graph = StateGraph({"log": Annotated[list, append]}, name="g").add_node("src")
    graph.add_node("a", run=blocking_node).add_node("b", run=blocking_node).add_node(
        "a2", run=hello
    ).add_edge("a", "a2")
    graph.add_fanin_node("join", run=lambda state, parallel_results: {"log": ["joined"]})
    graph.add_parallel_edge("src", "a", "join").add_parallel_edge("src", "b", "join")
    graph.set_entry_point("src").set_finish_point("join").compile(store=store)
    run = graph.start()
    supervisor = supervise(store, [graph], poll=0.02).start()
    until(lambda: len(blocking_node.begun) == 2)
    stopping = threading.Thread(target=supervisor.stop)
    stopping.start()
    until(lambda: supervisor.resumer.stopping)
    blocking_node.open.set()
    stopping.join(SOON)
    assert (store.head(run.id).status, store.head(run.id).holder) == ("running", None)
    assert graph.recover() == [run.id]
    assert run.state["log"] == ["joined"]
    assert len(blocking_node.begun) == 2


def test_starting_and_stopping_twice_is_once(store: Any) -> None:
    """H1: and one that was stopped can be started again."""
    graph = one(hello).compile(store=store)
    supervisor = supervise(store, [graph], poll=0.02)
    supervisor.stop()
    assert supervisor.start() is supervisor
    assert supervisor.start() is supervisor
    graph.start().wait(SOON)
    assert [thread.name for thread in threading.enumerate()].count("limpet-supervisor") == 1
    supervisor.stop()
    supervisor.stop()
    ends = monotonic() + SOON
    while "limpet-supervisor" in [thread.name for thread in threading.enumerate()]:
        assert monotonic() < ends
    late = graph.start()
    with supervisor:
        assert late.wait(SOON).status == "completed"


def test_a_running_run_can_be_cancelled(blocking_node: BlockingNode) -> None:
    """P7: it stops before its next node; also from a graph that knows nothing of the supervisor's lease."""
    store = MemoryStore()
    graph = StateGraph({"log": Annotated[list, append]}, name="two").add_node("first", run=blocking_node)
    graph.add_node("second", run=hello).add_edge("first", "second")
    graph.set_entry_point("first").set_finish_point("second").compile(store=store)
    for lease in (10.0, 30.0):
        blocking_node.open.clear()
        blocking_node.begun.clear()
        run = graph.start()
        with supervise(store, [graph], poll=0.02, lease=lease):
            until(lambda: blocking_node.begun)
            graph.cancel(run.id)
            blocking_node.open.set()
            with pytest.raises(RunCancelled):
                run.result(SOON)
        assert run.state["log"] in ([], [run.id])


@pytest.mark.parametrize("cancel_first", [True, False])
def test_a_cancel_is_kept_when_the_supervisor_stops(blocking_node: BlockingNode, cancel_first: bool) -> None:
    """P7, H1: in whichever order they come."""
    store = MemoryStore()
    graph = StateGraph({"log": Annotated[list, append]}, name="two").add_node("first", run=blocking_node)
    graph.add_node("second", run=hello).add_edge("first", "second")
    graph.set_entry_point("first").set_finish_point("second").compile(store=store)
    run = graph.start()
    supervisor = supervise(store, [graph], poll=0.02).start()
    until(lambda: blocking_node.begun)
    if cancel_first:
        graph.cancel(run.id)
    stopping = threading.Thread(target=supervisor.stop)
    stopping.start()
    until(lambda: supervisor.resumer.stopping)
    if not cancel_first:
        graph.cancel(run.id)
    blocking_node.open.set()
    stopping.join(SOON)
    graph.recover()
    assert run.status == "cancelled"


def test_runs_wait_while_the_store_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """H1: a save that fails is repeated until it succeeds; no node is called twice, and no result is missing."""
    store = Moody()
    calls = list[str]()

    def first(state: State) -> dict[str, Any]:
        calls.append("first")
        store.away = True
        return {"log": ["first"]}

    graph = StateGraph({"log": Annotated[list, append]}, name="two").add_node("first", run=first)
    graph.add_node("second", run=hello).add_edge("first", "second")
    graph.set_entry_point("first").set_finish_point("second").compile(store=store)
    run = graph.start()
    with supervise(store, [graph], poll=0.02):
        until(lambda: any("waits for its store" in record.message for record in caplog.records))
        store.away = False
        assert run.wait(SOON).status == "completed"
        assert graph.start().id
    assert (calls[:1], run.state["log"]) == (["first"], ["first", "hello"])


def test_a_supervisor_looks_again_when_the_store_is_back(caplog: pytest.LogCaptureFixture) -> None:
    """H1: it says so, and doesn't end."""
    store = Moody()
    graph = one(hello).compile(store=store)
    run = graph.start()
    store.away = True
    with supervise(store, [graph], poll=0.01):
        until(lambda: any("couldn't look for runs" in record.message for record in caplog.records))
        store.away = False
        assert run.wait(SOON).status == "completed"


def test_a_stop_while_the_store_is_away_ends(caplog: pytest.LogCaptureFixture) -> None:
    """H1: the run doesn't fail. Its lease can't be released, but a resume here knows that no run uses it."""
    store = Moody()

    def first(state: State) -> dict[str, Any]:
        store.away = not state.get("log") and not went
        went.append(1)
        return {"log": ["first"]}

    went: list[int] = []
    graph = StateGraph({"log": Annotated[list, append]}, name="two").add_node("first", run=first)
    graph.add_node("second", run=hello).add_edge("first", "second")
    graph.set_entry_point("first").set_finish_point("second").compile(store=store)
    run = graph.start()
    supervisor = supervise(store, [graph], poll=0.02).start()
    until(lambda: any("waits for its store" in record.message for record in caplog.records))
    supervisor.stop(SOON)
    store.away = False
    assert run.status == "running"
    assert graph.resume(run.id)["log"] == ["first", "hello"]


def test_a_graph_that_tolerates_failed_saves_continues(caplog: pytest.LogCaptureFixture) -> None:
    """H1: `on_save_error="continue"` counts for a supervised run, too."""
    store = Moody()
    calls = list[int]()

    def first(state: State) -> dict[str, Any]:
        store.away = True
        return {"log": ["first"]}

    def second(state: State) -> dict[str, Any]:
        calls.append(1)
        store.away = False
        return {"log": ["second"]}

    graph = StateGraph({"log": Annotated[list, append]}, name="two").add_node("first", run=first)
    graph.add_node("second", run=second).add_edge("first", "second")
    graph.set_entry_point("first").set_finish_point("second")
    graph.compile(store=store, on_save_error="continue")
    run = graph.start()
    with supervise(store, [graph], poll=0.02):
        until(lambda: calls)
        run.wait(SOON)
    assert run.state["log"] == ["first", "second"]


def test_on_save_error_wait_is_for_plain_runs_as_well() -> None:
    """H1: `execute` then waits for the store, too."""
    store = Moody()

    def first(state: State) -> dict[str, Any]:
        store.away = True
        threading.Timer(0.2, setattr, (store, "away", False)).start()
        return {"log": ["first"]}

    graph = one(first).compile(store=store, on_save_error="wait")
    assert graph.execute()["log"] == ["first"]


def test_an_idle_supervisor_costs_one_small_query_a_look() -> None:
    """H1: with the poll of 2 seconds that it has, less than one a second."""
    store = Moody()
    graph = one(hello).compile(store=store)
    for _ in range(3):
        graph.start(delay=1e6)
    store.asked.clear()
    began = monotonic()
    with supervise(store, [graph], poll=0.05):
        until(lambda: store.asked["ready"] >= 10)
        took = monotonic() - began
        looks = store.asked["ready"]
    assert looks <= took / 0.05 + 3
    assert sum(store.asked.values()) - store.asked["ready"] <= 3
    assert supervise(store, [graph]).options.poll == 2.0


def test_an_idle_supervisor_finds_what_another_process_queued(tmp_path: Path) -> None:
    """H1: by polling, without a nudge: two stores of one file."""
    from limpet.stores.sqlite.store import SQLiteStore

    here = SQLiteStore(tmp_path / "runs.db")
    there = SQLiteStore(tmp_path / "runs.db")
    graph = one(hello).compile(store=here)
    elsewhere = one(hello).compile(store=there)
    with supervise(here, [graph], poll=0.02):
        assert elsewhere.start().result(SOON)["log"] == ["hello"]


def test_two_supervisors_share_the_work_and_never_a_run(store: Any) -> None:
    """H1, invariant 5."""
    calls: Counter[str] = Counter()
    lock = threading.Lock()

    def node(state: State, ctx: Any) -> dict[str, Any]:
        with lock:
            calls[ctx.run_id] += 1
        return {"log": ["x"]}

    graph = one(node).compile(store=store)
    with supervise(store, [graph], poll=0.01), supervise(store, [graph], poll=0.01):
        runs = [graph.start() for _ in range(40)]
        for run in runs:
            assert run.wait(SOON).status == "completed"
    assert calls == Counter({run.id: 1 for run in runs})


def test_leases_are_renewed_while_a_node_blocks(blocking_node: BlockingNode) -> None:
    """H1: for as long as it takes; another supervisor doesn't take the run."""
    store = MemoryStore()
    graph = one(blocking_node).compile(store=store)
    run = graph.start()
    with supervise(store, [graph], poll=0.02, lease=1.0), supervise(store, [graph], poll=0.02, lease=1.0):
        until(lambda: blocking_node.begun)
        first = store.head(run.id)
        until(lambda: (store.head(run.id).lease_until or 0.0) > (first.lease_until or 0.0) + 1.0)
        assert store.head(run.id).fence == first.fence
        blocking_node.open.set()
        run.wait(SOON)
    assert blocking_node.begun == [run.id]


def test_graphs_are_found_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H1: a fresh process loads what it needs when a run of it turns up."""
    (tmp_path / "their_graphs.py").write_text(
        "from limpet import StateGraph\n"
        "class inside:\n"
        "    graph = StateGraph(name='theirs').add_node('a', run=lambda state: {'x': 1})\n"
        "    graph.set_entry_point('a').set_finish_point('a')\n"
        "broken = 5\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    store = MemoryStore()
    with supervise(store, {"theirs": "their_graphs:inside.graph"}, poll=0.02):
        assert "their_graphs" not in sys.modules
        graph = StateGraph(name="theirs").add_node("a").set_entry_point("a").set_finish_point("a")
        run = graph.compile(store=store).start()
        assert run.result(SOON)["x"] == 1
    assert GraphCatalog(["their_graphs:inside.graph"]).names == ["theirs"]
    for reference, what in {
        "their_graphs": "isn't a reference to a graph",
        "their_graphs:insid": "did you mean 'inside'",
        "their_graphs:broken": "isn't a graph",
        "no_such_module:graph": "can't import 'no_such_module'",
        ":graph": "isn't a reference to a graph",
    }.items():
        with pytest.raises(DefinitionError, match=what):
            GraphCatalog([reference])


def test_a_reference_that_leads_nowhere_skips_its_runs(caplog: pytest.LogCaptureFixture) -> None:
    """H1: until it does; also one that leads to a graph of another name."""
    store = MemoryStore()
    graph = one(hello).compile(store=store)
    run = graph.start()
    with supervise(store, {"one": "no_such_module:graph"}, poll=0.02) as supervisor:
        until(lambda: run.id in supervisor.skipped)
        assert "can't import" in supervisor.skipped[run.id]
    assert store.head(run.id).crashes == 0


def test_registered_graphs_are_known_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """H1: without a list; two of one name are a mistake, the same one twice isn't."""
    monkeypatch.setattr(REGISTERED, "_graphs", {})
    store = MemoryStore()
    with pytest.raises(UsageError, match="needs graphs"):
        supervise(store)
    graph = one(hello).compile(store=store)
    assert limpet.register_graph(graph) == "one"
    assert limpet.register_graph(graph) == "one"
    with pytest.raises(DefinitionError, match="two graphs called 'one'"):
        limpet.register_graph(one(hello))
    with pytest.raises(DefinitionError, match="isn't a graph"):
        limpet.register_graph(StateGraph)  # type: ignore[arg-type]
    with supervise(store, poll=0.02):
        assert graph.start().wait(SOON).status == "completed"


def test_one_supervisor_resumes_workflows_and_graphs() -> None:
    """H1."""
    store = MemoryStore()
    flow = Workflow("flow").add_task("a", lambda: 1).add_task("b", lambda a: a + 1, depends_on=["a"])
    flow.compile(store=store)
    graph = one(hello).compile(store=store)
    with supervise(store, [flow, graph], poll=0.02):
        assert flow.start().result(SOON).results["b"] == 2
        assert graph.start().result(SOON)["log"] == ["hello"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"lease": 0},
        {"lease": -1},
        {"poll": 0},
        {"max_sleep": -1},
        {"grace": -1},
        {"max_crashes": 0},
        {"max_crashes": 1.5},
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"concurrency": 10**30},
        {"concurrency": 10_001},
        {"per_graph": 10**30},
        {"per_graph": 0},
        {"per_graph": {"one": 0}},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    """H1."""
    with pytest.raises(UsageError):
        supervise(MemoryStore(), [one(hello)], **wrong)


@pytest.mark.parametrize("graphs", ["one", 5, [5], [None]])
def test_objects_that_are_not_graphs_are_refused(graphs: Any) -> None:
    """H1."""
    with pytest.raises((UsageError, DefinitionError)):
        supervise(MemoryStore(), graphs)


def test_an_async_supervisor_runs_on_the_event_loop() -> None:
    """H1: async nodes run concurrently there, and sync ones don't block it."""
    store = MemoryStore()
    where = list[bool]()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        both = asyncio.Event()

        async def node(state: State) -> dict[str, Any]:
            where.append(asyncio.get_running_loop() is loop)
            if len(where) == 2:
                both.set()
            await asyncio.wait_for(both.wait(), SOON)
            return {"log": ["async"]}

        anode = one(node, name="async").compile(store=store)
        sync = one(hello, name="sync").compile(store=store)
        async with supervise(store, [anode, sync], poll=0.02) as supervisor:
            runs = [await anode.astart() for _ in range(2)] + [await sync.astart()]
            for run in runs:
                assert (await asyncio.to_thread(run.wait, SOON)).status == "completed"
            while supervisor.running:
                await asyncio.sleep(0.01)
        assert where == [True, True]

    asyncio.run(main())


def test_an_async_supervisor_stops_gracefully(caplog: pytest.LogCaptureFixture) -> None:
    """H1: a node that raises SystemExit doesn't end the loop, and one that runs is let finish."""
    store = MemoryStore()

    async def main() -> None:
        begun = asyncio.Event()
        go = asyncio.Event()

        async def first(state: State) -> dict[str, Any]:
            if state.get("bad"):
                sys.exit(4)
            begun.set()
            await go.wait()
            return {"log": ["first"]}

        graph = StateGraph({"log": Annotated[list, append]}, name="two").add_node("first", run=first)
        graph.add_node("second", run=hello).add_edge("first", "second")
        graph.set_entry_point("first").set_finish_point("second").compile(store=store)
        bad = await graph.astart({"bad": True})
        run = await graph.astart()
        async with supervise(store, [graph], poll=0.02) as supervisor:
            await asyncio.wait_for(begun.wait(), SOON)
            while bad.id not in supervisor.skipped:
                await asyncio.sleep(0.01)
            asyncio.get_running_loop().call_later(0.1, go.set)
        head = store.head(run.id)
        assert (head.status, head.holder, run.state["log"]) == ("running", None, ["first"])

    asyncio.run(main())


def test_an_interrupt_is_not_approved_by_a_supervisor() -> None:
    """G12: it waits for an answer, not for a supervisor."""
    store = MemoryStore()
    graph = one(hello).compile(store=store, interrupt_before=["node"])
    run = graph.start()
    with supervise(store, [graph], poll=0.01):
        assert run.wait(SOON).status == "paused"
        other = one(hello, name="other").compile(store=store)
        assert other.start().status == "running"
        with pytest.raises(RunPaused):
            run.result(0)
    assert graph.recover() == []
    assert graph.resume(run.id)["log"] == ["hello"]


def test_a_store_without_leases_cannot_be_supervised() -> None:
    """H1: it couldn't keep two apart."""

    class Loose(MemoryStore):
        abilities = MemoryStore.abilities._replace(leases=False)

    with pytest.raises(UsageError, match="can't keep two processes apart"):
        supervise(Loose(), [one(hello)])


def test_a_supervisor_says_what_it_does_to_its_log_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """H1: it prints nothing."""
    store = MemoryStore()
    graph = one(hello).compile(store=store)
    logging.getLogger("limpet.supervisor").addHandler(logging.NullHandler())
    with Supervisor(store, GraphCatalog([graph]), supervise(store, [graph]).options._replace(poll=0.02)):
        graph.start().wait(SOON)
    assert capsys.readouterr() == ("", "")


class Returning(MemoryStore):
    """A store that can't be written to until it has been tried once more after a supervisor was stopped."""

    away = False
    stopped: Callable[[], bool] = bool

    def append(self, commits: Any) -> Any:
        if self.away:
            self.away = not self.stopped()
            raise StoreUnavailable("it is away")
        return super().append(commits)


@pytest.mark.parametrize("sort", ["sync", "async"])
def test_a_stop_while_a_node_waits_for_the_store_does_not_fail_it(
    sort: str, caplog: pytest.LogCaptureFixture
) -> None:
    """H1: the run is left to others, with what the node wanted kept if that can be saved by then."""
    store = Returning()
    effects = list[str]()

    def effect() -> str:
        effects.append("paid")
        store.away = len(effects) == 1
        return "paid"

    async def aeffect() -> str:
        return effect()

    def node(state: State) -> dict[str, Any]:
        return {"log": [limpet.once("pay", effect)]}

    async def anode(state: State) -> dict[str, Any]:
        return {"log": [await limpet.once("pay", aeffect)]}

    graph = one(node if sort == "sync" else anode).compile(store=store)
    run = graph.start()
    supervisor = supervise(store, [graph], poll=0.02).start()
    store.stopped = lambda: supervisor.resumer.stopping
    until(lambda: any("waits for its store" in record.message for record in caplog.records))
    supervisor.stop(SOON)
    assert run.status == "running"
    assert graph.resume(run.id)["log"] == ["paid"]


def test_an_async_supervisor_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    """H1: a node that doesn't end is left after the grace, and its run to others."""
    store = MemoryStore()

    async def main() -> str:
        begun = asyncio.Event()

        async def node(state: State) -> None:
            begun.set()
            await asyncio.sleep(10 * SOON)

        graph = one(node).compile(store=store)
        run = await graph.astart()
        async with supervise(store, [graph], poll=0.02, grace=0.01):
            await asyncio.wait_for(begun.wait(), SOON)
        return run.id

    run_id = asyncio.run(asyncio.wait_for(main(), SOON))
    head = store.head(run_id)
    assert (head.status, head.holder, head.crashes) == ("running", None, 0)
    assert one(hello).compile(store=store).recover() == [run_id]


def test_an_async_supervisor_works_while_nodes_keep_all_threads_busy(blocking_node: BlockingNode) -> None:
    """H1: it looks, claims and stops in threads of its own."""
    store = MemoryStore()

    async def main() -> None:
        blocked = one(blocking_node, name="blocked").compile(store=store)
        free = asyncio.Event()

        async def node(state: State) -> None:
            free.set()

        anode = one(node, name="free").compile(store=store)
        runs = [blocked.start() for _ in range(40)]
        async with supervise(store, [blocked, anode], poll=0.02, concurrency=64, grace=0.05) as supervisor:
            while len(supervisor.running) < 40 or not blocking_node.begun:
                await asyncio.sleep(0.01)
            anode.start()
            await asyncio.wait_for(free.wait(), SOON)
        assert all(store.head(run.id).holder is None for run in runs)
        blocking_node.open.set()

    asyncio.run(main())


def test_orphans_are_found_behind_many_queued_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """H1: a list that is full with newer runs, which no process holds, doesn't hide them."""
    from limpet.engine.supervisor import orphans

    monkeypatch.setattr(orphans, "is_dead", lambda holder: holder == "the dead")
    monkeypatch.setattr(orphans, "MAX_LISTED", 3)
    store = MemoryStore()
    store.create(NewRun("orphan", "g", [b"1"], holder="the dead"))
    for number in range(3):
        store.create(NewRun(f"queued {number}", "g", [b"1"], due=0.0))
    (found,) = supervise(store, {"g": "module:graph"}).resumer.orphans.find([])
    assert found.run_id == "orphan"


def test_an_orphan_whose_lease_has_expired_is_resumed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """H1: it is listed as an orphan, and as due as well; a drain waits until it is done."""
    from limpet.engine.supervisor import orphans
    from limpet.testing.conformance.store_calls import ManualClock

    monkeypatch.setattr(orphans, "is_dead", lambda holder: holder == "the dead")
    clock = ManualClock()
    calls: list[str | None] = []
    store = MemoryStore(clock)

    def work(state: State) -> dict[str, Any]:
        calls.append(state.run_id)
        threading.Event().wait(0.05)  # longer than it takes to find that another process has claimed it
        return {"done": True}

    graph = StateGraph(name="g").add_node("work", run=work).set_entry_point("work").set_finish_point("work")
    graph.compile(store=store, preserve=True)
    graph.start({}, run_id="r")
    store.claim("r", "the dead", 10.0)
    clock.advance(20.0)
    assert graph.recover() == ["r"]
    assert (calls, store.head("r").status, store.head("r").crashes) == (["r"], "completed", 1)
