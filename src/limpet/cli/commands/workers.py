"""`workers`: which workers the store has, what they do, and which runs have none."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from limpet import UnservedLane, WorkerInfo
from limpet.cli.exit_codes import OK
from limpet.cli.next_commands import worker_command
from limpet.cli.output import Output
from limpet.cli.project import command_line, find_runs
from limpet.engine.leases.workers import short_plan

MAX_NAMED_RUNS = 3
"""Runs of a worker that are named in a table; of more, the number is enough."""


def list_workers(args: Namespace, output: Output) -> int:
    """The workers, and at the end the runs that no live worker can continue."""
    runs = find_runs(args)
    workers = runs.workers()
    unserved = runs.unserved()
    if output.json:
        output.result(
            {
                "workers": [_facts(each) for each in workers],
                "unserved": [each._asdict() for each in unserved],
            }
        )
        return OK
    columns = (
        "worker",
        "status",
        output.time_heading("since"),
        output.time_heading("seen"),
        "version",
        "queues",
        "graphs",
        "runs",
        "",
    )
    rows = [_row(each, output) for each in workers]
    output.table(columns, rows, "no workers", left_out_first=("version", "since", "since (UTC)"))
    if unserved:
        _show_unserved(unserved, args, output)
    return OK


def _row(worker: WorkerInfo, output: Output) -> tuple[Any, ...]:
    graphs = [
        name if plan is None else f"{name} {short_plan(plan)}" for name, plan in sorted(worker.graphs.items())
    ]
    named = ", ".join(worker.run_ids) if worker.runs <= MAX_NAMED_RUNS else ""
    return (
        f"{worker.host} {worker.pid}",
        "live" if worker.is_live else "gone",
        output.time(worker.since),
        output.time(worker.seen),
        worker.version,
        "all" if worker.queues is None else ", ".join(worker.queues),
        ", ".join(graphs),
        f"{worker.runs} of {worker.concurrency}",
        named,
    )


def _show_unserved(unserved: list[UnservedLane], args: Namespace, output: Output) -> None:
    output.message("")
    output.message("Runs that no live worker can continue:")
    columns = ("queue", "graph", "plan", "due", output.time_heading("since"), "why")
    rows = [
        (
            lane.queue,
            lane.graph,
            short_plan(lane.plan),
            f"{lane.runs:,}{'+' if lane.has_more else ''}",
            output.time(lane.since),
            lane.reason,
        )
        for lane in unserved
    ]
    output.table(columns, rows)
    output.hint("List them with:", command_line("runs list", args, "--unserved"))
    output.hint(*worker_command("A worker for them:", args))


def _facts(worker: WorkerInfo) -> dict[str, Any]:
    """A worker as data for a program."""
    left = [
        {
            **each.lane._asdict(),
            "reason": each.reason,
            "run_ids": each.run_ids,
            "whole": each.whole,
        }
        for each in worker.left
    ]
    return {**worker._asdict(), "left": left}
