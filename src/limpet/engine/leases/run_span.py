"""The span of a run while this process executes it: it begins when the run is opened, and ends when it has stopped.

Its trace context is stored with the run, in its metadata. A new run is created with it. One that is resumed gets it
with the commit of the resume, or else with the first one that is made anyway: it is never worth a commit of its own.
After a crash before that, the next stretch links to the one before.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from limpet.errors import Conflict
from limpet.journal.progress import Progress
from limpet.journal.store import FAILED, RUNNING, RunHead
from limpet.observe.opentelemetry.places import LOST, RELEASED, SLEEPING, RunEnd, RunPlace

if TYPE_CHECKING:
    from limpet.engine.leases.lease_client import HeldRun
    from limpet.engine.loop.driver_commands import Command, Verdict
    from limpet.engine.sessions.compiled_graph import CompiledGraph
    from limpet.engine.sessions.session import Session
    from limpet.observe.opentelemetry.spans import Stretch

TRACE: Final = "trace"
"""The key of a run's metadata that has its trace context."""


def begin_stretch(
    compiled: CompiledGraph,
    progress: Progress,
    head: RunHead | None = None,
    held: HeldRun | None = None,
    is_worker: bool = False,
) -> Stretch | None:
    """Begin a stretch, and note its trace context in the run's metadata, for the next record with that.

    `head` is that of a run which existed before, and `held` what this process holds of it. `is_worker` says that no
    caller waits for it here: a supervisor executes it, or the process of its parent. None if telemetry has failed.
    """
    telemetry = compiled.telemetry
    assert telemetry is not None
    queue = ""
    if head is not None and held is not None:
        queue = head.queue
        is_waiting = progress.is_queued and head.due is not None
        if is_worker and is_waiting and not held.crashes:  # after a crash, it has begun before
            due = max(head.due or 0.0, head.created)
            telemetry.queue_delay(head.graph, queue, max(0.0, held.now() - due))
    place = RunPlace(
        graph=compiled.plan.name,
        run_id=progress.run_id,
        is_workflow=compiled.plan.layers is not None,
        is_worker=is_worker,
        is_resumed=head is not None and not progress.is_queued,
        queue=queue,
        parent=progress.child_of,
    )
    stored = progress.meta.get(TRACE)
    stretch = telemetry.begin(place, stored)
    if stretch is not None and compiled.client is not None:
        trace = telemetry.stored_of(stretch, stored)
        if trace:
            progress.meta = {**progress.meta, TRACE: trace}
    return stretch


def run_in_stretch(session: Session, stretch: Stretch) -> Generator[Command, Any, Verdict]:
    """The loop of a session, which ends its stretch when the run has stopped, or when the loop is dropped."""
    try:
        verdict = yield from session.lifecycle.run()
        stretch.end(_end_of(session, verdict))
        return verdict
    finally:
        stretch.interrupt(session.progress.step)


def _end_of(session: Session, verdict: Verdict) -> RunEnd:
    progress = session.progress
    error = verdict.error
    status = verdict.status
    if status == RUNNING:
        status = SLEEPING
        if isinstance(error, Conflict):
            status = LOST
        elif error is not None or session.stop.leaving:
            status = RELEASED
    if error is None or status != FAILED:
        return RunEnd(status, progress.step)
    stored = progress.error or {}
    # The reason is without secrets. If the failure isn't stored, as it is one of the store, the error has no others.
    return RunEnd(
        status, progress.step, stored.get("type") or type(error).__name__, progress.reason or str(error)
    )
