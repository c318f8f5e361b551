"""The rules of a run's head, one by one; and that a store which follows them behaves as they say."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet.errors import AlreadyCompleted, Conflict
from limpet.journal.run_filter import Cursor, LeaseState, RunFilter
from limpet.journal.store import (
    CANCELLED,
    COMPLETED,
    ENDED,
    FAILED,
    PAUSED,
    RUNNING,
    Commit,
    Labels,
    Lane,
    Lease,
    NewRun,
    PostsWaiting,
    RunHead,
    Tail,
)
from limpet.stores import MemoryStore, heads

FREE = RunHead("r", "g", RUNNING, sequence=3, snapshot=2, fence=4, created=10.0, updated=20.0, due=0.0)
HELD = FREE._replace(holder="a", lease_until=100.0)


def commit(**given: Any) -> Commit:
    return Commit(**{"run_id": "r", "fence": 4, "expected": 3, "records": [b"x"], **given})


# create


def test_a_new_run_starts_at_fence_one_with_all_its_records() -> None:
    """H1: what the run was given is in its head."""
    new = NewRun("r", "g", [b"a", b"b"], PAUSED, tags=("t",), parent="p", note=b"n", due=7.0, priority=2)
    head, lease = heads.create(new, 50.0)
    assert lease is None
    assert head == RunHead(
        "r",
        "g",
        PAUSED,
        sequence=2,
        snapshot=1,
        fence=1,
        created=50.0,
        updated=50.0,
        tags=("t",),
        parent="p",
        note=b"n",
        due=7.0,
        priority=2,
    )


def test_a_new_run_with_a_holder_is_leased_to_it() -> None:
    """H1: the first lease comes with the run."""
    head, lease = heads.create(NewRun("r", "g", [b"a"], holder="a", ttl=5.0), 50.0)
    assert lease == Lease("r", 1, 55.0)
    assert (head.holder, head.lease_until, head.crashes) == ("a", 55.0, 0)


def test_a_new_run_without_records_has_no_snapshot() -> None:
    """H1: a whole record that isn't there isn't counted."""
    head, _ = heads.create(NewRun("r", "g", []), 50.0)
    assert (head.sequence, head.snapshot) == (0, 0)


# claim


def test_claiming_a_free_run_raises_the_fence() -> None:
    """Invariant 5."""
    head, lease = heads.claim(FREE, "b", 5.0, 50.0)
    assert lease == Lease("r", 5, 55.0, 0)
    assert head == FREE._replace(fence=5, holder="b", lease_until=55.0, updated=50.0)


def test_claiming_after_a_lease_ran_out_counts_a_crash() -> None:
    """H9: the last holder never released the run."""
    head, lease = heads.claim(HELD, "b", 5.0, 100.0)
    assert lease == Lease("r", 5, 105.0, 1)
    assert (head.holder, head.crashes) == ("b", 1)


def test_a_run_with_a_valid_lease_cant_be_claimed() -> None:
    """Invariant 5: the conflict names the holder and the end of its lease."""
    with pytest.raises(Conflict, match=r"held by a for another 50\.0 s") as caught:
        heads.claim(HELD, "b", 5.0, 50.0)
    assert (caught.value.run_id, caught.value.holder, caught.value.until) == ("r", "a", 100.0)


def test_a_valid_lease_is_broken_by_its_own_fence_only() -> None:
    """H9: of a holder that is known to be dead."""
    for other in (3, 5, None):
        with pytest.raises(Conflict):
            heads.claim(HELD, "b", 5.0, 50.0, instead_of=other)
    head, lease = heads.claim(HELD, "b", 5.0, 50.0, instead_of=4)
    assert (head.fence, lease.crashes) == (5, 1)


def test_the_fence_to_break_isnt_a_condition_for_a_free_run() -> None:
    """H9: no lease is in the way."""
    assert heads.claim(FREE, "b", 5.0, 50.0, instead_of=99)[1].fence == 5


# renew, release, post


def test_renewing_prolongs_a_lease_even_one_that_ran_out() -> None:
    """H9: no other process has claimed the run."""
    for now in (50.0, 150.0):
        assert heads.renew(HELD, Lease("r", 4, 100.0), 5.0, now) == HELD._replace(
            lease_until=now + 5.0, updated=now
        )


def test_a_lost_or_released_lease_isnt_renewed() -> None:
    """Invariant 5."""
    assert heads.renew(HELD, Lease("r", 3, 100.0), 5.0, 50.0) is None
    assert heads.renew(FREE, Lease("r", 4, 100.0), 5.0, 50.0) is None


def test_releasing_clears_the_holder_and_nothing_else() -> None:
    """H9: the fence stays, so that the next claim still raises it."""
    assert heads.release(HELD, Lease("r", 4, 100.0)) == FREE


def test_a_lost_lease_releases_nothing() -> None:
    """Invariant 5: the run is another holder's."""
    assert heads.release(HELD, Lease("r", 3, 100.0)) is None


@pytest.mark.parametrize(("due", "then"), [(None, 10.0), (80.0, 10.0), (20.0, 10.0), (5.0, 5.0)])
@pytest.mark.parametrize("status", [RUNNING, PAUSED])
def test_a_post_is_counted_and_makes_a_run_due(status: str, due: float | None, then: float) -> None:
    """H10, H18: as if it had been since its creation, unless it was due before."""
    before = HELD._replace(status=status, due=due)
    assert heads.post(heads.post(before, 50.0), 60.0) == before._replace(posted=2, due=then)
    if then == before.created:  # the clock was set back since
        assert heads.post(before, 7.0).due == 7.0


@pytest.mark.parametrize("status", [FAILED, CANCELLED])
def test_a_post_to_a_run_that_ended_waits(status: str) -> None:
    """H10: until it is resumed."""
    before = FREE._replace(status=status, due=None)
    assert heads.post(before, 50.0) == before._replace(posted=1)


def test_a_completed_run_takes_no_post() -> None:
    """H10: it would never be taken in."""
    with pytest.raises(AlreadyCompleted, match="'r' is complete"):
        heads.post(FREE._replace(status=COMPLETED), 50.0)


# apply


def test_a_plain_commit_changes_the_sequence_alone() -> None:
    """Invariant 6."""
    plain = commit(records=[b"x", b"y"])
    assert heads.apply(HELD, plain, 50.0) == HELD._replace(sequence=5)
    assert not heads.changes_more_than_sequence(HELD, plain)


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({"snapshot": 4}, {"snapshot": 4}),
        ({"note": b"n"}, {"note": b"n"}),
        ({"note": b""}, {"note": b""}),
        ({"status": RUNNING, "due": 9.0}, {"updated": 50.0, "due": 9.0}),
        ({"purge": True}, {"snapshot": 0}),
        ({"purge": True, "snapshot": 4}, {"snapshot": 0}),
        ({"takes": 2}, {"taken": 2}),
        ({"takes": 9}, {"taken": 3}),
        ({"labels": Labels("n", "E", "w")}, {"node": "n", "error": "E", "waits_for": "w"}),
    ],
)
def test_a_commit_changes_what_it_gives(given: dict[str, Any], changed: dict[str, Any]) -> None:
    """H1: and nothing else."""
    before = HELD._replace(posted=3, taken=1, note=b"old")
    each = commit(**{"ignores_posts": True, **given})
    assert heads.apply(before, each, 50.0) == before._replace(sequence=4, **changed)
    assert heads.changes_more_than_sequence(before, each)


@pytest.mark.parametrize("status", [PAUSED, COMPLETED, FAILED, CANCELLED])
def test_any_status_but_running_releases_the_lease(status: str) -> None:
    """H9: no process advances the run from there."""
    after = heads.apply(HELD, commit(status=status), 50.0)
    assert after == FREE._replace(sequence=4, status=status, updated=50.0, due=None)


def test_a_due_time_without_a_status_changes_nothing() -> None:
    """H9: the two go together."""
    assert heads.apply(HELD, commit(due=9.0), 50.0).due == 0.0


def test_giving_what_the_head_has_already_changes_nothing() -> None:
    """Invariant 6: posts that were taken in, the same note, the same snapshot, the same labels."""
    before = HELD._replace(posted=2, taken=2)
    same = commit(takes=1, note=HELD.note, snapshot=HELD.snapshot, labels=HELD.labels)
    assert not heads.changes_more_than_sequence(before, same)
    assert heads.apply(before, same, 50.0) == before._replace(sequence=4)


# Refusals


def test_a_commit_at_the_right_place_by_the_holder_is_taken() -> None:
    """Invariant 5."""
    assert heads.refusal(commit(), HELD, 50.0) is None


def test_a_holder_whose_lease_ran_out_or_was_released_may_still_commit() -> None:
    """Invariant 5: until another process claims the run, its fence is the newest."""
    assert heads.refusal(commit(), HELD, 500.0) is None
    assert heads.refusal(commit(), FREE, 50.0) is None


def test_an_old_fence_outweighs_a_wrong_sequence_and_both_a_post() -> None:
    """Invariant 5: the order of the reasons is the same in every store."""
    posted = HELD._replace(posted=1)
    refused = heads.refusal(commit(fence=3, expected=9), posted, 50.0)
    assert isinstance(refused, Conflict)
    assert "fence 3, but the run was claimed since (fence 4); held by a for another 50.0 s" in str(refused)
    refused = heads.refusal(commit(expected=9), posted, 50.0)
    assert isinstance(refused, Conflict)
    assert "after record 9, but the run is at record 3" in str(refused)
    refused = heads.refusal(commit(), posted, 50.0)
    assert isinstance(refused, PostsWaiting)
    assert refused.run_id == "r"


@pytest.mark.parametrize("wrong", [{"fence": 3}, {"expected": 9}])
def test_a_refused_commit_says_which_run_has_which_holder_until_when(wrong: dict[str, int]) -> None:
    """Invariant 5: as attributes too."""
    refused = heads.refusal(commit(**wrong), HELD, 50.0)
    assert isinstance(refused, Conflict)
    assert (refused.run_id, refused.holder, refused.until) == ("r", "a", 100.0)


@pytest.mark.parametrize(
    ("given", "is_taken"),
    [
        ({}, False),
        ({"takes": 2}, False),
        ({"takes": 3}, True),
        ({"takes": 9}, True),
        ({"ignores_posts": True}, True),
    ],
)
def test_a_commit_takes_all_posts_in_or_leaves_them_on_purpose(given: dict[str, Any], is_taken: bool) -> None:
    """H10: what must be saved in any case leaves them."""
    refused = heads.refusal(commit(**given), HELD._replace(posted=3, taken=1), 50.0)
    assert (refused is None) == is_taken


def test_a_sequence_counted_elsewhere_replaces_the_heads_own() -> None:
    """Invariant 5."""
    assert heads.refusal(commit(expected=8), HELD, 50.0, sequence=8) is None
    assert "at record 8" in str(heads.refusal(commit(), HELD, 50.0, sequence=8))


def test_a_lease_is_described_for_the_reader_of_an_error() -> None:
    """Invariant 9."""
    assert heads.describe_lease(FREE, 50.0) == "no process holds it now"
    assert heads.describe_lease(HELD, 98.5) == "held by a for another 1.5 s"
    assert heads.describe_lease(HELD, 102.0) == "last held by a, whose lease expired 2.0 s ago"


def test_a_held_run_is_refused_until_its_lease_runs_out() -> None:
    """Invariant 5: for deleting and claiming alike."""
    with pytest.raises(Conflict):
        heads.refuse_if_held(HELD, 99.9)
    heads.refuse_if_held(HELD, 100.0)
    heads.refuse_if_held(FREE, 50.0)


# Filters, orderings, records


@pytest.mark.parametrize(
    ("which", "found"),
    [
        (RunFilter(), True),
        (RunFilter(statuses=(PAUSED, RUNNING)), True),
        (RunFilter(statuses=(PAUSED,)), False),
        (RunFilter(graph="g"), True),
        (RunFilter(graph="h"), False),
        (RunFilter(tags=("t",)), True),
        (RunFilter(tags=("t", "s")), True),
        (RunFilter(tags=("t", "u")), False),
        (RunFilter(parent="p"), True),
        (RunFilter(parent="q"), False),
        (RunFilter(lease_states=(LeaseState.HELD,)), True),
        (RunFilter(lease_states=(LeaseState.FREE, LeaseState.EXPIRED)), False),
        (RunFilter(node="n"), True),
        (RunFilter(node=""), False),
        (RunFilter(error="E"), True),
        (RunFilter(error="F"), False),
        (RunFilter(has_error=True), True),
        (RunFilter(has_error=False), False),
        (RunFilter(is_waiting=True), False),
        (RunFilter(is_waiting=False), True),
        (RunFilter(is_due=True), True),
        (RunFilter(is_due=False), False),
        (RunFilter(created_since=10.0, created_before=10.1), True),
        (RunFilter(created_since=10.1), False),
        (RunFilter(created_before=10.0), False),
        (RunFilter(updated_since=20.0, updated_before=20.1), True),
        (RunFilter(updated_since=20.1), False),
        (RunFilter(updated_before=20.0), False),
        (RunFilter(after=Cursor(10.0, "s")), True),
        (RunFilter(after=Cursor(10.0, "r")), False),
        (RunFilter(after=Cursor(9.0, "z")), False),
    ],
)
def test_a_filter_restricts_by_what_it_gives(which: RunFilter, found: bool) -> None:
    """H2."""
    head = HELD._replace(tags=("s", "t"), parent="p", node="n", error="E")
    assert heads.matches(head, which, 50.0) is found


@pytest.mark.parametrize(
    ("head", "now", "state"),
    [
        (FREE, 50.0, LeaseState.FREE),
        (HELD, 50.0, LeaseState.HELD),
        (HELD, 100.0, LeaseState.EXPIRED),
    ],
)
def test_a_run_is_free_or_held_or_its_lease_has_expired(head: RunHead, now: float, state: LeaseState) -> None:
    """H11."""
    assert heads.lease_state(head, now) is state


def test_a_run_without_a_due_time_is_neither_due_nor_not_due() -> None:
    """H11."""
    for is_due in (True, False):
        assert not heads.matches(FREE._replace(due=None), RunFilter(is_due=is_due), 50.0)


def test_lists_are_newest_first_and_limited() -> None:
    """H2: by creation, then by run id, both descending."""
    runs = [FREE._replace(run_id=name, created=when) for name, when in [("a", 1.0), ("b", 2.0), ("c", 2.0)]]
    assert [head.run_id for head in heads.newest_first(runs, RunFilter())] == ["c", "b", "a"]
    assert [head.run_id for head in heads.newest_first(runs, RunFilter(limit=2))] == ["c", "b"]


def test_a_run_is_ready_when_due_free_and_in_a_known_lane() -> None:
    """H9, H18."""
    lanes = [Lane("default", "g", "")]
    assert heads.is_ready(FREE, lanes, 50.0)
    assert heads.is_ready(FREE._replace(due=50.0), lanes, 50.0)
    assert not heads.is_ready(FREE._replace(due=50.1), lanes, 50.0)
    assert heads.is_ready(FREE._replace(due=50.1, created=50.1), lanes, 50.0)
    assert not heads.is_ready(FREE._replace(due=50.1, created=50.2), lanes, 50.0)
    assert not heads.is_ready(FREE._replace(due=None), lanes, 50.0)
    for other in (Lane("default", "h", ""), Lane("gpu", "g", ""), Lane("default", "g", "p")):
        assert not heads.is_ready(FREE, [other], 50.0)
    assert not heads.is_ready(HELD, lanes, 50.0)
    assert heads.is_ready(HELD, lanes, 100.0)


def test_the_most_urgent_run_comes_first() -> None:
    """H9: by priority, then by due time, creation and run id."""
    runs = [
        FREE._replace(run_id="e", created=11.0),
        FREE._replace(run_id="d"),
        FREE._replace(run_id="c", due=-1.0, created=99.0),
        FREE._replace(run_id="b", priority=1, due=5.0),
        FREE._replace(run_id="a", due=1.0),
    ]
    assert [head.run_id for head in heads.most_urgent_first(runs)] == ["b", "c", "d", "e", "a"]


def test_a_run_expires_by_status_and_age_unless_it_is_held() -> None:
    """H10."""
    ended = FREE._replace(status=COMPLETED)
    assert heads.is_expired(ended, 30.0, ENDED, 50.0)
    assert not heads.is_expired(ended, 30.1, ENDED, 50.0)
    assert not heads.is_expired(FREE, 30.0, ENDED, 50.0)
    assert not heads.is_expired(ended._replace(holder="a", lease_until=60.0), 30.0, ENDED, 50.0)


@pytest.mark.parametrize(
    ("dropped", "first", "last", "expected"),
    [
        (0, None, None, (2, 3)),
        (0, 1, None, (1, 3)),
        (1, 1, None, (2, 3)),
        (0, 1, 2, (1, 2)),
        (0, None, 9, (2, 3)),
        (3, None, None, (4, 3)),
    ],
)
def test_reading_starts_at_the_newest_whole_record(
    dropped: int, first: int | None, last: int | None, expected: tuple[int, int]
) -> None:
    """H1: or where the caller says, but never at a record that was dropped."""
    assert heads.readable(FREE, dropped, first, last) == expected


def test_a_tail_without_records_begins_at_the_next_one() -> None:
    """H1."""
    assert heads.tail(FREE, 2, [b"b", b"c"]) == Tail(FREE, 2, [b"b", b"c"])
    assert heads.tail(FREE, 2, []) == Tail(FREE, 4, [])


@pytest.mark.parametrize(
    ("dropped", "before", "count"), [(0, 1, 0), (0, 2, 1), (0, 99, 1), (1, 99, 0), (3, 9, 0)]
)
def test_the_newest_whole_record_is_never_pruned(dropped: int, before: int, count: int) -> None:
    """H10."""
    assert heads.prunable(FREE, dropped, before) == count


# A store


class OnPosts(Enum):
    """What a commit does about posts that wait."""

    REFUSE = 1
    TAKE = 2
    IGNORE = 3


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.floats(0.0, 20.0)),
        st.tuples(st.just("claim"), st.sampled_from([None, 1, 2, 3])),
        st.tuples(st.just("claim_ready"), st.integers(0, 3)),
        st.tuples(st.just("renew"), st.integers(1, 4)),
        st.tuples(st.just("release"), st.integers(1, 4)),
        st.tuples(st.just("post"), st.sampled_from("abc")),
        st.tuples(
            st.just("commit"),
            st.tuples(
                st.integers(0, 3),
                st.integers(-1, 1),
                st.sampled_from([None, RUNNING, PAUSED, COMPLETED]),
                st.sampled_from([*OnPosts]),
                st.booleans(),
            ),
        ),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_the_memory_store_does_what_the_rules_say(steps: list[tuple[str, Any]]) -> None:
    """Invariant 5: whatever the order of calls."""
    now = 1000.0
    store = MemoryStore(lambda: now)
    new = NewRun("r", "g", [b"a"], holder="a", ttl=10.0, due=0.0)
    head, lease = heads.create(new, now)
    assert store.create(new) == lease
    keys: set[str] = set()
    for action, given_ in steps:
        if action == "wait":
            now += given_
        elif action == "claim":
            head = check_claim(store, head, now, given_)
        elif action == "claim_ready":
            head = check_claim_ready(store, head, now, given_)
        elif action == "renew":
            renewed = heads.renew(head, Lease("r", given_, 0.0), 10.0, now)
            expected = None if renewed is None else head.posted > head.taken
            assert store.renew([Lease("r", given_, 0.0)], 10.0) == [expected]
            head = renewed or head
        elif action == "release":
            store.release(Lease("r", given_, 0.0))
            head = heads.release(head, Lease("r", given_, 0.0)) or head
        elif action == "post":
            head = check_post(store, head, now, given_, keys)
        else:
            head = check_commit(store, head, now, given_)
        assert store.head("r") == head


def check_claim(store: MemoryStore, head: RunHead, now: float, instead_of: int | None) -> RunHead:
    if heads.is_held(head, now) and instead_of != head.fence:
        with pytest.raises(Conflict) as expected:
            heads.claim(head, "b", 10.0, now, instead_of)
        with pytest.raises(Conflict) as caught:
            store.claim("r", "b", 10.0, instead_of)
        assert str(caught.value) == str(expected.value)
        return head
    claimed, lease = heads.claim(head, "b", 10.0, now, instead_of)
    assert store.claim("r", "b", 10.0, instead_of) == lease
    return claimed


def check_claim_ready(store: MemoryStore, head: RunHead, now: float, fence: int) -> RunHead:
    listed = head._replace(fence=fence)
    is_ready = head.is_due(now) and not heads.is_held(head, now)
    claimed = heads.claim_ready(head, listed, "b", 10.0, now)
    if fence != head.fence or not is_ready:
        assert claimed is None
        assert store.claim_ready([listed], "b", 10.0) == [None]
        return head
    assert claimed == heads.claim(head, "b", 10.0, now)
    assert store.claim_ready([listed, listed], "b", 10.0) == [claimed[1], None]
    return claimed[0]


def check_post(store: MemoryStore, head: RunHead, now: float, key: str, keys: set[str]) -> RunHead:
    if key in keys:
        assert not store.post("r", key, b"")
        return head
    if head.status == COMPLETED:
        with pytest.raises(AlreadyCompleted):
            store.post("r", key, b"")
        return head
    assert store.post("r", key, b"")
    keys.add(key)
    return heads.post(head, now)


def check_commit(store: MemoryStore, head: RunHead, now: float, given_: Any) -> RunHead:
    behind, off, status, on_posts, purge = given_
    fence = head.fence - behind
    expected = head.sequence + off
    each = Commit("r", fence, expected, [b"x"], status=status, purge=purge, due=now)
    each.takes = head.posted if on_posts is OnPosts.TAKE else 0
    each.ignores_posts = on_posts is OnPosts.IGNORE
    refused = heads.refusal(each, head, now)
    (outcome,) = store.append([each])
    assert type(outcome) is type(refused)
    assert str(outcome) == str(refused)
    return head if refused else heads.apply(head, each, now)


@pytest.mark.parametrize(
    ("prefix", "beyond"),
    [("", None), ("a", "b"), ("a/", "a0"), ("\U0010ffff", None), ("a\U0010ffff", "b"), ("\ud7ff", "\ue000")],
)
def test_the_text_behind_a_prefix(prefix: str, beyond: str | None) -> None:
    assert heads.after_prefix(prefix) == beyond
