"""Tests of journals: records are kept once, in order, whole, and for their run only."""

from __future__ import annotations

import pytest

from limpet.errors import Conflict, RunExists, RunNotFound, StoreError
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import CANCELLED, COMPLETED, PAUSED, RUNNING, Commit, NewRun, Store
from limpet.testing.conformance.store_calls import (
    ManualClock,
    commit,
    create,
    expect_accepted,
    expect_refused,
    needs_deltas,
    needs_leases,
    needs_results,
)

ODD_IDS = (
    "a/b\\c..",
    "../../etc/passwd",
    'it\'s "quoted"; DROP TABLE runs --',
    "Ünïcödé-日本語-🦑",
    " spaces and\ttabs\n",
    "%s{0}*?[x]:",
    "CASE",
    "case",
    "x" * 200,
)


class JournalTests:
    """Part of `StoreConformance`."""

    def damage(self, store: Store, run_id: str, sequence: int) -> None:
        """Change a byte of that record where it is stored. Don't override it to skip the test of damage."""
        pytest.skip("the test class doesn't override damage()")

    def test_a_new_run_has_the_head_it_was_created_with(self, store: Store) -> None:
        """G13: a run's searchable head."""
        run = NewRun("r", "etl", [b"a", b"b"], tags=("x", "y"), parent="p", note=b"\0n")
        assert store.create(run) is None
        head = store.head("r")
        assert (head.run_id, head.graph, head.status, head.tags, head.parent, head.note) == (
            "r",
            "etl",
            RUNNING,
            ("x", "y"),
            "p",
            b"\0n",
        )
        assert (head.sequence, head.snapshot, head.fence) == (2, 1, 1)
        assert (head.holder, head.lease_until) == (None, None)
        assert head.created == head.updated
        assert store.read("r").records == [b"a", b"b"]

    def test_a_new_run_may_have_any_status(self, store: Store) -> None:
        create(store, "r", status=PAUSED, holder=None)
        assert store.head("r").status == PAUSED

    def test_a_run_id_can_be_used_only_once(self, store: Store) -> None:
        """P6: creating it again is refused, and the first run stays unchanged."""
        lease = create(store, "r", b"mine")
        with pytest.raises(RunExists):
            create(store, "r", b"theirs", graph="other")
        expect_accepted(store, commit(lease, 1, status=COMPLETED))
        with pytest.raises(RunExists):
            create(store, "r", b"theirs", graph="other")
        assert store.head("r").graph == "g"
        assert store.read("r").records == [b"mine"]

    def test_a_commit_is_appended_after_the_expected_record(self, store: Store) -> None:
        """G13: records are numbered 1, 2, 3 … without a gap."""
        needs_deltas(store)
        lease = create(store, "r", b"1")
        expect_accepted(store, commit(lease, 1, b"2"))
        expect_accepted(store, commit(lease, 2, b"3", b"4"))
        expect_accepted(store, commit(lease, 4, b"5"))
        tail = store.read("r", first=1)
        assert (tail.first, tail.records) == (1, [b"1", b"2", b"3", b"4", b"5"])
        assert store.head("r").sequence == 5

    @pytest.mark.parametrize("expected", [0, 1, 3, 99])
    @pytest.mark.parametrize("more", [{}, {"status": PAUSED, "note": b"no", "snapshot": 3}, {"purge": True}])
    def test_a_commit_at_another_sequence_is_refused(
        self, store: Store, expected: int, more: dict[str, object]
    ) -> None:
        """P8: of two writers that both saw the same state, the second changes nothing."""
        needs_deltas(store)
        lease = create(store, "r", b"1")
        expect_accepted(store, commit(lease, 1, b"2"))
        conflict = expect_refused(store, commit(lease, expected, b"x", **more), Conflict)
        assert conflict.run_id == "r"
        expect_accepted(store, commit(lease, 2, b"3"))

    @pytest.mark.parametrize("more", [{}, {"status": PAUSED, "note": b"no", "snapshot": 2}, {"purge": True}])
    def test_a_commit_under_an_old_fence_is_refused(self, store: Store, more: dict[str, object]) -> None:
        """P8: a stale holder's write is refused, even at the right sequence, and the conflict names the holder."""
        needs_leases(store)
        stale = create(store, "r")
        fresh = store.claim("r", "bob", 10, instead_of=stale.fence)
        conflict = expect_refused(store, commit(stale, 1, b"zombie", snapshot=2), Conflict)
        assert (conflict.holder, conflict.until) == ("bob", fresh.until)
        expect_refused(store, commit(stale, 1, b"zombie", **more), Conflict)
        expect_accepted(store, commit(fresh, 1, b"mine", snapshot=2))
        expect_refused(store, commit(stale, 2, b"zombie", **more), Conflict)

    def test_a_fence_that_was_never_given_is_refused(self, store: Store) -> None:
        """P8."""
        create(store, "r")
        expect_refused(store, Commit("r", 2, 1, [b"x"]), Conflict)
        expect_refused(store, Commit("r", 0, 1, [b"x"]), Conflict)

    def test_a_commit_to_a_missing_run_is_refused(self, store: Store) -> None:
        (outcome,) = store.append([Commit("missing", 1, 0, [b"x"])])
        assert isinstance(outcome, RunNotFound)
        (outcome,) = store.append([Commit("missing", 1, 0, [b"x", b"y"], status=COMPLETED)])
        assert isinstance(outcome, RunNotFound)
        for call in (store.head, store.read):
            with pytest.raises(RunNotFound):
                call("missing")

    def test_commits_of_one_call_are_accepted_or_refused_independently(self, store: Store) -> None:
        """P6: one refusal doesn't affect the other commits; each is written whole or not at all."""
        needs_deltas(store)
        leases = [create(store, f"r{number}") for number in range(4)]
        good = commit(leases[0], 1, b"a", b"b", status=PAUSED, note=b"n")
        wrong = commit(leases[1], 7, b"a", b"b", status=PAUSED, note=b"n", snapshot=3)
        missing = Commit("missing", 1, 1, [b"a"])
        outcomes = store.append(
            [good, wrong, missing, commit(leases[2], 1, b"c"), commit(leases[3], 1, b"d")]
        )
        assert [type(outcome) for outcome in outcomes] == [
            type(None),
            Conflict,
            RunNotFound,
            type(None),
            type(None),
        ]
        assert store.read("r0").records == [b"first", b"a", b"b"]
        assert (store.head("r0").status, store.head("r0").note) == (PAUSED, b"n")
        assert store.read("r1").records == [b"first"]
        assert (store.head("r1").status, store.head("r1").note, store.head("r1").snapshot) == (
            RUNNING,
            b"",
            1,
        )
        assert store.read("r2").records == [b"first", b"c"]
        assert store.read("r3").records == [b"first", b"d"]

    def test_appending_nothing_is_fine(self, store: Store) -> None:
        assert store.append([]) == []

    def test_status_and_note_change_with_the_records_or_alone(self, store: Store) -> None:
        needs_deltas(store)
        lease = create(store, "r", note=b"old")
        expect_accepted(store, commit(lease, 1, b"2", note=b"new"))
        assert (store.head("r").status, store.head("r").note) == (RUNNING, b"new")
        expect_accepted(store, commit(lease, 2, status=PAUSED))
        assert (store.head("r").status, store.head("r").note) == (PAUSED, b"new")
        expect_accepted(store, commit(lease, 2, note=b""))
        assert (store.head("r").status, store.head("r").note) == (PAUSED, b"")
        assert store.head("r").sequence == 2

    @pytest.mark.parametrize("status", [PAUSED, COMPLETED, CANCELLED])
    def test_a_status_other_than_running_releases_the_lease(self, store: Store, status: str) -> None:
        """P8."""
        needs_leases(store)
        lease = create(store, "r")
        expect_accepted(store, commit(lease, 1, status=RUNNING))
        assert store.head("r").holder == "ann"
        expect_accepted(store, commit(lease, 1, status=status))
        head = store.head("r")
        assert (head.status, head.holder, head.lease_until) == (status, None, None)
        assert store.claim("r", "bob", 10).fence == 2

    def test_the_head_is_updated_by_changes_of_status_only(self, store: Store, clock: ManualClock) -> None:
        """P7: age is counted from the last change of status, not from each record."""
        lease = create(store, "r")
        created = store.head("r").created
        clock.advance(100)
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2))
        assert store.head("r").updated == created
        expect_accepted(store, commit(lease, 2, status=COMPLETED))
        head = store.head("r")
        assert head.created == created
        assert head.updated == pytest.approx(created + 100, abs=1)

    def test_reading_starts_at_the_newest_snapshot(self, store: Store) -> None:
        """H6: restoring a run needs its newest snapshot and what follows."""
        needs_deltas(store)
        lease = create(store, "r", b"1")
        expect_accepted(store, commit(lease, 1, b"2", b"3", snapshot=3))
        tail = store.read("r")
        assert (tail.first, tail.records, tail.head) == (3, [b"3"], store.head("r"))
        expect_accepted(store, commit(lease, 3, b"4"))
        tail = store.read("r")
        assert (tail.first, tail.records, tail.head.sequence, tail.head.snapshot) == (3, [b"3", b"4"], 4, 3)

    @pytest.mark.parametrize(
        ("first", "last", "start", "found"),
        [
            (None, None, 3, "345"),
            (1, None, 1, "12345"),
            (None, 4, 3, "34"),
            (2, 4, 2, "234"),
            (5, 5, 5, "5"),
            (0, 2, 1, "12"),
            (4, 99, 4, "45"),
            (None, 2, 6, ""),
            (4, 3, 6, ""),
            (6, None, 6, ""),
            (99, 100, 6, ""),
        ],
    )
    def test_any_range_of_a_journal_can_be_read(
        self, store: Store, first: int | None, last: int | None, start: int, found: str
    ) -> None:
        """H6: the state at any step; for an empty range, `first` is the number of the next record."""
        needs_deltas(store)
        lease = create(store, "r", b"1")
        expect_accepted(store, commit(lease, 1, b"2", b"3", b"4", b"5", snapshot=3))
        tail = store.read("r", first, last)
        assert (tail.first, b"".join(tail.records).decode()) == (start, found)
        assert tail.head == store.head("r")

    def test_a_purge_deletes_the_journal_and_keeps_the_head(self, store: Store) -> None:
        """G8: the checkpoints of a finished run are deleted, and its head still says that it is finished."""
        needs_results(store)
        lease = create(store, "r", b"1", note=b"old")
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2))
        expect_accepted(store, commit(lease, 2, b"x", b"y", status=COMPLETED, note=b"new", purge=True))
        head = store.head("r")
        assert (head.status, head.note, head.sequence, head.snapshot) == (COMPLETED, b"new", 4, 0)
        for tail in (store.read("r"), store.read("r", first=1), store.read("r", 2, 3)):
            assert (tail.head, tail.first, tail.records) == (head, 5, [])
        assert store.list(RunFilter()) == [head]

    def test_numbering_continues_after_a_purge(self, store: Store) -> None:
        """P8: a writer from before the purge is still refused."""
        needs_deltas(store)
        lease = create(store, "r")
        expect_accepted(store, commit(lease, 1, b"2", purge=True))
        expect_refused(store, commit(lease, 0, b"x"), Conflict)
        expect_refused(store, commit(lease, 1, b"x"), Conflict)
        expect_accepted(store, commit(lease, 2, b"3"))
        expect_accepted(store, commit(lease, 3, b"4", b"5", snapshot=5))
        assert (store.read("r", first=1).first, store.read("r", first=1).records) == (3, [b"3", b"4", b"5"])
        assert (store.read("r").first, store.head("r").sequence) == (5, 5)
        expect_accepted(store, commit(lease, 5, purge=True))
        assert store.head("r").sequence == 5

    def test_run_ids_may_contain_any_characters(self, store: Store) -> None:
        """P6: no id is mistaken for another, for a path or for a query."""
        for number, run_id in enumerate(ODD_IDS):
            create(store, run_id, b"%d" % number, parent=run_id, tags=(run_id,), graph=run_id)
        for number, run_id in enumerate(ODD_IDS):
            head = store.head(run_id)
            assert (head.run_id, head.parent, head.tags, head.graph) == (run_id, run_id, (run_id,), run_id)
            assert store.read(run_id).records == [b"%d" % number]

    def test_runs_are_isolated(self, store: Store) -> None:
        """P6: no run is readable or deletable through the id of another."""
        needs_deltas(store)
        leases = {run_id: create(store, run_id, run_id.encode()) for run_id in ("r", "r1", "r/1", "R")}
        for run_id, lease in leases.items():
            expect_accepted(store, commit(lease, 1, b"of " + run_id.encode(), snapshot=2))
        store.prune("r", 99)
        expect_accepted(store, commit(leases["r"], 2, purge=True, status=CANCELLED))
        store.delete("r")
        for run_id in ("r1", "r/1", "R"):
            assert store.read(run_id, first=1).records == [run_id.encode(), b"of " + run_id.encode()]
        with pytest.raises(RunNotFound):
            store.read("r")

    @pytest.mark.parametrize("size", [0, 1, 255, 4096, 65_537, 8 * 1024 * 1024])
    def test_records_are_bytes_of_any_kind_and_size(self, store: Store, size: int) -> None:
        """H5: the bytes that are read are those that were written."""
        pattern = bytes(range(256)) * (size // 256 + 1)
        data = pattern[:size]
        lease = create(store, "r", data, note=data[:4096])
        expect_accepted(store, commit(lease, 1, data[::-1], snapshot=2))
        assert store.read("r", first=2).records == [data[::-1]]
        assert store.head("r").note == data[:4096]

    def test_a_journal_may_be_long(self, store: Store) -> None:
        """H2."""
        needs_deltas(store)
        lease = create(store, "r", b"1")
        for expected in range(1, 1000):
            expect_accepted(store, commit(lease, expected, b"%d" % (expected + 1)))
        assert store.read("r", first=1).records == [b"%d" % number for number in range(1, 1001)]
        assert store.read("r", 500, 501).records == [b"500", b"501"]

    def test_damage_to_one_record_affects_no_other(self, store: Store) -> None:
        """H5: reading a damaged record raises or returns other bytes; other records are intact."""
        needs_deltas(store)
        lease = create(store, "r", b"one" * 10)
        create(store, "other", b"whole")
        expect_accepted(store, commit(lease, 1, b"two" * 10))
        self.damage(store, "r", 2)
        try:
            records = store.read("r", first=2).records
        except StoreError:
            pass
        else:
            assert records != [b"two" * 10]
        assert store.read("r", 1, 1).records == [b"one" * 10]
        assert store.read("other").records == [b"whole"]
