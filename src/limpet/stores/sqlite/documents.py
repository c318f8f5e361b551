"""Documents in a SQLite file: small named values with a version.

A change deletes the row and adds another, whose id is the new version: SQLite never gives an id twice. So the version
of a row is known even if the rest of it is damaged.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from limpet.errors import DamagedDocument
from limpet.journal.encoding.codec import encode
from limpet.journal.store import Document
from limpet.stores.heads import after_prefix
from limpet.stores.problem_log import ProblemLog
from limpet.stores.sqlite.connections import Connections
from limpet.stores.sqlite.rows import limit_of
from limpet.stores.statements import statements_of

SQL = statements_of("sqlite")

Row = Sequence[Any]


class DocumentTable:
    """The documents in a file, each call in a transaction of its own. Damaged ones are reported to `log`."""

    def __init__(self, connections: Connections, log: ProblemLog) -> None:
        self._connections = connections
        self._log = log

    def put(self, name: str, body: bytes, version: int, due: float | None) -> int | None:
        """Write a document that is still at `version`, and return its new one, else None."""
        if due is not None:
            due = float(due)
        values = (name, body, due, _checksum(name, body, due))

        def work(cursor: sqlite3.Cursor) -> int | None:
            if version and not _delete(cursor, name, version):
                return None
            if cursor.execute(SQL["ADD_DOCUMENT"], values).rowcount == 0:
                return None
            return cursor.lastrowid

        return self._connections.write(work)

    def delete(self, name: str, version: int) -> bool:
        """Delete a document that is still at `version`; False if it isn't."""
        return self._connections.write(lambda cursor: _delete(cursor, name, version))

    def get(self, name: str) -> Document | None:
        """The document of this name, if there is one. Raises `DamagedDocument`."""
        query = f"{SQL['DOCUMENTS']} WHERE name = ?"
        row = self._connections.read(lambda cursor: cursor.execute(query, (name,)).fetchone())
        if row is None:
            return None
        if not _is_sound(row) or row[0] != name:
            raise _damaged(name, row)
        return Document(*row[:-1])

    def find(self, prefix: str, due_by: float | None, limit: int | None) -> list[Document]:
        """The documents whose names begin with `prefix`: by name, or those that are due by a time, by due time.

        Damaged ones are left out.
        """
        rows = self._rows(prefix, due_by, limit)
        found = []
        for row in rows:
            if _is_sound(row):
                found.append(Document(*row[:-1]))
            else:
                self._log.warn(_damaged(row[0], row))
        if len(rows) == limit and len(found) < limit:
            # Those at the front must not hide the ones behind them.
            return self.find(prefix, due_by, limit * 2)[:limit]
        return found

    def damaged(self, prefix: str) -> list[DamagedDocument]:
        """What is wrong with documents whose names begin with `prefix`."""
        return [_damaged(row[0], row) for row in self._rows(prefix, None, None) if not _is_sound(row)]

    def _rows(self, prefix: str, due_by: float | None, limit: int | None) -> list[Row]:
        conditions = ["name >= ?"]
        values: list[Any] = [prefix]
        beyond = after_prefix(prefix)
        if beyond is not None:
            conditions.append("name < ?")
            values.append(beyond)
        order = "name"
        if due_by is not None:
            conditions.append("due <= ?")
            values.append(due_by)
            order = "due, name"
        query = f"{SQL['DOCUMENTS']} WHERE {' AND '.join(conditions)} ORDER BY {order} LIMIT ?"
        values.append(limit_of(limit))
        return self._connections.read(lambda cursor: cursor.execute(query, values).fetchall())


def _delete(cursor: sqlite3.Cursor, name: str, version: int) -> bool:
    return cursor.execute(SQL["DELETE_DOCUMENT"], (name, version)).rowcount == 1


def _damaged(name: str, row: Row) -> DamagedDocument:
    return DamagedDocument(name, row[1], "it isn't what was written: the checksum doesn't match")


def _is_sound(row: Row) -> bool:
    name, _, body, due, stored = row
    return bool(stored == _checksum(name, body, due))


def _checksum(name: str, body: bytes, due: float | None) -> int:
    return crc32(encode([name, body, due]))
