"""Checking a run's journal for damage, and getting what can be read of a damaged one.

Nothing is changed, and damage never raises: it is what `verify` looks for. What keeps the store itself from being
read (`RunNotFound`, `StoreUnavailable`, a missing key) does raise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from limpet.errors import DamagedRecord, LimpetError, UsageError
from limpet.journal.encoding.codec import decode_as_stored, is_known_class
from limpet.journal.encoding.envelope import key_id_of, no_key
from limpet.journal.optional_calls import Inspectable, Salvaging, provides
from limpet.journal.progress import Progress
from limpet.journal.reader import StoredTail, apply_checked, read_progress, read_records_or_damage
from limpet.journal.record_shapes import read_summary
from limpet.journal.records import SNAPSHOT
from limpet.journal.store import DAMAGED, MISSING, RUNNING, RunHead, Store, Tail, checked_id
from limpet.journal.threads.kinds import kind_of
from limpet.journal.threads.records import CHECKPOINT, format_of_journal, read_thread
from limpet.journal.writer import summary

MAX_MISSING = 1_000_000
"""How many records of a run may be missing. If more seem to be, the head's number of records is damaged."""

FoundRecords = dict[int, "bytes | DamagedRecord"]
"""Stored records by their numbers, or the error that the store raised instead."""


class Damage(NamedTuple):
    """One record that can't be read, by its number, and why. Number 0 is the run's head or what contains it."""

    sequence: int
    reason: str


class Verification(NamedTuple):
    """The result of checking a run's journal. `ok` if it is intact; `str()` of it is a report to be read.

    `damaged` are the records that can't be read, `missing` the numbers of those that the store doesn't have.
    `restorable` means that the run's newest state can be restored: by a resume, if the run isn't complete. `steps`
    are those that `state_at` and `fork` can return to. `records` and `size`, in bytes, are of what is stored.
    `purged` means that the journal was deleted when the run completed. Of a run whose head is damaged, `status` is
    None and `restorable` is false; the records and `steps` are those that its journal still has.

    `remarks` are no damage: the run has values of a class that isn't known in this process, or that it can't restore.
    They are intact as far as that can be checked without the class, which resuming the run needs.
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
    remarks: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the journal is intact."""
        return not self.damaged and not self.missing

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterable[str]:
        verdict = "intact" if self.ok else "DAMAGED"
        yield f"run {self.run_id}: {self.status or 'status unknown'}; {verdict}"
        yield f"  records: {self.records}, {self.size} bytes"
        for sequence, reason in self.damaged:
            where = f"record {sequence}" if sequence else "the head"
            yield f"  damaged: {where}: {reason}"
        if self.missing:
            yield f"  missing: {_ranges(self.missing)}"
        for remark in self.remarks:
            yield f"  {remark}"
        if self.purged:
            yield "  newest state: its journal was deleted when it completed"
            return
        newest = "can be restored" if self.restorable else "can't be restored"
        yield f"  newest state: {newest}"
        yield f"  steps that can be restored: {_ranges(self.steps)}"


def verify(store: Store, run_id: str) -> Verification:
    """Check all that a store has of a run.

    Raises `RunNotFound`, `KeyMissing` for an encrypted run, and what keeps the store from being read.
    """
    try:
        head, found, problem = gather_records(store, run_id)
    except DamagedRecord as damage:
        return Verification(run_id, None, 0, 0, [Damage(damage.sequence, damage.reason)], [], False, [])
    _refuse_encrypted(head, found)
    check = _check_of(head)(head, found)
    check.follow_records()
    restorable = check.restore() and problem is None
    faults = store.faults() if provides(store, Inspectable) else []
    stored = [data for data in found.values() if isinstance(data, bytes)]
    if problem is None:
        damaged_head = head_damage(head, check.newest)
    else:
        damaged_head = [Damage(problem.sequence, problem.reason)]
    return Verification(
        run_id,
        None if problem is not None or head.status == DAMAGED else head.status,
        len(found) - len(found.keys() & check.missing),
        sum(map(len, stored)),
        [
            *(Damage(0, fault) for fault in faults),
            *damaged_head,
            *(Damage(*each) for each in sorted(check.damaged.items())),
        ],
        check.missing,
        restorable,
        check.steps,
        purged=problem is None and not head.snapshot and not found,
        remarks=tuple(check.remarks),
    )


def _refuse_encrypted(head: RunHead, found: FoundRecords) -> None:
    """Raise `KeyMissing` where the store gives what is encrypted: without the key it can't be checked."""
    for data in (head.note, *found.values()):
        key_id = key_id_of(data) if isinstance(data, bytes) else None
        if key_id is not None:
            raise no_key(f"run {head.run_id!r}", key_id)


def salvaged_tail(store: Store, run_id: str) -> Tail:
    """All records from the first that the store has. A record that can't be read is an empty one, which is damaged.

    Raises `DamagedRecord` if the head can't be read and no record is left.
    """
    head, found, _ = gather_records(store, run_id)
    first = min(found, default=head.sequence + 1)
    return Tail(head, first, _as_bytes(found, range(first, head.sequence + 1)))


def newest_tail(store: Store, run_id: str) -> Tail:
    """The records from the newest snapshot on. If the head can't be read, they are those that the journal has."""
    try:
        return store.read(checked_id(run_id))
    except DamagedRecord as damage:
        if damage.sequence:
            raise
    head, first, records = salvaged_tail(store, run_id)
    start = max(head.snapshot, first)
    return Tail(head, start, records[start - first :])


def whole_tail(store: Store, run_id: str) -> Tail:
    """All records. If the head can't be read, they are those that the journal has."""
    try:
        return store.read(checked_id(run_id), first=1)
    except DamagedRecord as damage:
        if damage.sequence:
            raise
    return salvaged_tail(store, run_id)


def readable_head(store: Store, run_id: str) -> RunHead:
    """The head. If it or the newest commits are damaged, what is known without them, with the status `DAMAGED`."""
    try:
        return store.head(run_id)
    except DamagedRecord:
        head = gather_records(store, run_id).head
        return head._replace(status=DAMAGED)


class GatheredRecords(NamedTuple):
    """The head, and the records that a store has by their numbers.

    If `problem` is why the head can't be read, the head is made of the records.
    """

    head: RunHead
    found: FoundRecords
    problem: DamagedRecord | None = None


def gather_records(store: Store, run_id: str) -> GatheredRecords:
    """All that a store has of a run, as of one moment unless some of it is damaged.

    Raises `DamagedRecord` if the head, or its number of records, can't be trusted, and no record is left.
    """
    try:
        tail = store.read(checked_id(run_id), first=1)
    except DamagedRecord:
        try:
            head = _head_before_damage(store, run_id)
        except DamagedRecord as problem:
            return _salvaged(store, run_id, problem)
    else:
        head = tail.head
        if tail.first + len(tail.records) == head.sequence + 1:
            return GatheredRecords(head, dict(enumerate(tail.records, tail.first)))
    found = dict(_read_piecewise(store, run_id, 1, head.sequence))
    if head.sequence - min(found, default=0) > len(found) + MAX_MISSING:
        reason = f"its head counts {head.sequence} records, and only {len(found)} exist"
        raise DamagedRecord(run_id, max(found, default=0), reason)
    return GatheredRecords(head, found)


def _head_before_damage(store: Store, run_id: str) -> RunHead:
    """The head; if the newest commits are damaged, that of the commit before them. Raises `DamagedRecord`."""
    try:
        return store.head(run_id)
    except DamagedRecord as damage:
        if damage.sequence == 0:
            raise
        head = store.read(run_id, damage.sequence, damage.sequence - 1).head
        return head._replace(status=DAMAGED, sequence=max(head.sequence, damage.sequence), note=b"")


def _salvaged(store: Store, run_id: str, problem: DamagedRecord) -> GatheredRecords:
    """What a store has of a run whose head can't be read. Raises the problem if that is nothing."""
    found = dict(store.salvage(run_id)) if provides(store, Salvaging) else {}
    if not found or max(found) - min(found) > len(found) + MAX_MISSING:
        raise problem
    return GatheredRecords(_head_of_journal(run_id, found), found, problem)


def _head_of_journal(run_id: str, found: FoundRecords) -> RunHead:
    """The head that the records of a run add up to. Its status is `DAMAGED` if the newest state can't be restored."""
    first = min(found)
    newest = max(found)
    head = RunHead(run_id, "", DAMAGED, newest, snapshot=0, fence=0, created=0.0, updated=0.0)
    plan = format_of_journal(run_id, sorted(found.items()))
    if plan:
        return head._replace(graph=kind_of(plan), plan=plan, snapshot=first)
    progress: Progress | None = None
    is_whole = False
    snapshot = 0
    times: list[float] = []
    tail = StoredTail(head, first, _as_bytes(found, range(first, newest + 1)))
    for number, record in read_records_or_damage(tail):
        if isinstance(record, DamagedRecord):
            is_whole = False
            continue
        times.append(record[2])
        if record[0] == SNAPSHOT:
            progress = Progress(run_id, "", "", "", {})
            is_whole = True
            snapshot = number
        if progress is not None and is_whole:
            try:
                apply_checked(progress, number, record)
            except DamagedRecord:
                is_whole = False
    if progress is None:
        return head
    tags = progress.meta.get("tags")
    return head._replace(
        graph=progress.graph,
        status=progress.status if is_whole else DAMAGED,
        snapshot=snapshot,
        created=times[0],
        updated=times[-1],
        tags=tuple(map(str, tags)) if isinstance(tags, list) else (),
        parent=progress.child_of or progress.parent,
        note=summary(progress).note(head.sequence) if is_whole else b"",
    )


def _read_piecewise(
    store: Store, run_id: str, first: int, last: int
) -> Iterator[tuple[int, bytes | DamagedRecord]]:
    """The records of a range. One that can't be read as a whole is read in halves, down to single records."""
    try:
        tail = store.read(run_id, first, last)
    except DamagedRecord as damage:
        if first == last:
            yield first, damage
            return
    else:
        if len(tail.records) in (0, last - first + 1):
            yield from enumerate(tail.records, first)
            return
        if first == last:
            yield first, DamagedRecord(run_id, first, "the store has it more than once")
            return
    middle = (first + last) // 2
    yield from _read_piecewise(store, run_id, first, middle)
    yield from _read_piecewise(store, run_id, middle + 1, last)


def _as_bytes(found: FoundRecords, numbers: Iterable[int]) -> list[bytes]:
    """The records of these numbers. An empty one stands for a record that is damaged or missing."""
    records = []
    for number in numbers:
        data = found.get(number, b"")
        records.append(data if isinstance(data, bytes) else b"")
    return records


class _JournalCheck:
    """The records of a run as the store has them, and what a pass over them finds."""

    def __init__(self, head: RunHead, found: FoundRecords) -> None:
        self.head = head
        self.first = min([*found, head.snapshot or head.sequence + 1])
        numbers = range(self.first, max(head.sequence, head.snapshot) + 1)
        self.damaged = {
            number: data.reason for number, data in found.items() if isinstance(data, DamagedRecord)
        }
        self.missing = [
            number for number in numbers if number not in found or self.damaged.get(number) == MISSING
        ]
        for number in self.missing:
            self.damaged.pop(number, None)
        self.records = _as_bytes(found, numbers)
        self.remarks: dict[str, None] = {}
        """What isn't known in this process, each once and in order."""
        self.steps: list[int] = []
        self.newest: Progress | None = None

    def follow_records(self) -> None:
        """Apply the records from the first to the last; note damaged ones, and the steps that can be restored."""
        progress: Progress | None = None
        step = -1
        for number, record in self._decoded_records():
            if record is not None and record[1] > step:
                self._note_step(step, progress)
                step = record[1]
            if record is not None and record[0] == SNAPSHOT:
                progress = Progress(self.head.run_id, "", "", "", {})
            progress = self._applied(progress, number, record)
        self._note_step(step, progress)

    def restore(self) -> bool:
        """Restore the newest state, if that can be done. If not, and no damage was found so far, note the reason."""
        if not self.head.snapshot:
            return False
        tail = StoredTail(self.head, self.head.snapshot, self.records[self.head.snapshot - self.first :])
        try:
            self.newest = read_progress(tail)
        except DamagedRecord as damage:
            if not self.damaged and not self.missing:
                self.damaged[damage.sequence] = damage.reason
            return False
        except LimpetError:
            return False
        return True

    def _decoded_records(self) -> Iterator[tuple[int, list[Any] | None]]:
        """The records with their numbers, None for one that can't be read."""
        unreadable = {*self.damaged, *self.missing}
        for number, data in enumerate(self.records, self.first):
            if number in unreadable:
                yield number, None
                continue
            for _, record in self._records_at(number, data):
                if isinstance(record, DamagedRecord):
                    self.damaged[number] = record.reason
                    yield number, None
                else:
                    yield number, record

    def _records_at(self, number: int, data: bytes) -> list[tuple[int, list[Any] | DamagedRecord]]:
        """What a stored record holds. Notes the classes in it that aren't known here, or can't be restored."""
        tail = StoredTail(self.head, number, [data])
        names: set[str] = set()
        try:
            records = list(read_records_or_damage(tail, lambda body: decode_as_stored(body, names)))
        except LimpetError as problem:  # it is of a newer Limpet
            return [(number, DamagedRecord(self.head.run_id, number, str(problem)))]
        unknown = sorted(name for name in names if not is_known_class(name))
        for name in unknown:
            self.remarks[f"class {name!r} is unknown here: the run can't be resumed in this process"] = None
        if names and not unknown:
            try:
                list(read_records_or_damage(Tail(*tail)))
            except UsageError as problem:
                self.remarks[str(problem)] = None
        return records

    def _applied(self, progress: Progress | None, number: int, record: list[Any] | None) -> Progress | None:
        """The progress after a record, or None if it is unknown from here to the next snapshot."""
        if progress is None or record is None:
            return None
        try:
            apply_checked(progress, number, record)
        except DamagedRecord as damage:
            self.damaged[number] = damage.reason
            return None
        return progress

    def _note_step(self, step: int, progress: Progress | None) -> None:
        if progress is not None and step >= 0:
            self.steps.append(step)


class _ThreadCheck(_JournalCheck):
    """The same for a thread of another library: what its records hold is checked as far as we know it."""

    def follow_records(self) -> None:
        """Read the records; note damaged ones, and the steps of its checkpoints."""
        steps: dict[int, None] = {}
        unreadable = {*self.damaged, *self.missing}
        for number, data in enumerate(self.records, self.first):
            if number in unreadable:
                continue
            try:
                records = [*read_thread(Tail(self.head, number, [data]))]
            except LimpetError as problem:
                self.damaged[number] = getattr(problem, "reason", str(problem))
                continue
            steps.update((record.step, None) for _, record in records if record.what == CHECKPOINT)
        self.steps = sorted(steps)

    def restore(self) -> bool:
        """Whether all records are there from the newest one on that needs none before it."""
        needed = range(self.head.snapshot, self.head.sequence + 1)
        return not any(number in needed for number in (*self.damaged, *self.missing))


def _check_of(head: RunHead) -> type[_JournalCheck]:
    return _ThreadCheck if head.kind else _JournalCheck


def head_damage(head: RunHead, newest: Progress | None) -> list[Damage]:
    """What is wrong with the head: its note is unreadable, or it has a status that the journal doesn't end with."""
    try:
        read_summary(head.note)
    except (ValueError, LimpetError) as problem:
        return [Damage(0, f"its summary can't be read: {problem}")]
    if newest is not None and head.status not in (RUNNING, DAMAGED, newest.status):
        mismatch = f"it is {head.status!r}, but its journal ends where it is {newest.status!r}"
        return [Damage(0, f"{mismatch}: records after it are missing, or the head was changed")]
    return []


def _ranges(numbers: list[int]) -> str:
    """Numbers as text: `1–4, 7`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    return ", ".join("–".join(map(str, each)) for each in ranges) or "none"
