"""Reading a journal: from stored records to a run's progress, now or at an earlier step, and to its history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from limpet.errors import DamagedRecord, LimpetError, UsageError
from limpet.journal.delta import read_delta
from limpet.journal.encoding.codec import decode, decode_as_stored, decode_for_viewing
from limpet.journal.encoding.envelope import Envelope
from limpet.journal.progress import Progress
from limpet.journal.record_shapes import decode_records
from limpet.journal.records import MOVE, NESTED, SNAPSHOT, STEP, apply_record
from limpet.journal.snapshots import RECORD_WEIGHT
from limpet.journal.store import COMPLETED, MISSING, PAUSED, RUNNING, Tail
from limpet.journal.threads.kinds import refuse_thread
from limpet.journal.waits import DELIVER, EXPIRE, RESUME, Letter, Question


class Checkpoint(NamedTuple):
    """One step in the history of a run.

    `node` completed at `timestamp` (seconds) and changed `keys`. `next` and `phase` are the position after it,
    `status` and `reason` those of the run at that step. Step 0 is the start. If the node is in a branch, or in a
    graph inside of a node, `branch` is the path to it, and keys and position are those of the branch. `metadata`
    says where the step was made: versions, git commit, tags. `closed` is how many questions had been answered or
    withdrawn by then of nodes that hadn't completed. `id` is the reference that `invoke(checkpoint=…)` takes.
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
    closed: int = 0

    @property
    def id(self) -> str:
        """The reference to this checkpoint: `run id@step`, with `.closed` after it if that isn't 0."""
        if not self.closed:
            return f"{self.run_id}@{self.step}"
        return f"{self.run_id}@{self.step}.{self.closed}"


class Point(NamedTuple):
    """A point in a run, as the id of a checkpoint names it: see `Progress.closed_questions` for the second number."""

    step: int
    closed: int = 0


class ViewedTail(Tail):
    """A tail that is only looked at: its values of classes that aren't known here are read as `UnknownValue`s."""

    __slots__ = ()


class StoredTail(Tail):
    """A tail that is only checked and copied: all its values of registered classes are read as `UnknownValue`s."""

    __slots__ = ()


class ChangedValue(NamedTuple):
    """A value of the state, as a record left it: in a branch, or in the run itself. `removed` if the key is gone."""

    branch: str | None
    key: str
    value: Any
    removed: bool
    record: int


class StepChange(NamedTuple):
    """A step, and the values that it changed.

    `progress` is the run's after the step. It and the values change with the next step that is asked for. `last` is
    the number of the step's last record.
    """

    checkpoint: Checkpoint
    values: list[ChangedValue]
    progress: Progress
    last: int


def read_progress(tail: Tail) -> Progress:
    """The progress that the records of `tail`, from a snapshot to the newest, add up to.

    Raises `DamagedRecord` for a record that isn't what was written.
    """
    progress, _ = read_progress_and_weight(tail)
    return progress


def read_progress_and_weight(tail: Tail) -> tuple[Progress, int]:
    """The same, and the weight of the records after the snapshot, for the `JournalWriter` that continues."""
    records = list(read_records(tail))
    check_complete(tail)
    weight = sum(map(len, tail.records[1:])) + RECORD_WEIGHT * (len(records) - 1)
    return _progress_from(tail.head.run_id, records), weight


def progress_at(tail: Tail, step: int) -> Progress:
    """The progress as it was after `step`. Raises `UsageError` if the journal doesn't have that step.

    It needs the newest snapshot up to the step and the records from there to the step. Damage elsewhere doesn't
    matter.
    """
    run_id = tail.head.run_id
    if type(step) is not int:
        raise UsageError(f"a step is a whole number, not {step!r}").with_advice(
            "history() lists those of a run", "history"
        )
    needed: list[tuple[int, list[Any]]] = []
    damage: DamagedRecord | None = None
    for number, record in read_records_or_damage(tail):
        if isinstance(record, DamagedRecord):
            needed = []
            damage = damage or record
            continue
        if record[1] > step:
            break
        if record[0] == SNAPSHOT:
            needed = []
            damage = None
        if damage is None:
            needed.append((number, record))
    if damage is not None:
        raise damage
    if not needed or needed[-1][1][1] != step:
        unknown = UsageError(f"run {run_id!r} has no step {step!r} in its journal")
        raise unknown.with_advice("history() lists its steps", "history")
    return _progress_from(run_id, needed)


def progress_at_pause(tail: Tail, step: int, closed: int) -> Progress:
    """The progress as it was after `step` while no more than `closed` questions were closed.

    These are counted as `Progress.closed_questions` does. If more were closed when the step was reached, it is the
    progress as it was before the next was. Raises as `progress_at` does.
    """
    progress: Progress | None = None
    limit: int | None = None
    for number, record in read_records_or_damage(tail):
        if isinstance(record, DamagedRecord):
            progress = None
            continue
        if record[1] > step:
            break
        if record[0] == SNAPSHOT:
            restored = Progress(tail.head.run_id, "", "", "", {})
            apply_checked(restored, number, record)
            if limit is not None and restored.closed_questions() > limit:
                break
            progress = restored
        elif progress is not None:
            if limit is not None and progress.closed_questions() + _closes(record) > limit:
                break
            apply_checked(progress, number, record)
        if limit is None and progress is not None and progress.step == step:
            limit = max(closed, progress.closed_questions())
    if progress is None or progress.step != step:
        return progress_at(tail, step)  # which says what is missing or damaged
    return progress


def questions_at(tail: Tail, step: int, closed: int) -> list[Question]:
    """The questions that were open at this point (see `progress_at_pause`), or else at the first pause after it.

    Raises as `progress_at` does.
    """
    questions = progress_at_pause(tail, step, closed).unanswered_questions()
    if questions:
        return questions
    progress = Progress(tail.head.run_id, "", "", "", {})
    for number, record in read_records(tail):
        apply_checked(progress, number, record)
        if progress.step > step and progress.status == PAUSED:
            return progress.open_questions()
    return []


def _closes(record: list[Any]) -> int:
    """How many questions a record closes."""
    if record[0] != MOVE:
        return 0
    return len(record[4].get(RESUME, ())) + len(record[4].get(EXPIRE, ()))


def letters_after(tail: Tail, step: int) -> list[Letter]:
    """The letters that a run has taken in after `step`, as far as its records can be read."""
    found = []
    for _, record in read_records_or_damage(ViewedTail(*tail)):
        # Records of earlier steps may come again: deleting old checkpoints repeats newer ones.
        if isinstance(record, DamagedRecord) or record[1] <= step or record[0] != MOVE:
            continue
        found += [Letter(box, number, value) for box, number, value, _ in record[4].get(DELIVER, ())]
    return found


def next_unused_step(tail: Tail) -> int:
    """A number that no step of the run has had, even if records of its journal are damaged."""
    newest = 0
    for _, record in read_records_or_damage(tail):
        if isinstance(record, DamagedRecord):
            newest += 1
        else:
            newest = max(newest, record[1])
    return newest + 1


def history(tail: Tail) -> list[Checkpoint]:
    """All steps that the journal still has, in order. Raises `DamagedRecord`."""
    found: dict[int, Checkpoint] = {}
    progress = Progress(tail.head.run_id, "", "", "", {}, step=-1)
    for number, record in read_records(tail):
        keys = _changed_keys(record, progress)
        apply_checked(progress, number, record)
        earlier = found.get(progress.step)
        if earlier is None:
            found[progress.step] = _checkpoint(progress, record, keys)
        else:
            found[progress.step] = _updated(earlier, progress, record, keys)
    return [found[step] for step in sorted(found)]


def changes_by_step(tail: Tail) -> Iterator[StepChange]:
    """The steps of a run, in order, with the values that they changed.

    Raises `DamagedRecord` when it comes to a record that isn't what was written.
    """
    step: Checkpoint | None = None
    last = 0
    values: dict[tuple[str | None, str], ChangedValue] = {}
    progress = Progress(tail.head.run_id, "", "", "", {}, step=-1)
    for number, record in read_records(tail):
        if step is not None and record[1] != step.step:
            yield StepChange(step, list(values.values()), progress, last)
            step = None
            values = {}
        keys = _changed_keys(record, progress)
        earlier_keys = list(progress.state) if record[0] == SNAPSHOT else []
        apply_checked(progress, number, record)
        step = _checkpoint(progress, record, keys) if step is None else _updated(step, progress, record, keys)
        last = number
        branch = None
        scope = progress
        if record[0] == NESTED:
            branch = progress.path_name(record[4])
            scope = progress.branch_at(record[4])
        for key in [*keys, *(key for key in earlier_keys if key not in progress.state)]:
            values[branch, key] = ChangedValue(
                branch, key, scope.state.get(key), key not in scope.state, number
            )
    check_complete(tail)
    if step is not None:
        yield StepChange(step, list(values.values()), progress, last)


def _checkpoint(progress: Progress, record: list[Any], keys: list[str]) -> Checkpoint:
    """The checkpoint of the step that the progress has just reached by a record."""
    branch = None
    scope = progress
    if record[0] == NESTED:
        branch = progress.path_name(record[4])
        scope = progress.branch_at(record[4])
    return Checkpoint(
        run_id=progress.run_id,
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
        closed=_closed(progress),
    )


def _updated(checkpoint: Checkpoint, progress: Progress, record: list[Any], keys: list[str]) -> Checkpoint:
    """A checkpoint after one more record of the same step."""
    checkpoint = checkpoint._replace(
        status=progress.status,
        reason=progress.reason,
        metadata=dict(progress.meta),
        closed=_closed(progress),
    )
    if checkpoint.branch is not None or record[0] == NESTED:
        return checkpoint
    new_keys = [key for key in keys if key not in checkpoint.keys]
    return checkpoint._replace(next=progress.node, phase=progress.phase, keys=(*checkpoint.keys, *new_keys))


def _closed(progress: Progress) -> int:
    """How many questions were closed, where a run stops. It is looked up there only, as it takes a while."""
    return 0 if progress.status == RUNNING else progress.closed_questions()


def check_complete(tail: Tail) -> None:
    """Raise `DamagedRecord` if the records of a tail end before the newest record."""
    if tail.records:
        first_missing = tail.first + len(tail.records)
        newest = tail.head.sequence
    else:
        first_missing = tail.head.snapshot
        newest = max(tail.head.sequence, tail.head.snapshot)
    if 0 < first_missing <= newest:
        raise DamagedRecord(tail.head.run_id, first_missing, MISSING)


def read_records(tail: Tail) -> Iterator[tuple[int, list[Any]]]:
    """The decoded records with their sequence numbers. Raises `DamagedRecord`."""
    for number, record in read_records_or_damage(tail):
        if isinstance(record, DamagedRecord):
            raise record
        yield number, record


def read_records_or_damage(
    tail: Tail, decoding: Callable[[bytes], Any] | None = None
) -> Iterator[tuple[int, list[Any] | DamagedRecord]]:
    """The same, with a `DamagedRecord` in the place of a record that is damaged.

    How values are decoded depends on the kind of tail, unless it is said. Raises `ForeignRun` for a thread.
    """
    if tail.head.kind:
        refuse_thread(tail.head)
    if not tail.records and tail.head.status == COMPLETED and not tail.head.snapshot:
        raise UsageError(
            f"the journal of run {tail.head.run_id!r} was deleted when it completed; "
            "keep_result=True, the default, keeps it"
        )
    envelope = Envelope(tail.head.run_id)
    if decoding is None:
        decoding = _DECODING.get(type(tail), decode)
    for number, data in enumerate(tail.records, tail.first):
        try:
            records = decode_records(envelope.open(number, data), decoding)
        except DamagedRecord as damage:
            yield number, damage
        except LimpetError:
            raise  # such as a class that isn't registered: the record is intact
        except ValueError as problem:
            yield number, DamagedRecord(tail.head.run_id, number, str(problem))
        else:
            for record in records:
                yield number, record


def apply_checked(progress: Progress, number: int, record: list[Any]) -> None:
    """Advance a progress by a record. Raises `DamagedRecord` if the record doesn't fit the ones before it."""
    try:
        apply_record(progress, record)
    except LimpetError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as problem:
        raise DamagedRecord(
            progress.run_id, number, f"it doesn't follow from those before: {problem}"
        ) from problem


def _progress_from(run_id: str, records: list[tuple[int, list[Any]]]) -> Progress:
    if not records or records[0][1][0] != SNAPSHOT:
        first = records[0][0] if records else 0
        raise DamagedRecord(run_id, first, "the journal doesn't begin with a snapshot")
    progress = Progress(run_id, "", "", "", {})
    for number, record in records:
        apply_checked(progress, number, record)
    return progress


def _changed_keys(record: list[Any], progress: Progress) -> list[str]:
    """The keys of the state, the run's or a branch's, that a record changes. Empty for an unreadable record."""
    try:
        return _keys(record, progress)
    except (LookupError, TypeError, ValueError, AttributeError):
        return []


def _keys(record: list[Any], progress: Progress) -> list[str]:
    if record[0] == NESTED:
        return _keys(record[5], progress.branch_at(record[4]))
    if record[0] == STEP:
        return read_delta(record[6]).keys
    if record[0] == MOVE and len(record) > 5:
        return read_delta(record[5]).keys
    if record[0] == SNAPSHOT and progress.step != record[1]:
        return list(record[5])
    return []


_DECODING: dict[type[Tail], Callable[[bytes], Any]] = {
    ViewedTail: decode_for_viewing,
    StoredTail: decode_as_stored,
}
