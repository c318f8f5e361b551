"""A tool for each graph: its arguments are the input of a run, and the id of the run."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Final

from anyio.to_thread import run_sync

from limpet.errors import RunExists, RunNotFound, UsageError
from limpet.frontends.given_values import check_text
from limpet.frontends.graph_inputs import input_schema
from limpet.frontends.graph_on_store import GraphOnStore
from limpet.graphs.plan import PLANNER
from limpet.handle import RunHandle
from limpet.integrations.mcp.run_calls import follow
from limpet.integrations.mcp.run_outcomes import OUTCOME
from limpet.integrations.mcp.served_runs import ServedRuns
from limpet.integrations.mcp.tools.offered_tool import ADDS, Answer, OfferedTool, ToolCall, check_values

LONGEST_NAME: Final = 64
"""Characters of the name of a tool, at most: some clients take no more."""

RUN_ID: Final = {
    "type": "string",
    "description": "the id of the run: the same call with the same id is the same run (default: a new one)",
}

NODES_IN_TEXT: Final = 30


def graph_tool(graph: GraphOnStore, taken: Collection[str]) -> OfferedTool:
    """The tool of a graph. `taken` are names of other tools. Raises `UsageError` for two graphs of one name."""
    plan = graph.compiled().plan
    schema = dict(input_schema(plan))
    properties = dict(schema.get("properties", {}))
    run_id = "run_id" if "run_id" not in properties else "limpet_run_id"
    inputs = frozenset(properties)
    schema |= {"type": "object", "properties": {**properties, run_id: RUN_ID}}

    async def start(call: ToolCall) -> Answer:
        values = dict(call.values)
        wanted = values.pop(run_id, None)
        if wanted is not None:
            check_text(run_id, wanted)
        handle = await run_sync(_started, call.served, graph, values, wanted)
        return await follow(call, handle.run_id)

    return OfferedTool(tool_name(graph.name, taken), _about(graph), schema, start, ADDS, OUTCOME, inputs)


def start_run(
    served: ServedRuns, graph: GraphOnStore, given: Mapping[str, Any], run_id: str | None, **options: Any
) -> RunHandle[Any]:
    """Start a run of a graph, once its input fits, or find the one that the same call has started."""
    check_values(given, input_schema(graph.compiled().plan), f"graph {graph.name!r}", "input")
    return _started(served, graph, given, run_id, **options)


def _started(
    served: ServedRuns, graph: GraphOnStore, given: Mapping[str, Any], run_id: str | None, **options: Any
) -> RunHandle[Any]:
    try:
        return graph.start(given, run_id=run_id, **options)
    except RunExists as problem:
        with suppress(RunNotFound):
            served.run(problem.run_id)
            raise
        # The name of a graph that isn't served is of no concern to clients.
        raise RunExists(problem.run_id, "it isn't a run of this graph") from None


def tool_name(name: str, taken: Collection[str]) -> str:
    """The name of a graph as the name of a tool. Raises `UsageError` if that is taken by another graph's."""
    found = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_")[:LONGEST_NAME] or "graph"
    if found in taken:
        found = f"run_{found}"[:LONGEST_NAME]
    if found in taken:
        raise UsageError(
            f"the tool of graph {name!r} would be called {found!r}, as another is: rename the graph"
        )
    return found


def _about(graph: GraphOnStore) -> str:
    plan = graph.compiled().plan
    nodes = [name for name in plan.nodes if name != PLANNER]
    kind = "the nodes" if plan.layers is None else "the tasks"
    listed = ", ".join(nodes[:NODES_IN_TEXT])
    about = f"Run {graph.name}: {kind} {listed}{' …' if len(nodes) > NODES_IN_TEXT else ''}."
    written = graph.graph.description.strip()
    return f"{written}\n\n{about}" if written else about
