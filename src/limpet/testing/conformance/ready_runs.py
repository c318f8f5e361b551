"""Tests of ready runs: which runs need a holder, and in which order they are listed."""

from __future__ import annotations

from limpet.journal.store import COMPLETED, PAUSED, RUNNING, Store
from limpet.testing.conformance.store_calls import ManualClock, commit, create, expect_accepted, needs_leases

DUE_IN = 100.0


class ReadyRunTests:
    """Part of `StoreConformance`."""

    def test_a_due_run_without_a_holder_is_ready(self, store: Store) -> None:
        """H1: for the graphs that are asked for, and with its usual head."""
        needs_leases(store)
        create(store, "mine", holder=None, due=0.0)
        create(store, "other", holder=None, due=0.0, graph="h")
        assert _ready(store) == ["mine"]
        assert _ready(store, "g", "h") == ["mine", "other"]
        assert store.ready([], 10) == []
        assert store.ready(["g"], 10) == [store.head("mine")]
        assert store.ready(["g"], 0) == []

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
        create(store, "idle", holder=None, due=0.0, priority=-10)
        assert _ready(store) == ["urgent", "b", "a", "young", "idle"]
        assert [head.run_id for head in store.ready(["g"], 2)] == ["urgent", "b"]

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
            assert [head.run_id for head in store.ready(["g", "h", "g", "none"], 200)] == names
            assert [head.run_id for head in store.ready(["h", "g"], 5)] == names[:5]
        store.claim(names[0], "bob", 10)
        store.delete(names[1])
        lease = store.claim(names[2], "bob", 10)
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2, status=RUNNING, due=1e12))
        store.release(lease)
        assert [head.run_id for head in store.ready(["g", "h"], 5)] == names[3:8]
        clock.advance(11)
        assert [head.run_id for head in store.ready(["g", "h"], 1)] == [names[0]]


def _ready(store: Store, *graphs: str) -> list[str]:
    return [head.run_id for head in store.ready(graphs or ("g",), 10)]
