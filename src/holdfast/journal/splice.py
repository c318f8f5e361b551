"""Putting encoded values together without decoding them.

A short MessagePack array is one byte that counts, and then its items. So what was encoded by itself, to be
refused by itself, needn't be encoded again to become part of a record.
"""

from __future__ import annotations

from collections.abc import Sequence

_SHORT_ARRAY = 0x90
_MOST = 15


def joined(items: Sequence[bytes]) -> bytes:
    """The encoding of a list of at most 15 items, from the encodings of the items."""
    assert len(items) <= _MOST
    return bytes((_SHORT_ARRAY + len(items),)) + b"".join(items)


def extended(array: bytes, item: bytes) -> bytes:
    """The encoding of a list of less than 15 items with one more after them."""
    assert _SHORT_ARRAY <= array[0] < _SHORT_ARRAY + _MOST
    return b"%c%b%b" % (array[0] + 1, array[1:], item)
