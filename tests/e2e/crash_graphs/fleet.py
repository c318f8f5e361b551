"""Graphs whose runs a fleet of workers shares: `fleet.py` is imported by each of them, and by who starts the runs.

Nodes write a line when they begin and when they end to a log that all processes append to. Its order is the order in
which things happened. What a run comes to is a function of its number alone, see `expected`.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import limpet
from limpet import END, START, Limit, Retry, StateGraph, Workflow

KINDS = ("steps", "beside", "items", "plan")
ITEMS = 4


class Log:
    """Lines of JSON at the end of one file, each written at once, by any process."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __call__(self, did: str, **what: Any) -> None:
        line = json.dumps({"did": did, "pid": os.getpid(), "at": time.time(), **what})
        os.write(self._file, line.encode() + b"\n")

    def telling(self, fences: dict[str, int]) -> Callable[..., AbstractContextManager[None]]:
        """What a node puts around its work, so that the log says when it begins and ends: `with told(ctx, limit):`.

        `fences` has the fence under which this process holds each run.
        """

        @contextmanager
        def told(ctx: Any, *limits: Limit) -> Iterator[None]:
            key = ctx.idempotency_key.removeprefix(f"{ctx.run_id}/")
            fence = fences.get(ctx.run_id)
            about = {"run": ctx.run_id, "fence": fence, "key": key, "call": random.getrandbits(32)}
            self("begin", **about, attempt=ctx.attempt, limits=[limit.name for limit in limits])
            try:
                yield
            finally:
                self("end", **about)

        return told


def build(folder: Path, pace: float = 0.02, nap: float = 1.0) -> dict[str, StateGraph | Workflow]:
    """The graphs, by name. `pace` is how many seconds a node takes, `nap` for how long one sleeps."""
    log = Log(folder)

    @contextmanager
    def told(ctx: Any) -> Iterator[None]:
        about = {"run": ctx.run_id, "branch": ctx.branch or "", "node": ctx.node}
        log("begin", **about, key=ctx.idempotency_key, attempt=ctx.attempt)
        yield
        log("end", **about, key=ctx.idempotency_key)

    def step(name: str) -> Callable[..., dict[str, Any]]:
        def run(state: Any, ctx: Any) -> dict[str, Any]:
            with told(ctx):
                time.sleep(pace)
                return {"trail": [*state["trail"], name]}

        return run

    def napping(state: Any, ctx: Any) -> dict[str, Any]:
        with told(ctx):
            limpet.sleep(nap)
            return {"trail": [*state["trail"], "nap"]}

    def shaky(state: Any, ctx: Any) -> dict[str, Any]:
        with told(ctx):
            if not (folder / f"{ctx.run_id}.tried").exists():
                (folder / f"{ctx.run_id}.tried").touch()
                raise ConnectionError("the first attempt fails")
            return {"trail": [*state["trail"], "shaky"]}

    async def waiting(state: Any, ctx: Any) -> dict[str, Any]:
        with told(ctx):
            await asyncio.sleep(pace)
            return {"trail": [*state["trail"], "waiting"]}

    def gather(state: Any, parallel_results: Any, ctx: Any) -> dict[str, Any]:
        with told(ctx):
            return {"trail": [*state["trail"], sorted(each["trail"][-1] for each in parallel_results)]}

    def square(state: Any, ctx: Any) -> dict[str, Any]:
        with told(ctx):
            time.sleep(pace)
            return {"squared": state["item"] ** 2}

    def total(state: Any, parallel_results: Any, ctx: Any) -> dict[str, Any]:
        with told(ctx):
            return {"trail": [*state["trail"], sum(each["squared"] for each in parallel_results)]}

    steps = StateGraph(name="steps")
    names = ["one", "nap", "two", "shaky", "waiting", "three"]
    runs = {"nap": napping, "shaky": shaky, "waiting": waiting}
    for name in names:
        again = Retry(attempts=20, backoff=0.01) if name == "shaky" else None
        steps.add_node(name, run=runs.get(name) or step(name), retry=again)
    for before, after in zip([START, *names], [*names, END], strict=True):
        steps.add_edge(before, after)

    beside = StateGraph(name="beside")
    for name in ("first", "left", "right", "far", "last"):
        beside.add_node(name, run=step(name))
    beside.add_fanin_node("gather", run=gather)
    beside.add_edge(START, "first")
    beside.add_parallel_edge("first", "left", "gather")
    beside.add_parallel_edge("first", "right", "gather")
    beside.add_edge("right", "far")
    beside.add_edge("far", "gather")
    beside.add_edge("gather", "last", delay=nap / 2)
    beside.add_edge("last", END)

    items = StateGraph(name="items")
    items.add_node("first", run=step("first"))
    items.add_node("square", run=square)
    items.add_fanin_node("total", run=total)
    items.add_edge(START, "first")
    items.add_map(
        "first",
        "square",
        over=lambda state: [state["number"] + each for each in range(ITEMS)],
        fan_in="total",
    )
    items.add_edge("total", END)

    plan = Workflow("plan")

    def task(name: str, *depends: str) -> None:
        def run(ctx: Any, **results: Any) -> Any:
            with told(ctx):
                time.sleep(pace)
                return sum(results.values()) + 1

        plan.add_task(name, run, depends_on=list(depends))

    task("a")
    task("b", "a")
    task("c", "a")
    task("d", "b", "c")
    return {"steps": steps, "beside": beside, "items": items, "plan": plan, **special(folder, log, told)}


def special(folder: Path, log: Log, told: Any) -> dict[str, StateGraph]:
    """Graphs with a node that a test releases, that crashes its process, or that no process runs."""

    def gated(state: Any, ctx: Any) -> dict[str, Any]:
        with told(ctx):
            while not (folder / f"{ctx.run_id}.{ctx.node}").exists():
                time.sleep(0.01)
            return {"by": [*state.get("by", []), os.getpid()]}

    async def gated_here(state: Any, ctx: Any) -> dict[str, Any]:
        with told(ctx):
            while not (folder / f"{ctx.run_id}.{ctx.node}").exists():
                await asyncio.sleep(0.01)
            return {"by": [*state.get("by", []), os.getpid()]}

    def deadly(state: Any, ctx: Any) -> dict[str, Any]:
        with told(ctx):
            if not (folder / f"{ctx.run_id}.harmless").exists():
                wait_for_neighbours(folder, state["beside"])
                os._exit(13)
            return {"by": [os.getpid()]}

    def clinging(state: Any, ctx: Any) -> dict[str, Any]:
        """Keeps the interpreter in a call that lets no other thread run, for as long as the input says."""
        with told(ctx):
            ctypes.PyDLL(None).usleep(ctypes.c_uint(int(state["seconds"] * 1e6)))
            return {"by": [os.getpid()]}

    def blocking(state: Any, ctx: Any) -> dict[str, Any]:
        with told(ctx):
            time.sleep(state["seconds"])
            return {"by": [os.getpid()]}

    def asking(state: Any, ctx: Any) -> dict[str, Any]:
        with told(ctx):
            return {"said": limpet.pause("well?", deadline=state["seconds"], default="no answer came")}

    def napping(state: Any, ctx: Any) -> dict[str, Any]:
        with told(ctx):
            limpet.sleep(state["seconds"])
            return {"by": [os.getpid()]}

    def trivial(state: Any) -> dict[str, Any]:
        return {"n": state.get("n", 0) + 1}

    def chain(name: str, *nodes: Callable[..., Any], **more: Any) -> StateGraph:
        graph = StateGraph(name=name)
        places = [f"{node.__name__}{number or ''}" for number, node in enumerate(nodes)]
        for place, node in zip(places, nodes, strict=True):
            graph.add_node(place, run=node)
        for before, after in zip([START, *places], [*places, END], strict=True):
            graph.add_edge(before, after)
        return graph

    graphs = [
        chain("gated", gated, gated, gated),
        chain("gated_here", gated_here, gated_here, gated_here),
        chain("deadly", deadly),
        chain("clinging", clinging),
        chain("blocking", blocking),
        chain("asking", asking),
        chain("napping", napping),
        chain("trivial", *[trivial] * 5),
    ]
    return {graph.name: graph for graph in graphs}


def wait_for_neighbours(folder: Path, runs: list[str]) -> None:
    """Wait until this process is at one of these runs, if one is left, and for a moment more."""
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        text = (folder / "log").read_text()
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        here = {line["run"] for line in lines if line["did"] == "begin" and line["pid"] == os.getpid()}
        if here.issuperset(runs):
            return
        time.sleep(0.01)


def expected(kind: str, number: int) -> Any:
    """What a run comes to: the trail it leaves in its state, or the results of its tasks."""
    if kind == "steps":
        return ["one", "nap", "two", "shaky", "waiting", "three"]
    if kind == "beside":
        return ["first", ["far", "left"], "last"]
    if kind == "items":
        return ["first", sum((number + each) ** 2 for each in range(ITEMS))]
    return {"a": 1, "b": 2, "c": 2, "d": 5}
