"""Each planned time is fired once, or skipped by policy: never twice, never lost. H17."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest

from limpet import MemoryStore, Runs, Schedules, StateGraph, StoreUnavailable, secret, supervise
from limpet.engine.supervisor.schedule_firing import ScheduleFiring
from limpet.journal.store import Store
from limpet.testing import FakeClock, FaultyStore
from support.schedules import counting_graph, effect_graph, run_ids, worker
from support.waiting import until

BEGIN = datetime(2026, 11, 15, 2, 0, tzinfo=UTC)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(BEGIN)


@pytest.fixture
def memory(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock=clock)


def test_a_planned_time_becomes_a_run_on_every_store(any_store: Store) -> None:
    """H17: with its id, input, tags and priority; a worker executes it."""
    graph = counting_graph(any_store)
    schedules = Schedules(any_store)
    start = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=3)
    given: Any = {"input": {"x": 41}, "tags": ["hourly"], "priority": 3, "overlap": "allow"}
    schedules.add("sums", graph, every="1h", starts=start, catch_up="all", **given)
    times = [start + timedelta(hours=number) for number in range(4)]
    names = [f"sums:{time:%Y%m%dT%H%MZ}" for time in times]
    with supervise(any_store, [graph]):
        worker(any_store, graph).look()
        until(lambda: len(Runs(any_store).list(status="completed")) == 4)
    assert run_ids(any_store) == names
    for name in names:
        found = graph.get(name)
        assert (found.status, found.state["x"], found.info.tags) == (
            "completed",
            42,
            ("hourly", "schedule:sums"),
        )
    info = schedules.get("sums")
    assert (info.fired, info.skipped, info.status, info.last_run) == (4, 0, "active", names[-1])
    assert [firing.status for firing in info.recent] == ["completed"] * 4
    assert info.next_time == times[-1] + timedelta(hours=1)


def test_cron_in_a_zone_gives_ids_in_utc(memory: MemoryStore, clock: FakeClock) -> None:
    """H17: 02:30 in Berlin is 01:30 in UTC, in winter; seconds are in an id if there are some."""
    graph = counting_graph(memory)
    schedules = Schedules(memory)
    schedules.add("nightly", graph, cron="30 4 * * *", timezone="Europe/Berlin")
    schedules.add("often", graph, every="90s", starts=BEGIN)
    looks = worker(memory, graph)
    looks.look()
    assert run_ids(memory) == ["often:20261115T0200Z"]
    graph.resume("often:20261115T0200Z")
    clock.skip(90)
    looks.look()
    assert run_ids(memory)[-1] == "often:20261115T020130Z"
    clock.skip_to(BEGIN + timedelta(hours=1, minutes=30))
    looks.look()
    assert "nightly:20261115T0330Z" in run_ids(memory)


def test_a_deleted_run_is_not_fired_again_and_neither_after_the_clock_was_set_back(
    memory: MemoryStore, clock: FakeClock
) -> None:
    """H17: what counts is the place in the timetable, which only moves forward."""
    graph = counting_graph(memory)
    Schedules(memory).add("sums", graph, every="10m")
    looks = worker(memory, graph)
    clock.skip(minutes=10)
    looks.look()
    first = run_ids(memory)
    assert first == ["sums:20261115T0210Z"]
    graph.resume(first[0])
    Runs(memory).delete(first[0])
    looks.look()
    clock.set_by(-1500)
    looks.look()
    worker(memory, graph).look()
    clock.skip(minutes=30)
    looks.look()
    assert run_ids(memory) == []
    clock.skip(minutes=5)
    looks.look()
    assert run_ids(memory) == ["sums:20261115T0220Z"]


def test_no_worker_executes_a_run_before_its_time_is_decided(memory: MemoryStore, clock: FakeClock) -> None:
    """H17: a crash between the two leaves a run that can't end, so no retention deletes it and it fires once."""
    effects: list[str] = []
    store = FaultyStore(memory)
    graph = effect_graph(store, effects.append)
    Schedules(store).add("sums", graph, every="10m")
    clock.skip(minutes=10)
    store.fail("put_document")
    with pytest.raises(StoreUnavailable):
        worker(store, graph).look()
    assert run_ids(store) == ["sums:20261115T0210Z"]
    graph.recover()
    assert store.expire(0.0) == 0
    assert effects == []
    clock.skip(minutes=9)  # too late for catch_up="none", but the run shows that it was in time
    worker(store, graph).look()
    graph.recover()
    assert effects == ["sums:20261115T0210Z"]
    info = Schedules(store).get("sums")
    assert (info.fired, info.skipped) == (1, 0)


WRITES = ("create", "put_document", "claim", "append", "release")


@pytest.mark.parametrize("overlap", ["skip", "queue", "allow", "cancel_old"])
@pytest.mark.parametrize("kind", ["fail", "lose_ack"])
@pytest.mark.parametrize("operation", [*WRITES, "heads", "list", "list_documents", "get_document", "read"])
def test_a_store_that_fails_at_any_call_costs_no_time_and_doubles_none(
    operation: str, kind: str, overlap: Any
) -> None:
    """H17: the next look, of this worker or another, continues from what is stored."""
    for nth in range(1, 12):
        clock = FakeClock(BEGIN)
        store = FaultyStore(MemoryStore(clock=clock))
        effects: list[str] = []
        graph = effect_graph(store, effects.append)
        Schedules(store).add("sums", graph, every="10m", overlap=overlap, catch_up="all")
        fault = getattr(store, kind)(operation, nth=nth)
        for _ in range(3):
            clock.skip(minutes=10)
            for _ in range(3):
                _look_whatever_happens(worker(store, graph))
            _recover_whatever_happens(graph)
        store.heal()
        for _ in range(2):
            clock.skip(seconds=20)  # leases expire whose holders don't know of them
            worker(store, graph).look()
            graph.recover()
        times = [f"sums:20261115T02{minute}Z" for minute in (10, 20, 30)]
        info = Schedules(store).get("sums")
        assert Counter(effects) <= Counter(times), (nth, effects)
        if overlap in ("queue", "allow"):
            assert sorted(effects) == times, (nth, effects)
        assert info.fired + info.skipped == 3, (nth, info)
        assert info.fired == len(run_ids(store))
        if not fault.struck:
            return


def _look_whatever_happens(looks: ScheduleFiring) -> None:
    with suppress(StoreUnavailable):
        looks.look()


def _recover_whatever_happens(graph: StateGraph) -> None:
    with suppress(StoreUnavailable):
        graph.recover()


class Died(BaseException):
    """The process was killed here."""


class Deadly:
    """A store whose process dies at a call: before it, or right after it."""

    def __init__(self, inner: Store, nth: int, after: bool) -> None:
        self.inner = inner
        self.left = nth
        self._after = after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name not in WRITES:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not self._after:
                raise Died
            result = found(*args, **kwargs)
            if self.left == 0:
                raise Died
            return result

        return call


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("overlap", ["skip", "cancel_old"])
def test_a_process_that_dies_at_any_write_leaves_a_time_that_is_fired_once(overlap: Any, after: bool) -> None:
    """H17: between creating the run and advancing the schedule, and anywhere else."""
    for nth in range(1, 30):
        clock = FakeClock(BEGIN)
        store = MemoryStore(clock=clock)
        effects: list[str] = []
        graph = effect_graph(store, effects.append)
        Schedules(store).add("sums", graph, every="10m", overlap=overlap)
        clock.skip(minutes=10)
        deadly = Deadly(store, nth, after)
        with suppress(Died):
            worker(deadly, graph).look()
        clock.skip(seconds=20)  # its lease expires
        worker(store, graph).look()
        graph.recover()
        info = Schedules(store).get("sums")
        assert effects == ["sums:20261115T0210Z"], nth
        assert (info.fired, info.skipped, info.failed) == (1, 0, 0), nth
        if deadly.left > 0:
            assert nth > 4
            return
    pytest.fail("the process died at all of them")


def test_several_workers_at_once_fire_each_time_once(any_store: Store) -> None:
    """H17: threads that look at the same moment."""
    graph = counting_graph(any_store)
    start = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=14)
    schedules = Schedules(any_store)
    schedules.add("sums", graph, every="1m", starts=start, catch_up="all", overlap="allow")
    ready = threading.Barrier(4)
    problems: list[BaseException] = []

    def look() -> None:
        try:
            looks = worker(any_store, graph)
            ready.wait(60)
            for _ in range(3):
                looks.look()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    worker(any_store, graph).look()
    assert problems == []
    runs = Runs(any_store).list()
    info = schedules.get("sums")
    assert len(runs) == info.fired == len({run.run_id for run in runs})
    assert info.skipped == 0
    assert info.fired in (15, 16)  # a minute may have passed meanwhile
    assert all(run.due is not None for run in runs)


def test_a_firing_that_fails_for_good_is_noted_and_the_next_one_succeeds(
    memory: MemoryStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """H17: the graph takes another input by now; the error has no secret in it."""
    graph = StateGraph({"x": int, "token": Annotated[str, secret]}, name="report")
    graph.add_node("add", run=lambda state: {"x": 1}).set_entry_point("add").set_finish_point("add")
    graph.compile(store=memory)
    Schedules(memory).add("sums", graph, every="10m", input={"token": "hunter2"})

    class Strict:
        """A schema that refuses what the schedule has."""

        def __init__(self, token: str) -> None:
            raise ValueError(f"{token} isn't a number")

    changed = counting_graph(memory)
    compiled = changed.compiled()
    refusing = compiled.plan.schema.__class__

    def refuse(self: Any, given: Any) -> Any:
        return Strict(**given)

    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.ERROR, "limpet.schedules"):
        patch.setattr(refusing, "initial", refuse)
        clock.skip(minutes=10)
        worker(memory, changed).look()
    info = Schedules(memory).get("sums")
    assert (info.fired, info.failed, info.last_outcome) == (0, 1, "failed")
    assert "isn't a number" in info.last_error
    assert "hunter2" not in info.last_error + caplog.text
    assert run_ids(memory) == []
    clock.skip(minutes=10)
    worker(memory, graph).look()
    assert run_ids(memory) == ["sums:20261115T0220Z"]


def test_a_schedule_whose_graph_no_worker_knows_is_overdue(memory: MemoryStore, clock: FakeClock) -> None:
    """H17: it stays due, and the first worker that knows the graph catches up as the policy says."""
    graph = counting_graph(memory)
    Schedules(memory).add("sums", graph, every="10m", catch_up="last")
    other = counting_graph(memory, "other")
    clock.skip(minutes=25)
    worker(memory, other).look()
    info = Schedules(memory).get("sums")
    assert (info.status, info.fired, info.skipped) == ("overdue", 0, 0)
    worker(memory, graph, other).look()
    info = Schedules(memory).get("sums")
    assert (info.status, info.fired, info.skipped) == ("active", 1, 1)
    assert run_ids(memory) == ["sums:20261115T0220Z"]


def test_millions_of_missed_times_cost_little(memory: MemoryStore, clock: FakeClock) -> None:
    """H17: of an interval of a second, after a year without a worker; and the newest is found."""
    graph = counting_graph(memory)
    Schedules(memory).add("sums", graph, every="1s")
    Schedules(memory).add("cron", graph, cron="* * * * *", catch_up="last")
    clock.skip(days=365)
    worker(memory, graph).look()
    assert run_ids(memory) == ["cron:20271115T0200Z", "sums:20271115T0200Z"]
    info = Schedules(memory).get("sums")
    assert info.next_time == BEGIN + timedelta(days=365, seconds=1)
    assert info.skipped >= 9_000


def test_a_run_with_the_id_of_a_planned_time_counts_as_fired(memory: MemoryStore, clock: FakeClock) -> None:
    """H17: whichever call made it, and it stays as it is."""
    graph = counting_graph(memory)
    Schedules(memory).add("sums", graph, every="10m", input={"x": 1})
    graph.execute({"x": 7}, run_id="sums:20261115T0210Z")
    clock.skip(minutes=10)
    worker(memory, graph).look()
    info = Schedules(memory).get("sums")
    assert (info.fired, info.recent[-1].status) == (1, "completed")
    assert graph.get("sums:20261115T0210Z").state["x"] == 8


def test_a_schedule_that_is_deleted_while_it_fires_leaves_no_run_behind(
    memory: MemoryStore, clock: FakeClock
) -> None:
    """H17: a run that was prepared for a time which is never decided is removed."""
    graph = counting_graph(memory)
    schedules = Schedules(memory)
    schedules.add("sums", graph, every="10m")
    clock.skip(minutes=10)

    class Deleting(FaultyStore):
        def put_document(self, *args: Any, **kwargs: Any) -> Any:
            schedules.delete("sums")
            return super().put_document(*args, **kwargs)

    worker(Deleting(memory), graph).look()
    assert run_ids(memory) == []
    assert schedules.list() == []
