"""A graph that the crash suites kill: its nodes say where to go, and fail so that others handle it."""

from __future__ import annotations

from typing import Annotated, Any

from crash.recording import begin
from limpet import END, Goto, Retry, StateGraph, append


def plan(state: Any, ctx: Any) -> Goto[Any]:
    begin(ctx)
    if ctx.visit < 3:
        return Goto("work", {"log": f"plan {ctx.visit}"})
    return Goto("split", {"log": "plan"})


def work(state: Any, ctx: Any) -> dict[str, Any]:
    state["lost"] = "what a failed call changes is discarded"
    if ctx.visit == 1:
        raise ConnectionError("no route")
    raise ValueError("no number")


def repair(state: Any, error: Any, ctx: Any) -> Goto[Any]:
    """It may be called several times, and finds the same error each time."""
    begin(ctx)
    key = ctx.once("key", lambda: f"{error}")
    assert key == str(ctx.error)
    return Goto("plan", {"log": f"{error.node}: {key}"})


def branch(state: Any, ctx: Any) -> Any:
    begin(ctx)
    if state["item"] == 1:
        raise KeyError("one")
    return Goto("checked" if state["item"] == 2 else "join", {"done": state["item"]})


def rescue(state: Any, error: Any) -> dict[str, Any]:
    return {"done": f"{error.type} {error.node}"}


def inner() -> StateGraph:
    graph = StateGraph(name="inner").add_node("in", lambda state: 1 / 0)
    return graph.set_entry_point("in").set_finish_point("in")


def jumping() -> StateGraph:
    """Gotos, error edges after retries, both in the branches of a map, and the failure of a graph inside."""
    graph = StateGraph({"log": Annotated[list, append], "item": int}, name="jumping")
    graph.add_node("plan", plan, goto=["work", "split"])
    graph.add_node("work", work, retry=Retry(2, backoff=0.01, on=ConnectionError))
    graph.add_node("repair", repair, goto=["plan"])
    graph.add_error_edge("work", "repair", on=(ConnectionError, ValueError))
    graph.add_edge("work", END)
    graph.add_node("split").add_node("branch", branch, goto=["checked", "join"]).add_node("rescue", rescue)
    graph.add_node("checked", lambda state: {"done": "checked"})
    graph.add_error_edge("branch", "rescue", on=LookupError)
    graph.add_map("split", "branch", lambda state: range(4), "join")
    graph.add_fanin_node(
        "join", lambda state, parallel_results: {"log": [str(each["done"]) for each in parallel_results]}
    )
    graph.add_node("inside", inner()).add_edge("join", "inside").add_edge("inside", END)
    graph.add_node("last", lambda state, error: {"log": str(error)}).add_error_edge("inside", "last")
    return graph.set_entry_point("plan").set_finish_point("last")
