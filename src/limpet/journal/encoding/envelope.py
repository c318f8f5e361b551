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

A few kilobytes of zstd can unpack to gigabytes. So no frame is unpacked further than a limit, `max_unpacked()`, and a
body above the limit isn't compressed: what is written can be read.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from struct import Struct
from types import ModuleType
from zlib import crc32

from limpet.defaults import MAX_UNPACKED
from limpet.errors import DamagedRecord, KeyMissing, UnsupportedFormat, UsageError

VERSION = 1
"""The format that records are written in. Older formats can be read: see `_READERS`."""

COMPRESSED = 0b0000_0001
"""The flag of a record whose body is a zstd frame."""

ENCRYPTED = 0xC1
"""The first byte of all that an encrypted store writes. No value and no record begins with it."""

MIN_COMPRESSED_SIZE = 16 * 1024
"""The size from which a body is compressed. Below it, compression costs more time than it saves bytes."""

COMPRESSION_LEVEL = 1

UNPACKED_VARIABLE = "LIMPET_MAX_UNPACKED"
"""The environment variable that replaces the limits on what compressed records unpack to, in bytes."""


def max_unpacked(default: int = MAX_UNPACKED) -> int:
    """How many bytes may be unpacked: what the environment says, or a default. Raises `UsageError`."""
    given = os.environ.get(UNPACKED_VARIABLE, "").strip()
    if not given:
        return default
    if not given.isascii() or not given.isdecimal() or len(given) > 18:
        raise UsageError(
            f"{UNPACKED_VARIABLE} is a number of bytes, such as {4 * MAX_UNPACKED}, not {given!r}"
        )
    return int(given)


def key_id_of(data: bytes) -> str | None:
    """The id of the key that something stored was encrypted with; None if it isn't encrypted."""
    if len(data) < 2 or data[0] != ENCRYPTED:
        return None
    header = data[: 2 + data[1] + 8]
    if crc32(header[:-4]) != int.from_bytes(header[-4:], "big"):
        return None
    return header[2:-8].decode("utf-8", "replace")


def no_key(what: str, key_id: str) -> KeyMissing:
    """The error for encrypted data in a store that was opened without a key."""
    missing = KeyMissing(
        f"{what} is encrypted with the key {key_id!r}, and the store was opened without a key"
    )
    return missing.with_advice("give it as encryption=…, or in LIMPET_ENCRYPTION_KEY")


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

    def open(self, sequence: int, data: bytes, limit: int | None = None) -> bytes:
        """The body of record number `sequence`.

        Raises DamagedRecord if these aren't the bytes that were stored as that record, and KeyMissing if they are
        encrypted. Raises UnsupportedFormat if
        a newer Limpet wrote them, if they are compressed and zstd is missing, or if they unpack to more than `limit`
        bytes, by default `max_unpacked()`.
        """
        if len(data) < _HEAD.size:
            raise DamagedRecord(
                self.run_id, sequence, f"it has {len(data)} bytes and at least {_HEAD.size} were written"
            )
        version, flags, checksum = _HEAD.unpack_from(data)
        body = data[_HEAD.size :]
        if crc32(body, crc32(_PLACE.pack(sequence, version, flags), self._seed)) != checksum:
            key_id = key_id_of(data)
            if key_id is not None:
                raise no_key(f"record {sequence} of run {self.run_id!r}", key_id)
            raise DamagedRecord(self.run_id, sequence, "its checksum doesn't match its contents and place")
        read = _READERS.get(version)
        if read is None:
            raise self._newer(sequence, f"format version {version}")
        if flags & ~_FLAGS[version]:
            raise self._newer(sequence, f"the unknown flags {flags:#04x}")
        try:
            return read(flags, body, limit)
        except _TooMuch as excess:
            refused = UnsupportedFormat(
                f"record {sequence} of run {self.run_id!r} unpacks to more than {excess.limit:,} bytes"
            )
            raise refused.with_advice(f"if you trust it, set {UNPACKED_VARIABLE} to more bytes") from None
        except UsageError:
            raise
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


class _TooMuch(Exception):
    """A frame unpacks to more than a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__()


def _read_version_1(flags: int, body: bytes, limit: int | None) -> bytes:
    if flags & COMPRESSED:
        return _decompressed(body, max_unpacked() if limit is None else limit)
    return body


def _compressed(body: bytes) -> bytes | None:
    """The body in at least a tenth fewer bytes, or None if it has to be stored uncompressed."""
    zstd = _zstd()
    if zstd is None or len(body) > max_unpacked():
        return None
    try:
        compressor = _thread_local.compressor
    except AttributeError:
        compressor = _thread_local.compressor = zstd.ZstdCompressor(level=COMPRESSION_LEVEL)
    frame: bytes = compressor.compress(body, compressor.FLUSH_FRAME)
    return frame if 10 * len(frame) <= 9 * len(body) else None


def _decompressed(frame: bytes, limit: int) -> bytes:
    """The body in a frame of at most `limit` bytes. Raises `_TooMuch` for a larger one, ValueError if this isn't a
    single frame, ImportError if zstd is missing.
    """
    zstd = _zstd()
    if zstd is None:
        raise ImportError(_HOW_TO_GET_ZSTD)
    decompressor = zstd.ZstdDecompressor()
    try:
        # One byte more than allowed shows whether the frame ends at the limit or continues.
        body: bytes = decompressor.decompress(frame, max_length=limit + 1)
    except zstd.ZstdError as problem:
        raise ValueError(f"it can't be decompressed: {problem}") from problem
    if len(body) > limit:
        raise _TooMuch(limit)
    if not decompressor.eof or decompressor.unused_data:
        raise ValueError("it can't be decompressed: it isn't one whole frame")
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
_READERS: dict[int, Callable[[int, bytes, int | None], bytes]] = {1: _read_version_1}
_FLAGS = {1: COMPRESSED}
