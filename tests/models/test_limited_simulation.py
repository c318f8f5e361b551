"""Queues, priorities and limits in a fleet of workers under every kind of fault, a thousand times: H18.

`support/limited_simulation.py` says what is simulated, and what has to hold. A schedule that fails prints what
happened in it and its seed; `SIMULATION_SEED=…` runs that one alone, `SIMULATION_SCHEDULES=…` as many as you like.

A simulation that can't fail proves nothing. So here are also limits, queues and supervisors that are wrong in one way
each, and each must be caught.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

from limpet.engine.drivers.node_slots import NodeSlots
from limpet.engine.leases.limits import rules
from limpet.engine.leases.limits.stored_limit import StoredLimit
from limpet.engine.supervisor.lanes import ServedLanes
from limpet.engine.supervisor.limit_admission import LimitAdmission
from limpet.engine.supervisor.run_picker import RunPicker
from limpet.journal.store import RunHead
from support.exploration import Violation
from support.limited_simulation import LimitedSimulation
from support.simulation import explore

SEED = os.environ.get("SIMULATION_SEED")
SCHEDULES = int(os.environ.get("SIMULATION_SCHEDULES", "60"))
PARTS = 4
ENOUGH = 400
"""Schedules within which whatever is wrong has to show."""


@pytest.mark.skipif(SEED is not None, reason="one schedule was asked for")
@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_a_limit_or_starves_a_run(part: int) -> None:
    """H18: with crashes, takeovers, outages, missing answers, jumps of clocks, and limits that are changed."""
    seeds = range(part, SCHEDULES, PARTS)
    assert explore(seeds, LimitedSimulation) == len(seeds)


@pytest.mark.skipif(SEED is None, reason="it is for a schedule that failed")
def test_the_schedule_that_was_asked_for_breaks_none() -> None:
    """The one that `SIMULATION_SEED` names."""
    assert explore([int(SEED or 0)], LimitedSimulation) == 1


def caught(claim: str) -> None:
    """Expect that the simulation finds out what is wrong."""
    with pytest.raises(Violation, match=claim):
        explore(range(ENOUGH), LimitedSimulation)


def test_a_slot_too_many_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H18."""
    room = rules.room
    monkeypatch.setattr(rules, "room", lambda *args: room(*args) + 1)
    caught("have slots of|more than")


def test_a_rate_that_forgets_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H18: each grant counts for the whole period."""
    monkeypatch.setattr(rules, "_slice_end", lambda at, period: at - period / 2)
    caught("more than")


def test_a_slot_of_the_dead_that_isnt_freed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H18."""
    monkeypatch.setattr(StoredLimit, "_without_lease", lambda self, slots: [])
    caught("nothing is done|don't end|slots are left")


def test_a_slot_that_is_taken_from_the_living_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H18."""
    monkeypatch.setattr(StoredLimit, "_without_lease", lambda self, slots: list(slots))
    monkeypatch.setattr(StoredLimit, "_out_of_use", lambda self, dead: list(dead))
    caught("have slots of")


def test_a_call_that_isnt_woken_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H18."""
    monkeypatch.setattr(StoredLimit, "tell", lambda self, entry: False)
    caught("nothing is done|don't end")


def test_a_call_that_begins_without_a_slot_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H18."""
    monkeypatch.setattr(NodeSlots, "acquire", lambda self, tasks: [None] * len(tasks))
    caught("have slots of|more than")


def test_a_run_that_is_executed_without_a_slot_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H18."""
    monkeypatch.setattr(LimitAdmission, "admit", lambda self, picked: list(picked))
    caught("is executed without slots")


def test_a_worker_of_another_queue_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H18."""
    monkeypatch.setattr(ServedLanes, "serves_queue", lambda self, queue: True)
    caught("of the queue")


def test_a_picker_that_prefers_a_graph_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """H18: no graph at the cost of another."""

    def pick(self: RunPicker, ready: Iterable[RunHead]) -> list[RunHead]:
        others = [head for head in ready if head.run_id not in self.run_ids]
        by_graph: Any = sorted(others, key=lambda head: (head.graph, -head.priority))
        return list({head.run_id: head for head in by_graph}.values())[: max(self.room, 0)]

    monkeypatch.setattr(RunPicker, "pick", pick)
    monkeypatch.setattr(RunPicker, "_limit_of", lambda self, graph: self._limit)
    caught("at the cost of")
