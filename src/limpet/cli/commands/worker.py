"""`worker`: execute what is in a store, until told to end."""

from __future__ import annotations

import logging
from argparse import Namespace

from limpet.cli.exit_codes import OK
from limpet.cli.output import Output
from limpet.cli.project import graphs_of, store_of
from limpet.cli.targets import load_target
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

TOLD = {
    GRAPH_START: "begins",
    CHECKPOINT_RESUME: "goes on",
    GRAPH_COMPLETE: "is done",
    RUN_PAUSE: "waits",
    RUN_FAIL: "failed",
    RUN_SLEEP: "sleeps",
}


def work(given: Namespace, output: Output) -> int:
    """Supervise the store with the graphs that are named, or those of the project."""
    found = [load_target(target) for target in given.targets] or graphs_of(given)
    if not found:
        raise UsageError(
            "which graphs? worker module:attribute …, --graph, or graphs = […] under [tool.limpet]"
        )
    store = store_of(given, found[0])
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    supervisor = supervise(
        store, found, lease=given.lease, concurrency=given.concurrency, poll=given.poll, grace=given.grace,
        observers=[lambda event: _tell(event, output)],
    )  # fmt: skip
    if given.once:
        done = supervisor.drain()
        said = f"gone on with {len(done)} run{'s' if len(done) != 1 else ''}"
        output.result({"runs": done}) if output.json else output.say(said)
        return OK
    output.say(
        f"working on {store!r}: {', '.join(graph.name for graph in found)}. Ctrl-C, or SIGTERM, ends it"
    )
    supervisor.run()
    output.say("ended; what was under way is left to others")
    return OK


def _tell(event: Event, output: Output) -> None:
    said = TOLD.get(event.type)
    if said is None:
        return
    if output.json:
        output.result({"type": event.type, "graph": event.source, "at": event.timestamp, **event.data})
        return
    detail = event.data.get("error") or event.data.get("reason") or ""
    output.say(f"{event.source} {event.data.get('run_id')} {said}{f': {detail}' if detail else ''}")
