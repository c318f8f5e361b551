"""The five methods that make any object a store: whole checkpoints, kept under their ids.

Give such an object wherever a store is named: `Workflow(store=…)`, `compile(store=…)`, `open_store(…)`. It is
written to by one thread at a time. What it can't do (share a run between processes, keep a journal that only grows)
takes a `limpet.journal.store.Store`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable

METHODS = ("save", "load", "delete", "list", "cleanup_expired")


def _now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)


@dataclass
class PauseMetadata:
    """What a paused run waits for: the node or task that asks, and its question. A `response` is never kept."""

    block_id: str
    prompt: str
    response: str | None = None


@dataclass
class CheckpointState:
    """All that there is of one run, as a store of five methods keeps it.

    `checkpoint_id` is the run's id, `workflow_name` the name of its workflow or graph, and `context` holds the run
    itself, as text, beside its `status`, `node` and `step` for people to read: keep it as it is. `created_at` is when
    this was saved, in UTC and without a time zone. What is known inside of the run alone (`workflow_inputs`,
    `execution_waves`, `completed_waves`) stays empty: ask the workflow's `checkpoint(run_id)` for it.
    """

    checkpoint_id: str
    workflow_name: str
    workflow_inputs: dict[str, Any] = field(default_factory=dict)
    execution_waves: list[list[Any]] = field(default_factory=list)
    completed_waves: int = 0
    context: dict[str, Any] = field(default_factory=dict)
    created_at: datetime = field(default_factory=_now)
    pause_metadata: PauseMetadata | None = None


@runtime_checkable
class CheckpointStore(Protocol):
    """Keeps checkpoints whole. Derive from it or just have its methods.

    A `save` that returned has happened, and one that raised has changed nothing. An attribute `level` says what a
    save survives, "disk" or "process"; without it, "memory" is assumed.
    """

    @abstractmethod
    def save(self, state: CheckpointState) -> None:
        """Keep a checkpoint, in place of the one that has its id."""
        ...

    @abstractmethod
    def load(self, checkpoint_id: str) -> CheckpointState | None:
        """The checkpoint with this id, equal to what was saved, or None."""
        ...

    @abstractmethod
    def delete(self, checkpoint_id: str) -> None:
        """Remove a checkpoint. That it isn't there is no error."""
        ...

    @abstractmethod
    def list(self, workflow_name: str | None = None) -> Sequence[CheckpointState]:
        """All checkpoints, or those of one workflow."""
        ...

    @abstractmethod
    def cleanup_expired(self, max_age_hours: int = 24) -> int:
        """Remove checkpoints that are older, paused ones too; return how many. Limpet never calls it."""
        ...
