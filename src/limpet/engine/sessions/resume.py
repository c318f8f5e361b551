"""Resume a stored run: claim it, rebuild its progress, store what the caller brings, and open a session.

The order matters, because the process may crash at any point:

1. *Claim.* From here on no other process writes to the run. If anything below fails, the lease is released.
2. *Read* the journal from its newest snapshot, and rebuild the run's progress from it.
3. *Check* before anything is written: is the run still due, does it crash its process too often, can this graph
   resume it, is it at the step that the caller means?
4. *Store* answers and updates in one commit, which also makes the run `running`. A crash before this commit leaves
   the run as it was; a crash after it leaves a run that any process can resume without being given anything again.
5. *Open* the session. The node loop starts from the progress, as it does for a new run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from time import time
from typing import Any, NamedTuple

from limpet.durations import patience_of
from limpet.engine.leases.held_lease import HeldLease
from limpet.engine.leases.inbox_checks import read_inbox
from limpet.engine.leases.lease_client import HeldRun, LeaseClient, client_for
from limpet.engine.loop import run_lifecycle
from limpet.engine.loop.next_node import update_for_branch
from limpet.engine.loop.run_context import Clocks
from limpet.engine.loop.state_changes import changes_of
from limpet.engine.loop.taking_in import record_posts
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.sessions.checkpoint_refs import asked_at, is_newest, is_run, located, names_file
from limpet.engine.sessions.compatibility import (
    check_fits,
    check_point,
    refuse_cancelled,
    refuse_completed,
    refuse_old_step,
    with_deadline,
)
from limpet.engine.sessions.compiled_graph import CompiledGraph, SessionOptions
from limpet.engine.sessions.provenance import environment
from limpet.engine.sessions.session import Session, config_of
from limpet.engine.sessions.start import emit_start, new_run, queue_for
from limpet.engine.sessions.trials import (
    TRIAL,
    CrashHistory,
    CrashLimits,
    NeedsSolitude,
    begin_trial,
    crash_history,
    forgive_crashes,
    quarantine,
)
from limpet.engine.sessions.user_checkpointer import load_checkpoint
from limpet.errors import Conflict, RunNotFound, RunPaused, UnstorableValue, UsageError
from limpet.graphs.plan import Plan
from limpet.graphs.secrets import hide_secret_path, text_of_values
from limpet.graphs.state import State, new_id
from limpet.journal import waits
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.progress import Progress
from limpet.journal.reader import Point, read_progress, read_progress_and_weight
from limpet.journal.records import move_record
from limpet.journal.store import ENDED, FAILED, RUNNING, PostsWaiting, RunHead, Tail
from limpet.journal.writer import JournalWriter, has_begun, summary
from limpet.observe import events

STORE_CLOCK_TOLERANCE = 1.0
"""Seconds by which this process's idea of the store's clock may be wrong."""


def resume(
    compiled: CompiledGraph,
    run_id: str,
    given: ResumeInput,
    wait: float | None = None,
    stream: bool = False,
    point: Point | None = None,
    *,
    max_sleep: float | None = None,
    limits: CrashLimits | None = None,
    known: RunHead | None = None,
    lease: HeldLease | None = None,
) -> Session:
    """Open a stored run at its position. The answers, update and config in `given` are durable when this returns.

    `wait` is how many seconds to wait for another holder, `point` where the caller believes the run to be,
    `max_sleep` how long the run may sleep here, `limits` how a supervisor treats runs whose process crashed,
    `known` the run's head if the caller has just read it, `lease` its lease if the caller has claimed it. Raises
    `RunNotFound`, `AlreadyCompleted`, `Conflict`, `AnswerRefused`, `AlreadyAnswered`, `RunPaused` for a question
    that stays open, `RunCancelled` for an answer to a cancelled run, `DeadlinePassed` for one that has ended and
    needs a new deadline, `DamagedRecord`, `UsageError`, `WrongGraph`, `RunQuarantined`, `NeedsSolitude`.
    """
    client = compiled.need_client("resume")
    patience = None if wait is None else patience_of(wait, "wait")
    if known is None:
        # Before the claim, so that looking at a complete run, which is common, doesn't write to the store.
        known = compiled.own_run(run_id, "resume")
        refuse_completed(known)
    with client.holding(run_id, patience, known, lease) as held:
        tail = held.read()
        if given.is_start and (tail.head.status, tail.head.sequence) != (known.status, known.sequence):
            raise Conflict(run_id, "it has changed since it was looked at")
        reopened = _reopen(compiled, tail, held, given, point, limits)
        progress = reopened.progress
        given = with_deadline(given, progress, held.now())
        compiled = compiled.for_run(progress.meta.get("settings"))
        if point is not None and given.answers_any:
            given = given.about(asked_at(client, progress, point))
        cancel_requested = _take_in(client, reopened, held, given, tail.head)
        stretch = compiled.begin_stretch(progress, tail.head, held, given.timed and not given.is_start)
        _store_input(compiled, reopened, held, given, tail.head, cancel_requested)
        # A queued run that no process has begun yet is new to the observers: it starts, it doesn't resume.
        begins = progress.is_queued
        options = SessionOptions(
            stream,
            resumed=not begins,
            first_record=tail.first,
            max_sleep=max_sleep,
            on_trial=_begin_trial_of_suspect(reopened, held, limits),
            supervised=limits is not None,
            has_begun=bool(compiled.limits) and has_begun(known),
            stretch=stretch,
        )
        session = Session(compiled, progress, reopened.writer, held.lease, options)
        held.keep()
    if cancel_requested and (given.timed or given.is_start):
        # No user has resumed it since the request to cancel, so the request still holds.
        session.stop.ask()
    _report_opened(compiled, progress, begins)
    return session


def resume_checkpoint(
    compiled: CompiledGraph,
    reference: str | os.PathLike[str],
    given: ResumeInput,
    stream: bool,
    is_file: bool = False,
) -> Session:
    """Open the run that a checkpoint belongs to: one in the store, in a user's checkpointer, or in a file.

    Raises what `resume` and the checkpointer raise.
    """
    is_file = is_file or isinstance(reference, os.PathLike)
    if compiled.checkpointer is None and not (is_file or names_file(compiled.plan, reference)):
        run_id, point = located(compiled, reference)
        try:
            return resume(compiled, run_id, given, None, stream, point)
        except RunPaused:
            # It waits for an answer and got none: what it asks is reported once more.
            return stored_stop(compiled, run_id, stream)
    checkpointer = None if is_file else compiled.checkpointer
    progress = load_checkpoint(checkpointer, os.fspath(reference), compiled.plan)
    check_fits(compiled.plan, progress, os.fspath(reference))
    if compiled.client is None:
        from limpet.stores.memory import MemoryStore

        compiled = compiled._replace(client=client_for(MemoryStore()), interval=0, scratch_store=True)
    client = compiled.need_client("invoke(checkpoint=…)")
    if compiled.scratch_store:
        with suppress(RunNotFound):
            client.store.delete(progress.run_id)
    elif is_run(client, progress.run_id):
        if is_newest(client, progress):
            point = Point(progress.step, progress.closed_questions())
            return resume(compiled, progress.run_id, given, None, stream, point)
        # The stored run has moved on, and is never replaced. So the checkpoint becomes a run of its own.
        progress.parent = progress.run_id
        progress.run_id = new_id()
    progress.crashes = 0
    client.store.create(new_run(progress, (), None, client.ttl, queue=queue_for(compiled, None)))
    return resume(compiled, progress.run_id, given, None, stream)


def stored_stop(compiled: CompiledGraph, run_id: str, stream: bool) -> Session:
    """A session of a run that has stopped, which runs nothing: it reports once more how the run stopped."""
    tail = compiled.need_client("run_id=…").store.read(run_id)
    if not tail.records:
        refuse_completed(tail.head)
    progress = read_progress(tail)
    options = SessionOptions(stream, repeats_stop=True)
    return Session(compiled.for_run(progress.meta.get("settings")), progress, None, None, options)


def merge_update(plan: Plan, update: Mapping[str, Any], progress: Progress) -> bytes:
    """Change the state as if a node had returned `update`; return the delta. Raises `UnstorableValue`."""
    changes = changes_of(plan.schema, State(progress.state), True, progress.state)
    try:
        delta = changes.collect(changes.hand_out(tracked=False), dict(update))
    except UnstorableValue as problem:
        raise hide_secret_path(problem, plan.secrets) from None
    progress.change_state(decode(delta))
    return delta


class _Reopened(NamedTuple):
    """A run as it was rebuilt from its journal, ready to be written to."""

    progress: Progress
    writer: JournalWriter
    history: CrashHistory | None
    """How often its holders crashed since the run last got any further; None for a run without crashes."""


def _reopen(
    compiled: CompiledGraph,
    tail: Tail,
    held: HeldRun,
    given: ResumeInput,
    point: Point | None,
    limits: CrashLimits | None,
) -> _Reopened:
    """Rebuild a run's progress, check that it can be resumed from there, and count the crashes of its holders."""
    if tail.head.fence != held.fence:  # the lease has expired since it was claimed
        raise Conflict(tail.head.run_id, "another process has claimed it since", tail.head.holder)
    # The head was read before the claim: since then another process may have resumed the run, even to its end.
    refuse_completed(tail.head)
    if given.timed:
        _refuse_not_due(tail.head, held)
    progress, weight = read_progress_and_weight(tail)
    if given.answers_any and (given.answers or progress.unanswered_questions()):
        refuse_cancelled(progress.run_id, tail.head.status)
    history = None
    if held.crashes != progress.crashes or TRIAL in progress.meta:
        history = crash_history(progress, tail.head.sequence, held.crashes)
    sleeps = (progress.due() or 0.0) > held.now()
    if limits is not None and history is not None and not sleeps:
        if history.alone >= limits.max_crashes and progress.status == RUNNING:
            quarantine(compiled, progress, tail, held, history.alone)
        if history.is_suspect(limits) and not limits.has_turn:
            raise NeedsSolitude(progress.run_id, history)
    changed = _fit_to_plan(compiled.plan, progress, given)
    check_point(progress, point)
    if compiled.plan.layers is None:
        refuse_old_step(progress, point)
    size = len(tail.records[0]) if tail.records else 0
    writer = JournalWriter(progress.run_id, held.fence, tail.head.sequence, weight, size)
    writer.newest_snapshot = tail.first
    if history is not None and sleeps:
        if history.crashes > 0 or history.was_tried:
            forgive_crashes(progress, writer, held)
        history = None
    progress.count_crashes(held.crashes)
    if changed:
        # A refitted workflow has other tasks. The records before don't add up to it, so it is stored whole.
        writer.add_snapshot(progress)
    return _Reopened(progress, writer, history)


def _begin_trial_of_suspect(reopened: _Reopened, held: HeldRun, limits: CrashLimits | None) -> bool:
    """Begin the trial of a run that may have crashed its process. Returns whether the run is such a suspect."""
    if reopened.history is None or not reopened.history.is_suspect(limits):
        return False
    is_alone = limits is not None and limits.is_alone
    begin_trial(reopened.progress, reopened.writer, held, reopened.history.alone, is_alone)
    return True


def _report_opened(compiled: CompiledGraph, progress: Progress, begins: bool) -> None:
    """Notify the observers that a run begins; or that it is resumed, which is logged, too."""
    plan = compiled.plan
    if begins:
        emit_start(compiled, progress.run_id)
        return
    if compiled.emit is not None:
        data = {"run_id": progress.run_id, "node": progress.made_by}
        compiled.emit(events.CHECKPOINT_LOAD, plan.name, data)
    if "logging" not in sys.modules:
        return
    from limpet.observe.log import log_checkpoint

    log_checkpoint(
        events.CHECKPOINT_RESUME,
        lambda: text_of_values(progress.state, plan.secrets),
        node=progress.current_node(),
        step=progress.step,
        run_id=progress.run_id,
    )


def _refuse_not_due(head: RunHead, held: HeldRun) -> None:
    """Refuse a resume by a supervisor whose list is out of date: the run was answered, or sleeps for longer."""
    if not head.is_due(held.now() + STORE_CLOCK_TOLERANCE):
        raise Conflict(head.run_id, "it is no longer due")


def _fit_to_plan(plan: Plan, progress: Progress, given: ResumeInput) -> bool:
    """Check that this graph can resume the run, and say whether the progress was changed for that.

    A workflow whose tasks have changed is refitted, and questions of changed tasks are dropped. An answer to such a
    question is refused, rather than taken for another one.
    """
    asked = {question.id for question in progress.unanswered_questions()}
    received = waits.received_letters(progress)
    changed = check_fits(plan, progress)
    if changed:
        # What a task had received that starts over, or is gone, waits again.
        kept = waits.received_letters(progress)
        waits.put_back(progress, [letter for letter in received if letter not in kept])
    dropped = sorted(asked - {question.id for question in progress.unanswered_questions()})
    if dropped and given.answers_any:
        refused = UsageError(
            f"question {dropped[0]!r} no longer exists, as the task that asked it has changed"
        )
        raise refused.with_advice(
            f"to resume the run without an answer, call resume({progress.run_id!r})", "resume"
        )
    return changed


def _take_in(
    client: LeaseClient, reopened: _Reopened, held: HeldRun, given: ResumeInput, head: RunHead
) -> bool:
    """Take in what was posted to a run before it is resumed. Returns whether it is to be cancelled.

    A user who resumes wants the run to run: that withdraws a request to cancel which the last holder didn't carry out
    before it crashed. A supervisor, or a start that means the run, leaves the request to the loop. Raises `Conflict`
    for a supervisor's resume of a run that has nothing to do: what was posted isn't what it waits for.
    """
    if head.posted <= head.taken:
        return False
    progress = reopened.progress
    writer = reopened.writer
    clocks = Clocks(now=time, store=held.now, random=float)
    withdraws = not (given.timed or given.is_start)
    posts = read_inbox(client.store, progress.run_id)
    taken = record_posts(progress, writer, posts, clocks, stops=withdraws)
    if taken.early_slots:
        from limpet.engine.leases.limit_slots import limits_of

        for limit, ticket in taken.early_slots:  # no call is under way, so none needs this turn
            limits_of(client).leave_line(limit, ticket)
    if withdraws:
        writer.takes = taken.newest
    elif taken.asks_to_cancel and progress.is_at_interrupt:
        writer.add_move(progress, {"cleared": False}, time())  # to be cancelled isn't to be approved
    if given.timed and not (taken.asks_to_cancel or progress.status in ENDED):
        due = progress.due()
        if due is None or due > held.now():
            # Not if newer posts have come, which have made the run due again: then it stays as it is, for the next.
            with suppress(PostsWaiting):
                held.commit(writer.commit(head.status, summary(progress), due=due))
            raise Conflict(progress.run_id, "it is no longer due")
    return taken.asks_to_cancel


def _store_input(
    compiled: CompiledGraph,
    reopened: _Reopened,
    held: HeldRun,
    given: ResumeInput,
    head: RunHead,
    cancel_requested: bool,
) -> None:
    """Make a resume durable: in one commit the run is running again, with its answers, update and config.

    If the run is already `running` (its process crashed) and gets nothing new, no other settings either, nothing is
    written.
    """
    progress, writer, _ = reopened
    now = held.now()
    answers: dict[str, Any] = {}
    if not (cancel_requested and given.timed):  # else it needs none: it is cancelled
        answers = given.answers_to(progress, now)
    update = given.update_for(progress)
    overdue = progress.expired_questions(now)
    if compiled.plan.layers is not None:
        update = compiled.plan.layers.check_update(update)
    encode(answers, "answers")
    encode(config_of(given.config), "config")
    # A user who resumes wants failed branches to run again. A supervisor resumes only because it is time.
    failed = any(branch.status == FAILED for _, branch in progress.stopped_branches())
    # A node that sleeps has a timer of its own besides. Only a run that hasn't begun has nothing but its delay.
    is_delayed = progress.is_queued and progress.timers.keys() == {waits.ARRIVAL}
    wanted = not given.timed and (failed or is_delayed)
    is_given = answers or update or given.config or given.deadline is not None
    is_late = waits.has_expired_wait(progress, now)
    # A user's resume calls the nodes again that wait for child runs, so that this process can execute these.
    called_again = {} if given.timed else waits.calls_to_repeat(progress)
    has_news = is_given or wanted or overdue or is_late or called_again or writer.pending or writer.takes
    settings = progress.meta.get("settings", {})
    has_other_settings = compiled.settings_after(settings) != settings
    if progress.status == RUNNING and not has_news and not has_other_settings:
        if compiled.telemetry is not None:
            writer.add_move(
                progress, {"meta": progress.meta}, time()
            )  # with the first commit that is made anyway
        return
    at = time()
    changes = {**called_again, **_changes(compiled, progress, given, answers, overdue)}
    if is_late:
        changes = {waits.EXPIRE_WAITS: now, **changes}
    if wanted and is_delayed:
        changes["timers"] = {}
    writer.add_move(progress, changes, at)
    if update:
        note_update(compiled.plan, progress, writer, update, at)
    # An answer and a deadline lead to the same status as a plain resume, so the three aren't distinguished here.
    status = run_lifecycle.next_status(head.status, run_lifecycle.RESUME)
    commit = writer.commit(status, summary(progress), due=0.0, ignores_posts=True)
    held.commit(commit)
    writer.acknowledge(len(commit.records))


def _changes(
    compiled: CompiledGraph,
    progress: Progress,
    given: ResumeInput,
    answers: dict[str, Any],
    overdue: list[str],
) -> dict[str, Any]:
    """What a resume changes in the progress besides the state."""
    changes: dict[str, Any] = {
        "meta": {
            **progress.meta,
            **environment(),
            "settings": compiled.settings_after(progress.meta.get("settings")),
        },
        "fingerprint": compiled.plan.fingerprint,
    }
    if given.config:
        changes["config"] = {**progress.config, **given.config}
    if given.deadline is not None:
        changes["deadline"] = given.deadline
    if overdue or given.timed:
        changes[waits.EXPIRE] = overdue
    if not given.timed:
        changes[waits.RESUME] = answers
    return changes


def note_update(
    plan: Plan, progress: Progress, writer: JournalWriter, update: Mapping[str, Any], at: float
) -> None:
    """Merge an update into the state, and into the private states of branches that are in progress.

    Raises `UnstorableValue`.
    """
    writer.add_record(move_record(progress, {}, at, merge_update(plan, update, progress)))
    for path, branch in list(progress.branches_under_way()):
        delta = merge_update(*update_for_branch(plan, progress, path, update), branch)
        writer.add_record_at(progress, path, at, move_record(branch, {}, at, delta))
