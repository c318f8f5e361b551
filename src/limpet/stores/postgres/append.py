"""Carrying out commits in PostgreSQL: the hot path of the store.

A *plain* commit adds one record and changes nothing else. It is one statement (`APPEND` in `statements.sql`),
prepared once on each connection, so a step costs one round trip and no parsing or planning on the server. It is
sent the shortest way the driver has: a cursor of psycopg looks at the types of its parameters, which takes as long as
the server takes for a small record. So the parameters are packed here.

Plain commits of many runs are one statement, too (`APPEND_MANY`). Every other commit is carried out by a function in
the database (`apply_commit`), also in one round trip.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any

from psycopg.errors import error_from_result
from psycopg.generators import execute
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from limpet.errors import RunNotFound, TooLarge
from limpet.journal.store import Commit
from limpet.stores.heads import refusal
from limpet.stores.postgres.connections import Cursor
from limpet.stores.postgres.rows import LARGEST_NUMBER, SQL, commits_values, head_of

LARGEST = 1_000_000_000
"""Bytes of the largest record: a little below PostgreSQL's limit for a value."""

LARGEST_TOGETHER = 16_000_000
"""Bytes of the records that go into one statement."""

TEXT = 25
BIGINT = 20
BYTEA = 17
"""The numbers of these types, the same in every PostgreSQL."""

_BINARY = (1, 1, 1, 1)
_BIGINT = Struct("!q").pack
_LENGTH = Struct("!i").pack
_ARRAY_HEADER = Struct("!iiIii").pack


class Batch:
    """Commits of one call, sorted by how they are carried out; each known by its place in the call.

    The `plain` ones are one statement together, and so are the `others`. Those in neither (too large, or a further
    commit of the same run) are carried out one by one afterwards. Both are in the order of the run ids: all
    transactions lock runs in this order, so that none waits for another in a circle.
    """

    def __init__(self, commits: Sequence[Commit], marks: Sequence[int]) -> None:
        self._commits = commits
        self._marks = marks
        plain: dict[str, int] = {}
        others: dict[str, int] = {}
        room = LARGEST_TOGETHER
        for place, commit in enumerate(commits):
            # Client and server hold all values of a statement in memory, so its size is bounded. Once the room is
            # used up, all later commits go one by one, even small ones: so those of one run keep their order.
            room -= sum(map(len, commit.records))
            # A statement sees each run as it was before the statement. It would check a second commit of the same run
            # against a head that lacks the first, so that one has to wait for a statement of its own.
            if room < 0 or commit.run_id in plain or commit.run_id in others:
                continue
            if is_plain(commit):
                plain[commit.run_id] = place
            else:
                others[commit.run_id] = place
        self.plain = dict(sorted(plain.items()))
        self.others = dict(sorted(others.items()))

    def append_plain(self, cursor: Cursor, again: bool) -> dict[int, Exception | None]:
        """None for each of the plain ones that was accepted."""
        accepted = append_many(cursor, [self._commits[place] for place in self.plain.values()])
        return {self.plain[run_id]: None for run_id in accepted}

    def apply_others(self, cursor: Cursor, again: bool) -> dict[int, Exception | None]:
        """The outcome of each of the others whose run exists."""
        places = list(self.others.values())
        commits = [self._commits[place] for place in places]
        marks = [self._marks[place] for place in places]
        rows = cursor.execute(SQL["APPLY_COMMITS"], commits_values(commits, marks, again)).fetchall()
        outcomes = {}
        for number, *answer in rows:
            place = places[number - 1]
            outcomes[place] = outcome_of(self._commits[place], answer)
        return outcomes


def is_plain(commit: Commit) -> bool:
    """Whether adding one record is all that this commit does."""
    return (
        len(commit.records) == 1
        and commit.only_adds_records
        # What doesn't fit the types of the prepared statement takes the long way, which refuses it with a reason.
        and len(commit.records[0]) <= LARGEST
        and 0 <= commit.expected < LARGEST_NUMBER
        and 0 < commit.fence < LARGEST_NUMBER
    )


def append_one(cursor: Cursor, commit: Commit) -> bool:
    """Carry out a plain commit. False if the run can't take it; then nothing was changed."""
    values = (_BIGINT(commit.expected), commit.records[0], commit.run_id.encode(), _BIGINT(commit.fence))
    return _execute(cursor, b"limpet_append", SQL["APPEND"], values).command_tuples == 1


def append_many(cursor: Cursor, commits: Sequence[Commit]) -> list[str]:
    """Carry out plain commits of different runs at once; returns the ids of the runs that took them."""
    columns = (
        _array(TEXT, (commit.run_id.encode() for commit in commits)),
        _array(BIGINT, (_BIGINT(commit.fence) for commit in commits)),
        _array(BIGINT, (_BIGINT(commit.expected) for commit in commits)),
        _array(BYTEA, (commit.records[0] for commit in commits)),
    )
    result = _execute(cursor, b"limpet_append_many", SQL["APPEND_MANY"], columns)
    return [(result.get_value(row, 0) or b"").decode() for row in range(result.ntuples)]


def outcome_of(commit: Commit, answer: Sequence[Any] | None) -> Exception | None:
    """Why a commit was refused, from the answer of `APPLY_COMMIT`, or None."""
    if answer is None:
        return RunNotFound(commit.run_id)
    accepted, server_time, *head = answer
    if accepted:
        return None
    return refusal(commit, head_of(head), server_time)


def too_large(commit: Commit) -> TooLarge | None:
    """The refusal of a commit whose records are more than the store can take."""
    size = sum(map(len, commit.records))
    if size <= LARGEST:
        return None
    what = f"{size:,} bytes in one commit are more than PostgreSQL can take ({LARGEST:,})"
    return TooLarge(f"run {commit.run_id!r}: {what}")


def _execute(cursor: Cursor, name: bytes, statement: bytes, values: Sequence[bytes]) -> PGresult:
    """Run a statement that was prepared under this name; through a pooler, where names are of no use, unprepared."""
    server = cursor.connection.pgconn
    formats = _BINARY[: len(values)]
    if cursor.pooled:
        server.send_query_params(statement, values, None, formats, 1)
        return _answer(cursor)
    if name not in cursor.prepared:
        server.send_prepare(name, statement)
        _answer(cursor)
        cursor.prepared.add(name)
    server.send_query_prepared(name, values, formats, 1)
    return _answer(cursor)


def _answer(cursor: Cursor) -> PGresult:
    """The result of the statement that was sent, once it has arrived. Raises the error of a statement that failed."""
    results: list[PGresult] = cursor.connection.wait(execute(cursor.connection.pgconn))
    result = results[0]
    if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
        raise error_from_result(result)
    return result


def _array(kind: int, items: Iterable[bytes]) -> bytes:
    """A PostgreSQL array of one dimension, in the binary format.

    Packed by hand, since this is measurable: psycopg looks up a dumper for each item.
    """
    parts: list[bytes] = []
    for item in items:
        parts.append(_LENGTH(len(item)))
        parts.append(item)
    # One dimension, no nulls, the type, the number of items, and the index of the first one.
    return _ARRAY_HEADER(1, 0, kind, len(parts) // 2, 1) + b"".join(parts)
