"""Ready-made predicates for edges, and functions that combine predicates.

Each has a description, so that a picture or a fingerprint of the graph can name it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from limpet.graphs.parameters import ABSENT

Predicate = Callable[[Mapping[str, Any]], Any]


def always(state: Mapping[str, Any]) -> bool:
    """Holds in any state."""
    return True


def key_exists(key: str) -> Predicate:
    """Holds when the state has `key`."""
    return _described(lambda state: key in state, f"key_exists({key!r})")


def key_equals(key: str, value: Any) -> Predicate:
    """Holds when the state has `key` and it equals `value`."""

    def holds(state: Mapping[str, Any]) -> bool:
        found = state.get(key, ABSENT)
        return found is not ABSENT and bool(found == value)

    return _described(holds, f"key_equals({key!r}, {value!r})")


def not_(predicate: Predicate) -> Predicate:
    """Holds when `predicate` doesn't."""
    return _described(lambda state: not predicate(state), f"not_({describe(predicate)})")


def and_(*predicates: Predicate) -> Predicate:
    """Holds when all of them do. They are called in order, up to the first that doesn't hold."""
    return _described(lambda state: all(each(state) for each in predicates), f"and_({_listed(predicates)})")


def or_(*predicates: Predicate) -> Predicate:
    """Holds when one of them does. They are called in order, up to the first that holds."""
    return _described(lambda state: any(each(state) for each in predicates), f"or_({_listed(predicates)})")


def describe(predicate: Predicate | None) -> str:
    """The description of a predicate; a user's function is just "custom"."""
    if predicate is None or predicate is always:
        return ""
    return getattr(predicate, "description", "custom")


def _described(predicate: Predicate, description: str) -> Predicate:
    predicate.description = description  # type: ignore[attr-defined]  # functions take attributes
    return predicate


def _listed(predicates: tuple[Predicate, ...]) -> str:
    return ", ".join(describe(each) for each in predicates)
