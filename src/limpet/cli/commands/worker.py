"""`worker`: execute the runs in a store until it is stopped."""

from __future__ import annotations

import logging
import signal
from argparse import Namespace
from collections.abc import Iterable
from time import time

from limpet.cli.commands.schedules import put_declared
from limpet.cli.exit_codes import INTERRUPTED, OK
from limpet.cli.output import Output, printable_log
from limpet.cli.project import NAME_GRAPHS_FOR_ALL_COMMANDS, find_store, load_graphs, project_graphs
from limpet.cli.streams import CannotWrite
from limpet.cli.values import utc_time
from limpet.errors import UsageError
from limpet.journal.waits import PostWait, reason_of
from limpet.observe.events import (
    CHECKPOINT_RESUME,
    GRAPH_COMPLETE,
    GRAPH_START,
    RUN_CANCEL,
    RUN_FAIL,
    RUN_PAUSE,
    RUN_SLEEP,
    RUN_WAIT,
    Event,
)
from limpet.supervision import supervise

SHOWN_EVENTS = {
    GRAPH_START: "started",
    CHECKPOINT_RESUME: "resumed",
    GRAPH_COMPLETE: "completed",
    RUN_PAUSE: "paused",
    RUN_FAIL: "failed",
    RUN_CANCEL: "cancelled",
    RUN_SLEEP: "sleeps",
    RUN_WAIT: "waits",
}


def work(args: Namespace, output: Output) -> int:
    """Supervise the store with the graphs that are named, or those of the project."""
    graphs = load_graphs(args.targets) or project_graphs(args)
    if not graphs:
        raise UsageError(f"no graph named: pass GRAPH or --graph, {NAME_GRAPHS_FOR_ALL_COMMANDS}")
    store = find_store(args, graphs[0])
    put_declared(graphs, store, output.say)
    log_warnings()
    if args.observer:
        # The observer `log` writes there.
        logging.getLogger("limpet.run").setLevel(logging.INFO)
    supervisor = supervise(
        store,
        graphs,
        lease=args.lease,
        concurrency=args.concurrency,
        per_graph=_limits(args.per_graph, [graph.name for graph in graphs]),
        poll=args.poll,
        max_crashes=args.max_crashes,
        max_sleep=args.max_sleep,
        grace=args.grace,
        queues=args.queues,
        observers=[_Display(output), *args.observer],
    )
    if args.once:
        try:
            resumed = supervisor.drain()
        except KeyboardInterrupt:
            had_runs = bool(supervisor.running)
            supervisor.stop(0)  # releases its runs: this isn't a crash of theirs
            _say(time(), stopped_text(had_runs), output)
            return INTERRUPTED
        if output.json:
            output.result({"runs": resumed})
        else:
            output.say(f"resumed {len(resumed)} run{'s' if len(resumed) != 1 else ''}")
        return OK
    names = ", ".join(graph.name for graph in graphs)
    if args.queues is not None:
        names += f" in {', '.join(dict.fromkeys(args.queues))}"
    signals = signal_names()
    interrupted: list[str] = []

    def stopping() -> None:
        interrupted.extend(supervisor.running)
        _say(time(), stopping_text(interrupted, args.grace, signals), output)

    # Only once it is true: before that, SIGTERM would kill the process.
    supervisor.run(
        on_ready=lambda: _say(time(), f"working on {store}: {names}. {signals} stops it", output),
        on_stop=stopping,
    )
    _say(time(), stopped_text(bool(interrupted)), output)
    return OK


def log_warnings() -> None:
    """Show warnings of the library on standard error, each with its time."""
    handler = logging.StreamHandler()
    handler.setFormatter(printable_log("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def signal_names() -> str:
    """The signals that stop a process, as people know them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell has it ignored in the background
        return "SIGTERM"
    return "Ctrl-C or SIGTERM"


def stopping_text(running: list[str], grace: float, signals: str) -> str:
    """What a worker says when it is to stop."""
    if not running:
        return "stopping"
    runs = "1 run" if len(running) == 1 else f"{len(running)} runs"
    waiting = f"stopping: waits up to {grace:g} s for the steps under way in {runs}"
    return f"{waiting}. {signals} again leaves at once"


def stopped_text(had_runs: bool) -> str:
    """What a worker says when it has stopped."""
    if not had_runs:
        return "stopped"
    return "stopped; other workers can resume the runs that were in progress"


def _limits(given: Iterable[tuple[str | None, int]], graphs: Iterable[str]) -> int | dict[str, int] | None:
    """How many runs of each graph at once, as `supervise` takes it. A name outweighs the number for each."""
    limits = dict(given)
    each = limits.pop(None, None)
    if not limits:
        return each
    named = {name: number for name, number in limits.items() if name is not None}
    if each is None:
        return named
    return {**dict.fromkeys(graphs, each), **named}


class _Display:
    """Shows events, as long as they can be written."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._is_open = True

    def __call__(self, event: Event) -> None:
        if not self._is_open:
            return
        try:
            _show(event, self._output)
        except (BrokenPipeError, CannotWrite):
            self._is_open = False
            logging.getLogger("limpet.worker").warning(
                "standard output can't be written to: the worker continues without showing what it does"
            )


def _show(event: Event, output: Output) -> None:
    verb = SHOWN_EVENTS.get(event.type)
    if verb is None:
        return
    if output.json:
        output.result({"type": event.type, "graph": event.source, "at": event.timestamp, **event.data})
        return
    _say(event.timestamp, f"{event.source} {event.data.get('run_id')} {_what_happened(event, verb)}", output)


def _what_happened(event: Event, verb: str) -> str:
    """The verb, with why a run has stopped or until when."""
    if event.type == RUN_WAIT:
        return f"{verb}: {reason_of([PostWait(**wait) for wait in event.data['waits']])}"
    if event.type == RUN_SLEEP:
        due = event.data["due"]
        return f"{verb} until {utc_time(due)} UTC" if due else "released"
    detail = event.data.get("error") or event.data.get("reason")
    return f"{verb}: {detail}" if detail else verb


def _say(at: float, text: str, output: Output) -> None:
    output.say(f"{utc_time(at)} {text}")
