"""What a SQLite file of Holdfast looks like inside, and how one comes to be.

`MIGRATIONS[n]` leads from schema `n` to `n + 1`; the file carries its number as `user_version`. A
migration that was released is never changed: the next change of the schema is another entry.
"""

from __future__ import annotations

import sqlite3

from holdfast.errors import StoreUnavailable

APPLICATION_ID = 0x48464A31
"""Marks a file as ours ("HFJ1"), so that another program's database is never written to."""

MIGRATIONS = (
    (
        # AUTOINCREMENT: a row id that was once of one run is never of another, so it can be remembered.
        # `sequence` is the newest record's number only where that record is gone (a purged journal).
        """
        CREATE TABLE runs (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            run_id TEXT NOT NULL UNIQUE,
            graph TEXT NOT NULL,
            status TEXT NOT NULL,
            sequence INTEGER NOT NULL DEFAULT 0,
            snapshot INTEGER NOT NULL,
            fence INTEGER NOT NULL,
            crashes INTEGER NOT NULL DEFAULT 0,
            created REAL NOT NULL,
            updated REAL NOT NULL,
            holder TEXT,
            lease_until REAL,
            tags TEXT NOT NULL,
            parent TEXT,
            signal TEXT,
            note BLOB NOT NULL
        )
        """,
        "CREATE INDEX runs_by_creation ON runs (created, run_id)",
        "CREATE INDEX runs_by_status ON runs (status, created, run_id)",
        "CREATE INDEX runs_by_parent ON runs (parent) WHERE parent IS NOT NULL",
        # The id of a record is the row id of its run and its own number, put together: one tree, no index,
        # and the records of a run lie side by side.
        "CREATE TABLE records (id INTEGER PRIMARY KEY, data BLOB NOT NULL)",
    ),
    (
        "ALTER TABLE runs ADD COLUMN due REAL",
        "ALTER TABLE runs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0",
        "UPDATE runs SET due = 0 WHERE status = 'running'",
        "CREATE INDEX runs_by_due ON runs (due) WHERE due IS NOT NULL",
    ),
)


def is_current(cursor: sqlite3.Cursor, path: str) -> bool:
    """Whether the file has the schema of this version of Holdfast; False if it is new or older.

    Raises `StoreUnavailable`, without having touched the file, if it belongs to a newer Holdfast or to
    another program.
    """
    (version,) = cursor.execute("PRAGMA user_version").fetchone()
    (owner,) = cursor.execute("PRAGMA application_id").fetchone()
    if owner != APPLICATION_ID:
        (tables,) = cursor.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if owner or version or tables:
            raise StoreUnavailable(
                f"{path} is a SQLite database of something else: give Holdfast a file of its own"
            )
        return False
    if version > len(MIGRATIONS):
        raise StoreUnavailable(
            f"{path} was written by a newer Holdfast (schema {version}; this one knows {len(MIGRATIONS)}): "
            "upgrade holdfast, or use another file"
        )
    return bool(version == len(MIGRATIONS))


def migrate(cursor: sqlite3.Cursor, path: str) -> None:
    """Bring the file to the present schema, inside the caller's transaction, which has the write lock."""
    if is_current(cursor, path):
        return
    (version,) = cursor.execute("PRAGMA user_version").fetchone()
    for statements in MIGRATIONS[version:]:
        for statement in statements:
            cursor.execute(statement)
    cursor.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    cursor.execute(f"PRAGMA application_id = {APPLICATION_ID}")
