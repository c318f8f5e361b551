"""Supervisors fire schedules while they look for runs, at once and without being asked. H17."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import pytest

from limpet import MemoryStore, Runs, Schedules, supervise
from limpet.testing import FakeClock, FaultyStore
from support.schedules import counting_graph, effect_graph, run_ids
from support.waiting import SOON, until

BEGIN = datetime(2026, 11, 15, 2, 0, tzinfo=UTC)


def test_a_supervisor_fires_what_is_due_and_executes_it() -> None:
    """H17: as time passes, with nothing else to cause a look."""
    clock = FakeClock(BEGIN)
    store = MemoryStore(clock=clock)
    graph = counting_graph(store)
    Schedules(store).add("sums", graph, every="10m", input={"x": 1})
    with supervise(store, [graph], poll=SOON):
        for minute in (10, 20, 30):
            clock.skip(minutes=10)
            name = f"sums:20261115T02{minute}Z"
            until(lambda name=name: name in run_ids(store))
            assert graph.get(name).result(SOON)["x"] == 2


def test_a_supervisor_wakes_up_when_a_schedule_is_due(store: Any) -> None:
    """H17: and not up to a poll later; also for one that is added while it waits."""
    graph = counting_graph(store)
    with supervise(store, [graph], poll=SOON):
        began = monotonic()
        Schedules(graph.compiled().client.store).add("ticks", graph, every="1s", overlap="allow")
        until(lambda: len(Runs(store).list(status="completed")) >= 2)
        assert monotonic() - began < SOON


def test_on_an_event_loop_as_well() -> None:
    """H17: runs are tasks there."""
    clock = FakeClock(BEGIN)
    store = MemoryStore(clock=clock)
    graph = counting_graph(store)
    Schedules(store).add("sums", graph, every="10m")

    async def work() -> None:
        async with supervise(store, [graph], poll=0.05):
            clock.skip(minutes=10)
            deadline = monotonic() + SOON
            while not Runs(store).list(status="completed"):
                assert monotonic() < deadline
                await asyncio.sleep(0.005)

    asyncio.run(work())
    assert run_ids(store) == ["sums:20261115T0210Z"]


def test_a_supervisor_without_room_still_fires() -> None:
    """H17: the runs wait in the queue."""
    clock = FakeClock(BEGIN)
    store = MemoryStore(clock=clock)
    effects: list[str] = []
    gate = threading.Event()

    def block(run_id: str) -> None:
        effects.append(run_id)
        assert gate.wait(SOON)

    graph = effect_graph(store, block)
    Schedules(store).add("sums", graph, every="10m", overlap="allow")
    with supervise(store, [graph], poll=0.02, concurrency=1):
        clock.skip(minutes=10)
        until(lambda: effects)
        clock.skip(minutes=10)
        until(lambda: len(run_ids(store)) == 2)
        assert effects == ["sums:20261115T0210Z"]
        gate.set()
        until(lambda: len(effects) == 2)


def test_recover_fires_nothing() -> None:
    """H17: it resumes runs; workers fire."""
    clock = FakeClock(BEGIN)
    store = MemoryStore(clock=clock)
    graph = counting_graph(store)
    Schedules(store).add("sums", graph, every="10m")
    clock.skip(minutes=10)
    assert graph.recover() == []


def test_a_store_that_is_away_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """H17: the time isn't lost."""
    clock = FakeClock(BEGIN)
    store = FaultyStore(MemoryStore(clock=clock))
    graph = counting_graph(store)
    Schedules(store).add("sums", graph, every="10m", catch_up="last")
    fault = store.fail(("create", "put_document"), times=3)
    with caplog.at_level(logging.CRITICAL), supervise(store, [graph], poll=0.01):
        clock.skip(minutes=10)
        until(lambda: Runs(store.inner).list(status="completed"))
    assert fault.struck == 3
    assert run_ids(store) == ["sums:20261115T0210Z"]


def test_a_schedule_that_cannot_be_read_concerns_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """H17: it is logged once."""
    clock = FakeClock(BEGIN)
    store = MemoryStore(clock=clock)
    graph = counting_graph(store)
    store.put_document("schedule/broken", b"\xc1", 0, 0.0)
    Schedules(store).add("sums", graph, every="10m")
    with caplog.at_level(logging.ERROR, "limpet.supervisor"), supervise(store, [graph], poll=0.01):
        clock.skip_to(BEGIN + timedelta(minutes=10))
        until(lambda: Runs(store).list(status="completed"))
    assert [record.getMessage()[:15] for record in caplog.records] == ["schedule broken"]
