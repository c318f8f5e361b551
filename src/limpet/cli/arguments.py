"""The command line: its nouns and verbs, and the arguments of each.

Each command names its function as `module:function`, relative to `limpet.cli.commands`. The module is imported when
the command is called.
"""

from __future__ import annotations

from argparse import (
    SUPPRESS,
    Action,
    ArgumentError,
    ArgumentParser,
    RawDescriptionHelpFormatter,
    _SubParsersAction,
)
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from limpet.cli.values import at_least_one, per_graph
from limpet.defaults import (
    LEASE,
    MAX_CRASHES,
    MAX_RUNS_AT_ONCE,
    MAX_SLEEP,
    POLL_INTERVAL,
    RETENTION_HOURS,
    STOP_GRACE,
)
from limpet.errors import did_you_mean
from limpet.version import VERSION

if TYPE_CHECKING:
    Verbs = _SubParsersAction[ArgumentParser]

EXIT_CODES = """\
exit codes: 0 ok · 1 failed · 2 wrong usage · 3 paused or waiting · 4 not found
            5 conflict: another process holds the run · 6 the store can't be used"""

EXAMPLES = """\
examples:
  limpet demo                         see a run survive kill -9, in a minute
  limpet run flow.yaml -i topic=kelp  run a graph, with an input
  limpet run app.py:graph --detach    queue a run for a worker
  limpet worker app.py:graph          execute queued, sleeping and crashed runs
  limpet runs list --status failed    which runs need attention
  limpet runs show RUN                what a run needs, and the command for it
  limpet answer RUN yes               answer what a paused run asks
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

TARGET = "file.yaml, file.py:attribute or package.module:attribute"


class WrongCommandLine(Exception):
    """A command line that can't be parsed: what is wrong, and the usage of the command."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.message = message
        self.usage = usage


class CommandParser(ArgumentParser):
    """A parser that raises `WrongCommandLine`, and leaves it to the caller to say so."""

    ways: Sequence[str] = ()
    """All commands there are, as they are typed: `run`, `runs list` …"""

    def error(self, message: str) -> NoReturn:
        raise WrongCommandLine(message, self.format_usage().rstrip())

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse all there is: what isn't known is refused by the command that was given it."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            known = [name for action in self._actions for name in action.option_strings]
            near = did_you_mean(unknown[0].partition("=")[0], known)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
        return found, unknown

    def _check_value(self, action: Action, value: Any) -> None:
        """Refuse a word that isn't one of the choices, and suggest one that is like it."""
        if action.choices is None or value in action.choices:
            return
        known = [str(each) for each in action.choices]
        near = did_you_mean(value, known)
        listed = ", ".join(known)
        if not isinstance(action, _SubParsersAction):
            raise ArgumentError(action, f"{value!r} isn't one of {listed}{near}")
        if not near:
            from difflib import get_close_matches  # late: only mistakes need it

            way_of = {way.split()[-1]: way for way in self.ways}
            similar = get_close_matches(value, way_of, n=1)
            near = f"; did you mean 'limpet {way_of[similar[0]]}'?" if similar else ""
        kind = str(action.metavar).lower()
        raise ArgumentError(None, f"there is no {kind} {value!r}{near or f'; there are {listed}'}")


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
    _add_common(parser, hidden=True)
    parser.set_defaults(json=False, no_color=False, store=None, graph=None)
    commands = _add_subcommands(parser, "COMMAND")
    _add_run_commands(commands)
    _add_runs_verbs(_add_noun(commands, "runs", "list, inspect and change runs"))
    _add_graph_verbs(_add_noun(commands, "graph", "inspect a graph"))
    _add_store_verbs(_add_noun(commands, "store", "look after a store"))
    _add_other_commands(commands)
    ways = _ways(commands)
    for each in (parser, *commands.choices.values()):
        each.ways = ways  # type: ignore[attr-defined]  # subparsers are of the same class
    return parser


def _add_subcommands(parser: ArgumentParser, kind: str) -> Verbs:
    parser.set_defaults(command=None, usage_of=parser)
    return parser.add_subparsers(metavar=kind)


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
    run = _add_verb(commands, "run", "run:run", "run a graph to its end or its next pause")
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
    _add_deadline(run, "when the run fails if it hasn't ended")
    resume = _add_verb(commands, "resume", "run:resume", "resume a run that stopped or crashed")
    resume.add_argument("run", metavar="RUN")
    resume.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change the state first"
    )
    resume.add_argument(
        "--wait", type=float, metavar="SECONDS", help="wait this long for a process that holds the run"
    )
    _add_deadline(resume, "a new deadline")
    answer = _add_verb(
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
    answer.add_argument(
        "--detach", action="store_true", help="only save the answer: a worker resumes the run"
    )


def _add_runs_verbs(verbs: Verbs) -> None:
    listed = _add_verb(verbs, "list", "runs:list_runs", "the runs in the store, newest first")
    _add_filters(listed)
    listed.add_argument(
        "--limit",
        type=at_least_one,
        default=LISTED_RUNS,
        metavar="N",
        help=f"how many at most ({LISTED_RUNS})",
    )
    listed.add_argument("--after", metavar="CURSOR", help="from this place on: the last page ends there")
    _add_run_verb(
        verbs, "show", "runs:show", "one run: its status, its error or question, and what to do next"
    )
    _add_run_verb(verbs, "history", "runs:history", "the steps of a run")
    state = _add_run_verb(verbs, "state", "runs:state", "the state of a run, now or after a step")
    state.add_argument("--step", type=int, help="after this step (default: the newest)")
    state.add_argument("--key", help="only the value of this key")
    state.add_argument("--reveal", action="store_true", help="show secret values")
    diff = _add_run_verb(verbs, "diff", "runs:diff", "what changed between two steps")
    diff.add_argument("a", type=int, metavar="STEP")
    diff.add_argument("b", type=int, metavar="STEP")
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
    rollback = _add_run_verb(verbs, "rollback", "run_changes:rollback", "set a run back to a step")
    rollback.add_argument("step", type=int, metavar="STEP")
    retry = _add_verb(
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
    _add_runs(_add_verb(verbs, "cancel", "many_runs:cancel", "stop runs before their next nodes"))
    export = _add_run_verb(verbs, "export", "run_changes:export", "write a run to one file")
    export.add_argument("file", metavar="FILE")
    imported = _add_verb(verbs, "import", "run_changes:import_", "put an exported run into the store")
    imported.add_argument("file", metavar="FILE")
    imported.add_argument("--id", help="its id in this store (default: the one it had)")
    _add_runs(_add_verb(verbs, "delete", "many_runs:delete", "delete runs and their journals"))


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
        "quarantined, damaged; repeatable"
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
    parser.add_argument("--text", help="with this text in their last error")


def _add_graph_verbs(verbs: Verbs) -> None:
    show = _add_verb(verbs, "show", "graph:show", "its nodes and edges")
    show.add_argument("target", metavar="GRAPH", help=TARGET)
    check = _add_verb(verbs, "check", "graph:check", "whether it is valid; else everything that is wrong")
    check.add_argument("target", metavar="GRAPH", help=TARGET)
    draw = _add_verb(verbs, "draw", "graph:draw", "a picture of it")
    draw.add_argument("target", metavar="GRAPH", help=TARGET)
    draw.add_argument(
        "--format", choices=("text", "svg", "mermaid"), help="default: by the ending of --out, else text"
    )
    draw.add_argument("--run", metavar="RUN", help="colour it by the progress of this run")
    draw.add_argument("--out", metavar="FILE", help="write it to this file: .svg, .mmd or .txt")
    _add_verb(verbs, "schema", "graph:schema", "the JSON Schema of YAML files, for editors")


def _add_store_verbs(verbs: Verbs) -> None:
    _add_verb(verbs, "info", "store:info", "what it is, and how many runs it has")
    migrate = _add_verb(verbs, "migrate", "store:migrate", "bring its schema up to date")
    migrate.add_argument("--print", action="store_true", dest="show", help="only print the SQL")
    verify = _add_verb(verbs, "verify", "store:verify", "look for damage, in one run or all")
    verify.add_argument("run", metavar="RUN", nargs="?")
    flatten = _add_verb(
        verbs, "flatten", "store:flatten", "write runs, steps and states as plain tables, without secrets"
    )
    flatten.add_argument("file", metavar="FILE", help="a SQLite database (.db), or JSON lines (.jsonl)")
    prune = _add_verb(verbs, "prune", "store:prune", "delete runs that ended long ago")
    prune.add_argument(
        "--older",
        metavar="AGE",
        help=f"unchanged for this long: 30m, 24h, 7d ({RETENTION_HOURS:g}h, unless --newest)",
    )
    prune.add_argument("--status", action="append", help="with this status (default: all that ended)")
    prune.add_argument(
        "--newest", type=int, metavar="N", help="keep at most the newest N ended runs of each graph"
    )
    prune.add_argument("--dry-run", action="store_true", help="only list what would be deleted")
    prune.add_argument("--yes", action="store_true", help="don't ask for confirmation")


def _add_other_commands(commands: Verbs) -> None:
    _add_worker(commands)
    demo = _add_verb(
        commands, "demo", "demo:show", "a graph with a crash, parallel branches and a question, in a minute"
    )
    demo.add_argument("--dir", metavar="DIR", help="where to put it (default: a new directory)")
    demo.add_argument("--fast", action="store_true", help="without pauses to read")
    completion = _add_verb(
        commands, "completion", "completion:show", "a script that completes commands for your shell"
    )
    completion.add_argument(
        "shell",
        choices=("bash", "zsh", "fish", "run-ids"),
        help="whose script to print; run-ids prints the ids that the scripts offer",
    )


def _add_worker(commands: Verbs) -> None:
    worker = _add_verb(
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


def _add_seconds(parser: ArgumentParser, option: str, default: float, about: str) -> None:
    parser.add_argument(option, type=float, default=default, metavar="SECONDS", help=f"{about} ({default:g})")


def _add_noun(commands: Verbs, name: str, about: str) -> Verbs:
    parser = commands.add_parser(name, help=about, description=_sentence(about))
    _add_common(parser, hidden=True)
    return _add_subcommands(parser, "VERB")


def _add_run_verb(verbs: Verbs, name: str, command: str, about: str) -> ArgumentParser:
    parser = _add_verb(verbs, name, command, about)
    parser.add_argument("run", metavar="RUN")
    return parser


def _add_verb(commands: Verbs, name: str, command: str, about: str) -> ArgumentParser:
    """A command, with the options that all commands take."""
    parser = commands.add_parser(
        name,
        help=about,
        description=_sentence(about),
        epilog=EXIT_CODES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    _add_common(parser)
    parser.set_defaults(command=f"limpet.cli.commands.{command}")
    return parser


def _add_common(parser: ArgumentParser, hidden: bool = False) -> None:
    """The options of all commands. They may be given before a verb as well, where the help doesn't list them."""
    # A default here would overwrite what was given before the verb: `make_parser` sets the defaults.
    add = partial(parser.add_argument, default=SUPPRESS)
    helps = {
        "store": "sqlite:///runs.db, postgresql://…; else LIMPET_STORE",
        "graph": "where the code of graphs is; repeatable",
        "json": "print JSON, for programs",
        "no_color": "no colours",
    }
    if hidden:
        helps = dict.fromkeys(helps, SUPPRESS)
    add("--store", metavar="URL", help=helps["store"])
    add("--graph", action="append", metavar="GRAPH", help=helps["graph"])
    add("--json", action="store_true", help=helps["json"])
    add("--no-color", action="store_true", help=helps["no_color"])


def _sentence(about: str) -> str:
    return f"{about[0].upper()}{about[1:]}."
