"""Runs that are created before it is certain that they are to begin.

A schedule has two things to write: the run of a planned time, and that the time is decided. No store writes both at
once. So the run is *prepared* first: it exists, but it isn't due, and no worker executes it. Then the time is
decided. Only then the run begins. A process that crashes in between leaves a prepared run behind, which the next one
finds by its id; and as a prepared run can't end, no retention has deleted it by then.
"""

from __future__ import annotations

from contextlib import suppress

from limpet.engine.leases.interrupted_calls import releases_if_interrupted
from limpet.engine.leases.lease_client import LeaseClient, nudge_supervisors
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.sessions.start import StartRequest, deadline_for, deadline_of, new_run, queued_progress
from limpet.errors import Conflict, RunNotFound, UnstorableValue
from limpet.graphs.secrets import hide_secret_path
from limpet.journal.reader import ViewedTail, read_progress_and_weight
from limpet.journal.store import RUNNING, RunHead
from limpet.journal.writer import JournalWriter, summary


def prepare(compiled: CompiledGraph, request: StartRequest, priority: int) -> None:
    """Create a run that doesn't begin before `begin` is called.

    Raises `RunExists`, `UnstorableValue`, `UsageError`, `StoreError`.
    """
    client = compiled.need_client("start")
    progress = queued_progress(compiled, request)
    deadline = deadline_for(compiled, None)
    if deadline is not None:
        progress.deadline = deadline_of(deadline, client.now())
    try:
        run = new_run(
            progress, request.tags, None, client.ttl, due=None, priority=priority, queue=request.queue
        )
    except UnstorableValue as problem:
        raise hide_secret_path(problem, compiled.plan.secrets) from None
    client.store.create(run)


def begin(client: LeaseClient, run_id: str, due: float) -> bool:
    """Hand a prepared run to the workers, if it is one and exists; it counts as ready since `due`.

    False if another process holds it at the moment, so that this isn't known: ask again.
    """
    head = client.store.heads([run_id])[0]
    if head is None or not is_prepared(head):
        return True
    try:
        _begin(client, run_id, due)
    except RunNotFound:
        return True
    except Conflict:
        return False
    nudge_supervisors(client.store)
    return True


@releases_if_interrupted
def _begin(client: LeaseClient, run_id: str, due: float) -> None:
    with client.holding(run_id) as held:
        tail = ViewedTail(*held.read())
        if not is_prepared(tail.head):
            return
        progress, weight = read_progress_and_weight(tail)
        writer = JournalWriter(run_id, held.fence, tail.head.sequence, weight)
        held.commit(writer.commit(RUNNING, summary(progress), ignores_posts=True, due=due))


def discard(client: LeaseClient, run_id: str) -> None:
    """Delete a prepared run that isn't to begin after all. One that has begun stays."""
    head = client.store.heads([run_id])[0]
    if head is not None and is_prepared(head) and head.holder is None:
        with suppress(RunNotFound, Conflict):
            client.store.delete(run_id)


def is_prepared(head: RunHead) -> bool:
    """Whether a run was prepared, and hasn't begun."""
    return head.status == RUNNING and head.sequence == 1 and head.due is None
