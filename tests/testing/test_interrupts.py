"""The hunter of locks that an interrupt leaves held finds them, and finds nothing where there are none."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from limpet.testing.interrupts import hunt_at_every_point, hunt_at_random

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")

HERE = "test_interrupts.py"


class Locked:
    """A lock, and ways to hold it while something is counted."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0

    def by_with(self) -> None:
        with self.lock:
            self.add()

    def by_acquire(self) -> None:
        self.lock.acquire()
        try:
            self.add()
        finally:
            self.lock.release()

    def by_generator(self) -> None:
        with self.holding():
            self.add()

    @contextmanager
    def holding(self) -> Iterator[None]:
        with self.lock:
            yield

    def by_condition(self) -> None:
        with threading.Condition(self.lock):
            self.add()

    def add(self) -> None:
        self.count += len([self.count])

    def check(self) -> None:
        held = not self.lock.acquire(timeout=0.01)
        if held:
            self.lock = threading.Lock()
        else:
            self.lock.release()
        assert not held, "the lock is still held"


@pytest.mark.parametrize("way", ["by_acquire", "by_generator", "by_condition"])
def test_a_lock_that_an_interrupt_leaves_held_is_found_at_a_point(way: str) -> None:
    """G12: and the report says where the interrupt came."""
    locked = Locked()
    report = hunt_at_every_point(getattr(locked, way), locked.check, [HERE, "contextlib.py", "threading.py"])
    assert "the lock is still held" in str(report)
    assert (
        f"in Locked.{way}" in str(report) or "threading.py" in str(report) or "contextlib.py" in str(report)
    )


def test_a_lock_held_by_with_is_always_released() -> None:
    locked = Locked()
    report = hunt_at_every_point(locked.by_with, locked.check, [HERE])
    assert report.problems == []
    assert report.interrupts >= report.points > 2


def test_a_lock_that_an_interrupt_leaves_held_is_found_at_random() -> None:
    locked = Locked()

    def work() -> None:
        for _ in range(300):
            locked.by_generator()

    report = hunt_at_random(work, locked.check, 300)
    assert "the lock is still held" in str(report)


def test_random_interrupts_find_nothing_where_nothing_is_wrong() -> None:
    locked = Locked()

    def work() -> None:
        for _ in range(300):
            locked.by_with()

    report = hunt_at_random(work, locked.check, 100)
    assert (report.problems, report.interrupts) == ([], 100)


def test_a_hang_is_a_problem() -> None:
    """G12: the main thread is woken from it, so that the hunt ends."""
    taken = threading.Lock()
    taken.acquire()
    report = hunt_at_random(lambda: None, taken.acquire, 1, deadline=0.2)
    assert "hung for 0.2 s" in report.problems[0]
    assert "Hang" in report.problems[0]
