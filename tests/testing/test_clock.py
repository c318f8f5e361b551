"""The clock that skips time: sleeps end, deadlines pass and supervisors wake, and the test doesn't wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from limpet import MemoryStore, Retry, RunPaused, StateGraph, UsageError, pause, sleep, supervise
from limpet.stores.sqlite.store import SQLiteStore
from limpet.testing import UNANSWERED, FakeClock, run_to_end
from limpet.testing.conformance import StoreConformance

DAY = 86400.0


class TestMemoryStoreByAFakeClock(StoreConformance):
    """It stands in for the suite's own clock."""

    @pytest.fixture
    def clock(self) -> FakeClock:  # type: ignore[override]
        return FakeClock()

    @pytest.fixture
    def store(self, clock: FakeClock) -> MemoryStore:
        return MemoryStore(clock=clock)


def sleeper(store: Any, *spans: Any) -> StateGraph:
    def nap(state: Any) -> dict[str, Any]:
        for span in spans:
            sleep(span)
        return {"slept": True}

    graph = StateGraph(name="sleeper").add_node("nap", run=nap)
    return graph.set_entry_point("nap").set_finish_point("nap").compile(store=store, preserve=True)


def test_it_stands_still_until_time_is_skipped() -> None:
    """H9."""
    clock = FakeClock(datetime(2030, 1, 1, tzinfo=UTC))
    began = clock()
    assert clock() == began == datetime(2030, 1, 1, tzinfo=UTC).timestamp()
    assert clock.skip(1.5) == began + 1.5
    assert clock.skip(timedelta(minutes=1), days=1, hours=1, seconds=2) == began + 1.5 + 60 + DAY + 3602
    assert clock.skip_to(began) == clock()
    assert clock.skip_to(datetime(2031, 1, 1, tzinfo=UTC)) == datetime(2031, 1, 1, tzinfo=UTC).timestamp()
    for wrong in (-1, timedelta(days=-1), "a day"):
        with pytest.raises(UsageError):
            clock.skip(wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="has no time zone"):
        FakeClock(datetime(2030, 1, 1))


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("driver", ["sync", "async"])
def test_a_run_that_sleeps_for_days_ends_at_once(kind: str, driver: str, tmp_path: Path) -> None:
    """H9: with a clock that skips by itself; it is then as much later."""
    clock = FakeClock(auto=True)
    store: Any = MemoryStore(clock) if kind == "memory" else SQLiteStore(tmp_path / "runs.db", clock=clock)
    began = clock()
    graph = sleeper(store, DAY, timedelta(days=2))
    state = graph.execute() if driver == "sync" else asyncio.run(graph.aexecute())
    assert state["slept"]
    assert clock() == began + 3 * DAY


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_branches_that_sleep_wake_in_order(driver: str) -> None:
    """H9, F12: concurrently with other branches and with each other, for as long as the longest."""
    clock = FakeClock(auto=True)
    order = []
    began = clock()

    def napping(days: float) -> Callable[[Any], None]:
        def nap(state: Any) -> None:
            sleep(days * DAY)
            order.append(days)

        return nap

    def fail(state: Any, ctx: Any) -> None:
        if ctx.attempt < 3:
            raise ConnectionError
        order.append("tried")

    graph = StateGraph(name="naps").add_node("begin").set_entry_point("begin").add_fanin_node("end")
    for days in (3, 1, 2):
        graph.add_node(f"nap{days}", run=napping(days)).add_parallel_edge("begin", f"nap{days}", "end")
    graph.add_node(
        "fail", run=fail, retry=Retry(3, backoff=1.2 * DAY, factor=1, jitter=0.0, max_delay=9 * DAY)
    )
    graph.add_parallel_edge("begin", "fail", "end").set_finish_point("end")
    graph.compile(store=MemoryStore(clock))
    _ = graph.execute() if driver == "sync" else asyncio.run(graph.aexecute())
    assert order == [1, 2, "tried", 3]
    assert clock() == began + 3 * DAY


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_time_may_be_skipped_just_before_a_run_begins_to_wait(driver: str) -> None:
    """H9: the run has found how long it has to sleep, which isn't true any more."""

    class TurnedBefore(FakeClock):
        def wait(self, seconds: float, stop: threading.Event) -> None:
            self.skip_to(due)
            super().wait(seconds, stop)

    clock = TurnedBefore()
    due = clock() + 2 * DAY
    graph = sleeper(MemoryStore(clock), DAY)

    def work() -> None:
        _ = graph.execute() if driver == "sync" else asyncio.run(graph.aexecute())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("driver", ["sync", "async"])
def test_a_waiting_run_continues_when_time_is_skipped(driver: str) -> None:
    """H9, G12: not before; and it can be cancelled while it waits."""
    clock = FakeClock()
    graph = sleeper(MemoryStore(clock), DAY)
    ended = threading.Event()

    def work() -> None:
        _ = graph.execute(run_id="r") if driver == "sync" else asyncio.run(graph.aexecute(run_id="r"))
        ended.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while not graph.runs() or len(graph.compiled().need_client("test").store.read("r", 1).records) < 2:
        assert not ended.wait(0.005)
    clock.skip(DAY - 1)
    assert not ended.wait(0.1)
    clock.skip(2)
    assert ended.wait(60)
    thread.join()


def test_a_run_that_waits_can_be_cancelled() -> None:
    """G12, H9."""
    graph = sleeper(MemoryStore(FakeClock()), DAY)
    run = graph.invoke(run_id="r")
    thread = threading.Thread(target=run.wait, daemon=True)
    thread.start()
    while not graph.runs() or len(graph.compiled().need_client("test").store.read("r", 1).records) < 2:
        thread.join(0.005)
    run.cancel()
    thread.join(60)
    assert run.status == "cancelled"


def test_a_supervisor_wakes_what_is_due_when_time_is_skipped() -> None:
    """H1, H9: at once, however seldom it looks by itself; once, and not before."""
    clock = FakeClock()
    store = MemoryStore(clock)
    woken = []

    def nap(state: Any) -> None:
        sleep(DAY)
        woken.append(clock())

    graph = StateGraph(name="sleeper").add_node("nap", run=nap).set_entry_point("nap").set_finish_point("nap")
    graph.compile(store=store)
    began = clock()
    with supervise(store, [graph], poll=0.5) as supervisor:
        run = graph.start(run_id="r")
        while store.head("r").due != began + DAY or supervisor.running:
            assert not woken
        clock.skip(days=0.5)
        assert run.status == "running"
        clock.skip(days=0.5)
        run.wait(60)
    assert woken == [began + DAY]


def test_an_unanswered_question_ends_at_its_deadline() -> None:
    """H9: `UNANSWERED` lets it pass."""
    clock = FakeClock()

    def ask(state: Any) -> dict[str, Any]:
        return {"answer": pause("Ship?", deadline=timedelta(days=7), default="later")}

    graph = StateGraph(name="asks").add_node("ask", run=ask).set_entry_point("ask").set_finish_point("ask")
    graph.compile(store=MemoryStore(clock))
    began = clock()
    assert run_to_end(graph, answers={"Ship?": UNANSWERED})["answer"] == "later"
    assert clock() == began + 7 * DAY
    with pytest.raises(RunPaused):
        graph.execute()


def test_time_that_is_skipped_while_a_supervisor_looks_is_not_missed() -> None:
    """H1, H9: what became due after it had looked is found at once, and not when it would look next."""
    clock = FakeClock()
    skipped = threading.Event()

    class Slow(MemoryStore):
        """A store during whose answer time is skipped, once the run sleeps."""

        def ready(self, lanes: Any, limit: int) -> Any:
            found = super().ready(lanes, limit)
            if not skipped.is_set() and self.head("r").due == began + DAY and not found:
                skipped.set()
                clock.skip(DAY)
            return found

    store = Slow(clock)
    began = clock()
    graph = sleeper(store, DAY)
    run = graph.start(run_id="r")
    with supervise(store, [graph], poll=3600.0) as supervisor:
        while not skipped.wait(0.01):
            supervisor.nudge()  # until it looks while the run sleeps
        assert run.wait(60).status == "completed"
