"""The rows of a SQLite file: heads from rows and their checksums, and how rows are added, changed and deleted.

The constant of the lease clock is one of them: see `stores/lease_clock.py`.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from functools import cache
from itertools import chain, compress
from operator import is_not
from typing import TYPE_CHECKING, Any
from zlib import crc32

from limpet.errors import DamagedRecord, RunExists, TooLarge
from limpet.journal.encoding.codec import encode
from limpet.journal.store import MISSING, Commit, RunHead, Tail
from limpet.stores import heads
from limpet.stores.lease_clock import SINCE_BOOT, Clock, ahead_now, is_plausible, this_boot
from limpet.stores.statements import statements_of

if TYPE_CHECKING:
    from limpet.stores.sqlite.connections import Connections

MAX_RECORDS = 0xFFFFFFFF
"""Of one run: more would run into the ids of the next."""

LARGEST = 999_999_000
"""Bytes of the largest record: SQLite's limit for a row, less what the row's other columns may need."""

MAX_LEASE_AFTER_BOOT = 60.0
"""For how many seconds a lease from before the computer was started can keep a run from being claimed."""

HEADS_PER_STATEMENT = 500
"""Run ids in one question: SQLite takes 999 values at least."""

COMMITS_PER_STATEMENT = 64
"""Commits in one statement, of five values each: SQLite takes 999 values at least, and up to 500 rows."""

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


def sound_head_of(row: Sequence[Any]) -> RunHead | None:
    """The same; None if it is damaged."""
    try:
        return head_of(row)
    except DamagedRecord:
        return None


def listed_head_of(row: Sequence[Any]) -> RunHead:
    """The same for a list, where a damaged head says that it is. Its graph and times are as the row has them."""
    try:
        return head_of(row)
    except DamagedRecord as damage:
        graph = row[_GRAPH] if type(row[_GRAPH]) is str else ""
        created = row[_CREATED] if type(row[_CREATED]) is float else 0.0
        return heads.unreadable(damage.run_id, created, graph)


def rows_of(cursor: sqlite3.Cursor, run_ids: Sequence[str]) -> list[Sequence[Any] | None]:
    """The rows of `HEAD` of these runs, in their order; None for one that doesn't exist."""
    found = {}
    for start in range(0, len(run_ids), HEADS_PER_STATEMENT):
        part = run_ids[start : start + HEADS_PER_STATEMENT]
        query = f"{SQL['HEAD']} WHERE run_id IN ({placeholders(part)})"
        found.update({row[1]: row for row in cursor.execute(query, part)})
    return [found.get(run_id) for run_id in run_ids]


def read_tail(cursor: sqlite3.Cursor, row: Sequence[Any], first: int | None, last: int | None) -> Tail:
    """The head in a row, and these records of its run. Raises `DamagedRecord`."""
    row_id = row[0]
    head = head_of(row)
    start = head.snapshot if first is None else max(first, 0)
    stop = head.sequence if last is None else max(last, 0)
    lowest = record_id(row_id, min(start, head.sequence + 1))
    highest = record_id(row_id, min(stop, head.sequence))
    found = cursor.execute(SQL["READ"], (lowest, highest)).fetchall()
    # What damage turned into text or a number is given as no bytes: opening the record then reports it.
    records = [data if type(data) is bytes else b"" for _, data in found]
    first_found = found[0][0] if found else head.sequence + 1
    first_kept = max(start, row[DROPPED] + 1)
    if first_kept < first_found and first_kept <= min(stop, head.sequence):
        raise DamagedRecord(head.run_id, first_kept, MISSING)
    return Tail(head, first_found, records)


def all_records(cursor: sqlite3.Cursor, row_id: int) -> dict[int, bytes]:
    """All records that the run in a row has, by their numbers; what isn't bytes is an empty one."""
    bounds = (record_id(row_id, 0), record_id(row_id, MAX_RECORDS))
    found = cursor.execute(SQL["READ"], bounds).fetchall()
    return {number: data if type(data) is bytes else b"" for number, data in found}


def limit_of(limit: int | None) -> int:
    """A limit as SQL has it."""
    if limit is None:
        return -1
    return limit


def placeholders(values: Sequence[Any]) -> str:
    """A question mark for each value, as in `IN (?, ?)`."""
    return ", ".join("?" * len(values))


def checksum(row: Sequence[Any], sequence: int) -> int:
    """The checksum of a row of `HEAD`, with `sequence` as the number of its newest record."""
    return crc32(encode([*row[:SEQUENCE], sequence, *row[SEQUENCE + 1 : -2]]))


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
        *head.labels,
        head.queue,
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


def insert_run(cursor: sqlite3.Cursor, head: RunHead, records: Sequence[bytes]) -> int:
    """Add a run and its first records; returns its row id. Raises `RunExists`."""
    if cursor.execute(SQL["CREATE"], values_of(head)).rowcount == 0:
        raise RunExists(head.run_id)
    row_id = cursor.lastrowid or 0
    insert_records(cursor, row_id, 1, records)
    if head.tags:
        cursor.executemany(SQL["ADD_TAG"], [(tag, head.created, head.run_id, row_id) for tag in head.tags])
    set_checksum(cursor, row_id)
    return row_id


def insert_records(cursor: sqlite3.Cursor, row_id: int, first: int, records: Sequence[bytes]) -> None:
    """Add records to the run of this row id, numbered from `first`."""
    cursor.executemany(SQL["INSERT_RECORD"], enumerate(records, record_id(row_id, first)))


def too_large(commit: Commit) -> TooLarge | None:
    """Why the records of a commit can't be stored, or None if they can."""
    size = max(map(len, commit.records), default=0)
    if size > LARGEST:
        what = f"a record of {size:,} bytes is more than SQLite can hold ({LARGEST:,})"
    elif commit.expected + len(commit.records) > MAX_RECORDS:
        what = f"its journal has as many records as SQLite can hold ({MAX_RECORDS:,})"
    else:
        return None
    return TooLarge(f"run {commit.run_id!r}: {what}")


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
    """Delete a run and all that belongs to it."""
    delete_records(cursor, row_id)
    cursor.execute(SQL["DELETE_OUTPUT"], (record_id(row_id, 0), record_id(row_id, MAX_RECORDS)))
    cursor.execute(SQL["DELETE_POSTS"], (row_id,))
    cursor.execute(SQL["DELETE_TAGS"], (row_id,))
    cursor.execute(SQL["DELETE_RUN"], (row_id,))


def delete_records(cursor: sqlite3.Cursor, row_id: int, last: int = MAX_RECORDS) -> int:
    """Delete the records of a run up to number `last`; returns how many there were."""
    return cursor.execute(SQL["DELETE_RECORDS"], (record_id(row_id, 0), record_id(row_id, last))).rowcount


def shared_lease_clock(connections: Connections, clock: Clock) -> Clock:
    """The lease time of all processes that use the file. The first of them after a boot stores its constant."""
    boot = this_boot()
    if not boot:
        return clock

    def find(cursor: sqlite3.Cursor) -> float | None:
        row = cursor.execute(SQL["CLOCK"], (boot,)).fetchone()
        if row is None or not is_plausible(row[0]):
            return None
        return float(row[0])

    def find_or_add(cursor: sqlite3.Cursor) -> float:
        ahead = find(cursor)
        if ahead is None:
            ahead = ahead_now()
            add_clock(cursor, boot, ahead, clock())
        return ahead

    ahead = connections.read(find)
    if ahead is None:
        ahead = connections.write(find_or_add)
    return lambda: time.clock_gettime(SINCE_BOOT) + ahead


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


def _tags(run_id: str, stored: Any) -> tuple[str, ...]:
    if stored == "[]":  # most runs have none
        return ()
    try:
        return tuple(json.loads(stored))
    except (TypeError, ValueError, RecursionError) as problem:  # only what is written by another program
        raise DamagedRecord(str(run_id), 0, f"its tags can't be read: {problem}") from problem
