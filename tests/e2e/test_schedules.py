"""Schedules under fire: workers in processes of their own that are killed while they fire. H17."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from limpet import Runs, Schedules
from support.workers import FULL, Fleet

TIMES = 400 if FULL else 60


@pytest.mark.timeout(600)
def test_each_time_is_fired_once_however_often_workers_are_killed(workers: Fleet) -> None:
    """H17: a backlog of times, several workers, and kill -9 between any two writes."""
    start = datetime.now(UTC).replace(microsecond=0) - timedelta(days=TIMES)
    end = start + timedelta(days=TIMES - 1)
    schedules = Schedules(workers.store)
    schedules.add(
        "days",
        workers.graphs["steps"],
        every="1d",
        starts=start,
        ends=end,
        catch_up="all",
        overlap="allow",
        input={"trail": [], "number": 1},
    )
    settings: dict[str, Any] = {"poll": 0.05, "lease": 3.0, "build": {"pace": 0.0, "nap": 0.0}}
    crew = [workers.worker(**settings) for _ in range(3)]
    for kill in range(1, 6):
        workers.wait(lambda kill=kill: schedules.get("days").fired >= kill * TIMES // 7)
        crew[kill % 3].kill()
        crew[kill % 3] = workers.worker(**settings)
    workers.wait(lambda: schedules.get("days").status == "ended")
    expected = [f"days:{start + timedelta(days=number):%Y%m%dT%H%M%SZ}" for number in range(TIMES)]
    if start.second == 0:
        expected = [each[:-3] + "Z" for each in expected]
    runs = Runs(workers.store)
    workers.wait(lambda: not runs.list(status=["running", "queued"], limit=1))
    found = runs.list(tag="schedule:days")
    assert sorted(run.run_id for run in found) == expected
    info = schedules.get("days")
    assert (info.fired, info.skipped, info.failed) == (TIMES, 0, 0)
    assert {run.status for run in found} == {"completed"}
