"""Sorted indexes in the memory of a process: the next runs and documents are found without a look at the others.

Each change of an index can be repeated. So a store notes what is about to change, and brings the index up to date
when it next looks for something; if that is interrupted, it does so again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Generic, TypeVar

from limpet.journal.store import Lane, RunHead

MAX_PART = 1000
"""How many entries are moved at most when one is added or removed."""

Entry = TypeVar("Entry", str, tuple[Any, ...])
_first = itemgetter(0)


class SortedEntries(Generic[Entry]):
    """Different entries in their order, in parts of a bounded length, none of which is empty."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        ordered: list[Entry] = sorted(entries)
        self._parts: list[list[Entry]] = [
            ordered[at : at + MAX_PART] for at in range(0, len(ordered), MAX_PART)
        ]

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, entry: Entry) -> None:
        """Add an entry, unless it is there."""
        if not self._parts:
            self._parts.append([entry])
            return
        at, within = self._place(entry)
        part = self._parts[at]
        if part[within : within + 1] != [entry]:
            part.insert(within, entry)
        if len(part) > MAX_PART:
            # Most entries come at the end. So the first part stays almost full there.
            middle = len(part) - 1 if at == len(self._parts) - 1 else len(part) // 2
            self._parts[at : at + 1] = [part[:middle], part[middle:]]

    def discard(self, entry: Entry) -> None:
        """Remove an entry, if it is there."""
        if not self._parts:
            return
        at, within = self._place(entry)
        part = self._parts[at]
        if part[within : within + 1] != [entry]:
            return
        if len(part) == 1:
            del self._parts[at]
        else:
            del part[within]

    def since(self, entry: Entry) -> Iterator[Entry]:
        """The entries from this one on, or from where it would be. One that is added meanwhile may be missing."""
        if not self._parts:
            return
        at, within = self._place(entry)
        while at < len(self._parts):
            yield from islice(self._parts[at], within, None)
            at += 1
            within = 0

    def _place(self, entry: Entry) -> tuple[int, int]:
        """The part to which an entry belongs, and the place in it."""
        at = max(bisect_right(self._parts, entry, key=_first) - 1, 0)
        return at, bisect_left(self._parts[at], entry)


class RunIndex:
    """The runs that have a due time, each under a key: those of each lane, the most urgent first."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[Lane, tuple[Any, ...]]] = {}
        self._lines: dict[Lane, SortedEntries[tuple[Any, ...]]] = {}
        self._latest_creation = 0.0
        """No run that is due as of its creation was created after this time."""

    def put(self, key: str, head: RunHead) -> None:
        """Give a run the place that its head says: none, if it has no due time."""
        if head.due is None:
            self.remove(key)
            return
        lane = head.lane
        if head.due == head.created:
            self._latest_creation = max(self._latest_creation, head.created)
        # What `heads.most_urgent_first` sorts by.
        urgency = (-head.priority, head.due, head.created, head.run_id, key)
        place = (lane, urgency)
        if self._places.get(key, place) != place:
            self.remove(key)
        self._places[key] = place  # before it is in the line, as `remove` finds it there by its place
        if lane not in self._lines:
            self._lines[lane] = SortedEntries()
        self._lines[lane].add(urgency)

    def remove(self, key: str) -> None:
        """Remove a run, if it is there."""
        place = self._places.get(key)
        if place is None:
            return
        lane, urgency = place
        line = self._lines.get(lane)
        if line is not None:
            line.discard(urgency)
            if not line:
                del self._lines[lane]
        del self._places[key]

    def lanes(self) -> list[Lane]:
        """The lanes in which there are runs."""
        return list(self._lines)

    def due(self, lanes: Iterable[Lane], now: float) -> Iterator[str]:
        """The keys of the runs in these lanes that are due, the most urgent first."""
        lines = [self._lines[lane] for lane in frozenset(lanes) if lane in self._lines]
        latest = max(now, self._latest_creation)
        for urgency in merge(*(_due(line, now, latest) for line in lines)):
            yield urgency[-1]


def _due(line: SortedEntries[tuple[Any, ...]], now: float, latest: float) -> Iterator[tuple[Any, ...]]:
    """The runs of a line that are due. Of each priority, those that aren't are passed over in one step.

    `latest` is the latest due time that a run may have which is due. It is later than `now` only after the clock was
    set back: then runs that were created before that are due already, and those that sleep as long aren't.
    """
    start: tuple[Any, ...] | None = ()
    while start is not None:
        entries = line.since(start)
        start = None
        for urgency in entries:
            due, created = urgency[1:3]
            if due > latest:
                start = (urgency[0] + 1,)
                break
            if due <= now or due == created:
                yield urgency


class DocumentIndex:
    """The names of documents, sorted; and those that have a due time, by that."""

    def __init__(self) -> None:
        self._due_times: dict[str, float | None] = {}
        self._names: SortedEntries[str] = SortedEntries()
        self._by_due: SortedEntries[tuple[Any, ...]] = SortedEntries()

    def put(self, name: str, due: float | None) -> None:
        """Add a document, or change its due time."""
        before = self._due_times.get(name)
        if before is not None and before != due:
            self._by_due.discard((before, name))
        self._due_times[name] = due
        self._names.add(name)
        if due is not None:
            self._by_due.add((due, name))

    def remove(self, name: str) -> None:
        """Remove a document, if it is there."""
        due = self._due_times.get(name)
        if due is not None:
            self._by_due.discard((due, name))
        self._names.discard(name)
        self._due_times.pop(name, None)

    def find(self, prefix: str, due_by: float | None, limit: int | None) -> list[str]:
        """The first names that begin with `prefix`; with a time, of those that are due by then, by their due time."""
        found = beginning_with(prefix, self._names) if due_by is None else self._due(prefix, due_by)
        return list(islice(found, limit))

    def _due(self, prefix: str, due_by: float) -> Iterator[str]:
        for due, name in self._by_due.since(()):
            if due > due_by:
                return
            if name.startswith(prefix):
                yield name


def beginning_with(prefix: str, names: SortedEntries[str]) -> Iterator[str]:
    """The names that begin with `prefix`."""
    for name in names.since(prefix):
        if not name.startswith(prefix):
            return
        yield name
