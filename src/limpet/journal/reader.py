"""Reading a journal: from sealed records to progress, now or at an earlier step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from limpet.errors import DamagedRecord, UsageError
from limpet.journal.delta import read_delta
from limpet.journal.encoding.codec import decode
from limpet.journal.encoding.envelope import Envelope
from limpet.journal.progress import BUNDLE, KINDS, MOVE, NESTED, SNAPSHOT, STEP, Progress
from limpet.journal.store import COMPLETED, Tail
from limpet.journal.writer import RECORD_WEIGHT


class Checkpoint(NamedTuple):
    """One step of a run, as its history tells it.

    `node` completed at `timestamp` (seconds) and changed `keys`; `next` and `phase` are the position it left
    the run at, `status` and `reason` how the run then stood. Step 0 is the start. Where the node is in a branch, or
    in a graph inside of a node, `branch` is the way there, and keys and position are that branch's. `metadata` says
    where it was made: versions, git commit, tags. `id` is the reference that `invoke(checkpoint=…)` takes.
    """

    run_id: str
    step: int
    node: str | None
    timestamp: float
    next: str
    phase: str
    status: str
    reason: str | None
    keys: tuple[str, ...]
    metadata: dict[str, Any]
    branch: str | None = None

    @property
    def id(self) -> str:
        return f"{self.run_id}@{self.step}"


def read_progress(tail: Tail) -> Progress:
    """The progress that the records of `tail`, from a whole one to the newest, amount to.

    Raises `DamagedRecord` for one that isn't what was written.
    """
    return read_on(tail)[0]


def read_on(tail: Tail) -> tuple[Progress, int]:
    """The same, and what it costs to read the records after the whole one, in a ledger's measure."""
    records = list(opened(tail))
    check_end(tail)
    weight = sum(map(len, tail.records[1:])) + RECORD_WEIGHT * (len(records) - 1)
    return _folded(tail.head.run_id, records), weight


def progress_at(tail: Tail, step: int) -> Progress:
    """The progress as it was after `step`. Raises `UsageError` if the journal has no such step.

    Damage elsewhere doesn't matter: what counts is the newest whole record up to the step, and what follows it.
    """
    run_id, seen = tail.head.run_id, -1
    needed: list[tuple[int, list[Any]]] = []
    damage: DamagedRecord | None = None
    for number, record in _each(tail):
        if isinstance(record, DamagedRecord):
            needed, damage = [], damage or record
            continue
        seen = record[1]
        if seen > step:
            break
        if record[0] == SNAPSHOT:
            needed, damage = [], None
        if damage is None:
            needed.append((number, record))
    if damage is not None:
        raise damage
    if not needed or needed[-1][1][1] != step:
        raise UsageError(f"run {run_id!r} has no step {step!r} in its journal; history() lists those it has")
    return _folded(run_id, needed)


def next_step(tail: Tail) -> int:
    """The number that no step of the run has had, whatever of its journal is damaged."""
    newest = 0
    for _, record in _each(tail):
        newest = newest + 1 if isinstance(record, DamagedRecord) else max(newest, record[1])
    return newest + 1


def history(tail: Tail) -> list[Checkpoint]:
    """All steps that the journal still has, in order. Raises `DamagedRecord`."""
    found: dict[int, Checkpoint] = {}
    progress = Progress(tail.head.run_id, "", "", "", {}, step=-1)
    for number, record in opened(tail):
        keys = _changed_keys(record, progress)
        _apply(progress, number, record)
        earlier = found.get(progress.step)
        if earlier is not None:
            later: dict[str, Any] = {
                "status": progress.status,
                "reason": progress.reason,
                "metadata": dict(progress.meta),
            }
            if earlier.branch is None and record[0] != NESTED:
                new = (key for key in keys if key not in earlier.keys)
                later |= {"next": progress.node, "phase": progress.phase, "keys": (*earlier.keys, *new)}
            found[progress.step] = earlier._replace(**later)
            continue
        branch, scope = None, progress
        if record[0] == NESTED:
            branch, scope = progress.way_to(record[4]), progress.descend(record[4])
        found[progress.step] = Checkpoint(
            run_id=tail.head.run_id,
            step=progress.step,
            node=scope.made_by,
            timestamp=scope.at,
            next=scope.node,
            phase=scope.phase,
            status=progress.status,
            reason=progress.reason,
            keys=tuple(keys),
            metadata=dict(progress.meta),
            branch=branch,
        )
    return [found[step] for step in sorted(found)]


def check_end(tail: Tail) -> None:
    """Raise `DamagedRecord` if a tail that is to end with the newest record doesn't."""
    first_missing = tail.first + len(tail.records) if tail.records else tail.head.snapshot
    if 0 < first_missing <= max(tail.head.sequence, 0 if tail.records else tail.head.snapshot):
        raise DamagedRecord(tail.head.run_id, first_missing, "it is missing")


def opened(tail: Tail) -> Iterator[tuple[int, list[Any]]]:
    """The records with their sequence numbers, unsealed and decoded. Raises `DamagedRecord`."""
    for number, record in _each(tail):
        if isinstance(record, DamagedRecord):
            raise record
        yield number, record


def _each(tail: Tail) -> Iterator[tuple[int, list[Any] | DamagedRecord]]:
    """The same, with damage in the place of a record that is damaged."""
    if not tail.records and tail.head.status == COMPLETED and not tail.head.snapshot:
        raise UsageError(
            f"the journal of run {tail.head.run_id!r} went when it completed; preserve=True keeps it"
        )
    seal = Envelope(tail.head.run_id)
    for number, data in enumerate(tail.records, tail.first):
        try:
            record = decode(seal.open(number, data))
            together = record[1:] if type(record) is list and record[:1] == [BUNDLE] else [record]
            for each in together:
                if type(each) is not list or len(each) < 5 or each[0] not in KINDS:
                    raise ValueError("it is none of the kinds of record there are")
            for each in together:
                yield number, each
        except DamagedRecord as damage:
            yield number, damage
        except ValueError as problem:
            yield number, DamagedRecord(tail.head.run_id, number, str(problem))


def _folded(run_id: str, records: list[tuple[int, list[Any]]]) -> Progress:
    if not records or records[0][1][0] != SNAPSHOT:
        first = records[0][0] if records else 0
        raise DamagedRecord(run_id, first, "the journal doesn't begin with a whole record")
    progress = Progress(run_id, "", "", "", {})
    for number, record in records:
        _apply(progress, number, record)
    return progress


def _apply(progress: Progress, number: int, record: list[Any]) -> None:
    """Move progress on by a record. Raises `DamagedRecord` if it can't follow."""
    try:
        progress.apply(record)
    except (LookupError, TypeError, ValueError, AttributeError) as problem:
        raise DamagedRecord(
            progress.run_id, number, f"it doesn't follow from those before: {problem}"
        ) from problem


def _changed_keys(record: list[Any], progress: Progress) -> list[str]:
    """The keys of a state, the run's or a branch's, that a record changes. None for one that can't be read."""
    try:
        return _keys(record, progress)
    except (LookupError, TypeError, ValueError, AttributeError):
        return []


def _keys(record: list[Any], progress: Progress) -> list[str]:
    if record[0] == NESTED:
        return _keys(record[5], progress.descend(record[4]))
    if record[0] == STEP:
        return read_delta(record[6]).keys
    if record[0] == MOVE and len(record) > 5:
        return read_delta(record[5]).keys
    if record[0] == SNAPSHOT and progress.step != record[1]:
        return list(record[5])
    return []
