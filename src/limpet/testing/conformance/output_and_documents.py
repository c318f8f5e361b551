"""Tests of output, which a run emits beside its journal, and of documents, which belong to no run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from limpet.errors import Conflict, DamagedDocument, RunNotFound
from limpet.journal.optional_calls import FindsDamagedDocuments, provides
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import COMPLETED, Document, Output, Store, document_version
from limpet.testing.conformance.store_calls import (
    ManualClock,
    commit,
    create,
    expect_accepted,
    needs_leases,
    needs_posts,
)


class OutputAndDocumentTests:
    """Part of `StoreConformance`."""

    def damage_document(self, store: Store, name: str) -> None:
        """Change a document where it is stored, so that it can't be read."""
        pytest.skip("the test class doesn't override damage_document()")

    def test_output_is_numbered_and_read_from_any_point(self, store: Store) -> None:
        """H12."""
        needs_posts(store)
        lease = create(store, "r")
        create(store, "other")
        assert (store.head("r").output, list(store.output("r"))) == (0, [])
        assert store.add_output("r", lease.fence, [b"a", b"\x00\xff", b""], 100) == 3
        assert store.add_output("r", lease.fence, [b"d"], 100) == 4
        assert store.add_output("r", lease.fence, [], 100) == 4
        items = [Output(1, b"a"), Output(2, b"\x00\xff"), Output(3, b""), Output(4, b"d")]
        assert list(store.output("r")) == items
        assert list(store.output("r", after=2)) == items[2:]
        assert list(store.output("r", after=1, limit=2)) == items[1:3]
        assert list(store.output("r", after=9)) == []
        assert (store.head("r").output, store.head("other").output) == (4, 0)
        assert list(store.output("other")) == []

    def test_output_is_not_part_of_the_journal(self, store: Store) -> None:
        """H12: nor does it keep a commit from being made."""
        needs_posts(store)
        lease = create(store, "r")
        store.add_output("r", lease.fence, [b"a"], 100)
        assert store.read("r", first=1).records == [b"first"]
        assert store.head("r").sequence == 1
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2, status=COMPLETED))
        assert list(store.output("r")) == [Output(1, b"a")]

    def test_output_is_bounded(self, store: Store) -> None:
        """H12: the newest items are kept, and numbers go on."""
        needs_posts(store)
        lease = create(store, "r")
        for start in range(0, 50, 5):
            store.add_output("r", lease.fence, [str(start + each).encode() for each in range(5)], 12)
        kept = list(store.output("r"))
        assert kept[-12:] == [Output(number, str(number - 1).encode()) for number in range(39, 51)]
        assert len(kept) <= 24, "a store may delete old items now and then, but not much later"
        assert store.head("r").output == 50

    def test_only_the_holder_adds_output(self, store: Store) -> None:
        """P8: not a process that lost the run."""
        needs_posts(store)
        needs_leases(store)
        stale = create(store, "r")
        fresh = store.claim("r", "bob", 10, instead_of=1)
        with pytest.raises(Conflict):
            store.add_output("r", stale.fence, [b"zombie"], 100)
        assert store.add_output("r", fresh.fence, [b"mine"], 100) == 1
        for call in (lambda: store.add_output("missing", 1, [b""], 9), lambda: store.output("missing")):
            with pytest.raises(RunNotFound):
                call()

    def test_output_goes_with_the_run(self, store: Store) -> None:
        """P6."""
        needs_posts(store)
        lease = create(store, "r")
        store.add_output("r", lease.fence, [b"old"], 100)
        store.release(lease)
        store.delete("r")
        create(store, "r")
        assert (store.head("r").output, list(store.output("r"))) == (0, [])

    def test_heads_are_read_together(self, store: Store) -> None:
        """H10: of runs that exist and of others, in the order asked for."""
        lease = create(store, "a")
        create(store, "b", status=COMPLETED, holder=None)
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2))
        assert list(store.heads(["b", "missing", "a"])) == [store.head("b"), None, store.head("a")]
        assert list(store.heads([])) == []

    def test_a_document_is_written_if_it_has_the_expected_version(self, store: Store) -> None:
        """H17: of two writers that saw the same version, one is refused."""
        needs_posts(store)
        assert store.get_document("schedules/a") is None
        assert store.put_document("schedules/a", b"x", 7) is None
        first = store.put_document("schedules/a", b"one", 0)
        assert first is not None
        assert store.get_document("schedules/a") == Document("schedules/a", first, b"one")
        assert store.put_document("schedules/a", b"again", 0) is None
        second = store.put_document("schedules/a", b"\x00two", first, due=5.0)
        assert second is not None
        assert second > first
        assert store.put_document("schedules/a", b"late", first) is None
        assert store.get_document("schedules/a") == Document("schedules/a", second, b"\x00two", 5.0)

    def test_a_document_is_deleted_if_it_has_the_expected_version(self, store: Store) -> None:
        """H17: a version is never used twice."""
        needs_posts(store)
        first = store.put_document("d", b"one", 0)
        assert first is not None
        assert not store.delete_document("d", first + 1)
        assert store.delete_document("d", first)
        assert not store.delete_document("d", first)
        assert store.get_document("d") is None
        again = store.put_document("d", b"one", 0)
        assert again is not None
        assert again > first
        assert not store.delete_document("d", first)

    def test_documents_are_listed_by_prefix_and_by_due_time(self, store: Store, clock: ManualClock) -> None:
        """H17: those that are due, the most urgent first."""
        needs_posts(store)
        create(store, "r", holder=None)
        now = store.head("r").created
        for name, due in (
            ("b/1", now + 50),
            ("a/2", now - 5),
            ("a/1", None),
            ("a_1", now - 9),
            ("a/3", now - 9),
        ):
            assert store.put_document(name, name.encode(), 0, due)
        assert [each.name for each in store.list_documents()] == ["a/1", "a/2", "a/3", "a_1", "b/1"]
        assert [each.name for each in store.list_documents("a/", limit=2)] == ["a/1", "a/2"]
        assert [each.name for each in store.list_documents(due=True)] == ["a/3", "a_1", "a/2"]
        assert [each.name for each in store.list_documents("a/", due=True, limit=1)] == ["a/3"]
        clock.advance(60)
        due_later = store.list_documents("b", due=True)
        assert [(each.name, each.body) for each in due_later] == [("b/1", b"b/1")]
        assert [head.run_id for head in store.list(RunFilter())] == ["r"]

    def test_a_damaged_document_hides_no_other(self, store: Store) -> None:
        """H5: lists leave it out, and it is never returned as data."""
        needs_posts(store)
        for name in "abc":
            store.put_document(name, name.encode(), 0, due=1.0)
        self.damage_document(store, "a")
        with pytest.raises(DamagedDocument, match="the document 'a' is damaged"):
            store.get_document("a")
        for due in (False, True):
            assert [each.name for each in store.list_documents(due=due)] == ["b", "c"]
            assert [each.name for each in store.list_documents(due=due, limit=1)] == ["b"]
        if provides(store, FindsDamagedDocuments):
            assert [each.name for each in store.damaged_documents()] == ["a"]
            assert list(store.damaged_documents("b")) == []

    def test_a_damaged_document_is_replaced_or_deleted_at_the_version_of_the_error(
        self, store: Store
    ) -> None:
        """H5: by one process, and not once it is sound."""
        needs_posts(store)
        for ends_well in (True, False):
            assert store.put_document("a", b"old", 0) is not None
            self.damage_document(store, "a")
            with pytest.raises(DamagedDocument) as caught:
                store.get_document("a")
            damaged = caught.value.version
            assert document_version(store, "a") == damaged
            assert store.put_document("a", b"new", 0) is None
            assert not store.delete_document("a", damaged + 100)
            if ends_well:
                version = store.put_document("a", b"new", damaged)
                assert version is not None
                assert store.put_document("a", b"late", damaged) is None
                assert not store.delete_document("a", damaged)
                assert store.get_document("a") == Document("a", version, b"new")
                assert [each.body for each in store.list_documents()] == [b"new"]
                assert store.delete_document("a", version)
            else:
                assert store.delete_document("a", damaged)
                assert not store.delete_document("a", damaged)
            assert store.get_document("a") is None

    def test_of_threads_that_count_in_a_document_none_is_lost(self, store: Store) -> None:
        """H18."""
        needs_posts(store)

        def count(_: int) -> None:
            while True:
                found = store.get_document("counter")
                body = b"0" if found is None else found.body
                version = 0 if found is None else found.version
                if store.put_document("counter", str(int(body) + 1).encode(), version) is not None:
                    return

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(count, range(20)))
        found = store.get_document("counter")
        assert found is not None
        assert found.body == b"20"
