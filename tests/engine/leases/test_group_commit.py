"""The gate to a store: commits of many threads and event loops put together, whatever happens to one of them."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from limpet import MemoryStore, StateGraph, StoreUnavailable
from limpet.engine.leases import group_commit as gates
from limpet.engine.leases.group_commit import GroupCommit, PendingCommit
from limpet.journal.store import Commit, NewRun


class Watched(MemoryStore):
    """Keeps the sizes of what it was given, and lets a test hold up a call or have it fail."""

    def __init__(self, runs: int = 0) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.busy = threading.Event()
        self.fail: BaseException | None = None
        for number in range(runs):
            self.create(NewRun(f"r{number}", "g", [b"1"]))

    def append(self, commits: Any) -> Any:
        self.sizes.append(len(commits))
        self.busy.set()
        assert self.go_on.wait(30)
        if self.fail is not None:
            raise self.fail
        return super().append(commits)


def commit(number: int, expected: int = 1) -> Commit:
    return Commit(f"r{number}", 1, expected, [b"x"])


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@contextmanager
def held_up(gate: GroupCommit, store: Watched, others: int) -> Iterator[list[Any]]:
    """One thread writes run 0 and is held up, and so many wait behind it; what each got is there afterwards."""
    store.go_on.clear()
    store.busy.clear()
    with ThreadPoolExecutor(others + 1) as pool:
        outcomes: list[Any] = []
        calls = [pool.submit(gate.commit, commit(0))]
        assert store.busy.wait(30)
        for number in range(1, others + 1):
            calls.append(pool.submit(gate.commit, commit(number)))
        wait_for(lambda: len(gate._waiting) == others)
        yield outcomes
        store.go_on.set()
        outcomes += [call.result(30) for call in calls]


def test_what_gathers_while_one_is_written_is_written_together() -> None:
    """H2: one call of the store for all who wait, and each hears of its own."""
    store = Watched(9)
    gate = GroupCommit(store)
    with held_up(gate, store, 20) as outcomes:
        pass
    assert store.sizes == [1, 20]
    assert [outcome is None for outcome in outcomes] == [True] * 9 + [False] * 12
    assert [store.head(f"r{number}").sequence for number in range(9)] == [2] * 9
    assert gate.commit(commit(0, 2)) is None


def test_a_batch_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "LARGEST_BATCH", 8)
    store = Watched(21)
    gate = GroupCommit(store)
    with held_up(gate, store, 20) as outcomes:
        pass
    assert store.sizes == [1, 8, 8, 4]
    assert outcomes == [None] * 21


def test_a_store_that_fails_fails_for_all_who_wait_and_then_goes_on() -> None:
    """G9: nobody waits for an answer that never comes."""
    store = Watched(6)
    gate = GroupCommit(store)
    with held_up(gate, store, 5) as outcomes:
        store.fail = StoreUnavailable("the disk is full")
    assert [str(outcome) for outcome in outcomes] == [str(store.fail)] * 6
    store.fail = None
    assert gate.commit(commit(0)) is None


def test_a_store_that_answers_too_few_is_told_so() -> None:
    """Invariant 9: a user's own store may be wrong, and its runs must not hang."""

    class Short(Watched):
        def append(self, commits: Any) -> Any:
            return super().append(commits)[:1]

    store = Short(6)
    with held_up(GroupCommit(store), store, 5) as outcomes:
        pass
    assert outcomes[0] is None
    assert ["gave 1 answers to 5 commits" in str(outcome) for outcome in outcomes[1:]] == [True] * 5


def test_whoever_is_interrupted_while_saving_for_others_tells_them() -> None:
    """Invariant 9: they don't wait for an answer that never comes, nor does whoever comes next."""
    store, told = Watched(3), []
    gate = GroupCommit(store)
    store.fail = KeyboardInterrupt()
    gate.commit_later(commit(0), lambda slot: told.append(slot.outcome))
    wait_for(lambda: told)
    assert "interrupted" in str(told[0])
    wait_for(lambda: not gate._flushing)
    store.fail = None
    gate.commit_later(commit(1), lambda slot: told.append(slot.outcome))
    wait_for(lambda: len(told) == 2)
    assert told[1] is None
    assert gate.commit(commit(2)) is None


@pytest.mark.skipif(os.name == "nt", reason="signals are another matter there")
def test_ctrl_c_while_others_write_leaves_nobody_waiting() -> None:
    """G12: the main thread goes at once; what it had brought is carried out with the others'."""
    assert threading.current_thread() is threading.main_thread()
    store = Watched(9)
    gate = GroupCommit(store)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with held_up(gate, store, 7) as outcomes:

            def interrupt() -> None:
                wait_for(lambda: gate._left)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

            interrupting = threading.Thread(target=interrupt)
            interrupting.start()
            with pytest.raises(KeyboardInterrupt):
                gate.commit(commit(8))
            interrupting.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert outcomes == [None] * 8
    wait_for(lambda: store.head("r8").sequence == 2)
    assert gate.commit(commit(8, 2)) is None


def test_the_main_thread_waits_like_others_do() -> None:
    store = Watched(2)
    gate = GroupCommit(store)
    store.go_on.clear()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(gate.commit, commit(0))
        assert store.busy.wait(30)
        letting = threading.Thread(target=lambda: (wait_for(lambda: gate._left), store.go_on.set()))
        letting.start()
        assert gate.commit(commit(1)) is None
        assert writing.result(30) is None
        letting.join()
    assert store.sizes == [1, 1]


def test_somebody_who_was_told_nothing_looks_for_himself(monkeypatch: pytest.MonkeyPatch) -> None:
    """G12: whoever was interrupted right after leaving the gate free has woken nobody."""
    monkeypatch.setattr(gates, "A_WHILE", 0.01)
    gate = GroupCommit(Watched(1))
    gate._taken.acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(gate.commit, commit(0))
        wait_for(lambda: gate._waiting)
        gate._taken.release()
        assert waiting.result(30) is None


def test_whoever_is_not_woken_by_the_one_before_finds_its_commit_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G12: those of a batch wake each other, and one of them may be gone."""
    monkeypatch.setattr(gates, "A_WHILE", 0.01)
    store = Watched(4)
    gate = GroupCommit(store)
    gate._taken.acquire()
    gate._waiting.append(PendingCommit(commit(0)))  # nobody waits with this one
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(gate.commit, commit(number)) for number in range(1, 4)]
        wait_for(lambda: len(gate._waiting) == 4)
        gate._carry_out([])
        assert [each.result(30) for each in waiting] == [None] * 3
    assert store.sizes == [4]


def test_threads_and_event_loops_share_the_gate_and_none_is_left_behind() -> None:
    """H2, invariant 1: every commit of each is carried out once, in its run's order."""
    store = Watched(24)
    gate = GroupCommit(store)
    steps = 60

    def in_a_thread(number: int) -> None:
        for expected in range(1, steps + 1):
            assert gate.commit(commit(number, expected)) is None

    async def on_a_loop(number: int) -> None:
        loop = asyncio.get_running_loop()
        for expected in range(1, steps + 1):
            landed: asyncio.Future[Any] = loop.create_future()

            def ready(slot: PendingCommit, landed: asyncio.Future[Any] = landed) -> None:
                loop.call_soon_threadsafe(landed.set_result, slot.outcome)

            gate.commit_later(commit(number, expected), ready)
            assert await asyncio.wait_for(landed, 60) is None

    async def all_of(numbers: range) -> None:
        await asyncio.gather(*map(on_a_loop, numbers))

    with ThreadPoolExecutor(20) as pool:
        threads = [pool.submit(in_a_thread, number) for number in range(12)]
        loops = [pool.submit(asyncio.run, all_of(range(start, start + 4))) for start in (12, 16)]
        asyncio.run(all_of(range(20, 24)))
        for each in (*threads, *loops):
            each.result(60)
    assert [store.head(f"r{number}").sequence for number in range(24)] == [steps + 1] * 24
    assert sum(store.sizes) == 24 * steps


def test_an_event_loop_that_is_gone_harms_nobody() -> None:
    """P6: a run whose loop was closed while it saved; others' answers still come."""

    class AsGood(Watched):
        abilities = MemoryStore.abilities._replace(level="process")

    store = AsGood()
    graph = StateGraph({"n": int}, name="g")
    graph.add_node("step", run=lambda state: {"n": state["n"] + 1})
    graph.set_entry_point("step")
    graph.set_finish_point("step")
    graph.compile(store=store, preserve=True)

    async def left() -> None:
        running = asyncio.ensure_future(graph.aexecute({"n": 0}, run_id="left"))
        store.go_on.clear()
        await asyncio.to_thread(store.busy.wait, 30)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def goes_on() -> Any:
        return await graph.aexecute({"n": 0}, run_id="next")

    asyncio.run(left())
    store.go_on.set()
    assert asyncio.run(goes_on()) == {"n": 1}
