"""What comes after a node: the next one, branches that begin beside each other, or nothing that can be told.

Functions of the user's are called here: predicates, choices, and those that say what a map goes over and what a
graph inside of a node starts with. They only look at the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from limpet.engine.loop.commands import Failed
from limpet.errors import UsageError
from limpet.graphs.parallel import Section, SubPlan
from limpet.graphs.plan import END, PLANNER, Choice, Edge, Plan, PlanNode
from limpet.journal.encoding.codec import encode
from limpet.journal.encoding.copies import detached_value
from limpet.journal.open_section import Key
from limpet.journal.progress import Progress
from limpet.journal.waits import AFTER
from limpet.observe import events

if TYPE_CHECKING:
    from limpet.engine.loop.node_loop import NodeLoop


class SectionStart(NamedTuple):
    """Branches that are to begin: the node that comes after them, and what the journal is told."""

    target: str
    data: dict[str, Any]
    encoded: bytes


def following(walk: NodeLoop, node: PlanNode) -> str | SectionStart | Failed:
    """What comes after a node that completed, or why that can't be told."""
    try:
        if node.tests is not None and walk.context.emit is None:
            state = walk.state
            for holds, target in node.tests:
                if holds(state):
                    return target
        else:
            for way in node.ways:
                if isinstance(way, Section):
                    return _opening(walk, way) if not way.layered else _next_layer(walk)
                taken = _tried(walk, way)
                if taken is not None:
                    if taken != END:
                        walk.tell(events.EDGE_TRANSITION, **{"from": node.name, "to": taken})
                    return taken
    except Exception as error:
        return Failed(error)
    if node.exit:
        return END
    return Failed(LookupError(f"no edge from {node.name!r} holds in this state, and it is no exit point"))


def opening_inside(walk: NodeLoop, node: str, sub: SubPlan) -> SectionStart:
    """The graph that a node runs, as it is to begin in this state. Raises whatever the user's functions do."""
    work, outer = walk.plan.nodes[node].work, walk.scope.outer
    entered = sub.enter(walk.state if work is None or outer is None else work.inputs(outer.state))
    data = {"source": node, "inside": True, "entry": sub.plan.entry, "states": [[node, entered]]}
    return _checked(walk, node, {**data, "kept": sub.kept(entered, walk.state, walk.plan.schema)})


def plan_of_branches(plan: Plan, progress: Progress) -> tuple[Plan, str]:
    """The plan that the branches which are open here follow, and the node that ends them. Raises `LookupError`."""
    section = progress.section
    assert section is not None
    if plan.layers is not None and section.layer is not None:
        nodes = plan.layers.nodes_in(progress)
        return (plan if nodes is plan.layers.nodes else plan._replace(nodes=nodes)), END
    source = plan.nodes[section.source]
    if section.inside and source.sub is not None:
        return source.sub.plan, END
    opener = source.section
    if opener is None or section.inside:
        raise LookupError(f"nothing is opened by {section.source!r} any more")
    return (plan, opener.fan_in) if opener.sub is None else (opener.sub.plan, END)


def update_for_branch(
    plan: Plan, progress: Progress, path: Iterable[Key], update: Mapping[str, Any]
) -> tuple[Plan, Mapping[str, Any]]:
    """The plan that the branch at `path` follows, and what an update of the run's state is there."""
    for key in path:
        section = progress.section
        assert section is not None
        source, opener = plan.nodes[section.source], plan.nodes[section.source].section
        sub = source.sub if section.inside else opener.sub if opener is not None else None
        plan, _ = plan_of_branches(plan, progress)
        update = {} if section.layer is not None else update if sub is None else sub.updated(update)
        progress = section.children[key]
    return plan, update


def _tried(walk: NodeLoop, way: Edge | Choice) -> str | None:
    """Where a way leads now, or None if it isn't taken."""
    asked = way.asks
    if asked is None:
        result: Any = True
    elif asked.plain:
        result = asked.call(walk.state)
    else:
        config = detached_value(walk.context.root.config)
        offered = {"state": walk.state, "config": config, "node": way.source, "graph": walk.plan.graph}
        result = asked.call(**asked.arguments(offered.get))
    try:
        target = way.leads(result, walk.plan.nodes)
    except LookupError as problem:
        if walk.context.masker.idle:
            raise
        raise LookupError(walk.hide(str(problem.args[0]))) from None
    tried = {"from": way.source, "to": target or way.targets[0], "result": target is not None}
    walk.tell(events.EDGE_EVALUATE, **tried)
    return target


def _opening(walk: NodeLoop, section: Section) -> SectionStart:
    """The branches of a section, as they are to begin in this state. Raises whatever the user's functions do."""
    if walk.nested and section.fan_in == walk.until:
        where = f"which opens branches that end at {walk.until!r}, too"
        raise UsageError(f"branch {walk.scope.branch!r} came to {section.source!r}, {where}")
    data: dict[str, Any] = {"source": section.source}
    if section.each is None:
        return _checked(walk, section.fan_in, {**data, "branches": list(section.branches)})
    items = section.items(walk.state)
    data["each"] = section.each
    if (sub := section.sub) is not None:
        states = [[number, sub.enter(walk.state, {section.item: item})] for number, item in enumerate(items)]
        return _checked(walk, section.fan_in, {**data, "entry": sub.plan.entry, "states": states})
    data |= {"entry": section.each, "item": section.item}
    listed = isinstance(section.over, str) and type(walk.state[section.over]) in (list, tuple)
    return _checked(
        walk, section.fan_in, {**data, **({"over": section.over} if listed else {"items": items})}
    )


def _next_layer(walk: NodeLoop) -> SectionStart | str:
    """The tasks of a workflow that run next, or its end."""
    p, layers = walk.progress, walk.plan.layers
    assert layers is not None
    visit = p.visits.get(PLANNER, 0) + (p.phase != AFTER)  # after it, this visit counts already
    names = layers.next_layer(p.state, visit, walk.scope.kept)
    if not names:
        return END
    return _checked(walk, PLANNER, {"source": PLANNER, "layer": visit - 1, "tasks": list(names)})


def _checked(walk: NodeLoop, target: str, data: dict[str, Any]) -> SectionStart:
    return SectionStart(target, data, b"" if walk.context.writer is None else encode(data))
