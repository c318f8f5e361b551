"""The rows of a SQLite file: heads from rows and their checksums, and how rows are added, changed and deleted."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain, compress
from operator import is_not
from typing import Any
from zlib import crc32

from limpet.errors import DamagedRecord
from limpet.journal.encoding.codec import encode
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import RunHead
from limpet.stores import heads
from limpet.stores.statements import statements_of

MAX_RECORDS = 0xFFFFFFFF
"""Of one run: more would run into the ids of the next."""

MAX_LEASE_AFTER_BOOT = 60.0
"""For how many seconds a lease from before the computer was started can keep a run from being claimed."""

COMMITS_PER_STATEMENT = 64
"""Commits in one statement, of five values each: SQLite takes 999 values at least, and up to 500 rows."""

MAX_PRIORITIES = 32
"""How many priorities of a graph are searched one by one for runs that are ready."""

ABOVE_ALL_PRIORITIES = 1e19
"""More than a column holds."""

SEQUENCE = 4
"""Where a row of `HEAD` has the number of the newest record."""

TAGS = 11
"""Where it has the tags, as JSON."""

DROPPED = -3
"""Where it has how many of the oldest records were deleted."""

_GRAPH = 2
_CREATED = 7
_FIELD_OF_SEQUENCE = RunHead._fields.index("sequence")

SQL = statements_of("sqlite")


def record_id(row_id: int, sequence: int) -> int:
    """The id of a record: the row id of its run, and its number."""
    return (row_id << 32) + sequence


def head_of(row: Sequence[Any]) -> RunHead:
    """The head in a row of `HEAD`. Raises `DamagedRecord` if it isn't what was written."""
    *_, stored_sequence, stored_checksum = row
    if stored_checksum != checksum(row, stored_sequence):
        raise DamagedRecord(str(row[1]), 0, "its head isn't what was written: the checksum doesn't match")
    # The columns between are the fields of a `RunHead`, in the same order.
    return RunHead._make((*row[1:TAGS], _tags(row[1], row[TAGS]), *row[TAGS + 1 : DROPPED]))


def listed_head_of(row: Sequence[Any]) -> RunHead:
    """The same for a list, where a damaged head says that it is. Its graph and times are as the row has them."""
    try:
        return head_of(row)
    except DamagedRecord as damage:
        graph = row[_GRAPH] if type(row[_GRAPH]) is str else ""
        created = row[_CREATED] if type(row[_CREATED]) is float else 0.0
        return heads.unreadable(damage.run_id, created, graph)


def checksum(row: Sequence[Any], sequence: int) -> int:
    """The checksum of a row of `HEAD`, with `sequence` as the number of its newest record."""
    return crc32(encode([*row[:SEQUENCE], sequence, *row[SEQUENCE + 1 : -2]]))


def checksum_before_dropped(row: Sequence[Any], sequence: int) -> int:
    """The same as schema 3 had it, without the number of deleted records."""
    return crc32(encode([*row[:SEQUENCE], sequence, *row[SEQUENCE + 1 : DROPPED]]))


def values_of(head: RunHead) -> tuple[Any, ...]:
    """The parameters of `CREATE`."""
    return (
        head.run_id,
        head.graph,
        head.status,
        head.snapshot,
        head.fence,
        head.created,
        head.updated,
        head.holder,
        head.lease_until,
        json.dumps(head.tags) if head.tags else "[]",
        head.parent,
        head.note,
        head.due,
        head.priority,
    )


def update_of(before: RunHead, after: RunHead, with_sequence: bool = False) -> tuple[str, list[Any]] | None:
    """The statement that writes what changed in a head, and its parameters but for the row id; None if nothing did.

    The sequence number is looked up, so it is only written where no record is left to look it up from.
    """
    # By functions in C: a run is claimed, paused, ended and renewed by this.
    changed = list(map(is_not, before, after))
    changed[_FIELD_OF_SEQUENCE] = with_sequence
    columns = tuple(compress(RunHead._fields, changed))
    if not columns:
        return None
    return _update_statement(columns), list(compress(after, changed))


@cache
def _update_statement(columns: tuple[str, ...]) -> str:
    return f"UPDATE runs SET {', '.join(f'{column} = ?' for column in columns)} WHERE id = ?"


def insert_records(cursor: sqlite3.Cursor, row_id: int, first: int, records: Sequence[bytes]) -> None:
    """Add records to the run of this row id, numbered from `first`."""
    cursor.executemany(SQL["INSERT_RECORD"], enumerate(records, record_id(row_id, first)))


def append_many(cursor: sqlite3.Cursor, plain: Sequence[tuple[Any, ...]]) -> bool:
    """Carry out what would be an `APPEND` each, of different runs, if all of it can be; otherwise nothing.

    The statements have a power of two of rows, so that there are few of them to prepare. The last commit, sent more
    than once, fills the statement up; its number is taken by then, so that the repetitions are ignored.
    """
    for start in range(0, len(plain), COMMITS_PER_STATEMENT):
        part = plain[start : start + COMMITS_PER_STATEMENT]
        size = 1 << (len(part) - 1).bit_length()
        values = [*chain.from_iterable(part), *part[-1] * (size - len(part))]
        if cursor.execute(_append_statement(size), values).rowcount != len(part):
            cursor.execute("ROLLBACK")
            cursor.execute("BEGIN IMMEDIATE")
            return False
    return True


@cache
def _append_statement(size: int) -> str:
    return SQL["APPEND_MANY"].replace("{rows}", ", ".join(["(?, ?, ?, ?, ?)"] * size))


def change_head(cursor: sqlite3.Cursor, row_id: int, update: tuple[str, list[Any]] | None) -> None:
    """Write what changed in a head, if anything did, and renew the checksum."""
    if update is not None:
        statement, values = update
        cursor.execute(statement, [*values, row_id])
        set_checksum(cursor, row_id)


def set_checksum(cursor: sqlite3.Cursor, row_id: int) -> None:
    """Renew the checksum of a head. Follows every change of it, in the same transaction.

    The row is read back, because SQLite may store a value in another form than it was given (7 as 7.0).
    """
    row = cursor.execute(SQL["FIND_ROW"], (row_id,)).fetchone()
    sequence = row[SEQUENCE]
    cursor.execute(SQL["SET_CHECKSUM"], (sequence, checksum(row, sequence), row_id))


def delete_run(cursor: sqlite3.Cursor, row_id: int) -> None:
    delete_records(cursor, row_id)
    cursor.execute(SQL["DELETE_RUN"], (row_id,))


def delete_records(cursor: sqlite3.Cursor, row_id: int, last: int = MAX_RECORDS) -> int:
    """Delete the records of a run up to number `last`; returns how many there were."""
    return cursor.execute(SQL["DELETE_RECORDS"], (record_id(row_id, 0), record_id(row_id, last))).rowcount


def add_clock(cursor: sqlite3.Cursor, boot: str, ahead: float, now: float) -> None:
    """Store the constant of the lease clock for this boot of the computer, and shorten leases from before it.

    Processes of an earlier boot have ended, but a lease of theirs may be long, or end in the future if the time of
    day was set back since. Boots of the same id are one: it has another clock in a container.
    """
    boots = [str(other) for (other,) in cursor.execute("SELECT boot FROM clocks")]
    cursor.execute(SQL["SET_CLOCK"], (boot, ahead))
    boot_id = boot.split()[0]
    if any(other.startswith(boot_id) for other in boots):
        return
    latest = now + MAX_LEASE_AFTER_BOOT
    for (row_id,) in cursor.execute(SQL["LONG_LEASES"], (latest,)).fetchall():
        cursor.execute(SQL["SHORTEN_LEASE"], (latest, row_id))
        set_checksum(cursor, row_id)


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
        # Tags that can't be read may be any: the head is damaged, and the list says so.
        has_tag = "EXISTS (SELECT 1 FROM json_each(runs.tags) WHERE value = ?)"
        conditions.append(f"CASE WHEN json_valid(runs.tags) THEN {has_tag} ELSE 1 END")
        values.append(which.tag)
    if which.unclaimed:
        conditions.append(SQL["UNHELD"])
        values.append(now)
    if not conditions:
        return "", values
    return "WHERE " + " AND ".join(conditions), values


def ready_heads(
    cursor: sqlite3.Cursor,
    graphs: Iterable[str],
    now: tuple[float, float],
    limit: int,
    undamaged: Callable[[Sequence[Any]], list[RunHead]],
) -> list[RunHead]:
    """The heads of runs that are ready, of each graph the most urgent and at most `limit`.

    `now` is the time by which runs are due, and that by which leases expire. It goes from priority to priority, as
    only the runs of one priority are in the order of `due`. Most graphs have few priorities; where there are many,
    the rest is searched at once. `undamaged` gives the heads of rows but for the damaged ones.
    """
    found: list[RunHead] = []

    def take(statement: str, graph: str, priority: float, wanted: int) -> int:
        """Add what a statement finds, and return how many heads that were. Damaged rows are made up for by more."""
        count = 0
        offset = 0
        while count < wanted:
            asked = wanted - count
            rows = cursor.execute(SQL[statement], (graph, priority, *now, asked, offset)).fetchall()
            sound = undamaged(rows)
            found.extend(sound)
            count += len(sound)
            offset += len(rows)
            if len(rows) < asked:
                break
        return count

    for graph in graphs:
        wanted = limit
        above = ABOVE_ALL_PRIORITIES
        for _ in range(MAX_PRIORITIES):
            next_priority = cursor.execute(SQL["NEXT_PRIORITY"], (graph, above)).fetchone()
            if next_priority is None or wanted <= 0:
                break
            (above,) = next_priority
            wanted -= take("READY", graph, above, wanted)
        else:
            take("READY_BELOW", graph, above, wanted)
    return found


def placeholders(values: Sequence[Any]) -> str:
    """A question mark for each value, as in `IN (?, ?)`."""
    return ", ".join("?" * len(values))


def _tags(run_id: str, stored: Any) -> tuple[str, ...]:
    if stored == "[]":  # most runs have none
        return ()
    try:
        return tuple(json.loads(stored))
    except (TypeError, ValueError, RecursionError) as problem:  # only what is written by another program
        raise DamagedRecord(str(run_id), 0, f"its tags can't be read: {problem}") from problem
