"""What can be wrong with a graph as it was written down. All mistakes are found at once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Final, NamedTuple, Self

from limpet.errors import did_you_mean
from limpet.graphs.parallel import Section
from limpet.graphs.parameters import Function
from limpet.graphs.plan import END, START, Choice, Way
from limpet.graphs.retry import Retry


class SubSpec(NamedTuple):
    """A graph inside of another one, as it was given: it has `name` and `_plan_inside`."""

    graph: Any
    inputs: Any
    outputs: Any


class NodeSpec(NamedTuple):
    """What `add_node` was told."""

    name: str
    function: Function | None
    retry: Retry | None
    timeout: float | None
    sub: SubSpec | None = None


class Draft:
    """All that was added to a graph, in order. `maps` has the graphs that maps run, by the place of their way."""

    __slots__ = ("entries", "exits", "maps", "nodes", "ways")

    def __init__(self) -> None:
        self.nodes: dict[str, NodeSpec] = {}
        self.ways: list[Way] = []
        self.maps: dict[int, SubSpec] = {}
        self.entries: list[str] = []
        self.exits: dict[str, None] = {}

    def ways_from(self, name: str) -> list[Way]:
        """The ways out of a node, in the order they are tried."""
        return [way for way in self.ways if way.source == name]

    @property
    def sections(self) -> list[Section]:
        return [way for way in self.ways if isinstance(way, Section)]

    @property
    def open_ended(self) -> bool:
        """Whether some choice may lead anywhere."""
        return any(isinstance(way, Choice) and way.outcomes is None for way in self.ways)

    def reached(self, starts: list[str], within: str | None = None) -> set[str]:
        """The nodes that are come to from `starts`; `within` a branch, those before its fan-in.

        From outside of branches, what is inside of them isn't come to: the fan-in follows.
        """
        reached, ahead = set(starts), list(starts)
        while ahead:
            for way in self.ways_from(ahead.pop()):
                targets = (way.fan_in,) if isinstance(way, Section) else way.targets
                fresh = [target for target in targets if target not in reached and target != within]
                reached.update(fresh)
                ahead += fresh
        return reached


class Mistake(str):
    """A mistake in words; and for those who know where things were written down, what kind it is and of what.

    `node` is the node that it is about, `name` what is named there wrongly.
    """

    kind: str
    node: str
    name: str

    def __new__(cls, text: str, kind: str, node: str = "", name: str = "") -> Self:
        made = super().__new__(cls, text)
        made.kind, made.node, made.name = kind, node, name
        return made


NO_NODE: Final = "no node"
NO_ENTRY: Final = "no entry"
NO_EXIT: Final = "no exit"
DEAD_END: Final = "dead end"
OTHER: Final = "other"


def mistakes_in(draft: Draft) -> list[str]:
    """Everything that is wrong with it, in words: each is a `Mistake`."""
    checks = (_wrong_names, _wrong_ends, _wrong_sections, _wrong_delays, _unreachable)
    return [mistake for check in checks for mistake in check(draft)]


def no_node(name: Hashable, draft: Draft) -> str:
    """That there is no such node, and which was meant perhaps."""
    return f"there is no node {name!r}" + did_you_mean(name, draft.nodes)


def _wrong_names(draft: Draft) -> Iterator[str]:
    for name in draft.entries:
        if name not in draft.nodes:
            yield Mistake(f"the entry point: {no_node(name, draft)}", NO_NODE, START, name)
    for name in draft.exits:
        if name not in draft.nodes:
            yield Mistake(f"an exit point: {no_node(name, draft)}", NO_NODE, name, END)
    for way in draft.ways:
        if way.source not in draft.nodes:
            yield Mistake(f"an edge from nowhere: {no_node(way.source, draft)}", NO_NODE, way.source)
        for target in way.targets:
            if target not in draft.nodes and (target != END or isinstance(way, Section)):
                yield Mistake(
                    f"an edge from {way.source!r}: {no_node(target, draft)}", NO_NODE, way.source, target
                )


def _wrong_ends(draft: Draft) -> Iterator[str]:
    if not draft.entries:
        yield Mistake("no entry point: say which node runs first with set_entry_point(name)", NO_ENTRY)
    elif len(draft.entries) > 1:
        several = ", ".join(map(repr, draft.entries))
        yield Mistake(f"several entry points ({several}); a graph has one", OTHER, START, draft.entries[1])
    if not draft.exits and not draft.open_ended and not any(END in way.targets for way in draft.ways):
        yield Mistake("no exit point: say where the run may end with set_finish_point(name)", NO_EXIT)
    in_branches = _in_branches(draft) - draft.reached(draft.entries)
    for name in draft.nodes:
        ways = draft.ways_from(name)
        if not ways and name not in draft.exits and name not in in_branches:
            way_out = f"add an edge from it, or set_finish_point({name!r})"
            yield Mistake(f"node {name!r} leads nowhere: {way_out}", DEAD_END, name)
        if name in draft.exits and any(way.unconditional for way in ways):
            always = "but it has an edge that is always taken, so the run would never end there"
            yield Mistake(f"node {name!r} is an exit point, {always}", OTHER, name)


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
        if fan_in is not None and fan_in.sub is not None:
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
    for way in draft.ways:
        if isinstance(way, Section):
            continue
        for target in way.targets:
            if way.delay and target in fan_ins:
                text = f"the edge {way.source!r} → {target!r} ends a branch, so it can't have a delay"
                yield Mistake(text, OTHER, way.source)
            if delays.setdefault((way.source, target), way.delay) != way.delay:
                yield Mistake(
                    f"two edges {way.source!r} → {target!r} differ in their delay", OTHER, way.source
                )


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
