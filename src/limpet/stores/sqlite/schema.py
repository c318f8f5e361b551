"""The schema of a SQLite file, and bringing a file to it.

The files in `stores/sqlite/migrations` lead from an empty file to the present schema; see `stores/migrations.py`. The
`user_version` of a file is the number of the newest migration that was applied to it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator

from limpet.errors import StoreUnavailable
from limpet.stores.migrations import Migration, migrations_of
from limpet.stores.sqlite.rows import SEQUENCE, checksum, checksum_before_dropped
from limpet.stores.statements import statements_of

SQL = statements_of("sqlite")

APPLICATION_ID = 0x4C4D4A31
"""Marks a file as ours ("LMJ1"), so that another program's database is never written to."""

CHECKSUMS_FOR_ALL = 4
"""The schema from which on every head has a checksum."""

VERSION = 6
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
    for migration in migrations():
        if migration.version > version:
            for statement in _statements(migration.sql):
                cursor.execute(statement)
    if version < CHECKSUMS_FOR_ALL:
        _add_checksums(cursor)
    cursor.execute(f"PRAGMA user_version = {VERSION}")
    cursor.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _add_checksums(cursor: sqlite3.Cursor) -> None:
    """Give every head a checksum with all its columns, except where the older checksum shows damage."""
    for row in cursor.execute(SQL["HEAD"]).fetchall():
        *_, sequence, stored = row
        if stored is not None and stored != checksum_before_dropped(row, sequence):
            renewed = None
        else:
            sequence = row[SEQUENCE]
            renewed = checksum(row, sequence)
        cursor.execute(SQL["SET_CHECKSUM"], (sequence, renewed, row[0]))


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
