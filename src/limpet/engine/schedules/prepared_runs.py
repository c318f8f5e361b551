"""Runs that are created before it is certain that they are to begin.

A schedule has two things to write: the run of a planned time, and that the time is decided. No store writes both at
once. So the run is *prepared* first: it exists, but it isn't due, and no worker executes it. Then the time is
decided. Only then the run begins. A process that crashes in between leaves a prepared run behind, which the next one
finds by its id; and as a prepared run can't end, no retention has deleted it by then.

Unless there is no next one: the schedule was deleted meanwhile, or has other times, so that no process looks for this
run any more. So before a run is prepared, a document names it and its schedule. From when the run is to have begun,
each worker looks after it: `settle`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from limpet.engine.leases.interrupted_calls import releases_if_interrupted
from limpet.engine.leases.lease_client import LeaseClient, nudge_supervisors
from limpet.engine.schedules.schedule import find_schedule
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.sessions.start import StartRequest, deadline_for, deadline_of, new_run, queued_progress
from limpet.errors import Conflict, LimpetError, RunNotFound, StoreUnavailable, UnstorableValue
from limpet.graphs.names import PREPARED
from limpet.graphs.secrets import hide_secret_path
from limpet.journal.reader import ViewedTail, read_progress_and_weight
from limpet.journal.store import RUNNING, Document, RunHead, Store, document_version
from limpet.journal.writer import JournalWriter, summary

BEGINS_WITHIN: Final = 60.0
"""Seconds after which a prepared run is to have begun. All that is left to do is two writes."""
CREATED_WITHIN: Final = 3600.0
"""Seconds more after which a run that doesn't exist isn't being prepared: its process may have been suspended."""


def prepare(compiled: CompiledGraph, request: StartRequest, priority: int, schedule: str) -> None:
    """Create a run that doesn't begin before `begin` is called. `schedule` is the name of the one that decides.

    Raises `RunExists`, `UnstorableValue`, `UsageError`, `StoreError`.
    """
    client = compiled.need_client("start")
    progress = queued_progress(compiled, request)
    deadline = deadline_for(compiled, None)
    if deadline is not None:
        progress.deadline = deadline_of(deadline, client.store_time())
    try:
        run = new_run(
            progress, request.tags, None, client.ttl, due=None, priority=priority, queue=request.queue
        )
    except UnstorableValue as problem:
        raise hide_secret_path(problem, compiled.plan.secrets) from None
    _note(client.store, request.run_id, schedule, client.store_time() + BEGINS_WITHIN)
    client.store.create(run)


def _note(store: Store, run_id: str, schedule: str, due: float) -> None:
    """Have workers look after a run from then on."""
    name = PREPARED + run_id
    if store.put_document(name, schedule.encode(), 0, due) is None:
        known = document_version(store, name)
        if known:
            store.put_document(name, schedule.encode(), known, due)


def begin(client: LeaseClient, run_id: str) -> bool:
    """Hand a prepared run to the workers, if it is one and exists; it counts as ready since its creation.

    False if another process holds it at the moment, so that this isn't known: ask again.
    """
    head = client.store.heads([run_id])[0]
    if head is None or not is_prepared(head):
        return True
    try:
        _begin(client, run_id)
    except RunNotFound:
        return True
    except Conflict:
        return False
    nudge_supervisors(client.store)
    return True


@releases_if_interrupted
def _begin(client: LeaseClient, run_id: str) -> None:
    with client.holding(run_id) as held:
        tail = ViewedTail(*held.read())
        if not is_prepared(tail.head):
            return
        progress, weight = read_progress_and_weight(tail)
        writer = JournalWriter(run_id, held.fence, tail.head.sequence, weight)
        # Due as of its creation, and not from now on: if the clock is set back, it doesn't wait (`RunHead.is_due`).
        due = tail.head.created
        about = summary(progress)
        # A process that crashed here before has claimed the run, too. But none has executed it: see `has_begun`.
        about.described["begun"] = False
        held.commit(writer.commit(RUNNING, about, ignores_posts=True, due=due))


def discard(client: LeaseClient, run_id: str) -> None:
    """Delete a prepared run that isn't to begin after all. One that has begun stays."""
    head = client.store.heads([run_id])[0]
    if head is not None and is_prepared(head) and head.holder is None:
        with suppress(RunNotFound, Conflict):
            client.store.delete(run_id)


def settle(client: LeaseClient) -> None:
    """Begin or remove runs that were prepared and that their schedules have forgotten.

    A run that its schedule still mentions is left to that. Raises `StoreUnavailable`; and what else is wrong with one
    run, or with its schedule, once the others are settled.
    """
    now = client.store_time()
    noted = _due_notes(client.store, now)
    heads = client.store.heads([document.name.removeprefix(PREPARED) for document in noted])
    problem: LimpetError | None = None
    for document, head in zip(noted, heads, strict=True):
        try:
            if head is not None and is_prepared(head):
                _settle(client, head, document)
            elif head is not None or (document.due or 0.0) + CREATED_WITHIN <= now:
                client.store.delete_document(document.name, document.version)
        except StoreUnavailable:
            raise
        except LimpetError as error:
            problem = error
    if problem is not None:
        raise problem


def _due_notes(store: Store, now: float) -> list[Document]:
    """The documents of runs that are to have begun by now."""
    noted = []
    # All of them: those of the last minutes, as a worker deletes them when their runs have begun.
    for document in store.list_documents(PREPARED):
        due = document.due or 0.0
        if due <= now:
            noted.append(document)
        elif due > now + BEGINS_WITHIN:
            # The clock was set back. Without this, its run would be left alone until the clock has caught up.
            store.put_document(document.name, document.body, document.version, now + BEGINS_WITHIN)
    return noted


def _settle(client: LeaseClient, head: RunHead, document: Document) -> None:
    found = find_schedule(client.store, document.body.decode())
    if found is not None and found[0].mentions(head.run_id):
        return
    # Claimed before, it was to begin: no process claims a run before its time is decided.
    if head.fence > 1:
        begin(client, head.run_id)
    else:
        discard(client, head.run_id)


def is_prepared(head: RunHead) -> bool:
    """Whether a run was prepared, and hasn't begun."""
    return head.status == RUNNING and head.sequence == 1 and head.due is None
