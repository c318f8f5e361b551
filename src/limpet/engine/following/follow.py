"""Follow a run, or wait until it stops, whichever process executes it: for callers in threads and on event loops."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from time import monotonic

from limpet.engine.following.cursor import EventCursor
from limpet.engine.following.event_feed import Entry, EventFeed
from limpet.engine.following.run_events import Event
from limpet.engine.following.watcher import FollowedRun, Member, after, is_behind, watcher_for
from limpet.engine.leases.lease_client import LeaseClient
from limpet.journal.store import ENDED, RUNNING, RunHead

LONGEST_WAIT = 3600.0
"""Seconds for which a follower waits at most before it looks again."""


def follow(
    client: LeaseClient, run_id: str, cursor: str | None, secrets: frozenset[str]
) -> Generator[Event, None, None]:
    """The events of a run after a cursor, until it ends. Raises `UsageError` at once for what isn't a cursor."""
    return _follow(client, run_id, EventCursor.from_text(cursor), secrets)


def _follow(
    client: LeaseClient, run_id: str, cursor: EventCursor, secrets: frozenset[str]
) -> Generator[Event, None, None]:
    follower = Follower(client, run_id, cursor, secrets)
    try:
        while True:
            seen = follower.run.version
            entries = follower.take()
            for entry in entries:
                yield follower.told(entry)
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
    return _afollow(client, run_id, EventCursor.from_text(cursor), secrets)


async def _afollow(
    client: LeaseClient, run_id: str, cursor: EventCursor, secrets: frozenset[str]
) -> AsyncGenerator[Event, None]:
    from asyncio import to_thread

    follower = Follower(client, run_id, cursor, secrets)
    try:
        while True:
            seen = follower.run.version
            if follower.reads_by_itself:
                entries = await to_thread(follower.take)
            else:
                entries = follower.take()
            for entry in entries:
                yield follower.told(entry)
            if follower.is_over:
                return
            if not entries and not follower.reads_by_itself:
                await follower.run.await_change(seen, LONGEST_WAIT)
    finally:
        follower.leave()


class Follower(Member):
    """One caller that follows a run: how far it has come, and where it takes the next events from."""

    __slots__ = ("_feed", "_place", "_watcher", "is_over", "place", "run")

    def __init__(
        self, client: LeaseClient, run_id: str, cursor: EventCursor, secrets: frozenset[str]
    ) -> None:
        super().__init__()
        self.is_over = False
        """Whether the run has ended, and all events up to there were taken."""
        self._place = cursor
        """How far it has taken events."""
        self.place = cursor
        """The place after the last event that the caller was told."""
        self._feed: EventFeed | None = EventFeed(client.store, run_id, cursor, secrets)
        self._watcher = watcher_for(client.store)
        self.run: FollowedRun = self._watcher.join(run_id, secrets, self)

    @property
    def reads_by_itself(self) -> bool:
        """Whether `take` reads from the store: it isn't as far as the window."""
        return self._feed is not None or 0 <= self.taken < self.run.first

    def take(self) -> list[Entry]:
        """The events that there are by now; none if it is up to date. Raises why there will be no more."""
        while True:
            if self._feed is None:
                entries = self._take_from_window()
                if self._feed is None:
                    return entries
            entries = self._read()
            if entries or self.is_over or self._feed is None:
                return entries

    def told(self, entry: Entry) -> Event:
        """The event as this caller gets it: with the cursor to continue after it."""
        self.place = after(self.place, entry)
        return {**entry.event, "cursor": self.place.to_text()}

    def leave(self) -> None:
        """The caller doesn't follow the run any longer."""
        self._watcher.leave(self.run, self)

    def _take_from_window(self) -> list[Entry]:
        """What is new in the window. If the window has moved on meanwhile, this begins to read by itself."""
        run = self.run
        with run.lock:
            if self.taken < run.first:
                self.taken = -1
                self._feed = EventFeed(run.store, run.run_id, self._place, run.secrets)
                return []
            new = list(run.window)[self.taken - run.first :]
            self.taken = run.end
            head = run.fed_head
        entries = []
        for entry in new:
            if is_behind(self._place, after(self._place, entry)):
                entries.append(entry)
                self._place = after(self._place, entry)
        self.is_over = head is not None and head.status in ENDED and not self._is_ahead_of(head)
        if not entries and not self.is_over:
            run.raise_problem()
        return entries

    def _is_ahead_of(self, head: RunHead) -> bool:
        """Whether it has read more than a head knew, by itself, before it took from the window."""
        return self._place.record > head.sequence

    def _read(self) -> list[Entry]:
        """Read on by itself, and take from the window from then on, if that has what comes next."""
        feed = self._feed
        assert feed is not None
        batch = feed.read()
        self._place = feed.place
        if batch.is_last:
            self.is_over = True
        elif not batch.has_more:
            with self.run.lock:
                self.run.adopt(feed, batch.head)
                if not is_behind(self._place, self.run.floor):
                    self.taken = self.run.first
                    self._feed = None
        return batch.entries


def wait_for_stop(client: LeaseClient, run_id: str, seconds: float) -> RunHead | None:
    """Wait until a run isn't running any more; None if it still is after this many seconds.

    Raises `RunNotFound`, also when the run is deleted meanwhile, and what keeps the store from being read.
    """
    deadline = monotonic() + seconds
    head = client.head(run_id)
    if head.status != RUNNING:
        return head
    member = Member()
    watcher = watcher_for(client.store)
    run = watcher.join(run_id, frozenset(), member)
    try:
        while True:
            seen = run.version
            if run.head is not None and run.head.status != RUNNING:
                head = client.head(run_id)  # what the watcher saw may be older than this wait
                if head.status != RUNNING:
                    return head
            remaining = deadline - monotonic()
            if remaining <= 0:
                return None
            run.wait(seen, remaining)
    finally:
        watcher.leave(run, member)


async def await_stop(client: LeaseClient, run_id: str, seconds: float) -> RunHead | None:
    """The same without blocking the event loop, or a thread."""
    from asyncio import to_thread

    deadline = monotonic() + seconds
    head = await to_thread(client.head, run_id)
    if head.status != RUNNING:
        return head
    member = Member()
    watcher = watcher_for(client.store)
    run = watcher.join(run_id, frozenset(), member)
    try:
        while True:
            seen = run.version
            if run.head is not None and run.head.status != RUNNING:
                head = await to_thread(client.head, run_id)
                if head.status != RUNNING:
                    return head
            remaining = deadline - monotonic()
            if remaining <= 0:
                return None
            await run.await_change(seen, remaining)
    finally:
        watcher.leave(run, member)
