"""The ready-made predicates, and how they combine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from limpet import DefinitionError, State, StateGraph, always, and_, key_equals, key_exists, not_, or_
from limpet.graphs.edges import describe


class NeverEqual:
    def __eq__(self, other: object) -> bool:
        raise AssertionError("it isn't to be called")

    __hash__ = None  # type: ignore[assignment]  # it can't be compared, so it can't be hashed


def true(state: Mapping[str, Any]) -> bool:
    return True


def false(state: Mapping[str, Any]) -> bool:
    return False


def never(state: Mapping[str, Any]) -> bool:
    raise AssertionError("this one isn't to be asked")


@pytest.mark.parametrize(
    ("predicate", "state", "holds"),
    [
        (always, {}, True),
        (key_exists("a"), {"a": None}, True),
        (key_exists("a"), {"b": 1}, False),
        (key_equals("a", 1), {"a": 1}, True),
        (key_equals("a", 1), {"a": 2}, False),
        (key_equals("a", 1), {}, False),
        (key_equals("a", None), {}, False),
        (key_equals("a", None), {"a": None}, True),
        (key_equals("a", [1]), {"a": [1]}, True),
        (key_equals("a", NeverEqual()), {}, False),
        (not_(key_exists("a")), {}, True),
        (not_(always), {}, False),
        (and_(true, true), {}, True),
        (and_(true, false), {}, False),
        (and_(), {}, True),
        (or_(false, true), {}, True),
        (or_(false, false), {}, False),
        (or_(), {}, False),
        (and_(or_(key_exists("a"), key_exists("b")), not_(key_equals("c", 1))), {"b": 1, "c": 2}, True),
        (and_(or_(key_exists("a"), key_exists("b")), not_(key_equals("c", 1))), {"b": 1, "c": 1}, False),
    ],
)
def test_a_predicate_holds_when_it_should(
    predicate: Callable[[Mapping[str, Any]], Any], state: dict[str, Any], holds: bool
) -> None:
    """G3: always, key exists, key equals, not, and, or."""
    assert predicate(state) is holds


def test_and_stops_at_the_first_that_does_not_hold() -> None:
    """G3: those after it aren't asked."""
    assert and_(true, false, never)({}) is False


def test_or_stops_at_the_first_that_holds() -> None:
    """G3: those after it aren't asked."""
    assert or_(false, true, never)({}) is True


def test_a_combination_of_users_own_predicates_gives_a_bool() -> None:
    """G3: whatever truthy things they return."""
    assert and_(lambda state: "yes", lambda state: [1])({}) is True
    assert or_(lambda state: "", lambda state: 0)({}) is False
    assert not_(lambda state: "")({}) is True


def test_a_predicate_describes_itself() -> None:
    """G3: so that a picture and the fingerprint of a graph can name it."""
    combined = and_(key_exists("a"), or_(not_(key_equals("b", "x")), lambda state: True))
    assert describe(combined) == "and_(key_exists('a'), or_(not_(key_equals('b', 'x')), custom))"
    assert describe(None) == describe(always) == ""


@pytest.mark.parametrize(
    ("given", "reached"),
    [
        ({"kind": "a"}, "first"),
        ({"kind": "b", "urgent": True}, "second"),
        ({"kind": "b"}, "third"),
        ({}, "third"),
    ],
)
def test_ready_made_predicates_route_a_run(given: dict[str, Any], reached: str) -> None:
    """G3: on edges, in their order."""
    graph = StateGraph().add_node("start").set_entry_point("start")
    for name in ("first", "second", "third"):
        graph.add_node(name).set_finish_point(name)
    graph.add_edge("start", "first", key_equals("kind", "a"))
    graph.add_edge("start", "second", and_(key_exists("urgent"), not_(key_equals("urgent", False))))
    graph.add_edge("start", "third", always)
    assert graph.execute(given).checkpoint_node == reached


@pytest.mark.parametrize("place", ["edge", "choice"])
def test_an_async_predicate_is_a_definition_error(place: str) -> None:
    """G3: it would never be awaited, and what it returns would always be true."""

    async def ask(state: State) -> bool:
        return False

    graph = StateGraph()
    with pytest.raises(DefinitionError):
        graph.add_edge("a", "b", ask) if place == "edge" else graph.add_conditional_edges("a", ask, {})
