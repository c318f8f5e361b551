"""Runs of workflows that clients give as YAML.

Such a text may call any function that can be imported here, and actions that write files or run commands: its author
can do whatever this process may do. So it has to be allowed. A text is code, and no code is ever taken from a store:
after a restart, its runs are continued once the same text is given again.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from anyio.to_thread import run_sync

from limpet.frontends.graph_on_store import GraphOnStore
from limpet.integrations.mcp.run_calls import follow
from limpet.integrations.mcp.run_outcomes import OUTCOME
from limpet.integrations.mcp.served_runs import ServedRuns
from limpet.integrations.mcp.tools.graph_tools import start_run
from limpet.integrations.mcp.tools.offered_tool import (
    ADDS,
    OBJECT,
    TEXT,
    Answer,
    OfferedTool,
    ToolCall,
    takes,
)

NAME_OF_TEXT: Final = "yaml"
"""What messages call the text, before the line and the column of a mistake."""


async def run_text(call: ToolCall, text: str, input: Any, run_id: str | None) -> Answer:
    """Start a run of the graph in a text, and follow it."""
    handle = await run_sync(lambda: start_run(call.served, _graph_in(call.served, text), input or {}, run_id))
    return await follow(call, handle.run_id)


def know_text(call: ToolCall) -> None:
    """Know the graph in the text of a call again, so that its run can be continued."""
    values = call.values
    _graph_in(call.served, values["yaml"] if "yaml" in values else values["workflow_yaml"])


def _graph_in(served: ServedRuns, text: str) -> GraphOnStore:
    """The graph that a text declares. Each text is a graph of its own. Raises `DeclarationError`."""
    from limpet.yaml_files.loading import loads

    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
    with served.adding:
        for name, known in served.graphs.items():
            if name.endswith(f"@{digest}"):
                return known
        graph = loads(text, name=NAME_OF_TEXT, store=served.store)
        # Another text may have the same name, also later: a run is continued by the text that it was started with.
        graph.name = f"{graph.name}@{digest}"
        graph.compile()
        return served.add(graph)


async def run_inline(call: ToolCall) -> Answer:
    """Answer the tool."""
    values = call.values
    return await run_text(call, values["yaml"], values.get("input"), values.get("run_id"))


INLINE_TOOL: Final = OfferedTool(
    "run_inline",
    "Start a durable run of a graph or workflow that is given as YAML, and follow it.",
    takes(
        ["yaml"],
        yaml=(TEXT, "the declaration"),
        input=(OBJECT, "the first values of its state, or the inputs of the workflow"),
        run_id=(TEXT, "the id of the run (default: a new one)"),
    ),
    run_inline,
    ADDS,
    OUTCOME,
    prepare=know_text,
)
