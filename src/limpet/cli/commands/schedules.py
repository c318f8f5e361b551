"""`schedules add`, `sync`, `list`, `show`, `pause`, `resume`, `trigger`, `delete`: runs that start by themselves."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import datetime
from time import time
from typing import Any

from limpet import Firing, Runs, ScheduleInfo, Schedules
from limpet.cli.exit_codes import OK
from limpet.cli.inputs import input_keys, read_input, read_pairs
from limpet.cli.next_commands import worker_command
from limpet.cli.output import Output
from limpet.cli.project import (
    Graph,
    command_line,
    find_store,
    load_graphs,
    load_target,
    project_graphs,
)
from limpet.cli.values import relative_time
from limpet.engine.schedules.schedule import Schedule, find_schedule
from limpet.engine.schedules.timetable import local_time, triggered_at
from limpet.errors import DamagedDocument, ScheduleEnded, StoreError, UsageError
from limpet.frontends.graph_on_store import GraphOnStore
from limpet.journal.store import Store

SHOWN_TIMES = 5
"""How many of the next times `schedules show` lists."""
STARTED_BY_WORKER = "A worker starts what was triggered. If none is running, start one:"
SHOWN_FIRINGS = 10
"""How many of the last firings `schedules show` lists; `--json` has all that are known."""


def add(args: Namespace, output: Output) -> int:
    """Add a schedule, or change one."""
    loaded = load_target(args.target)
    known = input_keys(loaded.compiled().plan)
    values = read_input(args.input, known)
    for warning in known.warnings(values):
        output.say(warning)
    store = find_store(args, loaded)
    _refuse_memory(store)
    info = _added(args, GraphOnStore(loaded, store), store, values)
    if output.json:
        output.result(_facts(info))
        return OK
    output.facts(_shown(info))
    args.graph = args.graph or [args.target]
    output.hint(*worker_command("A worker fires it. If none is running, start one:", args))
    return OK


def _added(args: Namespace, graph: GraphOnStore, store: Store, values: dict[str, Any]) -> ScheduleInfo:
    try:
        return Schedules(store).add(
            args.name,
            graph,
            cron=args.cron,
            every=args.every,
            timezone=args.timezone,
            input=values or None,
            config=read_pairs(args.config, "--config") or None,
            tags=args.tag,
            queue=args.queue,
            priority=args.priority,
            overlap=args.overlap,
            catch_up=args.catch_up,
            starts=args.starts,
            ends=args.ends,
            paused=args.paused,
            replace=args.replace,
        )
    except UsageError as problem:
        if problem.next_operation != "replace":
            raise
        # Without its own values, which may be secret, the command can't be printed to be typed again.
        others = UsageError(f"{problem.message}; --replace gives it the new ones")
        raise others.with_advice("", "replace") from None


def sync(args: Namespace, output: Output) -> int:
    """Add or change the schedules that files declare."""
    graphs = load_graphs(args.targets) or project_graphs(args)
    if not graphs:
        raise UsageError("no file named: pass FILE, or --graph")
    store = find_store(args, graphs[0])
    _refuse_memory(store)
    found = put_declared(graphs, store, output.say)
    if output.json:
        output.result([_facts(info) for info in found])
        return OK
    _show_table(found, output, "no schedules are declared")
    return OK


def put_declared(graphs: Iterable[Graph], store: Store, say: Callable[[str], object]) -> list[ScheduleInfo]:
    """Put the schedules that the files of graphs declare into the store. Whether one is paused there stays.

    Schedules that are in the store and not, or no longer, in a file stay as they are. One that isn't there and whose
    end is in the past is left out, and `say` gets to know. One that is damaged is replaced. Raises `UsageError`,
    before any is put there, for one that another graph has in the store.
    """
    declared: dict[str, tuple[Graph, dict[str, Any]]] = {}
    for graph in graphs:
        for each in getattr(graph, "declared_schedules", ()):
            if each["name"] in declared:
                raise UsageError(f"two files declare a schedule {each['name']!r}: give one another name")
            declared[each["name"]] = (graph, {**each})
    if not declared:
        return []
    for name, (graph, settings) in declared.items():
        del settings["name"]
        stored = None
        with suppress(DamagedDocument):  # it is replaced
            stored = find_schedule(store, name)
        if stored is not None:
            _refuse_other_graph(stored[0], graph)
            settings["paused"] = False  # which leaves it as it is
    schedules = Schedules(store)
    found = []
    for name, (graph, settings) in declared.items():
        try:
            found.append(schedules.add(name, GraphOnStore(graph, store), **settings, replace=True))
        except ScheduleEnded as problem:
            say(f"left out: {problem.message}")
    return found


def _refuse_other_graph(stored: Schedule, graph: Graph) -> None:
    """A file doesn't take over the schedule of another graph, whose times and triggers would run this one."""
    other = stored.plan.start.graph
    if other != graph.name:
        raise UsageError(
            f"schedule {stored.name!r} in the store is of graph {other!r}: give that of graph {graph.name!r} another "
            "name, or delete the one in the store"
        )


def list_schedules(args: Namespace, output: Output) -> int:
    """All schedules in the store."""
    store = find_store(args, must_exist=True)
    found = Schedules(store).list()
    if output.json:
        output.result([_facts(info) for info in found])
        return OK
    needed = {info.graph for info in found if info.status == "overdue" or info.triggers}
    served = set[str]()
    if needed:
        served = {graph for worker in Runs(store).workers() if worker.is_live for graph in worker.graphs}
    _show_table(found, output, "no schedules yet", served)
    if needed - served:
        graphs = ", ".join(sorted(map(repr, needed - served)))
        output.hint(*worker_command(f"No worker that knows graph {graphs} is running. Start one:", args))
    return OK


def show(args: Namespace, output: Output) -> int:
    """One schedule, with its next times and its last firings."""
    schedules = _schedules(args)
    info = schedules.get(args.name)
    times = schedules.next_times(args.name, SHOWN_TIMES)
    if output.json:
        output.result({**_facts(info), "next_times": [each.isoformat() for each in times]})
        return OK
    output.facts(_shown(info))
    if info.status != "ended":
        output.table(("next times", ""), [(_clock(each), _relative(each)) for each in times], "no times")
    rows = [_firing_row(firing, info.timezone) for firing in reversed(info.recent[-SHOWN_FIRINGS:])]
    if rows:
        output.table(("planned", "outcome", "run", "status", ""), rows)
    if info.triggers:
        output.hint(*worker_command(STARTED_BY_WORKER, args))
    if info.paused:
        output.hint("Resume it with:", command_line("schedules resume", args, args.name))
    return OK


def pause(args: Namespace, output: Output) -> int:
    """Fire a schedule no more."""
    _schedules(args).pause(args.name)
    return _report(args, output, "paused", "is paused")


def resume(args: Namespace, output: Output) -> int:
    """Fire a paused schedule again."""
    schedules = _schedules(args)
    schedules.resume(args.name)
    info = schedules.get(args.name)
    following = _clock(info.next_time) or "no time is left"
    return _report(args, output, info.status, f"is {info.status}; next: {following}")


def trigger(args: Namespace, output: Output) -> int:
    """Have a worker start a run now."""
    run_id = _schedules(args).trigger(args.name)
    if output.json:
        output.result({"run_id": run_id, "status": "triggered"})
        return OK
    output.text(run_id)
    output.hint(*worker_command(STARTED_BY_WORKER, args))
    return OK


def delete(args: Namespace, output: Output) -> int:
    """Delete a schedule."""
    store = find_store(args, must_exist=True)
    triggers: tuple[str, ...] = ()
    with suppress(StoreError):  # it can be deleted although it can't be read
        found = find_schedule(store, args.name)
        if found is not None:
            triggers = found[0].place.triggers
    Schedules(store).delete(args.name)
    # A worker may have started some of them meanwhile.
    heads = store.heads(triggers)
    lost = [run_id for run_id, head in zip(triggers, heads, strict=True) if head is None]
    if output.json:
        output.result({"schedule": args.name, "status": "deleted", "not_started": lost})
        return OK
    output.say(f"schedule {args.name} is deleted; its runs stay")
    for run_id in lost:
        output.say(f"run {run_id} was triggered, and will not start")
    return OK


def _schedules(args: Namespace) -> Schedules:
    return Schedules(find_store(args, must_exist=True))


def _refuse_memory(store: Store) -> None:
    if not store.abilities.shared:
        raise UsageError(
            "a schedule in memory ends with this command: give a store that a worker can open, such as "
            "--store sqlite:///runs.db"
        )


def _report(args: Namespace, output: Output, status: str, what: str) -> int:
    if output.json:
        output.result({"schedule": args.name, "status": status})
    else:
        output.say(f"schedule {args.name} {what}")
    return OK


def _show_table(found: list[ScheduleInfo], output: Output, empty: str, served: Collection[str] = ()) -> None:
    columns = ("schedule", "graph", "status", "when", "next", "last", "")
    rows = [
        (
            info.name,
            info.graph,
            info.status,
            info.when,
            _time_and_distance(info.next_time),
            _last(info),
            _remark(info, served),
        )
        for info in found
    ]
    output.table(columns, rows, empty, left_out_first=("graph", "last"))


def _remark(info: ScheduleInfo, served: Collection[str]) -> str:
    """What is to be said of a schedule. The graphs that are `served` are those that a running worker knows."""
    if info.triggers:
        return f"{len(info.triggers)} triggered, waiting for a worker"
    if info.status == "overdue" and info.graph in served:
        return "a worker knows its graph; the worker's log says why it isn't fired"
    if info.status == "overdue":
        return "no worker that knows its graph has looked"
    if info.status == "waiting":
        return f"{info.waiting} waiting for an earlier run to end"
    if info.last_outcome == "failed":
        return info.last_error
    return ""


def _last(info: ScheduleInfo) -> str:
    if info.last_time is None or info.last_outcome is None:
        return ""
    return f"{info.last_outcome} {_relative(info.last_time)}"


def _shown(info: ScheduleInfo) -> dict[str, Any]:
    return {
        "schedule": info.name,
        "graph": info.graph,
        "status": info.status,
        "when": info.when,
        "timezone": info.timezone,
        "next": _time_and_distance(info.next_time),
        "waiting": info.waiting or None,
        "triggered": ", ".join(info.triggers),
        "last": _last(info),
        "fired": info.fired,
        "skipped": info.skipped or None,
        "failed": info.failed or None,
        "last error": info.last_error,
        "overlap": info.overlap,
        "catch up": info.catch_up,
        "input": info.input,
        "config": info.config,
        "tags": ", ".join(info.tags),
        "queue": info.queue,
        "priority": info.priority or None,
        "starts": _clock(info.starts),
        "ends": _clock(info.ends),
    }


def _firing_row(firing: Firing, zone: str) -> tuple[str | None, ...]:
    detail = firing.detail
    if firing.run_id is not None and triggered_at(firing.run_id) is not None:
        detail = "triggered"
    return (
        _clock(local_time(firing.planned, zone)),
        firing.outcome,
        firing.run_id,
        firing.status,
        detail,
    )


def _time_and_distance(moment: datetime | None) -> str:
    if moment is None:
        return ""
    return f"{_clock(moment)} ({_relative(moment)})"


def _clock(moment: datetime | None) -> str:
    """A time as the clocks of its zone show it."""
    if moment is None:
        return ""
    return moment.strftime("%Y-%m-%d %H:%M:%S %Z" if moment.second else "%Y-%m-%d %H:%M %Z")


def _relative(moment: datetime) -> str:
    return relative_time(moment.timestamp(), time())


def _facts(info: ScheduleInfo) -> dict[str, Any]:
    """A schedule as data for a program. All times are those of its zone, as text."""
    data = info._asdict()
    for name in ("next_time", "last_time", "starts", "ends"):
        data[name] = None if data[name] is None else data[name].isoformat()
    recent = [
        {**firing._asdict(), "planned": local_time(firing.planned, info.timezone).isoformat()}
        for firing in info.recent
    ]
    return {**data, "paused": info.paused, "recent": recent}
