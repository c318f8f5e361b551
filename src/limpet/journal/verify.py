"""Looking through a run's journal for damage: what is harmed, and what can still be had all the same.

Nothing is changed, and damage never raises: it is what is looked for. What keeps the store itself from being read
(`RunNotFound`, `StoreUnavailable`, a key that is missing) does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from limpet.errors import DamagedRecord, LimpetError
from limpet.journal.encoding.codec import decode
from limpet.journal.progress import SNAPSHOT, Progress
from limpet.journal.reader import _apply, _each, read_progress
from limpet.journal.salvage import Found, gathered
from limpet.journal.store import RUNNING, Inspectable, RunHead, Store, Tail


class Damage(NamedTuple):
    """One record that can't be read, by its number, and why. Number 0 is the run's head, or what is around it."""

    sequence: int
    reason: str


class Verification(NamedTuple):
    """What was found in a run's journal. `ok` if nothing is amiss; `str()` of it is an account to be read.

    `damaged` are the records that can't be read, `missing` the numbers of those that aren't there. `restorable` says
    whether the run's newest state can be had: by a resume, if it isn't complete. `steps` are those that `state_at`
    and `fork` can go back to. `records` and `size`, in bytes, are of what is stored. `purged` says that there is no
    journal any more, as it went when the run completed.
    """

    run_id: str
    status: str | None
    records: int
    size: int
    damaged: list[Damage]
    missing: list[int]
    restorable: bool
    steps: list[int]
    purged: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is amiss."""
        return not self.damaged and not self.missing

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterable[str]:
        verdict = "nothing is amiss" if self.ok else "DAMAGED"
        yield f"run {self.run_id}: {self.status or 'status unknown'}; {verdict}"
        yield f"  records: {self.records}, {self.size} bytes"
        for sequence, reason in self.damaged:
            yield f"  damaged: {f'record {sequence}' if sequence else 'the head'}: {reason}"
        if self.missing:
            yield f"  missing: {_spans(self.missing)}"
        if self.purged:
            yield "  newest state: its journal went when it completed"
            return
        yield f"  newest state: {'can be restored' if self.restorable else 'is lost'}"
        yield f"  steps to go back to: {_spans(self.steps)}"


def verify(store: Store, run_id: str) -> Verification:
    """Read all that a store has of a run. Raises `RunNotFound`, and what keeps the store from being read."""
    try:
        head, found = gathered(store, run_id)
    except DamagedRecord as damage:
        return Verification(run_id, None, 0, 0, [Damage(damage.sequence, damage.reason)], [], False, [])
    journal = _Journal(head, found)
    journal.look_through()
    restorable = journal.restorable()
    faults = store.faults() if isinstance(store, Inspectable) else []
    stored = [data for data in found.values() if isinstance(data, bytes)]
    return Verification(
        run_id,
        head.status,
        len(found),
        sum(map(len, stored)),
        [
            *(Damage(0, fault) for fault in faults),
            *_of_head(head, journal.newest),
            *(Damage(*each) for each in sorted(journal.damaged.items())),
        ],
        journal.missing,
        restorable,
        journal.steps,
        purged=not head.snapshot and not found,
    )


class _Journal:
    """The records of a run as they were found, and what a walk through them brings to light."""

    def __init__(self, head: RunHead, found: Found) -> None:
        self.head = head
        self.first = min([*found, head.snapshot or head.sequence + 1])
        numbers = range(self.first, max(head.sequence, head.snapshot) + 1)
        self.missing = [number for number in numbers if number not in found]
        self.damaged = {
            number: data.reason for number, data in found.items() if isinstance(data, DamagedRecord)
        }
        kept = (found.get(number) for number in numbers)
        self.records = [data if isinstance(data, bytes) else b"" for data in kept]
        self.steps: list[int] = []
        self.newest: Progress | None = None

    def look_through(self) -> None:
        """Follow the records from the first to the last; note the damaged ones, and the steps that can be had."""
        progress: Progress | None = None
        step = -1
        for number, record in self._each():
            if record is not None and record[1] > step:
                self._note(step, progress)
                step = record[1]
            if record is not None and record[0] == SNAPSHOT:
                progress = Progress(self.head.run_id, "", "", "", {})
            progress = self._followed(progress, number, record)
        self._note(step, progress)

    def restorable(self) -> bool:
        """Whether the newest state can be had. If not, and nothing else says why, the reason is noted."""
        if not self.head.snapshot:
            return False
        tail = Tail(self.head, self.head.snapshot, self.records[self.head.snapshot - self.first :])
        try:
            self.newest = read_progress(tail)
        except DamagedRecord as damage:
            if not self.damaged and not self.missing:
                self.damaged[damage.sequence] = damage.reason
            return False
        except LimpetError:
            return False
        return True

    def _each(self) -> Iterator[tuple[int, list[Any] | None]]:
        """The records with their numbers, None for one that can't be read."""
        gone = {*self.damaged, *self.missing}
        for number, data in enumerate(self.records, self.first):
            if number in gone:
                yield number, None
                continue
            try:
                records = list(_each(Tail(self.head, number, [data])))
            except LimpetError as problem:  # of a newer Limpet, or of a class that isn't registered here
                records = [(number, DamagedRecord(self.head.run_id, number, str(problem)))]
            for _, record in records:
                if isinstance(record, DamagedRecord):
                    self.damaged[number] = record.reason
                    yield number, None
                else:
                    yield number, record

    def _followed(self, progress: Progress | None, number: int, record: list[Any] | None) -> Progress | None:
        """The progress after a record, or None if it is unknown from here to the next whole record."""
        if progress is None or record is None:
            return None
        try:
            _apply(progress, number, record)
        except DamagedRecord as damage:
            self.damaged[number] = damage.reason
            return None
        return progress

    def _note(self, step: int, progress: Progress | None) -> None:
        if progress is not None and step >= 0:
            self.steps.append(step)


def _of_head(head: RunHead, newest: Progress | None) -> list[Damage]:
    """What is wrong with the head: its note, or that it speaks of a stop of which the journal knows nothing."""
    try:
        note = decode(head.note) if head.note else {}
        if type(note) is not dict:
            raise ValueError("it holds something else")
    except (ValueError, LimpetError) as problem:
        return [Damage(0, f"its summary can't be read: {problem}")]
    if newest is not None and head.status not in (RUNNING, newest.status):
        what = "records after it are lost, or the head was changed"
        return [
            Damage(0, f"it is {head.status!r}, but its journal ends where it is {newest.status!r}: {what}")
        ]
    return []


def _spans(numbers: list[int]) -> str:
    """Numbers to be read: `1–4, 7`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][-1] == number - 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ", ".join("–".join(map(str, span)) for span in spans) or "none"
