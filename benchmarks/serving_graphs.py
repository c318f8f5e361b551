"""The runs that `serving.py` looks at, and the process that executes one while it is followed."""

from __future__ import annotations

import sys
from contextlib import suppress
from time import sleep
from typing import Any

from limpet import END, RunPaused, StateGraph, Workflow
from limpet import pause as ask

LONG = "long"
MAP = "map"
TASKS = "tasks"
LIVE = "one-more"
ASKING = "asking"
TEXT = "limpet " * 30


def build(url: str, steps: int, tasks: int) -> None:
    """Execute the runs of many steps, branches and tasks, and one that asks."""
    counting(url).execute({"n": 0, "limit": steps}, run_id=LONG)
    with suppress(RunPaused):
        counting(url, stops=True).execute({"n": 0, "limit": steps}, run_id=LIVE)
    mapping(url).execute({"items": list(range(tasks // 2))}, run_id=MAP)
    flow(url, tasks).execute({}, run_id=TASKS)
    with suppress(RunPaused):
        asking(url).execute({}, run_id=ASKING)


def counting(url: str, stops: bool = False, pause: float = 0.0) -> Any:
    """A cycle of steps that take this long; with `stops`, it stops after each of the last ones."""

    def step(state: Any) -> dict[str, Any]:
        if pause:
            sleep(pause)
        return {"n": state["n"] + 1, "text": f"{TEXT}{state['n']}"}

    graph = StateGraph(name="stopping" if stops else "counting", max_iterations=None)
    graph.add_node("step", run=step).set_entry_point("step")
    if stops:
        graph.add_node("last", run=step)
        graph.add_edge("step", "step", lambda state: state["n"] < state["limit"]).add_edge("step", "last")
        graph.add_conditional_edges("last", lambda state: "last", {"last": "last", "end": END})
        return graph.compile(store=url, preserve=True, interrupt_before=["last"])
    graph.add_edge("step", "step", lambda state: state["n"] < state["limit"]).set_finish_point("step")
    return graph.compile(store=url, preserve=True)


def mapping(url: str) -> Any:
    """A map whose branches have two steps."""

    def one(state: Any) -> dict[str, Any]:
        return {"text": f"{TEXT}{state['item']}"}

    graph = StateGraph(name="mapping", max_iterations=None).add_node("src", run=lambda state: {})
    graph.add_node("one", run=one).add_node("two", run=lambda state: {"done": True})
    graph.add_fanin_node("join", run=lambda state: {}).add_edge("one", "two")
    graph.add_map("src", each="one", over="items", fan_in="join", max_concurrency=8)
    graph.set_entry_point("src").set_finish_point("join")
    return graph.compile(store=url, preserve=True)


def flow(url: str, tasks: int) -> Any:
    """Tasks in a data flow, each of which depends on an earlier one."""
    workflow = Workflow("flow", store=url, preserve=True)
    for number in range(tasks):
        before = [f"t{number // 2}"] if number else []
        workflow.add_task(f"t{number}", lambda number=number: f"{TEXT}{number}", before)
    return workflow


def asking(url: str) -> Any:
    """A run that asks."""
    graph = StateGraph(name="asking").add_node("ask", run=lambda state: {"answer": ask("Well?")})
    return graph.set_entry_point("ask").set_finish_point("ask").compile(store=url)


def main(url: str, run: str, steps: str, pause: str) -> None:
    """Store a run, and execute it when standard input ends."""
    graph = counting(url, pause=float(pause))
    graph.start({"n": 0, "limit": int(steps)}, run_id=run)
    print("stored", flush=True)
    sys.stdin.read()
    graph.resume(run)


if __name__ == "__main__":
    main(*sys.argv[1:])
