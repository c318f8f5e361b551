"""Waiting in tests: for a condition, with a deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import TypeVar

T = TypeVar("T")

SOON = 60.0
"""Seconds within which what is waited for has happened, on any machine."""


@contextmanager
def dying_thread(kind: type[BaseException]) -> Iterator[None]:
    """A thread dies of such an error. That is waited for: otherwise it may be reported during another test."""
    died_of: list[type[BaseException]] = []
    usual = threading.excepthook
    threading.excepthook = lambda end: died_of.append(end.exc_type)
    try:
        yield
        until(lambda: died_of, "the end of the thread")
    finally:
        threading.excepthook = usual
    assert died_of == [kind]


def until(condition: Callable[[], T], what: str = "it") -> T:
    """Wait until a condition holds, and return what it gave."""
    deadline = monotonic() + SOON
    while not (found := condition()):
        assert monotonic() < deadline, f"{what} didn't happen in {SOON:g} s"
        sleep(0.005)
    return found
