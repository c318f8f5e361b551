"""What one step changed, applied to a state, and to the state of a branch that shares values with another."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from limpet.journal.delta import Delta, read_delta
from limpet.journal.encoding.codec import decode

BASE: dict[str, Any] = {"log": [1], "book": {"k": 1}, "n": 1}
DELTA = Delta({"n": 2}, {"log": [2]}, {"book": {"l": 2}}, ["gone"])


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, {"log": [1, 2], "book": {"k": 1, "l": 2}, "n": 2}),
        ({"log": [0], "book": {}}, {"log": [0, 2], "book": {"l": 2}, "n": 2}),
        ({"log": None, "book": None}, {"log": [2], "book": {"l": 2}, "n": 2}),
    ],
    ids=["shared", "its own", "deleted"],
)
def test_a_branch_changes_its_own_state_and_not_the_one_it_was_copied_from(
    own: dict[str, Any], expected: dict[str, Any]
) -> None:
    """F12, H2: whether it shares a value, has one of its own, or has none."""
    base = copy.deepcopy(BASE)
    state = {
        key: value for key, value in {**base, **copy.deepcopy(own), "gone": 1}.items() if value is not None
    }
    copy.deepcopy(DELTA).apply(state, base)
    assert state == expected
    assert base == BASE


def test_a_delta_comes_back_from_its_bytes() -> None:
    """H2: all four kinds of change."""
    state = copy.deepcopy({**BASE, "gone": 1})
    read_delta(decode(DELTA.encode())).apply(state)
    assert state == {"log": [1, 2], "book": {"k": 1, "l": 2}, "n": 2}
    assert DELTA.keys == ["n", "log", "book", "gone"]
