"""The ways into a run: it is started, resumed, or recalled from a checkpoint of a user's own store.

This is where runs differ: a new one is created, a stored one is claimed and rebuilt. What comes out is a session, and
the same loop goes on from it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from time import time
from typing import Any

from limpet.engine.leases.lease_client import HeldRun, LeaseClient, client_for
from limpet.engine.loop.next_node import update_for_branch
from limpet.engine.loop.state_changes import Changes
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.sessions.checkpoint_refs import check_step, is_run, located, names_file
from limpet.engine.sessions.compatibility import check_fits
from limpet.engine.sessions.provenance import environment
from limpet.engine.sessions.session import CompiledGraph, Session
from limpet.engine.sessions.start import new_run, tell_start
from limpet.engine.sessions.user_checkpointer import load_checkpoint
from limpet.errors import (
    AlreadyCompleted,
    Conflict,
    RunNotFound,
    RunQuarantined,
    UnstorableValue,
    UsageError,
)
from limpet.graphs.plan import Plan
from limpet.graphs.secrets import refused_discreetly
from limpet.graphs.state import State, new_id
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.progress import Progress
from limpet.journal.reader import read_on
from limpet.journal.store import (
    COMPLETED,
    FAILED,
    RUNNING,
    OnSignal,
    RunHead,
    Tail,
)
from limpet.journal.waits import FAILED_PHASE
from limpet.journal.writer import JournalWriter, summary
from limpet.observe import events

A_MOMENT = 1.0
"""Seconds by which what is known of the store's clock may be wrong."""


def resume(
    compiled: CompiledGraph,
    run_id: str,
    given: ResumeInput,
    wait: float | None,
    stream: bool,
    step: int | None = None,
    patience: float | None = None,
    most_crashes: int | None = None,
    known: RunHead | None = None,
) -> Session:
    """Open a stored run where it stands, with what `given` brings, which is durable before this returns.

    `step` says where the caller believes the run to be, `patience` for how long it may wait here, `most_crashes` how
    often in a row it may have taken its process down, `known` what the store said of it just now. Raises
    `RunNotFound`, `AlreadyCompleted`, `Conflict`, `AnswerRefused`, `RunPaused` for a question left open,
    `DamagedRecord`, `UsageError`, `RunQuarantined`.
    """
    client = compiled.need_client("resume")
    if known is None:
        refuse_completed(client.head(run_id))
    with client.holding(run_id, wait, known) as held:
        tail = held.read()
        progress, writer, losses = _reopen(compiled, tail, held, step, given, most_crashes)
        _bring_in(compiled, progress, writer, given, tail.head.signal is not None, held)
        fresh = progress.meta.get("queued") and not progress.iterations and progress.section is None
        session = Session(
            compiled, progress, writer, held.lease, stream=stream, resumed=not fresh, whole=tail.first,
            patience=patience, losses=losses,
        )  # fmt: skip
        held.keep()
    if given.timed and tail.head.signal is not None:
        session.stop.ask()
    if fresh:
        tell_start(compiled, run_id)
    elif compiled.emit is not None:
        data = {"run_id": run_id, "node": progress.made_by}
        compiled.emit(events.CHECKPOINT_LOAD, compiled.plan.name, data)
    return session


def recall(
    compiled: CompiledGraph,
    reference: str | os.PathLike[str],
    given: ResumeInput,
    stream: bool,
    file: bool = False,
) -> Session:
    """Open the run that a checkpoint's reference leads to: a file's, if `file`. Raises what `resume` does."""
    file = file or isinstance(reference, os.PathLike)
    if compiled.checkpointer is None and not (file or names_file(compiled.plan, reference)):
        run_id, step = located(compiled, reference)
        return resume(compiled, run_id, given, None, stream, step)
    from limpet.stores.user_stores.checkpoint_files import CheckpointFiles

    keeper = compiled.checkpointer if compiled.checkpointer is not None and not file else CheckpointFiles()
    progress = load_checkpoint(keeper, os.fspath(reference), compiled.plan)
    check_fits(compiled.plan, progress)
    if compiled.client is None:
        from limpet.stores.memory import MemoryStore

        compiled = compiled._replace(client=client_for(MemoryStore()), interval=0, scratch_store=True)
    client = compiled.need_client("invoke(checkpoint=…)")
    if compiled.scratch_store:
        with suppress(RunNotFound):
            client.store.delete(progress.run_id)
    elif is_run(client, progress.run_id):
        if _stands_there(client, progress):
            return resume(compiled, progress.run_id, given, None, stream, progress.step)
        progress.run_id, progress.parent = new_id(), progress.run_id
    progress.crashes = 0
    client.store.create(new_run(progress, (), None, client.ttl))
    return resume(compiled, progress.run_id, given, None, stream)


def _stands_there(client: LeaseClient, progress: Progress) -> bool:
    """Whether the stored run is still where this progress of it was saved: then its journal is gone on with."""
    tail = client.store.read(progress.run_id)
    if not tail.records or tail.head.status == COMPLETED:
        return False
    stored, _ = read_on(tail)
    return (stored.step, stored.node, stored.phase, stored.status, stored.state) == (
        progress.step, progress.node, progress.phase, progress.status, progress.state
    )  # fmt: skip


def _reopen(
    compiled: CompiledGraph,
    tail: Tail,
    held: HeldRun,
    step: int | None,
    given: ResumeInput,
    most_crashes: int | None,
) -> tuple[Progress, JournalWriter, int]:
    """The run's progress, the ledger to go on with, and how many holders were lost since it last came further."""
    refuse_completed(tail.head)
    if given.timed and (tail.head.due is None or tail.head.due > held.now() + A_MOMENT):
        raise Conflict(tail.head.run_id, "it isn't due any more")
    progress, weight = read_on(tail)
    losses = held.crashes - progress.crashes
    waits = (progress.due() or 0.0) > held.now()
    if most_crashes is not None and losses >= most_crashes and not waits:
        _set_aside(compiled, progress, tail, held)
    asked = {question.id for question in progress.open_questions()}
    refitted = check_fits(compiled.plan, progress)
    gone = sorted(asked - {question.id for question in progress.open_questions()})
    if gone and given.answers_any:
        way_out = f"resume({progress.run_id!r}) without an answer goes on"
        raise UsageError(f"question {gone[0]!r} is gone, as the task that asked it has changed; {way_out}")
    check_step(progress, step)
    if step is not None and step != progress.step and compiled.plan.layers is None:
        raise Conflict(
            progress.run_id,
            f"step {step} is not its newest any more, that is {progress.step}; "
            f"fork({progress.run_id!r}, step={step}) goes on from there beside the run",
        )
    writer = JournalWriter(progress.run_id, held.fence, tail.head.sequence, weight)
    if losses > 0 and waits:
        _forgive(progress, writer, held)
        losses = 0
    progress.lost(held.crashes)
    if refitted:
        writer.whole(progress)
    return progress, writer, losses


def _forgive(progress: Progress, writer: JournalWriter, held: HeldRun) -> None:
    """A run that only let time pass took nobody down: holders that were lost meanwhile don't count against it."""
    changes = {"attempts": progress.attempts} if progress.section is None else {}
    progress.lost(held.crashes)
    writer.move(progress, changes, time())


def _set_aside(compiled: CompiledGraph, progress: Progress, tail: Tail, held: HeldRun) -> None:
    """Have a run that takes its process down again and again count as failed: `RunQuarantined`."""
    times = held.crashes - progress.crashes
    node = progress.place()
    reason = f"its process crashed {times} times in a row at {node!r}, so it was quarantined"
    error = {"type": RunQuarantined.__name__, "message": reason, "node": node}
    changes: dict[str, Any] = {"status": FAILED, "reason": reason, "error": error, "cleared": True}
    if progress.section is None:
        changes["phase"] = FAILED_PHASE
    progress.crashes = held.crashes
    writer = JournalWriter(progress.run_id, held.fence, tail.head.sequence)
    writer.move(progress, changes, time())
    held.commit(writer.commit(FAILED, summary(progress), on_signal=OnSignal.IGNORE))
    if compiled.emit is not None:
        data = {"run_id": progress.run_id, "node": node, "error": reason}
        compiled.emit(events.RUN_FAIL, compiled.plan.name, data)
    message = f"run {progress.run_id!r}: {reason}; resume({progress.run_id!r}) tries it again"
    raise RunQuarantined(message, progress.run_id)


def refuse_completed(head: RunHead) -> None:
    if head.status == COMPLETED:
        kept = "fork() it to go on from one of its steps"
        kept = kept if head.snapshot else "its journal went with that; compile(preserve=True) keeps it"
        message = f"run {head.run_id!r} is complete; {kept}"
        raise AlreadyCompleted(message, head.run_id)


def _bring_in(
    compiled: CompiledGraph,
    progress: Progress,
    writer: JournalWriter,
    given: ResumeInput,
    signalled: bool,
    held: HeldRun,
) -> None:
    """Make a resume durable: from now on the run is running again, with what it was given.

    A request to cancel that its holder didn't live to heed is over: resuming is the newer wish, if it is one.
    """
    now = held.now()
    answers = given.answers_to(progress, now)
    update = given.update_for(progress)
    overdue = progress.overdue(now)
    if compiled.plan.layers is not None:
        update = compiled.plan.layers.check_update(update)
    encode(answers, "answers")
    encode(dict(given.config or {}), "config")
    failed = any(branch.status == FAILED for _, branch in progress.stops())
    wished = not given.timed and (signalled or failed)
    brings = answers or update or given.config or wished or overdue or writer.pending
    if progress.status == RUNNING and not brings:
        return
    changes: dict[str, Any] = {"meta": {**progress.meta, **environment()}}
    changes["fingerprint"] = compiled.plan.fingerprint
    if given.config:
        changes["config"] = {**progress.config, **given.config}
    at = time()
    if overdue or given.timed:
        changes["time_passed"] = overdue
    writer.move(progress, changes if given.timed else {**changes, "going_on": answers}, at)
    if update:
        writer.note(progress.move_record({}, at, merge_update(compiled.plan, update, progress)))
        for path, branch in list(progress.under_way()):
            delta = merge_update(*update_for_branch(compiled.plan, progress, path, update), branch)
            writer.put(progress, path, at, branch.move_record({}, at, delta))
    commit = writer.commit(
        RUNNING, summary(progress), on_signal=OnSignal.IGNORE if given.timed else OnSignal.CLEAR, due=0.0
    )
    held.commit(commit)
    writer.acknowledged(commit)


def merge_update(plan: Plan, update: Mapping[str, Any], progress: Progress) -> bytes:
    """Change the state as if a node had returned `update`; returns the delta. Raises `UnstorableValue`."""
    changes = Changes(State(progress.state), plan.schema.reducers, durable=True, base=progress.state)
    try:
        delta = changes.collect(changes.hand_out(tracked=False), dict(update))
    except UnstorableValue as problem:
        raise refused_discreetly(problem, plan.secrets) from None
    progress.change(decode(delta))
    return delta
