"""kill -9 of workflows: what a task had finished stays finished, in layers that were done and in those under way."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs the signals of POSIX")

WORKFLOWS = {"grid": (10, 20), "changing": (8, 10), "superseding": (20, 4)}
"""How many layers a workflow has, and how many tasks the widest of them: so many run again after a kill."""

POINTS = {
    "grid": ["body", "unsaved", "saved", "acknowledged", "paying", "paid"],
    "changing": ["body", "unsaved", "saved", "acknowledged", "handler"],
}
"""Where to die: inside a task, before a commit, after it but unheard, when it is heard of; around a `once`."""

DRIVERS = ("sync", "async", "stream", "astream", "bare", "abare")
"""Watched by an observer, iterated, or left alone; each without and with an event loop."""

either_driver = pytest.mark.parametrize("driver", ["stream", "astream"])


class Lives:
    """One run of a workflow, life after life, and what its log must look like in the end."""

    def __init__(self, nursery: Any, folder: Path, workflow: str, **settings: Any) -> None:
        self.nursery, self.folder, self.workflow, self.settings = nursery, folder, workflow, settings
        self.kills = 0

    def live(self, **order: Any) -> bool:
        """A new process goes on with the run, at once; True if it was killed."""
        place = {"db": str(self.folder / "runs.db"), "log": str(self.folder / "log")}
        answer = self.nursery.ask(**place, **{"workflow": self.workflow, **self.settings, **order})
        if answer["signal"]:
            assert answer["signal"] == signal.SIGKILL
            self.kills += 1
            return True
        assert "raised" not in answer, answer["raised"]
        return False

    def live_on(self, chance: random.Random, longest: int) -> None:
        """Kill it from outside, wherever it is, in the middle of a write too, until it comes to its end."""
        written = 0
        while self.live(
            lines=written + chance.randrange(2, longest),
            delay=chance.random() * 0.002,
            by=chance.choice(["run", "checkpoint"]),
        ):
            written = len(self.lines())

    @property
    def final(self) -> str:
        return (self.folder / "final").read_text()

    def lines(self) -> list[list[str]]:
        file = self.folder / "log"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def said(self, kind: str) -> list[list[str]]:
        """What the lines of a kind say."""
        return [words for first, *words in self.lines() if first == kind]

    def keys(self) -> set[tuple[str, str]]:
        """Each task that was called, with its idempotency key."""
        return {(task, key) for task, key, _ in self.said("start")}

    def check(self, expected: Lives) -> None:
        """It came to the end of the uninterrupted run, and did no more for it than it had to."""
        assert self.final == expected.final
        assert self.keys() == expected.keys()
        width = WORKFLOWS[self.workflow][1]
        assert len(self.said("start")) <= len(expected.said("start")) + self.kills * width
        acknowledged: set[str] = set()
        paid: set[str] = set()
        layers: set[str] = set()
        begun: set[tuple[str, ...]] = set()
        for kind, *words in self.lines():
            if kind == "life":
                begun = set()
            elif kind == "kept":
                assert acknowledged <= set(words), "what was acknowledged was lost"
                acknowledged |= set(words)
            elif kind == "start":
                assert words[0] not in acknowledged, f"{words[0]} ran again, after it had been saved"
                assert tuple(words) not in begun, f"{words[0]} ran twice in one life"
                begun.add(tuple(words))
            elif kind == "ack":
                acknowledged.add(words[0])
            elif kind == "pay":
                assert words[0] not in paid, f"{words[0]} was paid for twice"
            elif kind == "paid":
                paid.add(words[0])
            elif kind == "handle":
                assert words[0] not in layers, f"layer {words[0]} was handled again, after it had been saved"
            elif kind == "layer":
                layers.add(words[0])
        saved = [int(words[0].split("@")[1]) for words in self.said("saved")]
        assert saved == sorted(saved), "a checkpoint id came after a later one"


@pytest.fixture(scope="module")
def nursery(launch_for_module: Callable[..., Any]) -> Any:
    return launch_for_module("../crash_workflows")


@pytest.fixture
def lives(nursery: Any, tmp_path: Path) -> Callable[..., Lives]:
    """A new run in a file of its own."""
    made = iter(range(10_000))

    def make(workflow: str, **settings: Any) -> Lives:
        folder = tmp_path / str(next(made))
        folder.mkdir()
        return Lives(nursery, folder, workflow, **settings)

    return make


@pytest.fixture(scope="module")
def uninterrupted(nursery: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Lives]:
    """The run of a workflow that nobody kills."""
    made: dict[str, Lives] = {}

    def run(workflow: str) -> Lives:
        if workflow not in made:
            made[workflow] = Lives(nursery, tmp_path_factory.mktemp(workflow), workflow, driver="stream")
            assert not made[workflow].live()
            assert len(made[workflow].said("layer")) == WORKFLOWS[workflow][0]
        return made[workflow]

    return run


@pytest.mark.parametrize(
    ("workflow", "driver", "level", "kills"),
    [
        *(("grid", driver, "process", 30) for driver in ("sync", "stream", "async")),
        *(("grid", driver, "process", 12) for driver in ("astream", "bare", "abare")),
        *(("grid", driver, "disk", 10) for driver in ("stream", "async")),
        *(("changing", driver, "process", 20) for driver in DRIVERS),
        *(("changing", driver, "disk", 10) for driver in ("sync", "async")),
        *(("superseding", driver, "process", 10) for driver in DRIVERS),
    ],
)
def test_a_kill_at_any_moment_loses_no_finished_task(
    lives: Callable[..., Lives], uninterrupted: Any, workflow: str, driver: str, level: str, kills: int
) -> None:
    """D3, D4, H3, H4, H8, invariants 1, 2: killed from outside, again and again, until each run is complete.

    A new process goes on by the run's id, or by that of the last checkpoint that was told of.
    """
    chance = random.Random(f"{workflow} {driver} {level}")
    survived = 0
    while survived < kills:
        run = lives(workflow, driver=driver, level=level, keep=chance.choice([1, 5, None]))
        run.live_on(chance, 60 if workflow == "grid" else 25)
        run.check(uninterrupted(workflow))
        survived += run.kills


@either_driver
@pytest.mark.parametrize(
    ("workflow", "point"), [(workflow, point) for workflow in POINTS for point in POINTS[workflow]]
)
def test_a_kill_at_a_boundary_of_any_task_loses_none(
    lives: Callable[..., Lives], uninterrupted: Any, workflow: str, point: str, driver: str
) -> None:
    """D4, H3, H8, invariants 1, 2: in a task, in a handler, around a commit or a `once`; then in a new process."""
    chance = random.Random(f"{workflow} {driver} {point}")
    often = {"handler": 4, "paying": 12, "paid": 12}.get(point, 2 * WORKFLOWS[workflow][1])
    survived = 0
    while survived < 6:
        run = lives(workflow, driver=driver)
        while run.live(point=point, at=chance.randrange(1, often), by=chance.choice(["run", "checkpoint"])):
            pass
        run.check(uninterrupted(workflow))
        survived += run.kills


@pytest.mark.parametrize(
    ("point", "driver"),
    [
        *(("layer-unsaved", driver) for driver in ("sync", "astream", "bare")),
        *(("layer-saved", driver) for driver in ("sync", "astream", "bare")),
        *(("layer-acknowledged", driver) for driver in ("sync", "astream")),
    ],
)
@pytest.mark.parametrize("workflow", ["grid", "changing"])
def test_a_kill_around_the_commit_of_each_layer_loses_no_task(
    lives: Callable[..., Lives], uninterrupted: Any, workflow: str, point: str, driver: str
) -> None:
    """D1, D4, H3, invariants 1, 2: each process in turn dies at the next layer, right before or after it is saved."""
    run = lives(workflow, driver=driver)
    # One more layer may be begun than is done, so that the second of its kind is the next one.
    while run.live(point=point, at=1 if point != "layer-unsaved" or run.kills == 0 else 2):
        assert run.kills < 30
    run.check(uninterrupted(workflow))
    assert run.kills >= WORKFLOWS[workflow][0] - 1
    if point != "layer-unsaved" or "bare" not in driver:
        again = len(run.said("start")) - len(uninterrupted(workflow).said("start"))
        assert again <= 0, "no task was under way when it was killed"


@either_driver
def test_a_layer_that_can_never_be_saved_is_planned_again_without_its_tasks(
    lives: Callable[..., Lives], uninterrupted: Any, driver: str
) -> None:
    """D4, H3: its handler is called again in each life; no task of it is."""
    run = lives("changing", driver=driver)
    assert run.live(point="layer-unsaved", at=2)
    before = len(run.said("start"))
    for _ in range(5):
        assert run.live(point="layer-unsaved", at=1)
    assert len(run.said("start")) == before
    assert Counter(layer for (layer,) in run.said("handle")).most_common(1)[0][1] == 6
    assert not run.live()
    run.check(uninterrupted("changing"))


@pytest.mark.parametrize("workflow", ["grid", "changing"])
def test_a_state_is_the_same_to_the_order_of_its_keys_whoever_goes_on(
    launch: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    uninterrupted: Any,
    workflow: str,
) -> None:
    """H4, invariant 3: processes that order sets differently, and a kill between them."""
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    run = Lives(launch("../crash_workflows"), tmp_path, workflow, driver="stream")
    assert run.live(point="acknowledged", at=15)
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    run.nursery = launch("../crash_workflows")
    assert not run.live()
    run.check(uninterrupted(workflow))


@either_driver
def test_any_checkpoint_id_that_is_kept_leads_to_the_newest_state(
    lives: Callable[..., Lives], uninterrupted: Any, driver: str
) -> None:
    """D3, D5, H3: what was finished after it isn't done again."""
    run = lives("grid", driver=driver, keep=None)
    assert run.live(point="layer-acknowledged", at=6)
    assert not run.live(by="the first checkpoint")
    run.check(uninterrupted("grid"))
