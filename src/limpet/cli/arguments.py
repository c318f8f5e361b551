"""What can be typed: the nouns and verbs of the command line, and what each takes.

Every command is named as `module:function`; that is imported when it is called.
"""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, RawDescriptionHelpFormatter, _SubParsersAction
from typing import TYPE_CHECKING, Any

from limpet.defaults import CONCURRENCY, GRACE, LEASE, POLL
from limpet.version import VERSION

if TYPE_CHECKING:
    Verbs = _SubParsersAction[ArgumentParser]

EXITS = """\
exit codes: 0 ok · 1 failed · 2 wrong use · 3 paused, and waits for somebody · 4 not found
            5 conflict: somebody else has it · 6 the store can't be used"""

INPUT = "JSON, @file with JSON in it, or key=value (a value is JSON where it is any); may be repeated"
TARGET = "file.yaml, file.py:attribute or package.module:attribute"


def make_parser() -> ArgumentParser:
    """The parser of the whole command line."""
    parser = ArgumentParser(
        prog="limpet",
        description="Run, watch and mend durable graphs.",
        epilog=EXITS,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"limpet {VERSION}")
    parser.set_defaults(json=False, no_color=False, store=None, graph=None)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _running(commands)
    _runs(_noun(commands, "runs", "look at runs, and change what they will do"))
    _graphs(_noun(commands, "graph", "look at a graph"))
    _stores(_noun(commands, "store", "look after a store"))
    _others(commands)
    return parser


def _running(commands: Verbs) -> None:
    run = _verb(commands, "run", "run:run", "run a graph, to its end or its next pause")
    run.add_argument("target", metavar="GRAPH", help=TARGET)
    run.add_argument("--input", "-i", action="append", nargs="+", default=[], metavar="INPUT", help=INPUT)
    run.add_argument(
        "--config", action="append", default=[], metavar="KEY=VALUE", help="settings for the nodes"
    )
    run.add_argument("--id", help="the id of the new run")
    run.add_argument("--tag", action="append", default=[], help="a word to find the run by")
    run.add_argument(
        "--checkpoint", help="go on from this checkpoint (a file, or run@step) instead of beginning anew"
    )
    run.add_argument("--detach", action="store_true", help="only queue it: a worker executes it")
    run.add_argument("--priority", type=int, default=0, help="with --detach: more comes first")
    resume = _verb(commands, "resume", "run:resume", "go on with a run that stopped, or whose process died")
    resume.add_argument("run", metavar="RUN")
    resume.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change the state first"
    )
    resume.add_argument("--wait", type=float, metavar="SECONDS", help="wait so long for whoever has the run")
    answer = _verb(commands, "answer", "run:answer", "answer what a paused run asks, and go on with it")
    answer.add_argument("run", metavar="RUN")
    answer.add_argument(
        "answer",
        nargs="+",
        metavar="VALUE",
        help="JSON where it is any, else text; before it the QUESTION, if there are several",
    )
    answer.add_argument("--detach", action="store_true", help="only save the answer: a worker goes on")


def _runs(verbs: Verbs) -> None:
    listed = _verb(verbs, "list", "runs:list_runs", "the runs in the store, newest first")
    listed.add_argument("--status", help="running, paused, completed, failed or cancelled")
    listed.add_argument("--of", metavar="NAME", help="only runs of the graph of this name")
    listed.add_argument("--tag", help="only runs with this tag")
    listed.add_argument("--limit", type=int, default=50, help="how many at most (50)")
    _of_run(verbs, "show", "runs:show", "what is known of a run, and what it waits for")
    _of_run(verbs, "history", "runs:history", "the steps of a run")
    state = _of_run(verbs, "state", "runs:state", "the state of a run, now or after a step")
    state.add_argument("--step", type=int, help="after this step; the newest, unless you say so")
    state.add_argument("--key", help="only the value of this key")
    state.add_argument("--reveal", action="store_true", help="show what is secret")
    diff = _of_run(verbs, "diff", "runs:diff", "what changed between two steps")
    diff.add_argument("a", type=int, metavar="STEP")
    diff.add_argument("b", type=int, metavar="STEP")
    diff.add_argument("--reveal", action="store_true", help="show what is secret")
    watch = _of_run(verbs, "watch", "runs:watch", "follow a run until it stops")
    watch.add_argument("--every", type=float, default=0.5, metavar="SECONDS", help="how often to look (0.5)")
    fork = _of_run(verbs, "fork", "changing:fork", "a new run that begins where this one stood after a step")
    fork.add_argument("--step", type=int, help="after this step; the newest, unless you say so")
    fork.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change the state first"
    )
    fork.add_argument("--id", help="the id of the new run")
    rollback = _of_run(verbs, "rollback", "changing:rollback", "set a run back to a step")
    rollback.add_argument("step", type=int, metavar="STEP")
    _of_run(verbs, "cancel", "changing:cancel", "stop a run before its next node")
    export = _of_run(verbs, "export", "changing:export", "write a run to one file")
    export.add_argument("file", metavar="FILE")
    imported = _verb(verbs, "import", "changing:import_", "put an exported run into the store")
    imported.add_argument("file", metavar="FILE")
    imported.add_argument("--id", help="its id here, if not its own")
    delete = _of_run(verbs, "delete", "changing:delete", "remove a run and its journal")
    delete.add_argument("--yes", action="store_true", help="don't ask")


def _graphs(verbs: Verbs) -> None:
    for name, function, about in (
        ("show", "graph:show", "its nodes and edges"),
        ("check", "graph:check", "whether it is in order; else everything that is wrong"),
        ("draw", "graph:draw", "a picture of it"),
    ):
        verb = _verb(verbs, name, function, about)
        verb.add_argument("target", metavar="GRAPH", help=TARGET)
        if name == "draw":
            verb.add_argument(
                "--format", choices=("text", "svg", "mermaid"), help="text, unless --out says more"
            )
            verb.add_argument("--run", metavar="RUN", help="colour it by this run")
            verb.add_argument("--out", metavar="FILE", help="write it there: .svg, .mmd or .txt")


def _stores(verbs: Verbs) -> None:
    _verb(verbs, "info", "store:info", "what it is, and what is in it")
    migrate = _verb(verbs, "migrate", "store:migrate", "bring its schema up to date")
    migrate.add_argument("--print", action="store_true", dest="show", help="only print the SQL")
    verify = _verb(verbs, "verify", "store:verify", "look for damage, in one run or all")
    verify.add_argument("run", metavar="RUN", nargs="?")
    prune = _verb(verbs, "prune", "store:prune", "delete runs that ended long ago")
    prune.add_argument(
        "--older", metavar="AGE", help="unchanged for so long: 30m, 24h, 7d (24h, unless --newest)"
    )
    prune.add_argument("--status", action="append", help="of this status; the ended ones, unless you say so")
    prune.add_argument(
        "--newest", type=int, metavar="N", help="keep at most the newest N that ended, of each graph"
    )
    prune.add_argument("--dry-run", action="store_true", help="only say what would go")


def _others(commands: Verbs) -> None:
    worker = _verb(
        commands, "worker", "worker:work", "execute what is queued, sleeps or was left by a dead process"
    )
    worker.add_argument(
        "targets", nargs="*", metavar="GRAPH", help=f"{TARGET}; those of the project, if none"
    )
    worker.add_argument("--concurrency", type=int, default=CONCURRENCY, help=f"runs at once ({CONCURRENCY})")
    worker.add_argument(
        "--lease",
        type=float,
        default=LEASE,
        metavar="SECONDS",
        help=f"for how long it holds a run ({LEASE:g})",
    )
    worker.add_argument(
        "--poll", type=float, default=POLL, metavar="SECONDS", help=f"how often to look ({POLL:g})"
    )
    worker.add_argument(
        "--grace",
        type=float,
        default=GRACE,
        metavar="SECONDS",
        help=f"for nodes to finish at the end ({GRACE:g})",
    )
    worker.add_argument("--once", action="store_true", help="go on with all that is ready, then end")
    demo = _verb(
        commands, "demo", "demo:show", "a graph with a crash, a parallel section and a question, in a minute"
    )
    demo.add_argument("--dir", metavar="DIR", help="where to put it (a new directory)")
    demo.add_argument("--fast", action="store_true", help="without pauses to read")
    completion = _verb(
        commands, "completion", "completion:show", "a script that completes commands for your shell"
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))


def _noun(commands: Verbs, name: str, about: str) -> Verbs:
    return commands.add_parser(name, help=about, description=_sentence(about)).add_subparsers(
        metavar="VERB", required=True
    )


def _of_run(verbs: Verbs, name: str, command: str, about: str) -> ArgumentParser:
    parser = _verb(verbs, name, command, about)
    parser.add_argument("run", metavar="RUN")
    return parser


def _verb(commands: Verbs, name: str, command: str, about: str) -> ArgumentParser:
    """A command, with what all of them take: it may stand before or after the rest."""
    parser = commands.add_parser(
        name,
        help=about,
        description=_sentence(about),
        epilog=EXITS,
        formatter_class=RawDescriptionHelpFormatter,
    )
    common: dict[str, Any] = {"default": SUPPRESS}
    parser.add_argument(
        "--store", metavar="URL", help="sqlite:///runs.db, postgresql://…; else LIMPET_STORE", **common
    )
    parser.add_argument(
        "--graph", action="append", metavar="GRAPH", help="where the code of graphs is; repeatable", **common
    )
    parser.add_argument("--json", action="store_true", help="JSON, for programs", **common)
    parser.add_argument("--no-color", action="store_true", help="no colours", **common)
    parser.set_defaults(command=f"limpet.cli.commands.{command}")
    return parser


def _sentence(about: str) -> str:
    return f"{about[0].upper()}{about[1:]}."
