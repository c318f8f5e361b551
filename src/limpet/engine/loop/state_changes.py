"""Delta detection: finding out what a node returned, assigned, and altered in place.

A value that a node has read, and that can be altered in place, is encoded before the node gets it (its *shadow*)
and after: if the bytes differ, it was altered. A key that the node didn't read is never compared, so a large value
costs nothing. A shadow is kept: as long as the key keeps its value, each step costs one encoding instead of two.

What is stored comes from the encoded delta, and the live state gets its values from the same bytes. So the live state
shares nothing with what the node still holds, and equals what a resume will read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import is_
from typing import TYPE_CHECKING, Any

from limpet.engine.node_context.branch_result import BranchResult, FanInState
from limpet.errors import UnstorableValue, UsageError
from limpet.graphs.parameters import ABSENT
from limpet.graphs.reducers import MessagePositions, Reducer, add_known, reduced
from limpet.graphs.schema import Schema
from limpet.graphs.state import EMPTY_STATE, AccessLog, NodeState, State, StateView, TrackedState
from limpet.graphs.typed_state.annotations import has_instances
from limpet.journal.delta import Delta, read_delta, unchanged_length
from limpet.journal.encoding.codec import IMMUTABLE_TYPES, decode, detached_value, encode

if TYPE_CHECKING:
    from limpet.engine.loop.recorded_state import StateRecorder


class Changes:
    """Detects the changes of a run's live state, step after step.

    `durable` says that changes are stored; otherwise they are only applied. `isolated` says that a node gets
    copies of what it reads, because branches share the values or read them meanwhile. `base` is the state that
    a branch was copied from; the keys that differ from it are added to `changed`.
    """

    __slots__ = (
        "_base",
        "_changed",
        "_live",
        "_new_shadows",
        "_notes",
        "_positions",
        "_reducers",
        "_replaced",
        "_shadows",
        "_unread_notes",
        "durable",
        "recorder",
    )

    def __init__(
        self,
        live: State,
        reducers: Mapping[str, Reducer],
        durable: bool,
        base: Mapping[str, Any] | None = None,
        changed: dict[str, None] | None = None,
    ) -> None:
        self._live = live
        self._reducers = reducers
        self.durable = durable
        self._base = base
        self._changed = changed
        self.recorder: StateRecorder | None = None
        """Gets all changes, where the run is streamed."""
        self._positions: dict[str, MessagePositions] = {}
        self._replaced: set[str] = set()
        """Keys whose next update is a whole value, although they have reducers."""
        self._shadows: dict[str, bytes] = {}
        """The encoded values of keys that nodes have read, as the live state has them."""
        self._new_shadows: dict[str, bytes] = {}
        """The encoded values of keys that the current update changes."""
        self._notes = AccessLog(live, reducers, self.watch)
        # A node may keep its private state after the call, and write to it. Those writes go to notes that are
        # never read.
        self._unread_notes = AccessLog(live, reducers)

    def replace(self, keys: Iterable[str]) -> None:
        """The next update has whole values for these keys, although they have reducers."""
        for key in keys:
            if key in self._live:
                self._replaced.add(key)
                # With a shadow, a list that has only grown is stored as what was appended.
                self.watch(key, self._live[key])

    @property
    def isolated(self) -> bool:
        return self._notes.apart

    @isolated.setter
    def isolated(self, isolated: bool) -> None:
        self._notes.apart = isolated

    def hand_out(self, tracked: bool) -> NodeState:
        """A private copy of the live state for a node; `tracked` if changes in place must be found or undone."""
        # Tracking makes every read a Python call, so a node whose changes in place don't matter gets a plain dict.
        private: NodeState = TrackedState(self._live) if tracked else NodeState(self._live)
        private.access_log = self._notes
        return private

    def view(self) -> State:
        """The live state for a predicate or choice: what that alters in place are copies, and nothing is assigned."""
        view: StateView = StateView(self._live)
        view.access_log = self._unread_notes
        view.copies = {}
        return view

    def hand_out_results(self, find: Callable[[], list[BranchResult]]) -> FanInState:
        """The same for a fan-in, which also gets the results of the branches; `find` returns them."""
        private: FanInState = FanInState.with_results(self._live, find)
        private.access_log = self._notes
        return private

    def watch(self, key: str, value: Any) -> Any:
        """A node is about to read `value`: remember what it looks like, and return what the node gets."""
        if key not in self._shadows:
            # Without a store, the value is the same object that was recorded.
            known = None if self.durable or self.recorder is None else self.recorder.encoded(key)
            try:
                self._shadows[key] = known or encode(value)
            except UnstorableValue:
                if self.durable:
                    raise
        if not self.isolated:
            return value
        if key in self._shadows:
            return decode(self._shadows[key])
        return detached_value(value)

    def collect(self, private: NodeState, returned: Any) -> bytes:
        """Find what a node changed, apply it to the live state, and return it as bytes.

        Nothing is changed if it raises: `UnstorableValue`, `UsageError` for what can't be an update, or what a
        reducer raises.
        """
        notes = private.access_log
        if type(returned) is dict:
            # Without a store, reducers and assignments, the returned dict is the whole change. Values that the node
            # altered in place are those of the live state itself, unless it works on copies.
            in_place = notes.touched and (self.recorder or self.isolated)
            if not (self.durable or notes.written or self._reducers or in_place):
                for key in returned:
                    if type(key) is not str:
                        _refuse_key(key)
                if self.recorder is not None:
                    self.recorder.set_keys(returned)
                dict.update(self._live, returned)
                if self._changed is not None:
                    self._changed.update(dict.fromkeys(returned))
                if self._shadows or notes.touched:
                    self._shadows.clear()
                    self._end_notes(private)
                else:
                    private.access_log = self._unread_notes  # `_end_notes`, without a call at each step
                return b""
            update = returned
            whole = False
        else:
            update, whole = as_update(returned, private)
        if self.durable and not (self._shadows or notes.written or self._reducers):
            return self._collect_returned(private, update)
        return self._collect_delta(private, update, whole)

    def _collect_delta(self, private: NodeState, update: dict[str, Any], whole: bool) -> bytes:
        """The general case: find the delta, and apply it as it is stored."""
        delta = self._find_delta(private, update, whole)
        data = b""
        if self.durable:
            data = delta.encode()
            delta = self._as_stored(delta, data)
        if self.recorder is not None:
            self.recorder.apply(delta, self._new_shadows)
        # Everything that can raise has been done by now: from here on, the live state changes.
        delta.apply(self._live, self._base)
        self._replaced.clear()
        if self._changed is not None:
            self._changed.update(dict.fromkeys(delta.keys))
        self._update_shadows(delta)
        self._end_notes(private)
        return data

    def undo(self, private: NodeState) -> None:
        """A node didn't complete: take back what it altered in place.

        A thread that was left behind may still alter what the node read. So the live state gets new values for that,
        even where they look unchanged, and the node's private state is emptied.
        """
        for key in private.access_log.touched:
            shadow = self._shadows.get(key)
            if shadow is not None:
                dict.__setitem__(self._live, key, decode(shadow))
        dict.clear(private)
        self._end_notes(private)

    def _end_notes(self, private: NodeState) -> None:
        """The call is over: the next one gets new notes, and this private state writes to unread ones."""
        if self._notes.touched or self._notes.written:
            isolated = self._notes.apart
            self._notes = AccessLog(self._live, self._reducers, self.watch)
            self._notes.apart = isolated
        private.access_log = self._unread_notes

    def _collect_returned(self, private: NodeState, update: dict[str, Any]) -> bytes:
        """The common case with a store: nothing was assigned, nothing changeable was read, and no key has a reducer.

        Then the update is the delta. If all its values are atoms, they can be shared with the node as they are.
        """
        unchangeable = True
        for key, value in update.items():
            if type(key) is not str:
                _refuse_key(key)
            if type(value) not in IMMUTABLE_TYPES:
                unchangeable = False
        data = encode(update)
        if not unchangeable:
            update = decode(data)
        if self.recorder is not None:
            self.recorder.set_keys(update)
        dict.update(self._live, update)
        if self._changed is not None:
            self._changed.update(dict.fromkeys(update))
        if self._notes.touched:
            self._end_notes(private)
        else:
            private.access_log = self._unread_notes  # `_end_notes`, without a call at each step
        return data

    def _find_delta(self, private: NodeState, update: dict[str, Any], whole: bool) -> Delta:
        """What was assigned, returned and altered in place; `whole` values replace where others are reduced."""
        self._new_shadows.clear()
        delta = Delta()
        notes = private.access_log
        for key, assigned in notes.written.items():
            if key in update:
                continue  # what a node returns is newer than what it assigned
            if assigned:
                self._add_value(delta, key, dict.__getitem__(private, key))
            else:
                delta.deletes.append(key)
        for key, value in update.items():
            if type(key) is not str:
                _refuse_key(key)
            reducer = self._reducers.get(key)
            if reducer is None or key in self._replaced:
                self._add_value(delta, key, value)
            elif whole:
                self._add_whole(delta, key, value)
            else:
                self._add_reduced(delta, key, value, reducer)
        for key in notes.touched:
            if key in self._reducers:
                if key not in update and _size(dict.get(private, key)) != _size(self._live.get(key)):
                    _warn_without_effect(key)
            elif key not in update and key not in notes.written and (self.isolated or key in self._shadows):
                # The node has read it and may have altered it in place: comparing it with its shadow shows that.
                value = dict.__getitem__(private, key)
                if self.durable or not self._is_unaltered(key, value):
                    self._add_value(delta, key, value)
        return delta

    def _is_unaltered(self, key: str, value: Any) -> bool:
        """Whether what a node read is as it was, where that matters: in a branch, and where changes are recorded."""
        try:
            return (self.isolated or self.recorder is not None) and encode(value) == self._shadows.get(key)
        except UnstorableValue:
            return False

    def _as_stored(self, delta: Delta, data: bytes) -> Delta:
        """The delta as the journal gives it back, so that the live state shares nothing with the node's."""
        appended = delta.appends.values()
        merged = [entries.values() for entries in delta.merges.values()]
        if not (delta.live or delta.replaces) and all(
            map(_unchangeable, (delta.sets.values(), *appended, *merged))
        ):
            return delta  # atoms can't be altered, so sharing them is safe, and decoding them again is not needed
        stored = read_delta(decode(data))
        stored.live = {key: decode(self._new_shadows[key]) for key in delta.live}
        return stored

    def _add_value(self, delta: Delta, key: str, value: Any) -> None:
        """Add the new value of a key to the delta, as little of it as is needed."""
        shadow = self._shadows.get(key)
        if shadow is None or not self.durable:
            delta.sets[key] = value
            return
        new = encode(value, key)
        if new == shadow:
            if value is not self._live.get(key) and not self.isolated:
                # An equal value, but another object: nothing is stored, but the live state gets it, because the node
                # may have altered the object that it had read.
                self._new_shadows[key] = new
                delta.live[key] = value
            return
        self._new_shadows[key] = new
        old_length = unchanged_length(shadow, new) if type(value) is list else 0
        if old_length:
            # The list has only grown: its new items are stored, not all of it.
            delta.appends[key] = value[old_length:]
            delta.live[key] = value
        else:
            delta.sets[key] = value

    def _add_whole(self, delta: Delta, key: str, value: Any) -> None:
        """Add the new value of a key whose reducer isn't to be used. Of a list that has only grown, the new items."""
        old: Any = self._live.get(key)
        are_lists = key not in self._shadows and type(value) is list and type(old) is list
        # What a node gets of such a key shares its items with the live state, so that identity is enough.
        if are_lists and len(old) <= len(value) and all(map(is_, old, value)):
            if len(old) < len(value):
                delta.appends[key] = value[len(old) :]
        else:
            self._add_value(delta, key, value)

    def _add_reduced(self, delta: Delta, key: str, value: Any, reducer: Reducer) -> None:
        """Add an update of a key with a reducer to the delta. Known reducers store only what is new."""
        old = self._live.get(key, ABSENT)
        if add_known(delta, key, old, value, reducer, self._positions):
            return
        if old is ABSENT:
            delta.sets[key] = value
        elif self.durable:
            # The reducer gets a copy, as it may alter the old value and then raise.
            shadow = self._shadows.setdefault(key, encode(old))
            self._add_value(delta, key, reduced(reducer, key, decode(shadow), value))
        else:
            delta.sets[key] = reduced(reducer, key, detached_value(old), value)

    def _update_shadows(self, delta: Delta) -> None:
        """A key that got a new value has a new shadow: the one just made, or none until it is next read."""
        if not self.durable:
            # Without a store, values that were altered in place aren't compared, so shadows serve one step only.
            self._shadows.clear()
            return
        if self._shadows:
            for key in (*delta.keys, *delta.live):
                self._shadows.pop(key, None)
        self._shadows.update(self._new_shadows)


def changes_of(schema: Schema, live: State, *settings: Any) -> Changes:
    """What detects the changes of a state with this schema; `settings` are the other arguments of `Changes`."""
    if schema.checks is None:
        return Changes(live, schema.reducers, *settings)
    from limpet.engine.loop.checked_changes import CheckedChanges

    return CheckedChanges(schema.checks, live, schema.reducers, *settings)


class TaskChanges:
    """The same for a task of a workflow: it starts with nothing, and its whole result is new.

    So nothing is watched, compared or taken back.
    """

    __slots__ = ("_durable", "_live", "isolated")

    def __init__(self, live: State, durable: bool) -> None:
        self._live = live
        self._durable = durable
        self.isolated = True

    def hand_out(self, tracked: bool) -> NodeState:
        """The state of a task's call: none."""
        return EMPTY_STATE

    def collect(self, private: NodeState, update: dict[str, Any]) -> bytes:
        """Apply an update, and return it as bytes. Raises `UnstorableValue`."""
        if not self._durable:
            dict.update(self._live, update)
            return b""
        data = encode(update)
        if not _has_atomic_results(update):
            update = decode(data)
        dict.update(self._live, update)
        return data

    def view(self) -> State:
        """The state of a task's call: nothing is chosen after a task."""
        return EMPTY_STATE

    def undo(self, private: NodeState) -> None:
        """A task didn't complete: it has changed nothing."""

    def replace(self, keys: Iterable[str]) -> None:
        """A task has no keys with reducers."""


def _has_atomic_results(update: dict[str, Any]) -> bool:
    """Whether an update holds only task records whose results can't be altered, so that they can be shared."""
    if len(update) != 1:
        return False
    return IMMUTABLE_TYPES.issuperset([type(record.get("result")) for record in update["tasks"].values()])


def as_update(returned: Any, private: NodeState) -> tuple[dict[str, Any], bool]:
    """What a node returned, as a dict of updates. Raises `UsageError` for anything else.

    A returned State, or an instance of the class that describes the state, counts as those of its values that the
    node wasn't given and hasn't assigned. They replace what the state has, where a returned dict is reduced.
    """
    if returned is None:
        return {}, False
    if isinstance(returned, Mapping):
        if isinstance(returned, State):
            return _not_given(dict(dict.items(returned)), private), True
        return dict(returned), False
    from limpet.graphs.habits.langgraph import refuse_returned
    from limpet.graphs.typed_state.instances import short_text, state_class

    refuse_returned(returned)
    if has_instances(type(returned)):
        values = state_class(type(returned)).set_values(returned)
        source = getattr(getattr(private, "_schema", None), "source", None)
        if type(returned) is source:
            return _not_given(values, private), True
        return values, False
    shown = f": {short_text(returned)}"
    if getattr(private.access_log.live, "_secrets", None):
        shown = ""  # it may be, or hold, one of them
    raise UsageError(f"a node must return a dict of updates or None, not {type(returned).__name__}{shown}")


def _not_given(values: dict[str, Any], private: NodeState) -> dict[str, Any]:
    return {key: value for key, value in values.items() if dict.get(private, key, ABSENT) is not value}


def _size(value: Any) -> int:
    if type(value) in (list, dict, set):
        return len(value)
    return -1


def _warn_without_effect(key: str) -> None:
    from logging import getLogger

    getLogger("limpet.run").warning(
        "a node changed its copy of %r in place, which has no effect: the key has a reducer, so return what is new",
        key,
    )


def _unchangeable(values: Iterable[Any]) -> bool:
    return IMMUTABLE_TYPES.issuperset(map(type, values))


def _refuse_key(key: Any) -> None:
    raise UsageError(f"a state key must be a str, not {type(key).__name__}: {key!r}")
