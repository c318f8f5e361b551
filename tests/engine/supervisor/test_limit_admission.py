"""Limits of whole runs: of graphs, and of queues. Runs wait in their queue until there is room. H18."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest

from limpet import (
    ExecutionError,
    Limit,
    Limits,
    MemoryStore,
    NodeContext,
    RunCancelled,
    Runs,
    State,
    StateGraph,
    Workflow,
    pause,
    supervise,
)
from limpet.engine.leases.lease_client import client_for
from limpet.engine.leases.limit_slots import SlotRequest, limits_of
from limpet.journal.store import NewRun, Store
from support.graphs import Via, single
from support.waiting import until

ONE = Limit("one", concurrency=1)
NEVER = 10_000.0


class Inside:
    """A node function that notes which runs are inside, and holds each up until it is let through."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.begun: list[str] = []
        self.times: list[float] = []
        self.most = 0
        self._open = False
        self._changed = threading.Condition()

    def __call__(self, state: State, ctx: NodeContext) -> dict[str, Any]:
        with self._changed:
            self.runs.append(ctx.run_id)
            self.begun.append(ctx.run_id)
            self.times.append(monotonic())
            self.most = max(self.most, len(self.runs))
            self._changed.wait_for(lambda: self._open, 60)
            self.runs.remove(ctx.run_id)
        return {"done": True}

    def let_all(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()


def held(store: Any, name: str = "one") -> list[str]:
    return [slot.run_id for slot in Limits(store).get(name).held]


def test_a_worker_claims_no_more_runs_of_a_graph_than_its_limit_allows(any_store: Store) -> None:
    """H18: the others stay queued, in order, and are executed as slots come back."""
    inside = Inside()
    graph = single(inside).compile(store=any_store, limits=[Limit("few", concurrency=2)])
    runs = Runs(any_store)
    with supervise(any_store, [graph], concurrency=8, poll=0.5) as supervisor:
        handles = [graph.start({}, run_id=name) for name in "abcde"]
        until(lambda: len(inside.runs) == 2)
        until(lambda: sorted(supervisor.running) == sorted(inside.runs))
        waiting = [name for name in "abcde" if name not in inside.runs]
        assert [runs.get(name).info.shown_status for name in waiting] == ["queued"] * 3
        assert sorted(held(any_store, "few")) == sorted(inside.runs)
        inside.let_all()
        for handle in handles:
            handle.result(timeout=60)
    assert inside.most == 2
    assert inside.begun.index("e") > 1
    until(lambda: held(any_store, "few") == [])


def test_a_full_limit_holds_up_no_other_graph() -> None:
    """H18: their runs are picked in place of those that have to wait, at once."""
    store = MemoryStore()
    inside = Inside()
    limited = single(inside, name="limited").compile(store=store, limits=[ONE])
    free = single(lambda state: {"n": 1}, name="free").compile(store=store)
    for number in range(10):
        limited.start({}, run_id=f"limited-{number}", priority=5)
    others = [free.start({}) for _ in range(20)]
    with supervise(store, [limited, free], concurrency=3, poll=NEVER):
        for handle in others:
            handle.result(timeout=60)
        assert len(inside.begun) == 1
        inside.let_all()
        until(lambda: len(inside.begun) == 10)
    assert inside.most == 1


def test_a_full_limit_is_not_asked_for_again_and_again() -> None:
    """H18: once at each look, however many runs wait and however many others end meanwhile."""
    store = MemoryStore()
    inside = Inside()
    limited = single(inside, name="limited").compile(store=store, limits=[ONE])
    free = single(lambda state: {"n": 1}, name="free").compile(store=store)
    client = client_for(store)
    asked: list[int] = []
    acquire = limits_of(client).acquire
    limits_of(client).acquire = lambda requests, stands_in_line: (  # type: ignore[method-assign]  # to count
        asked.append(len(requests)) or acquire(requests, stands_in_line)
    )
    for number in range(50):
        limited.start({}, run_id=f"limited-{number}")
    with supervise(store, [limited, free], concurrency=3, poll=NEVER) as supervisor:
        until(lambda: inside.runs)
        until(lambda: len(supervisor.running) == 1)
        looks = len(asked)
        for _ in range(5):
            free.start({}).result(timeout=60)
        assert len(asked) - looks <= 12  # each start and each end is a reason to look
        inside.let_all()
        until(lambda: len(inside.begun) == 50)


def test_a_limit_holds_for_all_runs_of_a_queue(any_store: Store) -> None:
    """H18: whatever graph they are of; it is set in the store, and every worker knows."""
    inside = Inside()
    graphs = [single(inside, name=name).compile(store=any_store) for name in ("g1", "g2")]
    Limits(any_store).set("gpus", concurrency=1, queues=["gpu"])
    with supervise(any_store, graphs, concurrency=4, poll=0.5):
        on_gpu = [graph.start({}, queue="gpu") for graph in graphs]
        until(lambda: len(inside.runs) == 1)
        plain = graphs[0].start({})
        until(lambda: plain.id in inside.runs)
        assert len(inside.runs) == 2
        inside.let_all()
        for handle in (*on_gpu, plain):
            handle.result(timeout=60)


def test_a_rate_counts_a_run_once_when_it_is_first_executed() -> None:
    """H18: not when it is resumed after an answer."""
    store = MemoryStore()
    graph = single(lambda state: {"answer": pause("Ship it?")})
    graph.compile(store=store, limits=[Limit("slow", rate="2/hour")])
    with supervise(store, [graph], poll=0.1):
        first, second = graph.start({}), graph.start({})
        until(lambda: first.info.questions and second.info.questions)
        assert Limits(store).get("slow").begun == 2
        third = graph.start({})
        for handle in (first, second):
            handle.answer("yes")
            handle.result(timeout=60)
        assert Limits(store).get("slow").begun == 2
        assert third.info.shown_status == "queued"
        Limits(store).set("slow", rate=None)
        until(lambda: third.info.questions)


def test_a_rate_lets_runs_begin_as_soon_as_it_has_room() -> None:
    """H18: a worker wakes up for it, however rarely it looks otherwise."""
    store = MemoryStore()
    inside = Inside()
    inside.let_all()
    graph = single(inside).compile(store=store, limits=[Limit("slow", rate="2/0.4s")])
    handles = [graph.start({}) for _ in range(6)]
    with supervise(store, [graph], poll=NEVER):
        for handle in handles:
            handle.result(timeout=60)
    times = sorted(inside.times)
    assert all(later - earlier > 0.39 for earlier, later in zip(times, times[2:], strict=False))


def test_slots_that_a_dead_worker_had_come_back(any_store: Store) -> None:
    """H18: of a worker that was about to claim a run, and of one that had claimed it."""
    client = client_for(any_store, 0.4)
    graph = single(lambda state: {"n": 1}).compile(store=any_store, lease=0.4, limits=[ONE])
    graph.execute({})
    lease = any_store.create(NewRun("dead", "g", [b"x"], holder="another machine", ttl=0.4))
    assert lease is not None
    assert limits_of(client).acquire([SlotRequest(lease, "", ("one",))], stands_in_line=False) == [None]
    handle = graph.start({}, run_id="mine")
    with supervise(any_store, [graph], lease=0.4, poll=0.1):
        handle.result(timeout=60)


def test_a_run_that_waits_for_a_slot_of_a_node_gives_up_that_of_its_graph() -> None:
    """H18: others may need it to get on."""
    store = MemoryStore()
    inside = Inside()
    graph = StateGraph(name="both").add_node("only", inside, limits=[ONE])
    graph.set_entry_point("only").set_finish_point("only").compile(
        store=store, limits=[Limit("run", concurrency=1)]
    )
    holder = single(inside, name="holder", limits=["one"]).compile(store=store)
    with supervise(store, [graph, holder], poll=0.1):
        graph.start({}, run_id="first")  # which declares both limits
        until(lambda: inside.runs == ["first"])
        holder.start({}, run_id="waits")
        until(lambda: Limits(store).get("one").waiting == 1)
        inside.let_all()
        for name in ("first", "waits"):
            Runs(store).get(name).wait(timeout=60)
    assert held(store, "run") == held(store) == []


# Runs that a caller executes


def test_runs_that_a_caller_executes_wait_in_place(any_store: Store) -> None:
    """H18: until they have the slots of their graph's limits."""
    inside = Inside()
    graph = single(inside).compile(store=any_store, limits=[Limit("few", concurrency=2)])
    with ThreadPoolExecutor(4) as threads:
        results = [threads.submit(graph.execute, {}) for _ in range(4)]
        until(lambda: len(inside.runs) == 2)
        inside.let_all()
        assert all(result.result(60)["done"] for result in results)
    assert inside.most == 2
    assert held(any_store, "few") == []


def test_many_runs_on_one_event_loop_wait_without_blocking_it() -> None:
    """H18: more than there are threads, and their nodes are sync."""
    store = MemoryStore()
    inside = Inside()
    inside.let_all()
    flow = Workflow("flow", store=store, limits=[ONE]).add_task("only", lambda ctx: inside({}, ctx))  # type: ignore[arg-type]

    async def main() -> None:
        await asyncio.gather(*(flow.aexecute({}) for _ in range(60)))

    asyncio.run(asyncio.wait_for(main(), 60))
    assert len(inside.begun) == 60
    assert inside.most == 1


def test_a_run_that_waits_for_its_limit_can_be_cancelled_and_overdue(store: Any, via: Via) -> None:
    """H18: it is never called."""
    inside = Inside()
    graph = single(inside).compile(store=store, limits=[ONE])
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(graph.execute, {}, run_id="first")
        until(lambda: inside.runs)
        with pytest.raises(ExecutionError, match="deadline"):
            via.execute(graph, {}, deadline=0.2)
        second = threads.submit(via.execute, graph, {}, run_id="second")
        opened = graph.compiled().client.store  # type: ignore[union-attr]  # it has a store
        until(lambda: any(head.run_id == "second" for head in Runs(opened).list()))
        graph.get("second").cancel()
        with pytest.raises(RunCancelled):
            second.result(60)
        inside.let_all()
        first.result(60)
    assert inside.begun == ["first"]


def test_a_run_that_waits_for_a_child_of_its_own_graph_gives_its_slot_up(store: Any) -> None:
    """H18: the child needs it."""

    def work(state: State, ctx: NodeContext) -> dict[str, Any]:
        if not state["depth"]:
            return {"sum": 0}
        child = ctx.start(graph, {"depth": state["depth"] - 1})
        return {"sum": ctx.join(child)["sum"] + 1}

    graph = single(work).compile(store=store, limits=[ONE])
    assert graph.execute({"depth": 2})["sum"] == 2
    assert held(store) == []


def test_the_limit_of_a_graph_that_has_paused_is_free(store: Any, via: Via) -> None:
    """H18: and a resume gets a slot again."""
    graph = single(lambda state: {"answer": pause("Ship it?")}).compile(store=store, limits=[ONE])
    via.paused(graph, {})
    assert held(store) == []
    assert via.resume(graph, "r", "yes")["answer"] == "yes"
    assert held(store) == []
