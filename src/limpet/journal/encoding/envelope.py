"""What surrounds the body of every stored record: its format, and a checksum that ties it to its place.

    byte 0      format version
    byte 1      flags; which of them are known depends on the version. Bit 0: the body is compressed;
                no other is known. (Encryption is around the whole of it: `stores/composite/encrypted.py`)
    bytes 2-5   CRC-32 over run id, sequence number, version, flags and body as stored, big-endian
    bytes 6-    the body

These six bytes mean the same in every version, so that a damaged record is told from a newer one: if
the checksum is wrong nothing else is believed, not even the version. As the run id and the sequence
number are in the checksum but not in the record, a record that ended up in another place is damage too.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from zlib import crc32

from limpet.errors import DamagedRecord, UnsupportedFormat
from limpet.journal.encoding.compression import LEAST, compressed, decompressed

VERSION = 1
"""The format that records are written in. Older ones can be read: see `_READERS`."""

COMPRESSED = 0b0000_0001
"""The flag of a record whose body is a zstd frame."""


class Envelope:
    """Seals the records of one run, and opens them again.

    `open` gives back what `close` was given, for the same run and sequence number; it never gives
    anything else.
    """

    __slots__ = ("_seed", "run_id")

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._seed = crc32(run_id.encode("utf-8", "surrogatepass"))

    def close(self, sequence: int, body: bytes) -> bytes:
        """The record to store as number `sequence` of the run; a large body takes fewer bytes if it can."""
        flags = 0
        if len(body) >= LEAST and (frame := compressed(body)) is not None:
            flags, body = COMPRESSED, frame
        checksum = crc32(body, crc32(_PLACE.pack(sequence, VERSION, flags), self._seed))
        return _HEAD.pack(VERSION, flags, checksum) + body

    def open(self, sequence: int, data: bytes) -> bytes:
        """The body of record number `sequence`.

        Raises DamagedRecord if these aren't the bytes that were stored as that record, and
        UnsupportedFormat if they are, but in a format of a newer Limpet, or compressed and there is
        nothing to decompress them with.
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


def _read_1(flags: int, body: bytes) -> bytes:
    return decompressed(body) if flags & COMPRESSED else body


_HEAD = Struct(">BBI")
_PLACE = Struct(">QBB")
_READERS: dict[int, Callable[[int, bytes], bytes]] = {1: _read_1}
_FLAGS = {1: COMPRESSED}
