"""The schema of a SQLite file, and bringing a file to it.

The files in `stores/sqlite/migrations` lead from an empty file to the present schema; see `stores/migrations.py`. The
`user_version` of a file is the number of the newest migration that was applied to it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterator
from zlib import crc32

from limpet.errors import StoreUnavailable
from limpet.journal.encoding.codec import encode
from limpet.stores.migrations import Migration, migrations_of
from limpet.stores.sqlite.rows import SEQUENCE, checksum
from limpet.stores.statements import statements_of

SQL = statements_of("sqlite")

APPLICATION_ID = 0x4C4D4A31
"""Marks a file as ours ("LMJ1"), so that another program's database is never written to."""

FIRST_CHECKSUMS = 3
"""The schema from which on heads that change get a checksum, in the column "sum"."""

CHECKSUMS_FOR_ALL = 4
"""The schema from which on every head has one, in "checksum" and later "head_checksum". It covers "dropped", too."""

VERSION_BEFORE_POSTS = 6

COLUMNS_BEFORE_POSTS = (
    "id, run_id, graph, status, sequence, snapshot, fence, created, updated, holder, lease_until, tags, parent, "
    "signal, note, crashes, due, priority"
)
"""What the checksum of a head covered up to then, in order."""

VERSION_BEFORE_QUEUES = 7

COLUMNS_BEFORE_QUEUES = (
    "id, run_id, graph, status, sequence, snapshot, fence, created, updated, holder, lease_until, tags, parent, "
    "note, crashes, due, priority, posted, taken, output, node, error, waits_for"
)

VERSION = 8
"""The number of the newest migration. Stated here too, so that a file that has it is opened without reading them."""


def migrations() -> tuple[Migration, ...]:
    """All migrations that this version of Limpet knows, in order."""
    return migrations_of("sqlite")


def is_current(cursor: sqlite3.Cursor, path: str) -> bool:
    """Whether the file has the schema of this version of Limpet; False if it is new or older.

    Raises `StoreUnavailable`, without having touched the file, if it belongs to a newer Limpet or to
    another program.
    """
    (version,) = cursor.execute("PRAGMA user_version").fetchone()
    (owner,) = cursor.execute("PRAGMA application_id").fetchone()
    if owner != APPLICATION_ID:
        (tables,) = cursor.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if owner or version or tables:
            raise StoreUnavailable(
                f"{path} is another program's SQLite database: give Limpet a file of its own"
            )
        return False
    if version > VERSION:
        raise StoreUnavailable(
            f"{path} was written by a newer Limpet (schema {version}; this one knows {VERSION}): "
            "upgrade limpet, or use another file"
        )
    return bool(version == VERSION)


def migrate(cursor: sqlite3.Cursor, path: str) -> None:
    """Bring the file to the present schema, inside the caller's transaction, which holds the write lock."""
    if is_current(cursor, path):
        return
    (version,) = cursor.execute("PRAGMA user_version").fetchone()
    damaged = _damaged_heads(cursor, version)
    for migration in migrations():
        if migration.version > version:
            for statement in _statements(migration.sql):
                cursor.execute(statement)
    _renew_checksums(cursor, damaged)
    cursor.execute(f"PRAGMA user_version = {VERSION}")
    cursor.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _damaged_heads(cursor: sqlite3.Cursor, version: int) -> set[int]:
    """The row ids of the heads that their checksum, as an earlier schema has it, shows to be damaged."""
    if version < FIRST_CHECKSUMS:
        return set()
    if version > VERSION_BEFORE_QUEUES:
        rows = cursor.execute(SQL["HEAD"]).fetchall()
        return {row[0] for row in rows if row[-1] != checksum(row, row[-2])}
    columns = COLUMNS_BEFORE_POSTS if version <= VERSION_BEFORE_POSTS else COLUMNS_BEFORE_QUEUES
    if version < CHECKSUMS_FOR_ALL:
        columns = f"{columns}, sum"
    else:
        columns = f"{columns}, dropped, checksum"
    damaged = set()
    for *row, stored in cursor.execute(f"SELECT {columns} FROM runs"):
        is_new = stored is None and version < CHECKSUMS_FOR_ALL
        if not is_new and stored != crc32(encode(row)):
            damaged.add(row[0])
    return damaged


def _renew_checksums(cursor: sqlite3.Cursor, damaged: Collection[int]) -> None:
    """Give every head a checksum with all its columns, except the damaged ones: without one they stay so."""
    for row in cursor.execute(SQL["HEAD"]).fetchall():
        row_id = row[0]
        if row_id in damaged:
            cursor.execute(SQL["SET_CHECKSUM"], (row[-2], None, row_id))
        else:
            sequence = row[SEQUENCE]
            cursor.execute(SQL["SET_CHECKSUM"], (sequence, checksum(row, sequence), row_id))


def _statements(sql: str) -> Iterator[str]:
    """The statements of a file, one by one: `executescript` would end the transaction that they belong to."""
    statement = ""
    for part in re.split("(?<=;)", sql):
        statement += part
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement
