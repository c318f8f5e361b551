"""The graphs that receive messages, which the crash suites kill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from limpet import END, BranchResult, NodeContext, State, StateGraph, Workflow, append, once, receive
from limpet.testing import effects

TALK = ["Hello", "bye"]


def chat() -> StateGraph:
    """A turn for each message "user", until that is "bye"; each has a reply that is paid for, and may have a hint."""
    graph = StateGraph({"turns": Annotated[list, append]}, name="chat").add_node("turn", run=take_turn)
    graph.set_entry_point("turn")
    return graph.add_conditional_edges("turn", is_over, {"more": "turn", "over": END})


def take_turn(state: State, ctx: NodeContext) -> dict[str, Any]:
    said = ctx.receive("user")
    reply = once("reply", pay_for, said)
    hint = ctx.receive("hint", deadline=0, default=None)
    return {"turns": [(said, reply, hint)]}


def pay_for(said: str) -> str:
    effects.record("paid", said)
    return said.upper()


def is_over(state: State) -> str:
    return "over" if state["turns"][-1][0] == "bye" else "more"


def wide() -> StateGraph:
    """Three branches: two receive the same name, one of them twice and after a step; the third waits in a graph."""
    schema = {"log": Annotated[list, append]}
    inner = StateGraph(schema, name="inner").add_node("in", run=take_two)
    inner.set_entry_point("in").set_finish_point("in")
    graph = StateGraph(schema, name="wide").add_node("open").add_fanin_node("join", run=gather)
    graph.add_node("one", run=take_one).add_node("two", run=take_one).add_node("again", run=atake_one)
    graph.add_node("sub", run=inner)
    graph.add_edge("two", "again")
    for branch in ("one", "two", "sub"):
        graph.add_parallel_edge("open", branch, "join")
    return graph.set_entry_point("open").set_finish_point("join")


def take_one(state: State) -> dict[str, Any]:
    return {"log": [receive("a")]}


async def atake_one(state: State, ctx: NodeContext) -> dict[str, Any]:
    return {"log": [await ctx.areceive("a")]}


def take_two(state: State) -> dict[str, Any]:
    return {"log": [receive("b"), receive("b", deadline=60, default="none"), receive("b", key="last")]}


def gather(state: State, parallel_results: Sequence[BranchResult]) -> dict[str, Any]:
    *common, inner = [result["log"] for result in parallel_results]
    return {"log": [sorted(each for log in common for each in log), inner]}


def tasks() -> Workflow:
    """Two tasks that receive, and one that needs both."""
    flow = Workflow("tasks")
    flow.add_task("first", lambda: receive("a"))
    flow.add_task("second", lambda: receive("a"))
    flow.add_task("both", lambda first, second: sorted([first, second]), ["first", "second"])
    return flow
