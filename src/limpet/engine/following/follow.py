"""Follow a run, or wait until it stops, whichever process executes it: for callers in threads and on event loops."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager
from functools import lru_cache
from time import monotonic

from limpet.engine.following.cursor import EventCursor
from limpet.engine.following.event_feed import Entry
from limpet.engine.following.run_events import Event
from limpet.engine.following.watcher import FollowedRun, watcher_for
from limpet.engine.following.window import Member, Window, after, is_behind
from limpet.engine.leases.lease_client import LeaseClient
from limpet.errors import LimpetError, StoreUnavailable
from limpet.journal.record_shapes import read_summary
from limpet.journal.store import ENDED, RUNNING, RunHead

IsEnough = Callable[[RunHead], bool]
"""Whether a caller that waits for a run has waited long enough, by its head."""

LONGEST_WAIT = 3600.0
"""Seconds for which a follower waits at most before it looks again."""


def follow(
    client: LeaseClient, run_id: str, cursor: str | None, secrets: frozenset[str]
) -> Generator[Event, None, None]:
    """The events of a run after a cursor, until it ends. Raises `UsageError` at once for what isn't a cursor."""
    return _follow(client, run_id, EventCursor.from_text(cursor, run_id), secrets)


def _follow(
    client: LeaseClient, run_id: str, cursor: EventCursor, secrets: frozenset[str]
) -> Generator[Event, None, None]:
    follower = Follower(client, run_id, cursor, secrets)
    try:
        while True:
            seen = follower.run.version
            entries = follower.take()
            for entry in entries:
                yield follower.hand_out(entry)
            if follower.is_over:
                return
            if not entries:
                follower.run.wait(seen, LONGEST_WAIT)
    finally:
        follower.leave()


def afollow(
    client: LeaseClient, run_id: str, cursor: str | None, secrets: frozenset[str]
) -> AsyncGenerator[Event, None]:
    """The same for `async for`."""
    return _afollow(client, run_id, EventCursor.from_text(cursor, run_id), secrets)


async def _afollow(
    client: LeaseClient, run_id: str, cursor: EventCursor, secrets: frozenset[str]
) -> AsyncGenerator[Event, None]:
    from asyncio import to_thread

    follower = Follower(client, run_id, cursor, secrets)
    try:
        while True:
            seen = follower.run.version
            if follower.may_read:
                entries = await to_thread(follower.take)
            else:
                entries = follower.take()
            for entry in entries:
                yield follower.hand_out(entry)
            if follower.is_over:
                return
            if not entries:
                await follower.run.await_change(seen, LONGEST_WAIT)
    finally:
        follower.leave()


class Follower(Member):
    """One caller that follows a run: how far it has come, and the window that it takes the next events from."""

    __slots__ = ("_has_begun", "_known", "_place", "_watcher", "_window", "is_over", "place", "run")

    def __init__(
        self, client: LeaseClient, run_id: str, cursor: EventCursor, secrets: frozenset[str]
    ) -> None:
        super().__init__()
        self.is_over = False
        """Whether the run has ended, and all events up to there were taken."""
        self.place = cursor
        """The place after the last event that the caller was given."""
        self._place = cursor
        """How far it has taken events."""
        self._has_begun = False
        """Whether the store was available since the caller began to follow."""
        self._known: RunHead | None = None
        """The newest head up to which it has taken all events."""
        self._window: Window | None = None
        self._watcher = watcher_for(client.store)
        self.run: FollowedRun = self._watcher.join(run_id, secrets, self)

    @property
    def may_read(self) -> bool:
        """Whether `take` may read from the store, as its window isn't one that the watcher reads, or may be old."""
        window = self._window
        if window is None or window.is_broken or window.reads <= self.joined:
            return True
        return window is not self.run.newest

    def take(self) -> list[Entry]:
        """The events that there are by now; none if it is up to date, or the store is unavailable for a while.

        Raises why there will be no more. A store that is unavailable from the beginning on isn't waited for.
        """
        try:
            found = self._take()
        except StoreUnavailable as problem:
            if not self._has_begun:
                raise
            self.run.endure(problem)
            return []
        self._has_begun = True
        return found

    def _take(self) -> list[Entry]:
        while True:
            if self._window is None or self._window.is_broken:
                self._window = self.run.window_at(self._place)
                self._window.join(self)
            window = self._window
            reads = window.reads
            head = window.head
            new = window.take(self)
            if new is None:
                self._window = None
                continue
            entries = self._without_known(new)
            if entries:
                return entries
            self._known = head or self._known
            if self._has_all_of(window, reads, head):
                return entries

    def hand_out(self, entry: Entry) -> Event:
        """The event as this caller gets it: with the cursor to continue after it."""
        place = after(self.place, entry)
        self.place = place
        cursor = entry.cursor if place is entry.place else place.to_text(self.run.run_id)
        return {**entry.event, "cursor": cursor}

    def has_all_up_to(self, head: RunHead) -> bool:
        """Whether it has taken all events that there were when the run had this head."""
        known = self._known
        return known is not None and known.sequence >= head.sequence and known.output >= head.output

    def leave(self) -> None:
        """The caller doesn't follow the run any longer."""
        if self._window is not None:
            self._window.leave(self)
        self._watcher.leave(self.run, self)

    def _without_known(self, new: list[Entry]) -> list[Entry]:
        """The entries that it hasn't had from another window."""
        entries = []
        for entry in new:
            place = after(self._place, entry)
            if is_behind(self._place, place):
                entries.append(entry)
                self._place = place
        return entries

    def _has_all_of(self, window: Window, reads: int, head: RunHead | None) -> bool:
        """It has taken all of its window: read further, change to the newest window, or find that there is no more.

        `head` is that of the window after this many `reads`. Returns whether there is nothing more by now.
        """
        if head is not None:
            # It may have read more than this window knows, before it took from it.
            if head.status in ENDED and self._place.record <= head.sequence:
                if reads > self.joined:
                    self.is_over = True
                    return True
                # The run may have been retried since this was read, and before the caller began to follow.
                window.read(reads)
                return False
            self.run.keep_up_to_date(window)
        newest = self.run.newest
        if window is newest:
            self.run.raise_problem()
            return True
        if head is None:
            window.read(reads)
            return False
        assert newest is not None
        if is_behind(self._place, newest.floor):
            window.read(reads)
        else:
            window.leave(self)
            newest.join(self)
            self._window = newest
        return False


def has_stopped(head: RunHead) -> bool:
    """Whether a run isn't running any more."""
    return head.status != RUNNING


def has_stopped_or_asks(head: RunHead) -> bool:
    """The same; or it asks something while other branches or tasks of it continue, and no post for it waits.

    Such a post may be the answer: whether the run asks is known when it has been taken in.
    """
    return head.status != RUNNING or (head.taken == head.posted and _asks(head.note))


def wait_for(client: LeaseClient, run_id: str, seconds: float, is_enough: IsEnough) -> RunHead | None:
    """Wait until a run's head is enough, and return it; None if it isn't after this many seconds.

    Raises `RunNotFound`, also when the run is deleted meanwhile. A store that is unavailable is waited for, unless it
    is from the beginning on.
    """
    deadline = monotonic() + seconds
    head = client.head(run_id)
    if is_enough(head):
        return head
    with watched(client, run_id) as run:
        while True:
            seen = run.version
            if run.head is not None and is_enough(run.head):
                found = _head_now(client, run)
                if found is not None and is_enough(found):
                    return found
            remaining = deadline - monotonic()
            if remaining <= 0:
                return None
            run.wait(seen, remaining)


async def await_for(client: LeaseClient, run_id: str, seconds: float, is_enough: IsEnough) -> RunHead | None:
    """The same without blocking the event loop, or a thread."""
    from asyncio import to_thread

    deadline = monotonic() + seconds
    head = await to_thread(client.head, run_id)
    if is_enough(head):
        return head
    with watched(client, run_id) as run:
        while True:
            seen = run.version
            if run.head is not None and is_enough(run.head):
                found = await to_thread(_head_now, client, run)
                if found is not None and is_enough(found):
                    return found
            remaining = deadline - monotonic()
            if remaining <= 0:
                return None
            await run.await_change(seen, remaining)


@contextmanager
def watched(client: LeaseClient, run_id: str) -> Iterator[FollowedRun]:
    """A run that the watcher looks at for the length of a `with` block: what changes its head changes its version."""
    member = Member()
    watcher = watcher_for(client.store)
    run = watcher.join(run_id, frozenset(), member)
    try:
        yield run
    finally:
        watcher.leave(run, member)


def _head_now(client: LeaseClient, run: FollowedRun) -> RunHead | None:
    """The head of a run; None if the store is unavailable for a while.

    The store is asked again, as what the watcher saw may be older than the wait.
    """
    try:
        return client.head(run.run_id)
    except StoreUnavailable as problem:
        run.endure(problem)
        return None


@lru_cache(maxsize=1024)  # a head changes with each step, its note seldom
def _asks(note: bytes) -> bool:
    """Whether the summary in a head has open questions. One that can't be read has none."""
    if not note:
        return False
    try:
        return bool(read_summary(note).get("questions"))
    except (LimpetError, ValueError):
        return False
