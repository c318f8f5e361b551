"""The SQL of the SQLite store, and the ways between its rows and what the journal speaks of."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any
from zlib import crc32

from limpet.errors import DamagedRecord
from limpet.journal.encoding.codec import encode
from limpet.journal.store import RUNNING, Commit, NewRun, OnSignal, RunFilter, RunHead

HEAD = """
SELECT id, run_id, graph, status,
    max(sequence, coalesce((
        SELECT records.id & 0xFFFFFFFF FROM records
        WHERE records.id BETWEEN runs.id << 32 AND (runs.id << 32) + 0xFFFFFFFF ORDER BY records.id DESC LIMIT 1
    ), 0)),
    snapshot, fence, created, updated, holder, lease_until, tags, parent, signal, note, crashes, due, priority,
    sequence, sum
FROM runs
"""

FIND = f"{HEAD} WHERE run_id = ?"

READ = "SELECT id & 0xFFFFFFFF, data FROM records WHERE id BETWEEN ? AND ? ORDER BY id"

DROP = "DELETE FROM records WHERE id BETWEEN ? AND ?"

CREATE = """
INSERT INTO runs
    (run_id, graph, status, snapshot, fence, created, updated, holder, lease_until, tags, parent, note,
    due, priority)
VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run_id) DO NOTHING
"""

# One statement that checks and inserts. Where the run can't take the record, its data comes out NULL, which
# the table refuses and OR IGNORE turns into no row; so does a record that has the number already. That the
# record before is there says that the number is the next one: only the oldest are ever pruned. (After a
# purge none is there, and the long way decides.) INSERT … SELECT would say it plainly, but SQLite then copies
# the row through a temporary table, because the SELECT reads the table that is inserted into: a quarter slower.
APPEND = """
INSERT OR IGNORE INTO records (id, data) VALUES (?, (
    SELECT ? FROM runs WHERE id = ? AND fence = ? AND signal IS NULL
    AND EXISTS (SELECT 1 FROM records WHERE id = ?)
))
"""

# The same for several, which come as one statement: the interpreter is let go, and must be waited for, once.
_APPEND_ALL = """
INSERT OR IGNORE INTO records (id, data) SELECT number, content
FROM (SELECT 0 AS number, 0 AS content, 0 AS run, 0 AS by_fence, 0 AS before WHERE 0 UNION ALL VALUES {rows})
WHERE EXISTS (SELECT 1 FROM runs WHERE id = run AND fence = by_fence AND signal IS NULL)
AND EXISTS (SELECT 1 FROM records WHERE id = before)
"""

CLAIM = "UPDATE runs SET fence = ?, crashes = ?, holder = ?, lease_until = ?, updated = ? WHERE id = ?"

RENEW = "UPDATE runs SET lease_until = ?, updated = ? WHERE id = ?"

RELEASE = "UPDATE runs SET holder = NULL, lease_until = NULL WHERE id = ?"

SIGNAL = "UPDATE runs SET signal = ? WHERE id = ?"

SEAL = "UPDATE runs SET sequence = ?, sum = ? WHERE id = ?"

FREE = "(lease_until IS NULL OR lease_until <= ?)"

READY = f"""
{HEAD} WHERE due <= ? AND {FREE} AND graph IN (SELECT value FROM json_each(?))
ORDER BY priority DESC, due, created, run_id LIMIT ?
"""


LARGEST_STATEMENT = 64
"""Commits in one statement, of five values each: SQLite takes 999 values at least, and up to 500 rows."""

MOST_RECORDS = 0xFFFFFFFF
"""Of one run: more would run into the ids of the next."""


def record_id(row: int, sequence: int) -> int:
    """The id of a record: the row id of its run, and its number."""
    return (row << 32) + sequence


def head_of(row: Sequence[Any]) -> RunHead:
    """The head in a row of `HEAD`. Raises `DamagedRecord` if it isn't what was written."""
    if row[-1] is not None and row[-1] != _sum(row, row[-2]):
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


def _tags(run_id: str, stored: Any) -> tuple[str, ...]:
    try:
        return tuple(json.loads(stored))
    except (TypeError, ValueError, RecursionError) as problem:  # of a row that has no checksum yet
        raise DamagedRecord(str(run_id), 0, f"its tags can't be read: {problem}") from problem


def row_of(run: NewRun, now: float, until: float | None) -> tuple[Any, ...]:
    """The parameters of `CREATE`."""
    snapshot = 1 if run.records else 0
    about = (run.run_id, run.graph, run.status, snapshot, now, now)
    tags = json.dumps(run.tags) if run.tags else "[]"
    return (*about, run.holder, until, tags, run.parent, run.note, run.due, run.priority)


def where(which: RunFilter, now: float) -> tuple[str, list[Any]]:
    """The condition that keeps the runs that fit, and its parameters."""
    conditions: list[str] = []
    values: list[Any] = []
    if which.statuses:
        conditions.append(f"status IN ({marks(which.statuses)})")
        values += which.statuses
    for column, value in (("graph", which.graph), ("parent", which.parent)):
        if value is not None:
            conditions.append(f"{column} = ?")
            values.append(value)
    if which.tag is not None:
        conditions.append("EXISTS (SELECT 1 FROM json_each(runs.tags) WHERE value = ?)")
        values.append(which.tag)
    if which.unclaimed:
        conditions.append(FREE)
        values.append(now)
    return ("WHERE " + " AND ".join(conditions) if conditions else ""), values


def marks(values: Sequence[Any]) -> str:
    """A question mark for each value, as in `IN (?, ?)`."""
    return ", ".join("?" * len(values))


def insert(cursor: sqlite3.Cursor, row: int, first: int, records: Sequence[bytes]) -> None:
    """Add records to the run of this row id, numbered from `first`."""
    cursor.executemany(
        "INSERT INTO records (id, data) VALUES (?, ?)", enumerate(records, record_id(row, first))
    )


def append_all(cursor: sqlite3.Cursor, plain: Sequence[tuple[Any, ...]]) -> bool:
    """Carry out what would be an `APPEND` each, of different runs, if all of it can be; otherwise nothing.

    There is one statement for each power of two, so that they are few; the last of the commits, sent more than
    once, fills it up and is ignored.
    """
    for start in range(0, len(plain), LARGEST_STATEMENT):
        part = plain[start : start + LARGEST_STATEMENT]
        size = 1 << (len(part) - 1).bit_length()
        values = [*chain.from_iterable(part), *part[-1] * (size - len(part))]
        if cursor.execute(_append_statement(size), values).rowcount != len(part):
            cursor.execute("ROLLBACK")
            cursor.execute("BEGIN IMMEDIATE")
            return False
    return True


@cache
def _append_statement(size: int) -> str:
    return _APPEND_ALL.format(rows=", ".join(["(?, ?, ?, ?, ?)"] * size))


def change_head(cursor: sqlite3.Cursor, row: int, commit: Commit, now: float) -> bool:
    """Carry out what `commit` says of the head; return whether it says anything."""
    changes: dict[str, Any] = {}
    if commit.purge:
        changes |= {"sequence": commit.expected + len(commit.records), "snapshot": 0}
    elif commit.snapshot:
        changes |= {"snapshot": commit.snapshot}
    if commit.status is not None:
        changes |= {"status": commit.status, "updated": now, "due": commit.due}
        if commit.status != RUNNING:
            changes |= {"holder": None, "lease_until": None}
    if commit.note is not None:
        changes |= {"note": commit.note}
    if commit.on_signal is OnSignal.CLEAR:
        changes |= {"signal": None}
    if changes:
        columns = ", ".join(f"{column} = ?" for column in changes)
        cursor.execute(f"UPDATE runs SET {columns} WHERE id = ?", (*changes.values(), row))
    return bool(changes)


def seal(cursor: sqlite3.Cursor, row: int) -> None:
    """Give the head of this row id its checksum. To be called whenever it has changed, in the same transaction."""
    found = cursor.execute(f"{HEAD} WHERE id = ?", (row,)).fetchone()
    cursor.execute(SEAL, (found[4], _sum(found, found[4]), row))


def _sum(row: Sequence[Any], sequence: int) -> int:
    """The checksum of a row of `HEAD`, with this number as that of its newest record."""
    return crc32(encode([*row[:4], sequence, *row[5:-2]]))
