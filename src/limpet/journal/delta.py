"""A delta: how one step changed the state, in as few bytes as say it.

Four kinds of change: a key was set, a list under a key grew at its end, a dict under a key got entries, a
key went. Applying the same deltas to the same state gives the same state, whether the run is live or is
being rebuilt from its journal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limpet.journal.encoding.codec import encode
from limpet.journal.encoding.splice import NO_ENTRIES, NO_ITEMS, joined


class Delta:
    """What changed. `live` has the whole value of a key where the live state can't be trusted to grow by it:
    a node has had its hands on it. It isn't stored.
    """

    __slots__ = ("appends", "deletes", "live", "merges", "sets")

    def __init__(
        self,
        sets: dict[str, Any] | None = None,
        appends: dict[str, list[Any]] | None = None,
        merges: dict[str, dict[Any, Any]] | None = None,
        deletes: list[str] | None = None,
    ) -> None:
        self.sets = {} if sets is None else sets
        self.appends = {} if appends is None else appends
        self.merges = {} if merges is None else merges
        self.deletes = [] if deletes is None else deletes
        self.live: dict[str, Any] = {}

    def encode(self) -> bytes:
        """The bytes of it. Raises `UnstorableValue` with the path from the state's key on."""
        if not (self.appends or self.merges or self.deletes):
            return encode(self.sets)
        parts = (self.sets, self.appends, self.merges)
        deletes = encode(self.deletes) if self.deletes else NO_ITEMS
        return joined([*(encode(part) if part else NO_ENTRIES for part in parts), deletes])

    def apply(self, state: dict[str, Any], base: Mapping[str, Any] | None = None) -> None:
        """Change the state as this says, also one that refuses to be assigned to.

        A value that the state shares with `base` is copied before it grows.
        """
        dict.update(state, self.sets)
        dict.update(state, self.live)
        if base is not None:
            for key in (*self.appends, *self.merges):
                if key in state and state[key] is base.get(key):
                    dict.__setitem__(state, key, state[key].copy())
        for key, items in self.appends.items():
            if key not in state:
                dict.__setitem__(state, key, items)
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
        return [*self.sets, *self.appends, *self.merges, *self.deletes]


def read_delta(found: Any) -> Delta:
    """The delta that `encode` wrote, decoded."""
    if type(found) is dict:
        return Delta(found)
    sets, appends, merges, deletes = found
    return Delta(sets, appends, merges, deletes)
