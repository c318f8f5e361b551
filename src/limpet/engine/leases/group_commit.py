"""Group commit: one thread at a time writes to a store, and takes along the commits that others have queued.

The write lock decides who writes. There are three ways in:

1. A thread that finds the lock free and nothing queued writes its own commit. This is the fast path: no queue, no
   wake-up.
2. A thread that finds the lock taken queues its commit and waits on a lock of its own. It is woken for one of two
   reasons: its commit was written together with others, or it is now the *leader*, the first in the queue, which
   takes the write lock and writes everything that is queued.
3. An event loop must not block, so it queues its commit as *deferred*. The next writer takes it along, or else a
   worker thread writes it. The main thread does the same when it finds the lock taken: only the main thread can be
   interrupted at any moment (Ctrl-C), so it must never be the leader on whom other threads depend.

The threads of a batch wake each other, one after the other. If all of them woke at once they would only compete for
the interpreter lock, and the leader, which returns from the store meanwhile, would have to wait behind all of them
while the store is idle.

The write lock is held by `with` alone and is never passed on, so that an interrupt always releases it: see
`limpet/threads`. What an interrupt can take away is a wake-up, so a thread that waits rechecks by itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock, RLock

from limpet.errors import StoreUnavailable
from limpet.journal.store import Commit, Store
from limpet.threads.workers import workers

MAX_BATCH_SIZE = 256
"""How many commits go to the store in one call."""

RECHECK_INTERVAL = 1.0
"""Seconds after which a waiting thread checks by itself whether its commit was written or the write lock is free.
The thread that should have woken it may have been interrupted before it could."""


class PendingCommit:
    """A commit that is queued, and its outcome: None if it was written, else the error that refused it.

    Either `on_done` is called with it, or the thread that queued it waits until `wake_up` is released.
    """

    __slots__ = ("commit", "done", "next_to_wake", "on_done", "outcome", "wake_up")

    def __init__(self, commit: Commit, on_done: Callable[[PendingCommit], None] | None = None) -> None:
        self.commit = commit
        self.on_done = on_done
        self.outcome: Exception | None = None
        self.done = False
        self.next_to_wake: PendingCommit | None = None
        self.wake_up = Lock()
        self.wake_up.acquire()

    def wake(self) -> None:
        """Wake the thread that waits, or will wait, for this commit."""
        with suppress(RuntimeError):  # it was woken already, for the other reason
            self.wake_up.release()


class GroupCommit:
    """Writes all commits of this process to one store, in batches."""

    def __init__(self, store: Store) -> None:
        self.store = store
        # A forked child makes a new `GroupCommit`, so this stays right.
        self._main_thread = threading.main_thread().ident
        self._write_lock = Lock()
        # Only the holder of the write lock takes commits out of the two queues.
        self._waiting_threads: deque[PendingCommit] = deque()
        self._deferred: deque[PendingCommit] = deque()
        self._flush_lock = RLock()
        self._flush_scheduled = False

    def commit(self, commit: Commit) -> Exception | None:
        """Write a commit, together with those of other threads, and return why it was refused, or None."""
        # The fast path. A thread must not overtake commits that are queued, or a busy thread would starve them. If
        # another thread takes the lock right after the look, this one waits for that write.
        if not self._waiting_threads and not self._deferred and not self._write_lock.locked():
            try:
                with self._write_lock:
                    return self.store.append((commit,))[0]
            except Exception as error:
                return error
            finally:
                # A thread may have queued its commit after our first look and found the lock taken: it waits for us.
                if self._waiting_threads:
                    self._wake_leader()
        if threading.get_ident() == self._main_thread:
            return self._commit_by_worker(commit)
        pending = PendingCommit(commit)
        self._waiting_threads.append(pending)
        # The writer may have looked at the queue just before our commit was in it, and have released the lock since.
        if not self._write_lock.locked():
            self._wake_leader()
        while not pending.done:
            is_woken = pending.wake_up.acquire(True, RECHECK_INTERVAL)
            if not pending.done and (is_woken or not self._write_lock.locked()):
                self._lead(pending)
        # A thread whose commit was written in a batch passes the wake-up on to the next one of the batch.
        if pending.next_to_wake is not None:
            pending.next_to_wake.wake()
        return pending.outcome

    def commit_later(self, commit: Commit, on_done: Callable[[PendingCommit], None]) -> None:
        """Queue a commit for another thread, which calls `on_done` with it once it is written or refused."""
        self._deferred.append(PendingCommit(commit, on_done))
        self._schedule_flush()

    def flush(self) -> None:
        """Write all deferred commits, until none are left."""
        # Each commit gets its outcome, whatever the store raises.
        with suppress(BaseException), self._write_lock:
            # From here on a commit that is queued schedules another flush, which waits for the write lock: so there
            # are two at a time, at most.
            with self._flush_lock:
                self._flush_scheduled = False
            while self._deferred:
                self._write_batch([])
        if self._deferred:
            self._schedule_flush()
        if self._waiting_threads:
            self._wake_leader()

    def _schedule_flush(self) -> None:
        """Have a worker flush, unless one is about to."""
        with self._flush_lock:
            if not self._flush_scheduled:
                workers.do(self.flush)
                # Last: an interrupt before this line causes a flush too many, never one too few. And the worker can't
                # have reset it yet, because that needs the lock.
                self._flush_scheduled = True

    def _commit_by_worker(self, commit: Commit) -> Exception | None:
        """Have a worker write a commit, and wait for it. An interrupt meanwhile leaves no other thread waiting."""
        written = Lock()
        written.acquire()
        outcomes: list[Exception | None] = []

        def on_done(pending: PendingCommit) -> None:
            outcomes.append(pending.outcome)
            written.release()

        self.commit_later(commit, on_done)
        while not written.acquire(True, RECHECK_INTERVAL):
            self._schedule_flush()
        return outcomes[0]

    def _wake_leader(self) -> None:
        """Have the thread that has waited longest write what is queued."""
        with suppress(IndexError):  # it was the last one, and was just taken along
            self._waiting_threads[0].wake()

    def _lead(self, pending: PendingCommit) -> None:
        """Write what is queued, this commit first, unless another thread has written that meanwhile."""
        with self._write_lock:
            if not pending.done:
                self._write_batch([pending])
        if self._waiting_threads:
            self._wake_leader()

    def _write_batch(self, batch: list[PendingCommit]) -> None:
        """Write these commits and all that are queued. The caller holds the write lock."""
        leader = batch[0] if batch else None
        # Deferred commits first: an event loop with many runs waits for them, and no thread of its own pushes them.
        for queue in (self._deferred, self._waiting_threads):
            while queue and len(batch) < MAX_BATCH_SIZE:
                pending = queue.popleft()
                # The leader's own is in the batch. In a queue it may be found later, when it is done.
                if pending is not leader and not pending.done:
                    batch.append(pending)
        interrupted = StoreUnavailable("the process was interrupted while it saved")
        outcomes: Sequence[Exception | None] = [interrupted] * len(batch)
        # Whatever interrupts this thread, each pending commit gets an outcome.
        try:
            outcomes = self._append([pending.commit for pending in batch])
        finally:
            _report_outcomes(batch, outcomes, leader)
        while self._waiting_threads and self._waiting_threads[0].done:
            self._waiting_threads.popleft()

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


def _report_outcomes(
    batch: Sequence[PendingCommit], outcomes: Sequence[Exception | None], leader: PendingCommit | None
) -> None:
    """Give each pending commit its outcome, and wake the first waiting thread, which wakes the next, and so on."""
    first_to_wake: PendingCommit | None = None
    # From the last to the first, so that each thread knows its successor before any of them is woken.
    for pending, outcome in zip(reversed(batch), reversed(outcomes), strict=True):
        pending.outcome = outcome
        # The leader is the thread that runs this: it is awake.
        if pending.on_done is None and pending is not leader:
            pending.next_to_wake = first_to_wake
            first_to_wake = pending
        # Last, because a thread that rechecks by itself reads the rest once it sees this.
        pending.done = True
        if pending.on_done is not None:
            pending.on_done(pending)
    if first_to_wake is not None:
        first_to_wake.wake()
