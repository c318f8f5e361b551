"""Validation of a graph before it is frozen. All mistakes are reported at once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Final, Self

from limpet.errors import did_you_mean
from limpet.graphs.edges import END, START, Choice, ErrorEdge, GotoEdge, Jump, OutEdge
from limpet.graphs.node_options import InnerGraphSpec, NodeOptions
from limpet.graphs.parallel import Section


class Draft:
    """All that was added to a graph, in order. `maps` has the graphs that maps run, by the index of their edge."""

    __slots__ = ("edges", "entries", "exits", "jumps", "maps", "nodes")

    def __init__(self) -> None:
        self.nodes: dict[str, NodeOptions] = {}
        self.edges: list[OutEdge] = []
        self.jumps: list[Jump] = []
        self.maps: dict[int, InnerGraphSpec] = {}
        self.entries: list[str] = []
        self.exits: dict[str, None] = {}

    def edges_from(self, name: str) -> list[OutEdge]:
        """The edges out of a node, in the order in which they are tried."""
        return [edge for edge in self.edges if edge.source == name]

    def jumps_from(self, name: str) -> list[Jump]:
        """The targets of a node's `Goto`, and its error edges in the order in which they are tried."""
        return [jump for jump in self.jumps if jump.source == name]

    def has_goto(self, name: str) -> bool:
        """Whether a node may say itself where to go."""
        return any(isinstance(jump, GotoEdge) for jump in self.jumps_from(name))

    @property
    def sections(self) -> list[Section]:
        return [edge for edge in self.edges if isinstance(edge, Section)]

    @property
    def open_ended(self) -> bool:
        """Whether a choice may lead to any node."""
        return any(isinstance(edge, Choice) and edge.outcomes is None for edge in self.edges)

    def reached(self, starts: list[str], within: str | None = None) -> set[str]:
        """The nodes that can be reached from `starts`. `within` is the fan-in of a branch, which ends the search.

        Nodes inside of the branches of other sections don't count as reached: their fan-in follows directly.
        """
        reached = set(starts)
        unexplored = list(starts)
        while unexplored:
            name = unexplored.pop()
            for edge in (*self.edges_from(name), *self.jumps_from(name)):
                targets = (edge.fan_in,) if isinstance(edge, Section) else edge.targets
                new = [target for target in targets if target not in reached and target != within]
                reached.update(new)
                unexplored += new
        return reached


class Mistake(str):
    """The description of a mistake, which also has its kind and place, for a loader that knows the lines of a file.

    `node` is the node that it is about, `name` the wrong name there.
    """

    kind: str
    node: str
    name: str

    def __new__(cls, text: str, kind: str, node: str = "", name: str = "") -> Self:
        made = super().__new__(cls, text)
        made.kind = kind
        made.node = node
        made.name = name
        return made


NO_NODE: Final = "no node"
NO_ENTRY: Final = "no entry"
NO_EXIT: Final = "no exit"
DEAD_END: Final = "dead end"
OTHER: Final = "other"


def mistakes_in(draft: Draft) -> list[str]:
    """All mistakes in a graph: each is a `Mistake`."""
    checks = (_wrong_names, _wrong_ends, _wrong_sections, _wrong_delays, _wrong_jumps, _unreachable)
    return [mistake for check in checks for mistake in check(draft)]


def unfilled_parameters(draft: Draft, resources: Mapping[str, Any]) -> Iterator[str]:
    """The parameters of functions that nothing fills, where these are the resources: each is a `Mistake`."""
    for name, node in draft.nodes.items():
        if node.function is not None and node.function.required:
            for text in node.function.missing(resources, f"node {name!r}"):
                yield Mistake(text, OTHER, name)
    for edge in draft.edges:
        function = edge.decided_by
        if function is None or not function.required:
            continue
        what = f"the choice after {edge.source!r}"
        if not isinstance(edge, Choice):
            what = f"the predicate of {edge.source!r} → {edge.targets[0]!r}"
        for text in function.missing(resources, what):
            yield Mistake(text, OTHER, edge.source)


def missing_node(name: Hashable, draft: Draft) -> str:
    """The message for a name that isn't a node's, with a similar name if there is one."""
    return f"there is no node {name!r}" + did_you_mean(name, draft.nodes)


def _wrong_names(draft: Draft) -> Iterator[str]:
    for name in draft.entries:
        if name not in draft.nodes:
            yield Mistake(f"the entry point: {missing_node(name, draft)}", NO_NODE, START, name)
    for name in draft.exits:
        if name not in draft.nodes:
            yield Mistake(f"a finish point: {missing_node(name, draft)}", NO_NODE, name, END)
    for edge in draft.edges:
        if edge.source not in draft.nodes:
            yield Mistake(f"an edge from nowhere: {missing_node(edge.source, draft)}", NO_NODE, edge.source)
        for target in edge.targets:
            if target not in draft.nodes and (target != END or isinstance(edge, Section)):
                yield Mistake(
                    f"an edge from {edge.source!r}: {missing_node(target, draft)}",
                    NO_NODE,
                    edge.source,
                    target,
                )


def _wrong_ends(draft: Draft) -> Iterator[str]:
    if not draft.entries:
        yield Mistake("no entry point: say which node runs first with set_entry_point(name)", NO_ENTRY)
    elif len(draft.entries) > 1:
        several = ", ".join(map(repr, draft.entries))
        yield Mistake(f"several entry points ({several}); a graph has one", OTHER, START, draft.entries[1])
    all_edges = (*draft.edges, *draft.jumps)
    if not draft.exits and not draft.open_ended and not any(END in edge.targets for edge in all_edges):
        yield Mistake("no finish point: say where the run may end with set_finish_point(name)", NO_EXIT)
    in_branches = _in_branches(draft) - draft.reached(draft.entries)
    for name in draft.nodes:
        edges = draft.edges_from(name)
        leads_nowhere = not edges and not draft.has_goto(name)
        if leads_nowhere and name not in draft.exits and name not in in_branches:
            what_to_do = f"add an edge from it, declare its goto=[…], or set_finish_point({name!r})"
            yield Mistake(f"node {name!r} leads nowhere: {what_to_do}", DEAD_END, name)
        if name in draft.exits and any(edge.unconditional for edge in edges):
            always = "but it has an edge that is always taken, so the run would never end there"
            yield Mistake(f"node {name!r} is a finish point, {always}", OTHER, name)


def _wrong_sections(draft: Draft) -> Iterator[str]:
    sources: dict[str, Section] = {}
    for section in draft.sections:
        what = f"the section after {section.source!r}"
        first = sources.setdefault(section.source, section)
        if first is not section:
            both = "one map, or parallel edges to one fan-in"
            several = f"node {section.source!r} opens several sections; it can open one: {both}"
            yield Mistake(several, OTHER, section.source)
        if section.fan_in in section.entries:
            both = f"{what}: {section.fan_in!r} can't be a branch and the fan-in"
            yield Mistake(both, OTHER, section.source, section.fan_in)
        fan_in = draft.nodes.get(section.fan_in)
        if fan_in is not None and fan_in.inner is not None:
            graph = f"{what}: {section.fan_in!r} runs a graph, which can't be a fan-in"
            yield Mistake(graph, OTHER, section.source, section.fan_in)
        for start in section.entries:
            inside = draft.reached([start], within=section.fan_in)
            for inner in draft.sections:
                if inner.source in inside and inner.fan_in == section.fan_in:
                    yield Mistake(
                        f"the section after {inner.source!r}, in a branch that ends at {section.fan_in!r}, "
                        "needs a fan-in of its own",
                        OTHER,
                        inner.source,
                        section.fan_in,
                    )


def _wrong_delays(draft: Draft) -> Iterator[str]:
    fan_ins = {section.fan_in for section in draft.sections}
    delays: dict[tuple[str, str], float] = {}
    for edge in draft.edges:
        if isinstance(edge, Section):
            continue
        for target in edge.targets:
            if edge.delay and target in fan_ins:
                text = f"the edge {edge.source!r} → {target!r} ends a branch, so it can't have a delay"
                yield Mistake(text, OTHER, edge.source)
            if delays.setdefault((edge.source, target), edge.delay) != edge.delay:
                yield Mistake(
                    f"two edges {edge.source!r} → {target!r} differ in their delay", OTHER, edge.source
                )


def _wrong_jumps(draft: Draft) -> Iterator[str]:
    fan_ins = {section.fan_in for section in draft.sections}
    for jump in draft.jumps:
        if isinstance(jump, GotoEdge):
            what = f"the goto of {jump.source!r}"
        else:
            what = f"the error edge of {jump.source!r}"
        if jump.source not in draft.nodes:
            yield Mistake(f"{what}: {missing_node(jump.source, draft)}", NO_NODE, jump.source)
        for target in jump.targets:
            if isinstance(jump, ErrorEdge) and target in (END, START, jump.source, *fan_ins):
                why = "it leads to another node, which handles the error and isn't a fan-in"
                yield Mistake(f"{what} can't lead to {target!r}: {why}", OTHER, jump.source, target)
            elif target != END and target not in draft.nodes:
                yield Mistake(f"{what}: {missing_node(target, draft)}", NO_NODE, jump.source, target)


def wrong_interrupts(draft: Draft, kind: str, names: list[str]) -> Iterator[str]:
    """The interrupts at nodes that don't exist. Those inside of an inner graph are validated by that graph."""
    graphs = {spec.name for spec in draft.nodes.values() if spec.inner is not None}
    graphs |= {spec.graph.name for spec in draft.maps.values()}
    for name in names:
        if not isinstance(name, str) or "/" not in name:
            if name not in draft.nodes:
                yield f"{kind}: {missing_node(name, draft)}"
        elif name.partition("/")[0] not in graphs:
            yield f"{kind}: {name!r} leads into {name.partition('/')[0]!r}, which doesn't run a graph"


def warn_of_unused_edges(draft: Draft, graph: str) -> None:
    """Warn of edges that can never be taken. Users may expect two edges from a node to run two nodes."""
    unused: list[tuple[OutEdge | ErrorEdge, str]] = []
    unused += ((edge, "one added before it always is") for edge in _unused_edges(draft))
    unused += ((edge, "those added before it catch its errors") for edge in _unused_error_edges(draft))
    for edge, why in unused:
        from logging import getLogger

        getLogger("limpet.graph").warning(
            "graph %s: the edge from %r to %s is never taken, as %s",
            graph,
            edge.source,
            " or ".join(map(repr, edge.targets)),
            why,
        )


def _unused_edges(draft: Draft) -> Iterator[OutEdge]:
    for name in draft.nodes:
        edges = draft.edges_from(name)
        for index, edge in enumerate(edges):
            if edge.unconditional:
                yield from edges[index + 1 :]
                break


def _unused_error_edges(draft: Draft) -> Iterator[ErrorEdge]:
    caught: dict[str, tuple[type[Exception], ...]] = {}
    for jump in draft.jumps:
        if isinstance(jump, ErrorEdge):
            before = caught.get(jump.source, ())
            if all(issubclass(kind, before) for kind in jump.on):
                yield jump
            caught[jump.source] = (*before, *jump.on)


def _in_branches(draft: Draft) -> set[str]:
    found: set[str] = set()
    for section in draft.sections:
        found |= draft.reached(list(section.entries), within=section.fan_in)
    return found


def _unreachable(draft: Draft) -> Iterator[str]:
    if not draft.entries or draft.open_ended:
        return
    reached = draft.reached(draft.entries) | _in_branches(draft)
    for name in draft.nodes:
        if name not in reached:
            yield Mistake(f"node {name!r} can't be reached from the entry point", OTHER, name)
