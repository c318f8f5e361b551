"""The gate to a store: one thread at a time writes, and takes along what others have brought meanwhile.

Whoever finds the gate free goes through with the own commit, and nothing else happens. Whoever finds it taken
waits with a lock of its own, until it is told one of two things: that the commit was carried out together with
others, or that the gate is now its own, and with it the duty to carry out all that has gathered. Nobody is woken
for nothing. Those whose commits were carried out together wake each other, one after the other: threads that
were all woken at once would only wait again, for the interpreter, and whoever comes back from the store would
have to wait behind all of them while the store has nothing to do.

Event loops don't wait: their commits lie here too, are taken along by whoever writes next, and else by `flush`.
So does the main thread where it finds the gate taken: it alone can be interrupted at any moment (Ctrl-C), and
must not be the one on whom others rely.
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

LARGEST_BATCH = 256

A_WHILE = 1.0
"""Seconds after which a waiting thread looks for itself, whether its commit was carried out or the gate is free:
whoever should have woken it may have been interrupted, and have told nobody."""


class PendingCommit:
    """A commit on its way, and what came of it: `outcome` says why it was refused.

    Either somebody else is to hear of it (`ready`), or the thread that brought it waits for its `turn`: it then
    wakes the one `after` it and, if it `leads`, carries out what has gathered.
    """

    __slots__ = ("after", "commit", "done", "leads", "outcome", "ready", "turn")

    def __init__(self, commit: Commit, ready: Callable[[PendingCommit], None] | None = None) -> None:
        self.commit, self.ready = commit, ready
        self.outcome: Exception | None = None
        self.done = self.leads = False
        self.after: PendingCommit | None = None
        self.turn = Lock()
        self.turn.acquire()


class GroupCommit:
    """Where the commits of this process to one store come through."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._taken = Lock()
        self._waiting: deque[PendingCommit] = deque()
        self._left: deque[PendingCommit] = deque()
        self._flush_lock = Lock()
        self._flushing = False
        self._flusher: Executor | None = None

    @property
    def flusher(self) -> Executor:
        """The thread that carries out what event loops want saved. No node can keep it busy."""
        if self._flusher is None:
            from concurrent.futures import ThreadPoolExecutor

            self._flusher = ThreadPoolExecutor(1, "limpet-flush")
        return self._flusher

    def commit(self, commit: Commit) -> Exception | None:
        """Carry out a commit, together with whatever others wait. Returns why it was refused, or None."""
        if not self._waiting and not self._left and self._taken.acquire(False):
            try:
                return self.store.append((commit,))[0]
            except Exception as error:
                return error
            finally:
                self._taken.release()
                if self._waiting:
                    self._see_to_it()
        if threading.get_ident() == threading.main_thread().ident:
            return self._commit_elsewhere(commit)
        slot = PendingCommit(commit)
        self._waiting.append(slot)
        self._see_to_it()
        while not slot.turn.acquire(True, A_WHILE) and not slot.done:
            self._see_to_it()
        if slot.after is not None:
            slot.after.turn.release()
        if slot.leads:
            self._carry_out([slot])
        return slot.outcome

    def commit_later(self, commit: Commit, ready: Callable[[PendingCommit], None]) -> None:
        """Have a commit carried out by another thread, which calls `ready` with its slot."""
        with self._flush_lock:
            self._left.append(PendingCommit(commit, ready))
            idle, self._flushing = not self._flushing, True
        if idle:
            try:
                self.flusher.submit(self.flush)
            except RuntimeError:  # the interpreter is ending, and starts no thread any more
                self.flush()

    def flush(self) -> None:
        """Carry out all that was left here, until there is nothing more."""
        try:
            while not self._flushed():
                self._taken.acquire()
                self._carry_out([])
        except BaseException:
            self._flushing = False
            raise

    def _flushed(self) -> bool:
        with self._flush_lock:
            self._flushing = bool(self._left)
            return not self._flushing

    def _commit_elsewhere(self, commit: Commit) -> Exception | None:
        """Leave a commit to the flusher and wait for it. Whoever is interrupted meanwhile leaves nothing undone."""
        done = Lock()
        done.acquire()
        outcomes: list[Exception | None] = []

        def ready(slot: PendingCommit) -> None:
            outcomes.append(slot.outcome)
            done.release()

        self.commit_later(commit, ready)
        done.acquire()
        return outcomes[0]

    def _see_to_it(self) -> None:
        """Somebody waits: if the gate is free, let the first of them through."""
        if self._taken.acquire(False):
            self._hand_over()

    def _hand_over(self) -> None:
        """Give the gate, which the caller has, to the first who waits. If nobody does, it is free."""
        while not self._waiting:
            self._taken.release()
            if not self._waiting or not self._taken.acquire(False):
                return
        heir = self._waiting.popleft()
        heir.leads = True
        heir.turn.release()

    def _carry_out(self, batch: list[PendingCommit]) -> None:
        """Carry out these commits, and all that have gathered. The caller has the gate, and gives it away."""
        for queue in (self._left, self._waiting):
            while queue and len(batch) < LARGEST_BATCH:
                batch.append(queue.popleft())
        cut_off = StoreUnavailable("the process was interrupted while it saved")
        outcomes: Sequence[Exception | None] = [cut_off] * len(batch)
        try:
            outcomes = self._append([slot.commit for slot in batch])
        finally:
            try:
                _tell(batch, outcomes)
            finally:
                self._hand_over()

    def _append(self, commits: list[Commit]) -> list[Exception | None]:
        try:
            outcomes = self.store.append(commits) if commits else []
        except Exception as error:
            return [error] * len(commits)
        if len(outcomes) != len(commits):
            what = f"{self.store!r} gave {len(outcomes)} answers to {len(commits)} commits"
            return [StoreUnavailable(f"{what}; a store's append() answers each")] * len(commits)
        return outcomes


def _tell(batch: Sequence[PendingCommit], outcomes: Sequence[Exception | None]) -> None:
    """Have each learn what came of its commit; of the threads that wait the first is woken, to wake the next."""
    last: PendingCommit | None = None
    for slot, outcome in zip(reversed(batch), reversed(outcomes), strict=True):
        slot.outcome = outcome
        if slot.ready is None and not slot.leads:
            slot.after, last = last, slot
        slot.done = True
        if slot.ready is not None:
            slot.ready(slot)
    if last is not None:
        last.turn.release()
