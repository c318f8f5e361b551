"""Hand a run that has stopped, and waits for no answer and no approval, back to the workers."""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import Any

from limpet.durations import Moment
from limpet.engine.leases.inbox_checks import take_in_all
from limpet.engine.leases.interrupted_calls import releases_if_interrupted
from limpet.engine.leases.lease_client import HeldRun, LeaseClient, nudge_supervisors
from limpet.engine.loop.run_lifecycle import RESUME, next_status
from limpet.engine.node_context.questions import check_update
from limpet.engine.operations.run_info import info_at_last_stop, unfit_to_retry, way_on
from limpet.engine.sessions.compatibility import refuse_completed, refuse_overdue
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.sessions.resume import note_update
from limpet.engine.sessions.start import deadline_of
from limpet.errors import UsageError
from limpet.journal.progress import Progress
from limpet.journal.reader import ViewedTail, read_progress_and_weight
from limpet.journal.store import CANCELLED, FAILED, RunHead
from limpet.journal.threads.kinds import refuse_thread
from limpet.journal.waits import RESUME as RESUMED
from limpet.journal.writer import JournalWriter, summary


@releases_if_interrupted
def retry(
    client: LeaseClient,
    run_id: str,
    update: Mapping[str, Any] | None = None,
    compiled: CompiledGraph | None = None,
    deadline: Moment | None = None,
) -> None:
    """Make a stopped run due at once, from where it stopped; a supervisor of the store continues it.

    Its node gets all its attempts again, and the crashes that put it into quarantine no longer count. A request to
    cancel that was never carried out is withdrawn. `update` is merged into the state, by the reducers of the graph,
    which is then needed. `deadline` replaces that of the run. Raises `RunNotFound`, `AlreadyCompleted`, `UsageError`
    for a run that hasn't stopped, `DeadlinePassed` for one that needs a new deadline, `Conflict`, `UnstorableValue`.
    """
    check_update(update)
    if update and compiled is None:
        unknown = UsageError(f"retry({run_id!r}, update=…) merges by the reducers of the run's graph")
        raise unknown.with_advice("give the graph with Runs(store, graphs=[…])")
    # Before the claim, so that a run which can't be retried stays untouched.
    _refuse_unless_stopped(client, client.head(run_id))
    with client.holding(run_id) as held:
        tail = ViewedTail(*held.read())
        _refuse_unless_stopped(client, tail.head)
        progress, weight = read_progress_and_weight(tail)
        if deadline is None:
            refuse_overdue(progress, held.now())
        writer = JournalWriter(run_id, held.fence, tail.head.sequence, weight)
        _retry_from(client, held, tail.head, progress, writer)
        if deadline is not None:
            writer.add_move(progress, {"deadline": deadline_of(deadline, held.now())}, time())
        if update and compiled is not None:
            _add_update(compiled, progress, writer, update)
        status = next_status(tail.head.status, RESUME)
        due = progress.due_when_released()
        held.commit(writer.commit(status, summary(progress), due=due, ignores_posts=True))
    nudge_supervisors(client.store)


def _refuse_unless_stopped(client: LeaseClient, head: RunHead) -> None:
    refuse_thread(head)
    refuse_completed(head)
    if head.status in (FAILED, CANCELLED):
        return
    info = info_at_last_stop(client, head.run_id)
    if reason := unfit_to_retry(info):
        not_stopped = UsageError(f"run {head.run_id!r} can't be retried: {reason}")
        raise not_stopped.with_advice(*way_on(info))


def _retry_from(
    client: LeaseClient, held: HeldRun, head: RunHead, progress: Progress, writer: JournalWriter
) -> None:
    """Record that what had stopped runs again."""
    # Not `count_crashes`: the crashes so far don't count as attempts of the node.
    progress.crashes = held.crashes
    if head.posted > head.taken:
        take_in_all(client.store, progress, writer, held.now)
    writer.add_move(progress, _changes(progress), time())


def _add_update(
    compiled: CompiledGraph, progress: Progress, writer: JournalWriter, update: Mapping[str, Any]
) -> None:
    if compiled.plan.layers is not None:
        update = compiled.plan.layers.check_update(update)
    note_update(compiled.plan, progress, writer, update, time())


def _changes(progress: Progress) -> dict[str, Any]:
    """What a retry changes in the progress: what had stopped runs again."""
    changes: dict[str, Any] = {RESUMED: {}, "error": None}
    if progress.section is None:
        changes["attempts"] = 0
    return changes
