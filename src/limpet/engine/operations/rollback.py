"""Roll a run back to one of its steps. It adds a record to the journal and removes none."""

from __future__ import annotations

from contextlib import suppress
from time import time

from limpet.engine.following.run_events import ROLLED_BACK
from limpet.engine.leases.interrupted_calls import releases_if_interrupted
from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.loop.run_lifecycle import ROLLBACK, next_status
from limpet.engine.operations.fork import forget_stop
from limpet.engine.operations.stored_state import as_state
from limpet.engine.sessions.compatibility import check_fits, is_overdue
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.errors import Conflict
from limpet.graphs.plan import Plan
from limpet.graphs.state import State
from limpet.journal.reader import letters_after, next_unused_step, progress_at
from limpet.journal.record_shapes import read_summary
from limpet.journal.store import RunHead
from limpet.journal.verify import salvaged_tail
from limpet.journal.waits import SLOT, give_back
from limpet.journal.writer import JournalWriter, summary


@releases_if_interrupted
def rollback(compiled: CompiledGraph, run_id: str, step: int) -> State:
    """Set a run back to where it was after `step`, pause it there, and return its state. The history stays.

    Messages that were received or sent after the step wait again, in the order in which they were sent.
    """
    client = compiled.need_client("rollback")
    # Before the run is claimed, which changes when it was updated: a rollback that is refused changes nothing.
    check_rollback(client, compiled.plan, run_id, step)
    try:
        holding = client.holding(run_id)
    except Conflict as conflict:
        raise conflict.with_advice("cancel() it first", "cancel") from None
    with holding as held:
        # A rollback is a way out of damaged records, so those after the step don't stop it.
        tail = salvaged_tail(client.store, run_id)
        progress = progress_at(tail, step)
        # What was received after the step, or came after it, waits again.
        give_back(progress, letters_after(tail, step))
        check_fits(compiled.plan, progress)
        progress.step = next_unused_step(tail)
        progress.crashes = held.crashes
        progress.deadline = _newest_deadline(tail.head)
        progress.at = time()
        progress.status = next_status(tail.head.status, ROLLBACK)
        progress.reason = f"{ROLLED_BACK} {step}"
        if progress.section is not None:
            # Branches that run again get another idempotency key, which is made of the step.
            progress.section.step = progress.step
        forget_stop(progress)
        writer = JournalWriter(run_id, held.fence, tail.head.sequence)
        writer.add_snapshot(progress)
        # A deadline that has passed is for the resume to replace. Until then the run stays where it was put.
        due = progress.deadline
        if is_overdue(progress, held.now()):
            due = None
        held.commit(writer.commit(progress.status, summary(progress), due=due, ignores_posts=True))
    _leave_lines(client, tail.head)
    return as_state(progress, compiled.plan)


def check_rollback(client: LeaseClient, plan: Plan, run_id: str, step: int) -> None:
    """Raise what `rollback` would raise for this, as far as that can be known without claiming the run."""
    check_fits(plan, progress_at(salvaged_tail(client.store, run_id), step))
    client.head(run_id)  # raises if it is damaged: then nothing can claim the run


def _leave_lines(client: LeaseClient, head: RunHead) -> None:
    """The calls that waited for slots of limits do so no longer."""
    if not head.waits_for:
        return
    from limpet.engine.leases.limit_slots import limits_of

    with suppress(ValueError):
        for wait in read_summary(head.note).get("waits", ()):
            if wait["kind"] == SLOT:
                limits_of(client).leave_line(wait["name"], wait["key"])


def _newest_deadline(head: RunHead) -> float | None:
    """The deadline of a run now, whatever it was at an earlier step."""
    try:
        return read_summary(head.note).get("deadline")
    except ValueError:
        return None
