"""What a fan-in is handed of the branches before it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from limpet.graphs.secrets import masked
from limpet.graphs.state import Notes, State, TrackedState
from limpet.journal.encoding.copies import detached_value
from limpet.journal.encoding.user_types import register_type


class BranchResult(TrackedState):
    """What one branch came to: its final state, as a dict, with the branch's name and times.

    `branch` names it, `index` is its place among the `parallel_results`. `error` is None, or tells why the branch
    failed (`type`, `message`, `node`, `traceback`), where errors are collected. `started` and `ended` are seconds
    since the epoch. What you change in it changes nothing else; it may be put into the state as it is, but holds all
    that the branch started with, too: `changes` has only what the branch changed.
    """

    __slots__ = ("_changed", "branch", "ended", "error", "index", "started")

    def __init__(
        self,
        data: dict[str, Any],
        *,
        branch: str,
        index: int,
        error: dict[str, Any] | None = None,
        started: float = 0.0,
        ended: float = 0.0,
        run_id: str | None = None,
        checkpoint_node: str | None = None,
        changed: Iterable[str] | None = None,
        secrets: Iterable[str] = (),
    ) -> None:
        dict.__init__(self, data)
        made = State.__new__(State)
        made.run_id, made.checkpoint_node, made._at, made._emit = run_id or "", checkpoint_node, ended, None
        if secrets:
            made._secrets = frozenset(secrets)
        self.notes = Notes(made, {}, _own)
        self.branch, self.index, self.error = branch, index, error
        self.started, self.ended = started, ended
        self._changed = list(data if changed is None else changed)

    @property
    def changes(self) -> dict[str, Any]:
        """What the branch changed of the state that it started with, its item included."""
        return {key: self[key] for key in self._changed if key in self}

    @property
    def state(self) -> State:
        """The same, as a plain State."""
        made = State(
            dict(self), run_id=self.run_id, checkpoint_node=self.checkpoint_node, timestamp=self.ended
        )
        if secrets := getattr(self, "_secrets", None):
            made._secrets = secrets
        return made

    @property
    def duration(self) -> float:
        """The seconds from the start of its first node to the end of its last."""
        return max(0.0, self.ended - self.started)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (_to(self),)

    def _copy(self) -> State:
        return _restore([dict(self), *_to(self)[1:]])

    def __repr__(self) -> str:
        failed = f" failed: {self.error['message']}" if self.error else ""
        secrets = getattr(self, "_secrets", None)
        shown = repr(masked(dict(dict.items(self)), secrets)) if secrets else dict.__repr__(self)
        return f"<BranchResult {self.branch}{failed} {shown}>"


def _own(key: str, value: Any) -> Any:
    """Whoever reads a value gets a copy: the branch's is shared with the state it was copied from."""
    return detached_value(value)


def _to(result: BranchResult) -> list[Any]:
    told = (result.branch, result.index, result.error, result.started, result.ended)
    data = [dict(dict.items(result)), *told, result.run_id, result.checkpoint_node, result._changed]
    secrets = getattr(result, "_secrets", None)
    return [*data, sorted(secrets)] if secrets else data


def _restore(stored: Any) -> BranchResult:
    data, branch, index, error, started, ended, run_id, node, changed, *more = stored
    return BranchResult(
        data, branch=branch, index=index, error=error, started=started, ended=ended, run_id=run_id,
        checkpoint_node=node, changed=changed, secrets=more[0] if more else (),
    )  # fmt: skip


register_type(BranchResult, name="limpet.BranchResult", to=_to, restore=_restore)
