"""Tests of claiming many runs at once: each that is still as it was listed, and no other."""

from __future__ import annotations

import pytest

from limpet.journal.store import COMPLETED, RUNNING, Lease, RunHead, Store
from limpet.testing.conformance.concurrency import ROUNDS, run_in_threads
from limpet.testing.conformance.store_calls import (
    ManualClock,
    commit,
    create,
    expect_accepted,
    needs_leases,
    ready_runs,
)

ALL = 1000


class ClaimReadyTests:
    """Part of `StoreConformance`."""

    def test_runs_that_are_ready_are_claimed_together(self, store: Store, clock: ManualClock) -> None:
        """H18: each gets a lease as if it was claimed alone, and is no longer ready."""
        needs_leases(store)
        for name in "abc":
            create(store, name, holder=None, due=0.0)
        clock.advance(100)
        wanted = _listed(store)[::-1]
        leases = store.claim_ready(wanted, "bob", 10)
        heads = [store.head(name) for name in "cba"]
        assert leases == [Lease(head.run_id, 2, head.lease_until or 0.0, 0) for head in heads]
        for head in heads:
            assert (head.holder, head.fence, head.crashes) == ("bob", 2, 0)
            assert head.lease_until == pytest.approx(head.created + 110, abs=1)
            assert head.updated == pytest.approx(head.created + 100, abs=1)
        assert _listed(store) == []
        held = [lease for lease in leases if lease is not None]
        assert store.are_valid(held) == [True, True, True]
        expect_accepted(store, *(commit(lease, 1, b"2", snapshot=2) for lease in held))
        store.release(held[0])
        assert [head.run_id for head in _listed(store)] == ["c"]

    def test_a_holder_that_crashed_is_counted(self, store: Store, clock: ManualClock) -> None:
        """H1: as by any claim. One that has released the run is not."""
        needs_leases(store)
        create(store, "crashed", due=0.0, ttl=10.0)
        store.release(create(store, "released", due=0.0))
        clock.advance(11)
        found = {head.run_id: head for head in _listed(store)}
        leases = store.claim_ready([found["crashed"], found["released"]], "bob", 10)
        assert [lease and (lease.fence, lease.crashes) for lease in leases] == [(2, 1), (2, 0)]
        assert [store.head(run_id).crashes for run_id in ("crashed", "released")] == [1, 0]

    def test_a_run_that_is_held_is_not_claimed(self, store: Store, clock: ManualClock) -> None:
        """P8: whether its lease is valid is what counts, not what was listed."""
        needs_leases(store)
        lease = create(store, "r", due=0.0, ttl=10.0)
        listed = store.head("r")
        assert store.claim_ready([listed], "bob", 10) == [None]
        assert store.head("r") == listed
        clock.advance(11)
        store.renew([lease], 10)
        assert store.claim_ready([listed], "bob", 10) == [None]
        clock.advance(11)
        (claimed,) = store.claim_ready([listed], "bob", 10)
        assert claimed is not None

    def test_a_run_that_was_claimed_since_is_not_claimed(self, store: Store) -> None:
        """H18: also if it was released, or has ended: what was listed is out of date."""
        needs_leases(store)
        for name in ("held", "released", "done", "kept"):
            create(store, name, holder=None, due=0.0)
        wanted = _listed(store)
        store.claim("held", "ann", 10)
        store.release(store.claim("released", "ann", 10))
        done = store.claim("done", "ann", 10)
        expect_accepted(store, commit(done, 1, b"2", snapshot=2, status=COMPLETED))
        before = [store.head(name) for name in ("held", "released", "done")]
        leases = store.claim_ready(wanted, "bob", 10)
        assert [lease is None for lease in leases] == [head.run_id != "kept" for head in wanted]
        assert [store.head(name) for name in ("held", "released", "done")] == before
        (lease,) = store.claim_ready(_listed(store), "bob", 10)
        assert lease is not None
        assert (lease.run_id, lease.fence) == ("released", 3)

    def test_a_run_that_is_not_due_is_not_claimed(self, store: Store, clock: ManualClock) -> None:
        """H9: by the store's clock, and by its head as that is now."""
        needs_leases(store)
        lease = create(store, "r", due=0.0)
        store.release(lease)
        wanted = _listed(store)
        due = store.head("r").created + 100
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2, status=RUNNING, due=due))
        store.release(lease)
        create(store, "never", holder=None)
        wanted.append(store.head("never"))
        assert store.claim_ready(wanted, "bob", 10) == [None, None]
        clock.advance(101)
        assert [lease is None for lease in store.claim_ready(wanted, "bob", 10)] == [False, True]

    def test_runs_that_cannot_be_claimed_keep_no_other_from_it(self, store: Store) -> None:
        """P8: such as one that is missing, or that comes a second time."""
        needs_leases(store)
        for name in ("gone", "r"):
            create(store, name, holder=None, due=0.0)
        listed = {head.run_id: head for head in _listed(store)}
        store.delete("gone")
        wanted = [listed["gone"], listed["r"], listed["r"], listed["r"]._replace(run_id="never was")]
        leases = store.claim_ready(wanted, "bob", 10)
        assert [lease and lease.run_id for lease in leases] == [None, "r", None, None]
        assert store.head("r").fence == 2
        assert store.claim_ready([], "bob", 10) == []
        create(store, "s", holder=None, due=0.0)
        fresh = store.head("s")
        # Where it comes first counts, also if it can't be claimed there.
        assert store.claim_ready([fresh._replace(fence=7), fresh], "bob", 10) == [None, None]

    def test_of_many_that_claim_the_same_runs_each_gets_runs_of_its_own(self, store: Store) -> None:
        """P8, H18: each run goes to one of them."""
        needs_leases(store)
        names = [f"r{number:03}" for number in range(ROUNDS * 4)]
        for name in names:
            create(store, name, holder=None, due=0.0)

        def work(number: int) -> list[Lease]:
            won: list[Lease] = []
            while wanted := store.ready(store.lanes(), 16):
                won += filter(None, store.claim_ready(wanted, f"holder-{number}", 100))
            return won

        outcomes = run_in_threads(work)
        assert sorted(lease.run_id for won in outcomes for lease in won) == names
        for number, won in enumerate(outcomes):
            assert {lease.fence for lease in won} <= {2}
            assert {store.head(lease.run_id).holder for lease in won} <= {f"holder-{number}"}


def _listed(store: Store) -> list[RunHead]:
    return ready_runs(store, ["g"], ALL)
