"""`State`: the application's data, and where it came from.

A checkpoint *is* a State: a dict that knows the run it belongs to, the node that produced it and when.
What a node is handed is a private one (`NodeState`), whose assignments are noted. A `TrackedState` also
notes which keys were read, so that a change made inside a nested list or dict can be found by looking
only where the node could have made one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from datetime import UTC, datetime
from time import time
from typing import Any, NoReturn

from limpet.errors import UsageError
from limpet.graphs.secrets import masked
from limpet.journal.encoding.codec import IMMUTABLE_TYPES, detached_value
from limpet.observe.events import STATE_CLONE, STATE_CREATE, STATE_MERGE, STATE_SET
from limpet.observe.hub import Emit, gather
from limpet.observe.registry import resolve_observer


class State(dict[str, Any]):
    """Application data that knows its `run_id`, the `checkpoint_node` that produced it and its `timestamp`.

    It is a dict. `set`, `merge` and `clone` return a new State of the same provenance and leave this one
    as it is; values are shared with it, not copied.
    """

    __slots__ = ("_at", "_emit", "_saved", "_secrets", "checkpoint_node", "run_id")

    _saved: str | None
    """The id of the checkpoint that it was saved as; unset where nobody asks."""
    _secrets: frozenset[str]
    """The keys that are covered when it is printed; unset where there are none."""

    def __init__(
        self,
        data: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        /,
        *,
        run_id: str | None = None,
        checkpoint_node: str | None = None,
        timestamp: datetime | float | None = None,
        observer: Any = None,
    ) -> None:
        super().__init__(data)
        self.run_id = run_id or new_id()
        self.checkpoint_node = checkpoint_node
        self._at = time() if timestamp is None else _seconds(timestamp)
        self._emit: Emit | None = None if observer is None else gather([resolve_observer(observer)], time)
        self._tell(STATE_CREATE, {"keys": len(self)})

    @property
    def timestamp(self) -> datetime:
        """When the node that produced this state completed (UTC), or when the state was made."""
        return datetime.fromtimestamp(self._at, UTC)

    def set(self, key: str, value: Any) -> State:
        """A new State with `key` set to `value`."""
        changed = self._copy()
        changed[key] = value
        self._tell(STATE_SET, {"key": key})
        return changed

    def merge(self, other: Mapping[str, Any]) -> State:
        """A new State with the keys of `other` put over those of this one."""
        merged = self._copy()
        merged.update(other)
        self._tell(STATE_MERGE, {"keys": len(other)})
        return merged

    def clone(self) -> State:
        """A new State with the same keys and values."""
        cloned = self._copy()
        self._tell(STATE_CLONE, {"keys": len(cloned)})
        return cloned

    def copy(self) -> State:
        """The same as `clone`."""
        return self.clone()

    def __repr__(self) -> str:
        return f"State({self._shown()!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        secrets = getattr(self, "_secrets", None)
        more = (secrets,) if secrets else ()
        return _restore, (dict(self), self.run_id, self.checkpoint_node, self._at, *more)

    def _shown(self) -> dict[str, Any]:
        """Its data as it may be printed."""
        secrets, data = getattr(self, "_secrets", None), dict(self)
        return masked(data, secrets) if secrets else data

    def _copy(self) -> State:
        """A plain State of the same content and provenance, whatever kind this one is."""
        made = self._blank()
        dict.update(made, self)
        made.run_id, made.checkpoint_node = self.run_id, self.checkpoint_node
        made._at, made._emit = self._at, self._emit
        if hasattr(self, "_saved"):
            made._saved = self._saved
        if hasattr(self, "_secrets"):
            made._secrets = self._secrets
        return made

    def _blank(self) -> State:
        """A plain State, or whatever this one is for those outside, with nothing set yet."""
        return State.__new__(State)

    def _tell(self, kind: str, data: dict[str, Any]) -> None:
        if self._emit is not None:
            self._emit(kind, "state", data)


class LiveState(State):
    """The state of a run as the engine holds it and predicates see it: to be looked at, not to be changed."""

    __slots__ = ()

    @classmethod
    def alive(cls, data: Mapping[str, Any]) -> LiveState:
        """One with this data, made as a dict is; where it came from is to be said right after."""
        made = cls.__new__(cls)
        dict.update(made, data)
        return made

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(
            "a predicate or choice only looks at the state; a node changes it, by what it returns"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = pop = popitem = setdefault = clear = _refuse


class Notes:
    """What is noted about the private state of one task: keys written, and keys read that can be altered.

    `apart` says that what is read is the task's own to the last detail, also under a reducer.
    """

    __slots__ = ("apart", "live", "reducers", "touched", "watch", "written")

    def __init__(
        self, live: State, reducers: Mapping[str, Any], watch: Callable[[str, Any], Any] | None = None
    ) -> None:
        self.live, self.reducers, self.watch = live, reducers, watch
        self.written: dict[str, bool] = {}
        self.touched: set[str] = set()
        self.apart = False


class NodeState(State):
    """The private State that a node works on: keys that it assigns or deletes become part of its update.

    Made as a plain copy of the live state, in C, with its notes set right after: it is made at every step.
    """

    __slots__ = ("notes",)

    notes: Notes
    __init__ = dict.__init__  # as a dict is made, without State's arguments

    run_id = property(lambda self: self.notes.live.run_id)
    checkpoint_node = property(lambda self: self.notes.live.checkpoint_node)
    _at = property(lambda self: self.notes.live._at)
    _emit = property(lambda self: self.notes.live._emit)
    _secrets = property(lambda self: self.notes.live._secrets)

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self.notes.reducers:
            _refuse_assignment(key)
        if type(key) is not str:
            raise UsageError(f"a state key is a str, not {type(key).__name__}: {key!r}")
        dict.__setitem__(self, key, value)
        self.notes.written[key] = True

    def __delitem__(self, key: str) -> None:
        if key in self.notes.reducers:
            _refuse_assignment(key)
        dict.__delitem__(self, key)
        self.notes.written[key] = False

    def update(self, *sources: Any, **more: Any) -> None:
        for key, value in dict(*sources, **more).items():
            self[key] = value

    def __ior__(self, other: Any) -> NodeState:  # type: ignore[override, misc]  # dict's takes pairs too
        self.update(other)
        return self

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: str, *default: Any) -> Any:
        if key not in self and default:
            return default[0]
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        if not self:
            raise KeyError("popitem(): the state is empty")
        key = next(reversed(self))
        return key, self.pop(key)

    def clear(self) -> None:
        for key in list(self.keys()):
            del self[key]


class TrackedState(NodeState):
    """A NodeState that also notes which changeable values were read, and shields those with a reducer.

    `notes.watch(key, value)` is called once for each such key, before the node gets the value, and says what it
    gets. A list, dict or set under a reducer is handed out as a copy that is the node's own.
    """

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        value = dict.__getitem__(self, key)
        if type(value) in IMMUTABLE_TYPES or key in self.notes.touched:
            return value
        return self._touch(key, value)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401  # this is that get

    def values(self) -> ValuesView[Any]:  # type: ignore[override]  # a view of the same values
        self._touch_all()
        return ValuesView(self)

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]  # a view of the same items
        self._touch_all()
        return ItemsView(self)

    def __iter__(self) -> Iterator[str]:
        """Also what sends `dict(state)` and `{**state}` through `__getitem__`."""
        return dict.__iter__(self)

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    def __ror__(self, other: Any) -> Any:
        return other | dict(self)

    def _touch(self, key: str, value: Any) -> Any:
        notes = self.notes
        if key in notes.reducers and not notes.apart:
            if type(value) in (list, dict, set):
                value = value.copy()
                dict.__setitem__(self, key, value)
        elif key not in notes.written and notes.watch is not None:
            seen = notes.watch(key, value)
            if seen is not value:
                value = seen
                dict.__setitem__(self, key, value)
        notes.touched.add(key)
        return value

    def _touch_all(self) -> None:
        for key in dict.__iter__(self):
            self[key]


class NoState(TrackedState):
    """What the call of a task has for a state: nothing, and it stays so. All tasks have the same one."""

    __slots__ = ()

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(
            "a task of a workflow has no state of its own: it returns its result, and can take the run's `state`"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = pop = popitem = setdefault = clear = _refuse


NO_STATE: NodeState = NoState()
NO_STATE.notes = Notes(State(run_id="-"), {})


def unshared(state: dict[str, Any]) -> dict[str, Any]:
    """The same data, where no list, dict or set at the top grows with the state's own; what is in them is shared."""
    grows = (list, dict, set)
    return {key: value.copy() if type(value) in grows else value for key, value in dict.items(state)}


def glance(state: Mapping[str, Any], origin: Any = None, kind: type[TrackedState] = TrackedState) -> State:
    """The state for a function that is only to look at it: whatever it does to what it reads, it does to a copy.

    It says of itself what `origin` does.
    """
    seen: State = kind(state)
    made, origin = State.__new__(State), state if origin is None else origin
    made.run_id, made.checkpoint_node = (
        getattr(origin, "run_id", ""),
        getattr(origin, "checkpoint_node", None),
    )
    made._at, made._emit = getattr(origin, "_at", 0.0), None
    if secrets := getattr(origin, "_secrets", None):
        made._secrets = secrets
    seen.notes = Notes(made, {}, lambda key, value: detached_value(value))  # type: ignore[attr-defined]  # it is one
    return seen


def new_id() -> str:
    """A fresh id that nobody can guess: 32 hexadecimal digits."""
    return os.urandom(16).hex()


def _seconds(timestamp: datetime | float) -> float:
    return timestamp.timestamp() if isinstance(timestamp, datetime) else float(timestamp)


def _restore(
    data: dict[str, Any], run_id: str, node: str | None, at: float, secrets: frozenset[str] | None = None
) -> State:
    made = State(data, run_id=run_id, checkpoint_node=node, timestamp=at)
    if secrets:
        made._secrets = secrets
    return made


def _refuse_assignment(key: str) -> NoReturn:
    raise UsageError(
        f"{key!r} has a reducer, so a node changes it by returning it: return {{{key!r}: …}} "
        "with what is new; the reducer combines it with what is there"
    )
