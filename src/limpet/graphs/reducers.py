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


def new_items(new: Any) -> list[Any]:
    """The items that `append` adds for this update."""
    return new if type(new) is list else [new]


def add_known(delta: Delta, key: str, old: Any, new: Any, reducer: Reducer) -> bool:
    """Add an update to a delta as what it adds to the `old` value; False if the reducer has to be called for that."""
    if reducer is append and (old is ABSENT or type(old) is list):
        delta.appends[key] = list(new_items(new))
    elif reducer is add and type(old) is list and type(new) is list:
        delta.appends[key] = list(new)
    elif reducer is merge and (old is ABSENT or type(old) is dict):
        delta.merges[key] = dict(new)
    else:
        return False
    return True


def reduced(reducer: Reducer, key: str, old: Any, new: Any) -> Any:
    """What a reducer makes of an update. An error that it raises says which key it was for."""
    try:
        return reducer(old, new)
    except Exception as problem:
        problem.add_note(f"in the reducer of {key!r}, given {type(old).__name__} and {type(new).__name__}")
        raise
