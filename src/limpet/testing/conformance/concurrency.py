"""Tests of many threads at once, and of reopening and closing a store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from limpet.errors import Conflict, StoreUnavailable
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import COMPLETED, FAILED, Labels, Lease, NewRun, Post, Store
from limpet.testing.conformance.store_calls import (
    commit,
    create,
    expect_accepted,
    needs_deltas,
    needs_leases,
    needs_posts,
)

Outcome = TypeVar("Outcome")

THREADS = 8
ROUNDS = 30


class ConcurrencyTests:
    """Part of `StoreConformance`."""

    def reopen(self, store: Store) -> Store:
        """Close the store and open it again. Don't override it to skip the tests that need it."""
        pytest.skip("the test class doesn't override reopen()")

    def test_concurrent_threads_lose_no_record(self, store: Store) -> None:
        """P6: with many runs at once, each has all its records, in order."""
        needs_deltas(store)

        def work(number: int) -> None:
            leases = [create(store, f"{number}-{run}") for run in range(3)]
            for expected in range(1, ROUNDS):
                expect_accepted(store, *(commit(lease, expected, b"%d" % expected) for lease in leases))
                expect_accepted(
                    store, commit(create(store, f"{number}-{expected}-short"), 1, status=COMPLETED)
                )
                assert store.head(leases[0].run_id).sequence == expected + 1
            store.renew(leases, 10)

        run_in_threads(work)
        journal = [b"first", *(b"%d" % expected for expected in range(1, ROUNDS))]
        for number in range(THREADS):
            for run in range(3):
                assert store.read(f"{number}-{run}").records == journal
        assert len(store.list(RunFilter())) == THREADS * (3 + ROUNDS - 1)

    def test_of_many_claims_one_wins(self, store: Store) -> None:
        """P8."""
        needs_leases(store)
        for number in range(ROUNDS):
            create(store, f"r{number}", holder=None)

        def work(number: int) -> list[str]:
            won = []
            for run in range(ROUNDS):
                try:
                    store.claim(f"r{run}", f"holder-{number}", 100)
                except Conflict:
                    continue
                won.append(f"r{run}")
            return won

        won = [run_id for outcome in run_in_threads(work) for run_id in outcome]
        assert sorted(won) == sorted(f"r{number}" for number in range(ROUNDS))
        assert {head.fence for head in store.list(RunFilter())} == {2}

    def test_of_many_writers_at_one_sequence_number_one_wins(self, store: Store) -> None:
        """P8: and its record is the one that is stored."""
        needs_deltas(store)
        lease = create(store, "r")

        def work(number: int) -> list[int]:
            won = []
            for expected in range(1, ROUNDS):
                (outcome,) = store.append([commit(lease, expected, b"%d" % number)])
                if outcome is None:
                    won.append(expected)
                else:
                    assert isinstance(outcome, Conflict)
                while store.head("r").sequence == expected:
                    pass
            return won

        outcomes = run_in_threads(work)
        assert sorted(place for won in outcomes for place in won) == list(range(1, ROUNDS))
        for place, record in enumerate(store.read("r").records[1:], 1):
            assert place in outcomes[int(record)]

    def test_of_many_creations_one_wins(self, store: Store) -> None:
        """P6."""

        def work(number: int) -> bool:
            try:
                create(store, "r", b"%d" % number)
            except Conflict:
                return False
            return True

        outcomes = run_in_threads(work)
        assert outcomes.count(True) == 1
        assert store.read("r").records == [b"%d" % outcomes.index(True)]

    def test_a_reader_gets_a_consistent_head_and_records(self, store: Store) -> None:
        """P6: however fast they are written and pruned."""
        needs_deltas(store)
        lease = create(store, "r")
        done = threading.Event()

        def work(number: int) -> None:
            if number:
                while number < 4 and not done.is_set():
                    tail = store.read("r")
                    assert tail.first == tail.head.snapshot
                    assert len(tail.records) == tail.head.sequence - tail.first + 1
                return
            try:
                for expected in range(1, 3 * ROUNDS):
                    whole = 0 if expected % 3 else expected + 1
                    expect_accepted(store, commit(lease, expected, b"x", snapshot=whole))
                    store.prune("r", expected)
            finally:
                done.set()

        run_in_threads(work)

    def test_a_reopened_store_has_everything(self, store: Store) -> None:
        """G6, P1: another process reads what this process wrote."""
        lease = create(store, "r", b"1", tags=("x",), parent="p")
        expect_accepted(store, commit(lease, 1, b"2", b"3", snapshot=2, note=b"n"))
        purged = create(store, "p", b"1")
        ended = COMPLETED if store.abilities.keeps_results else FAILED
        expect_accepted(store, commit(purged, 1, b"2", status=ended, purge=True))
        before = (store.list(RunFilter()), store.read("r", first=1), store.read("p"))
        again = self.reopen(store)
        try:
            assert (again.list(RunFilter()), again.read("r", first=1), again.read("p")) == before
            expect_accepted(again, commit(lease, 3, b"4", snapshot=4))
            refusal = again.append([commit(purged, 1, b"2")])[0]
            assert isinstance(refusal, Conflict)
            expect_accepted(again, commit(purged, 2, b"3", snapshot=3))
        finally:
            again.close()

    def test_a_reopened_store_has_posts_output_and_documents(self, store: Store) -> None:
        """H10: another process reads what this process wrote, and what it posted is still known."""
        needs_posts(store)
        lease = create(store, "r", labels=Labels("node", "KeyError", "message"))
        for key in ("1", "2"):
            assert store.post("r", key, key.encode())
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2, takes=1, ignores_posts=True))
        store.add_output("r", lease.fence, [b"a", b"b"], 10)
        version = store.put_document("d", b"body", 0, due=1.0)
        assert version is not None
        before = (store.head("r"), store.inbox("r"), store.output("r"), store.list_documents())
        again = self.reopen(store)
        try:
            assert (again.head("r"), again.inbox("r"), again.output("r"), again.list_documents()) == before
            assert not again.post("r", "1", b"")
            assert again.post("r", "3", b"")
            assert again.add_output("r", lease.fence, [b"c"], 10) == 3
            newer = again.put_document("e", b"body", 0)
            assert newer is not None
            assert newer > version
        finally:
            again.close()

    def test_posts_of_many_threads_are_all_taken_in(self, store: Store) -> None:
        """H10: each once, in order, while the holder commits."""
        needs_posts(store)
        needs_deltas(store)
        lease = create(store, "r")
        taken: list[Post] = []
        posted = threading.Semaphore(0)

        def work(number: int) -> None:
            if number:
                for index in range(ROUNDS):
                    assert store.post("r", f"{number}-{index}", b"")
                    posted.release()
                return
            expected = 1
            waiting = (THREADS - 1) * ROUNDS
            while len(taken) < waiting:
                if posted.acquire(timeout=30):
                    found = store.inbox("r")
                    last = found[-1].number if found else 0
                    expect_accepted(store, commit(lease, expected, b"x", takes=last, ignores_posts=True))
                    expected += 1
                    taken.extend(found)

        run_in_threads(work)
        assert [post.number for post in taken] == list(range(1, len(taken) + 1))
        for number in range(1, THREADS):
            mine = [post.key for post in taken if post.key.startswith(f"{number}-")]
            assert mine == [f"{number}-{index}" for index in range(ROUNDS)]

    def test_a_closed_store_refuses_every_call(self, store: Store) -> None:
        """G9: it never reports a save that didn't happen."""
        lease = create(store, "r")
        head = store.head("r")
        store.close()
        store.close()
        calls: list[Callable[[], object]] = [
            lambda: store.create(NewRun("s", "g", [b"1"])),
            lambda: store.append([commit(lease, 1, b"2")]),
            lambda: store.append([commit(lease, 1, b"2", status=COMPLETED), commit(lease, 1, b"2")]),
            lambda: store.head("r"),
            lambda: store.read("r"),
            lambda: store.list(RunFilter()),
            lambda: store.claim("r", "bob", 10),
            lambda: store.claim_ready([head], "bob", 10),
            lambda: store.renew([lease], 10),
            lambda: store.release(Lease("r", 1, 0.0)),
            lambda: store.heads(["r"]),
            lambda: store.prune("r", 1),
            lambda: store.expire(0),
            lambda: store.delete("r"),
        ]
        if store.abilities.takes_part:
            calls += [
                lambda: store.post("r", "k", b""),
                lambda: store.inbox("r"),
                lambda: store.add_output("r", 1, [b""], 9),
                lambda: store.output("r"),
                lambda: store.put_document("d", b"", 0),
                lambda: store.get_document("d"),
                lambda: store.list_documents(),
                lambda: store.delete_document("d", 1),
            ]
        for call in calls:
            with pytest.raises(StoreUnavailable, match="closed"):
                call()


def run_in_threads(work: Callable[[int], Outcome]) -> list[Outcome]:
    """Run `work(0)` … `work(7)` in threads that start together; returns their results in order."""
    together = threading.Barrier(THREADS)

    def start(number: int) -> Outcome:
        together.wait(30)
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(start, range(THREADS)))
