"""What the files of a run look like inside: a head, and frames one after the other.

    frame   length u32 · CRC-32 of the body u32 · number of its first record u64 · how many u32 · kind u8 ·
            CRC-32 of this header u32 · body
    PLAIN   the body is one record
    MIXED   the body is [records, head]: several records, or the head as it is from here on, or both
    head    "LMF1" · CRC-32 · [run id, head, where the journal is]

All numbers are big-endian. The checksums begin with the run's id and the name of its journal file, so that a frame
or file that ended up in another place is damage too. `frames` finds out how far a journal file is good: what a
killed writer left half-written at its end is told from damage, which may be anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

from limpet.journal.encoding.codec import decode, encode
from limpet.journal.store import RUNNING, RunHead

PLAIN, MIXED = 0, 1
LARGEST = 0xFFFF_0000
"""Bytes of the largest frame's body."""


class Frame(NamedTuple):
    """One commit: so many `records` from number `first` on, in the bytes from `start` to `end`."""

    kind: int
    first: int
    records: int
    start: int
    end: int
    checksum: int

    def body(self, data: bytes, base: int) -> bytes:
        """Its body, out of the bytes from `base` on. Raises `ValueError` if it isn't what was written."""
        body = data[self.start - base : self.end - base]
        if crc32(body) != self.checksum:
            raise ValueError("its checksum doesn't match its contents")
        return body


class Torn(Exception):
    """From `offset` on a file holds what a writer left that didn't come to an end."""

    def __init__(self, offset: int) -> None:
        self.offset = offset


class Place(NamedTuple):
    """Where a run's journal is, as of a head.

    It is in the file named by `token`, and `end` is how far the head knows it: what follows is newer. Records up
    to `dropped` don't count any more; the frame that holds the next begins at `begin`, that of the newest whole
    record at `whole`.
    """

    token: str
    end: int = 0
    dropped: int = 0
    begin: int = 0
    whole: int = 0


def seed_of(run_id: str, token: str) -> int:
    """What the checksums of a run's frames begin with."""
    return crc32(f"{token} {run_id}".encode("utf-8", "surrogatepass"))


def frame(seed: int, first: int, records: list[bytes], head: RunHead | None) -> bytes:
    """The bytes of a commit. Raises `ValueError` if there are more of them than a frame can have."""
    if head is None and len(records) == 1:
        kind, body = PLAIN, records[0]
    else:
        kind, body = MIXED, encode([list(map(bytes, records)), None if head is None else _head_data(head)])
    if len(body) > LARGEST:
        raise ValueError(f"{len(body):,} bytes are more than a frame can hold ({LARGEST:,})")
    fields = _FIELDS.pack(len(body), crc32(body), first, len(records), kind)
    return b"".join((fields, _CHECK.pack(crc32(fields, seed)), body))


def records_of(kind: int, body: bytes) -> list[bytes]:
    """The records in a frame's body."""
    return [body] if kind == PLAIN else decode(body)[0]


def head_of(body: bytes, run_id: str) -> RunHead | None:
    """The head in the body of a MIXED frame, if it has one."""
    data = decode(body)[1]
    return None if data is None else _head_from(run_id, data)


def frames(data: bytes, base: int, expected: int, seed: int) -> Iterator[Frame]:
    """The frames in the bytes of a journal file from `base` to its end, the first of them for record `expected`.

    Raises `Torn` where the rest is what a writer left, and `ValueError` for damage.
    """
    at, size = 0, len(data)
    while at < size:
        if size - at < HEADER:
            raise Torn(base + at)
        fields = data[at : at + _FIELDS.size]
        (check,) = _CHECK.unpack_from(data, at + _FIELDS.size)
        length, checksum, first, count, kind = _FIELDS.unpack(fields)
        if crc32(fields, seed) != check:
            if not any(data[at:]):
                raise Torn(base + at)
            raise ValueError("the header of its frame is damaged, so that what follows can't be found")
        start = at + HEADER
        if start + length > size:
            raise Torn(base + at)
        if first != expected:
            raise ValueError(f"a frame for record {first} stands in its place")
        if start + length == size and _is_unwritten(data[start:], checksum, base + start):
            raise Torn(base + at)
        expected += count
        yield Frame(kind, first, count, base + start, base + start + length, checksum)
        at = start + length


def head_file(head: RunHead, place: Place) -> bytes:
    """The content of a head file."""
    data = encode([head.run_id, _head_data(head), list(place)])
    return _HEAD.pack(MARK, crc32(data)) + data


def read_head(content: bytes) -> tuple[RunHead, Place]:
    """What a head file says. Raises `ValueError` if it isn't what was written."""
    if len(content) < _HEAD.size:
        raise ValueError("its head file is cut off")
    mark, checksum = _HEAD.unpack_from(content)
    data = content[_HEAD.size :]
    if mark != MARK or crc32(data) != checksum:
        raise ValueError("the checksum of its head file doesn't match")
    run_id, head, place = decode(data)
    return _head_from(run_id, head), Place(*place)


def _is_unwritten(body: bytes, checksum: int, offset: int) -> bool:
    """Whether a body at the end of a file has blocks that never reached the disk: those read as zeros."""
    if crc32(body) == checksum:
        return False
    begin = -offset % BLOCK
    return any(not any(body[at : at + BLOCK]) for at in range(begin, len(body) - BLOCK + 1, BLOCK))


def _head_data(head: RunHead) -> list[Any]:
    return [*head[1:10], list(head.tags), *head[11:]]


def _head_from(run_id: str, data: list[Any]) -> RunHead:
    if len(data) == _BEFORE_DUE:
        data = [*data, 0.0 if data[_STATUS] == RUNNING else None, 0]
    return RunHead._make([run_id, *data[:9], tuple(data[9]), *data[10:]])


MARK = b"LMF1"
BLOCK = 512
_STATUS, _BEFORE_DUE = RunHead._fields.index("status") - 1, RunHead._fields.index("due") - 1
_FIELDS, _CHECK, _HEAD = Struct(">IIQIB"), Struct(">I"), Struct(">4sI")
HEADER = _FIELDS.size + _CHECK.size
