"""`State`: the application's data, and where it came from.

A checkpoint *is* a State: a dict that knows the run it belongs to, the node that produced it and when.
A node gets a private one (`NodeState`), which logs assignments. A `TrackedState` also logs which keys
were read: the engine then looks for changes inside of nested lists and dicts only where the node could have
made one, so that a large value that the node didn't read costs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from copy import deepcopy
from datetime import UTC, datetime
from importlib import import_module
from time import time
from typing import TYPE_CHECKING, Any, Generic, NoReturn

from limpet.errors import UnknownKey, UnstorableValue, UsageError
from limpet.graphs.secrets import masked
from limpet.journal.encoding.codec import IMMUTABLE_TYPES, decode, detached_value, encode
from limpet.journal.encoding.user_types import register_type
from limpet.observe.events import STATE_CLONE, STATE_CREATE, STATE_MERGE, STATE_SET
from limpet.observe.hub import Emit, gather
from limpet.observe.observer_registry import resolve_observer

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Model = TypeVar("Model", default=Any)
else:
    from typing import TypeVar

    Model = TypeVar("Model")
"""The class that describes a state: a TypedDict, dataclass or pydantic model. Type checkers know its default, Any."""


class State(dict[str, Any], Generic[Model]):
    """Application data that knows its `run_id`, the `checkpoint_node` that produced it and its `timestamp`.

    It is a dict. `set`, `merge` and `clone` return a new State of the same provenance and leave this one
    as it is; values are shared with it, not copied. A key that it lacks raises `UnknownKey`, which suggests the one
    that was meant. To type checkers it is a `State[S]`, where S is the class of the schema; `model` is it as an S.
    """

    __slots__ = ("_at", "_emit", "_saved", "_schema", "_secrets", "checkpoint_node", "run_id")

    _saved: str | None
    """The id of the checkpoint that it was saved as; unset where it isn't needed."""
    _schema: Any
    """The `Schema` of its graph; unset if it isn't known."""
    _secrets: frozenset[str]
    """The keys whose values are masked in its `repr`; unset if none are secret."""

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
        self._emit: Emit | None = None
        if observer is not None:
            self._emit = gather([resolve_observer(observer)], time)
        self._report(STATE_CREATE, {"keys": len(self)})

    @property
    def timestamp(self) -> datetime:
        """When the node that produced this state completed (UTC), or when the state was made."""
        return datetime.fromtimestamp(self._at, UTC)

    @property
    def model(self) -> Model:
        """This state as an instance of the class that its graph has as its schema, which shares its values.

        Of a TypedDict, of a dict of types, and without a schema, it is a plain dict. Raises `UsageError` if the state
        isn't complete, or doesn't fit the class.
        """
        from limpet.graphs.typed_state.instances import model_of

        made: Model = model_of(self, getattr(self, "_schema", None))
        return made

    def set(self, key: str, value: Any) -> State[Model]:
        """A new State with `key` set to `value`."""
        changed = self._copy()
        changed[key] = value
        self._report(STATE_SET, {"key": key})
        return changed

    def merge(self, other: Mapping[str, Any]) -> State[Model]:
        """A new State with the keys of `other` put over those of this one."""
        merged = self._copy()
        merged.update(other)
        self._report(STATE_MERGE, {"keys": len(other)})
        return merged

    def clone(self) -> State[Model]:
        """A new State with the same keys and values."""
        cloned = self._copy()
        self._report(STATE_CLONE, {"keys": len(cloned)})
        return cloned

    def copy(self) -> State[Model]:
        """The same as `clone`."""
        return self.clone()

    def set_checkpoint_node(self, node: str | None) -> State[Model]:
        """A new State with the same values that says it was produced by this node, now."""
        moved = self._copy()
        moved.checkpoint_node = node
        moved._at = time()
        return moved

    def checkpoint(self, store: Any) -> None:
        """Save this state by hand, as the newest checkpoint of its run; `store` is whatever `compile(store=…)` takes.

        `graph.resume(run_id)` then continues after the `checkpoint_node`, or at the entry if there is none. Raises
        `UnstorableValue`, `UsageError`, `StoreUnavailable`, and `Conflict` while another process advances the run.
        """
        # By its name, as the stores belong to a layer above this one.
        import_module("limpet.engine.sessions.hand_checkpoint").save_state(store, self)

    def __missing__(self, key: str) -> NoReturn:
        raise UnknownKey(key, dict.keys(self), getattr(getattr(self, "_schema", None), "keys", ()))

    def __repr__(self) -> str:
        return f"State({self._shown()!r})"

    def _repr_html_(self) -> str | None:
        """What a notebook shows: a table of its keys. Never raises."""
        shown: str | None = import_module("limpet.drawing.notebook").state_view(self)
        return shown

    def __reduce__(self) -> tuple[Any, ...]:
        provenance = (self.run_id, self.checkpoint_node, self._at, getattr(self, "_secrets", None))
        return _restore, (dict(self), *provenance)

    def __deepcopy__(self, memo: dict[int, Any]) -> State[Model]:
        made = self._copy()
        memo[id(self)] = made
        dict.update(made, deepcopy(dict(made), memo))
        return made

    def _shown(self) -> dict[str, Any]:
        """Its data with secret values masked."""
        data = dict(self)
        secrets = getattr(self, "_secrets", None)
        return masked(data, secrets) if secrets else data

    def _copy(self) -> State[Model]:
        """A plain State of the same content and provenance, also of a state of the engine's own classes."""
        made = self._blank()
        dict.update(made, self)
        for name in State.__slots__:
            if hasattr(self, name):
                setattr(made, name, getattr(self, name))
        return made

    __copy__ = _copy

    def _blank(self) -> State[Model]:
        """An empty instance of the public class that this state is a kind of."""
        return State.__new__(State)

    def _report(self, kind: str, data: dict[str, Any]) -> None:
        if self._emit is not None:
            self._emit(kind, "state", data)


class LiveState(State):
    """The state of a run as the engine has it. It can be read but not changed."""

    __slots__ = ()

    @classmethod
    def from_data(cls, data: Mapping[str, Any], schema: Any = None) -> LiveState:
        """A live state with this data. The caller sets its provenance: this is cheaper than the constructor."""
        made = cls.__new__(cls)
        dict.update(made, data)
        if schema is not None:
            made._schema = schema
        return made

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(
            "a predicate or choice can't change the state; a node changes it by returning an update"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = pop = popitem = setdefault = clear = _refuse


class AccessLog:
    """What a node did to its private state: the keys it wrote, and the keys it read whose values can change in place.

    `live` is the state that it was copied from. `written` has True for a key that was set and False for one that was
    deleted. `watch(key, value)` is called when a key is `touched` for the first time, and returns the value that the
    node gets. `apart` means that the private state shares no value with the live one, even under a reducer.
    """

    __slots__ = ("apart", "live", "reducers", "touched", "watch", "written")

    def __init__(
        self, live: State, reducers: Mapping[str, Any], watch: Callable[[str, Any], Any] | None = None
    ) -> None:
        self.live = live
        self.reducers = reducers
        self.watch = watch
        self.written: dict[str, bool] = {}
        self.touched: set[str] = set()
        self.apart = False


class NodeState(State):
    """The private State that a node works on: keys that it assigns or deletes become part of its update.

    One is made at every step. So it is made as a plain dict is, by a copy in C, and its `access_log` is set
    right after. Its provenance is that of the live state.
    """

    __slots__ = ("access_log",)

    access_log: AccessLog
    __init__ = dict.__init__

    run_id = property(lambda self: self.access_log.live.run_id)
    checkpoint_node = property(lambda self: self.access_log.live.checkpoint_node)
    _at = property(lambda self: self.access_log.live._at)
    _emit = property(lambda self: self.access_log.live._emit)
    _schema = property(lambda self: self.access_log.live._schema)
    _secrets = property(lambda self: self.access_log.live._secrets)

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self.access_log.reducers:
            _refuse_assignment(key)
        if type(key) is not str:
            raise UsageError(f"a state key must be a str, not {type(key).__name__}: {key!r}")
        dict.__setitem__(self, key, value)
        self.access_log.written[key] = True

    def __delitem__(self, key: str) -> None:
        if key in self.access_log.reducers:
            _refuse_assignment(key)
        dict.__delitem__(self, key)
        self.access_log.written[key] = False

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
    """A NodeState that also logs which values were read that can change in place, and protects those with a reducer.

    `access_log.watch(key, value)` is called once for each such key, before the node gets the value, and returns what
    it gets. Of a list, dict or set under a reducer, the node gets a copy.
    """

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        value = dict.__getitem__(self, key)
        if type(value) in IMMUTABLE_TYPES or key in self.access_log.touched:
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
        """Having this method makes `dict(state)` and `{**state}` go through `__getitem__`."""
        return dict.__iter__(self)

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    def __ror__(self, other: Any) -> Any:
        return other | dict(self)

    def _touch(self, key: str, value: Any) -> Any:
        log = self.access_log
        if key in log.reducers and not log.apart:
            if type(value) in (list, dict, set):
                value = value.copy()
                dict.__setitem__(self, key, value)
        elif key not in log.written and log.watch is not None:
            seen = log.watch(key, value)
            if seen is not value:
                value = seen
                dict.__setitem__(self, key, value)
        log.touched.add(key)
        return value

    def _touch_all(self) -> None:
        for key in dict.__iter__(self):
            self[key]


class StateView(TrackedState):
    """The state as a predicate or choice gets it: it can't be assigned to, and each value that is read is a copy.

    `copies` are those made so far. A value that isn't read is not copied.
    """

    __slots__ = ("copies",)

    copies: dict[str, Any]

    def __getitem__(self, key: str) -> Any:
        value = dict.__getitem__(self, key)
        if type(value) in IMMUTABLE_TYPES:
            return value
        if key not in self.copies:
            self.copies[key] = detached_value(value)
        return self.copies[key]

    _refuse = LiveState._refuse
    __setitem__ = __delitem__ = __ior__ = _refuse
    update = pop = popitem = setdefault = clear = _refuse


class EmptyState(TrackedState):
    """The state of the call of a task: it is empty and can't be changed, so all tasks share one."""

    __slots__ = ()

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(
            "a task of a workflow has no state of its own: it returns its result, and can take the run's `state`"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = pop = popitem = setdefault = clear = _refuse


EMPTY_STATE: NodeState = EmptyState()
EMPTY_STATE.access_log = AccessLog(State(run_id="-"), {})


def detached_view(
    state: Mapping[str, Any], origin: Any = None, kind: type[TrackedState] = TrackedState
) -> State:
    """The state for a function that only reads it: each value is copied when it is read for the first time.

    So the function can't change the state, and values that it doesn't read cost nothing. `origin` is the state whose
    provenance it has, by default `state` itself.
    """
    if origin is None:
        origin = state
    provenance = State.__new__(State)
    provenance.run_id = getattr(origin, "run_id", "")
    provenance.checkpoint_node = getattr(origin, "checkpoint_node", None)
    provenance._at = getattr(origin, "_at", 0.0)
    provenance._emit = None
    if schema := getattr(origin, "_schema", None):
        provenance._schema = schema
    if secrets := getattr(origin, "_secrets", None):
        provenance._secrets = secrets
    view: TrackedState = kind(state)
    view.access_log = AccessLog(provenance, {}, lambda key, value: detached_value(value))
    return view


def detached(state: State) -> State:
    """A copy that shares nothing changeable with `state`, for a reader outside of the run."""
    try:
        copied = decode(encode(dict(state)))
    except UnstorableValue:
        copied = {key: detached_value(value) for key, value in state.items()}
    copy = state._copy()
    dict.clear(copy)
    dict.update(copy, copied)
    copy._emit = None
    return copy


def new_id() -> str:
    """A fresh id that can't be guessed: 32 hexadecimal digits."""
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


register_type(
    State, name="limpet.State", to=lambda state: state.__reduce__()[1], restore=lambda part: _restore(*part)
)


def _refuse_assignment(key: str) -> NoReturn:
    raise UsageError(
        f"{key!r} has a reducer, so a node changes it by returning it: return {{{key!r}: …}} "
        "with what is new; the reducer combines it with what is there"
    )
