"""Whether the graph as it is now can resume a run, and what has to change in the run's progress for that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpet.engine.loop.next_node import plan_of_branches
from limpet.engine.loop.stop_errors import advise_retry, deadline_passed, missed_deadline
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.sessions.compiled_graph import check_own
from limpet.engine.sessions.session import log
from limpet.engine.sessions.start import deadline_of
from limpet.errors import (
    AlreadyCompleted,
    Conflict,
    DeadlinePassed,
    DefinitionError,
    RunCancelled,
    UsageError,
)
from limpet.graphs.edges import END
from limpet.graphs.plan import Plan
from limpet.graphs.workflow.stored_shape import check_workflows, is_workflow
from limpet.journal.progress import Progress
from limpet.journal.reader import Point
from limpet.journal.store import CANCELLED, COMPLETED, ENDED, RunHead

if TYPE_CHECKING:
    from limpet.graphs.workflow.layers import Layers


def check_fits(plan: Plan, progress: Progress, checkpoint: str | None = None, quiet: bool = False) -> bool:
    """Raise unless this plan can resume from this progress: it is the same graph, and has the nodes that it needs.

    `checkpoint` is the file or reference that it was loaded from, if it isn't that of a stored run. `quiet` says that
    only the check is wanted, so that nothing is logged.
    Returns whether the progress was changed for that: it is if the tasks of a workflow have changed. Raises
    `DamagedRecord`, `UsageError`, `DefinitionError` or `WorkflowChanged`.
    """
    check_same_graph(plan, progress)
    check_stored_workflows(progress)
    if progress.fingerprint == plan.fingerprint:
        _refuse_missing(plan, progress, checkpoint)
        return False
    # First fit the workflows, which may drop tasks that no longer exist. Only then look for what is missing.
    refitted = _refit_workflows(plan, progress, quiet)
    _refuse_missing(plan, progress, checkpoint)
    if plan.layers is not None:
        if refitted:
            progress.fingerprint = plan.fingerprint
    elif not quiet:
        log().warning("graph %s has changed since run %s was saved with it", plan.name, progress.run_id)
    return refitted


def check_same_graph(plan: Plan, progress: Progress) -> None:
    """Raise `WrongGraph` for a run of another graph, and `UsageError` for one of another kind of graph."""
    check_own(plan, progress.run_id, progress.graph)
    _adopt(plan, progress)
    if (plan.layers is not None) != ("dag" in progress.state and is_workflow(progress)):
        raise UsageError(f"run {progress.run_id!r} is of another kind of graph than {plan.name!r}")


def check_stored_workflows(progress: Progress) -> None:
    """Raise `DamagedRecord` if a run, or a graph inside of it, is a workflow and its state can't be that of one."""
    if "dag" in progress.state or progress.section is not None:
        check_workflows(progress)


def _adopt(plan: Plan, progress: Progress) -> None:
    """Let a run that was saved by hand, and belongs to no graph, be one of this graph."""
    if progress.graph:
        return
    progress.graph = plan.name
    progress.fingerprint = plan.fingerprint
    if not progress.node:
        progress.node = plan.entry


def check_point(progress: Progress, point: Point | None) -> None:
    """Raise `UsageError` for a point that the run hasn't reached."""
    if point is None or point.step < progress.step:
        return
    if point.step > progress.step:
        named = f"{point.step}"
    elif point.closed > progress.closed_questions():
        named = f"{point.step}.{point.closed}"
    else:
        return
    newest = progress.checkpoint_id.rpartition("@")[2]
    raise UsageError(f"run {progress.run_id!r} has no checkpoint {named}; its newest is {newest}")


def refuse_old_step(progress: Progress, point: Point | None) -> None:
    """Refuse to resume from a checkpoint that isn't the newest: later steps are done, and are never undone here."""
    if point is None or point.step == progress.step:
        return
    step = point.step
    run_id = progress.run_id
    outdated = Conflict(run_id, f"step {step} is no longer its newest, which is {progress.step}")
    raise outdated.with_advice(f"fork({run_id!r}, step={step}) starts a new run from there", "fork")


def workflows_in(
    plan: Plan, progress: Progress, place: str = ""
) -> Iterator[tuple[Layers, Progress, str, str]]:
    """The unfinished workflows of a run, itself included, with the progress, the name and the place of each."""
    if progress.done:
        return
    if plan.layers is not None:
        yield plan.layers, progress, plan.name, place
    section = progress.section
    if section is None:
        return
    try:
        inner, _ = plan_of_branches(plan, progress)
    except (LookupError, DefinitionError):
        return
    if section.layer is not None:
        # The branches of a layer are tasks. The plan inside of a task isn't the workflow that the task belongs to.
        inner = inner._replace(layers=None)
    for key, child in section.children.items():
        label = "" if section.inside and place else section.label(key)
        yield from workflows_in(inner, child, "/".join(filter(None, (place, label))))


def _refit_workflows(plan: Plan, progress: Progress, quiet: bool) -> bool:
    """Refit changed workflows, the run's own and those inside of it, to the tasks in the code.

    Returns whether any has changed. Raises `WorkflowChanged` for one that may not be resumed like that.
    """
    from limpet.graphs.workflow.redefinition import adopt_current_tasks

    # A list, and not `any(…)` over the generator: all of them have to be refitted, not only the first that changed.
    changed = [
        adopt_current_tasks(layers, inner, name, place, quiet)
        for layers, inner, name, place in workflows_in(plan, progress)
    ]
    return any(changed)


def _refuse_missing(plan: Plan, progress: Progress, checkpoint: str | None) -> None:
    missing = _missing(plan, progress, "")
    if not missing:
        return
    if checkpoint is not None:
        changed = DefinitionError(f"checkpoint {checkpoint!r} is {missing}", plan.name)
        raise changed.with_advice("put it back, or resume from another checkpoint")
    changed = DefinitionError(f"run {progress.run_id!r} is {missing}", plan.name)
    raise changed.with_advice("put it back, or rollback() to an earlier step", "rollback")


def _missing(plan: Plan, progress: Progress, path: str) -> str:
    """The node or section that a run or branch is at and that the graph no longer has, as text; empty if none."""
    if progress.done:
        return ""
    if progress.node not in plan.nodes:
        return f"at node {path + progress.node!r}, which is no longer in the graph"
    if progress.goto is not None and progress.goto not in (*plan.nodes, END):
        return f"about to go to node {path + progress.goto!r}, which is no longer in the graph"
    section = progress.section
    if section is None:
        return ""
    try:
        inner, _ = plan_of_branches(plan, progress)
    except LookupError:
        return f"in branches that node {path + section.source!r} no longer opens"
    for key, child in section.children.items():
        missing = _missing(inner, child, f"{path}{section.label(key)}/")
        if missing:
            return missing
    return ""


def refuse_cancelled(run_id: str, status: str) -> None:
    """Raise `RunCancelled` for a run that is cancelled: it asks nothing, and an answer must not run it again."""
    if status != CANCELLED:
        return
    cancelled = RunCancelled(f"run {run_id!r} was cancelled, so it takes no answer", run_id)
    raise cancelled.with_advice("retry() it, and answer when it asks again", "retry")


def refuse_completed(head: RunHead) -> None:
    """Raise `AlreadyCompleted` for a run that is complete."""
    if head.status != COMPLETED:
        return
    if head.snapshot:
        complete = AlreadyCompleted(f"run {head.run_id!r} is complete", head.run_id)
        raise complete.with_advice("fork() it to run it again from one of its steps", "fork")
    complete = AlreadyCompleted(f"run {head.run_id!r} is complete, and its journal was deleted", head.run_id)
    raise complete.with_advice("compile(keep_result=True), the default, keeps results")


def is_overdue(progress: Progress, now: float) -> bool:
    """Whether the run's deadline has passed, by the store's clock."""
    return progress.deadline is not None and progress.deadline <= now


def refuse_overdue(progress: Progress, now: float) -> None:
    """Raise `DeadlinePassed` for a run that has ended, and that would fail again at once without a new deadline."""
    if progress.status in ENDED and is_overdue(progress, now):
        reason = missed_deadline(progress)
        # Where it was then; if it had ended before, the deadline says nothing about where that was.
        error = progress.error or {}
        node = error.get("node", "") if error.get("type") == DeadlinePassed.__name__ else ""
        raise advise_retry(deadline_passed(progress.run_id, reason, node), reason)


def with_deadline(given: ResumeInput, progress: Progress, now: float) -> ResumeInput:
    """What is given, with the new deadline as a time by the store's clock. Raises `DeadlinePassed`, `UsageError`."""
    if given.deadline is None:
        refuse_overdue(progress, now)
        return given
    deadline = None
    # The first of several equal starts has said when the run is to end.
    if not given.is_start or is_overdue(progress, now):
        deadline = deadline_of(given.deadline, now)
    return given._replace(deadline=deadline)
