"""Whether SQLite's write-ahead log has commits that SQLite itself passes over.

SQLite reads its log up to the first frame whose checksum is wrong and takes that for the end: after a power loss it
is. If a byte in the middle was damaged instead, all later commits are gone, and nothing says so. Until the next write
it can still be seen: there are frames of the same generation after the place where SQLite stopped.
"""

from __future__ import annotations

import sys
from pathlib import Path
from struct import Struct, unpack
from typing import BinaryIO

HEADER, FRAME = 32, 24
_SALTS = Struct(">II")


def commits_passed_over(path: Path) -> int:
    """How many commits of the database at `path` come after the end of its log as SQLite sees it.

    To be asked while a connection is open. A commit that another process is about to make may be counted.
    """
    try:
        with open(f"{path}-wal", "rb") as log, open(f"{path}-shm", "rb") as index:
            header, known, size = log.read(HEADER), index.read(20), log.seek(0, 2)
            if len(header) < HEADER or len(known) < 20:
                return 0
            if not _is_sound(header):
                return _commits(log, None, HEADER, _step(header, size), size)
            end = int.from_bytes(known[16:20], sys.byteorder)
            step = FRAME + int.from_bytes(header[8:12], "big")
            return _commits(log, _SALTS.unpack_from(header, 16), HEADER + end * step, step, size)
    except OSError:
        return 0


def _commits(log: BinaryIO, salts: tuple[int, int] | None, at: int, step: int, size: int) -> int:
    count = 0
    while at + step <= size:
        log.seek(at)
        frame = log.read(FRAME)
        one, other = _SALTS.unpack_from(frame, 8)
        ours = salts is None or one == salts[0] or other == salts[1]
        count += ours and any(frame[4:8])
        at += step
    return count


def _is_sound(header: bytes) -> bool:
    """Whether the log's header is what was written: the last two of its numbers are a checksum of the others."""
    order = ">" if header[3] & 1 else "<"
    one = other = 0
    for first, second in zip(*[iter(unpack(f"{order}6I", header[:24]))] * 2, strict=True):
        one = (one + first + other) & 0xFFFFFFFF
        other = (other + second + one) & 0xFFFFFFFF
    return (one, other) == unpack(">II", header[24:32])


def _step(header: bytes, size: int) -> int:
    """The length of a frame, where the header that says so can't be believed."""
    told = int.from_bytes(header[8:12], "big")
    return FRAME + (told if told in _PAGES and (size - HEADER) % (FRAME + told) == 0 else 4096)


_PAGES = tuple(1 << power for power in range(9, 17))
