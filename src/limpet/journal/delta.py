"""A delta: how one step changed the state, in as few bytes as possible.

There are five kinds of change: a key was set, a list under a key got items at its end, a dict under a key got
entries, a key was deleted, items of a list under a key were replaced. Applying the same deltas to the same state
gives the same state, whether the run is live or is restored from its journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limpet.journal.encoding.codec import encode

EMPTY_LIST = b"\x90"
EMPTY_DICT = b"\x80"
LIST_OF_FOUR = b"\x94"
LIST_OF_FIVE = b"\x95"
"""The encodings of an empty list and an empty dict, and how that of a list of four or five items begins."""


class Delta:
    """The changes of one step.

    `live` has whole values for the live state alone: a node may still hold a reference to the value there, so the
    live state gets a fresh one instead of growing the old one in place. It isn't stored. `replaces` has pairs of an
    index and the item that is there now, by key; the items that are appended come after that.
    """

    __slots__ = ("appends", "deletes", "live", "merges", "replaces", "sets")

    def __init__(
        self,
        sets: dict[str, Any] | None = None,
        appends: dict[str, list[Any]] | None = None,
        merges: dict[str, dict[Any, Any]] | None = None,
        deletes: list[str] | None = None,
        replaces: dict[str, list[list[Any]]] | None = None,
    ) -> None:
        self.sets = {} if sets is None else sets
        self.appends = {} if appends is None else appends
        self.merges = {} if merges is None else merges
        self.deletes = [] if deletes is None else deletes
        self.replaces = {} if replaces is None else replaces
        self.live: dict[str, Any] = {}

    def encode(self) -> bytes:
        """The bytes of the delta. Raises `UnstorableValue` with the path from the state's key on.

        Most deltas only set keys, so that is just a dict. A delta with anything else is a list of four, or of five if
        items are replaced.
        """
        if not (self.appends or self.merges or self.deletes or self.replaces):
            return encode(self.sets)
        # Each part is encoded by itself, so that the path in a refusal begins with the state's key.
        parts = [
            LIST_OF_FOUR,
            encode(self.sets) if self.sets else EMPTY_DICT,
            encode(self.appends) if self.appends else EMPTY_DICT,
            encode(self.merges) if self.merges else EMPTY_DICT,
            encode(self.deletes) if self.deletes else EMPTY_LIST,
        ]
        if self.replaces:
            parts[0] = LIST_OF_FIVE
            parts.append(encode(self.replaces))
        return b"".join(parts)

    def apply(self, state: dict[str, Any], base: Mapping[str, Any] | None = None) -> None:
        """Change the state. A value that the state shares with `base` is copied before it grows.

        Lists and dicts grow in place, so that a long history costs as much as its new items.
        """
        # `dict.update` and not `state.update`: the live state refuses to be changed by its own methods.
        dict.update(state, self.sets)
        dict.update(state, self.live)
        if base is not None:
            for key in (*self.appends, *self.merges, *self.replaces):
                if key in state and state[key] is base.get(key):
                    dict.__setitem__(state, key, state[key].copy())
        for key, pairs in self.replaces.items():
            for index, item in pairs:
                state[key][index] = item
        for key, items in self.appends.items():
            if key not in state:
                dict.__setitem__(state, key, items)
            # The value in `live` has the new items already: extending it would add them twice. Merges need no such
            # test, since a merged key is never in `live`.
            elif key not in self.live:
                state[key].extend(items)
        for key, entries in self.merges.items():
            if key not in state:
                dict.__setitem__(state, key, entries)
            else:
                state[key].update(entries)
        for key in self.deletes:
            dict.pop(state, key, None)

    @property
    def keys(self) -> list[str]:
        """The keys that it changes."""
        return [*self.sets, *self.appends, *self.merges, *self.deletes, *self.replaces]


def read_delta(data: Any) -> Delta:
    """The delta that `Delta.encode` wrote, from its decoded data."""
    if type(data) is dict:
        return Delta(data)
    return Delta(*data)


def unchanged_length(old: bytes, new: bytes) -> int:
    """How many items an encoded list had, if the new one starts with all of them; otherwise 0.

    Comparing bytes is much faster than comparing items, and exact: equal bytes are equal values of equal types.
    """
    old_header, old_count = _list_header(old)
    new_header, _ = _list_header(new)
    if old_header and new_header and new.startswith(old[old_header:], new_header):
        return old_count
    return 0


def _list_header(data: bytes) -> tuple[int, int]:
    """The length of an encoded list's header, and the number of its items. That of anything else is 0.

    These are the three array headers of MessagePack, which the codec writes.
    """
    first = data[0]
    if first & 0xF0 == 0x90:
        return 1, first & 0x0F
    if first == 0xDC:
        return 3, int.from_bytes(data[1:3], "big")
    if first == 0xDD:
        return 5, int.from_bytes(data[1:5], "big")
    return 0, 0
