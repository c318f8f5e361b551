"""kill -9 of runs with branches: what a branch had finished stays finished, and a join has all of it."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs the signals of POSIX")

GRAPHS = {"wide": (50, 8), "nested": (40, 10), "planned": (35, 5), "mapped": (2002, 16)}
"""How many steps a graph has, and how many of them may be under way at once: so many run again after a kill."""

POINTS = {
    "wide": ["body", "unsaved", "saved", "acknowledged"],
    "nested": ["body", "unsaved", "saved", "acknowledged", "paying", "paid"],
}
"""Where to die: inside a node, before a commit, after it but unheard, and when it is heard of; around a `once`."""

DRIVERS = ("sync", "async", "stream", "astream")
either_driver = pytest.mark.parametrize("driver", ["sync", "async"])


class Lives:
    """One run, life after life, and what its log must look like in the end."""

    def __init__(self, nursery: Any, folder: Path, graph: str, **settings: Any) -> None:
        self.nursery, self.graph, self.settings = nursery, graph, settings
        self.db, self.log = folder / "runs.db", folder / "log"
        self.kills = 0
        self.final: Any = None

    def live(self, **order: Any) -> bool:
        """A new process goes on with the run, at once; True if it was killed."""
        order = {"db": str(self.db), "log": str(self.log), "graph": self.graph, **self.settings, **order}
        answer = self.nursery.ask(**order)
        if answer["signal"]:
            assert answer["signal"] == signal.SIGKILL
            self.kills += 1
            return True
        assert "raised" not in answer, answer["raised"]
        self.final = answer["returned"]
        return False

    def live_on(self, chance: random.Random, longest: int) -> None:
        """Kill it from outside, wherever it is, in the middle of a write too, until it comes to its end."""
        written = 0
        while self.live(lines=written + chance.randrange(2, longest), delay=chance.random() * 0.002):
            written = len(self.lines())

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def said(self, kind: str) -> list[tuple[str, ...]]:
        """What the lines of a kind say."""
        return [tuple(words) for first, *words in self.lines() if first == kind]

    def steps(self) -> dict[str, str]:
        """Each step by its idempotency key: its place, and which one there it is."""
        seen: Counter[str] = Counter()
        found: dict[str, str] = {}
        for place, key, _ in self.said("start"):
            if key not in found:
                seen[place] += 1
                found[key] = f"{place}:{seen[place]}"
        return found

    def check(self, expected: Lives) -> None:
        """It came to the end of the uninterrupted run, and did no more for it than it had to."""
        steps = expected.steps()
        assert self.final == expected.final
        assert self.steps().keys() == steps.keys()
        assert set(self.said("join")) == set(expected.said("join"))
        assert len(self.said("start")) <= len(expected.said("start")) + self.kills * self.lost_at_most()
        acknowledged: set[str] = set()
        paid: set[tuple[str, ...]] = set()
        last: dict[str, str] = {}
        for kind, *words in self.lines():
            if kind == "life":
                begun: set[tuple[str, str]] = set()
            elif kind == "kept":
                kept = {f"{place}:{number}" for place, number in numbered(words)}
                assert acknowledged <= kept, "what was acknowledged was lost"
                acknowledged = kept
            elif kind == "start":
                place, key, attempt = words
                last[place] = steps[key]
                assert steps[key] not in acknowledged, f"{key} ran again, after it had been saved"
                assert (key, attempt) not in begun, f"{key} ran twice in one life"
                begun.add((key, attempt))
            elif kind == "ack":
                acknowledged.add(last.get(words[0], f"{words[0]}:1"))
            elif kind == "pay":
                assert tuple(words) not in paid, f"{words} was paid for twice"
            elif kind == "paid":
                paid.add(tuple(words))

    def lost_at_most(self) -> int:
        """How many nodes a kill may cost: those under way, and with an interval those that weren't to be saved yet.

        When one of these is to be saved, the other branches may have come to their next node already.
        """
        interval, width = self.settings.get("interval", 1), GRAPHS[self.graph][1]
        return width if interval == 1 else interval + 2 * width


def numbered(places: list[str]) -> Iterator[tuple[str, int]]:
    """Each place, and how many of it there have been."""
    seen: Counter[str] = Counter()
    for place in places:
        seen[place] += 1
        yield place, seen[place]


@pytest.fixture(scope="module")
def nursery(launch_for_module: Callable[..., Any]) -> Any:
    return launch_for_module("lives")


@pytest.fixture
def lives(nursery: Any, tmp_path: Path) -> Callable[..., Lives]:
    """A new run in a file of its own."""
    made = iter(range(10_000))

    def make(graph: str, **settings: Any) -> Lives:
        folder = tmp_path / str(next(made))
        folder.mkdir()
        return Lives(nursery, folder, graph, **settings)

    return make


@pytest.fixture(scope="module")
def uninterrupted(nursery: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Lives]:
    """The run of a graph that nobody kills."""
    made: dict[str, Lives] = {}

    def run(graph: str) -> Lives:
        if graph not in made:
            made[graph] = Lives(nursery, tmp_path_factory.mktemp(graph), graph)
            assert not made[graph].live()
            assert len(made[graph].steps()) == GRAPHS[graph][0]
        return made[graph]

    return run


def pages(chance: random.Random, graph: str) -> dict[str, Any]:
    """Settings that bring on a snapshot when the branches are opened, or at another moment of theirs."""
    return {"page": chance.randrange(8000, 10_000, 100)} if graph in ("wide", "nested") else {}


@pytest.mark.parametrize(
    ("graph", "driver", "level", "kills"),
    [
        *(("wide", driver, "process", 60) for driver in ("sync", "async")),
        *(("wide", driver, "disk", 30) for driver in ("sync", "async")),
        *(("wide", driver, "process", 20) for driver in ("stream", "astream")),
        *((graph, driver, "process", 20) for graph in ("nested", "planned") for driver in DRIVERS),
        *(("nested", driver, "disk", 10) for driver in ("sync", "async")),
    ],
)
def test_a_kill_at_any_moment_loses_no_finished_node(
    lives: Callable[..., Lives], uninterrupted: Any, graph: str, driver: str, level: str, kills: int
) -> None:
    """F12, H3, H4, H7, H8, invariants 1, 2, 8: killed from outside, again and again, until each run is complete."""
    chance = random.Random(f"{graph} {driver} {level}")
    survived = 0
    while survived < kills:
        run = lives(graph, driver=driver, level=level, **pages(chance, graph))
        run.live_on(chance, 40)
        run.check(uninterrupted(graph))
        survived += run.kills


@either_driver
@pytest.mark.parametrize(("graph", "point"), [(graph, point) for graph in POINTS for point in POINTS[graph]])
def test_a_kill_at_a_boundary_of_any_node_loses_none(
    lives: Callable[..., Lives], uninterrupted: Any, graph: str, point: str, driver: str
) -> None:
    """F12, H3, H4, H8, invariants 1, 2, 8: in a node, around a commit, around a `once`; then in a new process."""
    chance = random.Random(f"{graph} {driver} {point}")
    survived = 0
    while survived < 10:
        run = lives(graph, driver=driver, **pages(chance, graph))
        while run.live(point=point, at=chance.randrange(1, 2 * GRAPHS[graph][1])):
            pass
        run.check(uninterrupted(graph))
        survived += run.kills


@either_driver
def test_a_fan_in_that_was_killed_runs_again_with_all_results(
    lives: Callable[..., Lives], uninterrupted: Any, driver: str
) -> None:
    """F12, H3, invariant 8: in its body, before its commit and after it; and no branch runs again for it."""
    run = lives("wide", driver=driver)
    assert run.live(point="body", at=49)  # of 50: only one node comes after the fan-in
    assert run.live(point="body", at=1)
    assert run.live(point="unsaved", at=1)
    assert run.live(point="saved", at=1)
    assert not run.live()
    run.check(uninterrupted("wide"))
    assert Counter(place for place, *_ in run.said("start"))["join"] == len(run.said("join")) == 4
    assert len(run.said("start")) == 50 + 3


@either_driver
@pytest.mark.parametrize("graph", ["wide", "nested"])
def test_a_run_goes_on_from_a_snapshot_that_was_taken_while_branches_were_under_way(
    lives: Callable[..., Lives], uninterrupted: Any, graph: str, driver: str
) -> None:
    """H2, H3, H4, invariant 2: wherever it falls, from the moment on at which the branches are opened."""
    taken = set()
    for page in (8000, 8500, 9000):
        run = lives(graph, driver=driver, page=page)
        assert run.live(point="acknowledged", at=38)
        with closing(sqlite3.connect(run.db)) as db:
            taken.add(db.execute("SELECT snapshot FROM runs").fetchone()[0])
        assert not run.live()
        run.check(uninterrupted(graph))
    assert len(taken) > 1  # not all at one moment; where exactly depends on how the branches interleave
    assert min(taken) > 10


@either_driver
def test_a_map_that_is_killed_runs_only_the_items_again_that_were_under_way(
    lives: Callable[..., Lives], uninterrupted: Any, driver: str
) -> None:
    """F12, H3, invariants 2, 8: two thousand items, several kills in their midst, and sixteen calls more for each."""
    chance = random.Random(f"mapped {driver}")
    run = lives("mapped", driver=driver)
    written = 0
    for _ in range(4):
        assert run.live(lines=written + chance.randrange(400, 900), delay=chance.random() * 0.002)
        written = len(run.lines())
    assert not run.live()
    run.check(uninterrupted("mapped"))
    calls = Counter(place for place, *_ in run.said("start"))
    assert calls["list"] == calls["total"] == 1
    assert sum(calls.values()) - 2 <= 2000 + run.kills * 16
    assert max(calls.values()) <= 1 + run.kills


@either_driver
@pytest.mark.parametrize("graph", ["wide", "nested"])
def test_what_was_saved_every_seventh_step_is_not_done_again(
    lives: Callable[..., Lives], uninterrupted: Any, graph: str, driver: str
) -> None:
    """G5, H3, invariants 2, 8: with an interval, steps of several branches wait for the one that is saved."""
    chance = random.Random(f"interval {graph} {driver}")
    survived = 0
    while survived < 10:
        run = lives(graph, driver=driver, interval=7, **pages(chance, graph))
        run.live_on(chance, 80)
        run.check(uninterrupted(graph))
        survived += run.kills


@pytest.mark.parametrize("graph", ["wide", "nested"])
def test_a_state_is_the_same_to_the_order_of_its_keys_whoever_goes_on(
    launch: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    uninterrupted: Any,
    graph: str,
) -> None:
    """H4, invariant 3: processes that order sets differently, and a kill between them."""
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    run = Lives(launch("lives"), tmp_path, graph)
    assert run.live(point="acknowledged", at=25)
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    run.nursery = launch("lives")
    assert not run.live()
    run.check(uninterrupted(graph))
