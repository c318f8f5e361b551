"""Cancel a run, whichever process executes it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from limpet.engine.leases.child_posts import unfinished_children
from limpet.engine.leases.ending import end_held_run
from limpet.engine.leases.interrupted_calls import releases_if_interrupted
from limpet.engine.leases.lease_client import HeldRun, LeaseClient, held_in_this_process
from limpet.engine.loop.run_lifecycle import CANCEL, next_status
from limpet.engine.sessions.compiled_graph import check_own
from limpet.errors import AlreadyCompleted, Conflict, RunNotFound, StoreUnavailable, UsageError
from limpet.graphs.plan import Plan
from limpet.graphs.state import new_id
from limpet.journal.inbox import cancel_post
from limpet.journal.progress import Progress
from limpet.journal.reader import ViewedTail, read_progress
from limpet.journal.store import CANCELLED, ENDED, PAUSED, RunHead
from limpet.journal.threads.kinds import refuse_thread

CANCELLED_ALREADY: Final = "it is cancelled already"
"""Why there was nothing to do."""


def cancel(client: LeaseClient, run_id: str, plan: Plan | None = None) -> bool:
    """Stop a run and its children before their next nodes: a run of this plan's graph, if one is given.

    False if it is cancelled already. A child that has ended stays as it is. Raises `RunNotFound`, `WrongGraph`, and
    `UsageError` for a run that has completed or failed.
    """
    cancelled = _cancel_one(client, run_id, plan)
    if client.store.abilities.takes_part:
        for head in unfinished_children(client, run_id):
            with suppress(UsageError, RunNotFound):  # it has ended meanwhile, or was deleted
                cancel(client, head.run_id)
    return cancelled


@releases_if_interrupted
def _cancel_one(client: LeaseClient, run_id: str, plan: Plan | None = None) -> bool:
    """Stop a run.

    A run of this process stops at once, a run of another process when its holder next saves or looks at what was
    posted, and a run that no process holds is marked as cancelled here. Raises `RunNotFound`, `WrongGraph`, and
    `UsageError` for a run that has completed or failed.
    """
    held_here = held_in_this_process(client.store, run_id)
    if held_here is not None and held_here.graph is not None:
        if plan is not None:
            check_own(plan, run_id, held_here.graph)
        # Asked first: the run may be waiting for its store. Posted as well, because it may be about to pause, or its
        # process to crash: then the process that resumes it takes the request in.
        held_here.stop.ask()
        if client.store.abilities.takes_part:
            with suppress(StoreUnavailable, RunNotFound):
                _post_cancel(client, run_id)
                _cancel_if_paused(client, run_id)
        return True
    head = client.head(run_id)
    refuse_thread(head)
    if plan is not None:
        check_own(plan, run_id, head.graph)
    if head.status == CANCELLED:
        return False
    _refuse_ended(head)
    try:
        holding = client.holding(run_id)
    except Conflict:
        # Another process executes the run. It takes the request in when it next saves, or looks at what was posted.
        _post_cancel(client, run_id)
        _cancel_if_paused(client, run_id)
        return True
    # Not inside the `try`: a conflict here means that this process lost the lease, which no post makes good.
    with holding as held:
        return _mark_cancelled(client, held)


def _cancel_if_paused(client: LeaseClient, run_id: str) -> None:
    """Cancel a run that has paused just before the request was stored, so that no process takes it in."""
    if client.head(run_id).status != PAUSED:
        return
    try:
        holding = client.holding(run_id)
    except Conflict:
        return  # the process that holds it now takes the request in
    with holding as held:
        if held.read().head.status == PAUSED:
            _mark_cancelled(client, held)


def ended_already(status: str) -> str:
    """Why a run that has ended can't be cancelled, as part of a sentence."""
    return f"has already ended (status: {status})"


def _post_cancel(client: LeaseClient, run_id: str) -> None:
    request = cancel_post(run_id, new_id())
    with suppress(AlreadyCompleted):
        client.store.post(run_id, request.key, request.body)


def _mark_cancelled(client: LeaseClient, held: HeldRun) -> bool:
    tail = ViewedTail(*held.read())
    if tail.head.status == CANCELLED:  # by another process, meanwhile
        return False
    _refuse_ended(tail.head)
    status = next_status(tail.head.status, CANCEL)

    def changes(progress: Progress) -> dict[str, Any]:
        changed: dict[str, Any] = {"status": status, "reason": "cancelled"}
        if progress.is_at_interrupt:
            changed["cleared"] = False  # it waits for the approval again, once it is resumed
        return changed

    end_held_run(client, held, tail.head, read_progress(tail), changes)
    return True


def _refuse_ended(head: RunHead) -> None:
    if head.status in ENDED:
        ended = UsageError(f"run {head.run_id!r} {ended_already(head.status)}")
        raise ended.with_advice(f"delete({head.run_id!r}) removes it", "delete")
