"""The envelope of every stored record: its format version, and a checksum that ties it to its place.

    byte 0      format version
    byte 1      flags; the version says which flags exist. Bit 0: the body is compressed.
                No other flag exists. (Encryption wraps the whole envelope: `stores/composite/encrypted.py`)
    bytes 2-5   CRC-32 over run id, sequence number, version, flags and body as stored, big-endian
    bytes 6-    the body

These six bytes mean the same in every version, so damage can be distinguished from a newer format: if
the checksum is wrong, nothing else is trusted, not even the version. The run id and the sequence
number are in the checksum but not in the record, so a record in the wrong place is damage too.

A body from `MIN_COMPRESSED_SIZE` bytes on is compressed if that saves at least a tenth, as one zstd frame at the
fastest of the ordinary levels. zstd comes with Python from 3.14 on, and with `backports.zstd` before. It is imported
for the first large body, so that a program without any doesn't wait for it. Where it is missing, bodies are stored
uncompressed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import cache
from struct import Struct
from types import ModuleType
from zlib import crc32

from limpet.errors import DamagedRecord, UnsupportedFormat

VERSION = 1
"""The format that records are written in. Older formats can be read: see `_READERS`."""

COMPRESSED = 0b0000_0001
"""The flag of a record whose body is a zstd frame."""

MIN_COMPRESSED_SIZE = 16 * 1024
"""The size from which a body is compressed. Below it, compression costs more time than it saves bytes."""

COMPRESSION_LEVEL = 1


class Envelope:
    """Closes and opens the records of one run.

    For the same run and sequence number, `open` returns exactly the body that `close` was given, or raises.
    """

    __slots__ = ("_seed", "run_id")

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._seed = crc32(run_id.encode("utf-8", "surrogatepass"))

    def close(self, sequence: int, body: bytes) -> bytes:
        """The record to store as number `sequence` of the run. A large body is compressed if that saves bytes."""
        flags = 0
        if len(body) >= MIN_COMPRESSED_SIZE and (frame := _compressed(body)) is not None:
            flags = COMPRESSED
            body = frame
        checksum = crc32(body, crc32(_PLACE.pack(sequence, VERSION, flags), self._seed))
        return _HEAD.pack(VERSION, flags, checksum) + body

    def open(self, sequence: int, data: bytes) -> bytes:
        """The body of record number `sequence`.

        Raises DamagedRecord if these aren't the bytes that were stored as that record. Raises UnsupportedFormat if
        a newer Limpet wrote them, or if they are compressed and zstd is missing.
        """
        if len(data) < _HEAD.size:
            raise DamagedRecord(
                self.run_id, sequence, f"it has {len(data)} bytes and at least {_HEAD.size} were written"
            )
        version, flags, checksum = _HEAD.unpack_from(data)
        body = data[_HEAD.size :]
        if crc32(body, crc32(_PLACE.pack(sequence, version, flags), self._seed)) != checksum:
            raise DamagedRecord(self.run_id, sequence, "its checksum doesn't match its contents and place")
        read = _READERS.get(version)
        if read is None:
            raise self._newer(sequence, f"format version {version}")
        if flags & ~_FLAGS[version]:
            raise self._newer(sequence, f"the unknown flags {flags:#04x}")
        try:
            return read(flags, body)
        except ValueError as problem:
            raise DamagedRecord(self.run_id, sequence, str(problem)) from problem
        except ImportError as missing:
            raise UnsupportedFormat(
                f"record {sequence} of run {self.run_id!r} is compressed, and zstd is missing here: {missing}"
            ) from missing

    def _newer(self, sequence: int, what: str) -> UnsupportedFormat:
        return UnsupportedFormat(
            f"record {sequence} of run {self.run_id!r} has {what}: a newer Limpet wrote it; "
            f"upgrade to read it (this one reads up to version {VERSION})"
        )


def _read_version_1(flags: int, body: bytes) -> bytes:
    if flags & COMPRESSED:
        return _decompressed(body)
    return body


def _compressed(body: bytes) -> bytes | None:
    """The body in at least a tenth fewer bytes, or None if it has to be stored uncompressed."""
    zstd = _zstd()
    if zstd is None:
        return None
    try:
        compressor = _thread_local.compressor
    except AttributeError:
        compressor = _thread_local.compressor = zstd.ZstdCompressor(level=COMPRESSION_LEVEL)
    frame: bytes = compressor.compress(body, compressor.FLUSH_FRAME)
    return frame if 10 * len(frame) <= 9 * len(body) else None


def _decompressed(frame: bytes) -> bytes:
    """The body in a frame. Raises ValueError if this isn't a frame, ImportError if zstd is missing."""
    zstd = _zstd()
    if zstd is None:
        raise ImportError(_HOW_TO_GET_ZSTD)
    try:
        body: bytes = zstd.decompress(frame)
    except zstd.ZstdError as problem:
        raise ValueError(f"it can't be decompressed: {problem}") from problem
    return body


@cache
def _zstd() -> ModuleType | None:
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        return None
    return zstd


# Making a compressor takes longer than compressing a few kilobytes, so each thread keeps one. Threads don't share
# it: they would wait for each other.
_thread_local = threading.local()

if sys.version_info >= (3, 14):
    _HOW_TO_GET_ZSTD = "use a Python that has the module compression.zstd"
else:
    _HOW_TO_GET_ZSTD = "install backports.zstd"

_HEAD = Struct(">BBI")
_PLACE = Struct(">QBB")
_READERS: dict[int, Callable[[int, bytes], bytes]] = {1: _read_version_1}
_FLAGS = {1: COMPRESSED}
