"""A start whose run exists already: the same start twice is one run.

The run that has the id is the one that is meant, if it is of the same graph and was started with the same input. What
happens then follows from its status: see `open_existing`.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident

from limpet.engine.leases.change_waiter import ChangeWaiter
from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.sessions.resume import resume, stored_stop
from limpet.engine.sessions.session import Session
from limpet.engine.sessions.start import HeldElsewhere, StartRequest, input_digest
from limpet.errors import (
    AlreadyCompleted,
    Conflict,
    LimpetError,
    RunCancelled,
    RunExists,
    RunQuarantined,
    UsageError,
)
from limpet.journal.reader import read_progress
from limpet.journal.record_shapes import read_summary
from limpet.journal.store import CANCELLED, COMPLETED, FAILED, PAUSED, RunHead

FOREVER = 1e9
"""Seconds for which to wait for a run that another process executes."""


def open_existing(
    compiled: CompiledGraph, request: StartRequest, stream: bool, has_gone: Callable[[], bool]
) -> Session:
    """Open the run that this same start has created before, as its status demands.

    A completed run gives its result, a paused one its pause. One that failed, or that no process executes, is
    continued here. One that a process executes is waited for, or raises `HeldElsewhere` to a caller that streams it.
    Raises `RunExists` for another start, `RunCancelled`, `RunQuarantined`, `RunNotFound`, and what `resume` raises.
    """
    client = compiled.need_client("run_id=…")
    check_same_start(compiled, request)
    run_id = request.run_id
    waiter: ChangeWaiter | None = None
    while True:
        head = client.head(run_id)
        _refuse_stopped(head)
        is_due = head.due is not None and head.due <= client.now()
        if head.status == COMPLETED or (head.status == PAUSED and not is_due):
            return stored_stop(compiled, run_id, stream)
        # What is due is a paused run that was answered, or whose question has expired: it needs no approval.
        given = ResumeInput(timed=head.status == PAUSED)
        try:
            return resume(compiled, run_id, given, None, stream, known=head)
        except AlreadyCompleted:
            continue
        except Conflict as conflict:
            _refuse_own(client, run_id, conflict)
            if stream:
                raise HeldElsewhere(client, run_id, compiled.plan.secrets) from None
        if waiter is None:
            waiter = ChangeWaiter(client.store, FOREVER)
        waiter.wait()
        if has_gone():
            raise UsageError(f"run {run_id!r} was no longer waited for")


def check_same_start(compiled: CompiledGraph, request: StartRequest) -> None:
    """Raise `RunExists` unless the run with this id is of this graph, and was started with this input."""
    client = compiled.need_client("run_id=…")
    run_id = request.run_id
    head = client.head(run_id)
    if head.graph != compiled.plan.name:
        raise RunExists(run_id, f"it is a run of graph {head.graph!r}")
    if head.status == COMPLETED and not head.snapshot:
        raise RunExists(run_id, "it is complete, and its journal was deleted")
    stored = read_progress(client.store.read(run_id)).meta.get("input")
    if stored is None:
        raise RunExists(run_id, "its id wasn't chosen by the call that started it")
    if stored != input_digest(compiled.plan, request):
        raise RunExists(run_id, "it was started with another input")


def _refuse_stopped(head: RunHead) -> None:
    """Raise the error of a run that is only run again if a user wants that: one that was cancelled or quarantined."""
    run_id = head.run_id
    refused: LimpetError | None = None
    if head.status == CANCELLED:
        refused = RunCancelled(f"run {run_id!r} was cancelled", run_id)
    elif head.status == FAILED and head.error == RunQuarantined.__name__:
        refused = RunQuarantined(f"run {run_id!r}: {_reason(head)}", run_id)
    if refused is not None:
        advice = f"retry it with resume({run_id!r}), or give it back to the workers with retry()"
        raise refused.with_advice(advice, "retry")


def _reason(head: RunHead) -> str:
    return read_summary(head.note).get("reason") or "it was quarantined"


def _refuse_own(client: LeaseClient, run_id: str, conflict: Conflict) -> None:
    """Raise the conflict if this very thread has the run open: it would wait for itself."""
    held = client.held.get(run_id)
    if held is not None and held.is_in_use and held.claimed_by == get_ident():
        raise conflict
