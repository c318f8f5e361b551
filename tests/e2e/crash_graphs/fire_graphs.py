"""Graphs whose calls and runs are limited, for workers under fire: imported by each of them, and by who starts runs.

Each call says in the log when it began and when it ended, under which fence, and which limits it has slots of. What a
run comes to is a function of its number alone, see `expected`.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

from limpet import END, START, Limit, Retry, StateGraph

LIMITED = os.environ.get("FIRE_PARTS", "calls,runs").split(",")
"""What is limited: calls of nodes, whole runs, or both."""
API = Limit("api", concurrency=4)
PACED = Limit("paced", concurrency=60, rate="60/3s")
PERIOD, PER_PERIOD = 3.0, 60
WHOLE = Limit("whole", concurrency=3)
"""How many runs of the graph `parts` are executed at once."""
GPU = Limit("gpu", concurrency=4, queues=["gpu"])
"""How many runs of the queue `gpu` are executed at once."""
CONCURRENCY = {"api": 4, "paced": 60, "whole": 3, "gpu": 4}
QUEUES = ("default", "gpu")
PARTS = 3
TURNS = 3


def expected(graph: str, number: int) -> Any:
    """What a run of this graph comes to."""
    if graph == "parts":
        return sum((number + part) ** 2 for part in range(PARTS))
    return [number + turn for turn in range(TURNS)]


def limits_run(limit: str, graph: str, queue: str) -> bool:
    """Whether whole runs of this graph in this queue need a slot of a limit."""
    return "runs" in LIMITED and (
        (limit == "whole" and graph == "parts") or (limit == "gpu" and queue == "gpu")
    )


def limits_of(part: str, *limits: Limit) -> dict[str, Any]:
    """The option that names these limits, if they are under fire."""
    return {"limits": limits} if part in LIMITED else {}


def build(folder: Path, log: Any, fences: dict[str, int], store: Any) -> dict[str, StateGraph]:
    """The graphs, by name, with a `fleet.Log`. `fences` has the fence under which this process holds each run."""

    told = log.telling(fences)

    def begin(state: Any, ctx: Any) -> dict[str, Any]:
        with told(ctx):
            time.sleep(state.get("nap", 0.0))
            return {"trail": [state["number"]]}

    def called(state: Any, ctx: Any) -> dict[str, Any]:
        with told(ctx, API):
            time.sleep(random.uniform(0.0, 0.04))
            return {"trail": [*state["trail"], state["number"] + 1]}

    def paced(state: Any, ctx: Any) -> dict[str, Any]:
        tried = folder / f"{ctx.run_id.replace(':', '-')}.tried"
        with told(ctx, API, PACED):
            if state["number"] % 4 == 0 and not tried.exists():
                tried.touch()
                raise ConnectionError("the first attempt fails")
            return {"trail": [*state["trail"], state["number"] + 2]}

    turns = StateGraph(name="turns")
    turns.add_node("begin", run=begin)
    turns.add_node("called", run=called, **limits_of("calls", API))
    turns.add_node(
        "paced", run=paced, retry=Retry(attempts=50, backoff=0.01), **limits_of("calls", API, PACED)
    )
    turns.add_edge(START, "begin").add_edge("begin", "called").add_edge("called", "paced")
    turns.add_edge("paced", END)

    def split(state: Any, ctx: Any) -> None:
        with told(ctx):
            time.sleep(0.01)

    def part(state: Any, ctx: Any) -> dict[str, Any]:
        with told(ctx, PACED):
            time.sleep(random.uniform(0.0, 0.03))
            return {"squared": state["item"] ** 2}

    def total(state: Any, parallel_results: Any, ctx: Any) -> dict[str, Any]:
        with told(ctx):
            return {"total": sum(each["squared"] for each in parallel_results)}

    parts = StateGraph(name="parts")
    parts.add_node("split", run=split)
    parts.add_node("part", run=part, **limits_of("calls", PACED))
    parts.add_fanin_node("total", run=total)
    parts.add_edge(START, "split").add_edge("total", END)
    numbers = lambda state: [state["number"] + each for each in range(PARTS)]  # noqa: E731
    parts.add_map("split", "part", over=numbers, fan_in="total")
    return {
        "turns": turns.compile(store=store, preserve=True),
        "parts": parts.compile(store=store, preserve=True, **limits_of("runs", WHOLE)),
    }
