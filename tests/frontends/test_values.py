"""H19: values as the API sends them. Every answer is JSON that every client can read."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from limpet import MemoryStore, Runs, register_type
from limpet.frontends import values
from limpet.frontends.values import (
    LARGE,
    not_json,
    shown_value,
    shown_values,
    size_of,
    to_bytes,
    without_large,
)
from limpet.journal.encoding import user_types
from limpet.journal.encoding.unknown_values import UnknownValue
from support.http_api import api, plain


@register_type
@dataclass
class Point:
    x: int
    y: Any = None


@register_type
class Color(Enum):
    RED = 1


@register_type
class Pair(NamedTuple):
    left: int
    right: int


def point_of(x: Any, y: Any = None) -> dict[str, Any]:
    return {"class": f"{__name__}:Point", "content": {"x": x, "y": y}}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2**53, 9007199254740992),
        (-(10**30), -(10**30)),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (1.5, 1.5),
        (b"\x00\xff", "AP8="),
        ((1, (2,)), [1, [2]]),
        ({3, 1, 2}, [1, 2, 3]),
        (deque([1, 2]), [1, 2]),
        (OrderedDict(a=1), {"a": 1}),
        (Counter("aab"), {"a": 2, "b": 1}),
        (datetime(2026, 7, 31, 12, tzinfo=UTC), "2026-07-31T12:00:00+00:00"),
        (date(2026, 7, 31), "2026-07-31"),
        (timedelta(hours=1), "1:00:00"),
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ({1: "a", None: "b"}, {"1": "a", "None": "b"}),
        ({"1": "a", 1: "b"}, {"1": "a", "1 (int)": "b"}),
        (Point(1, Point(2)), point_of(1, point_of(2))),
        (Color.RED, {"class": f"{__name__}:Color", "content": "RED"}),
        (Pair(1, 2), {"class": f"{__name__}:Pair", "content": {"left": 1, "right": 2}}),
        (numpy.int64(3), 3),
        (numpy.array([[1, 2]]), [[1, 2]]),
        (numpy.float64("nan"), "nan"),
    ],
)
def test_each_value_is_shown_as_json(value: Any, shown: Any) -> None:
    """H19: what JSON can't hold becomes text, and no digit is lost."""
    found = shown_value(value)
    assert found == shown
    assert type(found) is type(shown)
    assert json.loads(to_bytes(found)) == shown


def test_a_number_of_thousands_of_digits_is_text() -> None:
    """H19: neither Python nor a browser reads it in decimal."""
    assert shown_value(2**20_000) == hex(2**20_000)


def test_values_are_masked_inside_of_instances_too() -> None:
    """H19: a field of the name of a secret key, at any depth."""
    shown = shown_values({"a": [Point(1, {"y": 2})], "b": {"c": {"y": 3}}}, {"y"})
    assert shown == {"a": [point_of(1, "‹secret›")], "b": {"c": {"y": "‹secret›"}}}


def test_the_secret_result_of_a_task_is_masked() -> None:
    """H19: its record says that it is secret."""
    assert shown_value({"login": {"status": "completed", "result": 1, "secret": True}}) == {
        "login": {"status": "completed", "result": "‹secret›", "secret": True}
    }
    assert shown_value({"result": 1, "secret": False}) == {"result": 1, "secret": False}


def test_a_value_is_shown_alike_where_its_class_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: a server needs no code of graphs to show their runs."""
    with api(plain(lambda state: {"at": Point(1, Point(2))})) as client:
        client.run_until_it_stops("r")
        known = client.read("/runs/r/state")
        monkeypatch.setattr(user_types.TYPES, "is_known", lambda name: False)
        assert isinstance(Runs(client.store).state("r")["at"], UnknownValue)
        assert client.read("/runs/r/state")["values"] == known["values"]
        assert known["not_json"] == {"at": "Point"}


def test_what_is_nested_too_deeply_is_cut() -> None:
    """H19: as deep as no reader looks, and no program recurses."""
    value: Any = "bottom"
    for _ in range(10_000):
        value = [value]
    assert "…" in to_bytes(shown_value(value)).decode()
    assert "bottom" not in to_bytes(value).decode()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("text", ""),
        (2**60, ""),
        ([{"a": [1.5, None, True]}], ""),
        ((1,), "tuple"),
        ([{"a": {1}}], "set"),
        (math.nan, "float"),
        (b"", "bytes"),
        ({1: 2}, "dict with other keys than texts"),
        (Point(1), "Point"),
        (True, ""),
    ],
)
def test_a_form_knows_which_values_it_cannot_give_back(value: Any, name: str) -> None:
    """H19: an edit of them would change their type."""
    assert not_json({"key": value}) == ({"key": name} if name else {})


def test_large_values_are_left_out_with_their_sizes() -> None:
    """H19."""
    small, large = without_large({"a": 1, "b": "x" * (LARGE + 1), "c": [1] * LARGE})
    assert small == {"a": 1}
    assert large == {"b": LARGE + 1, "c": size_of([1] * LARGE)}


def test_of_many_values_the_smallest_are_kept_in_their_order() -> None:
    """H19: so that an answer is small, too, and has what it can have."""
    small, large = without_large({"a": "x" * 15_000, **{str(n): "x" * 10_000 for n in range(99)}, "b": 1})
    assert list(small) == [*(str(n) for n in range(99)), "b"]
    assert large == {"a": 15_000}


@pytest.mark.parametrize(
    "value", [[], {}, [1] * 9, list(range(25)), [[1, 2]] * 30, {str(number): number for number in range(20)}]
)
def test_the_size_of_a_large_value_is_that_of_its_parts(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: it is measured in parts, so that other threads needn't wait for all of it."""
    monkeypatch.setattr(values, "AT_ONCE", 10)
    assert size_of(value) == len(to_bytes(value))


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(ANYTHING)
def test_every_answer_is_strict_json(value: Any) -> None:
    """H19: without NaN, and as UTF-8, also with half of a surrogate pair in it."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    encoded = to_bytes({"value": value})
    found = json.loads(encoded.decode("utf-8"), parse_constant=refuse)
    assert to_bytes(found) == encoded


def test_a_state_of_odd_values_is_read_over_http() -> None:
    """H19: as a client of any language reads it."""
    values = {"big": 2**70, "nan": math.nan, "half": "\U0001f41a", "at": datetime(2026, 1, 1), "many": {1, 2}}
    with api(plain(lambda state: values), store=MemoryStore()) as client:
        client.run_until_it_stops("r")
        answer = client.get("/api/v1/runs/r/state")
        assert b"NaN" not in answer.content
        found = answer.json()
        assert found["values"]["big"] == 2**70
        assert found["not_json"] == {"nan": "float", "at": "datetime", "many": "set"}
