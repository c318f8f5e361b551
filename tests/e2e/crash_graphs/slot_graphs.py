"""Two graphs of one node that a test releases: one has a limit for the calls of its node, one for whole runs.

Each call says in the log when it began and when it ended: see `fleet.Log`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from limpet import END, START, Limit, StateGraph

DESK = Limit("desk", concurrency=1)
"""How many calls of the graph `called` are made at once."""
ROOM = Limit("room", concurrency=1)
"""How many runs of the graph `whole` are executed at once."""


def build(folder: Path, log: Any, fences: dict[str, int], store: Any) -> dict[str, StateGraph]:
    """The graphs, by name. A node ends when there is a file `go` in the folder."""
    told = log.telling(fences)

    def at_desk(state: Any, ctx: Any) -> dict[str, Any]:
        with told(ctx, DESK):
            return wait()

    def in_room(state: Any, ctx: Any) -> dict[str, Any]:
        with told(ctx, ROOM):
            return wait()

    def wait() -> dict[str, Any]:
        while not (folder / "go").exists():
            time.sleep(0.01)
        return {"done": True}

    called = StateGraph(name="called").add_node("work", run=at_desk, limits=[DESK])
    called.add_edge(START, "work").add_edge("work", END)
    whole = StateGraph(name="whole").add_node("work", run=in_room)
    whole.add_edge(START, "work").add_edge("work", END)
    return {"called": called.compile(store=store), "whole": whole.compile(store=store, limits=[ROOM])}
