"""Large bodies in fewer bytes: one zstd frame each, at the fastest of the ordinary levels.

zstd comes with Python from 3.14 on, before with `backports.zstd`. It is imported at the first large body,
so that a program without any doesn't wait for it. Where it is missing, bodies are stored as they are.
"""

from __future__ import annotations

import sys
import threading
from functools import cache
from types import ModuleType

LEAST = 16 * 1024
"""From this many bytes on compression is tried. Below, what it costs in time weighs more than what it saves."""

LEVEL = 1


def compressed(body: bytes) -> bytes | None:
    """The body in clearly fewer bytes, or None if it has to be stored as it is."""
    zstd = _zstd()
    if zstd is None:
        return None
    try:
        compressor = _OF_THREAD.compressor
    except AttributeError:
        compressor = _OF_THREAD.compressor = zstd.ZstdCompressor(level=LEVEL)
    frame: bytes = compressor.compress(body, compressor.FLUSH_FRAME)
    return frame if 10 * len(frame) <= 9 * len(body) else None


def decompressed(frame: bytes) -> bytes:
    """What was compressed. Raises ValueError if this is no frame, ImportError if there is no zstd."""
    zstd = _zstd()
    if zstd is None:
        raise ImportError(_WAY_OUT)
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


# To make a compressor takes longer than to compress a few kilobytes, and threads mustn't wait for each other's.
_OF_THREAD = threading.local()

_WAY_OUT = (
    "use a Python that has the module compression.zstd"
    if sys.version_info >= (3, 14)
    else "install backports.zstd"
)
