"""kill -9 of runs with branches: what a branch had finished stays finished, and a join has all of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from crash import branching
from crash.payments import check_payments
from limpet import StateGraph
from limpet.testing import CrashMatrix, CrashReport


class Shape(NamedTuple):
    """A graph: how to build it, alone and with an observer, how many nodes it calls, and how many of them at once."""

    plain: Callable[[], StateGraph]
    observed: Callable[[], StateGraph]
    calls: int
    width: int
    has_pages: bool = True

    def built_for(self, driver: str) -> Callable[[], StateGraph]:
        """A stream and an observer report it differently."""
        if "stream" in driver:
            return self.plain
        return self.observed


SHAPES = {
    "wide": Shape(branching.wide, branching.wide_observed, 50, 8),
    "nested": Shape(branching.nested, branching.nested_observed, 40, 10),
    # Fifteen jobs are fetched at the third attempt.
    "planned": Shape(branching.planned, branching.planned_observed, 35 + 15 * 2, 5, has_pages=False),
    "mapped": Shape(branching.mapped, branching.mapped, 2002, 16, has_pages=False),
}

POINTS = {
    "wide": ["effect-start-{}:done", "{}:before", "{}:written", "{}:after"],
    "nested": [
        "effect-start-{}:done",
        "{}:before",
        "{}:written",
        "{}:after",
        "effect-charge-{}:done",
        "effect-paid-{}:done",
    ],
}
"""Where to kill: inside a node, before a commit, after it but not acknowledged, and when it is; around a `once`."""

PAGE_SIZES = (8000, 8500, 9000)
"""They bring on a snapshot when the branches are opened, or at another moment of theirs."""

DRIVERS = ("sync", "async", "stream", "astream")
either_driver = pytest.mark.parametrize("driver", ["sync", "async"])


@pytest.mark.parametrize(
    ("name", "driver", "level", "kills"),
    [
        *(("wide", driver, "process", 30) for driver in ("sync", "async")),
        *(("wide", driver, "disk", 16) for driver in ("sync", "async")),
        *(("wide", driver, "process", 12) for driver in ("stream", "astream")),
        *((graph, driver, "process", 12) for graph in ("nested", "planned") for driver in DRIVERS),
        *(("nested", driver, "disk", 10) for driver in ("sync", "async")),
    ],
)
def test_a_kill_at_any_moment_loses_no_finished_node(
    matrix: CrashMatrix, name: str, driver: Any, level: Any, kills: int
) -> None:
    """F12, H3, H4, H7, H8, invariants 1, 2, 8: killed from outside, again and again, until each run is complete."""
    shape = SHAPES[name]
    chance = random.Random(f"{name} {driver} {level}")
    killed = 0
    while killed < kills:
        input = chance.choice(inputs_of(shape))
        report = matrix(shape.built_for(driver), input, driver=driver, level=level, random_kills=kills // 2)
        check(report, shape)
        killed += report.killed_processes


@either_driver
@pytest.mark.parametrize(("name", "point"), [(name, point) for name in POINTS for point in POINTS[name]])
def test_a_kill_at_a_boundary_of_any_node_loses_none(
    matrix: CrashMatrix, name: str, point: str, driver: Any
) -> None:
    """F12, H3, H4, H8, invariants 1, 2, 8: in a node, around a commit, around a `once`; then in a new process."""
    shape = SHAPES[name]
    chance = random.Random(f"{name} {driver} {point}")
    most = 6 if "charge" in point or "paid" in point else 2 * shape.width
    killed = 0
    while killed < 10:
        chain = [point.format(chance.randrange(1, most)) for _ in range(shape.calls * 2)]
        input = chance.choice(inputs_of(shape))
        report = matrix(shape.built_for(driver), input, driver=driver, chains=[chain])
        check(report, shape)
        killed += report.killed_processes


@either_driver
def test_a_fan_in_that_was_killed_runs_again_with_all_results(matrix: CrashMatrix, driver: Any) -> None:
    """F12, H3, invariant 8: in its body, before its commit and after it; and no branch runs again for it."""
    shape = SHAPES["wide"]
    # Of fifty calls, only one comes after that of the fan-in.
    chain = ["effect-start-49:done", "effect-start-1:done", "1:before", "1:written"]
    report = matrix(branching.wide_observed, {"page_size": 9000}, driver=driver, chains=[chain])
    check(report, shape)
    assert report.killed_processes == 4
    notes = report.kills[0].notes
    starts = Counter(note["node"] for note in notes if note["note"] == "start")
    joins = [note for note in notes if note["note"] == "effect" and note["name"] == "join"]
    assert starts["join"] == len(joins) == 4
    assert starts.total() == shape.calls + 3


@either_driver
@pytest.mark.parametrize("name", ["wide", "nested"])
def test_a_run_is_resumed_from_a_snapshot_that_was_taken_while_branches_were_under_way(
    matrix: CrashMatrix, name: str, driver: Any
) -> None:
    """H2, H3, H4, invariant 2: wherever it falls, from the moment on at which the branches are opened."""
    shape = SHAPES[name]
    taken = set()
    for input in inputs_of(shape):
        report = matrix(shape.observed, input, driver=driver, chains=[["effect-start-39:done"]])
        check(report, shape)
        taken.update(note["snapshot"] for note in report.kills[0].notes if note["note"] == "found")
    assert len(taken) > 1  # not all at one moment; where exactly depends on how the branches interleave
    assert min(taken) > 10


@either_driver
def test_a_map_that_is_killed_runs_only_the_items_again_that_were_under_way(
    matrix: CrashMatrix, driver: Any
) -> None:
    """F12, H3, invariants 2, 8: two thousand items, several kills in their midst, and sixteen calls more for each."""
    shape = SHAPES["mapped"]
    chance = random.Random(f"mapped {driver}")
    chain = [f"effect-start-{chance.randrange(200, 450)}:done" for _ in range(4)]
    report = matrix(branching.mapped, driver=driver, chains=[chain])
    assert report.killed_processes == 4
    check(report, shape)
    calls = Counter(note["node"] for note in report.kills[0].notes if note["note"] == "start")
    assert calls["list"] == calls["total"] == 1
    assert calls.total() - 2 <= branching.ITEMS + 4 * branching.MAX_ITEMS_AT_ONCE
    assert max(calls.values()) <= 1 + 4


@either_driver
def test_a_map_that_is_killed_at_any_moment_loses_no_item(matrix: CrashMatrix, driver: Any) -> None:
    """F12, H3, invariants 2, 8: the same from outside, in the middle of a write too."""
    report = matrix(branching.mapped, driver=driver, random_kills=4)
    assert report.killed_processes >= 4
    check(report, SHAPES["mapped"])


@either_driver
@pytest.mark.parametrize(
    ("name", "build"), [("wide", branching.wide_every_seventh), ("nested", branching.nested_every_seventh)]
)
def test_what_was_saved_every_seventh_step_is_not_done_again(
    matrix: CrashMatrix, name: str, build: Any, driver: Any
) -> None:
    """G5, H3, invariants 2, 8: with an interval, steps of several branches wait for the one that is saved.

    A kill may cost the nodes under way, and those that weren't to be saved yet. When one of these is to be saved, the
    other branches may have reached their next node already.
    """
    shape = SHAPES[name]
    chance = random.Random(f"interval {name} {driver}")
    killed = 0
    while killed < 10:
        input = chance.choice(inputs_of(shape))
        report = matrix(build, input, driver=driver, random_kills=5)
        check(report, shape, lost_per_kill=7 + 2 * shape.width)
        killed += report.killed_processes


@pytest.mark.parametrize("name", ["wide", "nested"])
def test_a_state_is_the_same_to_the_order_of_its_keys_whichever_process_resumes_it(
    matrix: CrashMatrix, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """H4, invariant 3: processes that order sets differently, and a kill between them."""
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    shape = SHAPES[name]
    report = matrix(shape.observed, {"page_size": 9000}, fresh=True, chains=[["effect-start-26:done"]])
    assert report.killed_processes == 1
    check(report, shape)


def inputs_of(shape: Shape) -> list[Any]:
    if not shape.has_pages:
        return [None]
    return [{"page_size": size} for size in PAGE_SIZES]


def check(report: CrashReport, shape: Shape, lost_per_kill: int | None = None) -> None:
    """The runs did no more than they had to."""
    assert report.calls == shape.calls
    assert report.repeated_per_kill <= (lost_per_kill or shape.width)
    for kill in report.kills:
        check_payments(kill.notes)
