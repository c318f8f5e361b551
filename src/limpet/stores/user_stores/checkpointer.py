"""Checkpointers: the smallest thing that can keep a paused run. Two methods, whole states, no journal.

Any object with these methods works in `compile(checkpointer=…)`. Whenever a run stops, it is saved there, and it
resumes from what `load` gives back, in this process or another. Features that need a journal (`resume` by run id in
another process, history, recovery) need a store.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any, Protocol, runtime_checkable

from limpet.errors import UsageError

KEY = "__limpet__"
"""The key of the config for what a run needs, besides state, node and config, to resume exactly where it was."""


@runtime_checkable
class Checkpointer(Protocol):
    """Keeps checkpoints, each under a reference that `save` chooses."""

    def save(self, state: dict[str, Any], node: str, config: dict[str, Any]) -> str:
        """Keep a checkpoint and return a reference to it. Raise if it can't be saved."""
        ...

    def load(self, ref: str) -> Mapping[str, Any]:
        """What was saved under the reference: a mapping with `state`, `node` and `config`."""
        ...


class MemoryCheckpointer:
    """Keeps checkpoints in this process until it ends. For tests and short-lived graphs."""

    def __init__(self) -> None:
        self._checkpoints: dict[str, dict[str, Any]] = {}
        self._lock = Lock()

    def save(self, state: dict[str, Any], node: str, config: dict[str, Any]) -> str:
        """Keep a copy, and return its reference."""
        from copy import deepcopy

        checkpoint = deepcopy({"state": dict(state), "node": node, "config": dict(config)})
        with self._lock:
            ref = f"{node}_{len(self._checkpoints) + 1}"
            self._checkpoints[ref] = checkpoint
        return ref

    def load(self, ref: str) -> dict[str, Any]:
        """A copy of what was saved. Raises `UsageError` for an unknown reference."""
        from copy import deepcopy

        with self._lock:
            if ref not in self._checkpoints:
                raise UsageError(
                    f"no checkpoint {ref!r} in this MemoryCheckpointer; it has {list(self._checkpoints)}"
                )
            return deepcopy(self._checkpoints[ref])
