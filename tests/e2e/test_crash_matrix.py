"""kill -9 at every boundary of a run, and at any moment: the run goes on in a new process as if nothing had been."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")

STEPS = 50
POINTS = ["body", "unsaved", "saved", "acknowledged"]
"""Where to die: inside the node, before its commit, after it but unheard, and when it has been acknowledged."""


class History:
    """One run, life after life, and what its log must look like in the end."""

    def __init__(self, nursery: Any, folder: Path, **settings: Any) -> None:
        self.nursery, self.settings = nursery, settings
        self.db, self.log = folder / "runs.db", folder / "log"
        self.kills = 0
        self.final: Any = None

    def live(self, **order: Any) -> bool:
        """A new process goes on with the run, at once; True if it was killed."""
        answer = self.nursery.ask(db=str(self.db), log=str(self.log), **self.settings, **order)
        if answer["signal"]:
            assert answer["signal"] == signal.SIGKILL
            self.kills += 1
            return True
        assert "raised" not in answer, answer["raised"]
        self.final = answer["returned"]
        return False

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.log.read_text().splitlines()]

    def nodes(self) -> list[list[str]]:
        """What started for each step, in order of the steps; a step that started again has to be the same."""
        started = [line[1:] for line in self.lines() if line[0] == "start"]
        return sorted({tuple(each): each for each in started}.values(), key=lambda each: int(each[0]))

    def check(self, expected: History) -> None:
        """The run came to the end of the uninterrupted one, by the same way, with no more work than it must."""
        assert self.final == expected.final
        assert self.nodes() == expected.nodes()
        interval = self.settings.get("interval", 1)
        acknowledged = reached = 0
        begins_life = True
        for kind, *words in self.lines():
            if kind == "life":
                begins_life = True
            elif kind == "start":
                step = int(words[0])
                assert step > acknowledged, f"step {step} ran again, after its save was acknowledged"
                if begins_life:
                    assert reached - interval < step <= reached + 1
                else:
                    assert step == reached + 1
                reached, begins_life = step, False
            elif kind == "ack":
                assert int(words[0]) == reached
                acknowledged = reached
        starts = sum(line[0] == "start" for line in self.lines())
        assert reached == STEPS
        assert starts <= STEPS + self.kills * interval


@pytest.fixture(scope="module")
def nursery(launch_for_module: Callable[..., Any]) -> Any:
    return launch_for_module("nursery")


@pytest.fixture
def history(nursery: Any, tmp_path: Path) -> Callable[..., History]:
    """A new run in a file of its own."""
    made = iter(range(10_000))

    def make(**settings: Any) -> History:
        folder = tmp_path / str(next(made))
        folder.mkdir()
        return History(nursery, folder, **settings)

    return make


@pytest.fixture(scope="module")
def uninterrupted(nursery: Any, tmp_path_factory: pytest.TempPathFactory) -> History:
    run = History(nursery, tmp_path_factory.mktemp("uninterrupted"))
    assert not run.live()
    with closing(sqlite3.connect(run.db)) as db:
        assert db.execute("SELECT snapshot FROM runs").fetchone()[0] > 1, "there is no snapshot on the way"
    assert len([line for line in run.lines() if line[0] == "start"]) == STEPS
    return run


@pytest.mark.parametrize("driver", ["sync", "async"])
@pytest.mark.parametrize("point", POINTS)
def test_a_run_killed_at_every_step_ends_as_if_it_had_not_been(
    history: Callable[..., History], uninterrupted: History, point: str, driver: str
) -> None:
    """G6, G7, H3, H4, H7, invariants 1 to 4: 50 or 51 kills of one run, resumed at once, in a new process each."""
    run = history(driver=driver)
    first = 0 if point in ("unsaved", "saved") else 1
    for step in range(first, STEPS + 1):
        assert run.live(point=point, at=step)
    assert not run.live()
    assert run.kills >= STEPS
    run.check(uninterrupted)


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_one_kill_anywhere_leaves_the_run_as_it_was(
    history: Callable[..., History], uninterrupted: History, driver: str
) -> None:
    """G6, H3, H4: a fresh run for each kill, so that one process brings it there and one other to the end."""
    for number, step in enumerate(range(2, STEPS + 1, 3)):
        run = history(driver=driver)
        assert run.live(point=POINTS[number % len(POINTS)], at=step)
        assert not run.live()
        run.check(uninterrupted)


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_a_run_saved_to_disk_survives_kills(
    history: Callable[..., History], uninterrupted: History, driver: str
) -> None:
    """Invariant 1, G6, H3: the same at level disk, at every fifth step and each kind of boundary."""
    run = history(driver=driver, level="disk")
    for number, step in enumerate(range(1, STEPS + 1, 5)):
        assert run.live(point=POINTS[number % len(POINTS)], at=step)
    assert not run.live()
    assert run.kills == 10
    run.check(uninterrupted)


@pytest.mark.parametrize("driver", ["sync", "async"])
@pytest.mark.parametrize(("level", "kills"), [("process", 30), ("disk", 10)])
def test_a_kill_from_outside_at_any_moment_loses_nothing(
    history: Callable[..., History], uninterrupted: History, driver: str, level: str, kills: int
) -> None:
    """G6, H3, H4, invariant 1: killed wherever it is, in the middle of a write too, again and again."""
    chance = random.Random(f"{driver} {level}")
    survived = 0
    while survived < kills:
        run = history(driver=driver, level=level)
        written = 0
        while run.live(lines=written + chance.randrange(1, 40), delay=chance.random() * 0.002):
            written = len(run.lines())
        run.check(uninterrupted)
        survived += run.kills


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_what_was_saved_every_seventh_step_is_not_done_again(
    history: Callable[..., History], uninterrupted: History, driver: str
) -> None:
    """G5, G7, H3: with an interval, no more than the steps since the last save run again, in the same phase."""
    run = history(driver=driver, interval=7)
    inside = [("body", 3), ("body", 5), ("body", 11), ("body", 20), ("body", 28), ("body", 36), ("body", 50)]
    around = [("unsaved", 7), ("saved", 14), ("acknowledged", 21), ("unsaved", 35), ("acknowledged", 42)]
    for point, step in sorted(inside + around, key=lambda each: each[1]):
        assert run.live(point=point, at=step)
    assert not run.live()
    run.check(uninterrupted)
    heard = [int(line[1]) for line in run.lines() if line[0] == "ack"]
    assert heard == [7, 21, 28, 35, 42, 49, 50]
