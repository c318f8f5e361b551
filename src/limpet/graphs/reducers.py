"""Reducers: how an update is combined with the current value of a key.

Any function `(old, new) -> merged` can be a reducer. The journal knows those here, and `operator.add` of lists: of
these it stores only what they add.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import add
from typing import Any

from limpet.graphs.parameters import ABSENT
from limpet.journal.delta import Delta

Reducer = Callable[[Any, Any], Any]


def append(old: list[Any], new: Any) -> list[Any]:
    """The old list with the new items after it. `new` is a list of items, or one item that isn't a list."""
    return old + new_items(new)


def merge(old: dict[Any, Any], new: Mapping[Any, Any]) -> dict[Any, Any]:
    """The old dict with the new entries put over it."""
    return {**old, **new}


def copy_containers(state: dict[str, Any]) -> dict[str, Any]:
    """The same data with copies of the lists, dicts and sets at the top, which grow in place in the live state."""
    copied = {}
    for key, value in dict.items(state):
        copied[key] = value.copy() if type(value) in (list, dict, set) else value
    return copied


def new_items(new: Any) -> list[Any]:
    """The items that `append` adds for this update."""
    return new if type(new) is list else [new]


def add_messages(old: list[Any], new: Any) -> list[Any]:
    """The old messages with the new ones: one whose id is there takes its place, the others come after.

    `new` is a list of messages, or one message. The id of a message is its `id`: that of a dict, or an attribute. A
    message without one is always added.
    """
    merged = list(old)
    positions = MessagePositions().of(merged)
    replaced, added = _by_place(positions, new_items(new))
    for index, message in replaced:
        merged[index] = message
    return merged + added


class MessagePositions:
    """Where the messages of a list are, by id. While the list only grows, only its new items are looked at."""

    __slots__ = ("_count", "_messages", "_positions")

    def __init__(self) -> None:
        self._messages: list[Any] = []
        self._count = 0
        self._positions: dict[Any, int] = {}

    def of(self, messages: list[Any]) -> dict[Any, int]:
        """The positions in this list."""
        if messages is not self._messages or len(messages) < self._count:
            self._messages = messages
            self._count = 0
            self._positions = {}
        for index in range(self._count, len(messages)):
            message_id = _id_of(messages[index])
            if message_id is not None:
                self._positions[message_id] = index
        self._count = len(messages)
        return self._positions


def _id_of(message: Any) -> Any:
    if isinstance(message, Mapping):
        return message.get("id")
    return getattr(message, "id", None)


def _by_place(positions: Mapping[Any, int], messages: list[Any]) -> tuple[list[list[Any]], list[Any]]:
    """The messages that replace others, each with its index, and those that are added after the old ones."""
    replaced: dict[int, Any] = {}
    added: list[Any] = []
    added_at: dict[Any, int] = {}
    for message in messages:
        message_id = _id_of(message)
        if message_id is None:
            added.append(message)
        elif message_id in positions:
            replaced[positions[message_id]] = message
        elif message_id in added_at:
            added[added_at[message_id]] = message
        else:
            added_at[message_id] = len(added)
            added.append(message)
    return [[index, message] for index, message in replaced.items()], added


def add_known(
    delta: Delta, key: str, old: Any, new: Any, reducer: Reducer, positions: dict[str, MessagePositions]
) -> bool:
    """Add an update to a delta as what it changes in the `old` value; False if the reducer has to be called for that.

    `positions` are those of the messages by key, from one step to the next.
    """
    if reducer is append and (old is ABSENT or type(old) is list):
        delta.appends[key] = list(new_items(new))
    elif reducer is add and type(old) is list and type(new) is list:
        delta.appends[key] = list(new)
    elif reducer is merge and (old is ABSENT or type(old) is dict):
        delta.merges[key] = dict(new)
    elif reducer is add_messages and (old is ABSENT or type(old) is list):
        _add_messages_to(delta, key, old, new, positions)
    else:
        return False
    return True


def _add_messages_to(
    delta: Delta, key: str, old: Any, new: Any, positions: dict[str, MessagePositions]
) -> None:
    if old is ABSENT:
        old = []
    known = positions.setdefault(key, MessagePositions()).of(old)
    replaced, added = _by_place(known, new_items(new))
    if replaced:
        delta.replaces[key] = replaced
    if added:
        delta.appends[key] = added


def reduced(reducer: Reducer, key: str, old: Any, new: Any) -> Any:
    """What a reducer makes of an update. An error that it raises says which key it was for."""
    try:
        return reducer(old, new)
    except Exception as problem:
        problem.add_note(f"in the reducer of {key!r}, given {type(old).__name__} and {type(new).__name__}")
        raise
