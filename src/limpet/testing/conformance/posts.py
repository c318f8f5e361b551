"""Tests of posts: any process may post to a run; each post is taken in once, in order, by a commit of the holder."""

from __future__ import annotations

import pytest

from limpet.errors import AlreadyCompleted, Conflict, RunNotFound
from limpet.journal.store import (
    CANCELLED,
    COMPLETED,
    FAILED,
    PAUSED,
    RUNNING,
    Labels,
    Post,
    PostsWaiting,
    Store,
)
from limpet.testing.conformance.store_calls import (
    ManualClock,
    commit,
    create,
    expect_accepted,
    expect_refused,
    needs_deltas,
    needs_leases,
    needs_posts,
    ready_runs,
)


class PostTests:
    """Part of `StoreConformance`."""

    def test_posts_wait_in_order(self, store: Store) -> None:
        """H10: whether the run is held or not, and whatever is in them."""
        needs_posts(store)
        lease = create(store, "r")
        assert store.inbox("r") == []
        assert store.post("r", "answer:1", b"yes")
        store.release(lease)
        assert store.post("r", "\u2713 'key' \"%\"", b"\x00\xff")
        assert store.post("r", "Answer:1", b"")
        posts = [
            Post(1, "answer:1", b"yes"),
            Post(2, "\u2713 'key' \"%\"", b"\x00\xff"),
            Post(3, "Answer:1", b""),
        ]
        assert list(store.inbox("r")) == posts
        assert (store.head("r").posted, store.head("r").taken) == (3, 0)

    def test_posts_belong_to_their_run(self, store: Store) -> None:
        """P6."""
        needs_posts(store)
        create(store, "a")
        create(store, "b")
        assert store.post("a", "k", b"for a")
        assert store.post("b", "k", b"for b")
        assert list(store.inbox("a")) == [Post(1, "k", b"for a")]
        assert list(store.inbox("b")) == [Post(1, "k", b"for b")]
        for call in (lambda: store.post("missing", "k", b""), lambda: store.inbox("missing")):
            with pytest.raises(RunNotFound):
                call()

    def test_a_key_is_posted_once(self, store: Store) -> None:
        """H10: also after the first post was taken in. The second changes nothing."""
        needs_posts(store)
        lease = create(store, "r")
        assert store.post("r", "k", b"first")
        assert not store.post("r", "k", b"second")
        assert list(store.inbox("r")) == [Post(1, "k", b"first")]
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2, takes=1))
        before = store.head("r")
        assert not store.post("r", "k", b"third")
        assert store.head("r") == before
        assert store.inbox("r") == []

    def test_a_commit_is_refused_until_it_takes_the_posts_in(self, store: Store) -> None:
        """G12: the holder gets them before it writes another record."""
        needs_posts(store)
        lease = create(store, "r")
        store.post("r", "1", b"")
        store.post("r", "2", b"")
        for one in (
            commit(lease, 1, b"2"),
            commit(lease, 1, b"2", snapshot=2),
            commit(lease, 1, b"2", snapshot=2, takes=1),
            commit(lease, 1, status=COMPLETED, note=b"n"),
            commit(lease, 1, b"2", snapshot=2, status=RUNNING, labels=Labels("node")),
        ):
            assert expect_refused(store, one, PostsWaiting).run_id == "r"
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2, takes=2))
        assert (store.head("r").posted, store.head("r").taken) == (2, 2)
        assert store.inbox("r") == []
        expect_accepted(store, commit(lease, 2, b"3", snapshot=3))

    def test_a_post_is_taken_in_with_all_of_its_commit_or_not_at_all(self, store: Store) -> None:
        """P8."""
        needs_posts(store)
        lease = create(store, "r")
        store.post("r", "1", b"one")
        expect_refused(store, commit(lease, 7, b"x", snapshot=8, takes=1), Conflict)
        assert list(store.inbox("r")) == [Post(1, "1", b"one")]
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2, takes=1, status=PAUSED))
        head = store.head("r")
        assert (head.status, head.taken, head.sequence) == (PAUSED, 1, 2)

    def test_a_commit_may_leave_posts_to_a_later_one(self, store: Store) -> None:
        """G12: a value that a node keeps is saved at once, and the posts stay."""
        needs_posts(store)
        needs_deltas(store)
        lease = create(store, "r")
        store.post("r", "1", b"one")
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2, ignores_posts=True))
        expect_accepted(store, commit(lease, 2, b"3", ignores_posts=True))
        store.post("r", "2", b"two")
        expect_accepted(store, commit(lease, 3, b"4", takes=1, ignores_posts=True))
        assert list(store.inbox("r")) == [Post(2, "2", b"two")]
        expect_refused(store, commit(lease, 4, b"5"), PostsWaiting)
        expect_accepted(store, commit(lease, 4, b"5", takes=2))

    def test_what_was_taken_in_is_never_given_back(self, store: Store) -> None:
        """H10: `takes` may be lower than before, and higher than the newest post."""
        needs_posts(store)
        lease = create(store, "r")
        store.post("r", "1", b"one")
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2, takes=9))
        assert store.head("r").taken == 1
        store.post("r", "2", b"two")
        expect_accepted(store, commit(lease, 2, b"3", snapshot=3, takes=2))
        expect_accepted(store, commit(lease, 3, b"4", snapshot=4, takes=1))
        assert (store.head("r").taken, list(store.inbox("r"))) == (2, [])

    def test_a_conflict_takes_precedence_over_a_post(self, store: Store) -> None:
        """P8: a post isn't for a stale holder."""
        needs_posts(store)
        needs_leases(store)
        stale = create(store, "r")
        fresh = store.claim("r", "bob", 10, instead_of=1)
        store.post("r", "k", b"one")
        expect_refused(store, commit(stale, 1, b"2", snapshot=2), Conflict)
        expect_refused(store, commit(stale, 1, b"2", snapshot=2, takes=1), Conflict)
        expect_refused(store, commit(fresh, 5, b"2", snapshot=6), Conflict)
        expect_refused(store, commit(fresh, 1, b"2", snapshot=2), PostsWaiting)
        assert list(store.inbox("r")) == [Post(1, "k", b"one")]

    def test_renewing_reports_posts_and_still_extends_the_lease(
        self, store: Store, clock: ManualClock
    ) -> None:
        """G12: a request to cancel reaches a holder in the middle of a long node."""
        needs_posts(store)
        needs_leases(store)
        lease = create(store, "r")
        other = create(store, "other")
        clock.advance(8)
        store.post("r", "cancel", b"")
        assert store.renew([lease, other], 10) == [True, False]
        clock.advance(8)
        with pytest.raises(Conflict):
            store.claim("r", "bob", 10)
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2, takes=1))
        assert store.renew([lease], 10) == [False]

    @pytest.mark.parametrize("due", [None, 0.0, 1e12])
    @pytest.mark.parametrize("status", [RUNNING, PAUSED])
    def test_a_post_makes_a_run_due(self, store: Store, status: str, due: float | None) -> None:
        """H10: the answer to a paused run brings a worker."""
        needs_posts(store)
        needs_leases(store)
        create(store, "r", status=status, holder=None, due=due)
        store.post("r", "k", b"")
        assert [head.run_id for head in ready_runs(store, ["g"], 5)] == ["r"]
        lease = store.claim("r", "bob", 10)
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2, takes=1, status=PAUSED))
        assert ready_runs(store, ["g"], 5) == []

    @pytest.mark.parametrize("status", [FAILED, CANCELLED])
    def test_a_post_to_a_run_that_failed_waits(self, store: Store, status: str) -> None:
        """H10: for a retry, which takes it in."""
        needs_posts(store)
        create(store, "r", status=status, holder=None)
        assert store.post("r", "k", b"one")
        assert ready_runs(store, ["g"], 5) == []
        assert list(store.inbox("r")) == [Post(1, "k", b"one")]

    def test_a_completed_run_takes_no_posts(self, store: Store) -> None:
        """H10: what would never be taken in is refused."""
        needs_posts(store)
        lease = create(store, "r")
        store.post("r", "old", b"")
        expect_accepted(store, commit(lease, 1, b"2", snapshot=2, takes=1, status=COMPLETED))
        before = store.head("r")
        with pytest.raises(AlreadyCompleted, match="complete"):
            store.post("r", "new", b"")
        assert not store.post("r", "old", b"")
        assert store.head("r") == before

    def test_posts_go_with_the_run(self, store: Store) -> None:
        """P6: a new run of the same id has none of them."""
        needs_posts(store)
        for end in (store.delete, lambda _: store.expire(-1.0)):
            lease = create(store, "r")
            assert store.post("r", "k", b"old")
            expect_accepted(store, commit(lease, 1, b"2", snapshot=2, takes=1, status=FAILED))
            assert store.post("r", "k2", b"old")
            end("r")
            create(store, "r", holder=None)
            assert (store.head("r").posted, list(store.inbox("r"))) == (0, [])
            assert store.post("r", "k", b"new")
            assert list(store.inbox("r")) == [Post(1, "k", b"new")]
            store.delete("r")

    def test_posts_survive_a_purge_and_a_prune(self, store: Store) -> None:
        """H10: they aren't part of the journal."""
        needs_posts(store)
        lease = create(store, "r")
        store.post("r", "k", b"one")
        expect_accepted(
            store, commit(lease, 1, b"2", snapshot=2, status=FAILED, purge=True, ignores_posts=True)
        )
        assert list(store.inbox("r")) == [Post(1, "k", b"one")]
        assert not store.post("r", "k", b"one")
