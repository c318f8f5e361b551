"""The command line: its nouns and verbs, and the arguments of each.

Each command names its function as `module:function`, relative to `limpet.cli.commands`. The module is imported when
the command is called.
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter, _SubParsersAction
from typing import TYPE_CHECKING

from limpet.cli.command_parser import (
    EXIT_CODES,
    TARGET,
    CommandParser,
    add_common,
    add_noun,
    add_subcommands,
    add_verb,
)
from limpet.cli.noun_arguments import (
    add_graph_verbs,
    add_limit_verbs,
    add_schedule_verbs,
    add_store_verbs,
)
from limpet.cli.values import at_least_one, per_graph, port_number, queue_list
from limpet.defaults import (
    LEASE,
    MAX_CRASHES,
    MAX_RUNS_AT_ONCE,
    MAX_SLEEP,
    MCP_WAIT,
    POLL_INTERVAL,
    STOP_GRACE,
)
from limpet.version import VERSION

if TYPE_CHECKING:
    from limpet.cli.command_parser import Verbs

EXAMPLES = """\
examples:
  limpet demo                         see a run survive kill -9, in a minute
  limpet run flow.yaml -i topic=kelp  run a graph, with an input
  limpet run app.py:graph --detach    queue a run for a worker
  limpet worker app.py:graph          execute queued, sleeping and crashed runs
  limpet workers                      which workers there are, and what they do
  limpet runs list --status failed    which runs need attention
  limpet runs show RUN                what a run needs, and the command for it
  limpet answer RUN yes               answer what a paused run asks
  limpet serve --graph app.py:graph   look at runs in a browser
  limpet graph draw flow.yaml         a picture of a graph

The first characters of a run's id are enough, if no other id begins with them.
The store is --store, else LIMPET_STORE, the project's, or limpet.db here.
"""

INPUT = (
    "JSON, @file with JSON in it, or key=value; values have the types of the graph's schema, and else are JSON if "
    "possible, otherwise text; repeatable"
)
LISTED_RUNS = 50
"""How many runs `runs list` shows, unless `--limit` is given."""

WATCH_INTERVAL = 0.5
"""Seconds between two looks of `runs watch`, unless `--every` is given."""


def make_parser() -> ArgumentParser:
    """The parser of the whole command line. Raises `WrongCommandLine`.

    A line that ends before its verb has no `command`: `usage_of` is the parser whose help lists what may come next.
    """
    parser: ArgumentParser = CommandParser(
        prog="limpet",
        description="Run, watch and repair durable graphs.",
        epilog=f"{EXAMPLES}\n{EXIT_CODES}",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"limpet {VERSION}")
    add_common(parser, hidden=True)
    parser.set_defaults(json=False, no_color=False, store=None, graph=None)
    commands = add_subcommands(parser, "COMMAND")
    _add_run_commands(commands)
    _add_runs_verbs(add_noun(commands, "runs", "list, inspect and change runs"))
    add_graph_verbs(add_noun(commands, "graph", "inspect a graph"))
    add_limit_verbs(add_noun(commands, "limits", "how much may be under way at once, over all workers"))
    add_schedule_verbs(add_noun(commands, "schedules", "have runs start at planned times"))
    add_store_verbs(add_noun(commands, "store", "look after a store"))
    _add_other_commands(commands)
    ways = _ways(commands)
    for each in (parser, *commands.choices.values()):
        each.ways = ways  # type: ignore[attr-defined]  # subparsers are of the same class
    return parser


def _ways(commands: Verbs, before: str = "") -> list[str]:
    found = []
    for name, parser in commands.choices.items():
        inner = [action for action in parser._actions if isinstance(action, _SubParsersAction)]
        if inner:
            found += _ways(inner[0], f"{before}{name} ")
        else:
            found.append(f"{before}{name}")
    return found


def _add_run_commands(commands: Verbs) -> None:
    run = add_verb(commands, "run", "run:run", "run a graph to its end or its next pause")
    target = run.add_argument("target", metavar="GRAPH", help=TARGET)
    target.required = (
        False  # `--input a=1 b=2 GRAPH` takes it for one more input; the command puts that right
    )
    run.add_argument("--input", "-i", action="append", nargs="+", default=[], metavar="INPUT", help=INPUT)
    run.add_argument(
        "--config", action="append", default=[], metavar="KEY=VALUE", help="settings for the nodes"
    )
    run.add_argument("--id", help="the id of the new run")
    run.add_argument("--tag", action="append", default=[], help="a tag to find the run by")
    run.add_argument("--checkpoint", help="resume from this checkpoint (a file, or run@step)")
    run.add_argument("--detach", action="store_true", help="only queue it: a worker executes it")
    run.add_argument("--priority", type=int, help="with --detach: higher ones first (0)")
    run.add_argument("--queue", metavar="NAME", help="with --detach: for workers that serve this queue")
    _add_deadline(run, "when the run fails if it hasn't ended")
    resume = add_verb(commands, "resume", "run:resume", "resume a run that stopped or crashed")
    resume.add_argument("run", metavar="RUN")
    resume.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change the state first"
    )
    resume.add_argument(
        "--wait", type=float, metavar="SECONDS", help="wait this long for a process that holds the run"
    )
    _add_deadline(resume, "a new deadline")
    answer = add_verb(
        commands,
        "answer",
        "run:answer",
        "answer a question of a run, or approve an interrupted one, and resume it",
    )
    answer.add_argument("run", metavar="RUN")
    values = answer.add_argument(
        "answer",
        nargs="+",
        default=[],
        metavar="VALUE",
        help="parsed as JSON if possible, otherwise taken as text; before it the QUESTION, if there are several; "
        "none approves a run that was interrupted",
    )
    # Not nargs="*": that takes no value as soon as an option follows the run, and refuses one after it.
    values.required = False
    answer.add_argument("--by", metavar="NAME", help="who answers or approves, for the history")
    answer.add_argument(
        "--detach", action="store_true", help="only save the answer: a worker resumes the run"
    )


def _add_runs_verbs(verbs: Verbs) -> None:
    listed = add_verb(verbs, "list", "runs:list_runs", "the runs in the store, newest first")
    _add_filters(listed)
    most = f"how many at most ({LISTED_RUNS})"
    listed.add_argument("--limit", type=at_least_one, default=LISTED_RUNS, metavar="N", help=most)
    listed.add_argument("--after", metavar="CURSOR", help="from this place on: the last page ends there")
    _add_run_verb(
        verbs, "show", "runs:show", "one run: its status, its error or question, and what to do next"
    )
    _add_run_verb(verbs, "history", "runs:history", "the steps of a run")
    state = _add_run_verb(verbs, "state", "runs:state", "the state of a run, now or after a step")
    state.add_argument("--step", type=int, help="after this step (default: the newest)")
    state.add_argument(
        "--branch", metavar="NAME", help="in this branch, as history names it, such as page[2]"
    )
    state.add_argument("--key", help="only the value of this key")
    state.add_argument("--reveal", action="store_true", help="show secret values")
    diff = _add_run_verb(verbs, "diff", "runs:diff", "what changed between two steps")
    diff.add_argument("a", type=int, metavar="STEP")
    diff.add_argument("b", type=int, metavar="STEP")
    diff.add_argument("--branch", metavar="NAME", help="in this branch, as history names it")
    diff.add_argument("--reveal", action="store_true", help="show secret values")
    _add_watch_options(_add_run_verb(verbs, "watch", "watch:watch", "follow a run until it stops"))
    fork = _add_run_verb(
        verbs, "fork", "run_changes:fork", "create a run that starts where this one was after a step"
    )
    fork.add_argument("--step", type=int, help="after this step (default: the newest)")
    fork.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change the state first"
    )
    fork.add_argument("--id", help="the id of the new run")
    fork.add_argument("--begin", action="store_true", help="hand the new run to the workers at once")
    rollback = _add_run_verb(verbs, "rollback", "run_changes:rollback", "set a run back to a step")
    rollback.add_argument("step", type=int, metavar="STEP")
    retry = add_verb(
        verbs,
        "retry",
        "many_runs:retry",
        "hand failed, cancelled or forked runs back to the workers, where they stopped",
    )
    _add_runs(retry)
    retry.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change their states first"
    )
    _add_deadline(retry, "a new deadline")
    send = _add_run_verb(verbs, "send", "run_changes:send", "send a message to a run, for a node to receive")
    send.add_argument("name", metavar="NAME")
    send.add_argument("value", metavar="VALUE", help="JSON if possible, otherwise text")
    send.add_argument("--key", help="of messages with the same name and key, only the first counts")
    _add_runs(add_verb(verbs, "cancel", "many_runs:cancel", "stop runs before their next nodes"))
    export = _add_run_verb(verbs, "export", "run_changes:export", "write a run to one file")
    export.add_argument("file", metavar="FILE")
    imported = add_verb(verbs, "import", "run_changes:import_", "put an exported run into the store")
    imported.add_argument("file", metavar="FILE")
    imported.add_argument("--id", help="its id in this store (default: the one it had)")
    _add_runs(add_verb(verbs, "delete", "many_runs:delete", "delete runs and their journals"))


def _add_deadline(parser: ArgumentParser, about: str) -> None:
    parser.add_argument("--deadline", metavar="WHEN", help=f"{about}: 90s, 30m, 2h, or 2026-05-01T12:00Z")


def _add_watch_options(watch: ArgumentParser) -> None:
    watch.add_argument(
        "--every",
        type=float,
        default=WATCH_INTERVAL,
        metavar="SECONDS",
        help=f"how often to check which process executes it, and where ({WATCH_INTERVAL:g})",
    )
    watch.add_argument(
        "--after",
        metavar="CURSOR",
        help="the events after this one, by its cursor in --json (default: from now on; in --json, all events)",
    )


def _add_runs(parser: ArgumentParser) -> None:
    """Which runs a command changes: those that are named, or all that match the filters."""
    parser.add_argument("runs", nargs="*", metavar="RUN", help="one or several; else give filters, or --all")
    _add_filters(parser)
    parser.add_argument("--limit", type=at_least_one, metavar="N", help="at most N of those that match")
    parser.add_argument("--all", action="store_true", help="all runs in the store")
    parser.add_argument("--dry-run", action="store_true", help="only list what would be done")
    parser.add_argument("--yes", action="store_true", help="don't ask for confirmation")


def _add_filters(parser: ArgumentParser) -> None:
    statuses = (
        "running, paused, completed, failed, cancelled; or queued, sleeping, retrying, waiting, abandoned, "
        "quarantined, thread, damaged; repeatable"
    )
    parser.add_argument("--status", action="append", help=statuses)
    parser.add_argument("--of", metavar="NAME", help="only runs of the graph with this name; so does --graph")
    parser.add_argument("--tag", action="append", help="only runs with this tag; repeatable")
    ago = "ago (90s, 30m, 2h, 7d), or at a time (2026-05-01T12:00Z)"
    parser.add_argument("--since", metavar="TIME", help=f"changed at most this long {ago}")
    parser.add_argument("--before", metavar="TIME", help="changed longer ago, or before")
    parser.add_argument("--created-since", metavar="TIME", help="created at most this long ago, or since")
    parser.add_argument("--created-before", metavar="TIME", help="created longer ago, or before")
    parser.add_argument(
        "--error", metavar="TYPE", help="whose last error is of this type, such as ValueError"
    )
    parser.add_argument("--node", metavar="NAME", help="that have stopped at this node, or have it next")
    parser.add_argument("--parent", metavar="RUN", help="that this run has started")
    parser.add_argument("--queue", metavar="NAME", help="in this queue")
    unserved = "that are due, and that no live worker can continue"
    parser.add_argument("--unserved", action="store_true", default=None, help=unserved)
    parser.add_argument("--text", help="with this text in their last error")


def _add_other_commands(commands: Verbs) -> None:
    _add_worker(commands)
    add_verb(
        commands, "workers", "workers:list_workers", "the workers of the store, and runs without a worker"
    )
    _add_serve(commands)
    _add_mcp(commands)
    demo = add_verb(
        commands, "demo", "demo:show", "a graph with a crash, parallel branches and a question, in a minute"
    )
    demo.add_argument("--dir", metavar="DIR", help="where to put it (default: a new directory)")
    demo.add_argument("--fast", action="store_true", help="without pauses to read")
    demo.add_argument(
        "--serve", action="store_true", help="then show the run in a browser, as limpet serve does"
    )
    completion = add_verb(
        commands, "completion", "completion:show", "a script that completes commands for your shell"
    )
    completion.add_argument(
        "shell",
        choices=("bash", "zsh", "fish", "run-ids"),
        help="whose script to print; run-ids prints the ids that the scripts offer",
    )


def _add_worker(commands: Verbs) -> None:
    worker = add_verb(
        commands, "worker", "worker:work", "execute queued, sleeping and crashed runs until it is stopped"
    )
    worker.add_argument(
        "targets", nargs="*", metavar="GRAPH", help=f"{TARGET} (default: the project's graphs)"
    )
    runs = f"runs at the same time ({MAX_RUNS_AT_ONCE})"
    worker.add_argument("--concurrency", type=int, default=MAX_RUNS_AT_ONCE, metavar="N", help=runs)
    worker.add_argument(
        "--per-graph",
        type=per_graph,
        action="append",
        default=[],
        metavar="[NAME=]N",
        help="runs of each graph, or of the graph NAME, at the same time; repeatable",
    )
    queues = "only runs in this queue, or in one of these: gpu,default; repeatable (default: in all)"
    worker.add_argument("--queue", dest="queues", type=queue_list, action="extend", help=queues)
    crashes = f"crashes of a worker in which a run is alone, until it is quarantined ({MAX_CRASHES})"
    worker.add_argument("--max-crashes", type=int, default=MAX_CRASHES, metavar="N", help=crashes)
    _add_seconds(worker, "--lease", LEASE, "how long it holds a run without renewing")
    _add_seconds(worker, "--poll", POLL_INTERVAL, "how often to look for runs")
    _add_seconds(worker, "--max-sleep", MAX_SLEEP, "a run that sleeps longer is released for that time")
    _add_seconds(worker, "--grace", STOP_GRACE, "how long nodes may finish when it is stopped")
    worker.add_argument(
        "--observer",
        action="append",
        default=[],
        metavar="NAME",
        help="have this observer watch all its runs, such as log; repeatable",
    )
    worker.add_argument("--once", action="store_true", help="resume everything that is ready, then exit")


def _add_serve(commands: Verbs) -> None:
    serve = add_verb(
        commands, "serve", "serve:serve", "look at runs in a browser, answer, retry and fork them"
    )
    exported = "a run that limpet runs export wrote: shown as it is, without a store"
    serve.add_argument("file", nargs="?", metavar="FILE", help=exported)
    serve.add_argument(
        "--worker", action="store_true", help="execute the runs of the graphs as well, as limpet worker does"
    )
    _add_address(serve)
    serve.add_argument("--read-only", action="store_true", help="refuse requests that change anything")
    serve.add_argument("--no-browser", action="store_true", help="only print the URL")


def _add_mcp(commands: Verbs) -> None:
    mcp = add_verb(commands, "mcp", "mcp:serve", "offer graphs and their runs to agents, as an MCP server")
    mcp.add_argument(
        "--http",
        action="store_true",
        help="over HTTP, for several clients (default: to the one that starts it)",
    )
    _add_address(mcp)
    mcp.add_argument("--no-worker", action="store_true", help="leave runs to other workers of the store")
    mcp.add_argument("--read-only", action="store_true", help="offer only tools that change nothing")
    inline = (
        "offer a tool that runs a workflow given as YAML: it can do whatever this process may do, so allow it only "
        "where the client may run code here"
    )
    mcp.add_argument("--allow-inline", action="store_true", help=inline)
    mcp.add_argument(
        "--workflow-tools",
        action="store_true",
        help="offer the tools of workflows-mcp as well, by their names",
    )
    _add_seconds(mcp, "--wait", MCP_WAIT, "how long a call follows its run")


def _add_address(parser: ArgumentParser) -> None:
    hosts = "the address to listen on (127.0.0.1); one that other machines can reach needs a token that you choose"
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help=hosts)
    ports = "the port to listen on; 0 for any that is free (8765, or any if that one is taken)"
    parser.add_argument("--port", type=port_number, metavar="PORT", help=ports)
    tokens = (
        "the token that requests need (default: a new one); better set LIMPET_TOKEN, as other users of the machine "
        "can see a command's options"
    )
    parser.add_argument("--token", metavar="TOKEN", help=tokens)
    names = "another name that the server is reached under, as behind a proxy; repeatable"
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=names)


def _add_seconds(parser: ArgumentParser, option: str, default: float, about: str) -> None:
    parser.add_argument(option, type=float, default=default, metavar="SECONDS", help=f"{about} ({default:g})")


def _add_run_verb(verbs: Verbs, name: str, command: str, about: str) -> ArgumentParser:
    parser = add_verb(verbs, name, command, about)
    parser.add_argument("run", metavar="RUN")
    return parser
