"""What a fan-in gets from each branch before it: its final state, name, times and error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from limpet.graphs.secrets import masked
from limpet.graphs.state import AccessLog, State, TrackedState
from limpet.journal.encoding.codec import detached_value
from limpet.journal.encoding.user_types import register_type


class BranchResult(TrackedState):
    """The result of one branch: its final state, as a dict, with the branch's name and times.

    `branch` names it, and `index` is its place among the `parallel_results`. `error` is None, or says why the branch
    failed (`type`, `message`, `node`, `traceback`), where errors are collected. `started` and `ended` are seconds
    since the epoch. Changing a result changes nothing else. You can put it into the state as it is, but it holds all
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
        # A NodeState takes its run id, node and time from the state that its notes are about. So this one needs a
        # state to ask, and `__new__` makes it without a State's own, costlier, checks: a map has one per item.
        origin = State.__new__(State)
        origin.run_id = run_id or ""
        origin.checkpoint_node = checkpoint_node
        origin._at = ended
        origin._emit = None
        if secrets:
            origin._secrets = frozenset(secrets)
        self.access_log = AccessLog(origin, {}, _copied_on_read)
        self.branch = branch
        self.index = index
        self.error = error
        self.started = started
        self.ended = ended
        self._changed = list(data if changed is None else changed)

    @property
    def changes(self) -> dict[str, Any]:
        """What the branch changed in the state that it started with, its item included."""
        return {key: self[key] for key in self._changed if key in self}

    @property
    def state(self) -> State:
        """The same, as a plain State."""
        state = State(
            dict(self), run_id=self.run_id, checkpoint_node=self.checkpoint_node, timestamp=self.ended
        )
        if secrets := getattr(self, "_secrets", None):
            state._secrets = secrets
        return state

    @property
    def duration(self) -> float:
        """The seconds from the start of its first node to the end of its last."""
        return max(0.0, self.ended - self.started)

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_data, (_to_data(self),)

    def _copy(self) -> State:
        return _from_data([dict(self), *_to_data(self)[1:]])

    __copy__ = _copy

    def __repr__(self) -> str:
        failed = f" failed: {self.error['message']}" if self.error else ""
        secrets = getattr(self, "_secrets", None)
        shown = dict.__repr__(self)
        if secrets:
            shown = repr(masked(dict(dict.items(self)), secrets))
        return f"<BranchResult {self.branch}{failed} {shown}>"


PARALLEL_RESULTS: Final = "parallel_results"
"""The key under which a fan-in finds the results of the branches in its state, and a checkpoint file has them."""

_NOT_READ: Final = object()


class FanInState(TrackedState):
    """The private state of a fan-in, which has the `parallel_results` as well. They are no part of the run's state.

    They are made when they are first read. Changing or deleting them changes nothing else; a node that assigns the
    key, or returns a value for it, sets that key of the run's state.
    """

    __slots__ = ("_find", "_found")

    _find: Callable[[], list[BranchResult]]
    _found: list[BranchResult] | None

    @classmethod
    def with_results(cls, live: State, find: Callable[[], list[BranchResult]]) -> FanInState:
        """A private copy of the live state, whose results are those that `find` returns."""
        made: FanInState = cls(live)
        made._find = find
        made._found = None
        dict.__setitem__(made, PARALLEL_RESULTS, _NOT_READ)
        return made

    def __getitem__(self, key: str) -> Any:
        if key != PARALLEL_RESULTS:
            return super().__getitem__(key)
        value = dict.__getitem__(self, key)
        if value is _NOT_READ:
            self._found = value = self._find()
            dict.__setitem__(self, key, value)
        return value

    def __delitem__(self, key: str) -> None:
        value = dict.get(self, key)
        if key == PARALLEL_RESULTS and (value is _NOT_READ or value is self._found):
            dict.__delitem__(self, key)
        else:
            super().__delitem__(key)

    def without_results(self, returned: dict[str, Any]) -> dict[str, Any]:
        """What a fan-in returned, without the results if they are only in it because all of the state is."""
        if returned.get(PARALLEL_RESULTS, self) is not self._found or not self.keys() <= returned.keys():
            return returned
        return {key: value for key, value in returned.items() if key != PARALLEL_RESULTS}


def _copied_on_read(key: str, value: Any) -> Any:
    """A reader gets a copy: the branch shares its value with the state that it was copied from."""
    return detached_value(value)


def _to_data(result: BranchResult) -> list[Any]:
    data = [
        dict(dict.items(result)),
        result.branch,
        result.index,
        result.error,
        result.started,
        result.ended,
        result.run_id,
        result.checkpoint_node,
        result._changed,
    ]
    secrets = getattr(result, "_secrets", None)
    if secrets:
        data.append(sorted(secrets))
    return data


def _from_data(stored: Any) -> BranchResult:
    data, branch, index, error, started, ended, run_id, node, changed, *more = stored
    return BranchResult(
        data,
        branch=branch,
        index=index,
        error=error,
        started=started,
        ended=ended,
        run_id=run_id,
        checkpoint_node=node,
        changed=changed,
        secrets=more[0] if more else (),  # results without secrets are stored without a list of them
    )


register_type(BranchResult, name="limpet.BranchResult", to=_to_data, restore=_from_data)
