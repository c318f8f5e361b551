"""Waiting in tests: for a condition, with a deadline."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

T = TypeVar("T")

SOON = 60.0
"""Seconds within which what is waited for has happened, on any machine."""


def until(condition: Callable[[], T], what: str = "it") -> T:
    """Wait until a condition holds, and return what it gave."""
    deadline = monotonic() + SOON
    while not (found := condition()):
        assert monotonic() < deadline, f"{what} didn't happen in {SOON:g} s"
        sleep(0.005)
    return found
