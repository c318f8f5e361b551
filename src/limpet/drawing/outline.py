"""What there is to draw of a graph: shapes, the lines between them, and outlines inside of shapes.

An outline is made of a plan, or of a graph that is still being written and may be wrong; it is plain data. A workflow
is drawn by its tasks: the planner between its layers isn't shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError
from typing import Any, Literal, NamedTuple

from limpet.errors import DefinitionError
from limpet.graphs.parallel import Section
from limpet.graphs.parameters import Function
from limpet.graphs.plan import END, START, Choice, Edge, Plan, Way
from limpet.graphs.workflow.dag import Dag, layers_of

ShapeKind = Literal["start", "end", "node", "fan_in", "map", "task", "missing"]
LineKind = Literal["plain", "conditional", "parallel", "optional"]

UNNAMED = "if …"
"""The label of an edge whose predicate has no name."""


class Shape(NamedTuple):
    """A box of the picture: its id, which is the way to it, and what is written in it.

    A `map` stands for one branch an item, `missing` for what a graph that isn't finished names and doesn't have.
    `note` is a small line below the name. `rank` is the layer of a task. `inside` is the graph that it runs. `added`
    says that it is a task which was added while the run was under way, `forks` that branches begin after it.
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
    """A graph as it is drawn. `flow` says that it is a workflow. `mistakes` are what is wrong with it, in words."""

    name: str
    shapes: tuple[Shape, ...]
    lines: tuple[Line, ...]
    flow: bool = False
    mistakes: tuple[str, ...] = ()


def outline_of_plan(plan: Plan, dag: Dag | None = None, prefix: str = "") -> Outline:
    """The outline of a plan; `dag` has the tasks of a workflow as a run of it has them by now."""
    if plan.layers is not None:
        codes = {name: code.sub.plan for name, code in plan.layers.codes.items() if code.sub is not None}
        conditions = {
            name: code.condition.call
            for name, code in plan.layers.codes.items()
            if code.condition is not None
        }
        return _of_tasks(plan.name, plan.layers.dag if dag is None else dag, codes, conditions, prefix)
    sketch = _Sketch(plan.name, prefix)
    for name, node in plan.nodes.items():
        inside = None if node.sub is None else outline_of_plan(node.sub.plan, None, f"{prefix}{name}/")
        sketch.add(name, inside, _stops(name, plan.interrupt_before, plan.interrupt_after))
    for node in plan.nodes.values():
        for way in node.ways:
            inner = way.sub.plan if isinstance(way, Section) and way.sub is not None else None
            place = prefix + map_id(way) + "/" if isinstance(way, Section) else ""
            sketch.follow(way, None if inner is None else outline_of_plan(inner, None, place))
    return sketch.outline([plan.entry], [name for name, node in plan.nodes.items() if node.exit])


def outline_of_graph(graph: Any, prefix: str = "", above: tuple[Any, ...] = ()) -> Outline:
    """The outline of a graph as it was written down, finished or not, with what is wrong with it.

    `above` are the graphs that it is inside of: one that contains itself isn't drawn again.
    """
    mistakes = () if above else _mistakes(graph)
    if hasattr(graph, "_specs"):
        dag = {name: spec.to_data() for name, spec in graph._specs.items()}
        conditions = {
            name: code.condition.call for name, code in graph._codes.items() if code.condition is not None
        }
        made = _of_tasks(graph.name, dag, graph._graphs, conditions, prefix, (*above, graph))
        return made._replace(mistakes=mistakes)
    draft, sketch = graph._draft, _Sketch(graph.name, prefix)

    def drawn(sub: Any, place: str) -> Outline | None:
        if sub is None or any(sub.graph is each for each in (*above, graph)):
            return None
        return outline_of_graph(sub.graph, f"{prefix}{place}/", (*above, graph))

    for name, spec in draft.nodes.items():
        sketch.add(name, drawn(spec.sub, name), "")
    for number, way in enumerate(draft.ways):
        sub = draft.maps.get(number)
        sketch.follow(way, drawn(sub, map_id(way)) if sub is not None else None)
    return sketch.outline(draft.entries, draft.exits)._replace(mistakes=mistakes)


def map_id(section: Section) -> str:
    """The id of the shape for the items of a map over a graph. No node has it, for its name would have a '/'."""
    return f"{section.source}//{section.each}"


def asked(function: Function) -> str:
    """What a predicate or a choice is called: what it says of itself, or the name of the function."""
    described = getattr(function.call, "description", None)
    name = getattr(function.call, "__name__", type(function.call).__name__)
    if isinstance(described, str) and described:
        return described
    return "" if name == "<lambda>" else str(name)


class _Sketch:
    """The outline of a state graph, while it is drawn up."""

    def __init__(self, name: str, prefix: str) -> None:
        self.name, self.prefix = name, prefix
        self.shapes: dict[str, Shape] = {}
        self.lines: dict[tuple[str, str, LineKind], list[str]] = {}
        self.ways: list[Way] = []

    def add(self, name: str, inside: Outline | None, note: str) -> None:
        self.shapes[name] = Shape(self.prefix + name, name, "node", note, inside=inside)

    def follow(self, way: Way, inside: Outline | None) -> None:
        """Note a way out of a node; `inside` is the graph that a map runs."""
        self.ways.append(way)
        if isinstance(way, Section) and way.own:
            name = map_id(way)
            self.shapes[name] = Shape(self.prefix + name, str(way.each), "map", _items(way), inside=inside)

    def outline(self, entries: Iterable[str], exits: Iterable[str]) -> Outline:
        self._finish_shapes()
        entries = list(entries)
        ends = self._ends(entries)
        for entry in entries:
            self._line(START, entry)
        for source, ways in self._by_source().items():
            self._lines_of(source, ways, ends.get(source, [END]))
        for name in exits:
            ways = [way for way in self.ways if way.source == name]
            for end in ends.get(name, [END]):
                self._line(name, end, "else" if ways else "", "conditional" if ways else "plain")
        self._dead_ends(ends)
        return self._made()

    def _finish_shapes(self) -> None:
        """Fan-ins, the nodes of maps, and names that nobody has added are told apart."""
        for way in self.ways:
            for name in (way.source, *way.targets):
                if name not in self.shapes and name != END:
                    self.shapes[name] = Shape(self.prefix + name, name, "missing", "not there")
            if isinstance(way, Section):
                self.shapes[way.source] = self.shapes[way.source]._replace(forks=True)
                fan_in = self.shapes[way.fan_in]
                if fan_in.kind == "node":
                    self.shapes[way.fan_in] = fan_in._replace(kind="fan_in")
                if way.each is not None and not way.own and self.shapes[way.each].kind == "node":
                    self.shapes[way.each] = self.shapes[way.each]._replace(kind="map", note=_items(way))
            if isinstance(way, Choice) and way.outcomes is None:
                chooser = self.shapes[way.source]
                said = f"{asked(way.choose) or 'a function'} picks any node"
                self.shapes[way.source] = chooser._replace(note=chooser.note or said)

    def _ends(self, entries: list[str]) -> dict[str, list[str]]:
        """For the nodes of branches: where a run is when it leaves the branch, which is the fan-in, not the end."""
        ends: dict[str, list[str]] = {}
        main = self._reached(entries, None)
        for section in (way for way in self.ways if isinstance(way, Section)):
            for name in self._reached(list(section.entries), section.fan_in):
                known = ends.setdefault(name, [END] if name in main else [])
                if section.fan_in not in known:
                    known.append(section.fan_in)
        return ends

    def _reached(self, starts: list[str], within: str | None) -> set[str]:
        reached, ahead = set(starts), list(starts)
        sources = self._by_source()
        while ahead:
            for way in sources.get(ahead.pop(), ()):
                targets = (way.fan_in,) if isinstance(way, Section) else way.targets
                fresh = [each for each in targets if each not in reached and each not in (within, END)]
                reached.update(fresh)
                ahead += fresh
        return reached

    def _by_source(self) -> dict[str, list[Way]]:
        found: dict[str, list[Way]] = {}
        for way in self.ways:
            found.setdefault(way.source, []).append(way)
        return found

    def _lines_of(self, source: str, ways: list[Way], ends: list[str]) -> None:
        for place, way in enumerate(ways):
            if isinstance(way, Section):
                self._branches(way)
                continue
            for label, chosen in _routes(way, first=place == 0):
                kind: LineKind = "plain" if place == 0 and way.asks is None else "conditional"
                said = ", ".join(each for each in (label, _later(way.delay)) if each)
                for target in ends if chosen == END else [chosen]:
                    self._line(source, target, said, kind)

    def _branches(self, section: Section) -> None:
        if section.own:
            self._line(section.source, map_id(section), "", "parallel")
            self._line(map_id(section), section.fan_in)
        for entry in section.entries:
            self._line(section.source, entry, "", "parallel")

    def _dead_ends(self, ends: Mapping[str, list[str]]) -> None:
        """A branch that leads nowhere ends at the fan-in."""
        sources = {source for source, _, _ in self.lines}
        for name, there in ends.items():
            if name not in sources:
                for end in there:
                    self._line(name, end)

    def _line(self, source: str, target: str, label: str = "", kind: LineKind = "plain") -> None:
        labels = self.lines.setdefault((source, target, kind), [])
        if label and label not in labels:
            labels.append(label)

    def _made(self) -> Outline:
        used = dict.fromkeys(name for source, target, _ in self.lines for name in (source, target))
        for name in used:
            if name not in self.shapes and name not in (START, END):
                self.shapes[name] = Shape(self.prefix + name, name, "missing", "not there")
        start = [Shape(self.prefix + START, "start", "start")] if START in used else []
        end = [Shape(self.prefix + END, "end", "end")] if END in used else []
        order = {name: place for place, name in enumerate([START, *self.shapes, END])}
        lines = [
            Line(self.prefix + source, self.prefix + target, " or ".join(labels), kind)
            for (source, target, kind), labels in sorted(
                self.lines.items(), key=lambda item: order[item[0][0]]
            )
        ]
        return Outline(self.name, (*start, *self.shapes.values(), *end), tuple(lines))


def _routes(way: Edge | Choice, first: bool) -> list[tuple[str, str]]:
    """Where a way may lead, each with what is written at the line to it."""
    if isinstance(way, Choice):
        outcomes = (way.outcomes or {}).items()
        return [("" if result == chosen else str(result), chosen) for result, chosen in outcomes]
    if way.predicate is None:
        return [("" if first else "else", way.target)]
    return [(asked(way.predicate) or UNNAMED, way.target)]


def _later(seconds: float) -> str:
    """How long a way takes, in words; empty if it takes no time."""
    if not seconds:
        return ""
    for unit, size in (("days", 86_400), ("hours", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"after {seconds / size:.4g} {unit}"
    return f"after {seconds:.4g} s"


def _of_tasks(
    name: str,
    dag: Dag,
    graphs: Mapping[str, Any],
    conditions: Mapping[str, Any],
    prefix: str,
    above: tuple[Any, ...] = (),
) -> Outline:
    """The outline of a workflow: its tasks in layers, and what each depends on."""
    rank = _ranks(dag)
    shapes, lines = [], []
    for task, data in dag.items():
        code = data.get("run") or task
        inside, drawn = graphs.get(code), None
        if isinstance(inside, Plan):
            drawn = outline_of_plan(inside, None, f"{prefix}{task}/")
        elif inside is not None and not any(inside is each for each in above):
            drawn = outline_of_graph(inside, f"{prefix}{task}/", above)
        condition = conditions.get(code)
        called = "" if condition is None else str(getattr(condition, "__name__", ""))
        note = "" if condition is None else UNNAMED if called in ("", "<lambda>") else f"if {called}"
        added = data.get("added_by") is not None
        shapes.append(Shape(prefix + task, task, "task", note, rank.get(task), drawn, added))
        for kind, needs in (("plain", data.get("depends_on", ())), ("optional", data.get("optional", ()))):
            line: LineKind = "plain" if kind == "plain" else "optional"
            lines += [Line(prefix + needed, prefix + task, "", line) for needed in needs]
    known = {shape.id for shape in shapes}
    missing = dict.fromkeys(line.source for line in lines if line.source not in known)
    shapes += [Shape(each, each.removeprefix(prefix), "missing", "not there") for each in missing]
    if missing:
        shapes = [shape._replace(rank=None) for shape in shapes]
    return Outline(name, tuple(shapes), tuple(lines), flow=True)


def _ranks(dag: Dag) -> dict[str, int]:
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


def _items(section: Section) -> str:
    if isinstance(section.over, str):
        return f"for each of {section.over}"
    named = asked(section.over) if section.over is not None else ""
    return f"for each of {named}()" if named else "for each item"


def _stops(name: str, before: frozenset[str], after: frozenset[str]) -> str:
    when = [word for word, names in (("before", before), ("after", after)) if name in names]
    return f"stops {' and '.join(when)}" if when else ""


def _mistakes(graph: Any) -> tuple[str, ...]:
    try:
        graph.freeze()
    except DefinitionError as problem:
        return tuple(problem.mistakes)
    return ()
