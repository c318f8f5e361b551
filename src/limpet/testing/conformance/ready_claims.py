"""Claims about runs that want a holder: which they are, and in which order they are to be had."""

from __future__ import annotations

from limpet.journal.store import COMPLETED, PAUSED, RUNNING, Store
from limpet.testing.conformance.tools import ManualClock, commit, create, landed, needs_leases

SOON = 100.0


class ReadyClaims:
    """Part of `StoreConformance`."""

    def test_a_run_that_nobody_holds_is_ready(self, store: Store) -> None:
        """H1: of the graphs that are asked for, and as a head like any other."""
        needs_leases(store)
        create(store, "mine", holder=None, due=0.0)
        create(store, "other", holder=None, due=0.0, graph="h")
        assert _ready(store) == ["mine"]
        assert _ready(store, "g", "h") == ["mine", "other"]
        assert store.ready([], 10) == []
        assert store.ready(["g"], 10) == [store.head("mine")]
        assert store.ready(["g"], 0) == []

    def test_a_run_that_is_held_is_ready_when_the_lease_runs_out(
        self, store: Store, clock: ManualClock
    ) -> None:
        """H1: so what a dead process leaves behind is found; and not what a live one has."""
        needs_leases(store)
        lease = create(store, "r", ttl=10.0, due=0.0)
        assert _ready(store) == []
        clock.advance(9)
        assert _ready(store) == []
        assert store.renew([lease], 10) == [""]
        clock.advance(9)
        assert _ready(store) == []
        clock.advance(2)
        assert _ready(store) == ["r"]
        store.claim("r", "bob", 10)
        assert _ready(store) == []

    def test_a_run_that_is_given_back_is_ready_at_once(self, store: Store) -> None:
        """H1."""
        needs_leases(store)
        lease = create(store, "r", due=0.0)
        store.release(lease)
        assert _ready(store) == ["r"]

    def test_a_run_that_waits_for_nothing_but_time_is_ready_then(
        self, store: Store, clock: ManualClock
    ) -> None:
        """H9: by the store's clock, whatever its status is."""
        needs_leases(store)
        for run_id, status in (("asleep", RUNNING), ("asks", PAUSED)):
            lease = create(store, run_id, due=0.0)
            due = store.head(run_id).created + SOON
            landed(store, commit(lease, 1, b"2", snapshot=2, status=status, due=due))
            store.release(lease)
            assert store.head(run_id).due == due
        clock.advance(SOON - 1)
        assert _ready(store) == []
        clock.advance(2)
        assert sorted(_ready(store)) == ["asks", "asleep"]

    def test_a_run_that_is_not_due_is_never_ready(self, store: Store, clock: ManualClock) -> None:
        """H1, P7: one that waits for a person, or has ended, is left alone."""
        needs_leases(store)
        create(store, "imported", holder=None)
        for run_id, status in (("waits", PAUSED), ("done", COMPLETED)):
            landed(store, commit(create(store, run_id, due=0.0), 1, b"2", snapshot=2, status=status))
            assert store.head(run_id).due is None
        clock.advance(1e6)
        assert _ready(store) == []

    def test_a_plain_commit_leaves_it_as_it_is(self, store: Store) -> None:
        """H1: only a status says anew when the run wants a holder."""
        needs_leases(store)
        lease = create(store, "r", due=5.0, priority=3)
        landed(store, commit(lease, 1, b"2", snapshot=2, note=b"n"))
        assert (store.head("r").due, store.head("r").priority) == (5.0, 3)
        landed(store, commit(lease, 2, b"3", snapshot=3, status=RUNNING, due=0.0))
        assert (store.head("r").due, store.head("r").priority) == (0.0, 3)

    def test_the_most_urgent_come_first(self, store: Store, clock: ManualClock) -> None:
        """H1: by priority, then by how long they have been due, then in the order they were made."""
        needs_leases(store)
        create(store, "young", holder=None, due=2.0)
        create(store, "b", holder=None, due=1.0)
        clock.advance(5)
        create(store, "a", holder=None, due=1.0)
        create(store, "urgent", holder=None, due=7.0, priority=10)
        create(store, "idle", holder=None, due=0.0, priority=-10)
        assert _ready(store) == ["urgent", "b", "a", "young", "idle"]
        assert [head.run_id for head in store.ready(["g"], 2)] == ["urgent", "b"]


def _ready(store: Store, *graphs: str) -> list[str]:
    return [head.run_id for head in store.ready(graphs or ("g",), 10)]
