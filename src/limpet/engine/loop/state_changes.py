"""Finding out what a node changed: what it returned, what it assigned, and what it altered in place.

A value that a node has read, and that can be altered in place, is encoded once before the node gets it
(its *shadow*) and once after; if the bytes differ, it was altered. Nobody looks at a key that wasn't read,
so a large value that is only carried along costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from operator import add
from typing import Any

from limpet.errors import UnstorableValue, UsageError
from limpet.graphs import reducers as known
from limpet.graphs.reducers import Reducer
from limpet.graphs.state import NO_STATE, NodeState, Notes, State, TrackedState
from limpet.journal.delta import Delta, read_delta
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.encoding.copies import ATOMS, detached_value

_ABSENT: Any = object()


class Changes:
    """Watches the live state of a run, step after step.

    `durable` says that what changed is to be stored; otherwise it is only carried out. `apart` hands out copies
    of what a node reads: others have the same values, or look at them meanwhile. `base` is the state that a
    branch was copied from; the keys that aren't as they were there are added to `changed`.
    """

    __slots__ = (
        "_base",
        "_changed",
        "_fresh",
        "_live",
        "_notes",
        "_old_notes",
        "_reducers",
        "_replaced",
        "_shadows",
        "durable",
    )

    def __init__(
        self,
        live: State,
        reducers: Mapping[str, Reducer],
        durable: bool,
        base: Mapping[str, Any] | None = None,
        changed: dict[str, None] | None = None,
    ) -> None:
        self._live, self._reducers, self.durable = live, reducers, durable
        self._base, self._changed = base, changed
        self._replaced: set[str] = set()
        self._shadows: dict[str, bytes] = {}
        self._fresh: dict[str, bytes] = {}
        self._notes = Notes(live, reducers, self.watch)
        self._old_notes = Notes(live, reducers)

    def replace(self, keys: Iterable[str]) -> None:
        """The next update has whole values for these keys, although they have reducers."""
        for key in keys:
            if key in self._live:
                self._replaced.add(key)
                self.watch(key, self._live[key])  # so that what a list has grown by is found

    @property
    def apart(self) -> bool:
        return self._notes.apart

    @apart.setter
    def apart(self, apart: bool) -> None:
        self._notes.apart = apart

    def private(self, tracked: bool) -> NodeState:
        """The live state as a node is handed it; `tracked` if changes in place are to be found or taken back."""
        made: NodeState = TrackedState(self._live) if tracked else NodeState(self._live)
        made.notes = self._notes
        return made

    def watch(self, key: str, value: Any) -> Any:
        """A node is about to be handed `value`: remember what it looks like, and return what it gets."""
        if key not in self._shadows:
            try:
                self._shadows[key] = encode(value)
            except UnstorableValue:
                if self.durable:
                    raise
        if self.apart:
            return decode(self._shadows[key]) if key in self._shadows else detached_value(value)
        return value

    def collect(self, private: NodeState, returned: Any) -> bytes:
        """Work out what a node changed, carry it out on the live state, and return it as bytes.

        Nothing is changed if it raises: `UnstorableValue`, `UsageError` for what is no update, or
        whatever a reducer raises.
        """
        notes = private.notes
        if type(returned) is dict:
            if not (self.durable or notes.written or self._reducers or (self.apart and notes.touched)):
                for key in returned:
                    if type(key) is not str:
                        _refuse_key(key)
                dict.update(self._live, returned)
                if self._changed is not None:
                    self._changed.update(dict.fromkeys(returned))
                if self._shadows or notes.touched:
                    self._shadows.clear()
                    self._retire(private)
                else:
                    private.notes = self._old_notes
                return b""
            update = returned
        else:
            update = as_update(returned, private)
        if self.durable and not (self._shadows or notes.written or self._reducers):
            return self._take(private, update)
        delta = self._delta(private, update, isinstance(returned, State))
        data = b""
        if self.durable:
            data = delta.encode()
            delta = self._as_stored(delta, data)
        delta.apply(self._live, self._base)
        self._replaced.clear()
        if self._changed is not None:
            self._changed.update(dict.fromkeys(delta.keys))
        self._follow(delta)
        self._retire(private)
        return data

    def undo(self, private: NodeState) -> None:
        """A node didn't complete: take back what it altered in place, and note nothing more of it.

        A thread that was left behind may still alter what the node was given. So what it has read is made anew,
        even where it looks unchanged, and there is nothing more to be read.
        """
        for key in private.notes.touched:
            shadow = self._shadows.get(key)
            if shadow is not None:
                dict.__setitem__(self._live, key, decode(shadow))
        dict.clear(private)
        self._retire(private)

    def _retire(self, private: NodeState) -> None:
        """New notes for the next task, if need be. Whoever keeps the private state of this one writes elsewhere."""
        if self._notes.touched or self._notes.written:
            apart, self._notes = self._notes.apart, Notes(self._live, self._reducers, self.watch)
            self._notes.apart = apart
        private.notes = self._old_notes

    def _take(self, private: NodeState, update: dict[str, Any]) -> bytes:
        """The common case: nothing was assigned, read for altering, or is reduced."""
        unchangeable = True
        for key, value in update.items():
            if type(key) is not str:
                _refuse_key(key)
            if type(value) not in ATOMS:
                unchangeable = False
        data = encode(update)
        dict.update(self._live, update if unchangeable else decode(data))
        if self._changed is not None:
            self._changed.update(dict.fromkeys(update))
        self._retire(private)
        return data

    def _delta(self, private: NodeState, update: dict[str, Any], whole: bool) -> Delta:
        """What was assigned, returned and altered in place; `whole` values replace where others are reduced."""
        self._fresh.clear()
        delta, notes = Delta(), private.notes
        for key, there in notes.written.items():
            if key in update:
                continue
            if there:
                self._replace(delta, key, dict.__getitem__(private, key))
            else:
                delta.deletes.append(key)
        for key, value in update.items():
            if type(key) is not str:
                _refuse_key(key)
            reducer = self._reducers.get(key)
            if reducer is None or whole or key in self._replaced:
                self._replace(delta, key, value)
            else:
                self._reduce(delta, key, value, reducer)
        for key in notes.touched:
            if key in self._reducers:
                if _size(dict.get(private, key)) != _size(self._live.get(key)):
                    _warn_without_effect(key)
            elif key not in update and key not in notes.written and (self.apart or key in self._shadows):
                self._replace(delta, key, dict.__getitem__(private, key))
        return delta

    def _as_stored(self, delta: Delta, data: bytes) -> Delta:
        """The delta as it comes back from the journal, so that the live state shares nothing with the node's."""
        grown = (*delta.appends.values(), *(entries.values() for entries in delta.merges.values()))
        if not delta.live and all(map(_unchangeable, (delta.sets.values(), *grown))):
            return delta
        stored = read_delta(decode(data))
        stored.live = {key: decode(self._fresh[key]) for key in delta.live}
        return stored

    def _replace(self, delta: Delta, key: str, value: Any) -> None:
        shadow = self._shadows.get(key)
        if shadow is None or not self.durable:
            delta.sets[key] = value
            return
        new = encode(value, key)
        if new == shadow:
            if value is not self._live.get(key) and not self.apart:
                self._fresh[key] = new
                delta.live[key] = value
            return
        self._fresh[key] = new
        grown = _grown(shadow, new) if type(value) is list else 0
        if grown:
            delta.appends[key] = value[grown:]
            delta.live[key] = value
        else:
            delta.sets[key] = value

    def _reduce(self, delta: Delta, key: str, value: Any, reducer: Reducer) -> None:
        old = self._live.get(key, _ABSENT)
        if reducer is known.append and (old is _ABSENT or type(old) is list):
            delta.appends[key] = list(known.new_items(value))
        elif reducer is add and type(old) is list and type(value) is list:
            delta.appends[key] = list(value)
        elif reducer is known.merge and (old is _ABSENT or type(old) is dict):
            delta.merges[key] = dict(value)
        elif old is _ABSENT:
            delta.sets[key] = value
        elif self.durable:
            shadow = self._shadows.setdefault(key, encode(old))
            self._replace(delta, key, _reduced(reducer, key, decode(shadow), value))
        else:
            delta.sets[key] = _reduced(reducer, key, detached_value(old), value)

    def _follow(self, delta: Delta) -> None:
        """A key that got another value has another shadow: the one just made, or none until it is next read."""
        if not self.durable:
            self._shadows.clear()
            return
        if self._shadows:
            for key in (*delta.keys, *delta.live):
                self._shadows.pop(key, None)
        self._shadows.update(self._fresh)


class TaskChanges:
    """The same for a task of a workflow: it starts with nothing, and all that it comes to is new.

    So there is nothing to be watched, compared or taken back.
    """

    __slots__ = ("_durable", "_live", "apart")

    def __init__(self, live: State, durable: bool) -> None:
        self._live, self._durable, self.apart = live, durable, True

    def private(self, tracked: bool) -> NodeState:
        """What the task's call has for a state."""
        return NO_STATE

    def collect(self, private: NodeState, update: dict[str, Any]) -> bytes:
        """Carry out an update, and return it as bytes. Raises `UnstorableValue`."""
        if not self._durable:
            dict.update(self._live, update)
            return b""
        data = encode(update)
        records = update["tasks"].values() if len(update) == 1 else ()
        simple = all(type(record.get("result")) in ATOMS for record in records) if records else False
        dict.update(self._live, update if simple else decode(data))
        return data

    def undo(self, private: NodeState) -> None:
        """A task didn't complete: there is nothing of it."""

    def replace(self, keys: Iterable[str]) -> None:
        """Nothing is reduced here."""


def as_update(returned: Any, private: NodeState) -> dict[str, Any]:
    """What a node returned, as a dict of updates. Raises `UsageError` when it can't be one.

    A State stands for what is different in it from what the node was given or has assigned; it replaces,
    where a returned dict is reduced.
    """
    if returned is None:
        return {}
    if isinstance(returned, State):
        return {
            key: value for key, value in dict.items(returned) if dict.get(private, key, _ABSENT) is not value
        }
    if isinstance(returned, Mapping):
        return dict(returned)
    if is_dataclass(returned) and not isinstance(returned, type):
        return {each.name: getattr(returned, each.name) for each in fields(returned)}
    shown = "" if getattr(private.notes.live, "_secrets", None) else f": {_short(returned)}"
    raise UsageError(f"a node returns a dict of updates or None, not {type(returned).__name__}{shown}")


def detached(state: State) -> State:
    """A copy that shares nothing changeable with `state`, for whoever looks at it from outside."""
    try:
        copied = decode(encode(dict(state)))
    except UnstorableValue:
        copied = {key: detached_value(value) for key, value in state.items()}
    made = state._copy()
    dict.clear(made)
    dict.update(made, copied)
    made._emit = None
    return made


def _grown(old: bytes, new: bytes) -> int:
    """How many items an encoded list had, if the new one starts with all of them; otherwise 0."""
    old_head, old_count = _list_head(old)
    new_head, _ = _list_head(new)
    if old_head and new_head and new.startswith(old[old_head:], new_head):
        return old_count
    return 0


def _list_head(data: bytes) -> tuple[int, int]:
    first = data[0]
    if first & 0xF0 == 0x90:
        return 1, first & 0x0F
    if first == 0xDC:
        return 3, int.from_bytes(data[1:3], "big")
    if first == 0xDD:
        return 5, int.from_bytes(data[1:5], "big")
    return 0, 0


def _reduced(reducer: Reducer, key: str, old: Any, new: Any) -> Any:
    try:
        return reducer(old, new)
    except Exception as problem:
        problem.add_note(f"in the reducer of {key!r}, given {type(old).__name__} and {type(new).__name__}")
        raise


def _size(value: Any) -> int:
    return len(value) if type(value) in (list, dict, set) else -1


def _warn_without_effect(key: str) -> None:
    from logging import getLogger

    getLogger("limpet.run").warning(
        "a node changed its copy of %r in place, which has no effect: the key has a reducer, so return what is new",
        key,
    )


def _unchangeable(values: Iterable[Any]) -> bool:
    return ATOMS.issuperset(map(type, values))


def _refuse_key(key: Any) -> None:
    raise UsageError(f"a state key is a str, not {type(key).__name__}: {key!r}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
