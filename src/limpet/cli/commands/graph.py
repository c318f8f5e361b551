"""`graph show`, `check`, `draw`: look at a graph without running it."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from limpet.cli.exit_codes import OK, USAGE
from limpet.cli.output import Output
from limpet.cli.project import store_of
from limpet.cli.targets import Graph, OnStore, load_target
from limpet.errors import DefinitionError, UsageError
from limpet.graphs.parallel import Section
from limpet.graphs.plan import END, PLANNER, Plan, PlanNode

_BY_ENDING = {".svg": "svg", ".mmd": "mermaid", ".mermaid": "mermaid", ".txt": "text"}


def show(given: Namespace, output: Output) -> int:
    """The nodes of a graph, and what follows each; of a workflow, its tasks by layer."""
    plan = _seen(given.target).compiled().plan
    rows = _tasks(plan) if plan.layers is not None else [_node(plan, node) for node in plan.nodes.values()]
    columns = (
        ("layer", "task", "after", "policy")
        if plan.layers is not None
        else ("node", "then", "policy", "stops")
    )
    if output.json:
        about = {
            "name": plan.name,
            "fingerprint": plan.fingerprint,
            "kind": "workflow" if plan.layers else "graph",
        }
        output.result({**about, "nodes": [dict(zip(columns, row, strict=True)) for row in rows]})
    else:
        output.facts({"graph": plan.name, "fingerprint": plan.fingerprint, "begins with": _entry(plan)})
        output.table(columns, rows)
    return OK


def check(given: Namespace, output: Output) -> int:
    """Whether a graph is in order."""
    try:
        plan = _seen(given.target).compiled().plan
    except DefinitionError as problem:
        if output.json:
            output.result({"ok": False, "mistakes": problem.mistakes})
        else:
            for mistake in problem.mistakes:
                output.say(mistake, "failed")
        return USAGE
    if output.json:
        output.result({"ok": True, "name": plan.name, "fingerprint": plan.fingerprint, "mistakes": []})
    else:
        output.text(f"{plan.name} is in order")
    return OK


def _seen(target: str) -> Graph:
    """A graph to be looked at: of a YAML file nothing is imported for that."""
    if not target.endswith((".yaml", ".yml")):
        return load_target(target)
    from limpet.yaml_files.loading import check as look_at

    return look_at(target)


def draw(given: Namespace, output: Output) -> int:
    """A picture of a graph, coloured by a run if one is named."""
    graph = _seen(given.target)
    wanted = given.format or _BY_ENDING.get(Path(given.out).suffix if given.out else ".txt")
    if wanted is None:
        raise UsageError(f"--out {given.out}: end it in {', '.join(_BY_ENDING)}, or say --format")
    drawn: Any = graph if given.run is None else OnStore(graph, store_of(given, graph, there=True))
    picture = drawn.draw(wanted, run_id=given.run)
    if given.out is None:
        output.result({"format": wanted, "picture": picture}) if output.json else output.text(picture)
        return OK
    try:
        Path(given.out).write_text(picture, encoding="utf-8")
    except OSError as problem:
        raise UsageError(f"can't write {given.out}: {problem}") from problem
    output.result({"format": wanted, "file": given.out}) if output.json else output.text(given.out)
    return OK


def _entry(plan: Plan) -> str | None:
    return None if plan.layers is not None else plan.entry


def _node(plan: Plan, node: PlanNode) -> tuple[str, str, str, str]:
    then = [_way(way) for way in node.ways] + (["end"] if node.exit else [])
    stops = [
        word
        for word, names in (("before", plan.interrupt_before), ("after", plan.interrupt_after))
        if node.name in names
    ]
    return node.name, ", ".join(dict.fromkeys(then)), _policy(node), " and ".join(stops)


def _way(way: Any) -> str:
    if isinstance(way, Section):
        what = f"each {way.each}" if way.each is not None else " | ".join(way.branches)
        return f"({what}) → {way.fan_in}"
    if not way.targets:
        return "any"
    return " or ".join("end" if target == END else target for target in dict.fromkeys(way.targets))


def _policy(node: PlanNode) -> str:
    parts = [f"{node.retry.attempts} attempts"] if node.retry is not None else []
    return ", ".join([*parts, *([f"{node.timeout:g} s"] if node.timeout is not None else [])])


def _tasks(plan: Plan) -> list[tuple[Any, str, str, str]]:
    flow = plan.graph
    layer_of = {name: number for number, names in enumerate(flow.layers) for name in names}
    assert plan.layers is not None
    nodes = {name: node for name, node in plan.layers.nodes.items() if name != PLANNER}
    ordered = sorted((name for name in nodes if name in layer_of), key=lambda name: layer_of[name])
    return [(layer_of[name], name, ", ".join(_before(nodes[name])), _policy(nodes[name])) for name in ordered]


def _before(node: PlanNode) -> list[str]:
    spec = getattr(node.work, "spec", None)
    return list(getattr(spec, "depends_on", ())) + [f"{name}?" for name in getattr(spec, "optional", ())]
