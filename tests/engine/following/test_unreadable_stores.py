"""Following runs while their store is unavailable for a while, and runs with damaged records. H10."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from limpet import DamagedRecord, MemoryStore, StateGraph, StoreUnavailable, open_store
from limpet.engine.following import watcher
from limpet.testing import FaultyStore
from support.damage import flipped
from support.followers import Client
from support.graphs import SOON, asking, chain, count, loop
from support.waiting import until

RUNS = ["a", "b"]


def paused_runs(store: Any) -> StateGraph:
    """Two runs that have made a step and ask something."""
    graph = chain(count, asking(), count).compile(store=store, preserve=True)
    for run_id in RUNS:
        graph.invoke({"n": 0}, run_id=run_id).wait()
    return graph


@pytest.mark.parametrize("operation", ["heads", "read", "head"])
def test_followers_wait_for_a_store_that_is_unavailable_and_miss_nothing(
    operation: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log tells when it begins, once, and when it is over."""
    monkeypatch.setattr(watcher, "LONGEST_PAUSE", 0.1)
    caplog.set_level(logging.INFO, "limpet.stores")
    store = FaultyStore(MemoryStore())
    graph = paused_runs(store)
    clients = [Client(graph.get(run_id)) for run_id in RUNS for _ in range(2)]
    until(lambda: all(len(client.events) == 3 for client in clients))
    beside = chain(count, asking(), count).compile(store=store.inner, preserve=True)
    fault = store.fail((operation, "head"), times=None)
    for run_id in RUNS:
        beside.resume(run_id, "yes")
    if operation != "head":
        until(lambda: fault.struck > 5)
        assert not any(len(client.events) > 3 for client in clients)
        if operation == "heads":  # while only reads fail, a look at the heads alone succeeds in between
            assert len(caplog.records) == 1
        assert "the store can't be reached" in caplog.text
    fault.release()
    for client in clients:
        kinds = [event["type"] for event in client.all()]
        assert kinds == ["start", "step", "pause", "answer", "step", "step", "complete"]
        assert client.error is None


def test_async_followers_and_waiters_do_so_too_and_a_timeout_still_holds() -> None:
    store = FaultyStore(MemoryStore())
    graph = chain(asking()).compile(store=store, preserve=True)
    graph.start({}, run_id="r")
    handle = graph.get("r")

    async def main() -> tuple[list[str], str]:
        async def kinds() -> list[str]:
            return [event["type"] async for event in handle.aevents()]

        following = asyncio.create_task(kinds())
        waiting = asyncio.create_task(handle.await_(SOON))
        before = store.calls["heads"]
        while store.calls["heads"] < before + 3:
            await asyncio.sleep(0.005)
        fault = store.fail(("heads", "read"), times=None)
        with pytest.raises(TimeoutError):
            await handle.await_(0.2)
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(handle.wait, 0.2)
        assert fault.struck
        fault.release()
        await graph.arecover()
        status = (await waiting).status
        await graph.aresume("r", "yes")
        return await following, status

    assert asyncio.run(main()) == (["start", "pause", "answer", "step", "complete"], "paused")


def test_a_store_that_was_never_available_is_not_waited_for() -> None:
    store = FaultyStore(MemoryStore())
    graph = paused_runs(store)
    handle = graph.get("a")
    store.fail("read", times=None)
    with pytest.raises(StoreUnavailable):
        next(handle.events())
    with pytest.raises(StoreUnavailable):
        asyncio.run(anext(handle.aevents()))  # type: ignore[arg-type]  # it is a coroutine


def damage(store: MemoryStore, run_id: str, number: int) -> None:
    """Change a byte of a stored record."""
    records = store._runs[run_id].records  # type: ignore[index]  # it is open
    data = records[number - 1]
    records[number - 1] = flipped(data, len(data) - 1, 1)


def test_events_up_to_the_next_snapshot_are_skipped_where_a_record_is_damaged() -> None:
    """One event names the damage. From the cursor of each event, the same ones follow."""
    store = MemoryStore()
    graph = loop(6).compile(store=store, preserve=True)
    graph.execute({"n": 0}, run_id="r")
    graph.rollback("r", 4)
    graph.resume("r")
    whole = list(graph.get("r").events())
    damage(store, "r", 4)
    events = list(graph.get("r").events())
    place = next(number for number, event in enumerate(whole) if event["type"] == "rollback")
    skipped = events[3]
    assert events[:3] == whole[:3]
    assert events[4:] == whole[place:]
    assert (skipped["type"], skipped["records"]) == ("skipped", 4)
    assert "record 4 of run 'r' is damaged" in skipped["problem"]
    for number, event in enumerate(events):
        assert list(graph.get("r").events(event["cursor"])) == events[number + 1 :]
    assert list(graph.get("r").events(whole[5]["cursor"]))[-3:] == whole[-3:]


def test_a_damaged_record_that_no_snapshot_follows_ends_the_followers_of_its_run_alone() -> None:
    """They are given all events before it first."""
    store = MemoryStore()
    graph = paused_runs(store)
    clients = {run_id: Client(graph.get(run_id)) for run_id in RUNS}
    until(lambda: all(len(client.events) == 3 for client in clients.values()))
    for run_id in RUNS:
        graph.resume(run_id, "yes")
        clients[run_id].all()
    damage(store, "a", 4)
    broken = Client(graph.get("a"))
    sound = Client(graph.get("b"))
    assert [event["type"] for event in broken.all()] == ["start", "step", "pause"]
    assert isinstance(broken.error, DamagedRecord)
    assert broken.error.sequence == 4
    assert (len(sound.all()), sound.error) == (7, None)


def test_a_damaged_head_hurts_followers_of_no_other_run(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/runs.db")
    graph = paused_runs(store)
    clients = {run_id: Client(graph.get(run_id)) for run_id in RUNS}
    until(lambda: all(len(client.events) == 3 for client in clients.values()))
    with closing(sqlite3.connect(tmp_path / "runs.db")) as connection, connection:
        connection.execute("UPDATE runs SET fence = fence + 7 WHERE run_id = 'a'")
    clients["a"].all()
    assert isinstance(clients["a"].error, DamagedRecord)
    graph.resume("b", "yes")
    assert len(clients["b"].all()) == 7
