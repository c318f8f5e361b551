"""Schedules in a fleet of processes under every kind of fault: H17.

`support/simulated_schedules.py` says what is simulated, and what has to hold. A schedule that fails prints what
happened in it and its seed; `SIMULATION_SEED=…` runs that one alone, `SIMULATION_SCHEDULES=…` as many as you like.

A simulation that can't fail proves nothing. So here are also schedules that are wrong in one way each, and each must
be caught.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from limpet import schedules
from limpet.engine.schedules import firing
from limpet.engine.schedules.firing import Firer
from limpet.engine.schedules.prepared_runs import begin, prepare
from limpet.engine.schedules.schedule import Schedule, write_schedule
from limpet.engine.supervisor import schedule_firing
from limpet.graphs.names import SCHEDULES
from support.exploration import Violation
from support.simulated_schedules import ScheduleWorld, explore

SEED = os.environ.get("SIMULATION_SEED")
SCHEDULES_TRIED = int(os.environ.get("SIMULATION_SCHEDULES", "30"))
PARTS = 2
ENOUGH = 600
"""Schedules within which whatever is wrong has to show."""


@pytest.mark.skipif(SEED is not None, reason="one schedule was asked for")
@pytest.mark.parametrize("part", range(PARTS))
def test_each_planned_time_is_fired_once_or_skipped(part: int) -> None:
    """H17: whatever crashes, fails, is changed by people, or happens to the clock."""
    seeds = range(part, SCHEDULES_TRIED, PARTS)
    assert explore(seeds) == len(seeds)


@pytest.mark.skipif(SEED is None, reason="it is for a schedule that failed")
def test_the_schedule_that_was_asked_for_fires_each_once() -> None:
    """The one that `SIMULATION_SEED` names."""
    assert explore([int(SEED or 0)]) == 1


def test_the_same_seed_is_the_same_schedule() -> None:
    """So that a failing one can be seen again."""

    class Traced(ScheduleWorld):
        def settle(self) -> None:
            super().settle()
            traces.append(self.trace)

    traces: list[Any] = []
    explore([3, 4], Traced)
    explore([3, 4], Traced)
    assert traces[:2] == traces[2:]
    assert traces[0] != traces[1]


def caught(claim: str, kind: type[ScheduleWorld] = ScheduleWorld) -> None:
    """Expect that the simulation finds out what is wrong."""
    with pytest.raises(Violation, match=claim):
        explore(range(ENOUGH), kind)


def test_a_run_that_begins_before_it_is_decided_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H17: a crash in between would fire it again."""

    def start(compiled: Any, request: Any, priority: int, schedule: str) -> None:
        prepare(compiled, request, priority, schedule)
        begin(compiled.client, request.run_id)

    monkeypatch.setattr(firing, "prepare", start)
    caught("begins without being fired")


def test_a_decided_run_that_is_forgotten_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H17."""
    monkeypatch.setattr(firing, "begin", lambda *_: True)
    caught("hasn't begun|never begins|haven't ended")


def test_a_time_that_is_passed_over_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H17."""
    take_due = firing.take_due

    def forget_one(plan: Any, place: Any, now: float) -> Any:
        decision = take_due(plan, place, now)
        return decision._replace(missed_count=max(0, decision.missed_count - 1))

    monkeypatch.setattr(firing, "take_due", forget_one)
    caught("passes")


def test_a_change_without_compare_and_set_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H17: what two workers decide at once isn't mixed."""

    def overwrite(store: Any, schedule: Schedule, version: int) -> int | None:
        found = store._world.store.get_document(SCHEDULES + schedule.name)
        return write_schedule(store, schedule, 0 if found is None else found.version)

    monkeypatch.setattr(firing, "write_schedule", overwrite)
    caught("fired twice|passes|goes back|other times wait|changes the plan")


def test_an_overlap_that_isnt_noticed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H17."""
    monkeypatch.setattr(Firer, "_unfinished", lambda self, schedule, run_id: [])
    caught("haven't ended")


def test_a_delete_that_forgets_a_run_of_a_crashed_worker_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H17: its time counts as fired, so a worker has to look after it."""
    monkeypatch.setattr(schedule_firing, "settle", lambda client: None)
    caught("hasn't begun|never begins")


def test_a_prepared_run_that_is_left_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H17: where processes can reach the store, none is."""

    class Reliable(ScheduleWorld):
        failures = 0.0

        def crash(self) -> None:
            """None does."""

    monkeypatch.setattr(firing, "discard", lambda *_: None)
    monkeypatch.setattr(schedules, "discard", lambda *_: None)
    caught("never begins|is fired twice", Reliable)
