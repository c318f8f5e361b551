"""A start whose run exists already: the same start twice is one run.

The run that has the id is the one that is meant, if it is of the same graph and was started with the same input. What
happens then follows from its status: see `open_existing`.
"""

from __future__ import annotations

from threading import get_ident

from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.loop.stop_errors import error_of_stopped
from limpet.engine.node_context.call_scope import CURRENT
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.sessions.resume import resume, stored_stop
from limpet.engine.sessions.session import Session
from limpet.engine.sessions.start import HeldElsewhere, StartRequest, input_digest
from limpet.errors import (
    AlreadyCompleted,
    Conflict,
    RunExists,
    RunQuarantined,
)
from limpet.journal.reader import read_progress
from limpet.journal.record_shapes import read_summary
from limpet.journal.store import CANCELLED, COMPLETED, ENDED, FAILED, PAUSED, RunHead


def open_existing(compiled: CompiledGraph, request: StartRequest, stream: bool, has_waited: bool) -> Session:
    """Open the run that this same start has created before, as its status demands.

    A completed run gives its result, a paused one its pause. One that failed, or that no process executes, is
    continued here. But a caller that `has_waited` for another process gets how the run ended there: of several
    that wait for a run which fails, none runs it again by itself. Raises `HeldElsewhere` while a process executes the
    run, `RunExists` for another start, `RunCancelled`, `RunQuarantined`, `RunNotFound`, and what `resume` raises.
    """
    client = compiled.need_client("run_id=…")
    check_same_start(compiled, request)
    run_id = request.run_id
    while True:
        head = client.head(run_id)
        is_due = head.is_due(client.now())
        is_end = head.status == COMPLETED or (has_waited and head.status in ENDED)
        if is_end or (head.status == PAUSED and not is_due):
            session = stored_stop(compiled, run_id, stream)
            if session.progress.status == head.status or client.head(run_id) == head:
                return session
            continue  # it was resumed meanwhile
        _refuse_stopped(head)
        # What is due is a paused run that was answered, or whose question has expired: it needs no approval.
        given = ResumeInput(timed=head.status == PAUSED, is_start=True)
        if head.status == FAILED:
            given = given._replace(deadline=request.deadline)
        try:
            return resume(compiled, run_id, given, None, stream, known=head)
        except AlreadyCompleted:
            continue
        except Conflict as conflict:
            _refuse_own(client, run_id, conflict)
            raise HeldElsewhere(client, run_id, compiled.plan.secrets, stream) from None


def check_same_start(compiled: CompiledGraph, request: StartRequest) -> None:
    """Raise `RunExists` unless the run with this id is of this graph, and was started with this input."""
    client = compiled.need_client("run_id=…")
    run_id = request.run_id
    head = client.head(run_id)
    if head.graph != compiled.plan.name:
        raise RunExists(run_id, f"it is a run of graph {head.graph!r}")
    if head.status == COMPLETED and not head.snapshot:
        why = "it is complete: its result was deleted with its journal, because of keep_result=False"
        raise RunExists(run_id, why, "delete it")
    stored = read_progress(client.store.read(run_id)).meta.get("input")
    if stored is None:
        raise RunExists(run_id, "its id wasn't chosen by the call that started it")
    if stored != input_digest(compiled.plan, request):
        raise RunExists(run_id, "it was started with another input")


def _refuse_stopped(head: RunHead) -> None:
    """Raise the error of a run that is only run again if a user wants that: one that was cancelled or quarantined."""
    is_quarantined = head.error == RunQuarantined.__name__
    if head.status == CANCELLED or (head.status == FAILED and is_quarantined):
        reason = read_summary(head.note).get("reason")
        raise error_of_stopped(head.run_id, head.status, reason, head.error, head.node)


def _refuse_own(client: LeaseClient, run_id: str, conflict: Conflict) -> None:
    """Raise the conflict if the caller would wait for itself: it is a node of the run, or has it open in this thread.

    A run on an event loop is opened by some thread, which says nothing about the caller.
    """
    ctx = CURRENT.get()
    held = client.held.get(run_id)
    is_open_here = (
        held is not None and held.is_in_use and held.is_stranded is None and held.claimed_by == get_ident()
    )
    if is_open_here or (ctx is not None and ctx.run_id == run_id):
        raise conflict
