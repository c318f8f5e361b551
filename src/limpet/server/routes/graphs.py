"""Routes about the server and the graphs whose code it has: their schemas and pictures, and runs that are started."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from typing import Any, Final

from limpet.drawing.palette import STYLE
from limpet.durations import seconds_in_text
from limpet.engine.leases.lease_client import client_for
from limpet.engine.operations.run_info import SHOWN_STATUSES
from limpet.errors import UsageError, did_you_mean
from limpet.frontends.graph_inputs import input_schema, type_name
from limpet.frontends.graph_on_store import GraphOnStore
from limpet.frontends.problems import HttpProblem
from limpet.frontends.shown_runs import shown_run
from limpet.graphs.plan import PLANNER, Plan
from limpet.journal.store import CANCELLED, COMPLETED, DAMAGED, FAILED, PAUSED, RUNNING
from limpet.server.endpoint import (
    INTEGER,
    OBJECT,
    TEXT,
    TEXTS,
    ApiRequest,
    Endpoint,
    FileAnswer,
    Parameter,
    Service,
    checked_for_urls,
)
from limpet.server.routes.runs import FILTERS
from limpet.version import VERSION

SVG: Final = "image/svg+xml"

MOST_NODES: Final = 1000
"""Nodes of a graph that is drawn: the time that a layout takes grows with the square of their number."""

_STYLE_HASH: Final = b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

PICTURE_POLICY: Final = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; frame-ancestors 'none'"
"""For a picture that is opened by itself: it has its styles, and nothing else that a browser would load or run."""

STATUSES: Final = {
    FAILED: "an error has stopped it",
    PAUSED: "it waits for an answer or an approval",
    RUNNING: "a process executes it",
    **{each.name: each.when for each in SHOWN_STATUSES},
    COMPLETED: "it has a result",
    CANCELLED: "it was stopped",
    DAMAGED: "it can't be read",
}
"""What the statuses mean, in the order in which people look for them."""


def about(request: ApiRequest) -> dict[str, Any]:
    """What the server serves. The name of the store has no password."""
    service = request.service
    return {
        "version": VERSION,
        "store": str(service.store),
        "graphs": sorted(service.graphs),
        "read_only": service.read_only,
        "filters": {each.name: each.about for each in FILTERS},
        "statuses": STATUSES,
        "now": client_for(service.store).now(),
        "user": request.user,
    }


def list_graphs(request: ApiRequest) -> dict[str, Any]:
    """The graphs that the server knows."""
    return {"graphs": [_facts(graph) for graph in request.service.graphs.values()]}


def show(request: ApiRequest) -> dict[str, Any]:
    """One graph: its nodes, and the keys of its state."""
    return _facts(_graph(request))


def picture(request: ApiRequest) -> FileAnswer:
    """The picture of a graph, marked by how far a run has come if one is named."""
    graph = _graph(request)
    number = len(_nodes(graph.compiled().plan))
    if number > MOST_NODES:
        refused = HttpProblem(
            422,
            "graph-too-large",
            f"graph {graph.name!r} has {number:,} nodes, and of more than {MOST_NODES:,} no picture is made here",
        )
        raise refused.with_advice("draw it where its code is: limpet graph draw")
    drawn = graph.draw("svg", run_id=request.values.get("run_id"))
    return FileAnswer(drawn.encode(), SVG, policy=PICTURE_POLICY)


def start(request: ApiRequest) -> dict[str, Any]:
    """Start a run, which workers execute. The same id and input twice are one run."""
    values = request.values
    handle = _graph(request).start(
        values.get("input") or {},
        values.get("config"),
        run_id=checked_for_urls(values.get("run_id")),
        tags=values.get("tags") or (),
        priority=values.get("priority") or 0,
        delay=_delay(values.get("delay")),
        deadline=values.get("deadline"),
        queue=values.get("queue"),
    )
    return shown_run(handle.info, request.service.now())


def _delay(text: str | None) -> float:
    """The seconds that a run waits. Raises `UsageError` for a text that says no time."""
    if text is None:
        return 0.0
    seconds = seconds_in_text(text)
    if seconds is None:
        raise UsageError(f"delay must be a time such as 90s, 5m or 2h, not {text[:80]!r}")
    return seconds


def _graph(request: ApiRequest) -> GraphOnStore:
    return known_graph(request.service, request.path["graph"])


def known_graph(service: Service, name: str) -> GraphOnStore:
    """The graph of this name. Raises `HttpProblem` if the server doesn't know it."""
    graphs = service.graphs
    if name not in graphs:
        unknown = f"the server knows no graph {name[:200]!r}{did_you_mean(name[:200], graphs)}"
        raise HttpProblem(404, "graph-not-found", unknown)
    return graphs[name]


def _nodes(plan: Plan) -> list[str]:
    return [name for name in plan.nodes if name != PLANNER]


def _facts(graph: GraphOnStore) -> dict[str, Any]:
    plan = graph.compiled().plan
    keys = {
        key: {
            "type": type_name(kind),
            "secret": key in plan.secrets,
            "has_default": key in plan.schema.defaults,
        }
        for key, kind in plan.schema.keys.items()
    }
    return {
        "name": plan.name,
        "fingerprint": plan.fingerprint,
        "kind": "graph" if plan.layers is None else "workflow",
        "nodes": _nodes(plan),
        "keys": keys,
        "schema": input_schema(plan),
    }


ENDPOINTS: Final = (
    Endpoint("GET", "/about", about, "What the server serves, and what it allows", "About"),
    Endpoint("GET", "/graphs", list_graphs, "The graphs whose code the server knows", "GraphList"),
    Endpoint(
        "GET",
        "/graphs/{graph}/picture",
        picture,
        "A graph as SVG",
        "Picture",
        query=(Parameter("run_id", TEXT, "mark how far this run has come"),),
    ),
    Endpoint(
        "POST",
        "/graphs/{graph}/runs",
        start,
        "Start a run; the same id and input twice are one run",
        "Run",
        body=(
            Parameter("input", OBJECT, "the first values of its state"),
            Parameter("run_id", TEXT, "its id, which makes a repeated request harmless"),
            Parameter("config", OBJECT, "what its nodes get as config"),
            Parameter("tags", TEXTS, "its tags"),
            Parameter("priority", INTEGER, "workers take runs of a higher one first"),
            Parameter("delay", TEXT, "how long to wait before it begins, such as 5m"),
            Parameter("deadline", TEXT, "when it fails if it hasn't ended"),
            Parameter("queue", TEXT, "the queue that it waits in"),
        ),
    ),
    Endpoint("GET", "/graphs/{graph}", show, "A graph: its nodes, and the keys of its state", "Graph"),
)
