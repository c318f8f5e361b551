"""What others write on a Redis server: posts to a run, and documents; and the output of a run.

Posts are in a hash and output in a list beside the run's journal. All documents are in one hash, together with the
newest version of all, so that neither is ever there without the other. Two sorted sets have their names and due
times.
"""

from __future__ import annotations

from collections.abc import Sequence
from re import compile as regex
from typing import Any, NamedTuple

from limpet.errors import DamagedDocument, DamagedRecord
from limpet.journal.store import Document, Output, Post
from limpet.stores.heads import refuse_old_fence, takes_in_nothing
from limpet.stores.redis import scripts
from limpet.stores.redis.head_fields import head_of
from limpet.stores.redis.script_calls import ScriptCalls, changed_while_read, existing, undamaged
from limpet.stores.redis.scripts import Script, flag, number, optional_time, text

UNREADABLE = -1
"""The version at which a document is that has none."""

_LEADING_DIGITS = regex(rb"[0-9]+")


def post(calls: ScriptCalls, token: bytes, clock: bytes, run_id: str, key: str, body: bytes) -> bool:
    """Post something to a run; False if it was posted this key before."""
    reply = undamaged(run_id, calls.run(scripts.POST, run_id, token, clock, text(key), body))
    if reply[1] == b"completed":
        raise takes_in_nothing(run_id)
    return bool(reply[1] == b"posted")


def inbox(calls: ScriptCalls, run_id: str) -> list[Post]:
    """The posts that no commit has taken in. Raises `DamagedRecord` if one of them is missing."""
    _, taken, waiting = undamaged(run_id, calls.run(scripts.INBOX, run_id))
    return [_post(run_id, place, value) for place, value in enumerate(waiting, int(taken) + 1)]


def add_output(
    calls: ScriptCalls, call: tuple[bytes, bytes], run_id: str, fence: int, bodies: Sequence[bytes], keep: int
) -> int:
    """Add items to a run's output, and return the number of the newest. `call` is its token, and the clock."""
    arguments = (*call, b"%d" % fence, number(max(keep, 1)), *bodies)
    reply = existing(run_id, calls.run(scripts.ADD_OUTPUT, run_id, *arguments))
    if reply[0] == 2:
        refuse_old_fence(head_of(run_id, reply[3], reply[2]), fence, float(reply[1]))
        raise changed_while_read(run_id)
    return int(reply[1])


def read_output(calls: ScriptCalls, run_id: str, after: int, limit: int | None) -> list[Output]:
    """The items that are numbered above `after`."""
    arguments = (number(after), number(limit), text(run_id))
    _, first, bodies = existing(run_id, calls.run(scripts.OUTPUT, run_id, *arguments))
    return [Output(place, body) for place, body in enumerate(bodies, int(first))]


def _post(run_id: str, place: int, value: bytes) -> Post:
    """The post that is kept as "<bytes of the key>:<key><body>"."""
    size, _, rest = value.partition(b":")
    try:
        length = int(size)
        return Post(place, rest[:length].decode(), rest[length:])
    except ValueError as error:
        raise DamagedRecord(run_id, 0, f"its post {place} is missing, or isn't what was written") from error


def put_document(calls: ScriptCalls, token: bytes, document: Document) -> int | None:
    """Write a document that is still at its version, and return its new one, else None."""
    return _change(calls, token, document, b"0")


def delete_document(calls: ScriptCalls, token: bytes, name: str, version: int) -> bool:
    """Delete a document that is still at `version`; False if it isn't."""
    return _change(calls, token, Document(name, version, b""), b"1") is not None


def find_document(calls: ScriptCalls, name: str) -> Document | None:
    """The document of this name, if there is one. Raises `DamagedDocument`."""
    (value,) = calls.all([(b"HGET", _keys(calls)[0], b"d:" + text(name))])
    return None if value is None else _document(name, value)


class DocumentList(NamedTuple):
    """Documents that can be read, and what is wrong with the others."""

    documents: list[Document]
    damaged: list[DamagedDocument]


def list_documents(
    calls: ScriptCalls, clock: bytes, prefix: str, due: bool, limit: int | None
) -> DocumentList:
    """The documents whose names begin with `prefix`: by name, or those that are due, by due time."""
    arguments = (clock, text(prefix), flag(due), number(limit))
    command = _command(calls, scripts.LIST_DOCUMENTS, b"", *arguments)
    (answer,) = calls.all([command])
    found = DocumentList([], [])
    for name, value in zip(answer[::2], answer[1::2], strict=True):
        try:
            found.documents.append(_document(name.decode(), value))
        except DamagedDocument as damage:
            found.damaged.append(damage)
    if limit is not None and len(found.documents) < limit == len(answer) // 2:
        # Those at the front must not hide the ones behind them.
        documents, damaged = list_documents(calls, clock, prefix, due, limit * 2)
        return DocumentList(documents[:limit], damaged)
    return found


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
        # What `change_document.lua` takes for its version.
        digits = _LEADING_DIGITS.match(value)
        at = UNREADABLE if digits is None else int(digits[0])
        raise DamagedDocument(name, at, "it isn't what was written") from error
