"""The schema of a PostgreSQL database, and bringing a database to it.

The files in `stores/postgres/migrations` lead from an empty schema to the present one; see
`stores/migrations.py`. The table `schema_migrations`, next to the runs, lists the migrations that were applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.errors import StoreUnavailable
from limpet.stores.migrations import Migration, migrations_of

if TYPE_CHECKING:
    from limpet.stores.postgres.connections import Cursor

ADVISORY_LOCK = 0x4C494D50
"""With the schema's hash, the number of the advisory lock under which one process at a time migrates."""

LONGEST_STATEMENT = 3600.0
"""Seconds that a statement of a migration may take: it may have to read every run, or wait for another process that
migrates. The system notices earlier if the network fails; see the defaults in `address.py`."""

CREATE_MIGRATIONS_TABLE = """
CREATE TABLE schema_migrations (
    version integer PRIMARY KEY, name text NOT NULL, applied timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""


def migrations() -> tuple[Migration, ...]:
    """All migrations that this version of Limpet knows, in order."""
    return migrations_of("postgres")


def version_of(cursor: Cursor, place: str) -> int:
    """The number of the newest migration that was applied; 0 if none was.

    Raises `StoreUnavailable` if the database belongs to a newer Limpet.
    """
    (table,) = _one_row(
        cursor, "SELECT to_regclass(quote_ident(current_schema()) || '.schema_migrations')::text"
    )
    if table is None:
        return 0
    (version,) = _one_row(cursor, "SELECT coalesce(max(version), 0) FROM schema_migrations")
    known = migrations()[-1].version
    if version > known:
        raise StoreUnavailable(
            f"{place} was written by a newer Limpet (schema {version}; this one knows {known}): "
            "upgrade limpet, or choose another ?schema="
        )
    return int(version)


def migrate(cursor: Cursor, schema: str, place: str) -> None:
    """Bring the database to the present schema, one process at a time, all or nothing."""
    if version_of(cursor, place) == migrations()[-1].version:
        return
    usual_limit = cursor.connection.limit
    cursor.connection.limit = LONGEST_STATEMENT
    with cursor.connection.transaction():
        cursor.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (ADVISORY_LOCK, schema))
        (schema_exists,) = _one_row(cursor, "SELECT to_regnamespace(quote_ident(%s)) IS NOT NULL", (schema,))
        if not schema_exists:
            cursor.execute("CREATE SCHEMA " + '"' + schema.replace('"', '""') + '"')
        # Again, now that the lock is held: another process may have migrated meanwhile.
        version = version_of(cursor, place)
        if version == 0:
            cursor.execute(CREATE_MIGRATIONS_TABLE)
        for migration in migrations():
            if migration.version > version:
                cursor.connection.execute(migration.sql.encode(), prepare=False)
                cursor.execute("INSERT INTO schema_migrations (version, name) VALUES (%s, %s)", migration[:2])
    cursor.connection.limit = usual_limit


def _one_row(cursor: Cursor, query: str, parameters: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    row = cursor.execute(query.encode(), parameters).fetchone()
    assert row is not None
    return tuple(row)
