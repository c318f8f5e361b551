"""Slots of limits on every store: who gets one, who stands in line, and who is next."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from limpet import Limit, Limits, MemoryStore
from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.leases.limit_slots import LimitClient, SlotRequest, SlotWait, limits_of
from limpet.engine.leases.limits.document import limit_name, line_prefix
from limpet.errors import LimitNotFound, StoreError, UsageError
from limpet.journal.store import CANCELLED, Commit, Lease, NewRun, Store
from limpet.journal.waits import SLOT
from limpet.stores.sqlite.store import SQLiteStore
from limpet.testing import FakeClock
from support.waiting import until

TTL = 10.0


def process(store: Store) -> LimitClient:
    """The limits of a store as another process uses them."""
    return limits_of(LeaseClient(store, TTL))


def held(store: Store, run_id: str) -> Lease:
    lease = store.create(NewRun(run_id, "g", [b"x"], holder="h", ttl=TTL))
    assert lease is not None
    return lease


def asks(store: Store, *run_ids: str, limits: tuple[str, ...] = ("api",)) -> list[SlotRequest]:
    """A call in each of these new runs."""
    return [SlotRequest(held(store, run_id), "call", limits) for run_id in run_ids]


def told(store: Store, run_id: str) -> int:
    """How often a run got a post that it is its turn."""
    return sum(post.key.startswith(f"{SLOT}:") for post in store.inbox(run_id))


def again(request: SlotRequest, wait: SlotWait | None) -> SlotRequest:
    return request._replace(wait=wait)


def test_slots_go_to_the_line_in_order_whichever_process_gives_them_back(any_store: Store) -> None:
    """H18: each run in line gets one post, when it is its turn."""
    one, other = process(any_store), process(any_store)
    one.declare([Limit("api", concurrency=2)])
    calls = asks(any_store, "a", "b", "c", "d", "e")
    waits = one.acquire(calls[:3], True) + other.acquire(calls[3:], True)
    assert [wait is None for wait in waits] == [True, True, False, False, False]
    assert other.acquire([calls[4]], False)[0] == SlotWait("api", "")  # it may not overtake
    one.release([calls[0]])
    assert [told(any_store, name) for name in "cde"] == [1, 0, 0]
    assert one.acquire([again(calls[3], waits[3])], True)[0] is not None  # it isn't its turn
    assert other.acquire([again(calls[2], waits[2])], True) == [None]
    other.release([calls[1], calls[2]])
    assert [told(any_store, name) for name in "cde"][1:] == [1, 1]
    assert one.acquire([again(calls[4], waits[4]), again(calls[3], waits[3])], True) == [None, None]
    one.release(calls[3:])
    assert any_store.list_documents(line_prefix("api")) == []
    assert Limits(any_store).get("api").held == ()
    assert one.acquire([calls[0]], False) == [None]  # the line is known to be empty


def test_a_limit_without_values_limits_nothing(any_store: Store) -> None:
    """H18."""
    limits = process(any_store)
    limits.declare([Limit("api")])
    calls = asks(any_store, "a", "b", "c")
    assert limits.acquire(calls, True) == [None] * 3
    limits.release(calls)
    assert any_store.get_document(limit_name("api")) is None


def test_a_dead_holders_slot_is_free_when_its_lease_ends(tmp_path: Path) -> None:
    """H18, P8: and a clock that is set doesn't free it sooner."""
    clock = FakeClock()
    with closing(SQLiteStore(tmp_path / "runs.db", clock=clock)) as store:
        one, other = process(store), process(store)
        one.declare([Limit("api", concurrency=1)])
        calls = asks(store, "a", "b")
        assert one.acquire(calls[:1], True) == [None]
        clock.set_by(86400)
        (wait,) = other.acquire(calls[1:], True)
        assert wait is not None
        clock.skip(TTL - 1)
        other.serve_lines()
        assert told(store, "b") == 0
        clock.skip(2)
        look = other.serve_lines()
        assert told(store, "b") == 1
        assert look is not None
        assert clock() < look <= clock() + TTL


def test_a_reservation_that_isnt_used_passes_on_and_the_call_keeps_its_place() -> None:
    """H18."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    limits = process(store)
    limits.declare([Limit("api", concurrency=1)])
    calls = asks(store, "a", "b", "c", "d")
    waits = limits.acquire(calls, True)
    limits.release([calls[0]])
    clock.skip(TTL)
    limits.serve_lines()
    assert [told(store, name) for name in "bcd"] == [1, 1, 0]
    (late,) = limits.acquire([again(calls[1], waits[1])], True)
    assert late is not None
    assert limits.acquire([again(calls[2], waits[2])], True) == [None]
    limits.release([calls[2]])
    assert [told(store, name) for name in "bcd"] == [2, 1, 0]
    assert limits.acquire([again(calls[1], late)], True) == [None]


def test_a_run_that_has_ended_or_is_gone_drops_out_of_the_line(any_store: Store) -> None:
    """H18."""
    limits = process(any_store)
    limits.declare([Limit("api", concurrency=1)])
    calls = asks(any_store, "a", "b", "c", "d")
    limits.acquire(calls, True)
    any_store.append([Commit("b", 1, 1, [b"x"], status=CANCELLED)])
    any_store.release(calls[2].lease)
    any_store.delete("c")
    limits.release([calls[0]])
    assert told(any_store, "d") == 1


def test_several_limits_of_a_call_are_taken_in_order_and_kept_meanwhile(any_store: Store) -> None:
    """H18: so calls that need the same limits never wait for each other in a circle."""
    limits = process(any_store)
    limits.declare([Limit("a", concurrency=1), Limit("b", concurrency=1)])
    only_b, both, only_a = (
        *asks(any_store, "only_b", limits=("b",)),
        *asks(any_store, "both", limits=("b", "a")),
        *asks(any_store, "only_a", limits=("a",)),
    )
    assert limits.acquire([only_b], True) == [None]
    (wait,) = limits.acquire([both], True)
    assert wait is not None
    assert wait.limit == "b"
    assert [each.state for each in Limits(any_store).get("a").held] == ["kept"]
    any_store.release(both.lease)
    assert limits.acquire([only_a], True)[0] is not None
    limits.release([only_b])
    lease = any_store.claim("both", "h", TTL)
    resumed = SlotRequest(lease, "call", ("b", "a"), wait=wait)
    assert limits.acquire([resumed], True) == [None]
    limits.release([resumed])
    assert told(any_store, "only_a") == 1


def test_without_a_line_a_refused_call_leaves_no_trace(any_store: Store) -> None:
    """H18: what it had got of other limits is given back, for the rate as well."""
    limits = process(any_store)
    limits.declare([Limit("a", concurrency=5, rate="5/min"), Limit("b", concurrency=1)])
    calls = asks(any_store, "r", "s", limits=("a", "b"))
    assert limits.acquire(calls, False) == [None, SlotWait("b", "")]
    info = Limits(any_store).get("a")
    assert ([each.run_id for each in info.held], info.begun, info.waiting) == (["r"], 1, 0)


def test_a_raised_limit_serves_the_line_at_once_and_a_lowered_one_as_slots_end(any_store: Store) -> None:
    """H18."""
    limits = process(any_store)
    limits.declare([Limit("api", concurrency=1)])
    calls = asks(any_store, "a", "b", "c", "d")
    waits = limits.acquire(calls, True)
    Limits(any_store).set("api", concurrency=3)
    assert [told(any_store, name) for name in "bcd"] == [1, 1, 0]
    asked = [again(calls[1], waits[1]), again(calls[2], waits[2])]
    assert limits.acquire(asked, True) == [None, None]
    Limits(any_store).set("api", concurrency=1)
    limits.release(calls[:2])
    assert told(any_store, "d") == 0
    limits.release([calls[2]])
    assert told(any_store, "d") == 1


def test_a_deleted_limit_frees_its_line(any_store: Store) -> None:
    """H18: and so does one that is set to allow any number."""
    limits = process(any_store)
    for number, change in enumerate(
        (lambda: Limits(any_store).delete("l0"), lambda: Limits(any_store).set("l1", concurrency=None))
    ):
        limits.declare([Limit(f"l{number}", concurrency=1)])
        calls = asks(any_store, *(f"r{number}{each}" for each in range(60)), limits=(f"l{number}",))
        waits = limits.acquire(calls, True)
        change()
        assert [told(any_store, call.lease.run_id) for call in calls[1:]] == [1] * 59
        assert limits.acquire([again(calls[7], waits[7])], True) == [None]
    with pytest.raises(LimitNotFound, match="no limit 'l0'"):
        Limits(any_store).get("l0")


def test_a_rate_has_room_again_after_its_period() -> None:
    """H18: in no period are there more, and the line is served when there is room."""
    clock = FakeClock(1_800_000_000.0)
    store = MemoryStore(clock=clock)
    limits = process(store)
    limits.declare([Limit("api", rate="3/min")])
    calls = asks(store, "a", "b", "c", "d", "e")
    assert limits.acquire(calls[:2], True) == [None, None]
    clock.skip(30)
    waits = limits.acquire(calls[2:], True)
    assert [wait is None for wait in waits] == [True, False, False]
    clock.skip(29.9)
    limits.serve_lines()
    assert told(store, "d") == 0
    clock.skip(1.2)  # a sixtieth of the period later, at most
    limits.serve_lines()
    assert [told(store, name) for name in "de"] == [1, 1]
    clock.set_by(-3600)
    assert limits.acquire([again(calls[3], waits[1])], True) == [None]
    assert Limits(store).get("api").begun == 3  # what was counted counts as now, and one is reserved


def test_only_one_worker_at_a_time_is_about_to_claim_a_run(any_store: Store) -> None:
    """H18: neither takes the slot of the other away."""
    one, other = process(any_store), process(any_store)
    one.declare([Limit("api", concurrency=5)])
    any_store.create(NewRun("r", "g", [b"x"], due=0.0))
    wanted = SlotRequest(Lease("r", 2, 0.0), "", ("api",), is_claimed=False)
    assert one.acquire([wanted], False) == [None]
    assert other.acquire([wanted], False) == [SlotWait("api", "")]
    other.release([wanted])
    any_store.claim("r", "one", TTL)
    assert one.acquire([wanted._replace(is_claimed=True, counts=False)], False) == [None]
    one.release([wanted])  # as a worker that failed to claim the run would
    assert len(Limits(any_store).get("api").held) == 1
    one.release([wanted._replace(is_claimed=True)])
    assert Limits(any_store).get("api").held == ()


def test_what_the_code_declares_is_written_once_and_what_is_set_wins(any_store: Store) -> None:
    """H18."""
    limits = process(any_store)
    limits.declare([Limit("gpu", concurrency=2, queues=["gpu", "big"])])
    document = any_store.get_document(limit_name("gpu"))
    process(any_store).declare([Limit("gpu", concurrency=2, queues=["big", "gpu"])])
    assert any_store.get_document(limit_name("gpu")) == document
    assert (limits.limits_for_queue("gpu"), limits.limits_for_queue("other")) == (("gpu",), ())
    Limits(any_store).set("gpu", concurrency=1, queues=["gpu"])
    process(any_store).declare([Limit("gpu", concurrency=9)])
    info = Limits(any_store).get("gpu")
    assert (info.concurrency, info.queues, info.declared) == (1, ("gpu",), {"concurrency": 9})
    assert [info.source(each) for each in ("concurrency", "rate", "queues")] == ["set", "", "set"]
    assert Limits(any_store).reset("gpu").concurrency == 9


def test_threads_that_ask_at_once_share_few_writes() -> None:
    """H18: one compare-and-set at a time, for all of them together."""
    store = MemoryStore()
    limits = process(store)
    limits.declare([Limit("api", concurrency=1000)])
    calls = asks(store, *(f"r{number}" for number in range(40)))
    answers: list[Any] = []
    threads = [
        Thread(target=lambda call=call: answers.extend(limits.acquire([call], True))) for call in calls
    ]
    with limits._limit("api")._lock:
        for thread in threads:
            thread.start()
        until(lambda: len(limits._limit("api")._queue) == len(calls))
        document = store.get_document(limit_name("api"))
    for thread in threads:
        thread.join()
    after = store.get_document(limit_name("api"))
    assert answers == [None] * len(calls)
    assert document is not None
    assert after is not None
    assert after.version == document.version + 1


def test_grants_count_from_when_they_are_written(tmp_path: Path) -> None:
    """H18: a store that makes a process wait doesn't let twice as many begin at once."""
    with closing(SQLiteStore(tmp_path / "runs.db")) as store:
        limits = process(store)
        limits.declare([Limit("api", rate="5/s")])
        calls = asks(store, *(f"r{number}" for number in range(10)))
        answers: list[Any] = []
        with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            begun = limits.now()
            thread = Thread(target=lambda: answers.extend(limits.acquire(calls[:5], False)))
            thread.start()
            until(lambda: limits.now() > begun + 1.5)
            other.execute("ROLLBACK")
            thread.join()
        assert answers == [None] * 5
        assert None not in limits.acquire(calls[5:], False)


def test_a_damaged_limit_is_named_and_can_be_deleted(any_store: Store) -> None:
    """H18: others work meanwhile."""
    limits = process(any_store)
    limits.declare([Limit("api", concurrency=1), Limit("other", concurrency=1)])
    calls = asks(any_store, "a", "b")
    limits.acquire(calls, True)
    name = limit_name("api")
    document = any_store.get_document(name)
    assert document is not None
    any_store.put_document(name, document.body[:-1] + b"?", document.version, due=0.0)
    with pytest.raises(StoreError, match=r"'limit/api' is damaged: .* `limpet limits delete api`"):
        Limits(any_store).list()
    with pytest.raises(StoreError, match="'limit/api' is damaged"):
        process(any_store).acquire(calls, True)
    process(any_store).serve_lines()
    assert process(any_store).limits_for_queue("default") == ()
    Limits(any_store).delete("api")
    assert [info.name for info in Limits(any_store).list()] == ["other"]
    assert told(any_store, "b") == 1


def test_what_cant_be_a_limit_is_refused() -> None:
    """H18: the message says how a rate is written."""
    assert [
        str(Limit("x", rate=rate).rate) for rate in ("60/min", "5/s", "1000/hour", "10/2min", "1/1.5s")
    ] == [
        "60/min",
        "5/s",
        "1000/hour",
        "10/2min",
        "1/1.5s",
    ]
    assert Limit("x", rate="3/ 2 Minutes") == Limit("x", rate="3/120s")
    for wrong in (
        {"concurrency": 0},
        {"concurrency": True},
        {"concurrency": 1.5},
        {"rate": "60"},
        {"rate": "0/s"},
        {"rate": "5/month"},
        {"rate": 60},
        {"queues": "gpu"},
        {"queues": ["a,b"]},
    ):
        with pytest.raises(UsageError):
            Limit("x", **wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the name of a limit"):
        Limit("a/b")
    with pytest.raises(UsageError, match="give what to set"):
        Limits(MemoryStore()).set("x")
