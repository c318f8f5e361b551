"""What comes after a node: the next node, branches that run in parallel, or a failure to choose.

This calls functions that the user wrote: predicates, choices, and those that give the items of a map and the start of
a graph inside of a node. They only read the state, so each gets one that it can't change: what it reads are copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from limpet.engine.loop.driver_commands import Failed
from limpet.errors import UsageError
from limpet.graphs.edges import END, Choice, Edge
from limpet.graphs.parallel import InnerGraph, Section
from limpet.graphs.plan import PLANNER, Plan, PlanNode
from limpet.journal.encoding.codec import IMMUTABLE_TYPES, detached_value, encode
from limpet.journal.open_parallel_section import Key
from limpet.journal.progress import Progress
from limpet.journal.waits import AFTER
from limpet.observe import events

if TYPE_CHECKING:
    from limpet.engine.loop.node_loop import NodeLoop


SMALL_STATE: Final = 16
"""Up to this many keys, looking at the types of all values costs less than a view of the state."""


class SectionStart(NamedTuple):
    """Branches that are to begin: the node that comes after them, and what the journal stores about their start."""

    target: str
    data: dict[str, Any]
    encoded: bytes


def choose_next(loop: NodeLoop, node: PlanNode) -> str | SectionStart | Failed:
    """What comes after a node that completed, or why that can't be chosen."""
    try:
        # The fast path: all edges have predicates of the state alone, and no observer wants to see them evaluated.
        if node.predicates is not None and loop.context.reporting.emit is None:
            state = loop.state
            if len(state) <= SMALL_STATE and IMMUTABLE_TYPES.issuperset(map(type, state.values())):
                # The live state refuses assignments, and nothing in it can be altered in place.
                for holds, target in node.predicates:
                    if holds(state):
                        return target
            else:
                for holds, target in node.predicates:
                    if holds(loop.changes.view()):
                        return target
        else:
            for edge in node.edges:
                if isinstance(edge, Section):
                    if edge.layered:
                        return _next_layer(loop)
                    return _section_start(loop, edge)
                taken = _follow(loop, edge)
                if taken is not None:
                    if taken != END:
                        loop.reporter.notify(events.EDGE_TRANSITION, **{"from": node.name, "to": taken})
                    return taken
    except Exception as error:
        return Failed(error)
    if node.exit:
        return END
    if node.goto and not node.edges:
        return Failed(LookupError(f"node {node.name!r} returned no Goto, and no edge leads on from it"))
    return Failed(
        LookupError(
            f"no edge condition of node {node.name!r} is true in this state, and it isn't a finish point"
        )
    )


def report_jump(loop: NodeLoop, source: str, target: str) -> None:
    """Notify observers that the run goes to a node that the node before named, or that handles its error."""
    if target != END:
        loop.reporter.notify(events.EDGE_TRANSITION, **{"from": source, "to": target})


def check_goto(node: PlanNode, target: str) -> None:
    """Raise `UsageError` unless a node may go to this target."""
    if node.workflow_task is not None:
        problem = UsageError(f"task {node.name!r} returned a Goto, which is for the nodes of a StateGraph")
        raise problem.with_advice("ctx.skip() and conditions say which tasks run")
    if target not in node.goto:
        declared = ", ".join(map(repr, node.goto)) or "none"
        problem = UsageError(
            f"node {node.name!r} returned Goto({target!r}), which isn't one of its targets: {declared}"
        )
        raise problem.with_advice(f"declare it with add_node({node.name!r}, …, goto=[…, {target!r}])")


def subgraph_start(loop: NodeLoop, node: str, sub: InnerGraph) -> SectionStart:
    """How the graph that a node runs is to begin in this state. Raises what the user's functions raise."""
    work = loop.plan.nodes[node].workflow_task
    outer = loop.scope.outer
    if work is None or outer is None:
        entered = sub.initial_state(loop.state)
    else:
        entered = sub.initial_state(work.graph_inputs(work.visible_state(loop.scope)))
    data = {
        "source": node,
        "inside": True,
        "entry": sub.plan.entry,
        "states": [[node, entered]],
        "kept": sub.inherited_keys(entered, loop.state, loop.plan.schema),
    }
    return _encoded_start(loop, node, data)


def plan_of_branches(plan: Plan, progress: Progress) -> tuple[Plan, str]:
    """The plan that the open branches follow, and the node that ends them. Raises `LookupError`."""
    section = progress.section
    assert section is not None
    source = plan.nodes[section.source]
    if plan.layers is not None and section.layer is not None:
        nodes = plan.layers.open_nodes(progress)
        # Tasks may have been added to this run, or redefined: then it has nodes that the plan doesn't have.
        if nodes is not plan.layers.nodes:
            plan = plan._replace(nodes=nodes)
        return plan, END
    if section.inside and source.inner is not None:
        return source.inner.plan, END
    opener = source.section
    if opener is None or section.inside:
        raise LookupError(f"node {section.source!r} doesn't open branches any more")
    if opener.inner is None:
        return plan, opener.fan_in
    return opener.inner.plan, END


def update_for_branch(
    plan: Plan, progress: Progress, path: Iterable[Key], update: Mapping[str, Any]
) -> tuple[Plan, Mapping[str, Any]]:
    """The plan that the branch at `path` follows, and what an update of the run's state is there."""
    for key in path:
        section = progress.section
        assert section is not None
        source = plan.nodes[section.source]
        sub = None
        if section.inside:
            sub = source.inner
        elif source.section is not None:
            sub = source.section.inner
        plan, _ = plan_of_branches(plan, progress)
        if section.layer is not None:
            # A task has no state of its own.
            update = {}
        elif sub is not None:
            update = sub.inner_update(update)
        progress = section.children[key]
    return plan, update


def _follow(loop: NodeLoop, edge: Edge | Choice) -> str | None:
    """The node that an edge or a choice leads to in this state, or None if it isn't taken."""
    asked = edge.decided_by
    if asked is None:
        result: Any = True
    elif asked.plain:
        result = asked.call(loop.changes.view())
    else:
        offered = {
            "state": loop.changes.view(),
            "config": detached_value(loop.context.root.config),
            "node": edge.source,
            "graph": loop.plan.graph,
        }
        result = asked.call(**asked.arguments(offered.get))
    try:
        target = edge.target_for(result, loop.plan.nodes)
    except LookupError as problem:
        if loop.context.reporting.masker.idle:
            raise
        # The message quotes what the function returned, which may be a secret.
        raise LookupError(loop.reporter.hide(str(problem.args[0]))) from None
    evaluated = {"from": edge.source, "to": target or edge.targets[0], "result": target is not None}
    loop.reporter.notify(events.EDGE_EVALUATE, **evaluated)
    return target


def _section_start(loop: NodeLoop, section: Section) -> SectionStart:
    """How the branches of a section are to begin in this state. Raises what the user's functions raise."""
    if loop.nested and section.fan_in == loop.until:
        raise UsageError(
            f"branch {loop.scope.branch!r} reached node {section.source!r}, which opens branches that end at "
            f"{loop.until!r}, as this branch does; give them a fan-in of their own"
        )
    data: dict[str, Any] = {"source": section.source}
    if section.each is None:
        data["branches"] = list(section.branches)
        return _encoded_start(loop, section.fan_in, data)
    items = section.items(loop.state)
    data["each"] = section.each
    sub = section.inner
    if sub is not None:
        data["entry"] = sub.plan.entry
        data["states"] = [
            [number, sub.initial_state(loop.state, {section.item: item})] for number, item in enumerate(items)
        ]
        return _encoded_start(loop, section.fan_in, data)
    data["entry"] = section.each
    data["item"] = section.item
    if isinstance(section.over, str) and type(loop.state[section.over]) in (list, tuple):
        # The journal has the list already, as a value of the state, so its key is enough.
        data["over"] = section.over
    else:
        data["items"] = items
    return _encoded_start(loop, section.fan_in, data)


def _next_layer(loop: NodeLoop) -> SectionStart | str:
    """The tasks of a workflow that run next, or its end."""
    p = loop.progress
    layers = loop.plan.layers
    assert layers is not None
    visit = p.visits.get(PLANNER, 0)
    if p.phase != AFTER:
        # The planner's visit counts once its step is complete, which it isn't yet.
        visit += 1
    if layers.is_flow(p):
        if p.section is not None or len(p.state["tasks"]) == len(p.state["dag"]):
            return END
        # The tasks join the section when they can begin: see `flow_steps.py`.
        opening = {"source": PLANNER, "layer": visit - 1, "tasks": [], "flow": {}}
        return _encoded_start(loop, PLANNER, opening)
    names = layers.next_layer(p.state, visit, loop.scope.layers_ahead)
    if not names:
        return END
    return _encoded_start(loop, PLANNER, {"source": PLANNER, "layer": visit - 1, "tasks": list(names)})


def _encoded_start(loop: NodeLoop, target: str, data: dict[str, Any]) -> SectionStart:
    """The start with its bytes for the journal. What can't be stored is refused here, before anything opens."""
    encoded = b"" if loop.context.saving.writer is None else encode(data)
    return SectionStart(target, data, encoded)
