"""Putting encoded values together without decoding them.

A short MessagePack array is one byte that counts, and then its items. So what was encoded by itself, to be
refused by itself, needn't be encoded again to become part of a record.
"""

from __future__ import annotations

from collections.abc import Sequence

NO_ITEMS = b"\x90"
NO_ENTRIES = b"\x80"
"""The encodings of an empty list and an empty dict."""

_SHORT_ARRAY = 0x90
_MOST = 15
_HEADS = [bytes((_SHORT_ARRAY + count,)) for count in range(_MOST + 1)]


def joined(items: Sequence[bytes]) -> bytes:
    """The encoding of a list of at most 15 items, from the encodings of the items."""
    assert len(items) <= _MOST
    return _HEADS[len(items)] + b"".join(items)


def bundled(head: bytes, items: Sequence[bytes]) -> bytes:
    """The encoding of a list that starts with `head`, from the encodings of its other items, however many."""
    count = len(items) + 1
    return b"".join([b"\xdd", count.to_bytes(4, "big"), head, *items])


def extended(array: bytes, item: bytes) -> bytes:
    """The encoding of a list of less than 15 items with one more after them."""
    assert _SHORT_ARRAY <= array[0] < _SHORT_ARRAY + _MOST
    return _HEADS[array[0] - _SHORT_ARRAY + 1] + array[1:] + item
