"""The file formats of a run: a head file, and a journal file of frames one after the other.

    frame   length u32 · CRC-32 of the body u32 · number of its first record u64 · how many u32 · kind u8 ·
            CRC-32 of this header u32 · body
    PLAIN   the body is one record
    MIXED   the body is [records, head]: several records, or the head as it is from here on, or both
    head    "LMF1" · CRC-32 · [run id, head, where the journal is]

All numbers are big-endian. A frame is one commit: it counts when all of it is in the file, and not at all before. The
checksum of a header is seeded with the run's id and the name of its journal file, so a frame that ended up in another
file is damage too.

A writer that is killed, or a machine that loses power, leaves an *unfinished* frame at the end of the file: one that
is cut short, or that has blocks of zeros where the disk hadn't written yet, its header among them. Its commit was
never acknowledged, so it is cut off. Anything else that doesn't match its checksum is *damage*: its commit may have
been acknowledged, so it is reported and never removed. `scan_frames` distinguishes the two: an unfinished frame has
an unwritten block and no frame after it, since a writer flushes a frame before it writes the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

from limpet.defaults import QUEUE
from limpet.errors import LimpetError, TooLarge
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.store import COMPLETED, RUNNING, RunHead

PLAIN = 0
MIXED = 1
MAX_BODY_SIZE = 0xFFFF_0000
HEAD_MARK = b"LMF1"
BLOCK_SIZE = 512
"""What a disk writes whole or not at all."""

_FIELDS = Struct(">IIQIB")
_CHECKSUM = Struct(">I")
_HEAD_PREFIX = Struct(">4sI")
HEADER_SIZE = _FIELDS.size + _CHECKSUM.size
_LIKE_A_HEADER = re.compile(rb"(?=.{8}\0\0\0.{5}\0.{3}[\0\1].{4})", re.DOTALL)
"""Where a frame may begin: a header has a kind, no number of 2 to the 40th, and fewer than 2 to the 24th records."""
_FIRST_RECORD = slice(8, 16)
"""Where in a frame's header the number of its first record is."""


class Frame(NamedTuple):
    """One commit: `record_count` records from number `first` on, with its body in the bytes from `start` to `end`."""

    kind: int
    first: int
    record_count: int
    start: int
    end: int
    checksum: int

    @property
    def offset(self) -> int:
        """Where in the file the frame begins, with its header."""
        return self.start - HEADER_SIZE

    def body(self, data: bytes, base: int) -> bytes:
        """Its body, from `data`, which begins at `base` in the file. Raises `ValueError` if it was changed."""
        body = data[self.start - base : self.end - base]
        if crc32(body) != self.checksum:
            raise ValueError("its checksum doesn't match its contents")
        return body


class UnfinishedFrame(Exception):
    """From `offset` on, the file holds a frame that its writer didn't finish."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"it is cut off at byte {offset:,}")
        self.offset = offset


class JournalPlace(NamedTuple):
    """Where a run's journal is, as of its head file.

    `token` is part of the journal file's name, and `end` is how much of the file the head covers: frames after it are
    newer than the head. Records up to number `dropped` were pruned. The frame with the first record that is left
    begins at `oldest_frame`, that with the newest whole record at `snapshot_frame`. `inbox` is part of the name of
    the file with the run's posts; it is empty until the first one.
    """

    token: str
    end: int = 0
    dropped: int = 0
    oldest_frame: int = 0
    snapshot_frame: int = 0
    inbox: str = ""


def checksum_seed(run_id: str, token: str) -> int:
    """What the header checksums of a run's frames start from."""
    return crc32(f"{token} {run_id}".encode("utf-8", "surrogatepass"))


def encode_frame(seed: int, first: int, records: list[bytes], head: RunHead | None) -> bytes:
    """The bytes of a commit. Raises `TooLarge` if they are more than a frame can hold."""
    if head is None and len(records) == 1:
        kind = PLAIN
        body = records[0]
    else:
        kind = MIXED
        head_fields = None if head is None else _head_fields(head)
        body = encode([list(map(bytes, records)), head_fields])
    if len(body) > MAX_BODY_SIZE:
        raise TooLarge(f"{len(body):,} bytes are more than a frame can hold ({MAX_BODY_SIZE:,})")
    # The header has a checksum of its own, so that frames can be found without reading bodies. It is seeded, so that
    # a frame of another run, or of a journal file that was replaced, doesn't count here even if it is whole.
    fields = _FIELDS.pack(len(body), crc32(body), first, len(records), kind)
    return b"".join((fields, _CHECKSUM.pack(crc32(fields, seed)), body))


def encode_journal(seed: int, first: int, records: list[bytes], snapshot: int) -> tuple[bytes, int]:
    """A journal with a frame for each record, the first of which has number `first`.

    Also gives where the frame with record `snapshot` begins.
    """
    frames = []
    snapshot_frame = 0
    end = 0
    for number, record in enumerate(records, first):
        if number == snapshot:
            snapshot_frame = end
        frame = encode_frame(seed, number, [record], None)
        frames.append(frame)
        end += len(frame)
    return b"".join(frames), snapshot_frame


def records_in(kind: int, body: bytes) -> list[bytes]:
    """The records in a frame's body."""
    if kind == PLAIN:
        return [body]
    records: list[bytes] = decode(body)[0]
    return records


def head_in(body: bytes, run_id: str) -> RunHead | None:
    """The head in the body of a MIXED frame, if it has one."""
    fields = decode(body)[1]
    if fields is None:
        return None
    return _head_from(run_id, fields)


def first_record_in(data: bytes) -> int:
    """The number of the first record of the frame that `data` begins with. Not checked: `scan_frames` does that."""
    return int.from_bytes(data[_FIRST_RECORD], "big")


def scan_frames(data: bytes, base: int, expected: int, seed: int) -> Iterator[Frame]:
    """The frames in the bytes of a journal file from `base` to its end, the first of them for record `expected`.

    Checks headers, not bodies. Raises `UnfinishedFrame` where a writer left one, and `ValueError` for damage.
    """
    at = 0
    size = len(data)
    while at < size:
        if size - at < HEADER_SIZE:
            raise UnfinishedFrame(base + at)
        fields = data[at : at + _FIELDS.size]
        (header_checksum,) = _CHECKSUM.unpack_from(data, at + _FIELDS.size)
        length, checksum, first, count, kind = _FIELDS.unpack(fields)
        # Before anything else in the header is used: a wrong length would make any bytes the next frame, and one that
        # reaches beyond the end would make damage look unfinished, so that acknowledged commits were cut off.
        if crc32(fields, seed) != header_checksum:
            is_unwritten = _has_unwritten_block(data, at, at + HEADER_SIZE, base)
            if is_unwritten and not _has_frame_after(data, at, seed):
                raise UnfinishedFrame(base + at)
            raise ValueError("the header of its frame is damaged, so that what follows can't be found")
        start = at + HEADER_SIZE
        # The header is whole, so its length is right: the writer didn't get to the end of the body.
        if start + length > size:
            raise UnfinishedFrame(base + at)
        if first != expected:
            raise ValueError(f"a frame for record {first} stands in its place")
        # Only the last frame can be unfinished: a commit is acknowledged before the next one is written.
        is_broken = start + length == size and crc32(data[start:]) != checksum
        if is_broken and _has_unwritten_block(data, start, size, base):
            raise UnfinishedFrame(base + at)
        expected += count
        yield Frame(kind, first, count, base + start, base + start + length, checksum)
        at = start + length


def encode_head_file(head: RunHead, place: JournalPlace) -> bytes:
    """The content of a head file."""
    data = encode([head.run_id, _head_fields(head), list(place)])
    return _HEAD_PREFIX.pack(HEAD_MARK, crc32(data)) + data


def decode_head_file(content: bytes) -> tuple[RunHead, JournalPlace]:
    """The head and the place in a head file. Raises `ValueError` if the content isn't what was written."""
    if len(content) < _HEAD_PREFIX.size:
        raise ValueError("its head file is cut off")
    mark, checksum = _HEAD_PREFIX.unpack_from(content)
    data = content[_HEAD_PREFIX.size :]
    if mark != HEAD_MARK or crc32(data) != checksum:
        raise ValueError("the checksum of its head file doesn't match")
    run_id, fields, place = decode(data)
    return _head_from(run_id, fields), JournalPlace(*place)


def claimed_run_id(content: bytes) -> str | None:
    """The run id that a damaged head file seems to have, if it can be read at all."""
    try:
        run_id = decode(content[_HEAD_PREFIX.size :])[0]
    except (LimpetError, ValueError, TypeError, LookupError, RecursionError):
        return None
    return run_id if isinstance(run_id, str) else None


def _has_unwritten_block(data: bytes, start: int, stop: int, base: int) -> bool:
    """Whether a block with some of the bytes from `start` to `stop` never reached the disk: it reads as zeros.

    Of the first block, only what is behind `start` counts, since an earlier write may have filled the rest; and of
    the last one what the file has of it.
    """
    at = start
    while at < stop:
        next_block = at + BLOCK_SIZE - (base + at) % BLOCK_SIZE
        if not any(data[at:next_block]):
            return True
        at = next_block
    return False


def _has_frame_after(data: bytes, at: int, seed: int) -> bool:
    """Whether a frame begins anywhere behind `at`: a header is known by its checksum."""
    if not any(data[at:]):
        return False
    for found in _LIKE_A_HEADER.finditer(data, at + 1):
        fields = data[found.start() : found.start() + _FIELDS.size]
        (checksum,) = _CHECKSUM.unpack_from(data, found.start() + _FIELDS.size)
        if crc32(fields, seed) == checksum:
            return True
    return False


def _head_fields(head: RunHead) -> list[Any]:
    return [*head[1:10], list(head.tags), *head[11:]]


def _head_from(run_id: str, fields: list[Any]) -> RunHead:
    if len(fields) < len(RunHead._fields) - 1:
        fields = _earlier_fields(fields)
    return RunHead._make([run_id, *fields[:9], tuple(fields[9]), *fields[10:]])


def _earlier_fields(fields: list[Any]) -> list[Any]:
    """The fields of a head that an earlier version wrote, as they are now.

    The first one had no `due` and no `priority`. The first two had no posts, but a signal: always a request to
    cancel, which counts as a first post. None had a plan and a queue.
    """
    lane = ["", QUEUE]
    if len(fields) == _FIELDS_BEFORE_QUEUES:
        return [*fields, *lane]
    if len(fields) == _FIELDS_BEFORE_DUE:
        fields = [*fields, 0.0 if fields[_STATUS_FIELD] == RUNNING else None, 0]
    is_asked = fields[_SIGNAL_FIELD] is not None and fields[_STATUS_FIELD] != COMPLETED
    posted = int(is_asked)
    return [*fields[:_SIGNAL_FIELD], *fields[_SIGNAL_FIELD + 1 :], posted, 0, 0, "", "", "", *lane]


_STATUS_FIELD = RunHead._fields.index("status") - 1
_SIGNAL_FIELD = 11
_FIELDS_BEFORE_DUE = 14
_FIELDS_BEFORE_QUEUES = 21
