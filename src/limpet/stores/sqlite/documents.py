"""Documents in a SQLite file: small named values with a version, in the caller's transaction.

A change deletes the row and adds another, whose id is the new version: SQLite never gives an id twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

from limpet.errors import StoreUnavailable
from limpet.journal.encoding.codec import encode
from limpet.journal.store import Document
from limpet.stores.heads import after_prefix
from limpet.stores.sqlite.rows import limit_of
from limpet.stores.statements import statements_of

SQL = statements_of("sqlite")


def put_document(
    cursor: sqlite3.Cursor, name: str, body: bytes, version: int, due: float | None
) -> int | None:
    """Write a document that is still at `version`, and return its new one, else None."""
    if version and not delete_document(cursor, name, version):
        return None
    if due is not None:
        due = float(due)
    values = (name, body, due, _checksum(name, body, due))
    if cursor.execute(SQL["ADD_DOCUMENT"], values).rowcount == 0:
        return None
    return cursor.lastrowid


def delete_document(cursor: sqlite3.Cursor, name: str, version: int) -> bool:
    """Delete a document that is still at `version`; False if it isn't."""
    return cursor.execute(SQL["DELETE_DOCUMENT"], (name, version)).rowcount == 1


def find_document(cursor: sqlite3.Cursor, name: str) -> Document | None:
    """The document of this name, if there is one. Raises `StoreUnavailable` if it is damaged."""
    row = cursor.execute(f"{SQL['DOCUMENTS']} WHERE name = ?", (name,)).fetchone()
    if row is None:
        return None
    if not _is_sound(row) or row[0] != name:
        raise StoreUnavailable(f"the document {name!r} isn't what was written: the checksum doesn't match")
    return Document(*row[:-1])


def find_documents(
    cursor: sqlite3.Cursor, prefix: str, due_by: float | None, limit: int | None
) -> list[Document]:
    """The documents whose names begin with `prefix`: by name, or those that are due by a time, by due time."""
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
    return list(_undamaged(cursor.execute(query, values)))


def _undamaged(rows: Iterable[Sequence[Any]]) -> Iterable[Document]:
    for row in rows:
        if _is_sound(row):
            yield Document(*row[:-1])
        else:
            from logging import getLogger

            getLogger("limpet.stores").warning("the document %r is damaged", row[0])


def _is_sound(row: Sequence[Any]) -> bool:
    name, _, body, due, stored = row
    return bool(stored == _checksum(name, body, due))


def _checksum(name: str, body: bytes, due: float | None) -> int:
    return crc32(encode([name, body, due]))
