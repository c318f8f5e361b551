"""Documents in a PostgreSQL database: small named values with a version.

Versions are counted for all documents together, so none is ever used twice. A change leaves its mark for a while, so
that a call that is made again, because its answer did not arrive, finds out whether it was carried out.
"""

from __future__ import annotations

from typing import Any

from limpet.journal.store import Document
from limpet.stores.heads import after_prefix
from limpet.stores.postgres.connections import Connections
from limpet.stores.postgres.posts import refuse_too_large
from limpet.stores.postgres.rows import SQL, within_bigint


def put_document(connections: Connections, mark: int, document: Document) -> int | None:
    """Write a document that is still at its version, and return its new one, else None."""
    refuse_too_large(f"document {document.name!r}", [document.body])
    return _change(connections, mark, document, deletes=False)


def delete_document(connections: Connections, mark: int, name: str, version: int) -> bool:
    """Delete a document that is still at `version`; False if it isn't."""
    return _change(connections, mark, Document(name, version, b""), deletes=True) is not None


def find_document(connections: Connections, name: str) -> Document | None:
    """The document of this name, if there is one."""
    row = connections.use(lambda cursor, _: cursor.execute(SQL["FIND_DOCUMENT"], (name,)).fetchone())
    return None if row is None else Document(*row)


def list_documents(connections: Connections, prefix: str, due: bool, limit: int | None) -> list[Document]:
    """The documents whose names begin with `prefix`: by name, or those that are due, by due time."""
    conditions = ["name >= %s"]
    values: list[Any] = [prefix]
    beyond = after_prefix(prefix)
    if beyond is not None:
        conditions.append("name < %s")
        values.append(beyond)
    order = "name"
    if due:
        conditions.append("due <= (SELECT clock())")
        order = "due, name"
    condition = f"WHERE {' AND '.join(conditions)} ORDER BY {order} LIMIT %s"
    query = b" ".join((SQL["DOCUMENTS"], condition.encode()))
    values.append(limit)
    rows = connections.use(lambda cursor, _: cursor.execute(query, values).fetchall())
    return [Document(*row) for row in rows]


def _change(connections: Connections, mark: int, document: Document, *, deletes: bool) -> int | None:
    version = within_bigint(document.version)
    values = (document.name, version, deletes, document.body, document.due, mark)
    row = connections.use(
        lambda cursor, again: cursor.execute(SQL["CHANGE_DOCUMENT"], (*values, again)).fetchone()
    )
    return None if row is None else row[0]
