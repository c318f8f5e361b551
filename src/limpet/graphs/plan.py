"""The plan: the frozen, validated form of a graph, which the engine runs.

A plan doesn't depend on how the graph was defined (Python, YAML), and nothing in it changes while runs use it. Its
fingerprint is a digest of the structure alone (names, edges, reducers), not of the functions: fixing a
function doesn't make a different graph, removing a node does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from limpet.graphs.edges import END, Edge, ErrorEdge, GotoEdge, Jump, OutEdge
from limpet.graphs.parallel import InnerGraph, Section
from limpet.graphs.parameters import Function
from limpet.graphs.retry import Retry
from limpet.graphs.schema import Schema

if TYPE_CHECKING:
    from limpet.graphs.limits import Limit
    from limpet.graphs.workflow.layers import Layers
    from limpet.graphs.workflow.tasks import WorkflowTask

PLANNER = "after_layer"
"""The node that plans the layers of a workflow. Each of its steps is a checkpoint of the workflow."""


class Freezing:
    """The threads that make a plan of a graph now, each in a `with` block.

    If one of them comes to the same graph again meanwhile, the graph contains itself.
    """

    def __init__(self) -> None:
        self._threads: set[int] = set()

    @property
    def is_under_way(self) -> bool:
        """Whether this thread makes one."""
        return get_ident() in self._threads

    def __enter__(self) -> None:
        self._threads.add(get_ident())

    def __exit__(self, *_: object) -> None:
        self._threads.discard(get_ident())


class PlanNode(NamedTuple):
    """A node, ready to run: its function, its policy, and its edges in the order in which they are tried.

    The next four are computed when the plan is made, so that the loop doesn't have to at every step. Each is None
    where it doesn't apply. `always_next` is the node that follows in any case. `predicates` are the edges, if all of
    them have predicates of the state alone: pairs of predicate and target. `direct` is the function, if it takes the
    state alone. `delays` are the seconds that edges to certain nodes take.

    `inner` is the graph that the node runs, if any; `workflow_task` is the task of a workflow that it is, if any, and
    `condition` a node that is called before it: the task is skipped if that returns something false. `jumps` are the
    targets of its `Goto` and its error edges. `limits` are the names of the limits that it needs slots of, sorted;
    `is_guarded` says that it has limits or a condition.
    """

    name: str
    function: Function | None
    retry: Retry | None
    timeout: float | None
    edges: tuple[OutEdge, ...]
    exit: bool
    always_next: str | None
    predicates: tuple[tuple[Callable[[Any], Any], str], ...] | None
    direct: Callable[[Any], Any] | None
    inner: InnerGraph | None = None
    workflow_task: WorkflowTask | None = None
    delays: Mapping[str, float] | None = None
    condition: PlanNode | None = None
    is_condition: bool = False
    jumps: tuple[Jump, ...] = ()
    limits: tuple[str, ...] = ()
    is_guarded: bool = False

    @property
    def goto(self) -> tuple[str, ...]:
        """The targets that it may go to by returning a `Goto`."""
        return next((jump.targets for jump in self.jumps if isinstance(jump, GotoEdge)), ())

    def error_edge(self, error: BaseException) -> ErrorEdge | None:
        """The error edge that catches this error, if one does."""
        for jump in self.jumps:
            if isinstance(jump, ErrorEdge) and jump.catches(error):
                return jump
        return None

    @property
    def section(self) -> Section | None:
        """The section that it may open, if any."""
        return next((edge for edge in self.edges if isinstance(edge, Section)), None)


class Plan(NamedTuple):
    """A graph that can run. `layers` are those of a workflow."""

    name: str
    nodes: Mapping[str, PlanNode]
    entry: str
    schema: Schema
    max_iterations: int | None
    """How many nodes a run may execute; None for any number."""
    interrupt_before: frozenset[str]
    interrupt_after: frozenset[str]
    fingerprint: str
    graph: Any = None
    layers: Layers | None = None
    secrets: frozenset[str] = frozenset()
    """The keys, of its state and of those of all graphs inside of it, whose values are never shown."""
    limits: tuple[Limit, ...] = ()
    """The limits that its nodes name, and those of all graphs inside of it."""

    @property
    def interrupts(self) -> bool:
        """Whether a run may stop at one of its nodes, or of a graph inside of one."""
        if self.interrupt_before or self.interrupt_after:
            return True
        return any(inner.plan.interrupts for inner in inner_graphs(self.nodes))

    @property
    def holds_secrets(self) -> bool:
        """Whether anything in it is marked as secret, the results of tasks included."""
        if self.secrets:
            return True
        if self.layers is not None and any(each.keeps_secret for each in self.layers.definitions.values()):
            return True
        return any(inner.plan.holds_secrets for inner in inner_graphs(self.nodes))


def inner_graphs(nodes: Mapping[str, PlanNode]) -> list[InnerGraph]:
    """The graphs that nodes and sections run."""
    found = [node.inner for node in nodes.values() if node.inner is not None]
    for node in nodes.values():
        if node.edges:
            section = node.section
            if section is not None and section.inner is not None:
                found.append(section.inner)
    return found


def all_functions(plan: Plan) -> Iterator[Any]:
    """The functions of all nodes, those of graphs inside of it included."""
    if plan.layers is None:
        yield from (node.function.call for node in plan.nodes.values() if node.function is not None)
    else:
        # Templates, too: a run may add tasks that run them.
        yield from (each.signature.call for each in plan.layers.definitions.values() if each.signature)
        if plan.layers.handler is not None:
            yield plan.layers.handler.call
    for inner in _all_inner_graphs(plan):
        yield from all_functions(inner.plan)


def functions_in_branches(plan: Plan) -> Iterator[Any]:
    """The functions that are called in branches: of nodes there, of tasks, and of graphs inside of it."""
    if plan.layers is not None:
        yield from all_functions(plan)
        return
    unexplored = [
        (entry, node.section.fan_in)
        for node in plan.nodes.values()
        if node.section is not None
        for entry in node.section.entries
    ]
    explored = set(unexplored)
    names: dict[str, None] = {}
    while unexplored:
        name, fan_in = unexplored.pop()
        names[name] = None
        node = plan.nodes[name]
        for edge in (*node.edges, *node.jumps):
            new = {(target, fan_in) for target in edge.targets if target not in (fan_in, END)} - explored
            explored |= new
            unexplored += new
    yield from (function.call for name in names if (function := plan.nodes[name].function) is not None)
    for inner in _all_inner_graphs(plan):
        yield from all_functions(inner.plan)


def _all_inner_graphs(plan: Plan) -> Iterator[InnerGraph]:
    if plan.layers is None:
        yield from inner_graphs(plan.nodes)
    else:
        yield from (each.inner for each in plan.layers.definitions.values() if each.inner is not None)


def all_secret_keys(own: Iterable[str], nodes: Mapping[str, PlanNode]) -> frozenset[str]:
    """The secret keys of a graph: its own, those of graphs inside of it, and the keys that these pass as."""
    inner = inner_graphs(nodes)
    found = {*own, *(key for each in inner for key in each.plan.secrets)}
    pairs: set[tuple[str, str]] = set()
    for each in inner:
        for passing in (each.inputs, each.outputs):
            if isinstance(passing, Mapping):
                pairs.update(passing.items())
    for node in nodes.values():
        section = node.section if node.edges else None
        if section is not None and isinstance(section.over, str):
            pairs.add((section.item, section.over))
    # A value may pass through several graphs under several names, so repeat until no key is added.
    while more := {key for pair in pairs if found & {*pair} for key in pair} - found:
        found |= more
    return frozenset(found)


def plan_node(
    name: str,
    function: Function | None,
    retry: Retry | None,
    timeout: float | None,
    edges: Iterable[OutEdge],
    exits: bool,
    inner: InnerGraph | None = None,
    nodes: Iterable[str] = (),
    workflow_task: WorkflowTask | None = None,
    condition: PlanNode | None = None,
    limits: Iterable[str] = (),
) -> PlanNode:
    """Freeze one node, and compute what the loop needs at every step."""
    ordered = tuple(edges)
    sorted_limits = tuple(sorted(set(limits)))
    direct = None
    if function is not None and function.plain:
        direct = function.call
    return PlanNode(
        name=name,
        function=function,
        retry=retry,
        timeout=timeout,
        edges=ordered,
        exit=exits,
        always_next=_always_next(ordered, exits),
        predicates=_plain_predicates(ordered),
        direct=direct,
        inner=inner,
        workflow_task=workflow_task,
        condition=condition,
        delays=_delays(ordered, nodes),
        limits=sorted_limits,
        is_guarded=condition is not None or bool(sorted_limits),
    )


def _always_next(edges: tuple[OutEdge, ...], exits: bool) -> str | None:
    if not edges:
        return END if exits else None
    if isinstance(edges[0], Edge) and edges[0].unconditional:
        return edges[0].target
    return None


def _plain_predicates(edges: tuple[OutEdge, ...]) -> tuple[tuple[Callable[[Any], Any], str], ...] | None:
    found = []
    for edge in edges:
        if not isinstance(edge, Edge) or edge.predicate is None or not edge.predicate.plain:
            return None
        found.append((edge.predicate.call, edge.target))
    return tuple(found)


def _delays(edges: tuple[OutEdge, ...], nodes: Iterable[str]) -> dict[str, float] | None:
    found: dict[str, float] = {}
    for edge in edges:
        if not isinstance(edge, Section) and edge.delay:
            found |= dict.fromkeys(edge.targets or nodes, edge.delay)
    return found or None


def fingerprint(kind: str, entry: str, nodes: Mapping[str, PlanNode], schema: Schema) -> str:
    """A digest of the structure: equal for equal graphs, however and wherever they were defined."""
    names = sorted(nodes)
    # The keys and the order are part of stored fingerprints: "ways" stays, although the code says edges.
    shape = {
        "kind": kind,
        "entry": entry,
        "nodes": [_described(nodes[name]) for name in names],
        "ways": [[edge.describe() for edge in nodes[name].edges] for name in names],
        "exits": sorted(name for name, node in nodes.items() if node.exit),
        "reducers": sorted((key, reducer_name(reducer)) for key, reducer in schema.reducers.items()),
    }
    jumps = [jump.describe() for name in names for jump in nodes[name].jumps]
    if jumps:
        shape["jumps"] = jumps
    return digest(shape)


def _described(node: PlanNode) -> list[str]:
    if node.inner is None:
        return [node.name]
    return [node.name, node.inner.plan.fingerprint]


def digest(shape: Any) -> str:
    """A short text that is the same for the same structure."""
    text = repr(shape).encode("utf-8", "backslashreplace")
    return f"{crc32(text):08x}{crc32(text[::-1]):08x}"


def reducer_name(reducer: Callable[..., Any]) -> str:
    """The name of a reducer, for fingerprints and pictures."""
    return getattr(reducer, "__name__", type(reducer).__name__)


def budget_reason(setting: str, limit: int, kind: str) -> str:
    """Why a run stops that has used up its budget of steps or layers."""
    return f"{setting} ({limit}) exceeded; a resume needs a {kind} that allows more"


def budget_setting(reason: str) -> str | None:
    """The setting whose budget a run has used up, if that is the reason."""
    found = _BUDGET.search(reason)
    return None if found is None else found[1]


_BUDGET = re.compile(r"\b(max_\w+) \(\d+\) exceeded; a resume needs a \w+ that allows more")
