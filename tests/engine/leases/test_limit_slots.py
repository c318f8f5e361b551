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
from limpet.engine.leases.limits.document import lane_text, limit_name, line_prefix
from limpet.engine.leases.process_identity import this_process
from limpet.errors import DamagedDocument, LimitNotFound, StoreError, StoreUnavailable, UsageError
from limpet.journal.encoding.codec import encode
from limpet.journal.encoding.envelope import Envelope
from limpet.journal.store import CANCELLED, Commit, Lane, Lease, NewRun, Store
from limpet.journal.waits import SLOT
from limpet.stores.sqlite.store import SQLiteStore
from limpet.testing import FakeClock, FaultyStore
from support.damage import changed_at_its_end
from support.waiting import until
from support.wrapped_stores import PassesOn

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


@pytest.mark.parametrize("waits", [True, False], ids=["in line", "without a line"])
def test_a_holder_that_was_suspended_loses_its_run_with_its_slot(tmp_path: Path, waits: bool) -> None:
    """H18, P8: it may not renew its lease and continue, once another call has its slot. Its run is ready again."""
    clock = FakeClock()
    with closing(SQLiteStore(tmp_path / "runs.db", clock=clock)) as store:
        one, other = process(store), process(store)
        one.declare([Limit("api", concurrency=1)])
        calls = asks(store, "a", "b")
        assert one.acquire(calls[:1], True) == [None]
        clock.skip(TTL + 1)
        store.renew([calls[1].lease], TTL)
        other.acquire(calls[1:], waits)
        assert [slot.run_id for slot in Limits(store).get("api").held] == ["b"]
        assert store.renew([calls[0].lease], TTL) == [None]
        assert store.head("a").holder is None
        assert store.head("a").crashes == 1


def test_a_process_that_was_suspended_keeps_its_slots_if_it_is_the_first_to_ask() -> None:
    """H18: it renews its own lease instead of breaking it."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    client = LeaseClient(store, TTL)
    limits = limits_of(client)
    limits.declare([Limit("api", concurrency=1)])
    first = client.create(NewRun("a", "g", [b"x"], holder=this_process(), ttl=TTL))
    second = client.create(NewRun("b", "g", [b"x"], holder=this_process(), ttl=TTL))
    assert limits.acquire([SlotRequest(first.lease, "call", ("api",))], True) == [None]
    clock.skip(TTL + 1)
    (wait,) = limits.acquire([SlotRequest(second.lease, "call", ("api",))], True)
    assert wait is not None
    assert not first.lost
    assert store.are_valid([first.lease]) == [True]


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


def test_a_call_that_lost_its_slot_to_a_failing_store_gets_another_post() -> None:
    """H18: it asks again with a ticket whose post is used up, and no slot is free."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    faulty = FaultyStore(store)
    limits = process(faulty)
    limits.declare([Limit("api", concurrency=1, rate="2/10s")])
    calls = asks(store, "a", "b")
    _, wait = limits.acquire(calls, True)
    limits.release(calls[:1])
    assert told(store, "b") == 1
    faulty.fail("delete_document")
    with pytest.raises(StoreError):
        limits.acquire([again(calls[1], wait)], True)
    (wait,) = limits.acquire([again(calls[1], wait)], True)  # the slot is given back, and counts for the rate
    assert wait is not None
    store.renew([calls[1].lease], 100)
    clock.skip(11)
    limits.serve_lines()
    assert told(store, "b") == 2
    assert limits.acquire([again(calls[1], wait)], True) == [None]


def test_a_call_that_is_taken_out_of_the_line_while_it_asks_stands_there_again() -> None:
    """H18: else no process would tell its run when it is its turn."""
    store = MemoryStore()

    class Interfering(PassesOn):
        abilities = store.abilities

        def put_document(self, name: str, *args: Any) -> Any:
            found = store.get_document(name)
            if name == places[0] and found is not None:
                # By a process that saw the limit before it was declared again.
                store.delete_document(name, found.version)
            return store.put_document(name, *args)

    limits = process(Interfering(store))
    places = [""]
    limits.declare([Limit("api", concurrency=1)])
    calls = asks(store, "a", "b")
    _, wait = limits.acquire(calls, True)
    assert wait is not None
    places[0] = f"{line_prefix('api')}{wait.ticket}"
    (new_wait,) = limits.acquire([again(calls[1], wait)], True)
    assert new_wait is not None
    limits.release(calls[:1])
    assert told(store, "b") == 1
    assert limits.acquire([again(calls[1], new_wait)], True) == [None]


def test_a_call_leaves_the_line_with_all_its_tickets() -> None:
    """H18: also with one that a crashed process got for it. Else a slot would be reserved for it in vain."""
    store = MemoryStore()
    limits = process(store)
    limits.declare([Limit("api", concurrency=1)])
    calls = asks(store, "a", "b")
    limits.acquire(calls, True)
    (wait,) = limits.acquire(calls[1:], True)  # the same call, by a process that doesn't know of its ticket
    limits.release(calls[:1])
    assert limits.acquire([again(calls[1], wait)], True) == [None]
    assert store.list_documents(line_prefix("api")) == []


def test_a_process_that_has_lost_a_run_takes_no_turn_from_it() -> None:
    """H18: it gets the slot that is reserved for the run, which gets its post all the same and asks for its own."""
    store = MemoryStore()
    faulty = FaultyStore(store)
    limits = process(store)
    limits.declare([Limit("api", concurrency=1)])
    calls = asks(store, "a", "b")
    lost = calls[1]
    store.release(lost.lease)
    found = lost._replace(lease=store.claim("b", "another", TTL))
    _, wait = limits.acquire([calls[0], found], True)
    faulty.lose_ack("put_document")
    process(faulty).release(calls[:1])  # it doesn't learn that a slot is reserved, so it tells no run
    assert told(store, "b") == 0
    assert limits.acquire([lost], True) == [None]
    assert told(store, "b") == 1
    assert limits.acquire([again(found, wait)], True) == [None]


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


def next_run(store: Store, run_id: str, lane: Lane, wait: SlotWait | None = None) -> SlotRequest:
    """A queued run that a worker is about to claim."""
    if store.heads([run_id]) == [None]:
        store.create(NewRun(run_id, lane.graph, [b"x"], due=0.0, queue=lane.queue))
    claim = Lease(run_id, store.head(run_id).fence + 1, 0.0)
    return SlotRequest(claim, "", ("api",), False, wait=wait, lane=lane_text(lane))


def claimed(store: Store, request: SlotRequest) -> SlotRequest:
    """The same once the worker has claimed the run."""
    lease = store.claim(request.lease.run_id, "worker", TTL)
    assert lease.fence == request.lease.fence
    return request._replace(lease=lease, is_claimed=True, lane="")


def test_lanes_and_calls_take_turns(any_store: Store) -> None:
    """H18: a worker that gives a slot back doesn't get it again while another lane, or a call, waits."""
    one, other = process(any_store), process(any_store)
    one.declare([Limit("api", concurrency=1)])
    busy, rare = Lane("default", "busy", ""), Lane("default", "rare", "")
    first = next_run(any_store, "busy-1", busy)
    assert one.acquire([first], True) == [None]
    first = claimed(any_store, first)
    (rare_wait,) = other.acquire([next_run(any_store, "rare-1", rare)], True)
    (call,) = asks(any_store, "call")
    (call_wait,) = one.acquire([call], True)
    assert rare_wait is not None
    assert call_wait is not None
    one.release([first])
    (busy_wait,) = one.acquire([next_run(any_store, "busy-2", busy)], True)
    assert busy_wait is not None
    # Whichever run of the lane is the most urgent by now.
    urgent = next_run(any_store, "rare-2", rare, rare_wait)
    assert other.acquire([urgent], True) == [None]
    urgent = claimed(any_store, urgent)
    other.release([urgent])
    assert one.acquire([next_run(any_store, "busy-2", busy, busy_wait)], True) == [busy_wait]
    assert one.acquire([again(call, call_wait)], True) == [None]
    one.release([call])
    # Another worker of the lane may take its turn.
    assert other.acquire([next_run(any_store, "busy-2", busy)], True) == [None]
    assert any_store.list_documents(line_prefix("api")) == []


def test_many_runs_of_a_lane_stand_in_line_once_and_begin_together(any_store: Store) -> None:
    """H18: one ticket is enough for all of them, and free slots aren't left over."""
    limits = process(any_store)
    limits.declare([Limit("api", concurrency=3)])
    calls = asks(any_store, "a", "b", "c")
    assert limits.acquire(calls, True) == [None] * 3
    lane = Lane("default", "many", "")
    waits = limits.acquire([next_run(any_store, f"r{number}", lane) for number in range(5)], True)
    assert [bool(wait and wait.ticket) for wait in waits] == [True, False, False, False, False]
    assert len(any_store.list_documents(line_prefix("api"))) == 1
    limits.release(calls)
    runs = [next_run(any_store, f"r{number}", lane, waits[0]) for number in range(5)]
    granted = [wait is None for wait in limits.acquire(runs, True)]
    assert granted == [True, True, True, False, False]


def test_a_lane_that_leaves_the_line_leaves_its_slot_to_the_next(any_store: Store) -> None:
    """H18: when none of its runs waits any more, its turn isn't waited for."""
    limits = process(any_store)
    limits.declare([Limit("api", concurrency=1)])
    calls = asks(any_store, "a", "b")
    assert limits.acquire(calls[:1], True) == [None]
    (wait,) = limits.acquire([next_run(any_store, "r", Lane("default", "g", ""))], True)
    assert wait is not None
    limits.acquire(calls[1:], True)
    limits.release(calls[:1])
    assert told(any_store, "b") == 0
    assert Limits(any_store).get("api").held[0][3:] == (
        Limits(any_store).get("api").held[0].since,
        "g",
        "default",
    )
    assert [each.run_id for each in Limits(any_store).waiting("api")] == ["b"]
    limits.leave_line(*wait)
    assert told(any_store, "b") == 1


@pytest.mark.parametrize("needs", [("api",), ("api", "rare")])
def test_places_of_a_lane_hide_no_call_behind_them(needs: tuple[str, ...]) -> None:
    """H18: each of its workers has a place, one slot serves them all, and other free slots go to what is behind."""
    store = MemoryStore(clock=FakeClock())
    limits = process(store)
    limits.declare([Limit("api", concurrency=3), Limit("rare", concurrency=1)])
    holders = asks(store, "a", "b", "c")
    assert limits.acquire(holders, True) == [None] * 3
    assert limits.acquire(asks(store, "d", limits=("rare",)), True) == [None]
    for _ in range(5):
        request = SlotRequest(Lease("r", 2, 0.0), "", needs, False, lane=lane_text(Lane("default", "g", "")))
        process(store).acquire([request], True)
    (last,) = asks(store, "last")
    limits.acquire([last], True)
    limits.release(holders)
    assert told(store, "last") == 1


def test_a_run_that_ends_when_it_is_its_turn_leaves_its_slot_to_the_next(any_store: Store) -> None:
    """H18: it was cancelled, say. Its reservation isn't waited for."""
    limits = process(any_store)
    limits.declare([Limit("api", concurrency=1)])
    calls = asks(any_store, "a", "b", "c")
    assert limits.acquire(calls[:1], True) == [None]
    limits.acquire(calls[1:], True)
    limits.release(calls[:1])
    assert [told(any_store, name) for name in "bc"] == [1, 0]
    lease = calls[1].lease
    commit = Commit("b", lease.fence, any_store.head("b").sequence, [b"y"], status=CANCELLED)
    commit.ignores_posts = True
    assert any_store.append([commit]) == [None]
    limits._limit("api").serve()
    assert told(any_store, "c") == 1


def test_what_is_owed_to_a_store_that_fails_doesnt_grow() -> None:
    """H18: a call that asks again and again owes one slot at most; and none, if nothing was written."""
    store = FaultyStore(MemoryStore())
    limits = process(store)
    limits.declare([Limit("api", concurrency=1)])
    (call,) = asks(store, "a")
    for operation, owed in (("get_document", 0), ("put_document", 1)):
        fault = store.fail(operation, times=None)
        for _ in range(5):
            limits._limit("api")._known = None
            with pytest.raises(StoreUnavailable):
                limits.acquire([call], True)
        assert len(limits._limit("api")._owed) == owed
        fault.release()
    assert limits.acquire([call], True) == [None]
    assert not limits.has_debts
    assert [slot.run_id for slot in Limits(store).get("api").held] == ["a"]


def test_a_limit_that_cannot_be_read_and_is_owed_slots_concerns_no_other(any_store: Store) -> None:
    """H18: the lines of the others are served."""
    limits = process(any_store)
    limits.declare([Limit("api", concurrency=1), Limit("broken", concurrency=1)])
    (broken,) = asks(any_store, "x", limits=("broken",))
    assert limits.acquire([broken], True) == [None]
    calls = asks(any_store, "a", "b")
    limits.acquire(calls, True)
    found = any_store.get_document(limit_name("broken"))
    assert found is not None
    any_store.put_document(found.name, b"damaged", found.version)
    limits._limit("broken")._known = None
    limits.release([broken])
    assert limits.has_debts
    limits.release(calls[:1])
    assert limits.serve_lines() is not None
    assert told(any_store, "b") == 1


def test_turns_of_a_lane_without_a_worker_cost_one_lease_together() -> None:
    """H18: however many of its workers died in line, and calls of runs that no process executes."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    limits = process(store)
    limits.declare([Limit("api", concurrency=1)])
    (holder,) = asks(store, "holder")
    assert limits.acquire([holder], True) == [None]
    gone = Lane("default", "gone", "")
    for number in range(4):
        process(store).acquire([next_run(store, f"gone-{number}", gone)], True)
    asleep = asks(store, *(f"asleep-{number}" for number in range(4)))
    limits.acquire(asleep, True)
    for each in asleep:
        store.release(each.lease)
    waits = limits.acquire([next_run(store, "live", Lane("default", "live", ""))], True)
    limits.release([holder])
    for _ in ("the lane", "the runs"):
        assert Limits(store).get("api").held[0].graph != "live"
        clock.skip(TTL)
        limits.serve_lines()
    assert limits.acquire([next_run(store, "live", Lane("default", "live", ""), waits[0])], True) == [None]
    # Their runs got posts, so whichever worker resumes one asks again, with its number.
    assert [told(store, each.lease.run_id) for each in asleep] == [1] * 4


def test_a_slot_that_a_lane_keeps_is_free_when_its_worker_is_gone() -> None:
    """H18: the lane has it, and waits for another limit; a worker that looks asks for both again."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    limits = process(store)
    limits.declare([Limit("a", concurrency=1), Limit("b", concurrency=1)])
    (busy,) = asks(store, "busy", limits=("b",))
    assert limits.acquire([busy], True) == [None]
    lane = Lane("default", "both", "")
    both = next_run(store, "r", lane)._replace(limits=("a", "b"))
    (wait,) = limits.acquire([both], True)
    assert wait is not None
    for _ in range(3):
        clock.skip(TTL - 1)
        store.renew([busy.lease], TTL)
        (wait,) = limits.acquire([both._replace(wait=wait)], True)
    (other,) = asks(store, "other", limits=("a",))
    assert limits.acquire([other], False) != [None]
    clock.skip(TTL)
    store.renew([busy.lease, other.lease], TTL)
    assert limits.acquire([other], False) == [None]


def test_a_line_of_many_runs_that_have_ended_is_passed() -> None:
    """H18: more of them than a program may call functions inside each other."""
    store = MemoryStore()
    limits = process(store)
    limits.declare([Limit("api", concurrency=1)])
    (holder,) = asks(store, "holder")
    assert limits.acquire([holder], True) == [None]
    ended = asks(store, *(f"r{number}" for number in range(2500)))
    limits.acquire(ended, True)
    store.append([Commit(each.lease.run_id, 1, 1, [b"x"], status=CANCELLED) for each in ended])
    limits.release([holder])
    assert store.list_documents(line_prefix("api")) == []


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no way to know that a process has ended")
def test_the_slot_of_a_process_that_is_known_to_be_dead_is_free_at_once(any_store: Store) -> None:
    """H1, H18: its lease is still valid, but it is broken as that of the run would be."""
    host, boot, space, _, start_time, *rest = this_process().split("|")
    dead = "|".join((host, boot, space, str(2**22 + 1), start_time, *rest))
    limits = process(any_store)
    limits.declare([Limit("api", concurrency=1)])
    lease = any_store.create(NewRun("dead", "g", [b"x"], holder=dead, ttl=1000.0))
    assert lease is not None
    assert limits.acquire([SlotRequest(lease, "call", ("api",))], True) == [None]
    (call,) = asks(any_store, "live")
    assert limits.acquire([call], True) == [None]
    assert any_store.renew([lease], TTL) == [None]


def test_a_program_that_changes_a_limit_and_a_limit_without_values_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """H18: a misspelt name would limit nothing, and another program's values may be meant."""
    store = MemoryStore()
    process(store).declare([Limit("api", concurrency=3, rate="30/min")])
    assert not caplog.records
    process(store).declare([Limit("api", concurrency=3, rate="30/min")])
    assert not caplog.records
    limits = process(store)
    limits.declare([Limit("api", concurrency=7)])
    assert caplog.messages == [
        "limit 'api': this program declares concurrency 7; before, it was concurrency 3, rate 30/min"
    ]
    for name in ("a", "b"):
        assert limits.acquire(asks(store, name, limits=("apo",)), True) == [None]
    assert caplog.messages[1:] == [
        "limit 'apo' has no values, so it limits nothing: declare it in code, or set it"
    ]


def test_a_run_that_has_begun_passes_those_that_wait_for_the_rate() -> None:
    """H18: it doesn't count for the rate. But it stands behind those that wait for a slot."""
    store = MemoryStore()
    limits = process(store)
    limits.declare([Limit("api", concurrency=2, rate="1/min")])
    (call,) = asks(store, "a")
    assert limits.acquire([call], True) == [None]
    lane = Lane("default", "g", "")
    (wait,) = limits.acquire([next_run(store, "new", lane)], True)
    assert wait is not None
    begun = next_run(store, "begun", lane)._replace(counts=False)
    assert limits.acquire([begun], True) == [None]
    (second,) = limits.acquire([next_run(store, "begun-2", lane, wait)._replace(counts=False)], True)
    assert second is not None


def test_a_rate_that_has_no_room_holds_also_for_a_turn_that_another_run_takes() -> None:
    """H18: a run that was executed before doesn't count for the rate, but the next one of its lane may do so."""
    clock = FakeClock(1_800_000_000.0)
    store = MemoryStore(clock=clock)
    limits = process(store)
    limits.declare([Limit("api", concurrency=2, rate="1/min")])
    (call,) = asks(store, "a")
    assert limits.acquire([call], True) == [None]
    (free,) = asks(store, "b")
    assert limits.acquire([free._replace(counts=False)], True) == [None]
    lane = Lane("default", "g", "")
    (wait,) = limits.acquire([next_run(store, "old", lane)._replace(counts=False)], True)
    assert wait is not None
    limits.release([free._replace(counts=False)])
    (refused,) = limits.acquire([next_run(store, "new", lane, wait)], True)
    assert refused is not None
    clock.skip(62)
    limits.serve_lines()
    assert limits.acquire([next_run(store, "new", lane, refused)], True) == [None]


def test_a_slot_that_a_worker_asks_for_again_isnt_taken_for_left_over() -> None:
    """H18: it was about to claim the run a while ago. Another run of the same ask doesn't get its slot."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    worker = process(store)
    worker.declare([Limit("api", concurrency=1)])
    for run_id in "ab":
        store.create(NewRun(run_id, "g", [b"x"], due=0.0))
    one, other = (SlotRequest(Lease(run_id, 2, 0.0), "", ("api",), is_claimed=False) for run_id in "ab")
    assert worker.acquire([one], False) == [None]
    clock.skip(TTL + 1)
    assert worker.acquire([one, other], False) == [None, SlotWait("api", "")]
    assert [slot.run_id for slot in Limits(store).get("api").held] == ["a"]


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
    any_store.put_document(name, changed_at_its_end(document.body), document.version, due=0.0)
    with pytest.raises(DamagedDocument, match=r"'limit/api' is damaged: .* `limpet limits delete api`"):
        Limits(any_store).get("api")
    assert [info.name for info in Limits(any_store).list()] == ["other"]
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


class Hooked(PassesOn):
    """A store in which something happens just before a limit is written."""

    before_write: Any = None

    def put_document(self, name: str, body: bytes, version: int, due: float | None = None) -> int | None:
        hook, self.before_write = self.before_write, None
        if hook is not None:
            hook()
        written: int | None = self._inner.put_document(name, body, version, due)
        return written


def test_a_slot_that_its_worker_has_just_confirmed_is_not_taken_for_left_over() -> None:
    """H18, P8: a worker that stood still claims its run while another one is about to free its slot."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    hooked = Hooked(store)
    one = LeaseClient(store, TTL)
    two = LeaseClient(hooked, TTL)  # type: ignore[arg-type]  # it passes everything on
    limits_of(one).declare([Limit("api", concurrency=1)])
    heads = {}
    for run_id in "rs":
        store.create(NewRun(run_id, "g", [b"x"], holder=None, ttl=TTL, due=0.0))
        (heads[run_id],) = store.heads([run_id])
    lane = lane_text(Lane("default", "g", ""))
    before = {
        run_id: SlotRequest(Lease(run_id, head.fence + 1, 0.0), "", ("api",), is_claimed=False, lane=lane)
        for run_id, head in heads.items()
        if head is not None
    }
    confirmed: list[Any] = []

    def claim_and_confirm() -> None:
        (lease,) = one.claim_ready([heads["r"]])  # type: ignore[list-item]  # it exists
        assert lease is not None
        claimed = before["r"]._replace(lease=lease.lease, is_claimed=True, counts=False, lane="")
        confirmed.extend(limits_of(one).acquire([claimed], False))

    assert limits_of(one).acquire([before["r"]], True) == [None]
    clock.skip(TTL + 0.5)
    hooked.before_write = claim_and_confirm
    (wait,) = limits_of(two).acquire([before["s"]], True)
    assert confirmed == [None]
    assert wait is not None
    assert [slot.run_id for slot in Limits(store).get("api").held] == ["r"]


@pytest.mark.parametrize("what", ["damaged", "of a newer version"])
def test_a_place_that_cannot_be_read_holds_up_none_behind_it(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """H18: the line isn't taken for empty. One of a newer version stays in it."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    limits = process(store)
    limits.declare([Limit("api", concurrency=1)])
    calls = asks(store, "a", "b", "c")
    limits.acquire(calls, True)
    first = store.list_documents(line_prefix("api"))[0]
    body = b"damaged"
    if what != "damaged":
        body = Envelope(first.name).close(0, encode({"format": 2}))
    store.put_document(first.name, body, first.version)
    clock.skip(2)
    limits.serve_lines()  # while the limit is full
    limits.release(calls[:1])
    clock.skip(2)
    limits.serve_lines()
    assert told(store, "c") == 1
    assert (store.get_document(first.name) is None) == (what == "damaged")
    assert first.name in caplog.text


class CountingLists(PassesOn):
    """Notes how many documents of lines it is asked for at once; None is all."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.asked: list[int | None] = []

    def list_documents(self, prefix: str = "", due: bool = False, limit: int | None = None) -> Any:
        if prefix == line_prefix("api"):
            self.asked.append(limit)
        return self._inner.list_documents(prefix, due, limit)


def test_runs_that_have_ended_leave_the_front_of_a_long_line_without_a_look_at_all_of_it() -> None:
    """H18: the next in line has its turn, however many stand behind it."""
    inner = MemoryStore(clock=FakeClock())
    store = CountingLists(inner)
    limits = process(store)  # type: ignore[arg-type]  # it passes everything on
    limits.declare([Limit("api", concurrency=1)])
    calls = asks(inner, "a", *(f"r{number:02d}" for number in range(40)))
    limits.acquire(calls, True)
    inner.append([Commit(call.lease.run_id, 1, 1, [b"x"], status=CANCELLED) for call in calls[1:4]])
    store.asked.clear()
    limits.release(calls[:1])
    assert told(inner, "r03") == 1
    assert store.asked
    assert None not in store.asked
