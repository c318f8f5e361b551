"""Graphs whose nodes have limits, which the crash suites kill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from limpet import BranchResult, Limit, Retry, State, StateGraph, Workflow, append
from limpet.testing import effects


def narrow() -> StateGraph:
    """A map whose branches share one slot, between two nodes with limits; one of them fails at first."""
    graph = StateGraph({"items": list, "log": Annotated[list, append]}, name="narrow")
    graph.add_node("src", begin, limits=[Limit("one", concurrency=1)], retry=Retry(attempts=3, backoff=0))
    graph.add_node("each", work, limits=["one", Limit("two", concurrency=2)])
    graph.add_fanin_node("join", collect, limits=["two"])
    graph.add_map("src", "each", "items", "join")
    return graph.set_entry_point("src").set_finish_point("join")


def begin(state: State) -> dict[str, Any]:
    effects.record("begun", "src")
    return {"items": [1, 2, 3]}


def work(state: State) -> dict[str, Any]:
    effects.record("worked", str(state["item"]))
    return {"log": [state["item"] * 10]}


async def collect(state: State, parallel_results: Sequence[BranchResult]) -> dict[str, Any]:
    return {"log": [each for result in parallel_results for each in result["log"]]}


def tasks() -> Workflow:
    """Three tasks that share one slot, and one that needs them all."""
    flow = Workflow("tasks", limits=[Limit("runs", concurrency=1)])
    for name in ("a", "b", "c"):
        flow.add_task(
            name, lambda name=name: name, limits=[Limit("one", concurrency=1)], arguments={"name": name}
        )
    flow.add_task("all", lambda a, b, c: [a, b, c], ["a", "b", "c"])
    return flow
