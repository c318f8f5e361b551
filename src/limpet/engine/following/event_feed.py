"""`EventFeed`: reads a run's journal and output from a place on, as far as they go by now, and makes events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from limpet.engine.following.cursor import EventCursor
from limpet.engine.following.run_events import STOPS, Event, EventMaker
from limpet.errors import DamagedRecord
from limpet.journal.inbox import read_output
from limpet.journal.reader import ViewedTail, read_records
from limpet.journal.records import SNAPSHOT, THREAD
from limpet.journal.store import ENDED, RunHead, Store, Tail
from limpet.journal.threads.records import read_thread

FIRST_PAGE = 64
LARGEST_PAGE = 2048
"""How many records are read at a time: few at first, and more if they are small."""

MAX_EVENTS = 2**31
"""More events than a record makes."""

PAGE_BYTES = 1_000_000
"""How many bytes of records are to be read at a time, about."""


class Entry(NamedTuple):
    """An event, and the place after it. `is_output` says that of the place only the number of the output counts.

    `cursor` is the place as a text, made once for all followers.
    """

    event: Event
    place: EventCursor
    cursor: str
    is_output: bool = False
    size: int = 0


class Batch(NamedTuple):
    """Events, the run's head as of the moment when they were read, and whether there are more to read by then."""

    entries: list[Entry]
    head: RunHead
    has_more: bool

    @property
    def is_last(self) -> bool:
        """Whether the run has ended with these events."""
        return not self.has_more and self.head.status in ENDED


class EventFeed:
    """The events of one run after a cursor. Used by one thread at a time.

    `place` is how far it has read, which may be further than its last event: not all records make one.

    Records after a damaged one may make no sense without it, until the next snapshot. So they are left out, and an
    event says so.
    """

    def __init__(self, store: Store, run_id: str, cursor: EventCursor, secrets: frozenset[str]) -> None:
        self.place = cursor
        self._store = store
        self._run_id = run_id
        self._given = cursor
        """The cursor that it began with: events up to there aren't given."""
        self._next = cursor.base + 1
        """The number of the next record to read."""
        self._maker = EventMaker(run_id, secrets, cursor.step - 1, cursor.given)
        self._page = FIRST_PAGE
        self._knows_secrets = not cursor.has_secrets
        self._damage: DamagedRecord | None = None
        """The damaged record that was met since the last snapshot."""

    def read(self) -> Batch:
        """The next events.

        Raises `RunNotFound`, `UsageError` for a cursor of another run, and `DamagedRecord` if there is no snapshot
        after a damaged record.
        """
        tail, gap = self._read_page()
        head = tail.head
        self._given.check(head)
        self._learn_secrets(bool(head.kind))
        entries: list[Entry] = []
        if gap and self._damage is None:
            entries.append(self._skipped(head, tail.first, gap))
        entries += self._entries(tail)
        if self._damage is not None and head.snapshot < self._next:
            if not entries:
                raise self._damage
            self._next = self._damage.sequence  # what was read before it is given first
            self._damage = None
        has_more = self._next <= head.sequence
        if self.place.after_gap and not tail.records and head.status in ENDED:
            entries.append(self._end_without_records(head))
        if head.output > self.place.output:
            entries, has_more_output = self._with_output(entries, head, has_more)
            has_more = has_more or has_more_output
        return Batch(entries, head, has_more)

    def _read_page(self) -> tuple[Tail, int]:
        """The next records, and how many before them are no longer stored."""
        first = self._next
        tail = self._read_up_to_damage(first, first + self._page - 1)
        if not tail.records and tail.head.sequence >= first:
            # All of them were deleted, up to the newest snapshot at most.
            tail = self._store.read(self._run_id)
            if not tail.records:
                tail = tail._replace(first=tail.head.sequence + 1)
        gap = max(0, tail.first - max(first, self._given.record + 1)) if tail.first > first else 0
        size = sum(map(len, tail.records))
        if size > PAGE_BYTES:
            self._page = max(1, self._page // 2)
        elif size < PAGE_BYTES // 2:
            self._page = min(LARGEST_PAGE, self._page * 2)
        self._next = max(first, tail.first) + len(tail.records)
        return tail, gap

    def _read_up_to_damage(self, first: int, last: int) -> Tail:
        """The records of a range, or those before the first that the store itself knows to be damaged.

        If that is the first one of the range, the records are those from the newest snapshot on.
        """
        try:
            return self._store.read(self._run_id, first, last)
        except DamagedRecord as damage:
            number = damage.sequence
            if first < number <= last:
                return self._store.read(self._run_id, first, number - 1)
            tail = self._store.read(self._run_id)  # raises, if the run can't be restored
            if not tail.records or tail.first <= number:
                raise
            self._damage = self._damage or damage
            return tail

    def _learn_secrets(self, is_thread: bool) -> None:
        """Find out which keys are secret, if the reader that made the cursor knew that some are."""
        if self._knows_secrets or is_thread:
            return
        tail = self._store.read(self._run_id)
        if tail.records:
            first = ViewedTail(tail.head, tail.first, tail.records[:1])
            for _, record in read_records(first):
                if record[0] == SNAPSHOT:
                    self._maker.secrets |= frozenset(record[4].get("meta", {}).get("secrets", ()))
        self._knows_secrets = True

    def _skipped(self, head: RunHead, next: int, count: int, problem: str | None = None) -> Entry:
        """The event that says that some are no longer stored, or can't be read, up to the record `next`."""
        self.place = self.place._replace(record=next - 1, part=0, base=next - 1, after_gap=1)
        event = {
            "type": "skipped",
            "run_id": self._run_id,
            "at": head.updated,
            "step": max(self._maker.step, 0),
            "records": count,
        }
        if problem is not None:
            event["problem"] = problem
        return Entry(event, self.place, self.place.to_text(self._run_id))

    def _entries(self, tail: Tail) -> Iterator[Entry]:
        """The events of records, without those that were given before."""
        maker = self._maker
        number = tail.first
        for data in tail.records:
            records = self._records(tail, number, data)
            if self._damage is not None:
                if not records or records[0][0] != SNAPSHOT:
                    number += 1
                    continue
                yield from self._skipped_damage(tail.head, number)
            known = self._known_events(number)
            before = self.place._replace(record=number - 1)
            after_gap = bool(self.place.after_gap) and number > self._given.record
            events = maker.events_of(number, records, was_given=known > 0, after_gap=after_gap)
            secret = int(bool(maker.secrets))
            after = self.place._replace(record=number, part=0, has_secrets=secret, after_gap=0)
            if maker.root.is_blank:
                after = after._replace(base=number)
            for index, event in enumerate(events[known:], known + 1):
                if event is None:
                    continue
                maker.note_given(event)
                place = after
                if index < len(events):
                    place = before._replace(part=index, has_secrets=secret)
                place = place._replace(step=maker.step + 1, given=maker.given)
                yield Entry(event, place, place.to_text(self._run_id), size=len(data) // len(events))
            if number > self._given.record:
                self.place = after._replace(step=maker.step + 1, given=maker.given)
            else:
                self.place = self.place._replace(base=after.base)
            number += 1

    def _records(self, tail: Tail, number: int, data: bytes) -> list[list[Any]]:
        """What a stored record holds; nothing if it is damaged, which is noted."""
        try:
            if tail.head.kind:
                found = read_thread(Tail(tail.head, number, [data]))
                return [[THREAD, *record] for _, record in found]
            return [record for _, record in read_records(ViewedTail(tail.head, number, [data]))]
        except DamagedRecord as damage:
            self._damage = self._damage or damage
            return []

    def _skipped_damage(self, head: RunHead, snapshot: int) -> Iterator[Entry]:
        """The event that says that records up to a snapshot are left out, unless they were given before."""
        damage = self._damage
        assert damage is not None
        self._damage = None
        count = snapshot - max(damage.sequence, self._given.record + 1)
        if count > 0:
            yield self._skipped(head, snapshot, count, damage.message)

    def _known_events(self, number: int) -> int:
        """How many events of a record were given before, at least."""
        if number <= self._given.record:
            return MAX_EVENTS
        return self._given.part if number == self._given.record + 1 else 0

    def _end_without_records(self, head: RunHead) -> Entry:
        """The end of a run whose journal was deleted with it."""
        self.place = self.place._replace(after_gap=0, part=1)
        event = {
            "type": STOPS[head.status],
            "run_id": self._run_id,
            "at": head.updated,
            "step": max(self._maker.step, 0),
        }
        return Entry(event, self.place, self.place.to_text(self._run_id))

    def _with_output(self, entries: list[Entry], head: RunHead, has_more: bool) -> tuple[list[Entry], bool]:
        """The same events with the run's output between them, by time; and whether there is more output.

        What was emitted later than the last event waits, if there are more records to read.
        """
        items = self._store.output(self._run_id, self.place.output, LARGEST_PAGE)
        # One without content stands for output that was deleted.
        waiting = [self._output_entry(item.number, item.body) for item in items if item.body]
        oldest = waiting[0].place.output if waiting else head.output + 1
        if oldest > self.place.output + 1:
            waiting.insert(0, self._skipped_output(waiting[:1], head, oldest))
        merged: list[Entry] = []
        taken = 0
        for entry in entries:
            while taken < len(waiting) and waiting[taken].event["at"] <= entry.event["at"]:
                merged.append(waiting[taken])
                taken += 1
            merged.append(entry)
        if not has_more:
            merged += waiting[taken:]
            taken = len(waiting)
        if taken:
            self.place = self.place._replace(output=waiting[taken - 1].place.output)
        return merged, len(items) == LARGEST_PAGE

    def _skipped_output(self, next: list[Entry], head: RunHead, oldest: int) -> Entry:
        """The event that says that items before the `oldest` are no longer kept."""
        event = {
            "type": "skipped",
            "run_id": self._run_id,
            "at": next[0].event["at"] if next else head.updated,
            "step": max(self._maker.step, 0),
            "records": 0,
            "output": oldest - self.place.output - 1,
        }
        place = self.place._replace(output=oldest - 1)
        return Entry(event, place, place.to_text(self._run_id), is_output=True)

    def _output_entry(self, number: int, body: bytes) -> Entry:
        event: Event = {"type": "output", "run_id": self._run_id, "at": 0.0, "number": number}
        try:
            item = read_output(self._run_id, body)
        except (DamagedRecord, ValueError, TypeError) as problem:
            event["problem"] = str(problem)
        else:
            data = self._maker.mask(item.data)
            event |= {"at": item.at, "node": item.node, **item.place}
            if item.kind == "progress":
                event |= {"type": "progress", **data}
            else:
                event["data"] = data
        place = self.place._replace(output=number)
        return Entry(event, place, place.to_text(self._run_id), is_output=True, size=len(body))
