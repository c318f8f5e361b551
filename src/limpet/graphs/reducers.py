"""Reducers: how an update is combined with the value that is there.

Any function `(old, new) -> merged` is one. The two here are also known to the journal, which then stores
only what they added.
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
    """What `append` adds for this update."""
    return new if type(new) is list else [new]
