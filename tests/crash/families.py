"""The graphs that start child runs, which the crash suites kill."""

from __future__ import annotations

from typing import Annotated, Any

from limpet import ChildFailed, NodeContext, State, StateGraph, append, once, sleep
from limpet.testing import effects

LOG = ["other begun", 3, [5, 7], "failed: DeadlinePassed", 21]


def child() -> StateGraph:
    """Two steps, the first of which is paid for."""
    graph = StateGraph({"n": int}, name="child").add_node("double", run=double).add_node("add", run=add)
    return graph.add_edge("double", "add").set_entry_point("double").set_finish_point("add")


def double(state: State) -> dict[str, Any]:
    return {"n": once("pay", pay, state["n"])}


def pay(n: int) -> int:
    effects.record("paid", str(n))
    return n * 2


def add(state: State) -> dict[str, Any]:
    return {"n": state["n"] + 1}


def slow() -> StateGraph:
    """A run that sleeps for longer than it may."""
    graph = StateGraph(name="slow").add_node("nap", run=nap)
    return graph.set_entry_point("nap").set_finish_point("nap")


def nap(state: State) -> None:
    sleep(3600)


CHILD = child()
SLOW = slow()


def family() -> StateGraph:
    """Children that are joined in the node that starts them, in a later one and in branches; one is late."""
    graph = StateGraph({"log": Annotated[list, append], "other": str, "item": int, "n": int}, name="family")
    graph.add_node("begin", run=begin).add_node("split").add_node("late", run=late).add_node("end", run=end)
    graph.add_node("branch", run=branch).add_fanin_node("gather", run=gather)
    graph.add_map("split", "branch", lambda state: [2, 3], "gather")
    graph.add_edge("begin", "split").add_edge("gather", "late").add_edge("late", "end")
    return graph.set_entry_point("begin").set_finish_point("end")


def begin(state: State, ctx: NodeContext) -> dict[str, Any]:
    other = ctx.start(CHILD, {"n": 10}, key="other")
    return {"other": other.run_id, "log": ["other begun", ctx.join(ctx.start(CHILD, {"n": 1}))["n"]]}


def branch(state: State, ctx: NodeContext) -> dict[str, Any]:
    return {"n": ctx.join(ctx.start(CHILD, {"n": state["item"]}))["n"]}


def gather(state: State, parallel_results: Any) -> dict[str, Any]:
    return {"log": [[result["n"] for result in parallel_results]]}


def late(state: State, ctx: NodeContext) -> dict[str, Any]:
    try:
        ctx.join(ctx.start(SLOW, {}, deadline=60))
    except ChildFailed as failed:
        return {"log": [f"{failed.status}: {'DeadlinePassed' if 'deadline' in str(failed) else failed}"]}
    return {"log": ["it wasn't late"]}


def end(state: State, ctx: NodeContext) -> dict[str, Any]:
    return {"log": [ctx.join(state["other"], CHILD)["n"]]}
