"""Builds a graph from a file: nodes, the edges between them, and where it begins, ends and stops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from inspect import signature
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from limpet.compile_options import read_resources
from limpet.errors import DefinitionError
from limpet.graphs.edges import END, START
from limpet.graphs.resources.graph_resources import Resources
from limpet.graphs.validation import DEAD_END, NO_EXIT, NO_NODE, mistakes_in, unfilled_parameters
from limpet.state_graph import StateGraph
from limpet.yaml_files.build.builder import BuildContext, DeclarationBuilder, NestedGraph, check_settings
from limpet.yaml_files.build.from_checkpoint import ResumesFromCheckpoint
from limpet.yaml_files.document import Value
from limpet.yaml_files.grammar.shared_types import BOUNDARY_NAMES
from limpet.yaml_files.grammar.value_types import is_template
from limpet.yaml_files.node_functions import (
    EDGE_VARIABLES,
    GRAPH_VARIABLES,
    BoundAction,
    edge_choice,
    edge_predicate,
    map_items,
    node_function,
)
from limpet.yaml_files.templates import Template, TemplateCompiler

_COMPILE_SETTINGS = (
    "store",
    "checkpoint_dir",
    "interval",
    "preserve",
    "keep_result",
    "lease",
    "max_concurrency",
    "on_save_error",
    "keep",
    "deadline",
    "queue",
    "opentelemetry",
)
_BOUNDARIES = dict(zip(BOUNDARY_NAMES, (START, END, START, END), strict=True))


class DeclaredGraph(ResumesFromCheckpoint, StateGraph):
    """A `StateGraph` from a file. Its runs resume from a checkpoint if the file or `load` names one."""

    _declared_settings: Mapping[str, Any] = MappingProxyType({})
    """What `compile` is given by the file, and by the caller of `load`."""

    def compile(self, **settings: Any) -> Self:
        """`StateGraph.compile`. Settings that you don't give are those of the file, and of `load`.

        Resources are added to theirs.
        """
        declared = self._declared_settings
        if settings.get("resources") is not None and declared.get("resources"):
            given: Mapping[str, Any] = read_resources(settings["resources"], self.name) or {}
            settings["resources"] = Resources({**declared["resources"], **given}.values())
        return super().compile(**{**declared, **settings})

    def _declare(self, settings: Mapping[str, Any]) -> None:
        """Compile it, now and later, with settings."""
        self.compile(**settings)
        self._declared_settings = MappingProxyType({**settings})


class _DeclaredEdge(NamedTuple):
    """An edge from a node: the node's name, the mapping that describes the edge, and its place for messages."""

    source: str
    edge: Value
    place: Value


class GraphBuilder(DeclarationBuilder):
    """Builds one graph."""

    variables = GRAPH_VARIABLES
    kind = "graph"

    def __init__(self, value: Value, context: BuildContext) -> None:
        super().__init__(value, context)
        self.edge_compiler = TemplateCompiler(context.mistakes, EDGE_VARIABLES)
        self.interrupt_before: list[str] = []
        self.interrupt_after: list[str] = []
        self.places: dict[tuple[str, str], Value] = {}
        """Where nodes (name, "") and edges (source, target) are in the file."""
        self.has_nameless_nodes = False
        self.nodes_with_functions: set[str] = set()

    def define(self, name: str) -> DeclaredGraph:
        """The graph with all of its nodes and edges. Notes its mistakes."""
        self.import_modules()
        self.import_resources()
        self.limits.read(self.is_partial)
        self.check_config()
        schema, defaults = self.schema()
        options = self.settings(("max_iterations", "observers"))
        graph: DeclaredGraph = self.attempt(
            self.value.place_of("config"),
            lambda: DeclaredGraph(schema, name=name, **options),
            DeclaredGraph(name=name),
        )
        graph._use_resources(self.resources)
        if defaults:
            graph.schema = graph.schema._replace(defaults={**graph.schema.defaults, **defaults})
        for declared in self.value.items("nodes"):
            self._add_node(graph, declared)
        self._add_ways(graph)
        self._check(graph)
        return graph

    def interrupts(self) -> tuple[list[str], list[str]]:
        """The nodes before and after which runs stop, as nodes and `config` name them."""
        settings = self.settings(("interrupt_before", "interrupt_after"))
        before = [*self.interrupt_before, *settings.get("interrupt_before", ())]
        after = [*self.interrupt_after, *settings.get("interrupt_after", ())]
        return before, after

    def compile(self, graph: DeclaredGraph, overrides: Mapping[str, Any]) -> None:
        """Compile the graph with the settings of `config`, and those of the caller in place of them."""
        check_settings(overrides, signature(StateGraph.compile).parameters)
        before, after = self.interrupts()
        settings = {
            **self.settings(_COMPILE_SETTINGS),
            "limits": self.limits.of_graph(),
            "interrupt_before": before,
            "interrupt_after": after,
            **overrides,
            **self.all_resources(overrides),
        }
        self.attempt(self.value.place_of("config"), lambda: graph._declare(settings))

    def _add_node(self, graph: DeclaredGraph, declared: Value) -> None:
        name = declared.text("name")
        if not name or name in BOUNDARY_NAMES or "/" in name:
            self.has_nameless_nodes = True
            return
        owner = f"node {name!r}"
        place = declared.place_of("name")
        is_repeated = (name, "") in self.places
        self.places.setdefault((name, ""), place)
        if declared.get("run") is not None:
            self.nodes_with_functions.add(name)
        work = self.work_of(declared, owner)
        options = self.policy_of(declared)
        outputs = self.child_outputs(declared, owner)
        if isinstance(work, BoundAction):
            work = node_function(work, declared.text("output"), outputs)
        elif isinstance(work, NestedGraph):
            options["inputs"] = self.key_mapping(declared, "inputs", owner)
            options["outputs"] = self.key_mapping(declared, "outputs", owner)
            self._add_nested_interrupts(name, work)
            work = work.graph
        for when in declared.items("interrupt"):
            if when.data == "before":
                self.interrupt_before.append(name)
            elif when.data == "after":
                self.interrupt_after.append(name)
        targets = _named(declared.items("goto_targets"))
        if targets:
            options["goto"] = [_BOUNDARIES.get(each.data, each.data) for each in targets]
            for target, each in zip(options["goto"], targets, strict=True):
                self.places.setdefault((name, target), each)
        added = self.attempt(place, lambda: graph.add_node(name, work, **options))
        if added is None and not is_repeated:
            # An empty node in its place: else each edge to it would be a second mistake.
            with suppress(DefinitionError):
                graph.add_node(name)

    def _add_nested_interrupts(self, name: str, nested: NestedGraph) -> None:
        self.interrupt_before += [f"{name}/{each}" for each in nested.interrupt_before]
        self.interrupt_after += [f"{name}/{each}" for each in nested.interrupt_after]

    def _add_ways(self, graph: DeclaredGraph) -> None:
        edges = [
            _DeclaredEdge(edge.text("from") or "", edge, edge.place_of("from"))
            for edge in self.value.items("edges")
        ]
        gotos = self._gotos()
        edge_sources = {edge.source for edge in edges}
        with_other_edges = {edge.source for edge in edges if edge.edge.get("on") is None}
        for goto in gotos:
            if goto.source in with_other_edges:
                self.mistakes.note(
                    goto.place, f"node {goto.source!r} has a goto and edges; say what follows it in one place"
                )
        for declared in (*edges, *gotos):
            if declared.source:
                source = _BOUNDARIES.get(declared.source, declared.source)
                self._add_edge(graph, declared._replace(source=source))
        entry = self.value.get("entry")
        if entry is not None and isinstance(entry.data, str):
            self._connect(graph, START, entry.data, entry)
        for finish in self.value.items("finish"):
            if isinstance(finish.data, str):
                self._connect(graph, finish.data, END, finish)
        if not edges and not gotos:
            self._connect_in_order(graph)
        if entry is None and not edge_sources & {"START", START}:
            self._enter_first(graph)

    def _gotos(self) -> list[_DeclaredEdge]:
        """The edges that nodes declare themselves; a bare name is an edge to that node."""
        gotos = []
        for node in self.value.items("nodes"):
            for place in node.items("goto"):
                edge = place
                if not isinstance(place.data, dict):
                    edge = place.with_data({"to": place})
                gotos.append(_DeclaredEdge(node.text("name") or "", edge, place))
        return gotos

    def _connect_in_order(self, graph: DeclaredGraph) -> None:
        """Without edges and gotos, nodes follow each other in the order of the list."""
        named = [
            (name, declared) for declared in self.value.items("nodes") if (name := declared.text("name"))
        ]
        for (name, declared), (following, _) in pairwise(named):
            self._connect(graph, name, following, declared)
        if named and self.value.get("finish") is None:
            last_name, last = named[-1]
            self._connect(graph, last_name, END, last)

    def _enter_first(self, graph: DeclaredGraph) -> None:
        """Without an entry, a run begins at the first node of the list."""
        first = next(iter(self.value.items("nodes")), None)
        name = None
        if first is not None:
            name = first.text("name")
        if first is not None and name:
            self._connect(graph, START, name, first)

    def _connect(
        self,
        graph: DeclaredGraph,
        source: str,
        target: str,
        place: Value,
        predicate: Any = None,
        delay: float = 0,
    ) -> None:
        target = _BOUNDARIES.get(target, target)
        self.places.setdefault((source, target), place)
        if target == START or source == END:
            self.mistakes.note(place, "nothing leads to START, and nothing follows END")
            return
        self.attempt(place, lambda: graph.add_edge(source, target, predicate, delay=delay))

    def _add_edge(self, graph: DeclaredGraph, declared: _DeclaredEdge) -> None:
        source, edge, place = declared
        self.places.setdefault((source, ""), place)
        target = edge.text("to")
        if edge.get("on") is not None:
            self._add_error_edge(graph, source, edge)
        elif target is not None:
            predicate = self._edge_function(declared, "condition", edge_predicate)
            self._connect(graph, source, target, edge.place_of("to"), predicate, _delay_of(edge))
        elif source == START:
            self.mistakes.note(place, "START leads to one node: {from: START, to: name}")
        elif edge.get("choose") is not None:
            self._add_choice(graph, declared)
        elif edge.get("parallel") is not None:
            self._add_parallel(graph, source, edge)
        elif edge.get("each") is not None and not self.is_partial:
            self._add_map(graph, source, edge)

    def _add_error_edge(self, graph: DeclaredGraph, source: str, edge: Value) -> None:
        target = edge.text("to")
        if target is None or self.is_partial:
            return
        target = _BOUNDARIES.get(target, target)
        self.places.setdefault((source, target), edge.place_of("to"))
        kinds = []
        for name in _named(edge.items("on")):
            kind = self.attempt(name, partial(self.code.exception, name.data))
            if kind is not None:
                kinds.append(kind)
        if kinds:
            self.attempt(edge.place_of("to"), lambda: graph.add_error_edge(source, target, tuple(kinds)))

    def _edge_function(self, declared: _DeclaredEdge, key: str, make: Callable[[Template], Any]) -> Any:
        value = declared.edge.get(key)
        if value is None or not isinstance(value.data, str):
            return None
        template = self.edge_compiler.expression(value, f"{_edge_owner(declared.source)}, {key}")
        if template is None:
            return None
        return make(template)

    def _add_choice(self, graph: DeclaredGraph, declared: _DeclaredEdge) -> None:
        source, edge, _ = declared
        cases = edge.get("cases")
        outcomes: Any = None
        if cases is None:
            targets = []
        elif isinstance(cases.data, dict):
            targets = _named(cases.data.values())
            outcomes = {
                result: _BOUNDARIES.get(target.data, target.data)
                for result, target in cases.data.items()
                if isinstance(target.data, str)
            }
        else:
            targets = _named(edge.items("cases"))
            outcomes = [_BOUNDARIES.get(target.data, target.data) for target in targets]
        for target in targets:
            self.places.setdefault((source, _BOUNDARIES.get(target.data, target.data)), target)
        gives_node_name = not isinstance(outcomes, dict)
        choose = self._edge_function(
            declared, "choose", partial(edge_choice, gives_node_name=gives_node_name)
        )
        if choose is not None:
            self.attempt(
                edge.place_of("choose"),
                lambda: graph.add_conditional_edges(source, choose, outcomes, delay=_delay_of(edge)),
            )

    def _add_parallel(self, graph: DeclaredGraph, source: str, edge: Value) -> None:
        fan_in = edge.text("fan_in")
        on_error: Any = edge.text("on_error") or "fail"
        if fan_in is None:
            return
        for branch in _named(edge.items("parallel")):
            self.places.setdefault((source, branch.data), branch)
            self.places.setdefault((source, fan_in), edge.place_of("fan_in"))
            add = partial(graph.add_parallel_edge, source, branch.data, fan_in, on_error=on_error)
            self.attempt(branch, add)

    def _add_map(self, graph: DeclaredGraph, source: str, edge: Value) -> None:
        owner = _edge_owner(source)
        each = edge.place_of("each")
        fan_in = edge.text("fan_in") or ""
        node: Any = each.data
        if isinstance(node, dict) or node.endswith((".yaml", ".yml")):
            nested = self.nested_graph(each)
            if nested is None:
                return
            node = nested.graph
            self._add_nested_interrupts(node.name, nested)
        else:
            self.places.setdefault((source, node), each)
        self.places.setdefault((source, fan_in), edge.place_of("fan_in"))
        options = {
            key: edge.data[key].data for key in ("item", "max_concurrency", "on_error") if key in edge.data
        }
        options["inputs"] = self.key_mapping(edge, "inputs", owner)
        options["outputs"] = self.key_mapping(edge, "outputs", owner)
        over = self._map_source(edge.place_of("over"), owner)
        self.attempt(each, lambda: graph.add_map(source, node, over, fan_in, **options))

    def _map_source(self, over: Value, owner: str) -> Any:
        """The items of a map: a key of the state, or a function of the state if it is a template."""
        if not is_template(over.data):
            return over.data
        template = TemplateCompiler(self.mistakes, ("state",)).template(over, f"{owner}, over")
        # The mistake is noted; any key will do to build the rest.
        if template is None:
            return "over"
        return map_items(template)

    def _check(self, graph: DeclaredGraph) -> None:
        """Note the mistakes of the graph as a whole at the places that cause them."""
        available = dict.fromkeys(self.context.resources)
        for mistake in (*mistakes_in(graph._draft), *unfilled_parameters(graph._draft, available)):
            self._note(mistake)

    def _note(self, mistake: Any) -> None:
        node = mistake.node
        # In a partial graph, most of what seems to be missing is in the parts that were left out.
        if self.is_partial and (mistake.kind != NO_NODE or self.has_nameless_nodes):
            return
        place = (
            self.places.get((node, mistake.name))
            or self.places.get((node, ""))
            or self.value.place_of("nodes")
        )
        if mistake.kind == DEAD_END:
            text = f"node {node!r} leads nowhere: give it a goto or an edge; END ends the run"
            if node in self.nodes_with_functions:
                text += ". If its function returns a Goto, name where it goes under goto_targets"
        elif mistake.kind == NO_EXIT:
            text = "no finish point: say where the run may end, by finish: name or an edge to END"
        else:
            text = mistake
        self.mistakes.note(place, text)


def _edge_owner(source: str) -> str:
    return f"the edge from {source!r}"


def _delay_of(edge: Value) -> float:
    """The seconds that an edge takes; 0 if that is a mistake which the tables have found."""
    delay = edge.place_of("delay").data
    if isinstance(delay, (int, float)) and delay >= 0:
        return delay
    return 0.0


def _named(values: Any) -> list[Value]:
    """Those of the values that are names; the others are mistakes that the tables have found."""
    return [value for value in values if isinstance(value.data, str)]
