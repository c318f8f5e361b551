"""The store that fails on demand: without faults it is a store like any other, and with them it fails as planned."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from limpet import ExecutionError, MemoryStore, StateGraph, StoreUnavailable, UsageError
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import NewRun, Store
from limpet.stores.sqlite.store import SQLiteStore
from limpet.testing import FaultyStore
from limpet.testing.conformance import ManualClock, StoreConformance
from limpet.testing.conformance.store_calls import commit, create, expect_accepted


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
class TestFaultyStore(StoreConformance):
    """P5: without a fault it behaves like the other store."""

    @pytest.fixture
    def store(self, kind: str, tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
        inner: Any = MemoryStore(clock=clock)
        if kind == "sqlite":
            inner = SQLiteStore(tmp_path / "runs.db", level="process", clock=clock)
        store = FaultyStore(inner)
        yield store
        store.close()

    def reopen(self, store: FaultyStore) -> Store:
        if not isinstance(store.inner, SQLiteStore):
            pytest.skip("what is in memory can't be opened again")
        store.close()
        return FaultyStore(SQLiteStore(store.inner.path, level="process", clock=store.inner.clock))


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


def steps(store: FaultyStore, count: int = 3, **settings: Any) -> StateGraph:
    graph = StateGraph(name="steps").add_node("step", run=lambda state: {"n": state.get("n", 0) + 1})
    graph.add_node("end").set_entry_point("step").set_finish_point("end")
    graph.add_edge("step", "step", lambda state: state["n"] < count).add_edge("step", "end")
    return graph.compile(store=store, preserve=True, **settings)


@pytest.mark.parametrize(
    ("kind", "says"), [("fail", "can't be reached"), ("disk_full", "No space left on device")]
)
def test_a_call_that_fails_has_done_nothing(store: FaultyStore, kind: str, says: str) -> None:
    """G9: the run stops, and resumes there when the store works again."""
    graph = steps(store)
    fault = getattr(store, kind)("append", nth=2)
    with pytest.raises(ExecutionError, match=says):
        graph.execute(run_id="r")
    assert fault.struck == 1
    assert store.inner.head("r").sequence == 2
    assert graph.resume("r") == {"n": 3}


def test_an_acknowledgement_can_be_lost(store: FaultyStore) -> None:
    """G9, invariant 5: what was taken is there, and nothing is done twice."""
    graph = steps(store)
    store.lose_ack("append", nth=2)
    with pytest.raises(ExecutionError, match="before the store answered"):
        graph.execute(run_id="r")
    assert graph.state_at("r") == {"n": 2}
    assert graph.resume("r") == {"n": 3}
    assert [step.node for step in graph.history("r") if step.node] == ["step", "step", "step", "end"]


def test_a_patient_run_waits_for_a_store_that_comes_back(store: FaultyStore) -> None:
    """H1: also if only the acknowledgement failed."""
    store.fail("append", nth=2, times=3)
    store.lose_ack("append", nth=6)
    assert steps(store, on_save_error="wait").execute() == {"n": 3}
    assert store.calls["append"] > 6


def test_a_call_hangs_until_it_is_released(store: FaultyStore) -> None:
    """Then it goes through; others aren't kept."""
    fault = store.hang("create")
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(create(store)), daemon=True)
    thread.start()
    fault.wait()
    assert store.list(RunFilter()) == []
    assert not made
    fault.release()
    thread.join(60)
    assert made[0].run_id == "run-1"
    assert create(store, "other").run_id == "other"


def test_a_call_that_hangs_too_long_fails(store: FaultyStore) -> None:
    """And has done nothing."""
    store.hang("create", seconds=0.01)
    with pytest.raises(StoreUnavailable, match=r"no answer from the store in 0\.01 s"):
        create(store)
    create(store)


def test_closing_releases_what_hangs(store: FaultyStore) -> None:
    """So that no thread of a test is left."""
    fault = store.hang("head")
    outcome = []

    def look() -> None:
        try:
            store.head("run-1")
        except StoreUnavailable as problem:
            outcome.append(str(problem))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    fault.wait()
    store.close()
    thread.join(60)
    assert "closed" in outcome[0]


def test_a_fault_strikes_the_calls_that_it_is_for(store: FaultyStore) -> None:
    """By operation, by number from when it was planned, by what is called, and for a number of them."""
    lease = create(store)
    expect_accepted(store, commit(lease, 1, b"2", snapshot=2))
    fault = store.fail(("head", "read"), nth=2, times=2)
    outcomes = [_outcome(store.head), _outcome(store.read), _outcome(store.head), _outcome(store.read)]
    assert outcomes == ["ok", "failed", "failed", "ok"]
    assert (fault.struck, fault.spent) == (2, True)
    store.fail("create", when=lambda call: call.arguments[0].run_id == "b", times=None)
    for run_id, fails in (("a", False), ("b", True), ("b", True), ("c", False)):
        if fails:
            with pytest.raises(StoreUnavailable):
                store.create(NewRun(run_id, "g", [b"1"]))
        else:
            store.create(NewRun(run_id, "g", [b"1"]))
    store.heal()
    store.create(NewRun("b", "g", [b"1"]))
    store.fail("*")
    assert [_outcome(store.head), _outcome(store.head)] == ["failed", "ok"]


def test_chance_is_the_same_for_the_same_seed() -> None:
    """So that what was found can be found again."""

    def struck(seed: int) -> list[str]:
        store = FaultyStore(MemoryStore(), seed=seed)
        create(store)
        store.fail("head", chance=0.5)
        return [_outcome(store.head) for _ in range(50)]

    assert struck(1) == struck(1) != struck(2)
    assert 10 < struck(1).count("failed") < 40


def test_what_cannot_be_planned_is_refused(store: FaultyStore) -> None:
    """With what there is."""
    with pytest.raises(UsageError, match="no operation 'save'; it has create, append"):
        store.fail("save")
    with pytest.raises(UsageError, match="nth"):
        store.fail(nth=0)
    with pytest.raises(UsageError, match="chance"):
        store.fail(chance=2)
    with pytest.raises(TimeoutError):
        store.fail().wait(0.01)


def test_what_only_the_other_store_has_is_there(tmp_path: Path) -> None:
    """`clock` is part of the seam; a store without one has none."""
    store = FaultyStore(SQLiteStore(tmp_path / "runs.db", clock=ManualClock(5.0)))
    assert store.clock() == 5.0
    assert store.path == store.inner.path  # type: ignore[attr-defined]
    assert not hasattr(store, "wait_for_change")
    store.close()
    assert store.closed


def _outcome(call: Any) -> str:
    try:
        call("run-1")
    except StoreUnavailable:
        return "failed"
    return "ok"
