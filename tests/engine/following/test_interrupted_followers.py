"""Ctrl-C while a run is followed or waited for, at any point: other followers are none the worse for it. H10."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import pytest

from limpet import MemoryStore
from limpet.testing.interrupts import hunt_at_every_point, hunt_at_random
from support.graphs import asking, chain

LONGER = int(os.environ.get("INTERRUPTS", "0"))
"""How many interrupts there are in a long hunt."""


@pytest.mark.parametrize("points", ["every", "random"])
def test_an_interrupted_follower_leaves_no_lock_held_and_no_run_unwatched(points: str) -> None:
    graph = chain(asking()).compile(store=MemoryStore(), preserve=True)
    graph.invoke({}, run_id="paused").wait()
    paused = graph.get("paused")
    queued = graph.start({})
    cursors: list[str] = []

    def follow() -> Any:
        return next(event for event in paused.events() if event["type"] == "pause")

    def work() -> None:
        cursors.append(follow()["cursor"])
        with suppress(TimeoutError):
            queued.wait(0.01)

    def check() -> None:
        assert follow()["cursor"] == cursors[0]
        with pytest.raises(TimeoutError):
            queued.wait(0.06)

    work()
    if points == "every":
        packages = ["limpet/engine/following", "limpet/threads"]
        report = hunt_at_every_point(work, check, packages, limit=None if LONGER else 30)
    else:
        report = hunt_at_random(work, check, LONGER or 30)
    assert not report.problems, report
