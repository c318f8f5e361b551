"""What a fan-in is handed of the branches before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.graphs.sections import SubPlan
from holdfast.graphs.state import Notes, State, TrackedState
from holdfast.journal.copies import detached_value
from holdfast.journal.progress import Progress


class BranchResult(TrackedState):
    """What one branch came to: its final state, as a dict, with the branch's name and times.

    `branch` names it, `index` is its place among the `parallel_results`. `error` is None, or tells why the branch
    failed (`type`, `message`, `node`, `traceback`), where errors are collected. `started` and `ended` are seconds
    since the epoch. What you change in it changes nothing else.
    """

    __slots__ = ("branch", "ended", "error", "index", "started")

    def __init__(self, progress: Progress, branch: str, index: int, sub: SubPlan | None) -> None:
        final = progress.result()
        dict.__init__(self, final if sub is None or progress.error else sub.result(final))
        self.notes = Notes(
            State(run_id=progress.run_id, checkpoint_node=progress.made_by, timestamp=progress.at), {}, _own
        )
        self.branch, self.index = branch, index
        self.error: Mapping[str, Any] | None = progress.error
        self.started, self.ended = progress.began, progress.at

    @property
    def state(self) -> State:
        """The same, as a plain State."""
        return State(dict(self), run_id=self.run_id, checkpoint_node=self.checkpoint_node, timestamp=self._at)

    @property
    def duration(self) -> float:
        """The seconds from the start of its first node to the end of its last."""
        return max(0.0, self.ended - self.started)

    def __repr__(self) -> str:
        failed = f" failed: {self.error['message']}" if self.error else ""
        return f"<BranchResult {self.branch}{failed} {dict.__repr__(self)}>"


def _own(key: str, value: Any) -> Any:
    """Whoever reads a value gets a copy: the branch's is shared with the state it was copied from."""
    return detached_value(value)
