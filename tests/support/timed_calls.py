"""Functions that know how long they took, to compare with what the library says about them."""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

from support.graphs import Via

SHORTEST = 0.02
"""Seconds that a call takes at least: more than any clock's resolution."""


class Span(NamedTuple):
    """From when to when something lasted, by the clock that dates steps and events."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class TimedCalls:
    """A node or a task that takes a while; `spans` has its calls. The first `failures` of them fail."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.spans: list[Span] = []

    def __call__(self) -> None:
        began = time.time()
        while time.time() - began < SHORTEST:
            threading.Event().wait(SHORTEST / 10)
        self.spans.append(Span(began, time.time()))
        if len(self.spans) <= self.failures:
            raise ValueError("not yet")


def run_timed(via: Via, graph: Any, given: Any = None) -> tuple[Any, Span]:
    """Run a graph; returns its last state, and from when to when it ran."""
    began = time.time()
    state = via.execute(graph, given)
    return state, Span(began, time.time())
