"""Why a store refuses: the same reasons, in the same words and order of precedence, in every store."""

from __future__ import annotations

from collections.abc import Sequence

from limpet.errors import Conflict
from limpet.journal.store import Commit, OnSignal, RunFilter, RunHead, Signalled


def refusal(commit: Commit, head: RunHead, now: float) -> Exception | None:
    """Why `commit` can't be applied to a run whose head is `head`, or None if it can.

    An old fence weighs more than a wrong sequence number, and both more than a waiting signal.
    """
    if commit.fence != head.fence:
        return Conflict(
            head.run_id,
            f"the write carries fence {commit.fence}, but the run was claimed since (fence {head.fence}); "
            + whereabouts(head, now),
            head.holder,
            head.lease_until,
        )
    if commit.expected != head.sequence:
        return Conflict(
            head.run_id,
            f"the write goes after record {commit.expected}, but the run is at record {head.sequence}; "
            + whereabouts(head, now),
            head.holder,
            head.lease_until,
        )
    if commit.on_signal is OnSignal.REFUSE and head.signal is not None:
        return Signalled(head.run_id, head.signal)
    return None


def is_held(head: RunHead, now: float) -> bool:
    """Whether somebody holds a lease of the run that has not run out."""
    return head.lease_until is not None and head.lease_until > now


def fits(head: RunHead, which: RunFilter, now: float) -> bool:
    """Whether a run is among those that `which` asks for."""
    return (
        (not which.statuses or head.status in which.statuses)
        and (which.graph is None or head.graph == which.graph)
        and (which.tag is None or which.tag in head.tags)
        and (which.parent is None or head.parent == which.parent)
        and not (which.unclaimed and is_held(head, now))
    )


def wants(head: RunHead, graphs: Sequence[str], now: float) -> bool:
    """Whether a run of one of these graphs is due and has no holder."""
    return head.due is not None and head.due <= now and head.graph in graphs and not is_held(head, now)


def urgency(head: RunHead) -> tuple[int, float, float, str]:
    """What runs that want a holder are sorted by, for those that are in no database."""
    return -head.priority, head.due or 0.0, head.created, head.run_id


def held(head: RunHead, now: float) -> Conflict:
    """The `Conflict` for a run that somebody else holds."""
    return Conflict(head.run_id, whereabouts(head, now), head.holder, head.lease_until)


def whereabouts(head: RunHead, now: float) -> str:
    """Who holds the run and for how long, as part of a sentence."""
    if head.lease_until is None:
        return "nobody holds it now"
    left = head.lease_until - now
    if left > 0:
        return f"held by {head.holder} for another {left:.1f} s"
    return f"last held by {head.holder}, whose lease ran out {-left:.1f} s ago"
