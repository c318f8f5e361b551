"""Group commit: commits of many threads and event loops are written together, whatever happens to one of them."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from limpet import MemoryStore, StateGraph, StoreUnavailable
from limpet.engine.leases import group_commit as group_commit_module
from limpet.engine.leases.group_commit import GroupCommit, PendingCommit
from limpet.journal.store import Commit, NewRun
from support.waiting import until


class BlockingStore(MemoryStore):
    """Notes how many commits each call has, and lets a test block a call or make it fail."""

    def __init__(self, runs: int = 0) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.proceed = threading.Event()
        self.proceed.set()
        self.busy = threading.Event()
        self.fail: BaseException | None = None
        for number in range(runs):
            self.create(NewRun(f"r{number}", "g", [b"1"]))

    def append(self, commits: Any) -> Any:
        self.sizes.append(len(commits))
        self.busy.set()
        assert self.proceed.wait(30)
        if self.fail is not None:
            raise self.fail
        return super().append(commits)


def commit(number: int, expected: int = 1) -> Commit:
    return Commit(f"r{number}", 1, expected, [b"x"])


@contextmanager
def first_write_blocked(group_commit: GroupCommit, store: BlockingStore, others: int) -> Iterator[list[Any]]:
    """The write of run 0 blocks, and `others` threads wait behind it. Yields a list for all outcomes."""
    store.proceed.clear()
    store.busy.clear()
    with ThreadPoolExecutor(others + 1) as pool:
        outcomes: list[Any] = []
        calls = [pool.submit(group_commit.commit, commit(0))]
        assert store.busy.wait(30)
        for number in range(1, others + 1):
            calls.append(pool.submit(group_commit.commit, commit(number)))
        until(lambda: len(group_commit._waiting_threads) == others)
        yield outcomes
        store.proceed.set()
        outcomes += [call.result(30) for call in calls]


def test_commits_queued_during_a_write_are_written_together() -> None:
    """H2: one call of the store for all waiting threads, and each gets its own outcome."""
    store = BlockingStore(9)
    group_commit = GroupCommit(store)
    with first_write_blocked(group_commit, store, 20) as outcomes:
        pass
    assert store.sizes == [1, 20]
    assert [outcome is None for outcome in outcomes] == [True] * 9 + [False] * 12
    assert [store.head(f"r{number}").sequence for number in range(9)] == [2] * 9
    assert group_commit.commit(commit(0, 2)) is None


def test_each_thread_is_woken_as_soon_as_its_commit_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """H2: rechecking is for threads that a wake-up didn't reach; no other ever waits for it."""
    monkeypatch.setattr(group_commit_module, "RECHECK_INTERVAL", 1000.0)
    store = BlockingStore(6)
    group_commit = GroupCommit(store)
    for _ in range(5):
        with first_write_blocked(group_commit, store, 5) as outcomes:
            pass
        assert len(outcomes) == 6


def test_a_batch_has_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit_module, "MAX_BATCH_SIZE", 8)
    store = BlockingStore(21)
    group_commit = GroupCommit(store)
    with first_write_blocked(group_commit, store, 20) as outcomes:
        pass
    assert store.sizes == [1, 8, 8, 4]
    assert outcomes == [None] * 21


def test_a_failing_store_fails_all_waiting_commits_and_can_be_used_again() -> None:
    """G9: no thread waits for an answer that never comes."""
    store = BlockingStore(6)
    group_commit = GroupCommit(store)
    with first_write_blocked(group_commit, store, 5) as outcomes:
        store.fail = StoreUnavailable("the disk is full")
    assert [str(outcome) for outcome in outcomes] == [str(store.fail)] * 6
    store.fail = None
    assert group_commit.commit(commit(0)) is None


def test_a_store_that_returns_too_few_answers_refuses_all_commits() -> None:
    """Invariant 9: a user's own store may be wrong, and its runs must not hang."""

    class Short(BlockingStore):
        def append(self, commits: Any) -> Any:
            return super().append(commits)[:1]

    store = Short(6)
    with first_write_blocked(GroupCommit(store), store, 5) as outcomes:
        pass
    assert outcomes[0] is None
    assert ["gave 1 answers to 5 commits" in str(outcome) for outcome in outcomes[1:]] == [True] * 5


def test_an_interrupted_writer_reports_to_all_commits_of_its_batch() -> None:
    """Invariant 9: they don't wait for an answer that never comes, and later commits are written."""
    store = BlockingStore(3)
    outcomes: list[Exception | None] = []
    group_commit = GroupCommit(store)
    store.fail = KeyboardInterrupt()
    group_commit.commit_later(commit(0), lambda pending: outcomes.append(pending.outcome))
    until(lambda: outcomes)
    assert "interrupted" in str(outcomes[0])
    store.fail = None
    group_commit.commit_later(commit(1), lambda pending: outcomes.append(pending.outcome))
    until(lambda: len(outcomes) == 2)
    assert outcomes[1] is None
    assert group_commit.commit(commit(2)) is None


@pytest.mark.skipif(os.name == "nt", reason="Windows has other signals")
def test_ctrl_c_while_another_thread_writes_leaves_no_thread_waiting() -> None:
    """G12: the main thread is interrupted at once, and its commit is still written."""
    assert threading.current_thread() is threading.main_thread()
    store = BlockingStore(9)
    group_commit = GroupCommit(store)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with first_write_blocked(group_commit, store, 7) as outcomes:

            def interrupt() -> None:
                until(lambda: group_commit._deferred)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

            interrupting = threading.Thread(target=interrupt)
            interrupting.start()
            with pytest.raises(KeyboardInterrupt):
                group_commit.commit(commit(8))
            interrupting.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert outcomes == [None] * 8
    until(lambda: store.head("r8").sequence == 2)
    assert group_commit.commit(commit(8, 2)) is None


def test_the_main_thread_waits_for_its_commit() -> None:
    store = BlockingStore(2)
    group_commit = GroupCommit(store)
    store.proceed.clear()
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(group_commit.commit, commit(0))
        assert store.busy.wait(30)
        unblocking = threading.Thread(
            target=lambda: (until(lambda: group_commit._deferred), store.proceed.set())
        )
        unblocking.start()
        assert group_commit.commit(commit(1)) is None
        assert writing.result(30) is None
        unblocking.join()
    assert store.sizes == [1, 1]


def test_a_thread_that_is_never_woken_checks_the_write_lock_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G12: a writer that is interrupted right after it released the write lock wakes no thread."""
    monkeypatch.setattr(group_commit_module, "RECHECK_INTERVAL", 0.01)
    group_commit = GroupCommit(BlockingStore(1))
    group_commit._write_lock.acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(group_commit.commit, commit(0))
        until(lambda: group_commit._waiting_threads)
        group_commit._write_lock.release()
        assert waiting.result(30) is None


def test_a_thread_that_its_predecessor_never_wakes_finds_its_commit_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G12: the threads of a batch wake each other, and one of them may have been interrupted."""
    monkeypatch.setattr(group_commit_module, "RECHECK_INTERVAL", 0.01)
    store = BlockingStore(4)
    group_commit = GroupCommit(store)
    group_commit._write_lock.acquire()
    group_commit._waiting_threads.append(PendingCommit(commit(0)))  # no thread waits for this one
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(group_commit.commit, commit(number)) for number in range(1, 4)]
        until(lambda: len(group_commit._waiting_threads) == 4)
        group_commit._write_batch([])
        assert [each.result(30) for each in waiting] == [None] * 3
    assert store.sizes == [4]


def test_threads_and_event_loops_commit_together_and_everything_is_stored() -> None:
    """H2, invariant 1: each commit is written once, in its run's order."""
    store = BlockingStore(24)
    group_commit = GroupCommit(store)
    steps = 60

    def in_a_thread(number: int) -> None:
        for expected in range(1, steps + 1):
            assert group_commit.commit(commit(number, expected)) is None

    async def on_a_loop(number: int) -> None:
        loop = asyncio.get_running_loop()
        for expected in range(1, steps + 1):
            landed: asyncio.Future[Any] = loop.create_future()

            def on_done(pending: PendingCommit, landed: asyncio.Future[Any] = landed) -> None:
                loop.call_soon_threadsafe(landed.set_result, pending.outcome)

            group_commit.commit_later(commit(number, expected), on_done)
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


def test_a_closed_event_loop_harms_no_other_run() -> None:
    """P6: the loop of one run was closed while it saved; other runs still get their outcomes."""

    class NotInMemory(BlockingStore):
        abilities = MemoryStore.abilities._replace(level="process")

    store = NotInMemory()
    graph = StateGraph({"n": int}, name="g")
    graph.add_node("step", run=lambda state: {"n": state["n"] + 1})
    graph.set_entry_point("step")
    graph.set_finish_point("step")
    graph.compile(store=store, preserve=True)

    async def cancelled_while_saving() -> None:
        running = asyncio.ensure_future(graph.aexecute({"n": 0}, run_id="cancelled"))
        store.proceed.clear()
        await asyncio.to_thread(store.busy.wait, 30)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def next_run() -> Any:
        return await graph.aexecute({"n": 0}, run_id="next")

    asyncio.run(cancelled_while_saving())
    store.proceed.set()
    assert asyncio.run(next_run()) == {"n": 1}
