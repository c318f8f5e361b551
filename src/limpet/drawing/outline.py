"""What a picture of a graph shows: shapes, the lines between them, and outlines inside shapes.

An outline is plain data, made from a plan, or from a graph that is still being written and may contain mistakes. A
workflow is drawn by its tasks; the planner between its layers isn't shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError
from typing import Any, Final, Literal, NamedTuple

from limpet.errors import DefinitionError
from limpet.graphs.edges import END, START, Choice, Edge, ErrorEdge, Jump, OutEdge
from limpet.graphs.parallel import Section
from limpet.graphs.parameters import Function
from limpet.graphs.plan import Plan
from limpet.graphs.workflow.layers import Dag, layers_of

ShapeKind = Literal["start", "end", "node", "fan_in", "map", "task", "missing"]
LineKind = Literal["plain", "conditional", "parallel", "optional", "goto", "error"]

UNNAMED_CONDITION: Final = "if …"
"""The label of an edge whose predicate has no name."""

MISSING_NOTE: Final = "not there"
"""The note of a shape for a name that the graph uses and doesn't have."""


class Shape(NamedTuple):
    """A box of the picture. Its id is the path to it, such as `outer/inner`.

    A `map` stands for one branch per item, `missing` for a name that an unfinished graph uses and doesn't have.
    `note` is a small line below the name. `rank` is the layer of a task. `inside` is the graph that it runs. `added`
    marks a task that was added while the run was under way, and `forks` a node after which branches begin.
    """

    id: str
    label: str
    kind: ShapeKind
    note: str = ""
    rank: int | None = None
    inside: Outline | None = None
    added: bool = False
    forks: bool = False


class Line(NamedTuple):
    """A possible transition, or a dependency, between two shapes."""

    source: str
    target: str
    label: str = ""
    kind: LineKind = "plain"


class Outline(NamedTuple):
    """A graph as it is drawn. `flow` marks a workflow. `mistakes` lists what is wrong with the graph."""

    name: str
    shapes: tuple[Shape, ...]
    lines: tuple[Line, ...]
    flow: bool = False
    mistakes: tuple[str, ...] = ()


def outline_of_plan(plan: Plan, dag: Dag | None = None, prefix: str = "") -> Outline:
    """The outline of a plan. `dag` has the tasks of a workflow as a run has them by now."""
    if plan.layers is not None:
        return _outline_of_workflow_plan(plan, dag, prefix)
    builder = _OutlineBuilder(plan.name, prefix)
    for name, node in plan.nodes.items():
        inside = None
        if node.inner is not None:
            inside = outline_of_plan(node.inner.plan, None, f"{prefix}{name}/")
        builder.add_node(name, inside, _interrupt_note(name, plan.interrupt_before, plan.interrupt_after))
    for node in plan.nodes.values():
        for edge in node.edges:
            inside = None
            if isinstance(edge, Section) and edge.inner is not None:
                inside = outline_of_plan(edge.inner.plan, None, f"{prefix}{map_id(edge)}/")
            builder.add_edge(edge, inside)
        builder.jumps += node.jumps
    return builder.outline([plan.entry], [name for name, node in plan.nodes.items() if node.exit])


def outline_of_graph(graph: Any, prefix: str = "", outer_graphs: tuple[Any, ...] = ()) -> Outline:
    """The outline of a graph as it is written, finished or not, with its mistakes.

    A graph that contains itself is drawn once: `outer_graphs` are those that this one is inside.
    """
    mistakes = () if outer_graphs else _mistakes(graph)
    around = (*outer_graphs, graph)
    if hasattr(graph, "_specs"):
        tasks = _Tasks(
            {name: spec.to_data() for name, spec in graph._resolved_specs().items()},
            graph._graphs,
            _conditions(graph._definitions),
        )
        return _outline_of_tasks(graph.name, tasks, prefix, around)._replace(mistakes=mistakes)

    def outline_inside(sub: Any, name: str) -> Outline | None:
        if sub is None or any(sub.graph is each for each in around):
            return None
        return outline_of_graph(sub.graph, f"{prefix}{name}/", around)

    draft = graph._draft
    builder = _OutlineBuilder(graph.name, prefix)
    for name, spec in draft.nodes.items():
        builder.add_node(name, outline_inside(spec.inner, name), "")
    for number, edge in enumerate(draft.edges):
        inside = None
        if number in draft.maps:
            inside = outline_inside(draft.maps[number], map_id(edge))
        builder.add_edge(edge, inside)
    builder.jumps += draft.jumps
    return builder.outline(draft.entries, draft.exits)._replace(mistakes=mistakes)


def map_id(section: Section) -> str:
    """The id of the shape for a map over a graph. No node has this id, because no node's name contains a '/'."""
    return f"{section.source}//{section.each}"


class _OutlineBuilder:
    """Collects the nodes and edges of a state graph, then makes their outline."""

    def __init__(self, name: str, prefix: str) -> None:
        self.name = name
        self.prefix = prefix
        self.shapes: dict[str, Shape] = {}
        self.lines: dict[tuple[str, str, LineKind], list[str]] = {}
        self.edges: list[OutEdge] = []
        self.jumps: list[Jump] = []

    def add_node(self, name: str, inside: Outline | None, note: str) -> None:
        self.shapes[name] = Shape(self.prefix + name, name, "node", note, inside=inside)

    def add_edge(self, edge: OutEdge, inside: Outline | None) -> None:
        """Add an edge from a node; `inside` is the graph that a map runs."""
        self.edges.append(edge)
        if isinstance(edge, Section) and edge.own_state:
            name = map_id(edge)
            self.shapes[name] = Shape(
                self.prefix + name, str(edge.each), "map", _items_note(edge), inside=inside
            )

    def outline(self, entries: Iterable[str], exits: Iterable[str]) -> Outline:
        for edge in (*self.edges, *self.jumps):
            self._complete_shapes(edge)
        entries = list(entries)
        ends = self._ends(entries)
        for entry in entries:
            self._add_line(START, entry)
        for source, edges in self._edges_by_source().items():
            self._add_lines_of(source, edges, ends.get(source, [END]))
        for jump in self.jumps:
            self._add_lines_of_jump(jump, ends.get(jump.source, [END]))
        for name in exits:
            has_edges = any(edge.source == name for edge in self.edges)
            for end in ends.get(name, [END]):
                if has_edges:
                    self._add_line(name, end, "else", "conditional")
                else:
                    self._add_line(name, end)
        self._add_branch_ends(ends)
        return self._finished_outline()

    def _complete_shapes(self, edge: OutEdge | Jump) -> None:
        """Add shapes for missing names, and mark fan-ins, forks, the nodes of maps, and choices without outcomes."""
        for name in (edge.source, *edge.targets):
            if name not in self.shapes and name != END:
                self._add_missing(name)
        if isinstance(edge, Section):
            self._change(edge.source, forks=True)
            if self.shapes[edge.fan_in].kind == "node":
                self._change(edge.fan_in, kind="fan_in")
            if edge.each is not None and not edge.own_state and self.shapes[edge.each].kind == "node":
                self._change(edge.each, kind="map", note=_items_note(edge))
        if isinstance(edge, Choice) and edge.outcomes is None and not self.shapes[edge.source].note:
            chooser = function_label(edge.choose) or "a function"
            self._change(edge.source, note=f"{chooser} picks any node")

    def _add_missing(self, name: str) -> None:
        self.shapes[name] = Shape(self.prefix + name, name, "missing", MISSING_NOTE)

    def _change(self, name: str, **changes: Any) -> None:
        self.shapes[name] = self.shapes[name]._replace(**changes)

    def _ends(self, entries: list[str]) -> dict[str, list[str]]:
        """For each node of a branch, where a run is after it leaves the branch: the fan-in instead of the end."""
        ends: dict[str, list[str]] = {}
        outside_branches = self._reachable(entries, None)
        for section in (edge for edge in self.edges if isinstance(edge, Section)):
            for name in self._reachable(list(section.entries), section.fan_in):
                known = ends.setdefault(name, [END] if name in outside_branches else [])
                if section.fan_in not in known:
                    known.append(section.fan_in)
        return ends

    def _reachable(self, starts: list[str], fan_in: str | None) -> set[str]:
        """The nodes that can be reached from some nodes without passing the fan-in."""
        reached = set(starts)
        pending = list(starts)
        edges_by_source: dict[str, list[OutEdge | Jump]] = {}
        for edge in (*self.edges, *self.jumps):
            edges_by_source.setdefault(edge.source, []).append(edge)
        while pending:
            for edge in edges_by_source.get(pending.pop(), ()):
                targets = edge.targets
                if isinstance(edge, Section):
                    targets = (edge.fan_in,)
                new = [each for each in targets if each not in reached and each not in (fan_in, END)]
                reached.update(new)
                pending += new
        return reached

    def _edges_by_source(self) -> dict[str, list[OutEdge]]:
        found: dict[str, list[OutEdge]] = {}
        for edge in self.edges:
            found.setdefault(edge.source, []).append(edge)
        return found

    def _add_lines_of(self, source: str, edges: list[OutEdge], ends: list[str]) -> None:
        for place, edge in enumerate(edges):
            if isinstance(edge, Section):
                self._add_branch_lines(edge)
                continue
            is_first = place == 0
            kind: LineKind = "plain" if is_first and edge.decided_by is None else "conditional"
            for route_label, chosen in _routes(edge, is_first):
                label = ", ".join(each for each in (route_label, _delay_text(edge.delay)) if each)
                for target in ends if chosen == END else [chosen]:
                    self._add_line(source, target, label, kind)

    def _add_lines_of_jump(self, jump: Jump, ends: list[str]) -> None:
        for chosen in jump.targets:
            for target in ends if chosen == END else [chosen]:
                if isinstance(jump, ErrorEdge):
                    self._add_line(jump.source, target, f"on {jump.label}", "error")
                else:
                    self._add_line(jump.source, target, "goto", "goto")

    def _add_branch_lines(self, section: Section) -> None:
        if section.own_state:
            self._add_line(section.source, map_id(section), "", "parallel")
            self._add_line(map_id(section), section.fan_in)
        for entry in section.entries:
            self._add_line(section.source, entry, "", "parallel")

    def _add_branch_ends(self, ends: Mapping[str, list[str]]) -> None:
        """Connect the last node of each branch with the fan-in."""
        sources = {source for source, _, _ in self.lines}
        for name, targets in ends.items():
            if name not in sources:
                for target in targets:
                    self._add_line(name, target)

    def _add_line(self, source: str, target: str, label: str = "", kind: LineKind = "plain") -> None:
        labels = self.lines.setdefault((source, target, kind), [])
        if label and label not in labels:
            labels.append(label)

    def _finished_outline(self) -> Outline:
        used = dict.fromkeys(name for source, target, _ in self.lines for name in (source, target))
        for name in used:
            if name not in self.shapes and name not in (START, END):
                self._add_missing(name)
        shapes = list(self.shapes.values())
        if START in used:
            shapes.insert(0, Shape(self.prefix + START, "start", "start"))
        if END in used:
            shapes.append(Shape(self.prefix + END, "end", "end"))
        order = {name: place for place, name in enumerate([START, *self.shapes, END])}
        ordered_lines = sorted(self.lines.items(), key=lambda item: order[item[0][0]])
        lines = tuple(
            Line(self.prefix + source, self.prefix + target, " or ".join(labels), kind)
            for (source, target, kind), labels in ordered_lines
        )
        return Outline(self.name, tuple(shapes), lines)


def _routes(edge: Edge | Choice, is_first: bool) -> list[tuple[str, str]]:
    """Where an edge may lead, each with the label of the line to it."""
    if isinstance(edge, Choice):
        outcomes = (edge.outcomes or {}).items()
        return [("" if result == chosen else str(result), chosen) for result, chosen in outcomes]
    if edge.predicate is None:
        return [("" if is_first else "else", edge.target)]
    return [(function_label(edge.predicate) or UNNAMED_CONDITION, edge.target)]


def function_label(function: Function) -> str:
    """The name of a predicate or choice: its own description, or the name of the function; empty for a lambda."""
    description = getattr(function.call, "description", None)
    if isinstance(description, str) and description:
        return description
    name = getattr(function.call, "__name__", type(function.call).__name__)
    if name == "<lambda>":
        return ""
    return str(name)


def _delay_text(seconds: float) -> str:
    """The delay of an edge in words; empty if it has none."""
    if not seconds:
        return ""
    for unit, size in (("days", 86_400), ("hours", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"after {seconds / size:.4g} {unit}"
    return f"after {seconds:.4g} s"


def _items_note(section: Section) -> str:
    if isinstance(section.over, str):
        return f"for each of {section.over}"
    name = ""
    if section.over is not None:
        name = function_label(section.over)
    if name:
        return f"for each of {name}()"
    return "for each item"


def _interrupt_note(name: str, before: frozenset[str], after: frozenset[str]) -> str:
    when = []
    if name in before:
        when.append("before")
    if name in after:
        when.append("after")
    if when:
        return f"stops {' and '.join(when)}"
    return ""


class _Tasks(NamedTuple):
    """The tasks of a workflow, and by the name of their code, the graphs that they run and their conditions."""

    dag: Dag
    graphs: Mapping[str, Any]
    conditions: Mapping[str, Any]


def _outline_of_workflow_plan(plan: Plan, dag: Dag | None, prefix: str) -> Outline:
    assert plan.layers is not None
    codes = plan.layers.definitions
    graphs = {name: code.inner.plan for name, code in codes.items() if code.inner is not None}
    tasks = _Tasks(plan.layers.dag if dag is None else dag, graphs, _conditions(codes))
    return _outline_of_tasks(plan.name, tasks, prefix)


def _conditions(codes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: code.condition.call for name, code in codes.items() if code.condition is not None}


def _outline_of_tasks(name: str, tasks: _Tasks, prefix: str, outer_graphs: tuple[Any, ...] = ()) -> Outline:
    """The outline of a workflow: its tasks in layers, and what each depends on."""
    ranks = _task_ranks(tasks.dag)
    shapes: list[Shape] = []
    lines: list[Line] = []
    for task, data in tasks.dag.items():
        code = data.get("run") or task
        shapes.append(
            Shape(
                prefix + task,
                task,
                "task",
                _condition_note(tasks.conditions.get(code)),
                ranks.get(task),
                _outline_inside_task(tasks.graphs.get(code), f"{prefix}{task}/", outer_graphs),
                added=data.get("added_by") is not None,
            )
        )
        lines += [Line(prefix + needed, prefix + task) for needed in data.get("depends_on", ())]
        lines += [
            Line(prefix + needed, prefix + task, kind="optional") for needed in data.get("optional", ())
        ]
    known = {shape.id for shape in shapes}
    missing = dict.fromkeys(line.source for line in lines if line.source not in known)
    if missing:
        shapes += [Shape(each, each.removeprefix(prefix), "missing", MISSING_NOTE) for each in missing]
        # A missing task has no layer, so the layout has to find the ranks of all.
        shapes = [shape._replace(rank=None) for shape in shapes]
    return Outline(name, tuple(shapes), tuple(lines), flow=True)


def _outline_inside_task(graph: Any, prefix: str, outer_graphs: tuple[Any, ...]) -> Outline | None:
    if isinstance(graph, Plan):
        return outline_of_plan(graph, None, prefix)
    if graph is None or any(graph is each for each in outer_graphs):
        return None
    return outline_of_graph(graph, prefix, outer_graphs)


def _condition_note(condition: Any) -> str:
    if condition is None:
        return ""
    name = str(getattr(condition, "__name__", ""))
    if name in ("", "<lambda>"):
        return UNNAMED_CONDITION
    return f"if {name}"


def _task_ranks(dag: Dag) -> dict[str, int]:
    """The layer of each task; empty if tasks depend on each other in a circle."""
    known = {
        task: {
            kind: [each for each in data.get(kind, ()) if each in dag] for kind in ("depends_on", "optional")
        }
        for task, data in dag.items()
    }
    try:
        return {task: rank for rank, layer in enumerate(layers_of(known)) for task in layer}
    except CycleError:
        return {}


def _mistakes(graph: Any) -> tuple[str, ...]:
    try:
        graph.freeze()
    except DefinitionError as problem:
        return tuple(problem.mistakes)
    return ()
