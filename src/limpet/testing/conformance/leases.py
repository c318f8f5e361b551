"""Tests of leases and fences: one holder at a time, and writes of a former holder are refused."""

from __future__ import annotations

import pytest

from limpet.errors import Conflict, RunNotFound
from limpet.journal.store import COMPLETED, PAUSED, Lease, Store
from limpet.testing.conformance.store_calls import (
    ManualClock,
    commit,
    create,
    expect_accepted,
    expect_refused,
    needs_leases,
)


class LeaseTests:
    """Part of `StoreConformance`."""

    def test_a_new_run_belongs_to_its_holder(self, store: Store, clock: ManualClock) -> None:
        """P8."""
        needs_leases(store)
        lease = create(store, "r", ttl=10.0)
        head = store.head("r")
        assert (lease.run_id, lease.fence, lease.until) == ("r", 1, head.lease_until)
        assert (head.holder, head.fence) == ("ann", 1)
        assert lease.until == pytest.approx(head.created + 10, abs=1)

    def test_a_run_without_a_holder_can_be_claimed(self, store: Store, clock: ManualClock) -> None:
        """P8: each claim raises the fence and updates the head."""
        needs_leases(store)
        create(store, "r", holder=None)
        clock.advance(100)
        first = store.claim("r", "bob", 10)
        store.release(first)
        second = store.claim("r", "cid", 10)
        assert (first.fence, second.fence) == (2, 3)
        head = store.head("r")
        assert (head.holder, head.fence, head.lease_until) == ("cid", 3, second.until)
        assert head.updated == pytest.approx(head.created + 100, abs=1)

    def test_a_held_run_cannot_be_claimed(self, store: Store, clock: ManualClock) -> None:
        """P8: the conflict names the holder and the time until which it holds the run."""
        needs_leases(store)
        lease = create(store, "r")
        clock.advance(3)
        for holder in ("bob", "ann"):
            with pytest.raises(Conflict, match=r"held by ann for another [67]\.\d s") as caught:
                store.claim("r", holder, 10)
            assert (caught.value.run_id, caught.value.holder, caught.value.until) == ("r", "ann", lease.until)
        assert (store.head("r").holder, store.head("r").fence) == ("ann", 1)
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2))

    def test_a_lease_expires(self, store: Store, clock: ManualClock) -> None:
        """H1: the run of a dead holder is free when its lease has expired."""
        needs_leases(store)
        stale = create(store, "r", ttl=10.0)
        clock.advance(10)
        fresh = store.claim("r", "bob", 10)
        assert fresh.fence == 2
        expect_refused(store, commit(stale, 1, b"late", snapshot=2), Conflict)
        expect_accepted(store, commit(fresh, 1, b"2", snapshot=2))

    def test_a_late_holder_may_continue_until_another_claims_the_run(
        self, store: Store, clock: ManualClock
    ) -> None:
        """P8: the fence decides, not the clock."""
        needs_leases(store)
        lease = create(store, "r", ttl=10.0)
        clock.advance(60)
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2))
        assert store.renew([lease], 10) == [False]
        with pytest.raises(Conflict):
            store.claim("r", "bob", 10)

    def test_a_dead_holders_lease_can_be_broken(self, store: Store) -> None:
        """H1: by a process that knows the fence of the dead holder."""
        needs_leases(store)
        stale = create(store, "r")
        fresh = store.claim("r", "bob", 10, instead_of=1)
        assert (fresh.fence, store.head("r").holder) == (2, "bob")
        expect_refused(store, commit(stale, 1, b"zombie", snapshot=2), Conflict)

    def test_a_lease_can_be_broken_only_once(self, store: Store) -> None:
        """P8: the second process that found the holder dead is refused by the fence of the first."""
        needs_leases(store)
        create(store, "r")
        store.claim("r", "bob", 10, instead_of=1)
        for fence in (0, 1, 3):
            with pytest.raises(Conflict, match="held by bob"):
                store.claim("r", "cid", 10, instead_of=fence)
        assert (store.head("r").holder, store.head("r").fence) == ("bob", 2)

    def test_a_free_run_can_be_claimed_whatever_instead_of_says(self, store: Store) -> None:
        """P8."""
        needs_leases(store)
        create(store, "r", holder=None)
        assert store.claim("r", "bob", 10, instead_of=7).fence == 2

    def test_a_missing_run_cannot_be_claimed(self, store: Store) -> None:
        with pytest.raises(RunNotFound):
            store.claim("missing", "ann", 10)

    def test_renewing_extends_leases(self, store: Store, clock: ManualClock) -> None:
        """P8."""
        needs_leases(store)
        leases = [create(store, f"r{number}") for number in range(3)]
        clock.advance(8)
        assert store.renew(iter(leases), 10) == [False] * 3
        clock.advance(8)
        for lease in leases:
            head = store.head(lease.run_id)
            assert head.lease_until == pytest.approx(lease.until + 8, abs=1)
            assert head.updated == pytest.approx(head.created + 8, abs=1)
            with pytest.raises(Conflict):
                store.claim(lease.run_id, "bob", 10)
        assert store.renew([], 10) == []

    def test_a_lost_lease_is_not_renewed(self, store: Store) -> None:
        """P8: claimed by another holder, released, ended by a status, or of a run that was deleted."""
        needs_leases(store)
        leases = {
            run_id: create(store, run_id) for run_id in ("claimed", "released", "paused", "gone", "kept")
        }
        store.claim("claimed", "bob", 10, instead_of=1)
        store.release(leases["released"])
        expect_accepted(store, commit(leases["paused"], 1, status=PAUSED))
        expect_accepted(store, commit(leases["gone"], 1, status=COMPLETED))
        store.delete("gone")
        assert store.renew(leases.values(), 10) == [None, None, None, None, False]
        assert store.head("claimed").holder == "bob"
        assert store.head("released").holder is None
        assert store.head("paused").holder is None

    def test_a_released_run_is_free_run_in_threads(self, store: Store) -> None:
        """P8."""
        needs_leases(store)
        lease = create(store, "r")
        store.release(lease)
        head = store.head("r")
        assert (head.holder, head.lease_until, head.fence) == (None, None, 1)
        store.release(lease)
        assert store.claim("r", "bob", 10).fence == 2

    def test_a_stale_release_is_harmless(self, store: Store) -> None:
        """P8: a former holder can't release the lease of the present one."""
        needs_leases(store)
        stale = create(store, "r")
        fresh = store.claim("r", "bob", 10, instead_of=1)
        store.release(stale)
        store.release(Lease("missing", 1, 0.0))
        assert (store.head("r").holder, store.head("r").lease_until) == ("bob", fresh.until)

    def test_a_lease_is_valid_until_it_expires_is_released_or_claimed(
        self, store: Store, clock: ManualClock
    ) -> None:
        """H18: and asking changes nothing."""
        needs_leases(store)
        lease = create(store, "r", ttl=10.0)
        released = create(store, "released", ttl=10.0)
        done = create(store, "done", ttl=10.0)
        gone = Lease("gone", 1, 0.0)
        store.release(released)
        expect_accepted(store, commit(done, 1, b"2", snapshot=2, status=COMPLETED))
        asked = [lease, released, done, gone]
        before = store.head("r")
        assert store.are_valid(asked) == [True, False, False, False]
        assert store.are_valid([]) == []
        assert store.head("r") == before
        clock.advance(9)
        assert store.are_valid([lease]) == [True]
        clock.advance(2)
        assert store.are_valid([lease]) == [False]
        store.renew([lease], 10)
        assert store.are_valid([lease]) == [True]
        newer = store.claim("r", "bob", 10, instead_of=lease.fence)
        assert store.are_valid([lease, newer]) == [False, True]
