"""The rows of a SQLite file: the ways between them and what the journal knows, and the checksum of a head."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from limpet.errors import DamagedRecord
from limpet.journal.encoding.codec import encode
from limpet.journal.store import RUNNING, Commit, NewRun, OnSignal, RunFilter, RunHead
from limpet.stores.statements import statements_of

MAX_RECORDS = 0xFFFFFFFF
"""Of one run: more would run into the ids of the next."""

SEQUENCE = 4
"""Where a row of `HEAD` has the number of the newest record."""

_UNHELD = statements_of("sqlite")["UNHELD"]


def record_id(row_id: int, sequence: int) -> int:
    """The id of a record: the row id of its run, and its number."""
    return (row_id << 32) + sequence


def head_of(row: Sequence[Any]) -> RunHead:
    """The head in a row of `HEAD`. Raises `DamagedRecord` if it isn't what was written."""
    *_, stored_sequence, stored_checksum = row
    # None: a row from before heads had checksums, and not changed since.
    if stored_checksum is not None and stored_checksum != checksum(row, stored_sequence):
        raise DamagedRecord(str(row[1]), 0, "its head isn't what was written: the checksum doesn't match")
    _, run_id, graph, status, sequence, snapshot, fence, created, updated, *rest = row
    holder, lease_until, tags, parent, signal, note, crashes, due, priority, _, _ = rest
    return RunHead(
        run_id=run_id,
        graph=graph,
        status=status,
        sequence=sequence,
        snapshot=snapshot,
        fence=fence,
        created=created,
        updated=updated,
        holder=holder,
        lease_until=lease_until,
        tags=_tags(run_id, tags),
        parent=parent,
        signal=signal,
        note=note,
        crashes=crashes,
        due=due,
        priority=priority,
    )


def checksum(row: Sequence[Any], sequence: int) -> int:
    """The checksum of a row of `HEAD`, with `sequence` as the number of its newest record."""
    return crc32(encode([*row[:SEQUENCE], sequence, *row[SEQUENCE + 1 : -2]]))


def values_of(run: NewRun, now: float, lease_until: float | None) -> tuple[Any, ...]:
    """The parameters of `CREATE`."""
    return (
        run.run_id,
        run.graph,
        run.status,
        1 if run.records else 0,
        now,
        now,
        run.holder,
        lease_until,
        json.dumps(run.tags) if run.tags else "[]",
        run.parent,
        run.note,
        run.due,
        run.priority,
    )


def changes_of(commit: Commit, now: float) -> dict[str, Any]:
    """The columns that a commit changes in the row of its run. `stores/heads.py` has the rules."""
    changes: dict[str, Any] = {}
    if commit.purge:
        changes["sequence"] = commit.expected + len(commit.records)
        changes["snapshot"] = 0
    elif commit.snapshot:
        changes["snapshot"] = commit.snapshot
    if commit.status is not None:
        changes["status"] = commit.status
        changes["updated"] = now
        changes["due"] = commit.due
        if commit.status != RUNNING:
            changes["holder"] = None
            changes["lease_until"] = None
    if commit.note is not None:
        changes["note"] = commit.note
    if commit.on_signal is OnSignal.CLEAR:
        changes["signal"] = None
    return changes


def condition_of(which: RunFilter, now: float) -> tuple[str, list[Any]]:
    """The condition that keeps the runs that `which` asks for, and its parameters."""
    conditions: list[str] = []
    values: list[Any] = []
    if which.statuses:
        conditions.append(f"status IN ({placeholders(which.statuses)})")
        values += which.statuses
    for column, value in (("graph", which.graph), ("parent", which.parent)):
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(value)
    if which.tag is not None:
        conditions.append("EXISTS (SELECT 1 FROM json_each(runs.tags) WHERE value = ?)")
        values.append(which.tag)
    if which.unclaimed:
        conditions.append(_UNHELD)
        values.append(now)
    if not conditions:
        return "", values
    return "WHERE " + " AND ".join(conditions), values


def placeholders(values: Sequence[Any]) -> str:
    """A question mark for each value, as in `IN (?, ?)`."""
    return ", ".join("?" * len(values))


def _tags(run_id: str, stored: Any) -> tuple[str, ...]:
    try:
        return tuple(json.loads(stored))
    except (TypeError, ValueError, RecursionError) as problem:  # only in a row that has no checksum yet
        raise DamagedRecord(str(run_id), 0, f"its tags can't be read: {problem}") from problem
