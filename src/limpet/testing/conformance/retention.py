"""Tests of listing runs and deleting them: list, prune, expire, delete."""

from __future__ import annotations

import pytest

from limpet.errors import Conflict, RunNotFound
from limpet.journal.run_filter import UNHELD, Cursor, LeaseState, RunFilter
from limpet.journal.store import CANCELLED, COMPLETED, ENDED, FAILED, PAUSED, RUNNING, Labels, Store
from limpet.testing.conformance.store_calls import (
    ManualClock,
    commit,
    create,
    expect_accepted,
    expect_refused,
    needs_deltas,
    needs_leases,
)


class RetentionTests:
    """Part of `StoreConformance`."""

    def test_runs_are_listed_newest_first(self, store: Store, clock: ManualClock) -> None:
        """G13: by creation, then by run id."""
        assert store.list(RunFilter()) == []
        for run_id in ("m", "z", "a"):
            create(store, run_id)
            clock.advance(1)
        create(store, "B")
        create(store, "b")
        heads = store.list(RunFilter())
        assert heads == sorted(heads, key=lambda head: (head.created, head.run_id), reverse=True)
        assert [head.run_id for head in heads][2:] == ["a", "z", "m"]
        assert heads == [store.head(head.run_id) for head in heads]

    @pytest.mark.parametrize(
        ("which", "found"),
        [
            (RunFilter(), "fedcba"),
            (RunFilter(statuses=(RUNNING,)), "fca"),
            (RunFilter(statuses=(PAUSED, FAILED)), "ed"),
            (RunFilter(statuses=("unknown",)), ""),
            (RunFilter(graph="etl"), "fb"),
            (RunFilter(tags=("x",)), "fba"),
            (RunFilter(tags=('y"',)), "ca"),
            (RunFilter(tags=("y",)), ""),
            (RunFilter(tags=("X",)), ""),
            (RunFilter(tags=("%",)), ""),
            (RunFilter(parent="a"), "db"),
            (RunFilter(tags=("x", 'y"')), "a"),
            (RunFilter(lease_states=(LeaseState.FREE,)), "edb"),
            (RunFilter(lease_states=(LeaseState.HELD,)), "ca"),
            (RunFilter(lease_states=(LeaseState.EXPIRED,)), "f"),
            (RunFilter(lease_states=UNHELD), "fedb"),
            (RunFilter(lease_states=UNHELD, statuses=(RUNNING,)), "f"),
            (RunFilter(node="draft"), "da"),
            (RunFilter(error="KeyError"), "d"),
            (RunFilter(error=""), "fecba"),
            (RunFilter(has_error=True), "d"),
            (RunFilter(has_error=False, node="draft"), "a"),
            (RunFilter(is_waiting=True), "e"),
            (RunFilter(is_waiting=False, statuses=(PAUSED,)), ""),
            (RunFilter(is_due=True), "c"),
            (RunFilter(is_due=False), "a"),
            (RunFilter(statuses=(RUNNING, COMPLETED), graph="etl", tags=("x",)), "fb"),
            (RunFilter(limit=2), "fe"),
            (RunFilter(limit=0), ""),
        ],
    )
    def test_runs_are_listed_by_filter(
        self, store: Store, clock: ManualClock, which: RunFilter, found: str
    ) -> None:
        """G13, H1: by status, graph, tag, parent, and whether they are claimed."""
        needs_leases(store)
        create(store, "f-old", holder="dead", ttl=1.0)
        clock.advance(1)
        store.delete("f-old")
        create(store, "a", tags=("x", 'y"'), ttl=100.0, labels=Labels("draft"), due=1e12)
        clock.advance(1)
        create(store, "b", status=COMPLETED, graph="etl", tags=("x",), parent="a", holder=None)
        clock.advance(1)
        create(store, "c", tags=('y"',), ttl=100.0, due=0.0)
        clock.advance(1)
        create(store, "d", status=FAILED, parent="a", holder=None, labels=Labels("draft", "KeyError"))
        clock.advance(1)
        create(
            store,
            "e",
            status=PAUSED,
            holder=None,
            parent="d",
            tags=("xx", "[x]"),
            labels=Labels(waits_for="message"),
        )
        clock.advance(1)
        create(store, "f", graph="etl", tags=("x",), ttl=5.0)
        clock.advance(5)
        assert "".join(head.run_id for head in store.list(which)) == found

    def test_runs_are_listed_page_by_page(self, store: Store, clock: ManualClock) -> None:
        """H11: from a cursor on, also where several runs were created at the same moment, and while others come."""
        for number in range(7):
            create(store, f"r{number}", status=COMPLETED if number % 2 else RUNNING)
            if number % 3 == 0:
                clock.advance(1)
        heads = store.list(RunFilter())
        pages = []
        after = None
        while page := store.list(RunFilter(after=after, limit=2)):
            pages.append(page)
            after = page[-1].cursor
            clock.advance(1)
            create(store, f"new{len(pages)}")
        assert [head for page in pages for head in page] == heads
        assert [len(page) for page in pages] == [2, 2, 2, 1]
        completed = [head for head in heads if head.status == COMPLETED]
        assert store.list(RunFilter(statuses=(COMPLETED,), after=completed[0].cursor)) == completed[1:]
        assert store.list(RunFilter(after=Cursor(0.0, ""))) == []

    def test_runs_are_listed_by_their_times(self, store: Store, clock: ManualClock) -> None:
        """H11: created or changed since a time, or before it."""
        leases = []
        for number in range(4):
            leases.append(create(store, f"r{number}"))
            clock.advance(10)
        expect_accepted(store, commit(leases[0], 1, status=FAILED))
        created = [store.head(f"r{number}").created for number in range(4)]
        changed = store.head("r0").updated
        for which, found in (
            (RunFilter(created_since=created[1]), [3, 2, 1]),
            (RunFilter(created_before=created[1]), [0]),
            (RunFilter(created_since=created[1], created_before=created[3]), [2, 1]),
            (RunFilter(updated_since=changed), [0]),
            (RunFilter(updated_before=changed), [3, 2, 1]),
            (RunFilter(updated_since=created[2], created_before=created[3]), [2, 0]),
        ):
            assert [head.run_id for head in store.list(which)] == [f"r{number}" for number in found]

    def test_labels_are_replaced_by_a_commit_that_has_any(self, store: Store) -> None:
        """H11: one without leaves them."""
        lease = create(store, "r", labels=Labels("a", "KeyError", "message"))
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2))
        assert store.head("r").labels == Labels("a", "KeyError", "message")
        expect_accepted(store, commit(lease, 2, b"3", snapshot=3, labels=Labels("b")))
        assert store.head("r").labels == Labels("b", "", "")
        assert [head.run_id for head in store.list(RunFilter(node="b"))] == ["r"]
        assert store.list(RunFilter(error="KeyError")) == []
        expect_accepted(store, commit(lease, 3, status=FAILED, note=b"n", labels=Labels("c", "OSError")))
        assert [head.run_id for head in store.list(RunFilter(statuses=(FAILED,), error="OSError"))] == ["r"]

    def test_pruning_deletes_records_below_a_number(self, store: Store) -> None:
        """F14, D5: old checkpoints are deleted by sequence number."""
        needs_deltas(store)
        lease = create(store, "r", b"1")
        expect_accepted(store, commit(lease, 1, b"2", b"3", b"4", b"5", snapshot=4))
        assert store.prune("r", 3) == 2
        assert store.prune("r", 3) == 0
        assert store.prune("r", -1) == 0
        tail = store.read("r", first=1)
        assert (tail.first, tail.records) == (3, [b"3", b"4", b"5"])
        assert (store.read("r", 1, 2).records, store.head("r").sequence) == ([], 5)
        for expected in (0, 1, 2, 4):
            expect_refused(store, commit(lease, expected, b"late"), Conflict)
        expect_accepted(store, commit(lease, 5, b"6"))

    def test_pruning_never_deletes_the_newest_snapshot_or_later_records(self, store: Store) -> None:
        """F14, D5: a pruned run can always be resumed."""
        needs_deltas(store)
        lease = create(store, "r", b"1")
        assert store.prune("r", 99) == 0
        expect_accepted(store, commit(lease, 1, b"2", b"3", b"4", snapshot=3))
        assert store.prune("r", 99) == 2
        tail = store.read("r")
        assert (tail.first, tail.records) == (3, [b"3", b"4"])
        expect_accepted(store, commit(lease, 4, b"5"))
        assert store.prune("r", 5) == 0

    def test_pruning_spares_other_runs_and_purged_ones(self, store: Store) -> None:
        """P6, F14."""
        needs_deltas(store)
        for run_id in ("r", "s"):
            expect_accepted(store, commit(create(store, run_id, b"1"), 1, b"2", snapshot=2))
        assert store.prune("r", 2) == 1
        assert store.read("s", first=1).records == [b"1", b"2"]
        purged = create(store, "p")
        expect_accepted(store, commit(purged, 1, b"2", purge=True))
        expect_accepted(store, commit(purged, 2, b"3"))
        assert store.prune("p", 99) == 0
        with pytest.raises(RunNotFound):
            store.prune("missing", 1)

    def test_a_run_that_ended_long_ago_expires(self, store: Store, clock: ManualClock) -> None:
        """P7: counted from the last change of status."""
        for run_id in ("old", "young"):
            create(store, run_id, b"x", holder=None)
        clock.advance(50)
        expect_accepted(store, commit(create(store, "recent"), 1, status=COMPLETED))
        for run_id in ("old", "young"):
            lease = store.claim(run_id, "ann", 10)
            expect_accepted(store, commit(lease, 1, status=COMPLETED))
            clock.advance(20)
        assert store.expire(41) == 0
        assert store.expire(30) == 2
        assert [head.run_id for head in store.list(RunFilter())] == ["young"]
        with pytest.raises(RunNotFound):
            store.read("old")
        assert store.read("young").records == [b"x"]

    def test_only_ended_runs_expire_by_default(self, store: Store, clock: ManualClock) -> None:
        """P7: a paused or running run is not expired by default."""
        for status in (RUNNING, PAUSED, COMPLETED, FAILED, CANCELLED):
            create(store, status, status=status, holder=None)
        clock.advance(100)
        assert store.expire(50, ()) == 0
        assert store.expire(50) == len(ENDED)
        assert {head.status for head in store.list(RunFilter())} == {RUNNING, PAUSED}
        assert store.expire(50, (PAUSED,)) == 1
        assert [head.status for head in store.list(RunFilter())] == [RUNNING]

    def test_a_held_run_never_expires(self, store: Store, clock: ManualClock) -> None:
        """P7, P8: its holder may be resuming it."""
        needs_leases(store)
        create(store, "r", status=COMPLETED, ttl=100.0)
        clock.advance(99)
        assert store.expire(0) == 0
        clock.advance(1)
        assert store.expire(0) == 1

    def test_an_expired_id_is_free_again(self, store: Store, clock: ManualClock) -> None:
        """P7."""
        expect_accepted(store, commit(create(store, "r", b"old"), 1, b"older", snapshot=2, status=COMPLETED))
        clock.advance(1)
        assert store.expire(0) == 1
        lease = create(store, "r", b"new")
        assert store.read("r", first=1).records == [b"new"]
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2))

    def test_a_deleted_run_is_gone(self, store: Store) -> None:
        """P7: with its journal; a holder that still writes to it is refused."""
        lease = create(store, "r", b"1", parent="p", tags=("t",))
        store.release(lease)
        store.delete("r")
        for call in (store.head, store.read, store.delete):
            with pytest.raises(RunNotFound):
                call("r")
        (outcome,) = store.append([commit(lease, 1, b"2")])
        assert isinstance(outcome, RunNotFound)
        assert store.list(RunFilter()) == []

    def test_a_new_run_with_the_id_of_a_deleted_one_starts_empty(self, store: Store) -> None:
        """P6, P8: and a holder of the deleted run can't write to it."""
        needs_deltas(store)
        stale = create(store, "r", b"old")
        expect_accepted(store, commit(stale, 1, b"2", b"3"))
        store.release(stale)
        store.delete("r")
        lease = create(store, "r", b"new", graph="h")
        refusals = store.append([commit(stale, 3, b"4"), commit(stale, 3, b"4", b"5", note=b"n")])
        assert [type(refusal) for refusal in refusals] == [Conflict, Conflict]
        expect_accepted(store, commit(lease, 1, b"newer"))
        assert store.read("r", first=1).records == [b"new", b"newer"]
        assert (store.head("r").graph, store.head("r").note) == ("h", b"")

    def test_a_held_run_cannot_be_deleted(self, store: Store, clock: ManualClock) -> None:
        """P8: its holder may be writing to it."""
        needs_leases(store)
        lease = create(store, "r", ttl=10.0)
        with pytest.raises(Conflict, match="held by ann") as caught:
            store.delete("r")
        assert (caught.value.holder, caught.value.until) == ("ann", lease.until)
        assert store.head("r").run_id == "r"
        clock.advance(10)
        store.delete("r")
