"""`Schedules`: adding, looking at, pausing, resuming, triggering and deleting schedules. H17."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from limpet import (
    DefinitionError,
    MemoryStore,
    Runs,
    ScheduleEnded,
    ScheduleNotFound,
    Schedules,
    StateGraph,
    StoreError,
    StoreUnavailable,
    UnstorableValue,
    UsageError,
    secret,
)
from limpet.engine.schedules.prepared_runs import prepare
from limpet.engine.sessions.start import StartRequest
from limpet.journal.encoding.codec import encode
from limpet.testing import FakeClock
from support.schedules import counting_graph, run_ids, worker

BEGIN = datetime(2026, 11, 15, 2, 0, tzinfo=UTC)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(BEGIN)


@pytest.fixture
def memory(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def graph(memory: MemoryStore) -> StateGraph:
    return counting_graph(memory)


def test_a_schedule_is_kept_and_described(memory: MemoryStore, graph: StateGraph) -> None:
    """H17: with its next time in its zone."""
    schedules = Schedules(memory)
    added = schedules.add(
        "nightly",
        graph,
        cron="30  2 * * *",
        timezone="Europe/Berlin",
        input={"x": 4},
        config={"fast": True},
        tags="night",
        queue="slow",
        priority=2,
        overlap="queue",
        catch_up="last",
        ends="2027-01-01",
    )
    assert schedules.get("nightly") == added == schedules.list()[0]
    assert (added.graph, added.when, added.timezone, added.status) == (
        "report",
        "30 2 * * *",
        "Europe/Berlin",
        "active",
    )
    assert str(added.next_time) == "2026-11-16 02:30:00+01:00"
    assert (added.input, added.config, added.tags) == ({"x": 4}, {"fast": True}, ("night",))
    assert (added.queue, added.priority, added.overlap, added.catch_up) == ("slow", 2, "queue", "last")
    assert str(added.ends) == "2027-01-01 00:00:00+01:00"
    assert (added.last_time, added.last_run, added.last_outcome, added.fired) == (None, None, None, 0)
    assert [str(each)[:16] for each in schedules.next_times("nightly", 2)] == [
        "2026-11-16 02:30",
        "2026-11-17 02:30",
    ]


def test_adding_again_changes_nothing_and_other_values_need_replace(
    memory: MemoryStore, clock: FakeClock, graph: StateGraph
) -> None:
    """H17: so every start of a program may add its schedules."""
    schedules = Schedules(memory)
    first = schedules.add("sums", graph, every="10m", input={"x": 1, "y": {2, 3}})
    clock.skip(minutes=4)
    assert schedules.add("sums", graph, every=600, input={"y": {3, 2}, "x": 1}) == first
    assert schedules.add("sums", graph, every=timedelta(minutes=10), input=first.input, replace=True) == first
    with pytest.raises(UsageError, match=r"exists with other values: input, overlap; replace=True"):
        schedules.add("sums", graph, every="10m", input={"x": 2}, overlap="allow")
    changed = schedules.add("sums", graph, every="10m", input={"x": 2}, overlap="allow", replace=True)
    assert (changed.input, changed.overlap, changed.next_time) == ({"x": 2}, "allow", first.next_time)


@pytest.mark.parametrize("replace", [False, True])
def test_a_schedule_that_has_ended_is_added_again_as_before(
    memory: MemoryStore, clock: FakeClock, graph: StateGraph, replace: bool
) -> None:
    """H17: a program that starts after the end doesn't fail. Times that are all over end it, and make no new one."""
    schedules = Schedules(memory)
    ends = BEGIN + timedelta(hours=1)
    schedules.add("sums", graph, every="10m", ends=ends)
    clock.skip(hours=1, minutes=1)
    worker(memory, graph).look()
    ended = schedules.get("sums")
    assert ended.status == "ended"
    assert schedules.add("sums", graph, every="10m", ends=ends, replace=replace).status == "ended"
    assert schedules.get("sums") == ended
    changed = schedules.add("sums", graph, every="10m", ends=ends, input={"x": 1}, replace=True)
    assert (changed.status, changed.input) == ("ended", {"x": 1})
    assert schedules.add("sums", graph, every="7m", ends="2d", replace=True).status == "active"
    assert schedules.add("sums", graph, every="7m", ends=ends, replace=True).status == "ended"
    with pytest.raises(ScheduleEnded, match="has no time left: its end is in the past"):
        schedules.add("other", graph, every="10m", ends=ends, replace=True)


def test_bounds_without_a_zone_are_of_the_zone_of_the_schedule(
    memory: MemoryStore, graph: StateGraph
) -> None:
    """H17: as its cron expression is; a bound that names its own zone keeps it."""
    schedules = Schedules(memory)
    settings: dict[str, Any] = {"cron": "30 9 * * *", "timezone": "Europe/Berlin"}
    schedules.add("own", graph, **settings, starts="2026-12-01T09:30", ends="2026-12-02T09:29")
    assert [str(each) for each in schedules.next_times("own")] == ["2026-12-01 09:30:00+01:00"]
    schedules.add("utc", graph, **settings, starts="2026-12-01T09:30Z", ends="2026-12-02T08:30Z")
    assert [str(each) for each in schedules.next_times("utc")] == ["2026-12-02 09:30:00+01:00"]


def test_a_timetable_ends_where_calendars_do(memory: MemoryStore, graph: StateGraph) -> None:
    """H17: in the year 9998, so that every time zone can show its times."""
    schedules = Schedules(memory)
    schedules.add("late", graph, every="36500d", timezone="Asia/Tokyo", starts="9800-01-01")
    assert [each.year for each in schedules.next_times("late", 100)] == [9800, 9899]


def test_a_schedule_that_is_replaced_keeps_its_pause_and_its_place(
    memory: MemoryStore, clock: FakeClock, graph: StateGraph
) -> None:
    """H17: missed times still count if the timetable is the same; a new one begins now, after the last time."""
    schedules = Schedules(memory)
    schedules.add("sums", graph, every="10m", catch_up="all", overlap="allow")
    clock.skip(minutes=20)
    schedules.add("sums", graph, every="10m", catch_up="all", overlap="allow", input={"x": 1}, replace=True)
    worker(memory, graph).look()
    assert run_ids(memory) == ["sums:20261115T0210Z", "sums:20261115T0220Z"]
    schedules.pause("sums")
    clock.set_by(-900)
    changed = schedules.add("sums", graph, cron="*/5 * * * *", replace=True)
    assert changed.paused
    assert changed.next_time == BEGIN + timedelta(minutes=25)  # 02:10 to 02:20 are decided
    assert changed.fired == 2
    assert schedules.add("sums", graph, cron="*/5 * * * *", replace=True, paused=True).paused


def test_what_cannot_be_scheduled_is_refused_at_once(memory: MemoryStore, graph: StateGraph) -> None:
    """H17: with what is wrong; and nothing is kept."""
    schedules = Schedules(memory)

    class Typed(BaseModel):
        x: int = 0

    typed = StateGraph(Typed, name="typed").add_node("a", run=lambda state: {"x": 1})
    typed.set_entry_point("a").set_finish_point("a").compile(store=memory)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "either cron"),
        ({"cron": "0 0 * * *", "every": "1h"}, "either cron"),
        ({"cron": "0 25 * * *"}, "wrong hour"),
        ({"cron": "0 0 * * *", "timezone": "Europe/Berlinn"}, "did you mean 'Europe/Berlin'"),
        ({"cron": "0 0 * * *", "timezone": "../etc"}, "no time zone"),
        ({"cron": "0 0 * * *", "timezone": None}, "no time zone None"),
        ({"cron": "0 0 * * *", "ends": BEGIN}, "has no time left: its end is in the past"),
        ({"every": "1h", "ends": BEGIN - timedelta(days=1)}, "has no time left: its end is in the past"),
        ({"every": "1h", "ends": "30m"}, "has no time before its end"),
        ({"every": "1h", "paused": "no"}, "paused is True or False, not 'no'"),
        ({"every": "15 minutes"}, "every is how long"),
        ({"every": 0.5}, "whole number of seconds"),
        ({"every": -1}, "above 0"),
        ({"every": "0s"}, "every must be a whole number of seconds of at least 1, not '0s'"),
        ({"every": "1d", "ends": "9999-12-31T23:59Z"}, "ends must be in the years 1970 to 9998"),
        (
            {"every": "1d", "starts": "0001-01-01", "timezone": "America/New_York"},
            "starts must be in the years",
        ),
        ({"every": "1d", "ends": "yesterday"}, "such as '2026-05-01T12:00Z'$"),
        ({"every": "1d", "starts": "tomorrow"}, "did you mean '1d'"),
        ({"every": "1h", "overlap": "wait"}, "overlap is one of skip, queue, allow, cancel_old"),
        ({"every": "1h", "catch_up": "first"}, "catch_up is one of none, last, all"),
        ({"every": "1h", "priority": "high"}, "priority"),
        ({"every": "1h", "queue": "a,b"}, "name of a queue"),
        ({"every": "1h", "tags": [5]}, "a tag must be"),
        ({"every": "1h", "config": 5}, "config"),
        ({"every": "1h", "starts": "soon"}, "starts is a time"),
        ({"every": "1h", "starts": "2d", "ends": "1d"}, "is before starts"),
    ]
    for settings, said in wrong:
        with pytest.raises(UsageError, match=said):
            schedules.add("sums", graph, **settings)
    with pytest.raises(UnstorableValue, match="at x"):
        schedules.add("sums", graph, every="1h", input={"x": object()})
    with pytest.raises(UsageError, match="x"):
        schedules.add("sums", typed, every="1h", input={"x": "many"})
    for name in ("", "a/b", "a:b", 5):
        with pytest.raises(UsageError, match="the name of a schedule"):
            schedules.add(name, graph, every="1h")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="give the graph itself"):
        schedules.add("sums", "report", every="1h")  # type: ignore[arg-type]
    assert schedules.list() == []


def test_secrets_are_refused_where_they_would_be_readable(tmp_path: Path) -> None:
    """H17: as start() refuses them; where they may be stored, they are never shown."""
    graph = StateGraph({"token": Annotated[str, secret]}, name="vault")
    graph.add_node("look", run=lambda state: {}).set_entry_point("look").set_finish_point("look")
    with pytest.raises(DefinitionError, match="would store them in plain text"):
        Schedules(f"sqlite:///{tmp_path}/runs.db").add("peek", graph, every="1h", input={"token": "hunter2"})
    graph.compile(store=f"sqlite:///{tmp_path}/runs.db", allow_plain_text_secrets=True)
    info = Schedules(f"sqlite:///{tmp_path}/runs.db").add(
        "peek", graph, every="1h", input={"token": "hunter2"}
    )
    assert "hunter2" not in repr(info)


def test_intervals_need_no_package(
    memory: MemoryStore, clock: FakeClock, graph: StateGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H17: cron does."""
    monkeypatch.setitem(sys.modules, "cronsim", None)
    schedules = Schedules(memory)
    schedules.add("sums", graph, every="10m", timezone="Asia/Kathmandu")
    clock.skip(minutes=10)
    worker(memory, graph).look()
    assert run_ids(memory) == ["sums:20261115T0210Z"]
    with pytest.raises(UsageError, match=r"limpet\[schedules\]"):
        schedules.add("nightly", graph, cron="0 3 * * *")


def test_a_pause_leaves_out_its_times(memory: MemoryStore, clock: FakeClock, graph: StateGraph) -> None:
    """H17: whatever the catch-up policy is."""
    schedules = Schedules(memory)
    schedules.add("sums", graph, every="10m", catch_up="all", paused=True)
    clock.skip(minutes=35)
    worker(memory, graph).look()
    shown = schedules.get("sums")
    assert shown.status == "paused"
    schedules.resume("sums")
    schedules.resume("sums")
    assert schedules.get("sums").next_time == shown.next_time == BEGIN + timedelta(minutes=40)
    worker(memory, graph).look()
    assert run_ids(memory) == []
    clock.skip(minutes=5)
    worker(memory, graph).look()
    assert run_ids(memory) == ["sums:20261115T0240Z"]


def test_a_trigger_starts_a_run_besides_the_plan(
    memory: MemoryStore, clock: FakeClock, graph: StateGraph
) -> None:
    """H17: even while the schedule is paused and an earlier run hasn't ended; two triggers are two runs."""
    schedules = Schedules(memory)
    before = schedules.add("sums", graph, every="10m", paused=True, input={"x": 1})
    first = schedules.trigger("sums")
    assert first == "sums:20261115T020000.000000Z-manual"
    second = schedules.trigger("sums")
    assert schedules.get("sums").triggers == (first, second)
    clock.skip(minutes=3)
    worker(memory, graph).look()
    info = schedules.get("sums")
    assert info.triggers == ()
    assert [firing.planned - BEGIN.timestamp() for firing in info.recent] == pytest.approx(
        [0, 1e-6], abs=1e-6
    )
    third = schedules.trigger("sums")
    worker(memory, graph).look()
    assert run_ids(memory) == sorted({first, second, third})
    assert sorted(graph.recover()) == sorted([first, second, third])
    assert graph.get(third).state["x"] == 2
    assert graph.get(third).tags == ("schedule:sums",)
    after = schedules.get("sums")
    assert (after.next_time, after.fired, after.status) == (before.next_time, 3, "paused")


def test_a_start_in_the_past_is_caught_up(memory: MemoryStore, graph: StateGraph) -> None:
    """H17: with catch_up="all", at times that are those of the timetable, and none after its end."""
    schedules = Schedules(memory)
    schedules.add(
        "days",
        graph,
        cron="0 12 * * *",
        starts=BEGIN - timedelta(days=3),
        ends=BEGIN - timedelta(hours=10),
        catch_up="all",
        overlap="allow",
    )
    worker(memory, graph).look()
    assert run_ids(memory) == ["days:20261112T1200Z", "days:20261113T1200Z", "days:20261114T1200Z"]
    info = schedules.get("days")
    assert (info.status, info.next_time) == ("ended", None)


def test_a_deleted_schedule_fires_no_more(memory: MemoryStore, clock: FakeClock, graph: StateGraph) -> None:
    """H17: its runs stay. A name that isn't there is reported, with one that is like it."""
    schedules = Schedules(memory)
    schedules.add("sums", graph, every="10m")
    clock.skip(minutes=10)
    worker(memory, graph).look()
    schedules.delete("sums")
    clock.skip(minutes=10)
    worker(memory, graph).look()
    assert run_ids(memory) == ["sums:20261115T0210Z"]
    schedules.add("nightly", graph, cron="0 3 * * *")
    for call in (schedules.get, schedules.delete, schedules.pause, schedules.resume, schedules.trigger):
        with pytest.raises(
            ScheduleNotFound, match="no schedule 'nightli' in this store; did you mean 'nightly'"
        ):
            call("nightli")
    with pytest.raises(LookupError):
        schedules.next_times("sums")


def _newer(body: bytes) -> bytes:
    return encode({"format": 2})


def _damaged(body: bytes) -> bytes:
    return b"\xc1"


def _elsewhere(body: bytes) -> bytes:
    """In a time zone that this system doesn't know."""
    return body.replace(b"Asia/Kathmandu", b"Asia/Kathmanda")


@pytest.mark.parametrize("change", [_newer, _damaged, _elsewhere])
def test_a_schedule_that_cannot_be_read_is_left_out_of_the_list_and_can_be_deleted(
    memory: MemoryStore, graph: StateGraph, caplog: pytest.LogCaptureFixture, change: Callable[[bytes], bytes]
) -> None:
    """H17: the others are listed. The log says once what is missing, and a call that needs it raises."""
    schedules = Schedules(memory)
    schedules.add("broken", graph, every="10m", timezone="Asia/Kathmandu")
    schedules.add("sums", graph, every="10m")
    found = memory.get_document("schedule/broken")
    assert found is not None
    memory.put_document(found.name, change(found.body), found.version)
    with caplog.at_level(logging.WARNING, "limpet.schedules"):
        for _ in range(2):
            assert [info.name for info in schedules.list()] == ["sums"]
    (logged,) = (record.getMessage() for record in caplog.records)
    assert logged.startswith("schedule broken is left out of the list: ")
    with pytest.raises((StoreError, LookupError)):
        schedules.get("broken")
    schedules.delete("broken")
    with pytest.raises(ScheduleNotFound):
        schedules.delete("broken")
    assert [info.name for info in schedules.list()] == ["sums"]


def test_a_run_that_an_unreadable_schedule_was_about_to_start_is_settled_once_that_is_deleted(
    memory: MemoryStore, clock: FakeClock, graph: StateGraph
) -> None:
    """H17: a worker crashed when it had prepared the run, so the time isn't decided."""
    schedules = Schedules(memory)
    schedules.add("sums", graph, every="10m")
    prepare(graph.compiled(), StartRequest({}, None, "sums:20261115T0210Z", named=True), 0, "sums")
    found = memory.get_document("schedule/sums")
    assert found is not None
    memory.put_document(found.name, b"\xc1", found.version)
    schedules.delete("sums")
    clock.skip(minutes=2)
    worker(memory, graph).look()
    assert run_ids(memory) == []


def test_a_look_creates_no_store(tmp_path: Path) -> None:
    """H17: only adding does."""
    schedules = Schedules(f"sqlite:///{tmp_path}/none.db")
    with pytest.raises(StoreUnavailable, match=r"none\.db"):
        schedules.list()
    assert list(tmp_path.iterdir()) == []


def test_every_method_has_an_async_version(memory: MemoryStore, graph: StateGraph) -> None:
    """H17: which doesn't block the event loop."""
    schedules = Schedules(memory)

    async def use() -> list[str]:
        await schedules.aadd("sums", graph, every="10m")
        await schedules.apause("sums")
        await schedules.aresume("sums")
        run_id = await schedules.atrigger("sums")
        assert len(await schedules.anext_times("sums", 3)) == 3
        assert (await schedules.aget("sums")).name == "sums"
        names = [info.name for info in await schedules.alist()]
        worker(memory, graph).look()
        await schedules.adelete("sums")
        return [*names, run_id]

    name, run_id = asyncio.run(use())
    assert name == "sums"
    assert Runs(memory).get(run_id).status == "running"


def test_runs_wait_in_the_queue_of_the_schedule_or_of_the_graph(
    memory: MemoryStore, clock: FakeClock, graph: StateGraph
) -> None:
    """H17, H18: as `start` has it."""
    schedules = Schedules(memory)
    schedules.add("slow", graph, every="10m", queue="slow")
    schedules.add("plain", graph, every="10m")
    clock.skip(minutes=10)
    worker(memory, graph).look()
    queues = {name: memory.head(name).queue for name in run_ids(memory)}
    assert queues == {"plain:20261115T0210Z": "default", "slow:20261115T0210Z": "slow"}


def test_utc_needs_no_time_zones_of_the_system(
    memory: MemoryStore, graph: StateGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H17: a small container has none; another zone is refused with what to install."""
    monkeypatch.setattr("zoneinfo.available_timezones", lambda: set())
    monkeypatch.setattr("limpet.engine.schedules.timetable.ZoneInfo", _no_zones)
    schedules = Schedules(memory)
    assert schedules.add("sums", graph, every="1h").next_time == BEGIN + timedelta(hours=1)
    assert schedules.add("nightly", graph, cron="30 2 * * *").next_time == BEGIN + timedelta(minutes=30)
    with pytest.raises(UsageError, match=r"no time zones: pip install 'limpet\[schedules\]'"):
        schedules.add("other", graph, every="1h", timezone="Europe/Berlin")


def _no_zones(name: str) -> Any:
    raise KeyError(name)
