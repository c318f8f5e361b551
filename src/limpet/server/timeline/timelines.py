"""`Timelines`: the timelines of the runs that were looked at last. Each reads what is new when it is asked."""

from __future__ import annotations

import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from threading import Lock
from typing import Any, Final

from limpet.engine.following.cursor import EventCursor
from limpet.engine.following.event_feed import Entry, EventFeed
from limpet.engine.following.window import after
from limpet.errors import DamagedRecord, UsageError
from limpet.journal.store import Store
from limpet.server.timeline.event_rows import EventRows
from limpet.server.timeline.lanes import Event
from limpet.server.timeline.row_events import RowEvents
from limpet.server.timeline.rows import Row

MAX_ROWS: Final = 5000
"""Rows in one answer, at most."""

KEPT_TIMELINES: Final = 8
"""How many runs' timelines are remembered, besides those that are being followed."""

KEPT_ROWS: Final = 250_000
"""How many rows all of these may have, unless one alone has more."""

EVENTS_OF_PLACE: Final = 64
"""Events after which the place in the run's journal is noted, to read from there again."""

EVENTS_OF_ROW: Final = 2000
"""Events that are read again for one row, at most, from its first and before its last."""


class Timeline:
    """The rows of one run, as far as its journal was read. `created` tells it from an earlier run of this id.

    Each row has the version at which it last changed: who knows a version gets only what changed since.
    """

    def __init__(self, store: Store, run_id: str, created: float, known_secrets: frozenset[str]) -> None:
        self.created = created
        self._store = store
        self._run_id = run_id
        self._secrets = known_secrets
        self._lock = Lock()
        self._start_over()

    def __len__(self) -> int:
        return len(self._rows.log)

    def _start_over(self) -> None:
        self._feed = EventFeed(self._store, self._run_id, EventCursor(), self._secrets)
        self._rows = EventRows()
        self._place = EventCursor()
        """The place after the last event that was taken in."""
        self._places = [self._place]
        """The places before each `EVENTS_OF_PLACE` events."""
        self._epoch = secrets.token_hex(4)
        """Tells the versions of these rows from those of others that were made of the same run."""
        self._is_in_doubt = False
        """Whether reading failed in the middle, so that it can't be continued."""
        self._problem: str | None = None
        """What is wrong with the record before which it ends."""

    def changes(self, version: str, limit: int, now: float | None) -> dict[str, Any]:
        """The rows that changed since a version, oldest change first, and the version after them."""
        with self._lock:
            if self._is_in_doubt:
                self._start_over()
            since = self._known_version(version)
            is_behind = self._read(since + limit)
            active: list[dict[str, Any]] = []
            if now is not None:
                self._rows.wake(now)
                active = self._rows.active()
            log = self._rows.log
            rows = list(islice(log.since(since), limit + 1))
            has_more = len(rows) > limit
            rows = rows[:limit]
            return {
                "version": f"{self._epoch}.{rows[-1].version if has_more else log.version}",
                "reset": since == 0,
                "rows": [row.facts() for row in rows],
                "total": len(log),
                "dropped": log.dropped,
                "more": has_more or is_behind,
                "ready": self._rows.ready,
                "active": active,
                "problem": self._problem,
            }

    def _known_version(self, version: str) -> int:
        epoch, _, number = version.partition(".")
        if epoch != self._epoch or not (number.isascii() and number.isdecimal()):
            return 0
        return int(number[:12])

    def _read(self, enough: int) -> bool:
        """Read new events, until there are enough changes for an answer; True if there are more.

        A damaged record that can't be passed ends the timeline, which says so, unless it is the first: then this
        raises.
        """
        self._is_in_doubt = True
        has_more = True
        while has_more and self._rows.log.version <= enough:
            try:
                batch = self._feed.read()
            except DamagedRecord as damage:
                if not self._rows.log.event:
                    raise
                self._problem = damage.message
                has_more = False
                break
            self._problem = None
            for entry in batch.entries:
                self._rows.take(entry.event)
                self._note_place(entry)
            has_more = batch.has_more
        self._is_in_doubt = False
        return has_more

    def _note_place(self, entry: Entry) -> None:
        """An event was taken in."""
        self._place = after(self._place, entry)
        self._rows.log.event += 1
        if self._rows.log.event % EVENTS_OF_PLACE == 0:
            self._places.append(self._place)

    def row_events(self, row_id: int) -> RowEvents | None:
        """What happened in a row; None if there is no such row. The events around it are read again."""
        with self._lock:
            row = self._find_row(row_id)
            if row is None:
                return None
            found = RowEvents(row)
            found.take_all(self._events_around(row))
            return found

    def _find_row(self, row_id: int) -> Row | None:
        """A row by its id. What hasn't been read yet is read, as far as that is needed."""
        if self._is_in_doubt:
            self._start_over()
        has_more = True
        while has_more and self._rows.log.find(row_id) is None:
            has_more = self._read(self._rows.log.version)
        return self._rows.log.find(row_id)

    def _events_around(self, row: Row) -> Iterator[Event]:
        """The events of a row, and those between them. Of very many, those in the middle are left out."""
        count = row.last_event - row.first_event + EVENTS_OF_PLACE
        if count <= EVENTS_OF_ROW:
            yield from self._events_from(row.first_event, count)
            return
        yield from self._events_from(row.first_event, EVENTS_OF_ROW // 2)
        yield from self._events_from(
            row.last_event - EVENTS_OF_ROW // 2, EVENTS_OF_ROW // 2 + EVENTS_OF_PLACE
        )

    def _events_from(self, number: int, count: int) -> Iterator[Event]:
        """Some events, as far as they can be read."""
        place = self._places[number // EVENTS_OF_PLACE]
        feed = EventFeed(self._store, self._run_id, place, self._secrets)
        left = count + number % EVENTS_OF_PLACE
        while left > 0:
            try:
                batch = feed.read()
            except DamagedRecord:
                return
            for entry in batch.entries[:left]:
                yield entry.event
            left -= len(batch.entries)
            if not batch.has_more:
                return


class Timelines:
    """The timelines of the runs that are being followed, and of those that were looked at last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Lock()
        self._kept: OrderedDict[str, Timeline] = OrderedDict()
        self._followers: Counter[str] = Counter()
        """How many streams follow a run, by its id."""

    @contextmanager
    def following(self, run_id: str) -> Iterator[None]:
        """Keep the timeline of a run for the length of a `with` block, however many others are looked at.

        Without that, streams of many runs would make each other read and send all rows again, with each change.
        """
        with self._lock:
            self._followers[run_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._followers[run_id] -= 1
                if not self._followers[run_id]:
                    del self._followers[run_id]
            self._trim()

    def changes(
        self,
        run_id: str,
        created: float,
        known_secrets: frozenset[str],
        version: str,
        limit: int,
        now: float | None = None,
    ) -> dict[str, Any]:
        """What changed in a run's timeline since a version. `created` tells it from an earlier run of this id.

        While a process executes the run, `now` is the time by the store's clock.
        """
        if not 1 <= limit <= MAX_ROWS:
            raise UsageError(f"limit must be from 1 to {MAX_ROWS}, not {limit}")
        timeline = self._timeline(run_id, created, known_secrets)
        try:
            return timeline.changes(version, limit, now)
        finally:
            self._trim()

    def row_events(
        self, run_id: str, created: float, known_secrets: frozenset[str], row_id: int
    ) -> RowEvents | None:
        """What happened in a row of a run's timeline; None if there is no such row."""
        timeline = self._timeline(run_id, created, known_secrets)
        try:
            return timeline.row_events(row_id)
        finally:
            self._trim()

    def _timeline(self, run_id: str, created: float, known_secrets: frozenset[str]) -> Timeline:
        with self._lock:
            timeline = self._kept.pop(run_id, None)
            if timeline is None or timeline.created != created:
                timeline = Timeline(self._store, run_id, created, known_secrets)
            self._kept[run_id] = timeline
            return timeline

    def _trim(self) -> None:
        """Forget the timelines that weren't looked at for longest, if there are too many, or too large ones."""
        with self._lock:
            unfollowed = [run_id for run_id in self._kept if run_id not in self._followers]
            rows = sum(len(self._kept[run_id]) for run_id in unfollowed)
            count = len(unfollowed)
            for run_id in unfollowed[:-1]:
                if count <= KEPT_TIMELINES and rows <= KEPT_ROWS:
                    return
                rows -= len(self._kept.pop(run_id))
                count -= 1
