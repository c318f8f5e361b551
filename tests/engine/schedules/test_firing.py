"""Each planned time is fired once, or skipped by policy: never twice, never lost. H17."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import product
from time import time
from typing import Annotated, Any

import pytest

from limpet import (
    MemoryStore,
    Runs,
    Schedules,
    StateGraph,
    StoreUnavailable,
    open_store,
    secret,
    supervise,
)
from limpet.engine.leases import lease_client
from limpet.engine.schedules import firing
from limpet.engine.schedules.prepared_runs import is_prepared, prepare
from limpet.engine.sessions.start import StartRequest
from limpet.engine.supervisor.schedule_firing import ScheduleFiring
from limpet.graphs.names import PREPARED
from limpet.journal.run_filter import RunFilter
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
    store.fail("put_document", nth=2)
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


WRITES = ("create", "put_document", "claim", "claim_ready", "append", "release")


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
        def put_document(self, name: str, *args: Any, **kwargs: Any) -> Any:
            if name == "schedule/sums":
                schedules.delete("sums")
            return super().put_document(name, *args, **kwargs)

    worker(Deleting(memory), graph).look()
    assert run_ids(memory) == []
    assert schedules.list() == []


class Between(FaultyStore):
    """A store with which something happens right before, or right after, its next call of a kind."""

    def __init__(
        self, inner: Store, operation: str, happens: Callable[[], object], after: bool = False
    ) -> None:
        super().__init__(inner)
        self._operation = operation
        self._happens: Callable[[], object] | None = happens
        self._after = after

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name != self._operation or self._happens is None:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            happens, self._happens = self._happens, None
            assert happens is not None
            if self._after:
                result = found(*args, **kwargs)
                happens()
                return result
            happens()
            return found(*args, **kwargs)

        return call


def die() -> None:
    raise Died


OVERLAPS = pytest.mark.parametrize("overlap", ["skip", "queue", "allow", "cancel_old"])


@OVERLAPS
@pytest.mark.parametrize("operation", ["create", "put_document"])
def test_a_time_that_is_being_fired_as_its_schedule_is_paused_leaves_no_run_that_never_begins(
    operation: str, overlap: Any, memory: MemoryStore, clock: FakeClock
) -> None:
    """H17: the worker has prepared its run, or is about to; the run begins, and the time counts as fired once."""
    effects: list[str] = []
    graph = effect_graph(memory, effects.append)
    schedules = Schedules(memory)
    schedules.add("sums", graph, every="10m", overlap=overlap, catch_up="all")
    clock.skip(minutes=10)
    worker(Between(memory, operation, lambda: schedules.pause("sums")), graph).look()
    worker(memory, graph).look()
    graph.recover()
    info = schedules.get("sums")
    assert effects == run_ids(memory) == ["sums:20261115T0210Z"]
    assert (info.paused, info.fired, info.skipped) == (True, 1, 0)
    clock.skip(minutes=15)
    worker(memory, graph).look()
    schedules.resume("sums")
    clock.skip(minutes=5)
    worker(memory, graph).look()
    graph.recover()
    assert effects == ["sums:20261115T0210Z", "sums:20261115T0230Z"]


@OVERLAPS
def test_a_time_whose_worker_died_before_the_pause_is_fired(
    overlap: Any, memory: MemoryStore, clock: FakeClock
) -> None:
    """H17: the pause finds its run prepared, so it knows that the time was to be fired."""
    effects: list[str] = []
    graph = effect_graph(memory, effects.append)
    schedules = Schedules(memory)
    schedules.add("sums", graph, every="10m", overlap=overlap, catch_up="all")
    clock.skip(minutes=10)
    with suppress(Died):
        worker(Between(memory, "create", die, after=True), graph).look()
    schedules.pause("sums")
    schedules.pause("sums")
    worker(memory, graph).look()
    graph.recover()
    assert effects == run_ids(memory) == ["sums:20261115T0210Z"]
    assert schedules.get("sums").fired == 1


@OVERLAPS
def test_a_time_whose_worker_died_in_the_pause_is_fired_when_the_schedule_is_resumed(
    overlap: Any, memory: MemoryStore, clock: FakeClock
) -> None:
    """H17: its run isn't forgotten with the times of the pause, where it would be in the way of all later ones."""
    effects: list[str] = []
    graph = effect_graph(memory, effects.append)
    schedules = Schedules(memory)
    schedules.add("sums", graph, every="10m", overlap=overlap, catch_up="all")
    clock.skip(minutes=10)
    pausing = Between(memory, "create", lambda: schedules.pause("sums"))
    with suppress(Died):
        worker(Between(pausing, "create", die, after=True), graph).look()
    clock.skip(minutes=15)
    schedules.resume("sums")
    worker(memory, graph).look()
    graph.recover()
    clock.skip(minutes=5)
    worker(memory, graph).look()
    graph.recover()
    assert effects == run_ids(memory) == ["sums:20261115T0210Z", "sums:20261115T0230Z"]
    info = schedules.get("sums")
    assert (info.fired, info.skipped) == (2, 0)


@pytest.mark.parametrize("overlap", ["skip", "queue", "cancel_old"])
def test_a_run_that_was_prepared_too_late_is_not_in_the_way_of_later_times(
    overlap: Any, memory: MemoryStore, clock: FakeClock
) -> None:
    """H17: a worker stands still before it prepares a run. Others skip the time. Then it prepares it, and dies."""
    effects: list[str] = []
    graph = effect_graph(memory, effects.append)
    schedules = Schedules(memory)
    schedules.add("sums", graph, every="10m", overlap=overlap)
    clock.skip(minutes=10)

    def stand_still() -> None:
        clock.skip(minutes=12)
        worker(memory, graph).look()
        assert run_ids(memory) == []

    with suppress(Died):
        worker(Between(Between(memory, "create", stand_still), "create", die, after=True), graph).look()
    assert run_ids(memory) == ["sums:20261115T0210Z"]
    for minute in (30, 40):
        clock.skip_to(BEGIN + timedelta(minutes=minute))
        worker(memory, graph).look()
        graph.recover()
    assert effects == run_ids(memory) == ["sums:20261115T0230Z", "sums:20261115T0240Z"]
    info = schedules.get("sums")
    assert (info.fired, info.skipped) == (2, 2)


def test_a_worker_that_stood_still_cancels_no_run_of_a_later_time(
    memory: MemoryStore, clock: FakeClock
) -> None:
    """H17: with `cancel_old`, it finds the run of a time after the one that it was about to fire."""
    graph = counting_graph(memory)
    schedules = Schedules(memory)
    schedules.add("sums", graph, every="10m", overlap="cancel_old")
    clock.skip(minutes=10)

    def stand_still() -> None:
        worker(memory, graph).look()
        clock.skip(minutes=10)
        worker(memory, graph).look()

    worker(Between(memory, "list", stand_still), graph).look()
    graph.recover()
    found = {info.run_id: info.status for info in Runs(memory).list()}
    assert found == {"sums:20261115T0210Z": "cancelled", "sums:20261115T0220Z": "completed"}


def test_a_trigger_under_way_survives_that_its_schedule_is_replaced(
    memory: MemoryStore, clock: FakeClock
) -> None:
    """H17: the run that is prepared for it is still wanted."""
    graph = counting_graph(memory)
    schedules = Schedules(memory)
    schedules.add("sums", graph, every="10m")
    wanted = schedules.trigger("sums")
    with suppress(Died):
        worker(Between(memory, "create", die, after=True), graph).look()
    before = memory.head(wanted).created
    clock.skip(seconds=20)
    schedules.add("sums", graph, every="7m", replace=True)
    assert memory.head(wanted).created == before
    worker(memory, graph).look()
    graph.recover()
    assert run_ids(memory) == [wanted]
    assert Runs(memory).get(wanted).status == "completed"


@pytest.mark.parametrize("is_triggered", [False, True])
def test_a_schedule_that_gets_another_graph_starts_no_run_of_the_earlier_one(
    is_triggered: bool, memory: MemoryStore, clock: FakeClock
) -> None:
    """H17: it is replaced between the list of a worker, which knows only the earlier graph, and its turn."""
    earlier = counting_graph(memory, "earlier")
    later = counting_graph(memory, "later")
    schedules = Schedules(memory)
    schedules.add("sums", earlier, every="10m")
    wanted = "sums:20261115T0210Z"
    if is_triggered:
        wanted = schedules.trigger("sums")
    else:
        clock.skip(minutes=10)

    def replace() -> None:
        schedules.add("sums", later, every="10m", replace=True)

    # What is due is listed before the schedule is read.
    looks = worker(Between(memory, "get_document", replace), earlier)
    looks.look()
    looks.look()
    assert run_ids(memory) == []
    info = schedules.get("sums")
    assert (info.graph, info.fired, info.failed) == ("later", 0, 0)
    worker(memory, later).look()
    assert [(run.run_id, run.graph) for run in Runs(memory).list()] == [(wanted, "later")]


def test_a_decided_run_begins_although_its_schedule_has_got_another_graph(
    memory: MemoryStore, clock: FakeClock
) -> None:
    """H17: that needs no graph, and the time counts as fired."""
    effects: list[str] = []
    earlier = effect_graph(memory, effects.append, "earlier")
    later = counting_graph(memory, "later")
    schedules = Schedules(memory)
    schedules.add("sums", earlier, every="10m")
    clock.skip(minutes=10)
    with suppress(Died):
        worker(Between(memory, "claim", die), earlier).look()

    def replace() -> None:
        schedules.add("sums", later, every="10m", replace=True)

    worker(Between(memory, "get_document", replace), earlier).look()
    earlier.recover()
    assert effects == ["sums:20261115T0210Z"]


def _delete(schedules: Schedules, graph: StateGraph) -> None:
    schedules.delete("sums")


def _replace(schedules: Schedules, graph: StateGraph) -> None:
    schedules.add("sums", graph, every="7m", replace=True)


def _pause_and_resume(schedules: Schedules, graph: StateGraph) -> None:
    schedules.pause("sums")
    schedules.resume("sums")


class Meddled(Deadly):
    """A store in which the schedule is changed right before a write, by a process that may die at once after it."""

    def __init__(self, inner: Store, nth: int, after: bool, meddle: Callable[[], None], at: int) -> None:
        super().__init__(inner, nth, after)
        self._meddle = meddle
        self._at = at

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name not in WRITES:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._at -= 1
            if self._at == 0:
                self._meddle()
            return found(*args, **kwargs)

        return call


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("how", [_delete, _replace, _pause_and_resume])
@pytest.mark.parametrize("is_triggered", [False, True])
def test_no_prepared_run_stays_when_a_schedule_changes_and_its_worker_dies(
    how: Callable[[Schedules, StateGraph], None], after: bool, is_triggered: bool
) -> None:
    """H17: at any write. Any worker begins it or removes it, within two minutes; and no time is fired twice."""
    stayed = 0
    for at, nth in product(range(1, 10), range(1, 10)):
        clock = FakeClock(BEGIN)
        store = MemoryStore(clock=clock)
        effects: list[str] = []
        graph = effect_graph(store, effects.append)
        schedules = Schedules(store)
        schedules.add("sums", graph, every="10m")
        if is_triggered:
            schedules.trigger("sums")
        else:
            clock.skip(minutes=10)

        def meddle(schedules: Schedules = schedules, graph: StateGraph = graph) -> None:
            with pytest.MonkeyPatch.context() as patch:
                # The process that changes the schedule dies before it has tidied up.
                patch.setattr("limpet.schedules._discard_undecided", lambda *arguments: None)
                how(schedules, graph)

        with suppress(Died):
            worker(Meddled(store, nth, after, meddle, at), graph).look()
        stayed += any(is_prepared(head) for head in store.list(RunFilter()))
        other = counting_graph(store, "other")
        clock.skip(seconds=2 * 60)
        worker(store, graph).look()
        worker(store, other).look()
        graph.recover()
        assert not any(is_prepared(head) for head in store.list(RunFilter())), (at, nth)
        assert all(count == 1 for count in Counter(effects).values()), (at, nth, effects)
        assert {info.status for info in Runs(store).list()} <= {"completed"}, (at, nth)
        # Nothing is kept of it either, once it is certain that no process is still at it.
        clock.skip(hours=2)
        worker(store, other).look()
        assert store.list_documents(PREPARED) == [], (at, nth)
    assert stayed


def test_a_run_that_is_prepared_just_now_is_left_to_its_worker(memory: MemoryStore, clock: FakeClock) -> None:
    """H17: and one whose schedule will decide about it stays, however long that takes."""
    graph = counting_graph(memory)
    schedules = Schedules(memory)
    schedules.add("sums", graph, every="10m")
    clock.skip(minutes=10)
    store = FaultyStore(memory)
    store.fail("put_document", nth=2)
    with pytest.raises(StoreUnavailable):
        worker(store, graph).look()
    (run_id,) = run_ids(memory)
    other = counting_graph(memory, "other")
    for _ in range(3):
        clock.skip(minutes=30)
        worker(memory, other).look()
        assert is_prepared(memory.head(run_id))
    schedules.delete("sums")
    assert run_ids(memory) == []


def test_a_prepared_run_whose_schedule_cannot_be_read_concerns_no_other(
    memory: MemoryStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """H17: it stays as it is, and that is logged."""
    graph = counting_graph(memory)
    schedules = Schedules(memory)
    for name in ("broken", "gone"):
        schedules.add(name, graph, every="10m")
    clock.skip(minutes=10)
    for name in ("broken", "gone"):
        prepare(graph.compiled(), StartRequest({}, None, f"{name}:1", named=True), 0, name)
    found = memory.get_document("schedule/broken")
    assert found is not None
    memory.put_document("schedule/broken", b"\xc1", found.version)
    schedules.delete("gone")
    clock.skip(minutes=2)
    with caplog.at_level(logging.ERROR, "limpet.supervisor"):
        worker(memory, counting_graph(memory, "other")).look()
    assert run_ids(memory) == ["broken:1"]
    (logged,) = (record.getMessage() for record in caplog.records)
    assert logged.startswith("a prepared run couldn't be begun or removed: ")
    assert "broken" in logged


def prepared_only(store: MemoryStore, graph: StateGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker crashes when it has prepared a run, before it decides."""

    def crash(*_: Any) -> None:
        raise StoreUnavailable("it is gone")

    with monkeypatch.context() as patch, suppress(StoreUnavailable):
        patch.setattr(firing, "write_schedule", crash)
        worker(store, graph).look()
    assert len(run_ids(store)) == 1


def test_a_prepared_run_that_a_crashed_worker_left_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """H17: it was made for a schedule that was deleted meanwhile, and counts as no run that hasn't ended."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    graph = counting_graph(store)
    schedules = Schedules(store)
    schedules.add("sums", graph, every=600)
    clock.skip(600)
    prepared_only(store, graph, monkeypatch)
    (document,) = store.list_documents("schedule")
    store.delete_document(document.name, document.version)
    schedules.add("sums", graph, every=600, overlap="skip")
    clock.skip(600)
    worker(store, graph).look()
    assert (schedules.get("sums").fired, schedules.get("sums").skipped) == (1, 0)


def test_a_time_that_a_clock_was_set_back_before_is_discarded_with_its_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H17: the run that was prepared for it would never begin."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    graph = counting_graph(store)
    schedules = Schedules(store)
    schedules.add("sums", graph, every=600)
    clock.skip(600)
    prepared_only(store, graph, monkeypatch)
    clock.set_by(-3600)
    schedules.delete("sums")
    assert run_ids(store) == []


def test_a_prepared_run_is_settled_although_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """H17: it doesn't stay until the clock has caught up."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    graph = counting_graph(store)
    Schedules(store).add("sums", graph, every=600)
    clock.skip(600)
    prepared_only(store, graph, monkeypatch)
    (document,) = store.list_documents("schedule")
    store.delete_document(document.name, document.version)
    clock.set_by(-86400)
    worker(store, counting_graph(store, "other")).look()
    assert len(run_ids(store)) == 1  # its worker may still be at it
    clock.skip(minutes=1)
    worker(store, counting_graph(store, "other")).look()
    assert run_ids(store) == []


def test_a_run_that_was_fired_is_executed_although_the_clock_was_set_back() -> None:
    """H17: it doesn't wait until the clock has caught up, as runs that a user has queued don't."""
    clock = FakeClock(BEGIN)
    store = MemoryStore(clock=clock)
    graph = counting_graph(store)
    Schedules(store).add("sums", graph, every="10m")
    clock.skip(minutes=10)
    # A clock moves on between two calls.
    worker(Between(store, "create", lambda: clock.skip(seconds=1)), graph).look()
    clock.set_by(-86400)
    assert supervise(store, [graph]).drain() == ["sums:20261115T0210Z"]


def test_a_run_that_was_fired_is_due_as_of_its_creation_on_every_store(any_store: Store) -> None:
    """H17, H18: so it is executed before runs that were queued after it was made, however long it took to begin."""
    graph = counting_graph(any_store)
    Schedules(any_store).add("sums", graph, every="1h", starts=datetime.now(UTC) - timedelta(minutes=30))
    Schedules(any_store).trigger("sums")
    store = Between(any_store, "claim", lambda: graph.start({}, run_id="queued"))
    worker(store, graph).look()
    (fired,) = (run_id for run_id in run_ids(any_store) if run_id != "queued")
    head = any_store.head(fired)
    assert head.due == head.created
    assert [each.run_id for each in any_store.ready([head.lane], 5)] == [fired, "queued"]


def test_a_time_that_waits_is_fired_although_the_clock_was_set_back(
    memory: MemoryStore, clock: FakeClock
) -> None:
    """H17: as soon as the run before it has ended. Meanwhile the schedule is shown as waiting, not as overdue."""
    graph = counting_graph(memory)
    schedules = Schedules(memory)
    schedules.add("sums", graph, every="10m", overlap="queue")
    looks = worker(memory, graph)
    for _ in range(2):
        clock.skip(minutes=10)
        looks.look()
    clock.set_by(-86400)
    looks.look()
    info = schedules.get("sums")
    assert (info.status, info.waiting, info.fired) == ("waiting", 1, 1)
    graph.recover()
    looks.look()
    info = schedules.get("sums")
    assert (info.status, info.waiting, info.fired) == ("active", 0, 2)
    assert graph.recover() == ["sums:20261115T0220Z"]


def test_a_time_that_waits_is_not_fired_during_a_pause(memory: MemoryStore, clock: FakeClock) -> None:
    """H17: it waits on until the schedule is resumed."""
    graph = counting_graph(memory)
    schedules = Schedules(memory)
    schedules.add("sums", graph, every="10m", overlap="queue")
    looks = worker(memory, graph)
    for _ in range(2):
        clock.skip(minutes=10)
        looks.look()
    schedules.pause("sums")
    graph.recover()
    looks.look()
    info = schedules.get("sums")
    assert (info.status, info.waiting, info.fired) == ("paused", 1, 1)
    schedules.resume("sums")
    looks.look()
    assert graph.recover() == ["sums:20261115T0220Z"]


@pytest.mark.parametrize("store_url", ["postgres", "redis"], indirect=True)
def test_times_go_by_the_clock_of_the_server(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """H17: a worker whose own clock is ahead neither skips a time nor fires those of the next hours."""
    store = open_store(store_url)
    graph = counting_graph(store)
    monkeypatch.setattr(lease_client, "time", lambda: time() + 7200)
    schedules = Schedules(store)
    start = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
    schedules.add("sums", graph, every="15m", starts=start, overlap="allow")
    until(lambda: store.list_documents("schedule/", due=True))
    worker(store, graph).look()
    info = schedules.get("sums")
    assert (info.fired, info.skipped, info.status) == (1, 0, "active")
    assert info.next_time == start + timedelta(minutes=15)
