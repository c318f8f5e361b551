"""Lanes that stand in the lines of limits: for how long they do, and what a worker does about them meanwhile. H18."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any

import pytest

from limpet import Limit, Limits, MemoryStore, Schedules, StateGraph, supervise
from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.leases.limit_slots import SlotRequest, limits_of
from limpet.engine.schedules import firing
from limpet.engine.supervisor.catalog import GraphCatalog
from limpet.engine.supervisor.schedule_firing import ScheduleFiring
from limpet.journal.store import NewRun, Store
from limpet.stores.sqlite.store import SQLiteStore
from limpet.testing import FakeClock, FaultyStore
from support.graphs import single
from support.waiting import until

ONE = Limit("one", concurrency=1)


def quick(store: Any, name: str, **settings: Any) -> StateGraph:
    return single(lambda state: {"n": 1}, name=name).compile(store=store, **settings)


def taken_elsewhere(store: Store, limit: Limit) -> SlotRequest:
    """The only slot of a limit, which a run of another process has."""
    limits = limits_of(LeaseClient(store))
    limits.declare([limit])
    lease = store.create(NewRun("elsewhere", "g", [b"x"], holder="h", ttl=1000.0))
    assert lease is not None
    request = SlotRequest(lease, "call", (limit.name,))
    assert limits.acquire([request], True) == [None]
    return request


def graphs_in_line(store: Store) -> list[str]:
    return [each.graph for each in Limits(store).waiting("one")]


def test_a_lane_without_runs_leaves_the_line_while_others_have_many() -> None:
    """H18: else its turn would come, and the slot would be idle for the length of a lease."""
    store = MemoryStore()
    limited = quick(store, "limited", limits=[ONE])
    other = quick(store, "other")
    taken_elsewhere(store, ONE)
    for _ in range(100):
        other.start({})
    handle = limited.start({}, priority=1)
    loop = supervise(store, [limited, other], concurrency=2).watch_loop
    loop.claim(loop.pick(loop.ready()))
    assert graphs_in_line(store) == ["limited"]
    handle.cancel()
    for run_id in loop._picker.run_ids:  # they have ended, and there are many more
        loop._picker.ended(run_id)
    loop._backlog = []
    loop._next_look = 0.0
    loop.ready()
    assert graphs_in_line(store) == []


class Asked(FaultyStore):
    """Does something once, while a worker asks it for ready runs."""

    meanwhile: Any = None

    def ready(self, lanes: Any, limit: int) -> Any:
        found = super().ready(lanes, limit)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return found


def test_a_lane_with_runs_keeps_its_place_as_slots_of_other_limits_are_released() -> None:
    """H18: a worker leaves lines only for lanes in which it has looked for runs."""
    store = Asked(MemoryStore())
    limited = quick(store, "limited", limits=[ONE])
    other = quick(store, "other", limits=[Limit("two", concurrency=1)])
    free = quick(store, "free")
    taken_elsewhere(store, ONE)
    for graph in (limited, limited, other):
        graph.start({})
    supervisor = supervise(store, [limited, other, free], poll=60, concurrency=4)
    loop = supervisor.watch_loop
    (claimed,) = loop.claim(loop.pick(loop.ready()))
    assert (claimed.graph, graphs_in_line(store)) == ("other", ["limited"])
    free.start({})
    loop._next_look = (
        monotonic() + 60
    )  # runs have ended, and there may be more: so the store is asked, without a look
    store.meanwhile = lambda: supervisor.resumer.resume(claimed)
    assert [head.graph for head in loop.ready()] == ["free"]
    assert graphs_in_line(store) == ["limited"]


def test_a_graph_may_have_any_name() -> None:
    """H18: also one of several lines; its lane stands in line, and leaves it, as any other does."""
    store = MemoryStore()
    limited = quick(store, "two\nlines", limits=[ONE])
    other = quick(store, "other")
    request = taken_elsewhere(store, ONE)
    with supervise(store, [limited, other], poll=0.1, concurrency=4):
        waiting = limited.start({})
        until(lambda: graphs_in_line(store) == ["two\nlines"])
        waiting.cancel()
        until(lambda: graphs_in_line(store) == [])
        other.start({}).result(timeout=60)
        again = limited.start({})
        limits_of(LeaseClient(store)).release([request])
        again.result(timeout=60)


class Odd(FaultyStore):
    """Raises once what no store should, when a limit is read."""

    is_odd = True

    def get_document(self, name: str) -> Any:
        if self.is_odd:
            self.is_odd = False
            raise OSError("a driver raised what it shouldn't")
        return super().get_document(name)


def test_a_worker_continues_whatever_a_store_raises() -> None:
    """H18: and what it has picked is picked again."""
    store = Odd(MemoryStore())
    graph = quick(store, "limited", limits=[ONE])
    started = graph.start({})
    loop = supervise(store, [graph]).watch_loop
    assert loop.claim_next() is None
    assert not loop._picker.run_ids
    loop._next_look = 0.0
    assert [head.run_id for head in loop.claim_next() or []] == [started.id]


def test_workers_that_lose_a_race_for_a_run_leave_its_rate_alone(tmp_path: Path) -> None:
    """H18: each run counts once, however many workers were about to claim it."""
    ran: list[str] = []
    lock = Lock()

    def work(state: Any, ctx: Any) -> dict[str, Any]:
        with lock:
            ran.append(ctx.run_id)
        return {"n": 1}

    with closing(SQLiteStore(tmp_path / "runs.db")) as store:
        graph = single(work).compile(store=store, limits=[Limit("slow", rate="12/hour")])
        for _ in range(12):
            graph.start({})
        workers = [supervise(store, [graph], concurrency=4, poll=0.2) for _ in range(4)]
        for worker in workers:
            worker.start()
        until(lambda: len(ran) == 12)
        for worker in workers:
            worker.stop()
        assert len(set(ran)) == 12
        until(lambda: Limits(store).get("slow").begun == 12)


class Killed(BaseException):
    """Ends a process in the test."""


def test_a_scheduled_run_counts_for_a_rate_although_a_worker_was_killed_as_it_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H17, H18: a process that crashed before the run began hasn't executed it."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    begun: list[str] = []
    graph = single(lambda state, ctx: begun.append(ctx.run_id))
    graph.compile(store=store, limits=[Limit("slow", rate="1/hour")])
    Schedules(store).add("each", graph, every="1m", overlap="allow", catch_up="all")
    clock.skip(minutes=1)

    def claimed_and_killed(client: Any, run_id: str) -> bool:
        store.claim(run_id, "a process that is killed here", 10.0)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(firing, "begin", claimed_and_killed)
        with pytest.raises(Killed):
            ScheduleFiring(store, GraphCatalog([graph])).look()
    clock.skip(seconds=11)
    graph.start({})
    supervise(store, [graph]).drain()
    assert len(begun) == 1
    assert Limits(store).get("slow").begun == 1


class Counting(FaultyStore):
    """Counts the documents that it lists, by the beginning of their names."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.listed: Counter[str] = Counter()

    def list_documents(self, prefix: str, *args: Any, **more: Any) -> Any:
        found = super().list_documents(prefix, *args, **more)
        self.listed[prefix] += len(found)
        return found


@pytest.mark.parametrize("of", ["graph", "node"])
def test_a_released_slot_has_no_worker_read_all_schedules(of: str) -> None:
    """H17, H18: the cost of a run doesn't grow with the number of schedules."""
    store = Counting(MemoryStore())
    limits = [Limit("two", concurrency=2)]
    node_limits = limits if of == "node" else []
    graph = StateGraph({"n": int}, name="g").add_node("a", lambda state: {"n": 1}, limits=node_limits)
    graph.set_entry_point("a").set_finish_point("a")
    graph.compile(store=store, limits=limits if of == "graph" else [])
    for number in range(30):
        Schedules(store).add(f"s{number}", graph, every="7d")
    store.listed.clear()
    for _ in range(30):
        graph.start({})
    assert len(supervise(store, [graph], concurrency=4).drain()) == 30
    assert store.listed["schedule/"] == 30


def test_a_slow_worker_knows_new_schedules_of_other_processes_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H17: however long it waits between two looks."""
    clock = FakeClock()
    inner = MemoryStore(clock=clock)
    now = 1000.0
    monkeypatch.setattr("limpet.engine.supervisor.schedule_firing.monotonic", lambda: now)
    graph = quick(inner, "report")
    looks = ScheduleFiring(inner, GraphCatalog([graph]))
    looks.look()
    Schedules(FaultyStore(inner)).add("often", graph, every="2s")
    clock.skip(seconds=16)
    now += 16.0
    looks.look()
    assert Schedules(inner).get("often").fired == 1
