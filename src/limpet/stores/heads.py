"""The rules of a run's head: who may advance the run, and what each call to a store changes. Written once, and pure.

    transition   allowed when                                     what changes
    create       the run id is free (the store checks it)         the head begins, with fence 1
    claim        no valid lease, or `instead_of` is the fence     fence + 1, holder, lease, `updated`, maybe `crashes`
    claim_ready  the fence is as listed, due, no valid lease      the same
    renew        the lease has the run's fence, and a holder      lease, `updated`
    release      the lease has the run's fence                    no holder, no lease
    post         the run isn't complete, and the key is new       posted, and `due` if it hasn't ended
    apply        `refusal` has no reason against the commit       sequence, and what the commit gives

The fence is what keeps two processes from writing to one run. It only ever grows, and only `claim` raises it. So a
process that was suspended while another one claimed the run carries an old fence, and each of its calls is refused.
The time on a lease decides only whether the run *can be claimed*: a holder whose lease expired may still commit, as
long as no other process has claimed the run.

These functions read no clock and change nothing. `now` is given, by the store's own clock. So is `lease_now`, where
the store measures leases by another clock than the rest: see `lease_clock.py`. The caller stores the head that it
gets back. A store must do both under one lock or in one transaction. The stores in memory, in files, in SQLite and
over checkpoints call these functions. PostgreSQL and Redis state the same rules in SQL or Lua, under the same names,
and so does SQLite in the one statement of a plain commit.
`limpet.testing.conformance` holds all of them to one behaviour.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from limpet.errors import AlreadyCompleted, Conflict
from limpet.journal.run_filter import LeaseState, RunFilter
from limpet.journal.store import (
    COMPLETED,
    DAMAGED,
    ENDED,
    RUNNING,
    Commit,
    Document,
    Heads,
    Lane,
    Lease,
    NewRun,
    PostsWaiting,
    RunHead,
    Tail,
)

HIGHEST_CHARACTER = 0x10FFFF
SURROGATES = range(0xD800, 0xE000)

# Transitions


def create(run: NewRun, now: float, lease_now: float | None = None) -> tuple[RunHead, Lease | None]:
    """The head of a new run with all of its first records, and the lease if the run names a holder."""
    lease = None
    if run.holder is not None:
        lease = Lease(run.run_id, fence=1, until=_lease_time(now, lease_now) + run.ttl)
    head = RunHead(
        run_id=run.run_id,
        graph=run.graph,
        status=run.status,
        sequence=len(run.records),
        snapshot=1 if run.records else 0,
        fence=1,
        created=now,
        updated=now,
        holder=run.holder,
        lease_until=None if lease is None else lease.until,
        tags=tuple(run.tags),
        parent=run.parent,
        note=run.note,
        due=first_due(run, now),
        priority=run.priority,
        node=run.labels.node,
        error=run.labels.error,
        waits_for=run.labels.waits_for,
        plan=run.labels.plan,
        queue=run.queue,
    )
    return head, lease


def first_due(run: NewRun, now: float) -> float | None:
    """When a new run is due. One that waits for a worker from its creation on is due from then on.

    So it is behind the runs that became ready before.
    """
    if run.due == 0.0 and run.holder is None:
        return now
    return run.due


def claim(
    head: RunHead,
    holder: str,
    ttl: float,
    now: float,
    instead_of: int | None = None,
    lease_now: float | None = None,
) -> tuple[RunHead, Lease]:
    """The head once `holder` has the run, and its lease. Raises `Conflict` if another holder's lease is valid.

    `instead_of` breaks a valid lease, but only the one with this fence: between finding a holder dead and breaking
    its lease, a third process may have claimed the run.
    """
    lease_now = _lease_time(now, lease_now)
    if instead_of != head.fence:
        refuse_if_held(head, lease_now)
    crashes = head.crashes
    if head.holder is not None:  # a holder that stops in order releases the run first
        crashes += 1
    lease = Lease(head.run_id, head.fence + 1, lease_now + ttl, crashes)
    claimed = head._replace(
        fence=lease.fence,
        crashes=lease.crashes,
        holder=holder,
        lease_until=lease.until,
        updated=now,
    )
    return claimed, lease


def claim_ready(
    head: RunHead, listed: RunHead, holder: str, ttl: float, now: float, lease_now: float | None = None
) -> tuple[RunHead, Lease] | None:
    """The same for a run that was listed as ready; None if it has another fence than then, or isn't ready any more.

    The fence tells whether another process has claimed it since, and so maybe brought it to its end.
    """
    if head.fence != listed.fence or not is_claimable(head, now, lease_now):
        return None
    return claim(head, holder, ttl, now, None, lease_now)


def renew(
    head: RunHead, lease: Lease, ttl: float, now: float, lease_now: float | None = None
) -> RunHead | None:
    """The head with the lease prolonged; None if the lease was lost: claimed by another holder, or released.

    A lease that expired is prolonged as well, since no other process holds the run.
    """
    if head.fence != lease.fence or head.holder is None:
        return None
    return head._replace(lease_until=_lease_time(now, lease_now) + ttl, updated=now)


def release(head: RunHead, lease: Lease) -> RunHead | None:
    """The head without a holder; None if another process claimed the run since, and so holds it."""
    if head.fence != lease.fence:
        return None
    return head._replace(holder=None, lease_until=None)


def post(head: RunHead, now: float) -> RunHead:
    """The head with one more post, which a holder has to take in: so the run is due, unless it has ended.

    It is due as if it had been since its creation, and so comes before runs that were created after it.
    Raises `AlreadyCompleted`: what is posted to a completed run would never be taken in.
    """
    if head.status == COMPLETED:
        raise takes_in_nothing(head.run_id)
    due = head.due
    if head.status not in ENDED and (due is None or due > head.created):
        due = min(head.created, now)
    return head._replace(posted=head.posted + 1, due=due)


def apply(head: RunHead, commit: Commit, now: float) -> RunHead:
    """The head after a commit that `refusal` has no reason against.

    `sequence` counts the commit's records, those of a purge too. With a status, `updated` and `due` are set as well,
    and any status but `running` releases the lease: no process advances the run from there.
    """
    changes: dict[str, Any] = {"sequence": head.sequence + len(commit.records)}
    if commit.snapshot:
        changes["snapshot"] = commit.snapshot
    if commit.purge:  # no record is left, so no whole one either
        changes["snapshot"] = 0
    if commit.status:
        changes.update(status=commit.status, updated=now, due=commit.due)
        if commit.status != RUNNING:
            changes.update(holder=None, lease_until=None)
    if commit.note is not None:
        changes["note"] = commit.note
    if commit.labels is not None:
        changes.update(commit.labels._asdict())
    if commit.takes > head.taken:
        changes["taken"] = min(commit.takes, head.posted)
    return head._replace(**changes)


def damaged(head: RunHead) -> RunHead:
    """The head of a run whose newest commits can't be read, for a list: what it is waiting for isn't known."""
    return head._replace(status=DAMAGED, note=b"", due=None, holder=None, lease_until=None)


def unreadable(run_id: str, created: float, graph: str = "") -> RunHead:
    """The head of a run whose own can't be read, for a list: that the run exists, and what else is known of it."""
    return RunHead(run_id, graph, DAMAGED, sequence=0, snapshot=0, fence=0, created=created, updated=created)


def changes_more_than_sequence(head: RunHead, commit: Commit) -> bool:
    """Whether a commit changes anything in the head but its sequence number. Most don't, and so cost a store less."""
    if commit.status or commit.purge:
        return True
    if commit.snapshot and commit.snapshot != head.snapshot:
        return True
    if commit.note is not None and commit.note != head.note:
        return True
    if commit.labels is not None and commit.labels != head.labels:
        return True
    return commit.takes > head.taken


def _lease_time(now: float, lease_now: float | None) -> float:
    return now if lease_now is None else lease_now


# Refusals


def takes_in_nothing(run_id: str) -> AlreadyCompleted:
    """The error for a post to a run that is complete."""
    return AlreadyCompleted(f"run {run_id!r} is complete, and takes in nothing more", run_id)


def refusal(commit: Commit, head: RunHead, now: float, sequence: int | None = None) -> Exception | None:
    """Why `commit` can't be applied to a run whose head is `head`, or None if it can.

    An old fence outweighs a wrong sequence number, and both outweigh a waiting post: a process that lost the run
    must not take in a post that is meant for the new holder. `sequence` replaces the head's own, for a store that
    counts a run's records elsewhere. `now` is by the clock of leases, here and below.
    """
    if sequence is None:
        sequence = head.sequence
    if commit.fence != head.fence:
        return _fence_conflict(head, commit.fence, now)
    if commit.expected != sequence:
        return Conflict(
            head.run_id,
            f"the write goes after record {commit.expected}, but the run is at record {sequence}; "
            + describe_lease(head, now),
            head.holder,
            head.lease_until,
        )
    if head.posted > max(head.taken, commit.takes) and not commit.ignores_posts:
        return PostsWaiting(head.run_id)
    return None


def refuse_old_fence(head: RunHead, fence: int, now: float) -> None:
    """Raise `Conflict` for a write under a fence that isn't the run's."""
    if fence != head.fence:
        raise _fence_conflict(head, fence, now)


def _fence_conflict(head: RunHead, fence: int, now: float) -> Conflict:
    return Conflict(
        head.run_id,
        f"the write carries fence {fence}, but the run was claimed since (fence {head.fence}); "
        + describe_lease(head, now),
        head.holder,
        head.lease_until,
    )


def refuse_if_held(head: RunHead, now: float) -> None:
    """Raise `Conflict` for a run whose lease is valid."""
    if is_held(head, now):
        raise held_conflict(head, now)


def is_held(head: RunHead, now: float) -> bool:
    """Whether a holder has a lease of the run that has not expired."""
    return head.lease_until is not None and head.lease_until > now


def is_valid(lease: Lease, head: RunHead | None, now: float) -> bool:
    """Whether a lease is that of the run with this head, and is neither released nor expired."""
    return head is not None and lease.fence == head.fence and is_held(head, now)


def held_conflict(head: RunHead, now: float) -> Conflict:
    """The `Conflict` for a run that another process holds."""
    return Conflict(head.run_id, describe_lease(head, now), head.holder, head.lease_until)


def describe_lease(head: RunHead, now: float) -> str:
    """Who holds the run and for how long, as part of a sentence."""
    if head.lease_until is None:
        return "no process holds it now"
    left = head.lease_until - now
    if left > 0:
        return f"held by {head.holder} for another {left:.1f} s"
    return f"last held by {head.holder}, whose lease expired {-left:.1f} s ago"


# Filters and orderings


def matches(head: RunHead, which: RunFilter, now: float, lease_now: float | None = None) -> bool:
    """Whether a run is among those that `which` asks for. One of which nothing is known may be, whatever they are."""
    if which.after is not None and not head.cursor < which.after:
        return False
    if head.status == DAMAGED and not head.graph:
        return not which.statuses or DAMAGED in which.statuses
    return (
        (not which.statuses or head.status in which.statuses)
        and (which.graph is None or head.graph == which.graph)
        and (which.queue is None or head.queue == which.queue)
        and (which.plan is None or head.plan == which.plan)
        and all(tag in head.tags for tag in which.tags)
        and (which.parent is None or head.parent == which.parent)
        and _labels_match(head, which)
        and _times_match(head, which, now)
        and (not which.lease_states or lease_state(head, _lease_time(now, lease_now)) in which.lease_states)
    )


def lease_state(head: RunHead, now: float) -> LeaseState:
    """How a run is held, by the clock of leases."""
    if is_held(head, now):
        return LeaseState.HELD
    return LeaseState.FREE if head.holder is None else LeaseState.EXPIRED


def _labels_match(head: RunHead, which: RunFilter) -> bool:
    return (
        (which.node is None or head.node == which.node)
        and (which.error is None or head.error == which.error)
        and (which.has_error is None or bool(head.error) == which.has_error)
        and (which.is_waiting is None or bool(head.waits_for) == which.is_waiting)
    )


def _times_match(head: RunHead, which: RunFilter, now: float) -> bool:
    if which.is_due is not None and (head.due is None or head.is_due(now) != which.is_due):
        return False
    return (
        (which.created_since is None or head.created >= which.created_since)
        and (which.created_before is None or head.created < which.created_before)
        and (which.updated_since is None or head.updated >= which.updated_since)
        and (which.updated_before is None or head.updated < which.updated_before)
    )


def before_reading(which: RunFilter) -> RunFilter:
    """The filter for heads that aren't read yet, whose stored status is all that is known of them.

    A head that turns out to be damaged may have any, so where those are wanted all are read. `after_reading` selects.
    """
    if DAMAGED not in which.statuses:
        return which
    return which._replace(statuses=(), limit=None)


def after_reading(heads: Heads, which: RunFilter) -> Heads:
    """The heads that match, of those that `before_reading` found: damaged ones have that status by now."""
    if which.statuses:
        heads = [head for head in heads if head.status in which.statuses]
    if DAMAGED in which.statuses:
        heads = heads[: which.limit]
    return heads


def newest_first(heads: Iterable[RunHead], which: RunFilter) -> Heads:
    """The heads in the order of `list`, up to the filter's limit."""
    return sorted(heads, key=lambda head: head.cursor, reverse=True)[: which.limit]


def is_ready(head: RunHead, lanes: Collection[Lane], now: float, lease_now: float | None = None) -> bool:
    """Whether a run in one of these lanes is due and no process holds it."""
    return head.lane in lanes and is_claimable(head, now, lease_now)


def is_claimable(head: RunHead, now: float, lease_now: float | None = None) -> bool:
    """Whether a run is due and no process holds it."""
    return head.is_due(now) and not is_held(head, _lease_time(now, lease_now))


def most_urgent_first(heads: Iterable[RunHead]) -> Heads:
    """The heads in the order of `ready`."""
    return sorted(heads, key=lambda head: (-head.priority, head.due or 0.0, head.created, head.run_id))


def is_expired(
    head: RunHead, older_than: float, statuses: Sequence[str], now: float, lease_now: float | None = None
) -> bool:
    """Whether `expire` deletes the run: it has one of these statuses, is old enough, and no process holds it."""
    if head.status not in statuses or head.updated > now - older_than:
        return False
    return not is_held(head, _lease_time(now, lease_now))


# Documents


def selected_documents(documents: Iterable[Document], due_by: float | None) -> list[Document]:
    """The documents by name; or, with a time, those that are due by then, by their due time and name."""
    if due_by is None:
        return sorted(documents, key=lambda document: document.name)
    due = [document for document in documents if document.due is not None and document.due <= due_by]
    return sorted(due, key=lambda document: (document.due, document.name))


def after_prefix(prefix: str) -> str | None:
    """The first name behind all that begin with `prefix`; None if there is none."""
    prefix = prefix.rstrip(chr(HIGHEST_CHARACTER))
    if not prefix:
        return None
    following = ord(prefix[-1]) + 1
    if following in SURROGATES:  # they can't be stored
        following = SURROGATES.stop
    return prefix[:-1] + chr(following)


# Records


def readable(head: RunHead, dropped: int, first: int | None, last: int | None) -> tuple[int, int]:
    """The numbers of the first and the last record that `read` gives, where the first `dropped` ones are gone."""
    start = head.snapshot if first is None else first
    stop = head.sequence if last is None else min(last, head.sequence)
    return max(start, dropped + 1), stop


def tail(head: RunHead, start: int, records: list[bytes]) -> Tail:
    """The head and these records from number `start` on; without any, the tail begins at the next record to come."""
    if not records:
        start = head.sequence + 1
    return Tail(head, start, records)


def prunable(head: RunHead, dropped: int, before: int) -> int:
    """How many more records `prune` drops: those below `before`, but never the newest whole one or a later one."""
    return max(min(before, head.snapshot) - 1 - dropped, 0)
