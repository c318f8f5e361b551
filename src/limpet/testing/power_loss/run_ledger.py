"""What was written to a store and what of it was acknowledged, for a check of what a power loss left of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from limpet.journal.run_filter import RunFilter
from limpet.journal.store import Commit, Lease, NewRun, RunHead, Store


class Tried(NamedTuple):
    """A call that changes a run. It may be in the store, or not."""

    run_id: str
    first: int = 0
    records: tuple[bytes, ...] = ()
    status: str | None = None
    fence: int = 0
    creates: bool = False
    purges: bool = False
    prunes_before: int = 0
    deletes: bool = False
    takes: int = 0
    post: tuple[str, bytes] | None = None
    output: tuple[bytes, ...] = ()


class Saved(NamedTuple):
    """The same call has returned: what it changed must be there. A post has got its number."""

    tried: Tried
    number: int = 0


class RunLedger:
    """What is known of one run from the calls that were noted.

    `tried` are the records by their numbers, more than one if two processes tried; `saved` those that must be there,
    unless they are below number `first`, as they may have been dropped. The same for posts, of which those up to
    number `taken` were taken in, and others up to `may_be_taken` may have been.
    """

    def __init__(self) -> None:
        self.tried: dict[int, set[bytes]] = {}
        self.saved: dict[int, bytes] = {}
        self.sequence = 0
        self.fence = 0
        self.statuses: set[str] = set()
        self.exists = False
        self.may_be_gone = False
        self.first = 1
        self.tried_posts: set[tuple[str, bytes]] = set()
        self.saved_posts: dict[int, tuple[str, bytes]] = {}
        self.taken = 0
        self.may_be_taken = 0
        self.tried_output: set[bytes] = set()

    def add(self, note: Tried | Saved) -> None:
        """Take in a note."""
        match note:
            case Tried():
                self._add_tried(note)
            case Saved(tried, number):
                self._add_saved(tried)
                if tried.post is not None:
                    self.saved_posts[number] = tried.post

    def _add_tried(self, tried: Tried) -> None:
        for number, record in enumerate(tried.records, tried.first):
            self.tried.setdefault(number, set()).add(record)
        if tried.status is not None:
            self.statuses.add(tried.status)
        self.may_be_gone |= tried.deletes
        self.first = max(self.first, tried.prunes_before)
        self.may_be_taken = max(self.may_be_taken, tried.takes)
        if tried.post is not None:
            self.tried_posts.add(tried.post)
        self.tried_output.update(tried.output)
        if tried.purges:  # its own records go as well
            self.first = max(self.first, tried.first + len(tried.records))

    def _add_saved(self, tried: Tried) -> None:
        if tried.creates:  # whatever had this id before is gone
            self.__init__()  # type: ignore[misc]  # the run begins again
            self._add_tried(tried)
            self.exists = True
        for number, record in enumerate(tried.records, tried.first):
            self.saved[number] = record
            self.sequence = number
        self.fence = max(self.fence, tried.fence)
        self.taken = max(self.taken, tried.takes)
        if tried.status is not None:
            self.statuses = {tried.status}
        if tried.deletes:
            self.exists = False


def noting(store: Any, acknowledge: Callable[[Any], None]) -> Any:
    """Have a store's calls noted: before each one what it tries, and after it that it is saved. Gives the store."""
    create = store.create
    append = store.append
    prune = store.prune
    delete = store.delete
    claim = store.claim
    post = store.post
    add_output = store.add_output

    def note(tried: Tried, call: Callable[[], Any]) -> Any:
        acknowledge(tried)
        outcome = call()
        acknowledge(Saved(tried))
        return outcome

    def noted_create(run: NewRun) -> Lease | None:
        tried = Tried(run.run_id, 1, tuple(run.records), run.status, fence=1, creates=True)
        lease: Lease | None = note(tried, lambda: create(run))
        return lease

    def noted_append(commits: Sequence[Commit]) -> list[Exception | None]:
        calls = [_tried(commit) for commit in commits]
        for tried in calls:
            acknowledge(tried)
        outcomes: list[Exception | None] = append(commits)
        for tried, refusal in zip(calls, outcomes, strict=True):
            if refusal is None:
                acknowledge(Saved(tried))
        return outcomes

    def noted_claim(run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        lease: Lease = claim(run_id, holder, ttl, instead_of)
        acknowledge(Saved(Tried(run_id, fence=lease.fence)))
        return lease

    def noted_post(run_id: str, key: str, body: bytes) -> bool:
        tried = Tried(run_id, post=(key, body))
        acknowledge(tried)
        is_new: bool = post(run_id, key, body)
        if is_new:
            acknowledge(Saved(tried, store.head(run_id).posted))
        return is_new

    def noted_add_output(run_id: str, fence: int, bodies: Sequence[bytes], keep: int) -> int:
        acknowledge(Tried(run_id, output=tuple(bodies)))
        newest: int = add_output(run_id, fence, bodies, keep)
        return newest

    store.create = noted_create
    store.post = noted_post
    store.add_output = noted_add_output
    store.append = noted_append
    store.claim = noted_claim
    store.prune = lambda run_id, before: note(
        Tried(run_id, prunes_before=before), lambda: prune(run_id, before)
    )
    store.delete = lambda run_id: note(Tried(run_id, deletes=True), lambda: delete(run_id))
    return store


def check_runs(store: Store, notes: Sequence[Tried | Saved], *, advance: bool = True) -> None:
    """Check that a store has what was saved, and nothing that was never tried.

    With `advance`, each run is also claimed and gets one more record. Raises `AssertionError`, or what the store
    raises.
    """
    ledgers: dict[str, RunLedger] = {}
    for note in notes:
        run_id = note.run_id if isinstance(note, Tried) else note.tried.run_id
        ledgers.setdefault(run_id, RunLedger()).add(note)
    listed = {head.run_id for head in store.list(RunFilter())}
    missing = {
        run_id for run_id, ledger in ledgers.items() if ledger.exists and not ledger.may_be_gone
    } - listed
    assert not missing, f"runs that were saved and aren't listed: {sorted(missing)}"
    unknown = listed - set(ledgers)
    assert not unknown, f"runs that were never created: {sorted(unknown)}"
    for run_id in listed:
        head = store.read(run_id, first=1).head
        if not ledgers[run_id].may_be_gone:  # else another run may have its id by now
            _check_run(store, run_id, ledgers[run_id])
            if store.abilities.takes_part:
                _check_posts(store, run_id, ledgers[run_id])
        if advance:
            _advance(store, head)


def _check_run(store: Store, run_id: str, ledger: RunLedger) -> None:
    tail = store.read(run_id, first=1)
    head = tail.head
    assert head.sequence >= ledger.sequence, (
        f"{run_id} is at {head.sequence}, and {ledger.sequence} was saved"
    )
    assert head.fence >= ledger.fence, f"{run_id} has fence {head.fence}, and {ledger.fence} was given"
    assert head.status in ledger.statuses, f"{run_id} is {head.status!r}, not one of {ledger.statuses}"
    assert tail.first <= ledger.first, (
        f"{run_id} begins at {tail.first}, and none from {ledger.first} on was dropped"
    )
    assert tail.first + len(tail.records) == head.sequence + 1, f"{run_id} ends before its head says"
    for number, record in enumerate(tail.records, tail.first):
        allowed = ledger.tried.get(number, set())
        if number in ledger.saved:
            allowed = {ledger.saved[number]}
        assert record in allowed, f"record {number} of {run_id} isn't what was written"


def _check_posts(store: Store, run_id: str, ledger: RunLedger) -> None:
    head = store.head(run_id)
    assert head.posted >= max(ledger.saved_posts, default=0), (
        f"{run_id} has {head.posted} posts, and {sorted(ledger.saved_posts)} were saved"
    )
    assert ledger.taken <= head.taken <= ledger.may_be_taken, f"{run_id} has taken in {head.taken} posts"
    waiting = list(store.inbox(run_id))
    numbers = [post.number for post in waiting]
    assert numbers == list(range(head.taken + 1, head.posted + 1)), f"{run_id} has posts {numbers} waiting"
    for number, key, body in waiting:
        allowed = ledger.tried_posts
        if number in ledger.saved_posts:
            allowed = {ledger.saved_posts[number]}
        assert (key, body) in allowed, f"post {number} of {run_id} isn't what was posted"
    for key, _ in ledger.saved_posts.values():
        assert not store.post(run_id, key, b"again"), f"{run_id} doesn't know that {key!r} was posted"
    strange = [item for item in store.output(run_id) if item.body not in ledger.tried_output]
    assert not strange, f"{run_id} has output that was never added: {strange}"


def _advance(store: Store, head: RunHead) -> None:
    lease = store.claim(head.run_id, "afterwards", 60.0, instead_of=head.fence)
    commit = Commit(head.run_id, lease.fence, head.sequence, [b"afterwards"], takes=head.posted)
    (refusal,) = store.append([commit])
    assert refusal is None, f"{head.run_id} can't be advanced: {refusal}"
    assert store.read(head.run_id, first=head.sequence + 1).records == [b"afterwards"]


def _tried(commit: Commit) -> Tried:
    return Tried(
        commit.run_id,
        commit.expected + 1,
        tuple(commit.records),
        commit.status,
        purges=commit.purge,
        takes=commit.takes,
    )
