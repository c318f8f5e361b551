"""Cancel a run, whichever process executes it."""

from __future__ import annotations

from time import time

from limpet.engine.leases.lease_client import HeldRun, LeaseClient
from limpet.errors import Conflict, UsageError
from limpet.journal.reader import read_progress
from limpet.journal.store import CANCELLED, ENDED, OnSignal, RunHead
from limpet.journal.writer import JournalWriter, summary


def cancel(client: LeaseClient, run_id: str) -> None:
    """Stop a run before its next node.

    A run of this process stops at once, a run of another process when its holder next saves or renews its lease,
    and a run that no process holds is marked as cancelled here. Raises `RunNotFound`, and `UsageError` for a run
    that has ended.
    """
    held_here = client.held.get(run_id)
    if held_here is not None:
        held_here.stop.ask()
        return
    head = client.head(run_id)
    if head.status == CANCELLED:
        return
    _refuse_ended(head)
    try:
        lease = client.claim(run_id)
    except Conflict:
        client.store.signal(run_id, "cancel")
        return
    with client.releasing(lease) as held:
        _mark_cancelled(held, run_id)


def _mark_cancelled(held: HeldRun, run_id: str) -> None:
    tail = held.read()
    _refuse_ended(tail.head)
    progress = read_progress(tail)
    progress.crashes = held.crashes
    writer = JournalWriter(run_id, held.fence, tail.head.sequence)
    writer.add_move(progress, {"status": CANCELLED, "reason": "cancelled"}, time())
    held.commit(writer.commit(CANCELLED, summary(progress), on_signal=OnSignal.CLEAR))


def _refuse_ended(head: RunHead) -> None:
    if head.status in ENDED:
        raise UsageError(f"run {head.run_id!r} has ended already: it is {head.status}")
