"""The two statements that every step waits for, sent the shortest way the driver has.

A cursor of the driver looks at the types of its parameters and waits in Python: twice what the server takes for
a small record. These are prepared under names of ours, and their parameters are packed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct

from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from limpet.journal.store import Commit
from limpet.stores.postgres.connections import Cursor
from limpet.stores.postgres.queries import APPEND, APPEND_ALL

TEXT, BIGINT, BYTEA = 25, 20, 17
"""What PostgreSQL calls these types, always and everywhere."""

_LARGE = Struct("!q").pack
_LENGTH = Struct("!i").pack
_ARRAY = Struct("!iiIii").pack


def append_one(cursor: Cursor, commit: Commit) -> bool:
    """Carry out a plain commit; returns False, and has done nothing, if it can't be."""
    place = _LARGE(commit.expected), commit.records[0], commit.run_id.encode(), _LARGE(commit.fence)
    return _execute(cursor, b"limpet_append", APPEND, place).command_tuples == 1


def append_all(cursor: Cursor, commits: Sequence[Commit]) -> list[str]:
    """Carry out plain commits of different runs at once; returns the ids of those that could be."""
    columns = (
        _array(TEXT, (commit.run_id.encode() for commit in commits)),
        _array(BIGINT, (_LARGE(commit.fence) for commit in commits)),
        _array(BIGINT, (_LARGE(commit.expected) for commit in commits)),
        _array(BYTEA, (commit.records[0] for commit in commits)),
    )
    result = _execute(cursor, b"limpet_append_all", APPEND_ALL, columns)
    return [(result.get_value(row, 0) or b"").decode() for row in range(result.ntuples)]


def _execute(cursor: Cursor, name: bytes, statement: str, values: Sequence[bytes]) -> PGresult:
    server = cursor.connection.pgconn
    if cursor.pooled:
        return _check(server.exec_params(statement.encode(), values, None, _BINARY[: len(values)], 1))
    if name not in cursor.prepared:
        _check(server.prepare(name, statement.encode()))
        cursor.prepared.add(name)
    return _check(server.exec_prepared(name, values, _BINARY[: len(values)], 1))


def _check(result: PGresult) -> PGresult:
    if result.status not in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
        raise error_from_result(result)
    return result


def _array(kind: int, items: Iterable[bytes]) -> bytes:
    parts: list[bytes] = []
    for item in items:
        parts += _LENGTH(len(item)), item
    return _ARRAY(1, 0, kind, len(parts) // 2, 1) + b"".join(parts)


_BINARY = (1, 1, 1, 1)
