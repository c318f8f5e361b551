"""Whether a run can be gone on with by the graph as it is now, and what has to be changed for that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from limpet.engine.loop.next_node import plan_of_branches
from limpet.engine.sessions.session import log
from limpet.errors import (
    DefinitionError,
    UsageError,
)
from limpet.graphs.plan import PLANNER, Plan
from limpet.journal.progress import Progress

if TYPE_CHECKING:
    from limpet.graphs.workflow.layers import Layers


def check_fits(plan: Plan, progress: Progress) -> bool:
    """Raise unless this plan can go on from this progress: the same graph, and the nodes are still there.

    Says whether the progress had to be changed for that, as that of a workflow whose tasks have changed is.
    """
    if progress.graph != plan.name:
        raise UsageError(f"run {progress.run_id!r} belongs to graph {progress.graph!r}, not to {plan.name!r}")
    if (plan.layers is not None) != (
        "dag" in progress.state and PLANNER in (progress.node, *progress.visits)
    ):
        raise UsageError(f"run {progress.run_id!r} is of another kind of graph than {plan.name!r}")
    changed = progress.fingerprint != plan.fingerprint
    refitted = changed and _refitted(plan, progress)
    missing = _missing(plan, progress, "")
    if missing:
        way_out = "put it back, or rollback() to an earlier step"
        raise DefinitionError(f"run {progress.run_id!r} stands {missing}; {way_out}", plan.name)
    if changed:
        if plan.layers is None:
            log().warning("graph %s has changed since run %s was saved with it", plan.name, progress.run_id)
        elif refitted:
            progress.fingerprint = plan.fingerprint
    return refitted


def _refitted(plan: Plan, progress: Progress) -> bool:
    """Have workflows that have changed, the run's or inside of it, go on as they are now, where that may be."""
    from limpet.graphs.workflow.redefinition import refit

    changed = [
        refit(layers, inner, name, place) for layers, inner, name, place in workflows_in(plan, progress)
    ]
    return any(changed)


def workflows_in(
    plan: Plan, progress: Progress, place: str = ""
) -> Iterator[tuple[Layers, Progress, str, str]]:
    """The workflows that are under way in a run, with how far each has come, its name, and the way to it."""
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
        inner = inner._replace(layers=None)  # a task follows no workflow, but may run one
    for key, child in section.children.items():
        label = "" if section.inside and place else section.label(key)
        yield from workflows_in(inner, child, "/".join(filter(None, (place, label))))


def _missing(plan: Plan, progress: Progress, way: str) -> str:
    """Where a run, or one of its branches, stands that isn't there any more, in words; empty if all is there."""
    if progress.done:
        return ""
    if progress.node not in plan.nodes:
        return f"at node {way + progress.node!r}, which is no longer in the graph"
    section = progress.section
    if section is None:
        return ""
    try:
        inner, _ = plan_of_branches(plan, progress)
    except LookupError:
        return f"in branches that node {way + section.source!r} doesn't open any more"
    for key, child in section.children.items():
        missing = _missing(inner, child, f"{way}{section.label(key)}/")
        if missing:
            return missing
    return ""
