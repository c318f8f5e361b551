"""`server`: graphs and their runs as tools for agents. It lists the tools, and answers each call."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, Final, cast

from anyio.to_thread import run_sync
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    ListToolsResult,
    PaginatedRequestParams,
)

from limpet.defaults import MCP_WAIT
from limpet.engine.supervisor.supervisor import Supervisor
from limpet.errors import LimpetError, UsageError, did_you_mean
from limpet.graph_methods import GraphMethods
from limpet.integrations.mcp.request_states import STATE_LASTS, boundary
from limpet.integrations.mcp.results import error_result, result_of, unexpected_error
from limpet.integrations.mcp.run_calls import resume_call
from limpet.integrations.mcp.served_runs import ServedRuns, ServerOptions
from limpet.integrations.mcp.tasks import add_tasks
from limpet.integrations.mcp.tools.general_tools import GENERAL_TOOLS
from limpet.integrations.mcp.tools.graph_tools import graph_tool
from limpet.integrations.mcp.tools.inline_graphs import INLINE_TOOL
from limpet.integrations.mcp.tools.offered_tool import READS, OfferedTool, ToolCall, checked_arguments
from limpet.integrations.mcp.tools.workflow_tools import EXECUTE_INLINE, WORKFLOW_TOOLS
from limpet.stores.opening import open_store
from limpet.version import VERSION

INSTRUCTIONS: Final = """\
Each graph is a tool that starts a durable run: it continues when the client, this server or the machine is gone. Give
a run_id, and a repeated call is the same run. A result names its run; get_run, answer_run, cancel_run and the other
tools take that id. If a run asks something, have the user answer it: don't make up an answer. If a call ends while
its run continues, get_run with wait=30 waits for it."""

log = logging.getLogger("limpet.mcp")

Context = ServerRequestContext[Any, Any]


def server(
    store: Any,
    graphs: Iterable[GraphMethods[Any]] = (),
    *,
    supervisor: Supervisor | None = None,
    wait: float = MCP_WAIT,
    read_only: bool = False,
    allow_inline: bool = False,
    workflow_tools: bool = False,
    state_lasts: float = STATE_LASTS,
) -> Server[Any]:
    """An MCP server, of the official SDK, whose tools start runs of these graphs and look after them.

    `store` is whatever `open_store` takes. Clients reach the runs of these graphs, and no others. It executes no
    runs: a worker of the store does, or a supervisor in this process, which you start and stop; as `supervisor`, it
    gets the graphs that are added later, too. A call follows its run for `wait` seconds, and says what to do next.
    With `read_only`, nothing can be changed or started. `allow_inline` offers a tool that runs a workflow given as
    YAML, which needs a `supervisor`: such a text can do whatever this process may do, so allow it only where the
    client may run code here. `workflow_tools` adds tools by the names of workflows-mcp. What a client hands back with
    the answers of a user counts for `state_lasts` seconds. Raises `UsageError`.

    Serve it with `serve_stdio(server)`, or over HTTP with `app(server, token=…)`.
    """
    if type(wait) not in (int, float) or not 0 < wait < inf:
        raise UsageError(f"wait is for how many seconds a call follows its run, more than 0, not {wait!r}")
    if type(state_lasts) not in (int, float) or not 0 < state_lasts < inf:
        raise UsageError(
            f"state_lasts is for how many seconds a reply counts, more than 0, not {state_lasts!r}"
        )
    if allow_inline and read_only:
        raise UsageError("allow_inline starts runs, and read_only changes nothing: leave one of them out")
    if allow_inline and supervisor is None:
        raise UsageError(
            "allow_inline=True needs supervisor=…: no other process has the code of such a graph"
        )
    opened = open_store(store)
    options = ServerOptions(wait, state_lasts, read_only, allow_inline, workflow_tools)
    served = ServedRuns(opened, graphs, options, supervisor)
    answering = _Answering(served, _tools_of(served))
    made: Server[Any] = Server(
        "limpet",
        version=VERSION,
        instructions=INSTRUCTIONS,
        on_list_tools=answering.list_tools,
        on_call_tool=answering.call_tool,
    )
    if not read_only:
        made.middleware.append(boundary(opened, state_lasts))
    add_tasks(made, served)
    return made


def _tools_of(served: ServedRuns) -> dict[str, OfferedTool]:
    """The tools of a server by name. Raises `UsageError` for graphs whose tools would have the same name."""
    options = served.options
    offered = list(GENERAL_TOOLS)
    if options.allow_inline:
        offered.append(INLINE_TOOL)
    if options.workflow_tools:
        offered += WORKFLOW_TOOLS
    if options.workflow_tools and options.allow_inline:
        offered.append(EXECUTE_INLINE)
    tools = {tool.name: tool for tool in offered}
    for graph in served.graphs.values():
        tool = graph_tool(graph, tools)
        tools[tool.name] = tool
    if options.read_only:
        return {name: tool for name, tool in tools.items() if tool.effect == READS}
    return tools


class _Answering:
    """Lists the tools, and answers calls. An error of the library is a result that says what to do."""

    def __init__(self, served: ServedRuns, tools: Mapping[str, OfferedTool]) -> None:
        self._served = served
        self._tools = tools

    async def list_tools(self, context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        """All tools, in an order that stays."""
        return ListToolsResult(tools=[tool.as_listed for tool in self._tools.values()])

    async def call_tool(
        self, context: Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        """Answer one call."""
        tool = self._tools.get(params.name)
        if tool is None:
            near = did_you_mean(params.name[:200], self._tools)
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name[:200]!r}{near}")
        version = context.protocol_version
        try:
            answer = await self._answer(tool, context, params)
            if isinstance(answer, dict) and answer.get("resultType") != "task":
                return await run_sync(result_of, answer, version)
            return cast(
                "CallToolResult | InputRequiredResult", answer
            )  # or a task, which the SDK sends as it is
        except LimpetError as problem:
            return error_result(problem, version)
        except MCPError:
            raise
        except Exception:
            log.exception("a call of %s failed", params.name)
            return unexpected_error(version)

    async def _answer(self, tool: OfferedTool, context: Context, params: CallToolRequestParams) -> Any:
        values = await run_sync(checked_arguments, tool, params.arguments or {})
        call = ToolCall(self._served, context, params, values)
        if tool.prepare is not None:
            await run_sync(tool.prepare, call)
        if params.request_state is not None:
            if self._served.options.read_only:  # nothing has opened it
                raise MCPError(INVALID_PARAMS, "this server is read-only, and asks nothing")
            return await resume_call(call)
        return await tool.answer(call)
