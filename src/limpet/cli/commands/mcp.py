"""`mcp`: graphs and their runs as tools for agents, over standard input and output or over HTTP."""

from __future__ import annotations

import sys
from argparse import Namespace
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from limpet.cli.commands.schedules import put_declared
from limpet.cli.commands.worker import log_warnings, signal_names
from limpet.cli.exit_codes import UNAVAILABLE
from limpet.cli.output import Output
from limpet.cli.project import NAME_GRAPHS_FOR_ALL_COMMANDS, Graph, find_store, project_graphs
from limpet.cli.serving import StopSignals, serve_until_stopped
from limpet.defaults import STOP_GRACE
from limpet.engine.supervisor.supervisor import Supervisor
from limpet.errors import UsageError
from limpet.integrations.mcp import app, server
from limpet.integrations.mcp.http import PATH
from limpet.integrations.mcp.stdio import StdioServer, claimed_wire
from limpet.supervision import supervise

STDIO_GRACE: Final = 1.5
"""Seconds that nodes have to finish once the client has left: it kills this process soon."""

HTTP_OPTIONS: Final = ("host", "port", "token", "allow_host")


class _Offered(NamedTuple):
    """The server, and what executes its runs."""

    server: Any
    supervisor: Supervisor | None
    name: str
    graphs: list[Graph]


def serve(args: Namespace, output: Output) -> int:
    """Serve the graphs that the command line names."""
    if args.allow_inline and args.no_worker:
        raise UsageError("--allow-inline executes runs here, and --no-worker none: leave one of them out")
    if args.allow_inline and args.read_only:
        raise UsageError("--allow-inline starts runs, and --read-only changes nothing: leave one of them out")
    if args.http:
        return _serve_http(args, output)
    for name in HTTP_OPTIONS:
        if getattr(args, name) not in (None, [], "127.0.0.1"):
            raise UsageError(f"--{name.replace('_', '-')} is for --http: add it, or leave both out")
    return _serve_stdio(args, output)


def _serve_stdio(args: Namespace, output: Output) -> int:
    # First of all: a module with a graph may print something when it is imported.
    with claimed_wire() as wire, StopSignals() as signals:
        offered = _offered(args, output, STDIO_GRACE)
        output.say(f"serving {offered.name} to the client that started this")
        return serve_until_stopped(StdioServer(offered.server, wire), offered.supervisor, signals, output)


def _serve_http(args: Namespace, output: Output) -> int:
    from limpet.cli.web.listening import address_of, listen, why_not
    from limpet.cli.web.web_server import WebServer

    address = address_of(args)
    offered = _offered(args, output, STOP_GRACE)
    try:
        listening = listen(address)
    except OSError as problem:
        output.problem(why_not(problem, address), "address-unavailable")
        return UNAVAILABLE
    with ExitStack() as open_things:
        open_things.enter_context(listening.socket)
        signals = open_things.enter_context(StopSignals())
        application = app(offered.server, token=listening.token, hosts=listening.hosts)
        _say_where(listening.url(PATH, with_token=False), listening, offered, output)
        web = WebServer(application, listening.socket, has_lifespan=True)
        return serve_until_stopped(web, offered.supervisor, signals, output)


def _offered(args: Namespace, output: Output, grace: float) -> _Offered:
    """The server of a command. Raises `UsageError`."""
    log_warnings()
    graphs = project_graphs(args)
    if not graphs and not args.allow_inline:
        raise UsageError(f"no graph named: pass --graph, {NAME_GRAPHS_FOR_ALL_COMMANDS}")
    store = find_store(args, graphs[0] if graphs else None, must_exist=args.read_only)
    supervisor: Supervisor | None = None
    if not (args.no_worker or args.read_only):
        supervisor = supervise(store, graphs, grace=grace)
        put_declared(graphs, store, output.say)
    made = server(
        store,
        graphs,
        supervisor=supervisor,
        wait=args.wait,
        read_only=args.read_only,
        allow_inline=args.allow_inline,
        workflow_tools=args.workflow_tools,
    )
    names = ", ".join(graph.name for graph in graphs) or "workflows that clients give"
    return _Offered(made, supervisor, f"{names} on {store}", graphs)


def _say_where(url: str, listening: Any, offered: _Offered, output: Output) -> None:
    """Print the URL and, unless the user chose it, the token."""
    if output.json:
        host = listening.address.host
        output.result({"url": url, "host": host, "port": listening.port, "token": listening.token})
        return
    output.message(url)
    # Where this isn't a terminal, it may be a log that is kept; and the user knows a token that the user chose.
    if not listening.address.token or sys.stdout.isatty():
        output.message(f"Authorization: Bearer {listening.token}")
    also = ", and executing its runs" if offered.supervisor is not None else ""
    output.say(f"serving {offered.name}{also}. {signal_names()} stops it")
