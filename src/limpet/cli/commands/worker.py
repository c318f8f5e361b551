"""`worker`: execute the runs in a store until it is stopped."""

from __future__ import annotations

import logging
import signal
from argparse import Namespace

from limpet.cli.exit_codes import OK
from limpet.cli.output import Output, printable_log
from limpet.cli.project import NAME_GRAPHS_FOR_ALL_COMMANDS, find_store, load_target, project_graphs
from limpet.errors import UsageError
from limpet.observe.events import (
    CHECKPOINT_RESUME,
    GRAPH_COMPLETE,
    GRAPH_START,
    RUN_FAIL,
    RUN_PAUSE,
    RUN_SLEEP,
    Event,
)
from limpet.supervision import supervise

SHOWN_EVENTS = {
    GRAPH_START: "started",
    CHECKPOINT_RESUME: "resumed",
    GRAPH_COMPLETE: "completed",
    RUN_PAUSE: "paused",
    RUN_FAIL: "failed",
    RUN_SLEEP: "sleeps",
}


def work(args: Namespace, output: Output) -> int:
    """Supervise the store with the graphs that are named, or those of the project."""
    graphs = [load_target(target) for target in args.targets] or project_graphs(args)
    if not graphs:
        raise UsageError(f"no graph named: pass GRAPH or --graph, {NAME_GRAPHS_FOR_ALL_COMMANDS}")
    store = find_store(args, graphs[0])
    handler = logging.StreamHandler()
    handler.setFormatter(printable_log("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    supervisor = supervise(
        store,
        graphs,
        lease=args.lease,
        concurrency=args.concurrency,
        poll=args.poll,
        grace=args.grace,
        observers=[lambda event: _show(event, output)],
    )
    if args.once:
        resumed = supervisor.drain()
        if output.json:
            output.result({"runs": resumed})
        else:
            output.say(f"resumed {len(resumed)} run{'s' if len(resumed) != 1 else ''}")
        return OK
    names = ", ".join(graph.name for graph in graphs)
    signals = "Ctrl-C or SIGTERM"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell has it ignored in the background
        signals = "SIGTERM"
    # Only once it is true: before that, SIGTERM would kill the process.
    supervisor.run(lambda: output.say(f"working on {store}: {names}. {signals} stops it"))
    output.say("stopped; other workers can resume the runs that were in progress")
    return OK


def _show(event: Event, output: Output) -> None:
    verb = SHOWN_EVENTS.get(event.type)
    if verb is None:
        return
    if output.json:
        output.result({"type": event.type, "graph": event.source, "at": event.timestamp, **event.data})
        return
    detail = event.data.get("error") or event.data.get("reason")
    text = f"{event.source} {event.data.get('run_id')} {verb}"
    if detail:
        text += f": {detail}"
    output.say(text)
