"""Checkpointers: the smallest thing that can keep a paused run. Two methods, whole states, no journal.

Any object with them works in `compile(checkpointer=…)`. A run is handed to it whenever it stops, and goes on
from what `load` gives back, in this process or another. What takes a journal (`resume` by run id in another
process, history, recovery) takes a store.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any, Protocol, runtime_checkable

from limpet.errors import UsageError

KEY = "__limpet__"
"""Under this key of the config travels what a run needs, besides state, node and config, to go on exactly."""


@runtime_checkable
class Checkpointer(Protocol):
    """Keeps checkpoints under references of its own making."""

    def save(self, state: dict[str, Any], node: str, config: dict[str, Any]) -> str:
        """Keep a checkpoint and return a reference to it. Raise if it can't be kept."""
        ...

    def load(self, ref: str) -> Mapping[str, Any]:
        """What was saved under the reference: a mapping with `state`, `node` and `config`."""
        ...


class MemoryCheckpointer:
    """Keeps checkpoints in this process, for as long as it lives. For tests and short-lived graphs."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Any]] = {}
        self._lock = Lock()

    def save(self, state: dict[str, Any], node: str, config: dict[str, Any]) -> str:
        """Keep a copy, and return its reference."""
        from copy import deepcopy

        checkpoint = deepcopy({"state": dict(state), "node": node, "config": dict(config)})
        with self._lock:
            ref = f"{node}_{len(self._kept) + 1}"
            self._kept[ref] = checkpoint
        return ref

    def load(self, ref: str) -> dict[str, Any]:
        """A copy of what was saved. Raises `UsageError` for a reference that isn't known."""
        from copy import deepcopy

        with self._lock:
            if ref not in self._kept:
                raise UsageError(
                    f"no checkpoint {ref!r} in this MemoryCheckpointer; it has {list(self._kept)}"
                )
            return deepcopy(self._kept[ref])
