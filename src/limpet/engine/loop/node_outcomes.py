"""What follows from the outcome of a call that didn't complete, and how a loop saves what happened.

A node that failed is tried again or stops its loop; one that asked pauses it; one that sleeps is called again later,
and one that waits for a post when that has come.
When a sleep ends, or the next attempt is due, is stored with the position, by the store's clock. So a process that
resumes the run waits only for the rest, and no process needs to hold the run until then.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple

from limpet.engine.loop.driver_commands import (
    Asked,
    Cancelled,
    Failed,
    PostsArrived,
    Sleeping,
    Wait,
    Waiting,
    WaitTooLong,
)
from limpet.engine.loop.run_context import SAVE, SLEEPING, WAITING, LoopStop, stop_for
from limpet.engine.loop.taking_in import commit_again
from limpet.engine.node_context.node_context import NodeContext
from limpet.graphs.edges import END, CaughtError
from limpet.graphs.habits.langgraph import explain_interrupt
from limpet.graphs.plan import PlanNode
from limpet.journal.records import NO_CHANGE, move_record
from limpet.journal.store import CANCELLED, FAILED, PAUSED
from limpet.journal.waits import (
    ARRIVAL,
    ASK_AGAIN,
    CHILD_RUN,
    FAILED_PHASE,
    NEXT_ATTEMPT,
    RETRY_BRANCHES,
    SHORTEST_WAIT,
    SLOT,
    PostWait,
    reason_of,
)
from limpet.observe import events

if TYPE_CHECKING:
    from limpet.engine.loop.node_loop import NodeLoop

CHILD_RECHECK = 0.2
"""Seconds until a child run is looked at again whose end was posted, but that had not ended yet."""

MayStop = Generator[Any, Any, LoopStop | None]
"""A part of a loop: it yields commands, and returns why the loop stops, or None if it continues."""


class JumpTaken(NamedTuple):
    """Where a run goes after a node that returned a `Goto`, or failed: then `caught` is the stored error."""

    target: str
    caught: CaughtError | None = None


class StepEnd(NamedTuple):
    """How a step ends whose node returned no update: what it changed, where the run goes, which failure it was."""

    delta: bytes
    jump: JumpTaken | None = None
    forgiven: Failed | None = None


def handle_unfinished(
    loop: NodeLoop, ctx: NodeContext, outcome: Failed | Asked | Sleeping | Waiting | Cancelled | LoopStop
) -> MayStop:
    """A node didn't complete: take back what it changed, then try it again (None), or stop."""
    _take_back(loop, ctx)
    if loop.context.reporting.emit is not None or loop.context.reporting.stretch is not None:
        loop.reporter.node_ends(ctx, outcome)
    match outcome:
        case Asked():
            return _pause(loop, ctx, outcome)
        case Sleeping():
            return (yield from _sleep(loop, ctx, outcome))
        case Waiting(wait):
            return (yield from _wait_for_post(loop, wait))
        case Cancelled():
            return LoopStop(CANCELLED)
        case Failed(error, again):
            explain_interrupt(error)
            stop = LoopStop(FAILED, loop, loop.reporter.error_line(error), error, FAILED_PHASE)
            return (yield from _retry_or_stop(loop, ctx, error, again, stop))
        case LoopStop(status, cause=cause):
            if status != FAILED:
                return outcome
            error = cause or RuntimeError(outcome.reason)
            return (yield from _retry_or_stop(loop, ctx, error, cause is not None, outcome))


def forgive_failure(
    loop: NodeLoop, ctx: NodeContext, outcome: Failed | LoopStop
) -> Generator[Any, Any, StepEnd | None]:
    """A task of a workflow failed. If it won't be tried again and no task needs it, its failure is its result.

    Returns None where the failure counts as any other.
    """
    work = ctx.plan_node.workflow_task
    assert work is not None
    failed = _failure(outcome)
    if failed is None or not work.safe_to_fail or (failed.again and _is_retried(ctx, failed.error)):
        return None
    reporter = loop.reporter
    yield from reporter.stream(reporter.stream_events.node_fails(reporter, ctx, failed.error, None))
    error = _error_data(loop, ctx, outcome, failed)
    delta = loop.changes.collect(ctx.state, work.failed(ctx, error, loop.context.clocks.now()))
    return StepEnd(delta, forgiven=failed)


def catch_error(
    loop: NodeLoop, ctx: NodeContext, outcome: Failed | LoopStop
) -> Generator[Any, Any, StepEnd | None]:
    """A node failed. If it won't be tried again and one of its error edges catches the error, that leads on.

    What the node changed is taken back: its step completes without an update. Returns None where the failure counts
    as any other.
    """
    failed = _failure(outcome)
    if failed is None or (failed.again and _is_retried(ctx, failed.error)):
        return None
    edge = ctx.plan_node.error_edge(failed.error)
    if edge is None:
        return None
    reporter = loop.reporter
    yield from reporter.stream(reporter.stream_events.node_fails(reporter, ctx, failed.error, None))
    _take_back(loop, ctx)
    error = _error_data(loop, ctx, outcome, failed)
    at = loop.context.clocks.now()
    caught = CaughtError(error["type"], error["message"], error["node"], ctx.attempt, at)
    return StepEnd(NO_CHANGE, JumpTaken(edge.target, caught), failed)


def _failure(outcome: Failed | LoopStop) -> Failed | None:
    """The failure of a node, or of the graph that it runs; None if that has stopped for another reason."""
    if isinstance(outcome, Failed):
        return outcome
    if outcome.status != FAILED:
        return None
    return Failed(outcome.cause or RuntimeError(outcome.reason), again=outcome.cause is not None)


def _error_data(
    loop: NodeLoop, ctx: NodeContext, outcome: Failed | LoopStop, failed: Failed
) -> dict[str, Any]:
    """A failure as data, with the full name of the node where it happened."""
    if isinstance(outcome, LoopStop):
        return error_of(loop, outcome)
    return loop.reporter.error_data(failed.error, loop.scope.place(ctx.node))


def _take_back(loop: NodeLoop, ctx: NodeContext) -> None:
    """End a call that didn't complete, and take back what it changed."""
    loop.context.reporting.masker.remember_state(ctx.state)
    ctx.close()
    loop.changes.undo(ctx.state)


def _pause(loop: NodeLoop, ctx: NodeContext, outcome: Asked) -> LoopStop:
    hide = loop.reporter.hide
    question = outcome.question._replace(prompt=hide(outcome.question.prompt))
    reason = f"{loop.scope.place(ctx.node)!r} asks: {question.prompt}{hide(outcome.note)}"
    return LoopStop(PAUSED, loop, reason, questions=[question])


def _sleep(loop: NodeLoop, ctx: NodeContext, outcome: Sleeping) -> MayStop:
    """Store until when a node sleeps. It is called again then."""
    reporter = loop.reporter
    reporter.notify(events.NODE_SLEEP, node=ctx.node, until=outcome.until)
    stop = yield from _store_timers(loop, outcome.until, {}, outcome.timer, ARRIVAL)
    if stop is None:
        yield from reporter.stream(reporter.stream_events.node_sleeps(reporter, ctx, outcome.until))
    return stop


def _wait_for_post(loop: NodeLoop, wait: PostWait) -> MayStop:
    """Record what a node waits for. It is called again at once if that has come meanwhile."""
    if wait.box in loop.context.root.mailbox:
        return None
    if wait.kind == CHILD_RUN and wait.name in loop.context.ended_children:
        # Its end was taken in while the node looked at it, when no node waited for it yet. So it is looked at again.
        wait = wait._replace(deadline=loop.context.clocks.store() + CHILD_RECHECK)
    early_slots = loop.context.early_slots
    if wait.kind == SLOT and (wait.name, wait.key) in early_slots:
        # Its slot was reserved before its wait was known: it asks again, with its place in line.
        early_slots.discard((wait.name, wait.key))
        record(loop, {"waits": [wait.to_data()], ASK_AGAIN: [[wait.name, wait.key]]})
        return None
    record(loop, {"waits": [wait.to_data()]})
    loop.context.summary_is_old = True
    if loop.nested:
        refusal = yield from save(loop)
        if refusal is not None:
            return refusal
    return waiting_stop(loop)


def waiting_stop(loop: NodeLoop) -> LoopStop:
    """Why a loop stops whose node waits for a post. The run's own loop has it saved with the stop."""
    return LoopStop(WAITING, loop, reason_of(loop.progress.waits))


def _retry_or_stop(
    loop: NodeLoop, ctx: NodeContext, error: BaseException, again: bool, stop: LoopStop
) -> MayStop:
    """Store a failed attempt and when the next one is due; or stop if it was the last."""
    delay = _retry_delay(loop, ctx, error) if again else None
    reporter = loop.reporter
    yield from reporter.stream(reporter.stream_events.node_fails(reporter, ctx, error, delay))
    if delay is None:
        return stop
    line = reporter.error_line(error)
    reporter.notify(events.NODE_RETRY, node=ctx.node, attempt=ctx.attempt, delay=delay, error=line)
    # The attempt is stored before the next one, so that a crash doesn't give the node more attempts than it has.
    changes: dict[str, Any] = {
        "attempts": ctx.attempt,
        "error": reporter.error_data(error, loop.scope.place(ctx.node)),
    }
    if loop.progress.section is not None:
        changes[RETRY_BRANCHES] = True
    due = loop.context.clocks.store() + delay
    return (yield from _store_timers(loop, due, changes, NEXT_ATTEMPT))


def _is_retried(ctx: NodeContext, error: BaseException) -> bool:
    """Whether a node that failed with this error is tried again."""
    retry = ctx.plan_node.retry
    return retry is not None and retry.applies(error, ctx.attempt)


def _retry_delay(loop: NodeLoop, ctx: NodeContext, error: BaseException) -> float | None:
    """For how many seconds to wait before the next attempt; None if the node isn't tried again."""
    retry = ctx.plan_node.retry
    if retry is None or not retry.applies(error, ctx.attempt):
        return None
    return retry.delay(ctx.attempt, loop.context.clocks.random())


def _store_timers(loop: NodeLoop, until: float, changes: dict[str, Any], *timers: str) -> MayStop:
    """Store that the position waits until then."""
    record(loop, {**changes, "timers": {**loop.progress.timers, **dict.fromkeys(timers, until)}})
    return (yield from save(loop))


def wait_until_due(loop: NodeLoop) -> MayStop:
    """Wait until the position is due. Returns why the loop stops if it can't wait that long here."""
    limits = loop.context.limits
    until = loop.progress.sleeps_until
    while (left := until - loop.context.clocks.store()) > SHORTEST_WAIT:
        # A branch always asks: whether its wait is too long depends on what the other branches do.
        if not loop.nested and limits.max_wait is not None and left > limits.max_wait:
            return LoopStop(SLEEPING)
        answer = yield Wait(until)
        if isinstance(answer, WaitTooLong):
            return LoopStop(SLEEPING)
        if isinstance(answer, Cancelled):
            return LoopStop(CANCELLED)
    return None


def delay_arrival(loop: NodeLoop, node: PlanNode, target: str | None) -> None:
    """Record when the run arrives at `target`, if the edge from `node` to it has a delay."""
    if node.delays is None or target is None or target == END:
        return
    delay = node.delays.get(target, 0.0)
    if delay:
        record(loop, {"timers": {ARRIVAL: loop.context.clocks.store() + delay}})


def record(loop: NodeLoop, changes: dict[str, Any]) -> None:
    """Apply a change of the position that isn't a completed node; the next commit stores it."""
    p = loop.progress
    writer = loop.context.saving.writer
    at = loop.context.clocks.now()
    # The record is made first, as the position was before: replaying the journal applies it to just that.
    data = b"" if writer is None else move_record(p, changes, at)
    p.move(changes)
    if loop.nested and p.done:
        p.end_branch()
    if writer is not None:
        writer.add_record_at(loop.context.root, loop.scope.path, at, data)


def save(loop: NodeLoop) -> MayStop:
    """Make all that happened durable. Returns why the loop stops if the store refused, and that isn't tolerated."""
    writer = loop.context.saving.writer
    if writer is None:
        return None
    # The records of parallel branches share a commit, so a branch leaves it to its runner to make one.
    answer = yield SAVE if loop.nested else writer.commit()
    if isinstance(answer, Exception):
        return (yield from save_refused(loop, answer))
    step_saved(loop)
    return None


def step_saved(loop: NodeLoop, *, reported: bool = False) -> None:
    """The last step is durable: notify the observers, unless they know it already (`reported`)."""
    root = loop.context.root
    on_checkpoint = loop.context.saving.on_checkpoint
    if on_checkpoint is not None and not loop.nested and loop.checkpointed != root.iterations:
        loop.checkpointed = root.iterations
        on_checkpoint()
    loop.state._saved = f"{root.run_id}@{root.step}"
    if loop.context.has_answers:
        loop.state._saved = root.checkpoint_id
    if not reported:
        loop.reporter.notify(events.CHECKPOINT_SAVE, node=loop.progress.made_by, step=root.step)


def save_refused(loop: NodeLoop, refusal: Exception) -> MayStop:
    """The store refused the records: take in the posts that wait, continue if the run tolerates it, or stop.

    The records stay pending, so the next commit holds them as well.
    """
    context = loop.context
    if isinstance(refusal, PostsArrived):
        writer = context.saving.writer
        assert writer is not None
        answer = yield from commit_again(context, refusal, writer.commit)
        if not isinstance(answer, Exception):
            step_saved(loop)
            return None
        refusal = answer
    if not context.tolerates(refusal):
        return stop_for(refusal)
    if context.save_error is refusal:
        return None  # it was reported before: several branches get the same refusal
    error = loop.reporter.error_line(refusal)
    if context.save_error is None:
        from logging import getLogger

        log = getLogger("limpet.run")
        log.warning("run %s continues although it can't be saved: %s", context.root.run_id, error)
    context.save_error = refusal
    step = context.root.step
    loop.reporter.notify(events.CHECKPOINT_FAIL, node=loop.progress.made_by, step=step, error=error)
    yield from loop.reporter.stream(loop.reporter.stream_events.save_fails(error))
    return None


def error_of(loop: NodeLoop, stop: LoopStop) -> dict[str, Any]:
    """A failure as data, with the full name of the node."""
    at = stop.at or loop
    node = at.scope.place(at.progress.node)
    if stop.cause is None:
        if at.progress.status == FAILED and at.progress.error is not None:
            return at.progress.error  # it failed in another process
        return {"type": "", "message": stop.reason, "node": node}
    return loop.reporter.error_data(stop.cause, node)
