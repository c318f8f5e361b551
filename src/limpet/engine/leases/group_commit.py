"""Group commit: one thread at a time writes to a store, and takes along the commits that others have queued.

The write lock decides who writes. There are three ways in:

1. A thread that finds the lock free and nothing queued writes its own commit. This is the fast path: no queue, no
   wake-up.
2. A thread that finds the lock taken queues its commit and waits on a lock of its own. It is woken for one of two
   reasons: its commit was written together with others, or it is now the *leader*, which owns the write lock and
   writes everything that is queued.
3. An event loop must not block, so it queues its commit as *deferred*. The next writer takes it along, or else the
   flusher thread writes it. The main thread does the same when it finds the lock taken: only the main thread can be
   interrupted at any moment (Ctrl-C), so it must never be the leader on whom other threads depend.

The threads of a batch wake each other, one after the other. If all of them woke at once they would only compete for
the interpreter lock, and the leader, which returns from the store meanwhile, would have to wait behind all of them
while the store is idle.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from limpet.errors import StoreUnavailable
from limpet.journal.store import Commit, Store

if TYPE_CHECKING:
    from concurrent.futures import Executor

MAX_BATCH_SIZE = 256
"""How many commits go to the store in one call."""

RECHECK_INTERVAL = 1.0
"""Seconds after which a waiting thread checks by itself whether its commit was written or the write lock is free.
The thread that should have woken it may have been interrupted before it could."""


class PendingCommit:
    """A commit that is queued, and its outcome: None if it was written, else the error that refused it.

    Either `on_done` is called with it, or the thread that queued it waits until `wake_up` is released.
    """

    __slots__ = ("commit", "done", "is_leader", "next_to_wake", "on_done", "outcome", "wake_up")

    def __init__(self, commit: Commit, on_done: Callable[[PendingCommit], None] | None = None) -> None:
        self.commit = commit
        self.on_done = on_done
        self.outcome: Exception | None = None
        self.done = False
        self.is_leader = False
        self.next_to_wake: PendingCommit | None = None
        self.wake_up = Lock()
        self.wake_up.acquire()


class GroupCommit:
    """Writes all commits of this process to one store, in batches."""

    def __init__(self, store: Store) -> None:
        self.store = store
        # A forked child makes a new `GroupCommit`, so this stays right.
        self._main_thread = threading.main_thread().ident
        self._write_lock = Lock()
        self._waiting_threads: deque[PendingCommit] = deque()
        self._deferred: deque[PendingCommit] = deque()
        self._flush_lock = Lock()
        self._flushing = False
        self._flusher: Executor | None = None

    @property
    def flusher(self) -> Executor:
        """The thread that writes deferred commits. It runs no nodes, so no node can keep it busy."""
        if self._flusher is None:
            from concurrent.futures import ThreadPoolExecutor

            self._flusher = ThreadPoolExecutor(1, "limpet-flush")
        return self._flusher

    def commit(self, commit: Commit) -> Exception | None:
        """Write a commit, together with those of other threads, and return why it was refused, or None."""
        # The fast path. A thread must not overtake commits that are queued, or a busy thread would starve them.
        if not self._waiting_threads and not self._deferred and self._write_lock.acquire(False):
            try:
                return self.store.append((commit,))[0]
            except Exception as error:
                return error
            finally:
                self._write_lock.release()
                # A thread may have queued its commit after our first look and found the lock taken: it waits for us.
                if self._waiting_threads:
                    self._start_leader_if_idle()
        if threading.get_ident() == self._main_thread:
            return self._commit_by_flusher(commit)
        pending = PendingCommit(commit)
        self._waiting_threads.append(pending)
        # The writer may have looked at the queue just before our commit was in it, and have released the lock since.
        self._start_leader_if_idle()
        while not pending.wake_up.acquire(True, RECHECK_INTERVAL) and not pending.done:
            self._start_leader_if_idle()
        # A thread whose commit was written in a batch passes the wake-up on to the next one of the batch.
        if pending.next_to_wake is not None:
            pending.next_to_wake.wake_up.release()
        if pending.is_leader:
            self._write_batch([pending])
        return pending.outcome

    def commit_later(self, commit: Commit, on_done: Callable[[PendingCommit], None]) -> None:
        """Queue a commit for another thread, which calls `on_done` with it once it is written or refused."""
        # The flush lock makes "queue, and see whether a flush runs" one step with `_nothing_to_flush`. Otherwise a
        # flush that has just found nothing to do could end without this commit.
        with self._flush_lock:
            self._deferred.append(PendingCommit(commit, on_done))
            was_flushing = self._flushing
            self._flushing = True
        if was_flushing:
            return
        try:
            self.flusher.submit(self.flush)
        except RuntimeError:  # the interpreter is shutting down and starts no more threads
            self.flush()

    def flush(self) -> None:
        """Write all deferred commits, until none are left."""
        try:
            while not self._nothing_to_flush():
                self._write_lock.acquire()
                self._write_batch([])
        except BaseException:
            # The next `commit_later` has to start another flush: this one is over.
            self._flushing = False
            raise

    def _nothing_to_flush(self) -> bool:
        with self._flush_lock:
            self._flushing = bool(self._deferred)
            return not self._flushing

    def _commit_by_flusher(self, commit: Commit) -> Exception | None:
        """Have the flusher write a commit, and wait for it. An interrupt meanwhile leaves no other thread waiting."""
        written = Lock()
        written.acquire()
        outcomes: list[Exception | None] = []

        def on_done(pending: PendingCommit) -> None:
            outcomes.append(pending.outcome)
            written.release()

        self.commit_later(commit, on_done)
        written.acquire()
        return outcomes[0]

    def _start_leader_if_idle(self) -> None:
        """Make the first waiting thread the leader, if no thread writes."""
        if self._write_lock.acquire(False):
            self._pass_on_write_lock()

    def _pass_on_write_lock(self) -> None:
        """Give the write lock, which the caller owns, to the first waiting thread; release it if there is none."""
        while not self._waiting_threads:
            self._write_lock.release()
            # Look again after the release: a thread that queued its commit in between found the lock taken, and
            # would wait for a writer that doesn't exist. If the lock is taken again, its new owner will look.
            if not self._waiting_threads or not self._write_lock.acquire(False):
                return
        leader = self._waiting_threads.popleft()
        leader.is_leader = True
        leader.wake_up.release()

    def _write_batch(self, batch: list[PendingCommit]) -> None:
        """Write these commits and all that are queued. The caller owns the write lock, which is passed on."""
        # Deferred commits first: an event loop with many runs waits for them, and no thread of its own pushes them.
        for queue in (self._deferred, self._waiting_threads):
            while queue and len(batch) < MAX_BATCH_SIZE:
                batch.append(queue.popleft())
        interrupted = StoreUnavailable("the process was interrupted while it saved")
        outcomes: Sequence[Exception | None] = [interrupted] * len(batch)
        # Whatever interrupts this thread, each pending commit gets an outcome and the lock gets its next owner.
        try:
            outcomes = self._append([pending.commit for pending in batch])
        finally:
            try:
                _report_outcomes(batch, outcomes)
            finally:
                self._pass_on_write_lock()

    def _append(self, commits: list[Commit]) -> list[Exception | None]:
        if not commits:
            return []
        try:
            outcomes = self.store.append(commits)
        except Exception as error:
            return [error] * len(commits)
        if len(outcomes) != len(commits):
            what = f"{self.store!r} gave {len(outcomes)} answers to {len(commits)} commits"
            refusal = StoreUnavailable(f"{what}; a store's append() must return one answer per commit")
            return [refusal] * len(commits)
        return outcomes


def _report_outcomes(batch: Sequence[PendingCommit], outcomes: Sequence[Exception | None]) -> None:
    """Give each pending commit its outcome, and wake the first waiting thread, which wakes the next, and so on."""
    first_to_wake: PendingCommit | None = None
    # From the last to the first, so that each thread knows its successor before any of them is woken.
    for pending, outcome in zip(reversed(batch), reversed(outcomes), strict=True):
        pending.outcome = outcome
        # The leader is the thread that runs this: it is awake.
        if pending.on_done is None and not pending.is_leader:
            pending.next_to_wake = first_to_wake
            first_to_wake = pending
        # Last, because a thread that rechecks by itself reads the rest once it sees this.
        pending.done = True
        if pending.on_done is not None:
            pending.on_done(pending)
    if first_to_wake is not None:
        first_to_wake.wake_up.release()
