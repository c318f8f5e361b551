"""A supervisor that has much to do: no run waits for longer than it has to, and none holds up the others."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from limpet import MemoryStore, StateGraph, supervise
from support.graphs import chain

NEVER = 10_000.0
"""A poll that isn't lived to see: what happens before didn't wait for it."""


def steps(name: str, store: Any, *nodes: Callable[..., Any]) -> StateGraph:
    names = [f"step{number}" for number, _ in enumerate(nodes)]
    return chain(*nodes, names=names, name=name).compile(store=store)


def wait(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it didn't come true in 60 s"
        time.sleep(0.005)


def nothing(state: Any) -> dict[str, Any]:
    return {}


class Counted(MemoryStore):
    """A store that counts how often it is looked at."""

    looks = 0

    def ready(self, *args: Any) -> Any:
        self.looks += 1
        return super().ready(*args)


@pytest.mark.parametrize("on_a_loop", [False, True])
def test_queued_runs_follow_one_another_without_a_pause(on_a_loop: bool) -> None:
    """P7: when one ends the next begins, whether the supervisor was resting by then or not; few looks do for many."""
    store = Counted()
    graph = steps("short", store, nothing)
    runs = [graph.start({}) for _ in range(100)]
    supervisor = supervise(store, [graph], concurrency=4, poll=NEVER)

    async def on_the_loop() -> None:
        async with supervisor:
            await asyncio.to_thread(wait, lambda: all(run.status == "completed" for run in runs))

    if on_a_loop:
        asyncio.run(on_the_loop())
    else:
        with supervisor:
            wait(lambda: all(run.status == "completed" for run in runs))
    assert store.looks < 60


def test_a_drain_resumes_all_runs_that_are_ready() -> None:
    """H1: however few at a time, and however soon they end."""
    store = MemoryStore()
    graph = steps("short", store, nothing)
    runs = [graph.start({}) for _ in range(30)]
    assert sorted(graph.recover(concurrency=2)) == sorted(run.id for run in runs)
    assert {run.status for run in runs} == {"completed"}


def test_a_graph_without_room_costs_no_looks_and_continues_when_it_has_room() -> None:
    """P7: others aren't held up by it, and its next run begins when one has ended."""
    store = Counted()
    gate = threading.Event()

    def hold(state: Any) -> dict[str, Any]:
        gate.wait(60)
        return {}

    def looks_within(seconds: float) -> int:
        before = store.looks
        time.sleep(seconds)
        return store.looks - before

    slow = steps("slow", store, hold)
    quick = steps("quick", store, nothing)
    held = [slow.start({}) for _ in range(40)]
    with supervise(store, [slow, quick], concurrency=4, per_graph={"slow": 1}, poll=NEVER) as supervisor:
        wait(lambda: supervisor.running)
        assert quick.start({}).result(60) == {}
        # The end of a run leads to one more look at all of them, which may come late. After that it is quiet.
        wait(lambda: looks_within(0.3) < 5)
        assert len(supervisor.running) == 1
        gate.set()
        wait(lambda: all(run.status == "completed" for run in held))


@pytest.mark.parametrize("on_a_loop", [False, True])
def test_a_node_that_would_end_the_process_ends_no_supervisor(on_a_loop: bool) -> None:
    """H1: its run is skipped, with the reason, and other runs continue."""
    store = MemoryStore()

    async def leave_here(state: Any) -> None:
        sys.exit(3)

    leaving = steps("a", store, lambda state: sys.exit(3))
    leaving_here = steps("b", store, leave_here)
    other = steps("other", store, nothing)
    leaving.start({}, run_id="a")
    leaving_here.start({}, run_id="b")
    supervisor = supervise(store, [leaving, leaving_here, other], poll=0.05)

    def look() -> None:
        wait(lambda: supervisor.skipped == {"a": "SystemExit: 3", "b": "SystemExit: 3"})
        other.start({}).result(60)

    async def on_the_loop() -> None:
        async with supervisor:
            await asyncio.to_thread(look)

    if on_a_loop:
        asyncio.run(on_the_loop())
    else:
        with supervisor:
            look()
    assert store.head("a").holder is None


def test_nodes_that_keep_all_threads_busy_keep_no_supervisor_from_ending() -> None:
    """H1: on an event loop, whose threads sync nodes run in, the grace is kept and the leases are given back."""
    store = MemoryStore()
    gate = threading.Event()
    begun = threading.Semaphore(0)

    def hold(state: Any) -> dict[str, Any]:
        begun.release()
        gate.wait(60)
        return {}

    graph = steps("slow", store, hold)
    runs = [graph.start({}) for _ in range(64)]

    async def use() -> None:
        async with supervise(store, [graph], concurrency=64, grace=0.05):
            while not begun.acquire(blocking=False):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
        assert not any(store.head(run.id).holder for run in runs)
        gate.set()

    asyncio.run(use())
    assert {run.status for run in runs} <= {"running", "completed"}
