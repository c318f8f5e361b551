"""The verbs of `graph`, `store` and `schedules`, and the arguments of each. `arguments.py` has the others."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TYPE_CHECKING

from limpet.cli.command_parser import TARGET, add_verb
from limpet.cli.values import queue_list
from limpet.defaults import RETENTION_HOURS

if TYPE_CHECKING:
    from limpet.cli.command_parser import Verbs

OVERLAPS = ("skip", "queue", "allow", "cancel_old")
CATCH_UPS = ("none", "last", "all")


def add_graph_verbs(verbs: Verbs) -> None:
    show = add_verb(verbs, "show", "graph:show", "its nodes and edges, its queue and limits")
    show.add_argument("target", metavar="GRAPH", help=TARGET)
    check = add_verb(verbs, "check", "graph:check", "whether it is valid; else everything that is wrong")
    check.add_argument("target", metavar="GRAPH", help=TARGET)
    draw = add_verb(verbs, "draw", "graph:draw", "a picture of it")
    draw.add_argument("target", metavar="GRAPH", help=TARGET)
    draw.add_argument(
        "--format", choices=("text", "svg", "mermaid"), help="default: by the ending of --out, else text"
    )
    draw.add_argument("--run", metavar="RUN", help="colour it by the progress of this run")
    draw.add_argument("--out", metavar="FILE", help="write it to this file: .svg, .mmd or .txt")
    add_verb(verbs, "schema", "graph:schema", "the JSON Schema of YAML files, for editors")


def add_store_verbs(verbs: Verbs) -> None:
    add_verb(verbs, "info", "store:info", "what it is, and how many runs it has")
    migrate = add_verb(verbs, "migrate", "store:migrate", "bring its schema up to date")
    migrate.add_argument("--print", action="store_true", dest="show", help="only print the SQL")
    verify = add_verb(
        verbs, "verify", "store:verify", "look for damage: in one run; or in all, and in limits and schedules"
    )
    verify.add_argument("run", metavar="RUN", nargs="?")
    flatten = add_verb(
        verbs, "flatten", "store:flatten", "write runs, steps and states as plain tables, without secrets"
    )
    flatten.add_argument("file", metavar="FILE", help="a SQLite database (.db), or JSON lines (.jsonl)")
    prune = add_verb(verbs, "prune", "store:prune", "delete runs that ended long ago")
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


def add_limit_verbs(verbs: Verbs) -> None:
    """What can be done with limits."""
    add_verb(verbs, "list", "limits:list_limits", "the limits, how much of them is used, and how many wait")
    show = add_verb(verbs, "show", "limits:show", "one limit: what holds its slots, and what waits first")
    show.add_argument("name", metavar="NAME")
    change = add_verb(verbs, "set", "limits:set_limit", "set what a limit allows, over what the code says")
    change.add_argument("name", metavar="NAME")
    change.add_argument("--concurrency", metavar="N", help="how many at the same time; none: any number")
    rate = "how many may begin in a time: 60/min, 5/s, 10/2min; none: any number"
    change.add_argument("--rate", metavar="RATE", help=rate)
    queues = "hold for all runs in these queues (gpu,default); repeatable; none: for no queue"
    change.add_argument("--queue", type=queue_list, action="extend", help=queues)
    change.add_argument("--reset", action="store_true", help="first go back to what the code says")
    delete = add_verb(verbs, "delete", "limits:delete", "delete a limit; what waits for it continues")
    delete.add_argument("name", metavar="NAME")


def add_schedule_verbs(verbs: Verbs) -> None:
    added = add_verb(verbs, "add", "schedules:add", "start runs of a graph at planned times")
    added.add_argument("name", metavar="NAME")
    added.add_argument("target", metavar="GRAPH", help=TARGET)
    _add_times(added)
    added.add_argument(
        "--input",
        "-i",
        action="append",
        default=[],
        help="as for limpet run: JSON, @file or key=value; repeatable",
    )
    added.add_argument(
        "--config", action="append", default=[], metavar="KEY=VALUE", help="settings for the nodes"
    )
    added.add_argument("--tag", action="append", default=[], help="a tag to find the runs by; repeatable")
    added.add_argument("--queue", metavar="NAME", help="for workers that serve this queue")
    added.add_argument("--priority", type=int, default=0, help="higher ones first (0)")
    added.add_argument(
        "--overlap",
        choices=OVERLAPS,
        default="skip",
        metavar="POLICY",
        help=f"while an earlier run hasn't ended: {', '.join(OVERLAPS)} (skip)",
    )
    added.add_argument(
        "--catch-up",
        choices=CATCH_UPS,
        default="none",
        metavar="POLICY",
        help=f"for times that were missed: {', '.join(CATCH_UPS)} (none)",
    )
    added.add_argument("--paused", action="store_true", help="fire it only once it is resumed")
    added.add_argument("--replace", action="store_true", help="change a schedule that has other values")
    sync = add_verb(
        verbs,
        "sync",
        "schedules:sync",
        "add or change the schedules that YAML files declare, as a worker does",
    )
    sync.add_argument("targets", nargs="*", metavar="FILE", help="file.yaml (default: the project's graphs)")
    add_verb(verbs, "list", "schedules:list_schedules", "the schedules in the store")
    for name, about in (
        ("show", "one schedule: its next times, and its last firings"),
        ("pause", "fire it no more until it is resumed"),
        ("resume", "fire a paused schedule again"),
        ("trigger", "start a run now, besides the plan"),
        ("delete", "delete it; its runs stay"),
    ):
        verb = add_verb(verbs, name, f"schedules:{name}", about)
        verb.add_argument("name", metavar="NAME")


def _add_times(added: ArgumentParser) -> None:
    times = added.add_mutually_exclusive_group(required=True)
    times.add_argument("--cron", metavar="EXPRESSION", help="minute hour day month weekday: '30 2 * * *'")
    times.add_argument("--every", metavar="SPAN", help="an interval: 30s, 15m, 12h, 7d")
    added.add_argument("--timezone", default="UTC", metavar="ZONE", help="such as Europe/Berlin (UTC)")
    when = "how long from now (2h), or 2026-05-01T12:00Z"
    added.add_argument("--starts", metavar="WHEN", help=f"no time before: {when}")
    added.add_argument("--ends", metavar="WHEN", help="no time after")
