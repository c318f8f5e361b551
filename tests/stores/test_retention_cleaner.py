"""Old runs leave a store in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from limpet import Cleaner, MemoryStore, RunPaused, StateGraph, UsageError, Workflow
from limpet.journal import run_filter
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import ENDED, PAUSED, RUNNING, STATUSES, Commit, NewRun, RunHead
from limpet.stores.retention import Retention, find_expired
from limpet.stores.sqlite.store import SQLiteStore
from limpet.testing.conformance.store_calls import ManualClock
from support.checkpoint_stores import InMemoryCheckpointStore
from support.graphs import asking_workflow

HOUR = 3600.0


class Watched(MemoryStore):
    """Says when it was asked to expire runs, and fails the first `failures` times."""

    def __init__(self, clock: Any, failures: int = 0) -> None:
        super().__init__(clock)
        self.asked = threading.Semaphore(0)
        self.failures = failures

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        try:
            if self.failures:
                self.failures -= 1
                raise OSError("not now")
            return super().expire(older_than, statuses)
        finally:
            self.asked.release()

    def was_asked(self) -> bool:
        return self.asked.acquire(timeout=30)


def left(store: Any) -> set[str]:
    return {head.run_id for head in store.list(RunFilter())}


def one_of_each(store: Any) -> None:
    for status in STATUSES:
        store.create(NewRun(status, "g", [b"1"], status=status))


def test_what_ended_long_ago_goes_and_what_waits_stays() -> None:
    """P7, F14: after 24 hours, unless the caller gives another age."""
    clock = ManualClock()
    store = MemoryStore(clock)
    one_of_each(store)
    clock.advance(23 * HOUR)
    assert Cleaner(store).clean() == 0
    clock.advance(HOUR)
    assert Cleaner(store, max_age_hours=25).clean() == 0
    assert Cleaner(store).clean() == 3
    assert left(store) == {PAUSED, RUNNING}
    clock.advance(1000 * HOUR)
    assert Cleaner(store).clean() == 0
    assert Cleaner(store, statuses=PAUSED).clean() == 1
    assert left(store) == {RUNNING}


@pytest.mark.parametrize("kind", ["memory", "sqlite", "five methods"])
def test_the_number_of_ended_runs_kept_is_limited(kind: str, tmp_path: Path) -> None:
    """F14: the newest; those that wait aren't counted."""
    stores: dict[str, Any] = {
        "memory": MemoryStore(),
        "sqlite": SQLiteStore(tmp_path / "runs.db", level="process"),
        "five methods": InMemoryCheckpointStore(),
    }
    # A store of a user's own has nothing of a completed run, unless it is to be preserved.
    flow = Workflow("w", store=stores[kind], preserve=kind == "five methods").add_task("a", lambda: 1)
    asking = asking_workflow(store=stores[kind])
    with pytest.raises(RunPaused):
        asking.execute({}, run_id="waits")
    for number in range(5):
        flow.execute({}, run_id=f"r{number}")
    cleaner = Cleaner(stores[kind], max_age_hours=None, keep_runs=2)
    assert cleaner.clean() == 3
    assert left(cleaner.store) == {"waits", "r3", "r4"}
    assert cleaner.clean() == 0
    assert asking.resume("waits", 7).results == {"ask": 7}
    for store in (stores["sqlite"], cleaner.store):
        store.close()


def test_a_run_that_is_held_is_spared() -> None:
    """P7, P8: also where another process claims it at the last moment."""

    class Late(MemoryStore):
        def list(self, which: RunFilter) -> list[RunHead]:
            found = super().list(which)
            if which.lease_states and which.after is None:
                self.claim("old", "bob", 60)
                super().delete("older")
            return found

    clock = ManualClock()
    store = Late(clock)
    for run_id in ("older", "old", "new"):
        store.create(NewRun(run_id, "g", [b"1"], status="failed"))
        clock.advance(1)
    assert Cleaner(store, max_age_hours=None, keep_runs=1).clean() == 0
    assert left(store) == {"old", "new"}
    clock.advance(59)
    assert Cleaner(store, max_age_hours=0).clean() == 1
    assert left(store) == {"old"}


def test_a_run_that_another_process_resumed_is_spared() -> None:
    """P7: a failed run that was resumed, and waits by now, isn't what was to go."""

    class Resumed(MemoryStore):
        def list(self, which: RunFilter) -> list[RunHead]:
            found = super().list(which)
            clock.advance(1)
            lease = self.claim("old", "bob", 60)
            self.append([Commit("old", lease.fence, 1, [], status=PAUSED)])
            return found

    clock = ManualClock()
    store = Resumed(clock)
    store.create(NewRun("old", "g", [b"1"], status="failed"))
    assert Cleaner(store, max_age_hours=None, keep_runs=0).clean() == 0
    assert store.head("old").status == PAUSED


def test_it_works_at_once_and_then_again_and_again() -> None:
    """P7."""
    clock = ManualClock()
    store = Watched(clock)
    one_of_each(store)
    clock.advance(24 * HOUR)
    with Cleaner(store, every=0.01) as cleaner:
        assert store.was_asked()
        assert store.was_asked()
        assert left(store) == {PAUSED, RUNNING}
        assert cleaner.running
        store.create(NewRun("later", "g", [b"1"], status="failed"))
        clock.advance(24 * HOUR)
        while "later" in left(store):
            assert store.was_asked()
    assert not cleaner.running


def test_it_survives_its_errors_and_logs_them(caplog: pytest.LogCaptureFixture) -> None:
    """P7: a store that fails is asked again."""
    clock = ManualClock()
    store = Watched(clock, failures=3)
    one_of_each(store)
    clock.advance(24 * HOUR)
    with caplog.at_level(logging.INFO, "limpet.upkeep"), Cleaner(store, every=0.01):
        for _ in range(5):
            assert store.was_asked()
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING", "WARNING", "WARNING", "INFO"]
    assert "OSError: not now" in caplog.text
    assert left(store) == {PAUSED, RUNNING}


def test_it_stops_promptly_and_can_start_again() -> None:
    """P7: however long it would have waited."""
    store = Watched(ManualClock())
    cleaner = Cleaner(store, every=10_000)
    assert not cleaner.running
    cleaner.stop()
    for _ in range(2):
        cleaner.start().start()
        assert store.was_asked()
        (thread,) = (each for each in threading.enumerate() if each.name == "limpet-cleaner")
        assert thread.daemon
        cleaner.stop()
        thread.join(30)
        assert not thread.is_alive()
        assert not cleaner.running
    assert not store.asked.acquire(blocking=False)


def test_it_can_be_stopped_from_where_it_works() -> None:
    """P7: a thread doesn't wait for itself."""
    done = threading.Event()

    class Enough(MemoryStore):
        def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
            cleaner.stop()
            done.set()
            return 0

    cleaner = Cleaner(Enough(), every=0.01)
    cleaner.start()
    assert done.wait(30)


@pytest.mark.parametrize(
    ("policy", "hint"),
    [
        ({"every": 0}, "every must be"),
        ({"every": float("inf")}, "every must be"),
        ({"every": "hour"}, "every must be"),
        ({"max_age_hours": -1}, "max_age_hours must be"),
        ({"max_age_hours": float("nan")}, "max_age_hours must be"),
        ({"statuses": ["done"]}, "statuses must be"),
        ({"statuses": []}, "statuses must be"),
        ({"keep_runs": -1}, "keep_runs must be"),
        ({"keep_runs": 1.5}, "keep_runs must be"),
        ({"max_age_hours": None}, "it would never delete a run"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(policy: dict[str, Any], hint: str) -> None:
    """P7."""
    with pytest.raises(UsageError, match=hint):
        Cleaner(MemoryStore(), **policy)


def test_runs_continue_while_it_works() -> None:
    """P7, F14: the runs of a graph that is busy aren't touched."""
    store = MemoryStore()
    graph = StateGraph(name="loop")
    graph.add_node("step", lambda state: {"n": state["n"] + 1})
    graph.set_entry_point("step")
    graph.add_edge("step", "step", lambda state: state["n"] < 20)
    graph.set_finish_point("step")
    graph.compile(store=store)
    with Cleaner(store, every=0.001, max_age_hours=0, keep_runs=0) as cleaner:
        assert [graph.execute({"n": 0})["n"] for _ in range(20)] == [20] * 20
    cleaner.clean()
    assert left(store) == set()


def test_runs_are_asked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """P7, H11: however many there are, and whatever their number is."""
    monkeypatch.setattr(run_filter, "PAGE_SIZE", 3)
    clock = ManualClock()
    for count in (2, 3, 7, 9):
        store = MemoryStore(clock)
        for number in range(count):
            store.create(NewRun(f"r{number}", "g", [b"1"], status="failed"))
        policy = Retention(failed=0)
        expired = find_expired(store, policy, clock=clock)
        assert [each.run_id for each in expired] == [f"r{number}" for number in reversed(range(count))]
        cleaner = Cleaner(store, max_age_hours=None, keep_runs=2)
        assert cleaner.clean() == count - 2
        assert left(store) == {f"r{count - 2}", f"r{count - 1}"}
