"""Retry, cancel and delete many runs, by ids or by filters: each has an outcome of its own. H11."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from limpet import (
    Conflict,
    ExecutionError,
    KeyMissing,
    MemoryStore,
    Outcome,
    Outcomes,
    RunNotFound,
    Runs,
    State,
    StateGraph,
    UsageError,
    open_store,
    pause,
)
from limpet.engine.operations import run_query
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import NewRun, RunHead, Store
from support.graphs import chain, single

ELSEWHERE = "elsewhere|boot|namespace|1|2"


class Bug:
    """A node that fails until the bug is fixed, and counts how often each run got that far."""

    def __init__(self) -> None:
        self.fixed = False
        self.paid: list[str] = []

    def pay(self, state: State) -> dict[str, Any]:
        self.paid.append(state["who"])
        return {}

    def ship(self, state: State) -> dict[str, Any]:
        if not self.fixed:
            raise ValueError("a bug")
        return {"shipped": state["who"]}


def failed_orders(store: Any, number: int) -> tuple[StateGraph, Bug]:
    """Runs that failed at their second node: r0, r1 …"""
    bug = Bug()
    graph = chain(bug.pay, bug.ship, names=["pay", "ship"], name="orders").compile(store=store)
    for each in range(number):
        with pytest.raises(ExecutionError):
            graph.execute({"who": f"r{each}"}, run_id=f"r{each}", tags=["even"] if each % 2 == 0 else [])
    return graph, bug


def results(outcomes: list[Outcome]) -> dict[str, str]:
    return {outcome.run_id: outcome.result for outcome in outcomes}


def test_all_runs_that_match_are_handed_back_and_go_on_from_where_they_stopped(any_store: Store) -> None:
    """H11: on every store."""
    graph, bug = failed_orders(any_store, 6)
    runs = Runs(any_store)
    planned = runs.retry(status="failed", tag="even", dry_run=True)
    assert (results(planned), planned.planned) == ({"r0": "planned", "r2": "planned", "r4": "planned"}, 3)
    assert {info.status for info in runs.list()} == {"failed"}
    seen: list[Outcome] = []
    outcomes = runs.retry(status="failed", tag="even", since="2h", progress=seen.append)
    assert outcomes == seen == [Outcome(f"r{each}", "orders", "failed", "done") for each in (4, 2, 0)]
    assert (outcomes.done, outcomes.skipped, outcomes.failed, outcomes.planned) == (3, 0, 0, 0)
    assert {info.run_id for info in runs.list("queued")} == {"r0", "r2", "r4"}
    bug.fixed = True
    assert set(graph.recover()) == {"r0", "r2", "r4"}
    assert {info.run_id for info in runs.list("completed")} == {"r0", "r2", "r4"}
    assert sorted(bug.paid) == [f"r{each}" for each in range(6)]
    assert results(runs.retry(["r1", "r0"])) == {"r1": "done", "r0": "skipped"}
    assert runs.retry("r3", progress=seen.append) == seen[3:]
    assert seen[3:] == [Outcome("r3", "orders", "failed", "done")]
    assert runs.cancel("r3") == [Outcome("r3", "orders", "queued", "done")]
    assert runs.cancel("r3") == [
        Outcome("r3", "orders", "cancelled", "skipped", runs.cancel(["r3"])[0].reason)
    ]
    assert runs.delete("r3") == [Outcome("r3", "orders", "cancelled", "done")]


def test_a_run_that_cannot_be_changed_does_not_stop_the_others() -> None:
    """H11: it has its own outcome, with the reason."""
    store = MemoryStore()
    failed_orders(store, 2)
    single(lambda state: {"said": pause("Well?")}, name="asks").compile(store=store).invoke(
        {}, run_id="p"
    ).wait()
    store.create(NewRun("held", "orders", store.read("r0").records, holder=ELSEWHERE, ttl=60.0, due=0.0))
    runs = Runs(store)
    retried = {outcome.run_id: outcome for outcome in runs.retry(["r0", "missing", "p", "held", "r1", "r0"])}
    assert results(list(retried.values())) == {
        "r0": "done",
        "missing": "failed",
        "p": "skipped",
        "held": "skipped",
        "r1": "done",
    }
    assert isinstance(retried["missing"].error, RunNotFound)
    assert retried["p"].reason == (
        "it is paused: only a run that failed, or was cancelled, forked or rolled back, is retried"
    )
    cancelled = runs.cancel(all_runs=True)
    assert results(cancelled) == {"r0": "done", "r1": "done", "p": "done", "held": "done"}
    assert runs.get("held").status == "running"  # its holder is asked to stop it
    assert results(runs.cancel(["r0"])) == {"r0": "skipped"}
    deleted = {outcome.run_id: outcome for outcome in runs.delete(graph="orders")}
    assert results(list(deleted.values())) == {"r0": "done", "r1": "done", "held": "skipped"}
    assert "held by process 1 on elsewhere" in deleted["held"].reason
    assert {info.run_id for info in runs.list()} == {"p", "held"}


def test_an_update_is_merged_into_each_run_by_its_own_graph() -> None:
    """H11."""
    store = MemoryStore()
    graph, bug = failed_orders(store, 2)
    with pytest.raises(ExecutionError):
        single(_fail, name="other").compile(store=store).execute({}, run_id="other")
    unknown = r"isn't known here for 'other'; nothing was changed; give it with Runs\(store, graphs="
    for which in (
        {"status": "failed"},
        {"run_id": iter(["r0", "other"])},
        {"all_runs": True, "dry_run": True},
    ):
        with pytest.raises(UsageError, match=unknown):
            Runs(store, graph).retry(update={"who": "x"}, **which)
    with pytest.raises(UsageError, match="isn't known here for 'orders', 'other'"):
        Runs(store).retry(update={"who": "x"}, status="failed")
    assert {info.status for info in Runs(store).list()} == {"failed"}
    retried = Runs(store, graph).retry(update={"who": "x"}, status="failed", graph="orders")
    assert results(retried) == {"r0": "done", "r1": "done"}
    bug.fixed = True
    graph.recover()
    assert [graph.state_at(run_id)["shipped"] for run_id in ("r0", "r1")] == ["x", "x"]
    assert Runs(store).get("other").status == "failed"


def test_one_id_raises_what_went_wrong() -> None:
    """H11: as it does without many."""
    store = MemoryStore()
    failed_orders(store, 1)
    store.create(NewRun("held", "orders", store.read("r0").records, holder=ELSEWHERE, ttl=60.0, due=0.0))
    runs = Runs(store)
    for call in (runs.retry, runs.cancel, runs.delete):
        with pytest.raises(RunNotFound):
            call("missing")
    with pytest.raises(UsageError, match=r"is running: only a run that failed, .* waits until it stops"):
        runs.retry("held")
    with pytest.raises(UsageError, match="has already ended"):
        runs.cancel("r0")
    with pytest.raises(Conflict, match=r"cancel\(\) it first"):
        runs.delete("held")
    assert results(runs.retry("r0", dry_run=True)) == {"r0": "planned"}
    assert results(runs.retry("r0")) == {"r0": "done"}
    with pytest.raises(UsageError, match=r"is queued: only a run that failed, .* a supervisor"):
        runs.retry("r0")


@pytest.mark.parametrize("verb", ["retry", "cancel", "delete"])
def test_all_runs_are_never_meant_by_accident(verb: str) -> None:
    """H11."""
    store = MemoryStore()
    failed_orders(store, 2)
    call: Callable[..., Outcomes] = getattr(Runs(store), verb)
    for given, message in (
        ((), "needs ids of runs, filters, or all_runs=True"),
        ((None,), "needs ids"),
        (("r0", {"status": "failed"}), "ids of runs, or filters"),
        (({"all_runs": True, "status": "failed"},), "takes no filters"),
        (({"status": "failed", "limit": 0},), "limit must be"),
        (({"status": "failed", "limit": 2**63},), "limit must be a whole number of at least 1 and at most"),
        (({"status": "faild"},), "did you mean 'failed'"),
        (([b"r0"],), "strs, not b'r0'"),
        ((7,), "strs, not 7"),
    ):
        options = next((each for each in given if isinstance(each, dict)), {})
        with pytest.raises(UsageError, match=message):
            call(*[each for each in given if not isinstance(each, dict)], **options)
    assert call([]) == []
    assert len(Runs(store).list("failed")) == 2
    assert len(call(all_runs=True, dry_run=True)) == 2
    assert len(call(status="failed", limit=1, dry_run=True)) == 1


class Meddling(MemoryStore):
    """A store in which something else happens after runs were listed, before one of them has its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] | None = None

    def list(self, which: RunFilter) -> list[RunHead]:
        found = super().list(which)
        if self.meanwhile is not None and found:
            happens, self.meanwhile = self.meanwhile, None
            happens()
        return found


def test_a_run_that_changed_since_it_was_found_is_skipped() -> None:
    """H11: it was retried, resumed, deleted or claimed by another process meanwhile."""
    store = Meddling()
    graph, bug = failed_orders(store, 4)
    other = Runs(store)

    def meddle() -> None:
        other.retry("r0")
        other.delete("r1")
        with pytest.raises(ExecutionError):
            graph.resume("r2")  # it fails once more

    store.meanwhile = meddle
    outcomes = {outcome.run_id: outcome for outcome in other.delete(status="failed")}
    assert results(list(outcomes.values())) == {
        "r0": "skipped",
        "r1": "skipped",
        "r2": "skipped",
        "r3": "done",
    }
    assert outcomes["r0"].reason == "it changed meanwhile: it is queued"
    assert outcomes["r1"].reason == "it was deleted meanwhile"
    assert {info.run_id for info in other.list()} == {"r0", "r2"}
    bug.fixed = True
    store.meanwhile = lambda: graph.recover()
    assert results(other.cancel(status="queued")) == {"r0": "skipped"}
    assert other.get("r0").status == "completed"


def test_many_runs_are_found_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """H11: a store is never asked for more than a page, and a run that matches again isn't found again."""
    monkeypatch.setattr(run_query, "PAGE_SIZE", 3)
    store = MemoryStore()
    failed_orders(store, 10)
    asked: list[int | None] = []
    plain_list = store.list

    def recorded(which: RunFilter) -> list[RunHead]:
        asked.append(which.limit)
        return plain_list(which)

    monkeypatch.setattr(store, "list", recorded)
    outcomes = Runs(store).retry(status="failed")
    assert [outcome.run_id for outcome in outcomes] == [f"r{each}" for each in range(9, -1, -1)]
    assert asked == [3, 3, 3, 3]


def test_runs_that_cannot_be_read_are_deleted_and_not_retried(tmp_path: Path) -> None:
    """H11: one that is damaged, and those whose key isn't known here."""
    pytest.importorskip("cryptography")
    url = f"sqlite:///{tmp_path}/runs.db"
    failed_orders(open_store(url, encryption=sha256(b"a key").digest()), 3)
    failed_orders_named(url, "damaged")
    with closing(sqlite3.connect(tmp_path / "runs.db")) as connection, connection:
        connection.execute("UPDATE runs SET fence = fence + 7 WHERE run_id = 'damaged'")
    runs = Runs(url)
    assert {info.run_id for info in runs.list("damaged")} == {"damaged"}
    retried = runs.retry(all_runs=True)
    assert results(retried) == {"damaged": "skipped", "r0": "failed", "r1": "failed", "r2": "failed"}
    assert isinstance(retried[-1].error, KeyMissing)
    assert results(runs.delete(status="damaged")) == {"damaged": "done"}
    assert results(runs.delete(["r0", "r1"])) == {"r0": "done", "r1": "done"}
    assert results(runs.delete(status="failed")) == {"r2": "done"}
    assert runs.list() == []


def failed_orders_named(store: Any, run_id: str) -> None:
    with pytest.raises(ExecutionError):
        single(_fail, name="other").compile(store=store).execute({}, run_id=run_id)


def test_the_async_forms_do_the_same() -> None:
    """H11."""
    store = MemoryStore()
    failed_orders(store, 3)
    runs = Runs(store)

    async def change() -> list[int]:
        retried = await runs.aretry(status="failed", limit=2)
        cancelled = await runs.acancel(status="queued")
        deleted = await runs.adelete(["r0", "r1"])
        return [retried.done, cancelled.done, deleted.done]

    assert asyncio.run(change()) == [2, 2, 2]


def _fail(state: State) -> dict[str, Any]:
    raise ValueError("a bug")
