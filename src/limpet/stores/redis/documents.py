"""Documents on a Redis server: small named values with a version.

All are in one hash, together with the newest version of all, so that neither is ever there without the other. Two
sorted sets have their names and due times.
"""

from __future__ import annotations

from typing import Any

from limpet.errors import StoreUnavailable
from limpet.journal.store import Document
from limpet.stores.redis import scripts
from limpet.stores.redis.script_calls import ScriptCalls
from limpet.stores.redis.scripts import Script, optional_time, text


def put_document(calls: ScriptCalls, token: bytes, document: Document) -> int | None:
    """Write a document that is still at its version, and return its new one, else None."""
    return _change(calls, token, document, b"0")


def delete_document(calls: ScriptCalls, token: bytes, name: str, version: int) -> bool:
    """Delete a document that is still at `version`; False if it isn't."""
    return _change(calls, token, Document(name, version, b""), b"1") is not None


def find_document(calls: ScriptCalls, name: str) -> Document | None:
    """The document of this name, if there is one."""
    (value,) = calls.all([(b"HGET", _keys(calls)[0], b"d:" + text(name))])
    return None if value is None else _document(name, value)


def list_documents(
    calls: ScriptCalls, clock: bytes, prefix: str, due: bool, limit: int | None
) -> list[Document]:
    """The documents whose names begin with `prefix`: by name, or those that are due, by due time."""
    wanted = b"" if limit is None else b"%d" % limit
    command = _command(calls, scripts.LIST_DOCUMENTS, b"", clock, text(prefix), b"1" if due else b"0", wanted)
    (found,) = calls.all([command])
    return [_document(name.decode(), value) for name, value in zip(found[::2], found[1::2], strict=True)]


def _change(calls: ScriptCalls, token: bytes, document: Document, deletes: bytes) -> int | None:
    name, version, body, due = document
    arguments = (text(name), b"%d" % version, deletes, optional_time(due), body)
    (reply,) = calls.all([_command(calls, scripts.CHANGE_DOCUMENT, token, *arguments)])
    return None if reply == 0 else int(reply[1])


def _command(calls: ScriptCalls, script: Script, token: bytes, *arguments: bytes) -> tuple[Any, ...]:
    return (b"EVALSHA", script.sha, b"4", *_keys(calls), calls.prefix + b"change:" + token, *arguments)


def _keys(calls: ScriptCalls) -> tuple[bytes, bytes, bytes]:
    documents = calls.prefix + b"documents"
    return documents, documents + b":names", documents + b":due"


def _document(name: str, value: bytes) -> Document:
    """The document that is kept as version, due time and body, with spaces between."""
    version, _, rest = value.partition(b" ")
    due, _, body = rest.partition(b" ")
    try:
        return Document(name, int(version), body, float(due[1:]) if due else None)
    except ValueError as error:
        raise StoreUnavailable(f"the document {name!r} isn't what was written") from error
