"""Lanes in Redis: no two share a set, none is kept without runs, and runs of the version before are in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.journal.run_filter import RunFilter
from limpet.journal.store import COMPLETED, PAUSED, RUNNING, Commit, Labels, Lane, NewRun
from limpet.stores.redis.head_fields import COVERED_BEFORE, checksum
from limpet.stores.redis.scripts import lane_of
from limpet.stores.redis.store import RedisStore
from support.redis_servers import RedisServer

LANES = "limpet:runs:lanes"


@pytest.fixture
def store(server: RedisServer, client: Any) -> Iterator[RedisStore]:
    with closing(RedisStore(server.url)) as store:
        yield store


def found(store: RedisStore, *lanes: Lane) -> list[str]:
    return [head.run_id for head in store.ready(lanes or store.lanes(), 100)]


names = st.text("1:ab", max_size=4)


@given(st.lists(st.builds(Lane, names, names, names), unique=True, min_size=2))
@settings(max_examples=200)
def test_each_lane_has_a_name_of_its_own(lanes: list[Lane]) -> None:
    """H18: whatever queues, graphs and plans are called. `lane_name` in `index.lua` writes the same."""
    named = [f"{len(queue)}:{queue}{len(graph)}:{graph}{plan}".encode() for queue, graph, plan in lanes]
    assert len(set(named)) == len(lanes)
    assert [lane_of(name) for name in named] == lanes


def test_lanes_with_confusing_names_are_apart(store: RedisStore) -> None:
    """H18: also from those of the version before, which had a set for each graph."""
    lanes = [
        Lane("default", "g", ""),
        Lane("default", "g", "1:g"),
        Lane("default", "7:default1:g", ""),
        Lane("default", "7:default1:g1:g", ""),
        Lane("7:default", "g", ""),
        Lane("", "g", ""),
        Lane("g", "", "ü"),
        Lane("ü", "g", ""),
    ]
    for number, lane in enumerate(lanes):
        labels = Labels(plan=lane.plan)
        store.create(NewRun(f"r{number}", lane.graph, [b"1"], due=0.0, queue=lane.queue, labels=labels))
    assert sorted(store.lanes()) == sorted(lanes)
    for number, lane in enumerate(lanes):
        assert found(store, lane) == [f"r{number}"]


def test_a_lane_without_runs_is_forgotten(store: RedisStore, client: Any) -> None:
    """P7, H18: so the lanes don't become more with each version of a graph that is deployed."""
    endings = ("ends", "waits", "moves", "moves without a status", "is deleted", "expires")
    for number, ending in enumerate(endings):
        labels = Labels(plan=f"p{number}")
        store.create(NewRun(ending, "g", [b"1"], due=0.0, labels=labels, holder="ann", ttl=-1))
    store.create(NewRun("gone", "g", [b"1"], due=0.0, labels=Labels(plan="p6")))
    assert len(store.lanes()) == client.scard(LANES) == 7
    moved = Labels(plan="new")
    for commit in (
        Commit("ends", 1, 1, [], status=COMPLETED),
        Commit("waits", 1, 1, [], status=PAUSED),
        Commit("moves", 1, 1, [], status=RUNNING, due=0.0, labels=moved),
        Commit("moves without a status", 1, 1, [], labels=moved),
    ):
        assert store.append([commit]) == [None]
    store.delete("is deleted")
    client.delete("limpet:run:gone")
    assert (
        client.scard(LANES) == 3
    )  # the new one, that of the run that was gone without a trace, and the last
    assert set(found(store)) == {"moves", "moves without a status", "expires"}
    assert set(store.lanes()) == {Lane("default", "g", "new"), Lane("default", "g", "p5")}
    assert store.expire(-1, (RUNNING, PAUSED, COMPLETED)) == 5
    assert client.keys("limpet:runs:lane*") == []


def test_a_run_that_changes_its_plan_is_found_in_its_new_lane_only(store: RedisStore) -> None:
    """H18: whether it was due already, or will be; and also if its holder is late."""
    for run_id, ttl in (("late", -1.0), ("held", 1000.0)):
        store.create(NewRun(run_id, "g", [b"1"], due=0.0, holder="ann", ttl=ttl, labels=Labels(plan="old")))
    old, new = Lane("default", "g", "old"), Lane("default", "g", "new")
    assert found(store, old) == ["late"]
    for run_id in ("late", "held"):
        assert store.append([Commit(run_id, 1, 1, [], labels=Labels(plan="new"))]) == [None]
    assert (found(store, old), found(store, new)) == ([], ["late"])
    assert store.lanes() == [new]


def as_written_before(client: Any, run_id: str) -> None:
    """Make the head and the sets of a run in the default queue those that the version before wrote."""
    key = f"limpet:run:{run_id}"
    client.hdel(key, "plan", "queue")
    client.hset(key, "v", "3")
    client.hset(key, "sum", checksum([value or b"" for value in client.hmget(key, COVERED_BEFORE[b"3"])]))
    client.delete(LANES)
    created = client.zscore("limpet:runs:has due time", run_id)
    if created is not None:
        client.zrem("limpet:runs:has due time", run_id)
        client.zadd("limpet:runs:with due time", {run_id: created})


def test_runs_of_the_version_before_are_found_and_changed(store: RedisStore, client: Any) -> None:
    """D10, P10, H18: in the default queue, without a plan, until they are continued with one."""
    for run_id, more in {
        "queued": {"due": 0.0},
        "later": {"due": 1e12},
        "held": {"due": 0.0, "holder": "ann", "ttl": 1000},
        "asks": {"status": PAUSED},
    }.items():
        store.create(NewRun(run_id, "g", [b"1"], **more))  # type: ignore[arg-type]
    before = {head.run_id: head for head in store.list(RunFilter())}
    for run_id in before:
        as_written_before(client, run_id)
    assert {head.run_id: head for head in store.list(RunFilter(queue="default", plan=""))} == before
    assert [head.run_id for head in store.list(RunFilter(is_due=False))] == ["later"]
    assert store.lanes() == [Lane("default", "g", "")]
    assert found(store) == ["queued"]
    assert [head.run_id for head in store.list(RunFilter(is_due=False))] == ["later"]
    store.post("asks", "k", b"")
    store.post("later", "k", b"")
    assert found(store) == ["queued", "later", "asks"]
    for run_id in before:
        lease = store.claim(run_id, "bob", 1000, instead_of=1)
        labels = Labels("n", "", "", "p")
        changed = Commit(run_id, lease.fence, 1, [b"2"], status=RUNNING, due=0.0, labels=labels, takes=1)
        assert store.append([changed]) == [None]
        store.release(lease)
    assert store.lanes() == [Lane("default", "g", "p")]
    assert set(found(store)) == set(before)
    assert client.keys("limpet:runs:due:*") == client.keys("limpet:runs:urgent:*") == []


def test_a_run_that_a_process_of_the_version_before_creates_is_found(store: RedisStore, client: Any) -> None:
    """P10, H18: while old and new processes share a server; and a lane that was forgotten comes back."""
    store.create(NewRun("first", "g", [b"1"], due=0.0))
    assert found(store) == ["first"]
    store.delete("first")
    assert store.lanes() == []
    store.create(NewRun("kept", "h", [b"1"]))
    for run_id in ("second", "third"):
        store.create(NewRun(run_id, "g", [b"1"], due=0.0))
        as_written_before(client, run_id)
        assert found(store)[-1:] == [run_id]


def test_many_runs_of_the_version_before_are_listed_in_parts(store: RedisStore, client: Any) -> None:
    """P10: and one that can't be read, or is gone, keeps no other from being found."""
    for number in range(2050):
        store.create(NewRun(f"r{number}", f"g{number % 2}", [b"1"], due=1.0))
    client.zunionstore("limpet:runs:with due time", ["limpet:runs:has due time"])
    client.delete(LANES, "limpet:runs:has due time", "limpet:run:r1")
    client.set("limpet:run:r1", "something else")
    client.hset("limpet:run:r3", "fence", "9")
    client.zadd("limpet:runs:with due time", {"gone": 1.0})
    assert set(store.lanes()) == {Lane("default", "g0", ""), Lane("default", "g1", "")}
    assert client.zcard("limpet:runs:has due time") == 2050
    assert not client.exists("limpet:runs:with due time")
    assert len(store.ready(store.lanes(), 3000)) == 2048
