"""Tests of ready runs: which runs need a holder, and in which order they are listed."""

from __future__ import annotations

from limpet.journal.run_filter import RunFilter
from limpet.journal.store import COMPLETED, PAUSED, RUNNING, Labels, Lane, RunHead, Store
from limpet.testing.conformance.store_calls import (
    ManualClock,
    commit,
    create,
    expect_accepted,
    needs_leases,
    needs_posts,
    ready_runs,
)

DUE_IN = 100.0
DAY = 86400.0


class ReadyRunTests:
    """Part of `StoreConformance`."""

    def test_a_due_run_without_a_holder_is_ready(self, store: Store) -> None:
        """H1: for the graphs that are asked for, and with its usual head."""
        needs_leases(store)
        create(store, "mine", holder=None, due=0.0)
        create(store, "other", holder=None, due=0.0, graph="h")
        assert _ready(store) == ["mine"]
        assert _ready(store, "g", "h") == ["mine", "other"]
        assert ready_runs(store, [], 10) == []
        assert ready_runs(store, ["g"], 10) == [store.head("mine")]
        assert ready_runs(store, ["g"], 0) == []

    def test_a_held_run_is_ready_when_its_lease_expires(self, store: Store, clock: ManualClock) -> None:
        """H1: the runs of a dead process are found, and not those of a live one."""
        needs_leases(store)
        lease = create(store, "r", ttl=10.0, due=0.0)
        assert _ready(store) == []
        clock.advance(9)
        assert _ready(store) == []
        assert store.renew([lease], 10) == [False]
        clock.advance(9)
        assert _ready(store) == []
        clock.advance(2)
        assert _ready(store) == ["r"]
        store.claim("r", "bob", 10)
        assert _ready(store) == []

    def test_a_released_run_is_ready_run_in_threads(self, store: Store) -> None:
        """H1."""
        needs_leases(store)
        lease = create(store, "r", due=0.0)
        store.release(lease)
        assert _ready(store) == ["r"]

    def test_a_run_that_waits_for_a_time_is_ready_then(self, store: Store, clock: ManualClock) -> None:
        """H9: by the store's clock, whatever its status."""
        needs_leases(store)
        for run_id, status in (("asleep", RUNNING), ("asks", PAUSED)):
            lease = create(store, run_id, due=0.0)
            due = store.head(run_id).created + DUE_IN
            expect_accepted(store, commit(lease, 1, b"2", snapshot=2, status=status, due=due))
            store.release(lease)
            assert store.head(run_id).due == due
        clock.advance(DUE_IN - 1)
        assert _ready(store) == []
        clock.advance(2)
        assert sorted(_ready(store)) == ["asks", "asleep"]

    def test_a_run_that_is_not_due_is_never_ready(self, store: Store, clock: ManualClock) -> None:
        """H1, P7: such as a run that waits for an answer or has ended."""
        needs_leases(store)
        create(store, "imported", holder=None)
        for run_id, status in (("waits", PAUSED), ("done", COMPLETED)):
            expect_accepted(store, commit(create(store, run_id, due=0.0), 1, b"2", snapshot=2, status=status))
            assert store.head(run_id).due is None
        clock.advance(1e6)
        assert _ready(store) == []

    def test_a_plain_commit_changes_neither_due_time_nor_priority(self, store: Store) -> None:
        """H1: only a commit with a status changes when the run needs a holder."""
        needs_leases(store)
        lease = create(store, "r", due=5.0, priority=3)
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2, note=b"n"))
        assert (store.head("r").due, store.head("r").priority) == (5.0, 3)
        expect_accepted(store, commit(lease, 2, b"3", snapshot=3, status=RUNNING, due=0.0))
        assert (store.head("r").due, store.head("r").priority) == (0.0, 3)

    def test_the_most_urgent_runs_are_listed_first(self, store: Store, clock: ManualClock) -> None:
        """H1: by priority, then by due time, then by creation."""
        needs_leases(store)
        create(store, "young", holder=None, due=2.0)
        create(store, "b", holder=None, due=1.0)
        clock.advance(5)
        create(store, "a", holder=None, due=1.0)
        create(store, "urgent", holder=None, due=7.0, priority=10)
        create(store, "idle", holder=None, due=0.5, priority=-10)
        assert _ready(store) == ["urgent", "b", "a", "young", "idle"]
        assert [head.run_id for head in ready_runs(store, ["g"], 2)] == ["urgent", "b"]

    def test_the_order_holds_for_many_priorities_and_graphs(self, store: Store, clock: ManualClock) -> None:
        """H1: also between runs that are due later, that are held, that have changed, and that are gone."""
        needs_leases(store)
        expected = []
        for number in range(80):
            run_id = f"{number:02}"
            graph = "g" if number % 3 else "h"
            later = number % 7 == 0
            lease = create(
                store,
                run_id,
                graph=graph,
                holder="ann" if number % 5 == 0 else None,
                due=1e12 if later else 80.0 - number,
                priority=number // 2 - 20,
            )
            if number % 10 == 0:
                store.release(lease)
            if not later and number % 10 != 5:
                expected.append((20 - number // 2, 80.0 - number, run_id))
        names = [run_id for _, _, run_id in sorted(expected)]
        for _ in range(2):
            assert [head.run_id for head in ready_runs(store, ["g", "h", "g", "none"], 200)] == names
            assert [head.run_id for head in ready_runs(store, ["h", "g"], 5)] == names[:5]
        store.claim(names[0], "bob", 10)
        store.delete(names[1])
        lease = store.claim(names[2], "bob", 10)
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2, status=RUNNING, due=1e12))
        store.release(lease)
        assert [head.run_id for head in ready_runs(store, ["g", "h"], 5)] == names[3:8]
        clock.advance(11)
        assert [head.run_id for head in ready_runs(store, ["g", "h"], 1)] == [names[0]]

    def test_a_queued_run_is_due_from_its_creation_on(self, store: Store, clock: ManualClock) -> None:
        """H18: so runs are executed in the order in which they became ready, whichever way they did."""
        needs_leases(store)
        sleeper = create(store, "sleeper", due=0.0)
        wakes = store.head("sleeper").created + 5
        expect_accepted(store, commit(sleeper, 1, b"2", snapshot=2, status=RUNNING, due=wakes))
        store.release(sleeper)
        create(store, "before", holder=None, due=0.0)
        clock.advance(10)
        create(store, "after", holder=None, due=0.0)
        head = store.head("after")
        assert head.due == head.created
        crashed = create(store, "crashed", due=0.0)
        assert store.head("crashed").due == 0.0
        store.release(crashed)
        assert _ready(store) == ["crashed", "before", "sleeper", "after"]

    def test_a_post_brings_a_run_before_those_created_after_it(
        self, store: Store, clock: ManualClock
    ) -> None:
        """H18: a run that was begun isn't kept waiting by a long queue."""
        needs_leases(store)
        needs_posts(store)
        create(store, "first", holder=None, due=0.0)
        clock.advance(1)
        create(store, "waits", holder=None, status=PAUSED)
        clock.advance(1)
        create(store, "later", holder=None, due=0.0)
        clock.advance(1)
        store.post("waits", "k", b"")
        assert store.head("waits").due == store.head("waits").created
        assert _ready(store) == ["first", "waits", "later"]

    def test_queued_runs_stay_ready_when_the_clock_is_set_back(
        self, store: Store, clock: ManualClock
    ) -> None:
        """H18: nor do they wait until it catches up. One that waits for a time is due at that time, as ever."""
        needs_leases(store)
        create(store, "queued", holder=None, due=0.0)
        sleeper = create(store, "asleep", due=0.0)
        wakes = store.head("asleep").created + 5
        expect_accepted(store, commit(sleeper, 1, b"2", snapshot=2, status=RUNNING, due=wakes))
        store.release(sleeper)
        create(store, "urgent", holder=None, due=0.0, priority=1)
        clock.advance(10)
        create(store, "last", holder=None, due=0.0)
        clock.set_by(-DAY)
        assert _ready(store) == ["urgent", "queued", "last"]
        assert [head.run_id for head in ready_runs(store, ["g"], 2)] == ["urgent", "queued"]
        assert sorted(_ids(store.list(RunFilter(is_due=True)))) == ["last", "queued", "urgent"]
        assert _ids(store.list(RunFilter(is_due=False))) == ["asleep"]
        leases = store.claim_ready(ready_runs(store, ["g"], 10), "bob", 1000)
        assert [lease is not None for lease in leases] == [True] * 3
        assert _ready(store) == []
        # It was created after the time at which it is due now.
        napper = next(lease for lease in leases if lease is not None and lease.run_id == "last")
        nap = store.head("last").created - DAY + 5
        expect_accepted(store, commit(napper, 1, b"2", snapshot=2, status=RUNNING, due=nap))
        store.release(napper)
        assert _ready(store) == []
        clock.advance(6)
        assert _ready(store) == ["last"]

    def test_a_post_keeps_a_run_ready_when_the_clock_is_set_back(
        self, store: Store, clock: ManualClock
    ) -> None:
        """H18: whether it came before or after that."""
        needs_leases(store)
        needs_posts(store)
        create(store, "before", holder=None, status=PAUSED)
        create(store, "after", holder=None, status=PAUSED)
        store.post("before", "k", b"")
        clock.set_by(-DAY)
        assert _ready(store) == ["before"]
        store.post("after", "k", b"")
        assert _ready(store) == ["after", "before"]

    def test_lanes_are_those_of_runs_that_have_a_due_time(self, store: Store) -> None:
        """H18: a lane is a queue, a graph and a plan. What is asked for in one isn't found in another."""
        needs_leases(store)
        create(store, "a", holder=None, due=0.0, queue="gpu", labels=Labels(plan="p1"))
        create(store, "b", holder=None, due=0.0, queue="gpu", labels=Labels(plan="p2"))
        create(store, "c", holder=None, due=0.0, graph="h", queue="gpu", labels=Labels(plan="p1"))
        create(store, "d", holder=None, due=1e12)
        create(store, "e", holder=None)
        lanes = {
            Lane("gpu", "g", "p1"),
            Lane("gpu", "g", "p2"),
            Lane("gpu", "h", "p1"),
            Lane("default", "g", ""),
        }
        found = store.lanes()
        assert lanes <= set(found)
        assert len(found) == len(set(found))
        assert {store.head(run_id).lane for run_id in "abcd"} == lanes
        assert _ids(store.ready([Lane("gpu", "g", "p1")], 10)) == ["a"]
        assert _ids(store.ready([Lane("gpu", "h", "p1"), Lane("gpu", "g", "p2")], 10)) == ["b", "c"]
        assert _ids(store.ready([Lane("default", "g", "p1"), Lane("default", "g", "")], 10)) == []
        assert _ids(store.ready([Lane("gpu", "g", "p1")] * 2, 10)) == ["a"]

    def test_a_run_changes_its_lane_with_its_plan(self, store: Store) -> None:
        """H18: when it is continued with another version of its graph."""
        needs_leases(store)
        lease = create(store, "r", due=0.0, queue="gpu", labels=Labels(plan="old"))
        new = Labels(node="n", plan="new")
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2, status=RUNNING, due=0.0, labels=new))
        store.release(lease)
        assert store.head("r").lane == Lane("gpu", "g", "new")
        assert _ids(store.ready([Lane("gpu", "g", "old")], 10)) == []
        assert _ids(store.ready([Lane("gpu", "g", "new")], 10)) == ["r"]

    def test_runs_are_listed_by_queue_and_plan(self, store: Store) -> None:
        """H18."""
        create(store, "a", queue="gpu", labels=Labels(plan="p1"))
        create(store, "b", queue="gpu", labels=Labels(plan="p2"))
        create(store, "c", labels=Labels(plan="p1"))
        assert sorted(_ids(store.list(RunFilter(queue="gpu")))) == ["a", "b"]
        assert sorted(_ids(store.list(RunFilter(plan="p1")))) == ["a", "c"]
        assert _ids(store.list(RunFilter(queue="gpu", plan="p1", graph="g"))) == ["a"]
        assert _ids(store.list(RunFilter(queue="none"))) == []


def _ids(heads: list[RunHead]) -> list[str]:
    return [head.run_id for head in heads]


def _ready(store: Store, *graphs: str) -> list[str]:
    return [head.run_id for head in ready_runs(store, graphs or ("g",), 10)]
