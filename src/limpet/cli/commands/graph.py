"""`graph show`, `check`, `draw`, `schema`: look at a graph without running it."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from limpet.cli.exit_codes import OK, USAGE
from limpet.cli.output import Output
from limpet.cli.project import Graph, complete_run_id, find_store, load_target
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.errors import DefinitionError, UsageError
from limpet.frontends.graph_on_store import GraphOnStore
from limpet.graphs.edges import END
from limpet.graphs.parallel import Section
from limpet.graphs.plan import PLANNER, Plan, PlanNode
from limpet.stores.unopened import without_opening

FORMATS = {".svg": "svg", ".mmd": "mermaid", ".mermaid": "mermaid", ".txt": "text"}


def show(args: Namespace, output: Output) -> int:
    """The nodes of a graph, and what follows each; of a workflow, its tasks by layer."""
    compiled = _compiled_to_inspect(args.target)
    plan = compiled.plan
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    if plan.layers is not None:
        kind = "workflow"
        entry = None
        columns = ("layer", "task", "after", "policy")
        rows = _task_rows(plan)
    else:
        kind = "graph"
        entry = plan.entry
        columns = ("node", "then", "policy", "stops")
        rows = [_node_row(plan, node) for node in plan.nodes.values()]
    if output.json:  # for programs, layers count from 0, as in events and in the records of tasks
        output.result(
            {
                "name": plan.name,
                "fingerprint": plan.fingerprint,
                "kind": kind,
                "queue": compiled.queue,
                "limits": [limit.name for limit in compiled.limits],
                "queue_limits": [limit.name for limit in compiled.queue_limits],
                "nodes": [dict(zip(columns, row, strict=True)) for row in rows],
            }
        )
    else:
        output.facts(
            {
                "graph": plan.name,
                "fingerprint": plan.fingerprint,
                "entry": entry,
                "queue": compiled.queue,
                "limits": ", ".join(limit.name for limit in compiled.limits),
                "of queues": ", ".join(
                    f"{limit.name} ({' '.join(limit.queues)})" for limit in compiled.queue_limits
                ),
            }
        )
        if plan.layers is not None:
            rows = [(layer + 1, *rest) for layer, *rest in rows]
        output.table(columns, rows)
    return OK


def check(args: Namespace, output: Output) -> int:
    """Whether a graph is valid."""
    try:
        plan = _compiled_to_inspect(args.target).plan
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
        output.message(f"{plan.name} is valid")
    return OK


def _compiled_to_inspect(target: str) -> CompiledGraph:
    """A compiled graph to look at. No store is opened."""
    with without_opening():
        return _load_to_inspect(target).compiled()


def _load_to_inspect(target: str) -> Graph:
    """A graph to look at. For a YAML file, none of the code that it names is imported."""
    if not target.endswith((".yaml", ".yml")):
        return load_target(target)
    from limpet.yaml_files.loading import check as load_without_code

    return load_without_code(target)


def draw(args: Namespace, output: Output) -> int:
    """A picture of a graph, coloured by a run if one is named."""
    ending = Path(args.out).suffix if args.out else ".txt"
    wanted = args.format or FORMATS.get(ending)
    if wanted is None:
        raise UsageError(f"--out {args.out}: end it in {', '.join(FORMATS)}, or give --format")
    picture = _picture(args, wanted, output)
    if args.out is None:
        if output.json:
            output.result({"format": wanted, "picture": picture})
        else:
            output.text(picture)
        return OK
    try:
        Path(args.out).write_text(picture, encoding="utf-8")
    except OSError as problem:
        raise UsageError(f"can't write {args.out}: {problem}") from problem
    if output.json:
        output.result({"format": wanted, "file": args.out})
    else:
        output.message(args.out)
    return OK


def _picture(args: Namespace, wanted: Any, output: Output) -> str:
    """The picture. Only that of a run needs a store."""
    width = None if args.out else output.width
    if args.run is None:
        with without_opening():
            return _load_to_inspect(args.target).draw(wanted, width=width)
    graph = _load_to_inspect(args.target)
    args.graph = args.graph or [args.target]  # for the commands that an error names
    store = find_store(args, graph, must_exist=True)
    complete_run_id(args, store, output)
    return GraphOnStore(graph, store).draw(wanted, run_id=args.run, width=width)


def schema(args: Namespace, output: Output) -> int:
    """The JSON Schema of YAML files. It is JSON by itself, so `--json` changes nothing."""
    from limpet.yaml_files.grammar import json_schema

    output.text(json_schema.text().rstrip("\n"))
    return OK


def _node_row(plan: Plan, node: PlanNode) -> tuple[str, str, str, str]:
    following = [_following(way) for way in node.edges]
    if node.exit:
        following.append("end")
    stops = []
    if node.name in plan.interrupt_before:
        stops.append("before")
    if node.name in plan.interrupt_after:
        stops.append("after")
    return node.name, ", ".join(dict.fromkeys(following)), _policy(node), " and ".join(stops)


def _following(way: Any) -> str:
    """What an edge or a parallel section leads to."""
    if isinstance(way, Section):
        branches = " | ".join(way.branches)
        if way.each is not None:
            branches = f"each {way.each}"
        return f"({branches}) → {way.fan_in}"
    if not way.targets:
        return "any"
    return " or ".join("end" if target == END else target for target in dict.fromkeys(way.targets))


def _policy(node: PlanNode) -> str:
    parts = []
    if node.retry is not None:
        parts.append(f"{node.retry.attempts} attempts")
    if node.timeout is not None:
        parts.append(f"{node.timeout:g} s")
    if node.limits:
        parts.append(f"limits: {' '.join(node.limits)}")
    return ", ".join(parts)


def _task_rows(plan: Plan) -> list[tuple[Any, ...]]:
    layer_of = {name: number for number, names in enumerate(plan.graph.layers) for name in names}
    assert plan.layers is not None
    nodes = {name: node for name, node in plan.layers.nodes.items() if name != PLANNER}
    ordered = sorted((name for name in nodes if name in layer_of), key=lambda name: layer_of[name])
    return [
        (layer_of[name], name, ", ".join(_dependencies(nodes[name])), _policy(nodes[name]))
        for name in ordered
    ]


def _dependencies(node: PlanNode) -> list[str]:
    spec = getattr(node.workflow_task, "spec", None)
    return list(getattr(spec, "depends_on", ())) + [f"{name}?" for name in getattr(spec, "optional", ())]
