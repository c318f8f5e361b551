"""The numbered SQL files that lead from an empty database to the present schema.

They are in `stores/<kind>/migrations`, one directory for each kind of database, and are applied in the order of their
numbers, which start at 1 and have no gap. A file that was released is never changed: the next change of the schema
is another file.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple


class Migration(NamedTuple):
    """One step to the present schema: its number, the name of its file and the SQL in it."""

    version: int
    name: str
    sql: str


@cache
def migrations_of(kind: str) -> tuple[Migration, ...]:
    """All migrations that this version of Limpet knows for "postgres" or "sqlite", in order."""
    found = sorted(Path(__file__).parent.joinpath(kind, "migrations").glob("*.sql"))
    return tuple(Migration(int(file.name[:4]), file.name, file.read_text("utf-8")) for file in found)


def sql_of(kind: str) -> str:
    """The SQL of all migrations, each under a line with its name, for an administrator to review or run."""
    return "\n".join(f"-- {each.name}\n{each.sql}" for each in migrations_of(kind))
