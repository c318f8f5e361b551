"""Branches: opening them, running those that are open, and what follows when they have stopped."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from limpet.engine.loop.driver_commands import SUSPENDED, AcquireSlots, Failed, ReleaseSlots
from limpet.engine.loop.next_node import SectionStart, subgraph_start
from limpet.engine.loop.node_outcomes import MayStop, record, save
from limpet.engine.loop.parallel.branch_groups import stops_on_error
from limpet.engine.loop.parallel.branch_runner import BranchRunner
from limpet.engine.loop.parallel.flow_steps import report_advance, report_layer_start, start_flow
from limpet.engine.loop.run_context import (
    SLEEPING,
    LoopStop,
    RunBranches,
    combined_stop,
    stop_for,
)
from limpet.engine.node_context.node_context import NodeContext
from limpet.errors import UsageError
from limpet.graphs.parallel import InnerGraph
from limpet.graphs.workflow.tasks import TaskSkipped
from limpet.journal.encoding.codec import decode, detached_value
from limpet.journal.records import open_record
from limpet.journal.store import CANCELLED, FAILED
from limpet.journal.waits import FAILED_PHASE, ticket_of, without_ticket
from limpet.observe import events

if TYPE_CHECKING:
    from limpet.engine.loop.node_loop import NodeLoop


def enter_section(loop: NodeLoop, start: SectionStart) -> MayStop:
    """Open branches after a node that completed, save both in one commit, and run the branches."""
    context = loop.context
    interval = context.saving.interval
    open_section(loop, start)
    if "flow" in start.data:
        start_flow(loop)
    if interval and not context.root.step % interval:
        refusal = yield from save(loop)
        if refusal is not None:
            return refusal
    yield from loop.reporter.stream_step()
    return (yield from run_branches(loop))


def run_subgraph(loop: NodeLoop, ctx: NodeContext, sub: InnerGraph) -> Generator[Any, Any, Any]:
    """The outcome of a node that runs a graph: what that graph changed, or why it isn't done."""
    p = loop.progress
    call_unlocked = loop.context.journal_lock.call_unlocked
    try:
        if p.section is None:
            open_section(loop, call_unlocked(subgraph_start, loop, ctx.node, sub))
        stop = yield from run_branches(loop)
        if stop is not None:
            return stop
        assert p.section is not None
        final = p.section.children[ctx.node].branch_state()
        if ctx.plan_node.workflow_task is not None:
            ctx._add_inner_decisions(final)
            return sub.outputs_of(final)
        left = call_unlocked(sub.outer_update, final, loop.state, loop.plan.schema)
        loop.changes.replace(p.section.kept)
        return left
    except Exception as error:
        return Failed(error, again=False)


def call_guarded(loop: NodeLoop, ctx: NodeContext) -> Generator[Any, Any, Any]:
    """The outcome of a node that isn't just called: it has a condition, limits, or both.

    A task is called if its condition holds, and a node with limits once it has slots of them. It has these until the
    call ends, however it does: with a result, a failure, a sleep or a question.
    """
    node = ctx.plan_node
    ctx.began = loop.context.clocks.now()
    # Once the graph that the task runs is open, the condition did hold.
    if node.condition is not None and loop.progress.section is None:
        outcome = yield from _check_condition(ctx)
        if outcome is not None:
            return outcome
    if node.limits:
        (outcome,) = yield AcquireSlots([ctx])
        if outcome is not None:
            return outcome
        if ticket_of(loop.progress) is not None:
            # It has its slots, so it left the line. The next attempt begins at its end.
            record(loop, {"received": without_ticket(loop.progress)})
    yield from loop.announce(ctx)
    if node.inner is None:
        outcome = yield ctx
    else:
        outcome = yield from run_subgraph(loop, ctx, node.inner)
    if node.limits:
        yield ReleaseSlots([ctx])
    return outcome


def _check_condition(ctx: NodeContext) -> Generator[Any, Any, Any]:
    """Call the condition of a task, as a part of the task's call: None if it holds, else the task's outcome."""
    node = ctx.plan_node
    assert node.condition is not None
    assert node.condition.function is not None
    ctx.plan_node = node.condition
    outcome = yield ctx
    ctx.plan_node = node
    if isinstance(outcome, Failed):
        outcome.error.add_note(f"in the condition of task {node.name!r}")
        return outcome
    if isinstance(outcome, SUSPENDED):
        return outcome
    if ctx.task_report is not None and ctx.task_report.has_more_than_answers:
        problem = (
            "a condition can't add messages, decisions or context; a task or the handler after layers can"
        )
        return Failed(UsageError(problem), again=False)
    if outcome:
        return None
    name = getattr(node.condition.function.call, "__name__", "function")
    return TaskSkipped(f"its condition {name!r} doesn't hold")


def open_section(loop: NodeLoop, start: SectionStart) -> None:
    """Open branches, on states that nothing else shares."""
    p = loop.progress
    writer = loop.context.saving.writer
    at = loop.context.clocks.now()
    data = start.data
    # The record is made before the branches are opened: it says at which position that happened.
    opened = open_record(p, start.encoded, at)
    if "items" in data or "states" in data:
        # These are values of the user's. The branches get what the journal has, so that a resume finds the same.
        if writer is None:
            data = detached_value(data)
        else:
            data = decode(start.encoded)
    p.open_section(data)
    if writer is not None:
        writer.add_record_at(loop.context.root, loop.scope.path, at, opened)


def run_branches(loop: NodeLoop) -> MayStop:
    """Run the open branches. None when all are done; else why they aren't."""
    loop.branch_stops = {}
    # Branches share the values of this state, so from now on its own nodes get copies of what they read, too.
    loop.changes.isolated = True
    section = loop.progress.section
    assert section is not None
    if section.flow is not None and loop.scope.flow is None:
        yield from report_advance(loop, start_flow(loop), saves=False)
    if section.layer is not None:
        yield from report_layer_start(loop, section.layer)
    if loop.nested:
        # One runner has all branches of the run, however deep: it alone decides what runs and what is saved.
        refusal = yield RunBranches(loop)
    else:
        refusal = yield from BranchRunner(loop.context).run(loop)
    if refusal is not None:
        return stop_for(refusal)
    if loop.context.stopping:
        return LoopStop(CANCELLED)
    stopped = [key for key, child in section.children.items() if not child.done]
    if stopped:
        stops = [loop.branch_stops[key] for key in stopped if key in loop.branch_stops]
        if section.layer is not None and any(stop.status == SLEEPING for stop in stops):
            # A task that sleeps holds up only what depends on it, and so does one that has failed.
            stops = [stop for stop in stops if stop.status != FAILED or stops_on_error(loop)]
        return combined_stop(stops)
    flow = loop.scope.flow
    if section.flow is not None and flow is not None and flow.failure:
        return LoopStop(FAILED, loop, flow.failure, None, FAILED_PHASE)
    if section.layer is not None:
        loop.reporter.notify(events.LAYER_COMPLETE, layer=section.layer)
        loop.progress.fold_layer()
    return None
