"""The list of workers, and what they do while their versions differ. H18."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from time import time
from typing import Any

import pytest

from limpet import (
    MemoryStore,
    Runs,
    StateGraph,
    StoreUnavailable,
    UsageError,
    WorkerInfo,
    Workflow,
    open_store,
    sleep,
    supervise,
)
from limpet.engine.leases import lease_client, workers
from limpet.engine.leases.process_identity import this_process
from limpet.engine.leases.workers import worker_document
from limpet.engine.supervisor import lanes, skipped_runs, worker_list
from limpet.engine.supervisor.lanes import MAX_UNFIT
from limpet.engine.supervisor.supervisor import Supervisor
from limpet.graphs.names import WORKERS
from limpet.testing import FakeClock
from limpet.version import VERSION
from support.graphs import single
from support.waiting import SOON, until

AFAR = "afar|boot|namespace|7|123|copy"
"""A process of another host."""


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def version_of(number: int, store: Any, name: str = "g", **settings: Any) -> StateGraph:
    """A graph whose second node has another name in each version."""
    graph = StateGraph({"said": str}, name=name).add_node("first")
    graph.add_node(f"second {number}", run=lambda state: {"said": f"version {number}"})
    graph.add_edge("first", f"second {number}")
    return (
        graph.set_entry_point("first").set_finish_point(f"second {number}").compile(store=store, **settings)
    )


def flow_of(number: int, store: Any, **settings: Any) -> Workflow:
    """A workflow that has another task in each version."""
    flow = Workflow("flow", store=store, **settings).add_task("first", run=lambda: 1)
    return flow.add_task(f"second {number}", run=lambda: number, depends_on=["first"])


def plan_of(graph: Any) -> str:
    return str(graph.compiled().plan.fingerprint)


def add_worker(store: MemoryStore, name: str = AFAR, seen: float | None = None, **more: Any) -> WorkerInfo:
    """Put a worker into the list, as its process would."""
    now = time() if seen is None else seen
    given: dict[str, Any] = {
        "graphs": {},
        "queues": None,
        "runs": 0,
        "run_ids": (),
        "concurrency": 16,
        "lease": 10.0,
        **more,
    }
    info = WorkerInfo(name, "afar", 7, now - 60, now, VERSION, **given)
    found = store.get_document(WORKERS + name)
    assert store.put_document(WORKERS + name, worker_document(info), 0 if found is None else found.version)
    return info


def remove_worker(store: MemoryStore) -> None:
    """Have the worker leave, as its process would."""
    found = store.get_document(WORKERS + AFAR)
    assert found is not None
    assert store.delete_document(found.name, found.version)


def looks_anew(supervisor: Supervisor) -> Supervisor:
    """Have it look at the list of workers again, however short ago the last look was."""
    others = supervisor.resumer.served._others
    assert others is not None
    others._next_look = 0.0
    return supervisor


def test_a_worker_is_listed_while_it_works(store: MemoryStore) -> None:
    """H18: with what it is and does; and no longer when it was stopped."""
    go_on = threading.Event()
    graph = single(lambda state: go_on.wait(SOON) and None, "wait", {"n": int}, "g").compile(store=store)
    runs = Runs(store)
    assert runs.workers() == []
    with supervise(store, [graph], queues=["gpu", "default"], concurrency=3, lease=7.0):
        graph.start({"n": 1}, run_id="r")
        (worker,) = until(runs.workers)
        assert (worker.is_live, worker.runs <= 1, worker.concurrency, worker.lease) == (True, True, 3, 7.0)
        assert worker.name.startswith(this_process())
        assert worker.process.startswith(f"process {worker.pid} on {worker.host}")
        assert (worker.version, worker.queues) == (VERSION, ("gpu", "default"))
        assert worker.graphs == {"g": plan_of(graph)}
        assert abs(worker.seen - time()) < SOON
        assert worker.since <= worker.seen
        go_on.set()
        graph.get("r").wait(SOON)
    assert runs.workers() == []
    assert asyncio.run(runs.aworkers()) == []


def test_the_list_says_what_workers_execute(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """H18: it is renewed; of many runs it has some, and their number."""
    monkeypatch.setattr(worker_list, "RENEWAL_INTERVAL", 0.01)
    monkeypatch.setattr("limpet.engine.supervisor.supervisor.MAX_LISTED_RUNS", 2)
    go_on = threading.Event()
    graph = single(lambda state: go_on.wait(SOON) and None, "wait", {"n": int}, "g").compile(store=store)
    for number in range(3):
        graph.start({"n": 1}, run_id=f"r{number}")
    with supervise(store, [graph]):
        (worker,) = until(lambda: [each for each in Runs(store).workers() if each.runs == 3])
        assert worker.run_ids == ("r0", "r1")
        go_on.set()


def test_a_worker_of_an_event_loop_is_listed(store: MemoryStore) -> None:
    """H18: as any other."""
    graph = version_of(1, store)

    async def main() -> None:
        async with supervise(store, [graph]):
            while not Runs(store).workers():
                await asyncio.sleep(0.01)

    asyncio.run(main())
    assert Runs(store).workers() == []


def test_supervisors_of_one_process_are_listed_apart(store: MemoryStore) -> None:
    """H18: and one that is stopped and started again is there again."""
    first = supervise(store, [version_of(1, store)])
    second = supervise(store, [version_of(1, store, "other")])
    with first, second:
        until(lambda: len(Runs(store).workers()) == 2)
    assert Runs(store).workers() == []
    with first:
        (worker,) = until(Runs(store).workers)
        assert set(worker.graphs) == {"g"}
    assert Runs(store).workers() == []


class Forgetful(MemoryStore):
    """A store whose list of workers can't be reached for a while."""

    is_away = True

    def put_document(self, *args: Any, **more: Any) -> int | None:
        if self.is_away:
            raise StoreUnavailable("it is away")
        return super().put_document(*args, **more)

    def list_documents(self, prefix: str = "", *args: Any, **more: Any) -> Any:
        if self.is_away and prefix == WORKERS:
            raise StoreUnavailable("it is away")
        return super().list_documents(prefix, *args, **more)


def test_a_worker_works_while_the_list_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """H18: that is logged once; then it is listed."""
    monkeypatch.setattr(worker_list, "RENEWAL_INTERVAL", 0.01)
    store = Forgetful()
    graph = version_of(1, store)
    with supervise(store, [graph], poll=0.02):
        assert graph.start({}).result(SOON)["said"] == "version 1"
        until(lambda: "list of workers" in caplog.text)
        store.is_away = False
        until(Runs(store).workers)
    assert caplog.text.count("couldn't renew the entry in the list of workers: it is away") == 1


def test_a_worker_that_was_taken_for_gone_is_listed_again(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H18: its process was suspended, say, and another worker has removed its document."""
    monkeypatch.setattr(worker_list, "RENEWAL_INTERVAL", 0.01)
    with supervise(store, [version_of(1, store)]):
        until(Runs(store).workers)
        (document,) = store.list_documents(WORKERS)
        until(lambda: store.delete_document(document.name, store.list_documents(WORKERS)[0].version))
        until(Runs(store).workers)


def test_a_worker_counts_as_gone_when_it_was_not_seen_for_two_leases(store: MemoryStore) -> None:
    """H18: at least twice the time after which it renews its document."""
    add_worker(store, AFAR + "1", time() - 19, lease=10.0)
    add_worker(store, AFAR + "2", time() - 25, lease=10.0)
    add_worker(store, AFAR + "3", time() - 9, lease=1.0)
    add_worker(store, AFAR + "4", time() - 15, lease=1.0)
    states = {each.name[-1]: each.is_live for each in Runs(store).workers()}
    assert states == {"1": True, "2": False, "3": True, "4": False}


def test_workers_that_are_long_gone_are_removed_by_others(store: MemoryStore) -> None:
    """H18: those that are gone for a short time stay, and so does what can't be read."""
    add_worker(store, AFAR + "long", time() - 2 * worker_list.GONE_KEPT)
    add_worker(store, AFAR + "short", time() - 600)
    store.put_document(f"{WORKERS}later", b"of a later version", 0)
    with supervise(store, [version_of(1, store)]):
        until(lambda: AFAR + "long" not in {each.name for each in Runs(store).workers()})
        assert {each.name for each in Runs(store).workers() if not each.is_live} == {AFAR + "short"}
    assert len(store.list_documents(WORKERS)) == 2


def test_a_worker_takes_runs_of_another_plan_only_if_no_worker_has_it(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """H18: a live one, which serves the queue. They are left alone, logged once, and continued when it is gone."""
    caplog.set_level(logging.INFO, "limpet.supervisor")
    old, new = version_of(1, store), version_of(2, store)
    for number in range(3):
        old.start({}, run_id=f"old {number}")
    new.start({}, run_id="new")
    add_worker(store, graphs={"g": plan_of(old)}, queues=("default",))
    supervisor = supervise(store, [new])
    assert supervisor.drain() == ["new"]
    assert supervisor.drain() == []
    assert caplog.text.count("are left to process 7 on afar, which has this plan") == 1
    assert supervisor.skipped == {}
    assert [store.head(f"old {number}").fence for number in range(3)] == [1, 1, 1]
    # In another queue, the worker is of no help.
    old.start({}, run_id="gpu", queue="gpu")
    assert supervisor.drain() == ["gpu"]
    remove_worker(store)
    assert sorted(looks_anew(supervisor).drain()) == ["old 0", "old 1", "old 2"]
    assert new.get("old 0").state["said"] == "version 2"


def test_a_worker_that_is_gone_keeps_no_run_from_being_continued(store: MemoryStore) -> None:
    """H18: its document is there still, and says that it had the plan."""
    old, new = version_of(1, store), version_of(2, store)
    old.start({}, run_id="old")
    add_worker(store, seen=time() - 60, graphs={"g": plan_of(old)})
    assert supervise(store, [new]).drain() == ["old"]


def test_a_worker_with_the_plan_of_a_run_takes_it_whatever_others_there_are(store: MemoryStore) -> None:
    """H18: and one that is imported first finds out that it has it."""
    graph = version_of(1, store)
    graph.start({}, run_id="r")
    add_worker(store, graphs={"g": plan_of(graph)})
    assert supervise(store, [graph]).drain() == ["r"]


def test_a_graph_that_cannot_be_had_leaves_nothing_to_others_in_silence(store: MemoryStore) -> None:
    """H18: what is wrong with it is the reason why its runs are skipped."""
    graph = version_of(1, store)
    graph.start({}, run_id="r")
    add_worker(store, graphs={"g": plan_of(graph)})
    supervisor = supervise(store, {"g": "no_such_module:graph"})
    assert supervisor.drain() == []
    assert "can't import" in supervisor.skipped["r"]


def test_a_worker_whose_clock_is_wrong_lives_while_it_renews_its_document(store: MemoryStore) -> None:
    """H18: to other workers, which see that it changes."""
    old, new = version_of(1, store), version_of(2, store)
    old.start({}, run_id="old")
    wrong = time() + 86400
    add_worker(store, seen=wrong, graphs={"g": plan_of(old)})
    others = supervise(store, [new]).resumer.served._others
    assert others is not None
    lane = store.head("old").lane
    assert others.with_plan_of(lane) is None
    add_worker(store, seen=wrong + 5, graphs={"g": plan_of(old)})
    others._next_look = 0.0
    assert others.with_plan_of(lane) is not None
    others._next_look = 0.0
    assert others.with_plan_of(lane) is not None


def test_a_run_whose_node_is_gone_is_not_claimed(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """H18: it is left for a worker that has its plan; the log says once why."""
    old = StateGraph(name="g").add_node("gone").set_entry_point("gone").set_finish_point("gone")
    old.compile(store=store)
    new = version_of(2, store)
    for number in range(3):
        old.start({}, run_id=f"old {number}")
    supervisor = supervise(store, [new])
    assert supervisor.drain() == []
    assert sorted(supervisor.skipped) == ["old 0", "old 1", "old 2"]
    assert [store.head(f"old {number}").fence for number in range(3)] == [1, 1, 1]
    assert caplog.text.count("are left alone where they can't be continued here") == 1
    assert caplog.text.count("'gone', which is no longer in the graph") == 1
    assert sorted(supervise(store, [old]).drain()) == ["old 0", "old 1", "old 2"]


def test_many_runs_of_a_plan_that_cannot_be_continued_cost_few_looks(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H18: their lane is left alone for a while, however many they are, and other runs are executed meanwhile."""
    old = StateGraph(name="g").add_node("gone").set_entry_point("gone").set_finish_point("gone")
    old.compile(store=store)
    new = version_of(2, store)
    for number in range(200):
        old.start({}, run_id=f"old {number:03}")
    read = store.read
    reads: list[str] = []
    monkeypatch.setattr(store, "read", lambda run_id, *more: reads.append(run_id) or read(run_id, *more))
    supervisor = supervise(store, [new], concurrency=4)
    assert supervisor.drain() == []
    assert MAX_UNFIT <= len(reads) <= MAX_UNFIT + 8
    lane = store.head("old 000").lane
    assert not supervisor.resumer.served.serves(lane)
    new.start({}, run_id="new")
    assert supervisor.drain() == ["new"]
    (left,) = supervisor.resumer.served.left()
    assert (left.lane, left.whole) == (lane, True)
    later = lanes.monotonic() + lanes.RETRY_INTERVAL + 1
    monkeypatch.setattr(lanes, "monotonic", lambda: later)
    assert supervisor.resumer.served.serves(lane)


@pytest.mark.parametrize("pause", [lanes.RETRY_INTERVAL + 1, 1800.0, 7200.0])
def test_runs_that_can_be_continued_are_found_behind_many_that_cannot(
    monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    """H18: the same ones aren't tried first whenever their lane is looked at again, however rarely that is."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)

    def version(number: int) -> StateGraph:
        graph = StateGraph(name="g").add_node("first")
        graph.add_node(f"second {number}", run=lambda state: sleep(timedelta(hours=1)))
        graph.add_edge("first", f"second {number}")
        return graph.set_entry_point("first").set_finish_point(f"second {number}").compile(store=store)

    old, new = version(1), version(2)
    for number in range(5 * MAX_UNFIT):
        old.start({}, run_id=f"at a node that is gone {number:03}")
    supervise(store, [old], max_sleep=0).drain()
    clock.skip(hours=2)
    expected = [f"fits {number}" for number in range(5)]
    for run_id in expected:
        old.start({}, run_id=run_id)
    assert len(store.lanes()) == 1
    now = 0.0
    for module in (lanes, skipped_runs):
        monkeypatch.setattr(module, "monotonic", lambda: now)
    supervisor = supervise(store, [new], concurrency=4, max_sleep=0)
    done: list[str] = []
    openings = 0
    while len(done) < len(expected) and openings < 40:
        done += supervisor.drain()
        supervisor.resumer.served.left()  # as the list of workers asks
        now += pause
        openings += 1
    assert sorted(done) == expected
    # All that don't fit are tried again still, now and then.
    read = store.read
    reads: set[str] = set()
    monkeypatch.setattr(store, "read", lambda run_id, *more: reads.add(run_id) or read(run_id, *more))
    for _ in range(40):
        now += pause
        supervisor.drain()
    assert len(reads) == 5 * MAX_UNFIT


def test_a_run_that_does_not_fit_is_tried_again_soon_while_there_are_few(store: MemoryStore) -> None:
    """H18: its user may roll it back, so that it fits."""
    served = supervise(store, [version_of(2, store)]).resumer.served
    version_of(1, store).start({}, run_id="old")
    rests = {served.note_unfit(store.head("old"), "its node is gone") for _ in range(8)}
    assert rests == {lanes.RETRY_INTERVAL}


@pytest.mark.parametrize("on_mismatch", ["fail", "warn"])
def test_a_workflow_with_other_tasks_goes_by_its_policy(store: MemoryStore, on_mismatch: Any) -> None:
    """H18, W11: before it is claimed; and a worker with its plan comes first in any case."""
    old, new = flow_of(1, store), flow_of(2, store, on_mismatch=on_mismatch)
    old.start(run_id="old")
    add_worker(store, graphs={"flow": plan_of(old)})
    supervisor = supervise(store, [new])
    assert supervisor.drain() == []
    assert supervisor.skipped == {}
    remove_worker(store)
    done = looks_anew(supervisor).drain()
    if on_mismatch == "warn":
        assert done == ["old"]
        assert set(new.get("old").state.results) == {"first", "second 2"}
        return
    assert done == []
    assert "has changed" in supervisor.skipped["old"]
    assert store.head("old").fence == 1
    assert supervise(store, [old]).drain() == ["old"]


def test_a_workflow_of_which_only_an_inner_graph_changed_is_continued(store: MemoryStore) -> None:
    """H18: its tasks are the same, so on_mismatch doesn't apply, whatever its fingerprint is."""

    def flow(number: int) -> Workflow:
        inner = version_of(number, None, "inner")
        return Workflow("flow", store=store).add_task("first", run=inner)

    old, new = flow(1), flow(2)
    assert plan_of(old) != plan_of(new)
    old.start(run_id="old")
    assert supervise(store, [new]).drain() == ["old"]


def test_runs_that_no_worker_can_continue_are_listed_with_the_reason(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H18: no worker at all, none of the queue, none of the graph, none that has the plan."""
    monkeypatch.setattr(worker_list, "RENEWAL_INTERVAL", 0.01)
    old = StateGraph(name="g").add_node("gone").set_entry_point("gone").set_finish_point("gone")
    old.compile(store=store)
    new = version_of(2, store)
    other = version_of(1, store, "other")
    old.start({}, run_id="old")
    other.start({}, run_id="unknown")
    new.start({}, run_id="gpu 1", queue="gpu")
    new.start({}, run_id="gpu 2", queue="gpu")
    new.start({}, run_id="later", queue="gpu", delay=3600)
    runs = Runs(store)
    assert {each.reason for each in runs.unserved()} == {"no worker is running"}
    assert {info.run_id for info in runs.list(unserved=True)} == {"old", "unknown", "gpu 1", "gpu 2"}
    with supervise(store, [new], queues=["default"], poll=0.02):
        until(lambda: len(runs.unserved()) == 3 and any(each.left for each in runs.workers()))
        found = {(each.queue, each.graph): each for each in runs.unserved()}
        assert found["gpu", "g"].reason == "no worker serves queue 'gpu'"
        assert found["gpu", "g"].runs == 2
        assert found["gpu", "g"].since <= time()
        assert found["default", "other"].reason == "no worker of queue 'default' knows graph 'other'"
        assert found["default", "g"].plan == plan_of(old)
        assert found["default", "g"].reason.startswith(f"no worker has its plan, {plan_of(old)[:8]}: ")
        assert "'gone', which is no longer in the graph" in found["default", "g"].reason
        assert {info.run_id for info in runs.list(unserved=True, queue="gpu")} == {"gpu 1", "gpu 2"}
        assert [info.run_id for info in runs.list(unserved=True, graph="other")] == ["unknown"]
        assert runs.list(unserved=True, status="completed") == []
        assert [info.run_id for info in runs.list(unserved=True, limit=1)] == ["gpu 2"]


def test_runs_that_are_served_are_not_listed(store: MemoryStore) -> None:
    """H18: also those of a graph that a worker imports when it needs it, and those of which nothing is known."""
    graph = version_of(1, store)
    graph.start({}, run_id="r")
    add_worker(store, graphs={"g": None})
    assert Runs(store).unserved() == []
    assert Runs(store).list(unserved=True) == []
    add_worker(store, graphs={"g": "another plan"})
    assert Runs(store).unserved() == []


def test_many_runs_without_a_worker_are_counted_up_to_a_bound(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H18: counting takes as long with a hundred thousand runs."""
    monkeypatch.setattr(workers, "MAX_COUNTED", 5)
    graph = version_of(1, store)
    for _ in range(7):
        graph.start({})
    (lane,) = Runs(store).unserved()
    assert (lane.runs, lane.has_more) == (5, True)


def test_a_store_that_keeps_no_documents_has_no_list() -> None:
    """H18: that is said."""

    class Own:
        """A user's own store of checkpoints."""

        def save(self, *args: Any) -> None: ...

        def load(self, *args: Any) -> None: ...

        def delete(self, *args: Any) -> None: ...

        def list(self, *args: Any) -> list[Any]:
            return []

        def cleanup_expired(self, *args: Any) -> int:
            return 0

    with pytest.raises(UsageError):
        Runs(Own()).workers()


def test_the_time_of_the_list_is_that_of_the_store() -> None:
    """H18: a worker that sleeps away a skip of the clock isn't gone by that once it renews its document."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    with supervise(store, [version_of(1, store)]):
        (worker,) = until(Runs(store).workers)
        assert worker.seen == clock()
        assert worker.is_live
        clock.skip(hours=1)
        assert not Runs(store).workers()[0].is_live


@pytest.mark.parametrize("store_url", ["postgres", "redis"], indirect=True)
def test_workers_live_by_the_clock_of_the_server(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """H18: a machine whose clock is ahead takes no live worker for gone."""
    store = open_store(store_url)
    with supervise(store, [version_of(1, store)]):
        until(lambda: Runs(store).workers())
        monkeypatch.setattr(lease_client, "time", lambda: time() + 3600)
        assert [worker.is_live for worker in Runs(store).workers()] == [True]
