"""What the events of a streamed run have of its state: read-only, and copied when it is read.

A loop whose run is streamed has a `StateRecorder`, which gets what each step changed, encoded. So the state after a
step costs what the step changed, and an event shares nothing with the state that nodes work on. A value that has got
items or entries isn't encoded again: the record of it grows, and an event knows how far it had grown by then.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Any, Final, NoReturn

from limpet.errors import UnstorableValue, UsageError
from limpet.graphs.parameters import ABSENT
from limpet.graphs.secrets import masked
from limpet.graphs.state import State
from limpet.journal.delta import Delta
from limpet.journal.encoding.codec import IMMUTABLE_TYPES, decode, detached_value, encode


class Encoded:
    """A value, as bytes."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    def value(self) -> Any:
        """A copy of the value."""
        return decode(self.data)


class Copied:
    """A value that can't be encoded, which a run without a store may have."""

    __slots__ = ("copy",)

    def __init__(self, value: Any) -> None:
        self.copy = detached_value(value)

    def value(self) -> Any:
        """A copy of the value, if it can be copied."""
        return detached_value(self.copy)


class Replaced:
    """New items of a list for old ones: pairs of an index and an item, as a record."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[list[Any]]) -> None:
        self.pairs = _recorded(pairs)


class Grown:
    """A list or dict that has got items or entries: what it was, and the first `count` of the `additions` to it.

    The additions may be more: a later state has more of them, and shares the list.
    """

    __slots__ = ("additions", "base", "count")

    def __init__(self, base: Any, additions: list[Any], count: int) -> None:
        self.base = base
        self.additions = additions
        self.count = count

    def grow(self, addition: Any) -> Grown:
        """The same with one more addition. One of two states that grow from here needs a list of its own."""
        if len(self.additions) == self.count:
            self.additions.append(addition)
            return Grown(self.base, self.additions, self.count + 1)
        return Grown(self, [addition], 1)

    def value(self) -> Any:
        """A copy of the value."""
        whole = _read(self.base)
        for addition in self.additions[: self.count]:
            if type(addition) is Replaced:
                for index, item in _read(addition.pairs):
                    whole[index] = item
                continue
            more = _read(addition)
            if type(whole) is dict:
                whole.update(more)
            else:
                whole.extend(more)
        return whole


RECORDS: Final = frozenset({Encoded, Copied, Grown})
"""What stands for a value until it is read. Any other value is one that can't be changed, and stands for itself."""


class RecordedDict(dict[str, Any]):
    """A dict that can't be changed, and whose values are copied when they are read for the first time."""

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        value = dict.__getitem__(self, key)
        if type(value) in RECORDS:
            value = value.value()
            dict.__setitem__(self, key, value)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401  # this is that get

    def values(self) -> ValuesView[Any]:  # type: ignore[override]  # a view of the same values
        return ValuesView(self)

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]  # a view of the same items
        return ItemsView(self)

    def __iter__(self) -> Iterator[str]:
        """Having this method makes `dict(state)` and `{**state}` go through `__getitem__`."""
        return dict.__iter__(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, RecordedDict):
            other = dict(other)
        return dict(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    def __ror__(self, other: Any) -> Any:
        return other | dict(self)

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError("what an event holds can't be changed; make a copy of it, with dict(…)")

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = pop = popitem = setdefault = clear = _refuse


class RecordedUpdate(RecordedDict):
    """What a step changed: the new values of keys, and what was added to those that grow."""

    __slots__ = ("_secrets",)

    _secrets: frozenset[str]
    __init__ = dict.__init__  # as of a `RecordedState`

    def __repr__(self) -> str:
        return repr(masked(dict(self), self._secrets))


class RecordedState(RecordedDict, State):
    """The state after a step."""

    __slots__ = ()

    __repr__ = State.__repr__
    __reduce__ = State.__reduce__
    __init__ = dict.__init__  # one is made at each step, and its provenance is set right after


class StateRecorder:
    """Records the state of one loop, step by step.

    `records` has the state, `update` what the newest step changed, and `removed` the keys that it deleted. A branch
    begins with the records of the loop around it, for the values that it shares with that.
    """

    __slots__ = ("_schema", "_secrets", "records", "removed", "update")

    def __init__(
        self, state: State, around: StateRecorder | None = None, shared: State | None = None
    ) -> None:
        self.records: dict[str, Any] = {}
        self.update: dict[str, Any] = {}
        self.removed: list[str] = []
        self._schema = getattr(state, "_schema", None)
        self._secrets: frozenset[str] = getattr(state, "_secrets", frozenset())
        for key, value in dict.items(state):
            if around is not None and shared is not None and dict.get(shared, key, ABSENT) is value:
                self.records[key] = around.records[key]
            else:
                self.records[key] = _recorded(value)

    def set_keys(self, update: Mapping[str, Any]) -> None:
        """Record a step that only set keys."""
        changed = {}
        for key, value in update.items():
            changed[key] = value if type(value) in IMMUTABLE_TYPES else _recorded(value)
        self.update = changed
        self.removed = []
        self.records.update(changed)

    def apply(self, delta: Delta, encoded: Mapping[str, bytes]) -> None:
        """Record a step; `encoded` has the bytes of some of the new values."""
        records = self.records
        changed: dict[str, Any] = {}
        for key, value in delta.sets.items():
            record = value
            if type(value) not in IMMUTABLE_TYPES:
                data = encoded.get(key)
                record = _recorded(value) if data is None else Encoded(data)
            changed[key] = records[key] = record
        for key, pairs in delta.replaces.items():
            changed[key] = _recorded([item for _, item in pairs] + delta.appends.get(key, []))
            self._grow(key, Replaced(pairs))
        for additions in (delta.appends, delta.merges):
            for key, more in additions.items():
                addition = _recorded(more)
                changed.setdefault(key, addition)
                self._grow(key, addition)
        for key in delta.deletes:
            records.pop(key, None)
        self.update = changed
        self.removed = list(delta.deletes)

    def _grow(self, key: str, addition: Any) -> None:
        """Record that a list or dict got items or entries, or other items for those that it had."""
        before = self.records.get(key)
        if key not in self.records:
            self.records[key] = addition
        elif type(before) is Grown:
            self.records[key] = before.grow(addition)
        else:
            self.records[key] = Grown(before, [addition], 1)

    def encoded(self, key: str) -> bytes | None:
        """The bytes of a key's value, if they are known."""
        record = self.records.get(key)
        return record.data if type(record) is Encoded else None

    def state_of(self, live: State) -> State:
        """The state as it is recorded, with the provenance of the live one."""
        state: State = RecordedState(self.records)
        state.run_id = live.run_id
        state.checkpoint_node = live.checkpoint_node
        state._at = live._at
        state._emit = None
        # With a default, which is several times faster than `hasattr` if it is unset.
        saved = getattr(live, "_saved", None)
        if saved is not None:
            state._saved = saved
        if self._schema is not None:
            state._schema = self._schema
        if self._secrets:
            state._secrets = self._secrets
        return state

    def newest_update(self) -> RecordedUpdate:
        """What the newest step changed."""
        update: RecordedUpdate = RecordedUpdate(self.update)
        update._secrets = self._secrets
        return update


def _recorded(value: Any) -> Any:
    """What stands for a value in a record."""
    if type(value) in IMMUTABLE_TYPES:
        return value
    try:
        return Encoded(encode(value))
    except UnstorableValue:
        return Copied(value)


def _read(record: Any) -> Any:
    return record.value() if type(record) in RECORDS else record
