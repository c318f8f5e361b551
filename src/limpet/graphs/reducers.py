"""Reducers: how an update is combined with the current value of a key.

Any function `(old, new) -> merged` can be a reducer. The journal knows the two here, and stores only what they add.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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
