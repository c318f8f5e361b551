"""Measuring: two ways of doing the same work, in turn, in one process, as a ratio.

Machines change their speed from one second to the next. So the ratio is the median of those of neighbouring
turns; the times shown are the best of each.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table."""

    what: str
    by_hand: str
    limpet: str
    ratio: float
    goal: str
    met: bool


def against(
    what: str,
    by_hand: Work,
    limpet: Work,
    goal: float,
    per: int = 1,
    rounds: int = 9,
    unit: str = "µs/step",
) -> Result:
    """The median ratio of `rounds` turns each; `per` is how many steps one turn takes."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for work, taken in zip((by_hand, limpet), times, strict=True):
            gc.collect()
            began = perf_counter()
            work()
            taken.append(perf_counter() - began)
    hand, ours = (min(taken) / per for taken in times)
    found = median(b / a for a, b in zip(*times, strict=True))
    aim = f"≤ {goal:g}×" if goal < float("inf") else "-"
    return Result(what, _time(hand, unit), _time(ours, unit), found, aim, found <= goal)


def ratio(what: str, hand: float, ours: float, goal: float, unit: str = "µs/step") -> Result:
    """A line from two times in seconds."""
    aim = f"≤ {goal:g}×" if goal < float("inf") else "-"
    return Result(what, _time(hand, unit), _time(ours, unit), ours / hand, aim, ours / hand <= goal)


def sizes(what: str, hand: float, ours: float, goal: float) -> Result:
    """A line from two sizes in bytes."""
    return Result(what, _size(hand), _size(ours), ours / hand, f"≤ {goal:g}×", ours / hand <= goal)


@contextmanager
def folder(*, ram: bool = True) -> Iterator[Path]:
    """An empty folder: on a RAM disk where there is one, so that the software's own cost is seen, or on disk."""
    place = "/dev/shm" if ram and os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="limpet-bench-", dir=place) as name:
        yield Path(name)


def stored_bytes(path: Path) -> int:
    """What a SQLite database takes once its log is folded in."""
    import sqlite3

    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    pages, size, free = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "page_size", "freelist_count")
    )
    connection.close()
    return int((pages - free) * size)


def _time(seconds: float, unit: str) -> str:
    if unit.startswith("µs/"):
        return f"{seconds * 1e6:.2f} {unit}"
    return f"{seconds * 1e3:.1f} {unit}"


def _size(size: float) -> str:
    return f"{size / 1e6:.2f} MB" if size >= 1e5 else f"{size:.0f} B"
