"""kill -9 of workflows: what a task had finished stays finished, in layers that were done and in those under way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from crash import workflows
from crash.payments import check_payments
from limpet import Workflow
from limpet.testing import CrashMatrix, CrashReport

Build = Callable[[Any], Workflow]


class Shape(NamedTuple):
    """A workflow: how to build it, how many layers it has, and how many tasks the widest of them."""

    plain: Build
    observed: Build
    with_all_checkpoints: Build
    layers: int
    width: int

    def built_for(self, way: str) -> Build:
        """One that keeps the last five checkpoints, or all, or just the newest."""
        if "observed" in way:
            return self.observed
        if "stream" in way:
            return self.with_all_checkpoints
        return self.plain


SHAPES = {
    "grid": Shape(
        workflows.grid, workflows.grid_observed, workflows.grid_with_all_checkpoints, layers=10, width=20
    ),
    "changing": Shape(
        workflows.changing,
        workflows.changing_observed,
        workflows.changing_with_all_checkpoints,
        layers=8,
        width=10,
    ),
    "superseding": Shape(
        workflows.superseding,
        workflows.superseding_observed,
        workflows.superseding_with_all_checkpoints,
        layers=20,
        width=4,
    ),
}

POINTS = {
    "grid": [
        "effect-start-{}:done",
        "{}:before",
        "{}:written",
        "{}:after",
        "effect-charge-{}:done",
        "effect-paid-{}:done",
    ],
    "changing": ["effect-start-{}:done", "{}:before", "{}:written", "{}:after", "effect-handle-{}:done"],
}
"""Where to kill: inside a task, before a commit, after it but not acknowledged, and when it is; around a `once`."""

WAYS = ("observed sync", "observed async", "stream", "astream", "sync", "async")
"""Watched by an observer, iterated, or neither; each without and with an event loop."""

either_stream = pytest.mark.parametrize("driver", ["stream", "astream"])


@pytest.mark.parametrize(
    ("name", "way", "level", "kills"),
    [
        *(("grid", way, "process", 12) for way in ("observed sync", "stream", "observed async")),
        *(("grid", way, "process", 8) for way in ("astream", "sync", "async")),
        *(("grid", way, "disk", 10) for way in ("stream", "observed async")),
        *(("changing", way, "process", 8) for way in WAYS),
        *(("changing", way, "disk", 10) for way in ("observed sync", "observed async")),
        *(("superseding", way, "process", 6) for way in WAYS),
    ],
)
def test_a_kill_at_any_moment_loses_no_finished_task(
    matrix: CrashMatrix, name: str, way: str, level: Any, kills: int
) -> None:
    """D3, D4, H3, H4, H8, invariants 1, 2: killed from outside, again and again, until each run is complete.

    Each new process resumes the run by the id of another checkpoint, or by that of the run.
    """
    shape = SHAPES[name]
    driver: Any = way.split()[-1]
    report = matrix(shape.built_for(way), driver=driver, by="checkpoint", level=level, random_kills=kills)
    assert report.killed_processes >= kills
    check(report, shape)


@either_stream
@pytest.mark.parametrize(("name", "point"), [(name, point) for name in POINTS for point in POINTS[name]])
def test_a_kill_at_a_boundary_of_any_task_loses_none(
    matrix: CrashMatrix, name: str, point: str, driver: Any
) -> None:
    """D4, H3, H8, invariants 1, 2: in a task, in a handler, around a commit or a `once`; then in a new process."""
    shape = SHAPES[name]
    chance = random.Random(f"{name} {driver} {point}")
    most = 2 * shape.width
    if "handle" in point:
        most = 4
    elif "charge" in point or "paid" in point:
        most = 12
    killed = 0
    while killed < 6:
        chain = [point.format(chance.randrange(1, most)) for _ in range(400)]
        by: Any = chance.choice(["resume", "checkpoint"])
        report = matrix(shape.with_all_checkpoints, driver=driver, by=by, chains=[chain])
        check(report, shape)
        killed += report.killed_processes


@pytest.mark.parametrize(
    ("moment", "way"),
    [
        *(("before", way) for way in ("observed sync", "astream", "sync")),
        *(("written", way) for way in ("observed sync", "astream", "sync")),
        *(("after", way) for way in ("observed sync", "astream")),
    ],
)
@pytest.mark.parametrize("name", ["grid", "changing"])
def test_a_kill_around_the_commit_of_each_layer_loses_no_task(
    matrix: CrashMatrix, name: str, moment: str, way: str
) -> None:
    """D1, D4, H3, invariants 1, 2: each process in turn is killed at the next layer, before or after its save."""
    shape = SHAPES[name]
    build = shape.observed if "observed" in way else shape.plain
    # A layer that wasn't saved is the first that the next process ends, so that the second is the next one.
    later = "layer-2:before" if moment == "before" else f"layer-1:{moment}"
    driver: Any = way.split()[-1]
    report = matrix(build, driver=driver, chains=[[f"layer-1:{moment}", *[later] * 30]])
    check(report, shape)
    assert shape.layers - 1 <= report.killed_processes < 30
    if name == "grid":
        return  # as data flow, tasks of later layers are under way when a layer is saved, and no planner is called
    assert planned_layers(report.kills[0].notes) == shape.layers
    if moment != "before" or way != "sync":
        assert report.kills[0].repeated == 0, "no task was under way when it was killed"


@either_stream
def test_a_layer_that_can_never_be_saved_is_planned_again_without_its_tasks(
    matrix: CrashMatrix, driver: Any
) -> None:
    """D4, H3: its handler is called again in each process; none of its tasks is."""
    shape = SHAPES["changing"]
    report = matrix(shape.plain, driver=driver, chains=[["layer-2:before", *["layer-1:before"] * 5]])
    assert report.killed_processes == 6
    check(report, shape)
    by_process: list[list[dict[str, Any]]] = []
    for note in report.kills[0].notes:
        if note["note"] == "process":
            by_process.append([])
        by_process[-1].append(note)
    unsaved = [note for notes in by_process[1:6] for note in notes]
    assert not [note for note in unsaved if note["note"] == "start"]
    killed = [note for notes in by_process[:6] for note in notes]
    handled = Counter(note["key"] for note in killed if note["note"] == "effect" and note["name"] == "handle")
    assert handled.most_common(1)[0][1] == 6


@pytest.mark.parametrize("name", ["grid", "changing"])
def test_a_state_is_the_same_to_the_order_of_its_keys_whichever_process_resumes_it(
    matrix: CrashMatrix, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """H4, invariant 3: processes that order sets differently, and a kill between them."""
    monkeypatch.setenv("PYTHONHASHSEED", "random")
    shape = SHAPES[name]
    report = matrix(shape.plain, driver="stream", fresh=True, chains=[["effect-start-16:done"]])
    assert report.killed_processes == 1
    check(report, shape)


@either_stream
def test_any_checkpoint_id_that_is_kept_leads_to_the_newest_state(matrix: CrashMatrix, driver: Any) -> None:
    """D3, D5, H3: what was finished after it isn't done again. The first process to resume takes the oldest."""
    shape = SHAPES["grid"]
    build = shape.with_all_checkpoints
    report = matrix(build, driver=driver, by="checkpoint", chains=[["layer-6:after"]])
    assert report.killed_processes == 1
    check(report, shape)


def check(report: CrashReport, shape: Shape) -> None:
    """The runs did no more than they had to, and their checkpoints are in order."""
    assert report.repeated_per_kill <= shape.width
    for kill in report.kills:
        check_payments(kill.notes)
        saved = [int(note["checkpoint"].split("@")[1]) for note in kill.notes if note.get("checkpoint")]
        assert saved == sorted(saved), "a checkpoint id came after a later one"
        assert planned_layers(kill.notes) <= shape.layers


def planned_layers(notes: list[dict[str, Any]]) -> int:
    """How many layers were planned and saved. The last call of the planner finds that there are no more."""
    saved = {call for note in notes if note["note"] == "ack" for call in note["calls"]}
    return sum(call.endswith("/after_layer") for call in saved) - 1
