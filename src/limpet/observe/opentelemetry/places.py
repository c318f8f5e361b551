"""What the engine says of a run and of a call: where it is, and how it ended. No value of the state is among it."""

from __future__ import annotations

from typing import Final, NamedTuple

Attributes = dict[str, str | bool | int | float]

COMPLETED: Final = "completed"
FAILED: Final = "failed"
PAUSED: Final = "paused"
CANCELLED: Final = "cancelled"
SLEEPING: Final = "sleeping"
WAITING: Final = "waiting"
RELEASED: Final = "released"
"""How a stretch ended that another process is to continue."""
LOST: Final = "lost"
"""How a stretch ended whose run another process has claimed meanwhile."""
INTERRUPTED: Final = "interrupted"
"""How a stretch or a call ended that was left in the middle: by an exception for the whole process, or its caller."""


class RunPlace(NamedTuple):
    """Which run a stretch is of. `is_worker` says that a supervisor, or the parent of a child run, executes it."""

    graph: str
    run_id: str
    is_workflow: bool
    is_worker: bool
    is_resumed: bool
    queue: str = ""
    parent: str | None = None

    def attributes(self) -> Attributes:
        """The attributes of the span."""
        found: Attributes = {
            "limpet.run.id": self.run_id,
            "limpet.graph.name": self.graph,
            "limpet.run.resumed": self.is_resumed,
        }
        if self.queue:
            found["limpet.queue.name"] = self.queue
        if self.parent is not None:
            found["limpet.run.parent"] = self.parent
        return found


class StepPlace(NamedTuple):
    """Which call a span is of. `graph` is that of the node, which may be inside of that of the run."""

    run_id: str
    graph: str
    node: str
    branch: str
    step: int
    attempt: int

    def attributes(self) -> Attributes:
        """The attributes of the span."""
        found: Attributes = {
            "limpet.run.id": self.run_id,
            "limpet.graph.name": self.graph,
            "limpet.node.name": self.node,
            "limpet.step.number": self.step,
            "limpet.step.attempt": self.attempt,
        }
        if self.branch:
            found["limpet.branch.path"] = self.branch
        return found


class StepEnd(NamedTuple):
    """How a call ended: the outcome, and of a failure its type and texts, without secrets."""

    outcome: str
    error_type: str = ""
    message: str = ""
    traceback: str = ""
    is_retried: bool = False


class RunEnd(NamedTuple):
    """How a stretch ended, at which step; and of a failure its type and text, without secrets."""

    status: str
    step: int
    error_type: str = ""
    message: str = ""


class WaitingInStore(NamedTuple):
    """What waits in a store, of one queue and graph: runs that are due, and questions of paused runs."""

    queue: str
    graph: str
    due_runs: int
    open_questions: int
