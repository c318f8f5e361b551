"""`runs list`, `show`, `history`, `state`, `diff`: look at runs. `run_changes` and `watch` have the other verbs."""

from __future__ import annotations

import time
from argparse import Namespace
from contextlib import suppress
from typing import Any

from limpet import END, Checkpoint, Limits, RunInfo, Runs, WorkerInfo
from limpet.cli.commands.many_runs import filter_words, filters_of, read_graph_filter
from limpet.cli.exit_codes import OK
from limpet.cli.next_commands import graph_command, suggest_next
from limpet.cli.output import Output
from limpet.cli.project import command_line, find_run, find_runs, find_store, project_graphs
from limpet.cli.run_display import waits_of, why_abandoned
from limpet.cli.values import utc_time
from limpet.defaults import QUEUE
from limpet.engine.leases.limits.awaited_limits import AwaitedLimit
from limpet.engine.leases.workers import why_unserved
from limpet.errors import LimpetError, UsageError
from limpet.frontends.run_facts import node_of, run_facts, shown_node, step_facts
from limpet.graphs.secrets import masked
from limpet.journal.inbox import is_cancel
from limpet.journal.store import Lane

LONG_IN_QUEUE = 60.0
"""Seconds after which a list asks whether a run that is queued has a worker."""

ABANDONED = "abandoned"
"""The shown status of a run whose process crashed, or hasn't renewed its lease in time."""

NEXT_LAYER = "next layer"
"""What is shown for the step between two layers of a workflow, which plans the next one."""

MAX_CHILDREN = 5
"""How many child runs of a run are shown; `runs list --parent` has all."""

UNFINISHED = ("queued", "sleeping", "retrying", "paused", ABANDONED)
"""The shown statuses of runs that wait for a process with the code of their graph."""


def list_runs(args: Namespace, output: Output) -> int:
    """The runs in the store."""
    read_graph_filter(args)
    runs = find_runs(args)
    filters = filters_of(args)
    found = runs.list(limit=args.limit, after=args.after, **filters)
    workers = runs.workers() if args.unserved else None
    if output.json:
        output.result(
            [
                run_facts(info) | ({} if workers is None else {"unserved": _reason(info, workers)})
                for info in found
            ]
        )
        return OK
    known = _known_graphs(args, found)
    shows_queue = any(info.queue != QUEUE for info in found)
    columns = ["run", "graph", "status", "step", "node", output.time_heading("updated"), ""]
    if shows_queue:
        columns.insert(2, "queue")
    rows: list[tuple[Any, ...]] = [
        (
            info.run_id,
            info.graph,
            *([info.queue] if shows_queue else []),
            info.shown_status,
            None if info.problem else info.step,
            node_of(info),
            output.time(info.updated),
            _summary(info, output, known) if workers is None else _reason(info, workers),
        )
        for info in found
    ]
    empty = "no runs yet"
    if filters or args.after:
        empty = "no runs match"
    output.table(columns, rows, empty, left_out_first=("step", "node", "queue", "graph"))
    if found.next is not None:
        more = "There are more:"
        if found.searched is not None:
            more = f"Looked through the errors of {found.searched:,} runs. To continue:"
        words = [*filter_words(args), "--limit", str(args.limit), "--after", found.next]
        output.hint(more, command_line("runs list", args, *words))
    return OK


def show(args: Namespace, output: Output) -> int:
    """Everything that is known about one run."""
    runs = find_run(args, output)
    info = runs.get(args.run).info
    limits = awaited_limits(args, info)
    cancels = _cancel_requests(args, info)
    if output.json:
        output.result(
            {
                **run_facts(info),
                "cancel_requested": cancels > 0,
                "limits": [limit._asdict() for limit in limits],
                "unserved": _why_unserved(runs, info) or None,
            }
        )
        return OK
    error = info.error or {}
    output.facts(
        {
            "run": info.run_id,
            "graph": info.graph,
            "queue": None if info.queue == QUEUE else info.queue,
            "priority": info.priority or None,
            "status": info.shown_status,
            "step": info.step,
            "node": node_of(info),
            "why": info.reason,
            "waits for": waits_of(info, limits),
            "messages": _messages_of(info, info.inbox - cancels),
            "cancellation": "requested" if cancels else None,
            "created": f"{utc_time(info.created)} UTC",
            "updated": f"{utc_time(info.updated)} UTC",
            "deadline": _deadline(info),
            "tags": ", ".join(info.tags),
            "parent": info.parent,
            "children": _children(runs, info.run_id),
            "forked from": info.forked_from,
            "held by": holder_of(info),
            "no worker": _why_unserved(runs, info),
            "error": error.get("traceback") or error.get("message"),
            "problem": info.problem,
        }
    )
    suggest_next(info, args, output)
    return OK


def history(args: Namespace, output: Output) -> int:
    """The steps of a run."""
    runs = find_run(args, output)
    found = runs.history(args.run)
    if output.json:
        output.result([step_facts(each) for each in found])
        return OK
    is_thread = bool(runs.get(args.run).info.kind)
    rows = [
        (each.step, _step_place(each), utc_time(each.timestamp), None if is_thread else _step_next(each))
        for each in found
    ]
    output.table(("step", "node", "at (UTC)", "next"), rows, "no steps are stored")
    if is_thread:
        return OK  # only its own library knows what follows, and reads its states
    if found:
        newest = str(found[-1].step)
        output.hint("The state after a step:", command_line("runs state", args, args.run, "--step", newest))
    earlier = [each.step for each in found if not each.branch and each.next != END]
    if earlier:
        step = str(earlier[-1])
        output.hint(*graph_command("A new run from a step:", "runs fork", args, args.run, "--step", step))
    return OK


def state(args: Namespace, output: Output) -> int:
    """The state of a run."""
    runs = find_run(args, output)
    found = masked(dict(runs.state(args.run, args.step, branch=args.branch)), _masked_keys(runs, args))
    if args.key is not None:
        if args.key not in found:
            keys = ", ".join(map(repr, found)) or "none"
            raise UsageError(f"the state has no key {args.key!r}; its keys: {keys}")
        value = found[args.key]
        if output.json or not isinstance(value, str):
            output.result(value)
        else:
            output.text(value)
    elif output.json:
        output.result(found)
    else:
        # `facts` leaves out what is empty; a state's empty values are part of it.
        shown = {
            key: repr(value) if value in (None, "", [], {}, ()) else value for key, value in found.items()
        }
        output.facts(shown)
    return OK


def diff(args: Namespace, output: Output) -> int:
    """What changed between two steps."""
    runs = find_run(args, output)
    hidden = _masked_keys(runs, args)
    found = runs.diff(args.run, args.a, args.b, branch=args.branch)
    added = masked(dict(found.added), hidden)
    removed = masked(dict(found.removed), hidden)
    changed = masked(dict(found.changed), hidden)
    if output.json:
        output.result({"added": added, "removed": removed, "changed": changed})
        return OK
    rows: list[tuple[str, str, Any, Any]] = [
        *(("+", key, None, value) for key, value in added.items()),
        *(("-", key, value, None) for key, value in removed.items()),
        *(("~", key, old, new) for key, (old, new) in changed.items()),
    ]
    columns = ("", "key", f"after step {args.a}", f"after step {args.b}")
    output.table(columns, rows, "the states are equal")
    return OK


def _due(info: RunInfo, output: Output) -> str:
    """When a process needs to resume a run."""
    due = output.time(info.due)
    return due if output.width is not None else f"at {due}"


def _reason(info: RunInfo, workers: list[WorkerInfo]) -> str:
    """Why none of these workers takes a run; empty if one does by now."""
    return why_unserved(Lane(info.queue, info.graph, info.plan), info.run_id, workers)


def _why_unserved(runs: Runs, info: RunInfo) -> str | None:
    """Why no live worker takes a run that waits for one."""
    if info.shown_status not in ("queued", ABANDONED):
        return None
    try:
        return _reason(info, runs.workers())
    except LimpetError:
        return None  # the store keeps no list of workers


def _children(runs: Runs, run_id: str) -> str:
    """The runs that a run has started, as many as a line has room for."""
    found = runs.list(parent=run_id, limit=MAX_CHILDREN)
    listed = [f"{each.run_id} ({each.graph}, {each.shown_status})" for each in found]
    if found.next is not None:
        listed.append("…")
    return ", ".join(listed)


def _deadline(info: RunInfo) -> str | None:
    """When a run fails if it hasn't ended."""
    if info.deadline is None:
        return None
    return f"{utc_time(info.deadline)} UTC"


def _in_words(seconds: float) -> str:
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"


def awaited_limits(args: Namespace, info: RunInfo) -> list[AwaitedLimit]:
    """The limits that a run waits for, as far as they are known here: of its nodes, else of its queue and graph."""
    if info.shown_status not in ("waiting", "queued", "running"):
        return []
    compiled = None
    if not info.waits:
        with suppress(LimpetError):  # the code can't be loaded
            compiled = next(
                (each.compiled() for each in project_graphs(args) if each.name == info.graph), None
            )
    with suppress(LimpetError):  # a store that can't keep limits, or a run that has gone
        return Limits(find_store(args, must_exist=True)).held_up_by(info, compiled)
    return []


def _cancel_requests(args: Namespace, info: RunInfo) -> int:
    """How many requests to cancel a run wait for its process to take them in."""
    if not info.inbox:
        return 0
    with suppress(LimpetError):  # the run has gone, or its inbox can't be read
        posts = find_store(args, must_exist=True).inbox(info.run_id)
        return min(sum(is_cancel(post.key) for post in posts), info.inbox)
    return 0


def _messages_of(info: RunInfo, untaken: int) -> str | None:
    """How many messages wait for a run, by name, and how many no process has taken in."""
    found = [f"{count} {name}" for name, count in info.messages.items()]
    if untaken:
        found.append(f"{untaken} not taken in yet")
    return ", ".join(found) or None


def holder_of(info: RunInfo) -> str | None:
    """The process that holds a run, and why it counts as abandoned."""
    if info.shown_status == ABANDONED:
        return f"{info.held_by}, which {why_abandoned(info)}"
    return info.held_by


def _masked_keys(runs: Runs, args: Namespace) -> frozenset[str]:
    return frozenset() if args.reveal else runs.secrets(args.run)


def _step_place(step: Checkpoint) -> str | None:
    """The node that a step is of, with its branch where that has another name."""
    name = shown_node(step.node, NEXT_LAYER)
    branch = step.branch or ""
    if name is None or branch.rpartition("/")[2] == name:
        return branch or None
    return f"{branch}/{name}" if branch else name


def _step_next(step: Checkpoint) -> str | None:
    """The node that follows a step. The last one of a branch has none: the run isn't at its end by that."""
    return shown_node(step.next, NEXT_LAYER) or ("" if step.branch else "end")


def _known_graphs(args: Namespace, listed: list[RunInfo]) -> set[str] | None:
    """The names of the graphs that this command knows, if a run needs one; None if it knows none."""
    if not any(info.shown_status in UNFINISHED for info in listed):
        return None
    try:
        return {graph.name for graph in project_graphs(args)} or None
    except LimpetError:
        return None  # the code can't be loaded; runs are listed without it


def _summary(info: RunInfo, output: Output, known: set[str] | None = None) -> str:
    """What a list says about a run in its last column. `known` are the graphs that are known here, if any are."""
    if info.problem:
        return info.problem
    is_lost = known is not None and info.graph not in known and info.shown_status in UNFINISHED
    lost = f"no graph {info.graph!r} among those known here"
    if info.questions:
        asked = f"asks: {info.questions[0].prompt}"
        return f"{asked} ({lost})" if is_lost else asked
    if is_lost:
        return lost
    match info.shown_status:
        case "queued":
            waited = time.time() - max(info.due or 0.0, info.updated)
            if waited < LONG_IN_QUEUE:
                return ""
            return f"for {_in_words(waited)}: is a worker running that has graph {info.graph!r}?"
        case "sleeping":
            return f"due {_due(info, output)}"
        case "retrying":
            return f"due {_due(info, output)}: {(info.error or {}).get('message', '')}"
        case "waiting":
            return f"waits for {waits_of(info)}"
        case "abandoned":
            return f"its process {why_abandoned(info)}"
        case _:
            return info.reason or ""
