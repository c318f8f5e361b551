"""Several processes that share one store, compared with several that do the same by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from statistics import median
from time import perf_counter

from child_many import RUNS, STEPS
from measure import Result, folder
from postgres import _installed, server

PROCESSES = 4
ROUNDS = 5


def processes() -> Iterator[Result]:
    """4 processes × 50 runs × 20 steps: on one SQLite file on a RAM disk, on one PostgreSQL on the real one.

    By hand each process makes its runs one after the other, one commit for each step.
    """
    with folder() as place:
        yield _compare("SQLite", "sqlite", f"{place}/hand.db", f"{place}/ours.db")
    if _installed():
        with server(ram=False) as (url, _):
            yield _compare("PostgreSQL", "postgres", url, url)


def _compare(what: str, kind: str, by_hand: str, ours: str) -> Result:
    taken: tuple[list[float], list[float]] = ([], [])
    numbers = count()
    for _ in range(ROUNDS):
        for who, place, times in (("hand", by_hand, taken[0]), ("ours", ours, taken[1])):
            times.append(_at_once(who, kind, place, next(numbers)))
    rates = [PROCESSES * RUNS * STEPS / min(times) for times in taken]
    share = median(hand / ours for hand, ours in zip(*taken, strict=True))
    shown = [f"{rate:,.0f} steps/s" for rate in rates]
    return Result(f"{PROCESSES} processes × {RUNS} runs, {what}", *shown, share, "-", True)


def _at_once(who: str, kind: str, place: str, number: int) -> float:
    """Seconds from the moment when all begin until the last is done."""
    program = [sys.executable, str(Path(__file__).with_name("child_many.py")), who, kind, place]
    children = [
        subprocess.Popen(
            [*program, f"{number}-{child}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        for child in range(PROCESSES)
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    began = perf_counter()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "done\n"
    took = perf_counter() - began
    for child in children:
        assert child.communicate(timeout=60)[0] == ""
        assert child.returncode == 0
    return took
