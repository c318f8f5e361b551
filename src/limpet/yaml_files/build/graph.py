"""A declared graph: nodes, the ways between them, and where it begins, ends and stops."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from inspect import signature
from itertools import pairwise
from typing import Any

from limpet.yaml_files import node_functions as calls
from limpet.yaml_files.build.builder import Building, Inside, Site, check_settings
from limpet.yaml_files.node_functions import AT_EDGES, IN_GRAPHS, Work
from limpet.yaml_files.document import Value
from limpet.yaml_files.grammar.keys import ENDS
from limpet.yaml_files.grammar.value_types import is_template
from limpet.yaml_files.build.from_checkpoint import FromCheckpoint
from limpet.yaml_files.templates import Compiler
from limpet.errors import DefinitionError
from limpet.graphs.validation import DEAD_END, NO_EXIT, NO_NODE
from limpet.graphs.plan import END, START
from limpet.state_graph import StateGraph

_SETTINGS = (
    "store",
    "checkpoint_dir",
    "interval",
    "preserve",
    "lease",
    "max_concurrency",
    "on_save_error",
    "keep",
)
_BOUNDARIES = dict(zip(ENDS, (START, END, START, END), strict=True))
_WORDED = {
    NO_EXIT: "no exit point: say where the run may end, by finish: name or a way to END",
}


class DeclaredGraph(FromCheckpoint, StateGraph):
    """A `StateGraph` that came from a file. Its runs go on from a checkpoint, if the file or `load` names one."""


class GraphBuilding(Building):
    """One graph while it is built."""

    variables = IN_GRAPHS
    kind = "graph"

    def __init__(self, value: Value, site: Site) -> None:
        super().__init__(value, site)
        self.at_edges = Compiler(site.mistakes, AT_EDGES)
        self.stops: tuple[list[str], list[str]] = ([], [])
        self.places: dict[tuple[str, str], Value] = {}
        self.nameless = False

    def define(self, name: str) -> DeclaredGraph:
        """The graph, with all of its nodes and ways. Notes what is wrong with it."""
        self.import_modules()
        schema, defaults = self.schema()
        given = self.settings(("max_iterations", "observers"))
        graph: DeclaredGraph = self.attempt(
            self.value.at("config"),
            lambda: DeclaredGraph(schema, name=name, **given),
            DeclaredGraph(name=name),
        )
        if defaults:
            graph.schema = graph.schema._replace(defaults={**graph.schema.defaults, **defaults})
        for each in self.value.all("nodes"):
            self._add_node(graph, each)
        self._add_ways(graph)
        self._check(graph)
        return graph

    def interrupts(self) -> tuple[list[str], list[str]]:
        """Where it stops: what nodes say themselves, and what `config` says."""
        said = self.settings(("interrupt_before", "interrupt_after"))
        before, after = self.stops
        return [*before, *said.get("interrupt_before", ())], [*after, *said.get("interrupt_after", ())]

    def compile(self, graph: DeclaredGraph, overrides: Mapping[str, Any]) -> None:
        """Fix how it runs, as `config` says unless somebody says otherwise."""
        check_settings(overrides, signature(StateGraph.compile).parameters)
        before, after = self.interrupts()
        stops = {"interrupt_before": before, "interrupt_after": after}
        given = {**self.settings(_SETTINGS), **stops, **overrides}
        self.attempt(self.value.at("config"), lambda: graph.compile(**given))

    def _add_node(self, graph: DeclaredGraph, each: Value) -> None:
        name = each.text("name")
        if not name or name in ENDS or "/" in name:
            self.nameless = True
            return
        owner = f"node {name!r}"
        there = (name, "") in self.places
        self.places.setdefault((name, ""), each.at("name"))
        work, options = self.work_of(each, owner), self.policy(each)
        if isinstance(work, Work):
            work = calls.node_function(work, each.text("output"))
        elif isinstance(work, Inside):
            for side in ("inputs", "outputs"):
                options[side] = self.passing(each, side, owner)
            self._stop_inside(name, work)
            work = work.graph
        for when in each.all("interrupt"):
            if when.data in ("before", "after"):
                self.stops[when.data == "after"].append(name)
        if self.attempt(each.at("name"), lambda: graph.add_node(name, work, **options)) is None and not there:
            with suppress(DefinitionError):
                graph.add_node(name)  # so that nobody misses it as well

    def _stop_inside(self, name: str, inside: Inside) -> None:
        for mine, theirs in zip(self.stops, (inside.before, inside.after), strict=True):
            mine += [f"{name}/{each}" for each in theirs]

    def _add_ways(self, graph: DeclaredGraph) -> None:
        edges = [(edge.text("from") or "", edge, edge.at("from")) for edge in self.value.all("edges")]
        gotos = self._gotos()
        sources = {source for source, _, _ in edges}
        for source, _, place in gotos:
            if source in sources:
                self.mistakes.note(
                    place, f"node {source!r} has a goto and edges; say what follows it in one place"
                )
        for source, way, place in [*edges, *gotos]:
            if source:
                self._add_way(graph, _BOUNDARIES.get(source, source), way, place)
        entry = self.value.get("entry")
        if entry is not None and isinstance(entry.data, str):
            self._connect(graph, START, entry.data, entry)
        for finish in self.value.all("finish"):
            if isinstance(finish.data, str):
                self._connect(graph, finish.data, END, finish)
        if not edges and not gotos:
            self._chain(graph)
        if entry is None and not sources & {"START", START}:
            self._enter_first(graph)

    def _gotos(self) -> list[tuple[str, Value, Value]]:
        """What nodes say follows them; a bare name is a way there."""
        found = []
        for node in self.value.all("nodes"):
            for way in node.all("goto"):
                where = way if isinstance(way.data, dict) else Value({"to": way}, way.line, way.column)
                found.append((node.text("name") or "", where, way))
        return found

    def _chain(self, graph: DeclaredGraph) -> None:
        """Without a word on what follows what, nodes follow each other as they are listed."""
        names = [(name, each) for each in self.value.all("nodes") if (name := each.text("name"))]
        for (name, each), (following, _) in pairwise(names):
            self._connect(graph, name, following, each)
        if names and self.value.get("finish") is None:
            self._connect(graph, names[-1][0], END, names[-1][1])

    def _enter_first(self, graph: DeclaredGraph) -> None:
        """Without a word on where it begins, a run begins at the node that is listed first."""
        first = next(iter(self.value.all("nodes")), None)
        if first is not None and (name := first.text("name")):
            self._connect(graph, START, name, first)

    def _connect(
        self, graph: DeclaredGraph, source: str, target: str, place: Value, predicate: Any = None
    ) -> None:
        target = _BOUNDARIES.get(target, target)
        self.places.setdefault((source, target), place)
        if target == START or source == END:
            self.mistakes.note(place, "nothing leads to START, and nothing follows END")
            return
        self.attempt(place, lambda: graph.add_edge(source, target, predicate))

    def _add_way(self, graph: DeclaredGraph, source: str, way: Value, place: Value) -> None:
        self.places.setdefault((source, ""), place)
        owner = f"the way from {source!r}"
        if (to := way.text("to")) is not None:
            self._connect(
                graph, source, to, way.at("to"), self._asked(way, "condition", calls.predicate, owner)
            )
        elif source == START:
            self.mistakes.note(place, "START leads to one node: {from: START, to: name}")
        elif way.get("choose") is not None:
            self._add_choice(graph, source, way, owner)
        elif way.get("parallel") is not None:
            self._add_parallel(graph, source, way)
        elif way.get("each") is not None and not self.partial:
            self._add_map(graph, source, way, owner)

    def _asked(self, way: Value, key: str, made: Any, owner: str) -> Any:
        value = way.get(key)
        if value is None or not isinstance(value.data, str):
            return None
        template = self.at_edges.expression(value, f"{owner}, {key}")
        return None if template is None else made(template)

    def _add_choice(self, graph: DeclaredGraph, source: str, way: Value, owner: str) -> None:
        cases = way.get("cases")
        names = cases is None or not isinstance(cases.data, dict)
        choose = self._asked(way, "choose", partial(calls.choice, names=names), owner)
        if cases is not None and isinstance(cases.data, dict):
            listed = list(cases.data.values())
            outcomes: Any = {
                key: _BOUNDARIES.get(each.data, each.data)
                for key, each in cases.data.items()
                if isinstance(each.data, str)
            }
        else:
            listed = way.all("cases")
            leads = [_BOUNDARIES.get(each.data, each.data) for each in listed if isinstance(each.data, str)]
            outcomes = leads if cases is not None else None
        for each in listed:
            if isinstance(each.data, str):
                self.places.setdefault((source, _BOUNDARIES.get(each.data, each.data)), each)
        if choose is not None:
            self.attempt(way.at("choose"), lambda: graph.add_conditional_edges(source, choose, outcomes))

    def _add_parallel(self, graph: DeclaredGraph, source: str, way: Value) -> None:
        fan_in = way.text("fan_in")
        on_error: Any = way.text("on_error") or "fail"
        for branch in way.all("parallel"):
            if isinstance(branch.data, str) and fan_in is not None:
                self.places.setdefault((source, branch.data), branch)
                self.places.setdefault((source, fan_in), way.at("fan_in"))
                add = partial(graph.add_parallel_edge, source, branch.data, fan_in, on_error=on_error)
                self.attempt(branch, add)

    def _add_map(self, graph: DeclaredGraph, source: str, way: Value, owner: str) -> None:
        each, over, fan_in = way.at("each"), way.at("over"), way.text("fan_in")
        node: Any = each.data
        if isinstance(node, dict) or node.endswith((".yaml", ".yml")):
            inside = self.inside(each)
            if inside is None:
                return
            node = inside.graph
            self._stop_inside(node.name, inside)
        else:
            self.places.setdefault((source, node), each)
        self.places.setdefault((source, fan_in or ""), way.at("fan_in"))
        goes_over: Any = over.data
        if is_template(over.data):
            template = Compiler(self.mistakes, ("state",)).template(over, f"{owner}, over")
            goes_over = calls.of_state(template) if template is not None else "over"
        options = {
            key: way.data[key].data for key in ("item", "max_concurrency", "on_error") if key in way.data
        }
        for side in ("inputs", "outputs"):
            options[side] = self.passing(way, side, owner)
        self.attempt(each, lambda: graph.add_map(source, node, goes_over, fan_in or "", **options))

    def _check(self, graph: DeclaredGraph) -> None:
        """Note what is wrong with the graph as a whole, where it is written down."""
        try:
            graph.validate()
        except DefinitionError as problem:
            for each in problem.mistakes:
                self._note(each)

    def _note(self, mistake: Any) -> None:
        kind, node, name = mistake.kind, mistake.node, mistake.name
        if self.partial and (kind != NO_NODE or self.nameless):
            return
        place = self.places.get((node, name)) or self.places.get((node, "")) or self.value.at("nodes")
        if kind == DEAD_END:
            self.mistakes.note(
                place, f"node {node!r} leads nowhere: give it a goto or an edge; END ends the run"
            )
        else:
            self.mistakes.note(place, _WORDED.get(kind, mistake))
