"""kill -9 at every step of a run, and at any moment: the run ends as if nothing had happened."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from crash.fifty_steps import STEPS, fifty, fifty_every_seventh
from limpet.stores.sqlite.store import SQLiteStore
from limpet.testing import CrashMatrix, CrashReport

KINDS = ["inside", "before", "written", "after"]
"""Where to kill: inside the node, before its commit, after it but not acknowledged, and when it is acknowledged."""

either_driver = pytest.mark.parametrize("driver", ["sync", "async"])


@either_driver
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_at_every_step_ends_as_if_it_had_not_been(
    matrix: CrashMatrix, kind: str, driver: Any
) -> None:
    """G6, G7, H3, H4, H7, invariants 1 to 4: 50 or 51 kills of one run, resumed at once, in a new process each."""
    first = 0 if kind in ("before", "written") else 1
    report = matrix(fifty, driver=driver, chains=[chain((kind, step) for step in range(first, STEPS + 1))])
    assert report.killed_processes == STEPS + 1 - first
    check(report)
    snapshots = [note["snapshot"] for note in report.kills[0].notes if note["note"] == "found"]
    assert max(snapshots) > 1, "there is no snapshot on the way"


@either_driver
def test_one_kill_anywhere_leaves_the_run_as_it_was(matrix: CrashMatrix, driver: Any) -> None:
    """G6, H3, H4: a new run for each kill, so that one process starts it and one other brings it to its end."""
    steps = range(2, STEPS + 1, 3)
    chains = [chain([(KINDS[number % 4], step)]) for number, step in enumerate(steps)]
    report = matrix(fifty, driver=driver, chains=chains)
    assert report.killed == len(steps)
    check(report)


@either_driver
def test_a_run_saved_to_disk_survives_kills(matrix: CrashMatrix, driver: Any) -> None:
    """Invariant 1, G6, H3: the same at level disk, at every fifth step and each kind of boundary."""
    kills = [(KINDS[number % 4], step) for number, step in enumerate(range(1, STEPS + 1, 5))]
    report = matrix(fifty, driver=driver, level="disk", chains=[chain(kills)])
    assert report.killed_processes == 10
    check(report)


@either_driver
@pytest.mark.parametrize(("level", "kills"), [("process", 30), ("disk", 10)])
def test_a_kill_from_outside_at_any_moment_loses_nothing(
    matrix: CrashMatrix, driver: Any, level: Any, kills: int
) -> None:
    """G6, H3, H4, invariant 1: killed wherever it is, in the middle of a write too, again and again."""
    report = matrix(fifty, driver=driver, level=level, random_kills=kills)
    assert report.killed_processes >= kills
    check(report)


@either_driver
def test_what_was_saved_every_seventh_step_is_not_done_again(matrix: CrashMatrix, driver: Any) -> None:
    """G5, G7, H3: with an interval, no more than the steps since the last save run again, in the same phase."""
    inside = [("inside", step) for step in (3, 5, 11, 20, 28, 36, 50)]
    around = [("before", 7), ("written", 14), ("after", 21), ("before", 35), ("after", 42)]
    kills = sorted(inside + around, key=lambda each: each[1])
    report = matrix(fifty_every_seventh, driver=driver, chains=[chain(kills, interval=7)])
    assert report.killed_processes == len(kills)
    check(report, interval=7)
    saved = [note["calls"] for note in report.kills[0].notes if note["note"] == "ack" and note["calls"]]
    assert [step_of(calls[-1]) for calls in saved] == [7, 14, 21, 28, 35, 42, 49, 50]


def chain(kills: Iterable[tuple[str, int]], interval: int = 1) -> list[str]:
    """The points at which one process after the other is killed: of each kind, at a step of the run.

    A process counts from its own start: from the last step that was saved before it.
    """
    points = []
    saved = 0
    creation = 1
    for kind, step in kills:
        if kind == "inside":
            points.append(f"effect-start-{step - saved}:done")
        else:
            points.append(f"{step // interval - saved // interval + creation}:{kind}")
        if kind in ("written", "after"):
            saved = step
        else:
            saved = max((step - 1) // interval * interval, saved)
        if step > 0 or kind == "written":
            creation = 0
    return points


def check(report: CrashReport, interval: int = 1) -> None:
    """The runs took the same way as the uninterrupted one, and did no step again that they didn't have to."""
    assert report.calls == STEPS
    assert report.repeated_per_kill <= interval
    for kill in report.kills:
        assert kill.folder is not None
        check_order([note for note in kill.notes if note["note"] in ("process", "start")], interval)
        check_final_state(kill.folder)


def check_order(notes: list[dict[str, Any]], interval: int) -> None:
    reached = 0
    process_begins = True
    for note in notes:
        if note["note"] == "process":
            process_begins = True
            continue
        step = step_of(note["call"])
        if process_begins:
            assert reached - interval < step <= reached + 1
        else:
            assert step == reached + 1
        reached = step
        process_begins = False
    assert reached == STEPS


def check_final_state(folder: Path) -> None:
    with closing(SQLiteStore(folder / "runs.db")) as store:
        state = fifty().compile(store=store).state_at("matrix")
        assert (state.checkpoint_node, state.run_id) == ("close", "matrix")


def step_of(call: str) -> int:
    """The step of a call, which is a part of its idempotency key."""
    return int(call.split("/")[1])
