"""A run as one file, to be carried from any store to any other.

    bytes 0-11    "limpet-run"
    byte 12       format version
    bytes 13-20   how many bytes the contents have, big-endian
    bytes 21-52   SHA-256 over bytes 0-20 and the contents
    bytes 53-     the contents

These 53 bytes mean the same in every version. The contents are one encoded dict: `run_id`, `graph`, `status`, `tags`,
`parent`, `note`, when the run was `created` and `updated`, the version of `limpet` that wrote the file, `records`,
and `priority`, which older files don't have. When the run was due isn't told: nobody has asked for it where it goes,
so it waits there until it is resumed. The records are as a store would have them, sealed for the run's id and
numbered from 1, the first of them whole. So each has its own format version and checksum, and whatever reads old
records reads old files.
"""

from __future__ import annotations

from hashlib import sha256
from struct import Struct
from typing import Any, NamedTuple

from limpet.errors import DamagedRecord, StoreError, UnsupportedFormat
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.encoding.envelope import Envelope
from limpet.journal.progress import BUNDLE, SNAPSHOT
from limpet.journal.reader import opened, read_progress
from limpet.journal.store import STATUSES, NewRun, RunHead, Tail
from limpet.version import VERSION as LIMPET

VERSION = 1
"""The format that files are written in."""


class ExportedRun(NamedTuple):
    """A run, in no store: what was known of it, and its records, sealed for `run_id` and numbered from 1."""

    run_id: str
    graph: str
    status: str
    tags: list[str]
    parent: str | None
    note: bytes
    created: float
    updated: float
    limpet: str
    records: list[bytes]
    priority: int = 0


def parcel_of(tail: Tail) -> ExportedRun:
    """All that a store has of a run. Raises `DamagedRecord`: what is damaged isn't carried any further."""
    head = tail.head
    bodies = _bodies(tail) if head.snapshot else []
    seal = Envelope(head.run_id)
    return ExportedRun(
        head.run_id, head.graph, head.status, list(head.tags), head.parent, head.note, head.created, head.updated,
        LIMPET, [seal.close(number, body) for number, body in enumerate(bodies, 1)],
        head.priority,
    )  # fmt: skip


def packed(parcel: ExportedRun) -> bytes:
    """The file."""
    contents = encode(parcel._asdict())
    start = _START.pack(_MAGIC, VERSION, len(contents))
    return start + sha256(start + contents).digest() + contents


def unpacked(data: bytes, where: str) -> ExportedRun:
    """What is in a file; `where` names it. Raises `StoreError` if it isn't what was written, `UnsupportedFormat` if
    a newer Limpet wrote it.
    """
    if not data.startswith(_MAGIC):
        raise StoreError(f"{where} is no exported run; Runs(store).export() writes such files")
    contents = data[_SIZE:]
    if len(data) < _SIZE or len(contents) != (length := _START.unpack_from(data)[2]):
        wanted = f"{length + _SIZE}" if len(data) >= _SIZE else f"at least {_SIZE}"
        raise _damaged(where, f"it has {len(data)} bytes and {wanted} were written")
    if sha256(data[: _START.size] + contents).digest() != data[_START.size : _SIZE]:
        raise _damaged(where, "its checksum doesn't match its contents")
    version = _START.unpack_from(data)[1]
    if version != VERSION:
        raise UnsupportedFormat(
            f"{where} has format version {version}: a newer Limpet wrote it; upgrade to read it"
        )
    try:
        return _checked(decode(contents))
    except (LookupError, TypeError, ValueError) as problem:
        raise _damaged(where, f"its contents make no sense: {problem}") from problem


def new_run_of(parcel: ExportedRun, run_id: str) -> NewRun:
    """The run to be created in another store, under this id. Raises `DamagedRecord` if it couldn't be read there."""
    old, new = Envelope(parcel.run_id), Envelope(run_id)
    records = []
    for number, data in enumerate(parcel.records, 1):
        body = old.open(number, data)
        records.append(new.close(number, body if run_id == parcel.run_id else _renamed(body, run_id)))
    if records:
        count = len(records)
        head = RunHead(run_id, parcel.graph, parcel.status, count, 1, 1, parcel.created, parcel.updated)
        if read_progress(Tail(head, 1, records)).run_id != run_id:
            raise DamagedRecord(run_id, 1, "it is that of another run")
    return NewRun(
        run_id, parcel.graph, records, parcel.status, tags=tuple(parcel.tags), parent=parcel.parent, note=parcel.note,
        priority=parcel.priority,
    )  # fmt: skip


def _bodies(tail: Tail) -> list[bytes]:
    """The bodies of the records from the first whole one on."""
    whole = next((number for number, record in opened(tail) if record[0] == SNAPSHOT), tail.first)
    records = tail.records[whole - tail.first :]
    read_progress(Tail(tail.head, whole, records))
    seal = Envelope(tail.head.run_id)
    return [seal.open(number, data) for number, data in enumerate(records, whole)]


def _renamed(body: bytes, run_id: str) -> bytes:
    """The same record of a run of another id. Whole records name their run."""
    record = decode(body)
    for each in record[1:] if record[0] == BUNDLE else [record]:
        if each[0] == SNAPSHOT:
            each[4]["run_id"] = run_id
    return encode(record)


def _checked(contents: Any) -> ExportedRun:
    parcel = ExportedRun(**{name: contents[name] for name in ExportedRun._fields if name in contents})
    texts = [parcel.run_id, parcel.graph, parcel.limpet, *parcel.tags, parcel.parent or ""]
    if not all(type(text) is str for text in texts) or parcel.status not in STATUSES:
        raise ValueError("what it says of the run isn't text, or no status")
    if not all(type(data) is bytes for data in (parcel.note, *parcel.records)):
        raise ValueError("its records aren't bytes")
    if type(parcel.priority) is not int:
        raise ValueError("its priority isn't a number")
    return parcel


def _damaged(where: str, reason: str) -> StoreError:
    return StoreError(f"{where} is damaged: {reason}. Nothing was imported; export the run again")


_MAGIC = b"limpet-run"
_START = Struct(">12sBQ")
_SIZE = _START.size + 32
