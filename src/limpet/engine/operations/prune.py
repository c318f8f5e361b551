"""Delete the old checkpoints of one run, on request."""

from __future__ import annotations

from typing import Any

from limpet.engine.leases.interrupted_calls import releases_if_interrupted
from limpet.engine.leases.lease_client import HeldRun, LeaseClient
from limpet.engine.operations.workflow_checkpoints import of_layers
from limpet.errors import Conflict, UsageError
from limpet.journal.encoding.codec import encode
from limpet.journal.encoding.envelope import Envelope
from limpet.journal.progress import Progress
from limpet.journal.reader import (
    Checkpoint,
    ViewedTail,
    check_complete,
    history,
    progress_at,
    read_progress,
    read_records,
)
from limpet.journal.records import SNAPSHOT, bundle, snapshot_record
from limpet.journal.snapshots import REPEATED
from limpet.journal.store import Commit, Tail


@releases_if_interrupted
def prune_checkpoints(client: LeaseClient, run_id: str, keep: int) -> int:
    """Delete all but the newest `keep` checkpoints of a run; return how many were deleted.

    A checkpoint is rebuilt from the newest snapshot up to it, so records can only be deleted up to a snapshot. Where
    there is none at the oldest checkpoint to keep, one is written there, and the records after it again. That needs
    the lease: while another process advances the run, checkpoints are deleted as far as its snapshots allow.
    """
    if type(keep) is not int or keep < 1:
        raise UsageError(f"keep must be a whole number of at least 1, not {keep!r}")
    client.head(run_id)
    try:
        holding = client.holding(run_id)
    except Conflict:
        return _prune_to_snapshot(client, ViewedTail(*client.store.read(run_id, first=1)), keep)
    with holding as held:
        tail = ViewedTail(*held.read(first=1))
        oldest = _oldest_to_keep(tail, keep)
        if oldest is not None:
            _write_snapshot(held, tail, oldest)
        return _prune_to_snapshot(client, ViewedTail(*held.read(first=1)), keep)


def _oldest_to_keep(tail: Tail, keep: int) -> int | None:
    """The step of the oldest checkpoint to keep; None if there are no older ones."""
    if not tail.records:
        return None
    check_complete(tail)
    found = _checkpoints(tail)
    return None if len(found) <= keep else found[-keep].step


def _checkpoints(tail: Tail) -> list[Checkpoint]:
    """The steps that count as checkpoints: those of the layers of a workflow, or all steps of a graph."""
    found = history(tail)
    return of_layers(found) or found


def _write_snapshot(held: HeldRun, tail: Tail, step: int) -> None:
    """Add a snapshot of the run as it was after `step`, and all records after that again, in one commit."""
    run_id = tail.head.run_id
    later: list[list[Any]] = []
    snapshot_step = -1
    for _, record in read_records(tail):
        if record[0] == SNAPSHOT and record[1] <= step:
            snapshot_step = record[1]
            later = []
        if record[1] > step:
            later.append(record)
    if snapshot_step == step:
        return
    parts_after_first = sum(record[0] == SNAPSHOT for record in later)
    snapshot = snapshot_record(progress_at(tail, step), repeated=1 + parts_after_first)
    parts = _parts(snapshot, later)
    envelope = Envelope(run_id)
    first = tail.head.sequence + 1
    records = [envelope.close(first + place, bundle(part)) for place, part in enumerate(parts)]
    rewritten = ViewedTail(tail.head._replace(sequence=first + len(records) - 1), first, records)
    if snapshot_record(read_progress(rewritten)) != snapshot_record(_newest(tail)):
        return  # more is kept than was asked for, rather than less
    newest_snapshot = first + len(parts) - 1
    held.commit(Commit(run_id, held.fence, tail.head.sequence, records, newest_snapshot, ignores_posts=True))


def _parts(snapshot: bytes, later: list[list[Any]]) -> list[list[bytes]]:
    """The records to write, a part for each snapshot among them: a restore reads from a snapshot on."""
    parts = [[snapshot]]
    for record in later:
        if record[0] == SNAPSHOT:
            record[4].pop(REPEATED, None)  # it counted records after its old place
            parts.append([])
        parts[-1].append(encode(record))
    return parts


def _newest(tail: Tail) -> Progress:
    first = tail.head.snapshot
    return read_progress(ViewedTail(tail.head, first, tail.records[first - tail.first :]))


def _prune_to_snapshot(client: LeaseClient, tail: Tail, keep: int) -> int:
    """Delete the records before the newest snapshot that all checkpoints to keep can be rebuilt from."""
    oldest = _oldest_to_keep(tail, keep)
    if oldest is None:
        return 0
    before = 0
    steps: dict[int, int] = {}
    for number, record in read_records(tail):
        if record[0] == SNAPSHOT and record[1] <= oldest:
            before = number
            steps = {}
        steps.setdefault(record[1], number)
    if before <= tail.first:
        return 0
    client.store.prune(tail.head.run_id, before)
    return sum(each.step not in steps for each in _checkpoints(tail))
