"""Settings of a graph as plain data, so that a file can have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from limpet.defaults import MAX_ITERATIONS
from limpet.errors import DefinitionError, did_you_mean


class _CheckpointFields(NamedTuple):
    store: Any
    interval: int
    preserve: bool


class CheckpointConfig(_CheckpointFields):
    """When and where a run is saved.

    `store` is a registered name, a URL or a store object. `interval` 0 saves nothing; N saves after every N-th
    completed node. The result of a run that completed is kept; `preserve` keeps all of its checkpoints.
    """

    __slots__ = ()

    def __new__(cls, store: Any = "memory", interval: int = 0, preserve: bool = False) -> Self:
        if type(interval) is not int or interval < 0:
            raise DefinitionError(
                f"checkpoint.interval must be a whole number of at least 0, not {interval!r}"
            )
        if type(preserve) is not bool:
            raise DefinitionError(f"checkpoint.preserve must be True or False, not {preserve!r}")
        return super().__new__(cls, store, interval, preserve)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CheckpointConfig:
        """From plain data. Raises `DefinitionError` for an unknown key or a wrong value."""
        return cls(**_known(cls, data, "checkpoint"))


class GraphConfig(NamedTuple):
    """Name, observer, iteration budget and checkpointing of a graph."""

    name: str = "graph"
    observer: Any = None
    max_iterations: int | None = MAX_ITERATIONS
    checkpoint: CheckpointConfig = CheckpointConfig()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GraphConfig:
        """From plain data; `checkpoint` may be a dict too. Raises `DefinitionError` as above."""
        known = _known(cls, data, "graph")
        if isinstance(known.get("checkpoint"), Mapping):
            known["checkpoint"] = CheckpointConfig.from_dict(known["checkpoint"])
        return cls(**known)


def _known(cls: Any, data: Mapping[str, Any], what: str) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise DefinitionError(f"the {what} settings must be a dict, not {type(data).__name__}")
    names: tuple[str, ...] = cls._fields
    mistakes = []
    for key in data:
        if key not in names:
            mistakes.append(f"unknown {what} setting {key!r}" + did_you_mean(key, names))
    if mistakes:
        raise DefinitionError(mistakes)
    return dict(data)
