"""Graphs with sections and sub-graphs, nodes that note their calls, and ways to run them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from limpet import BranchResult, NodeContext, Retry, RunPaused, State, StateGraph

SOON = 10.0
"""Seconds within which what is waited for has happened, on any machine."""

AT_ONCE = Retry(attempts=3, backoff=0)

Run = Callable[..., Any] | None


class Crash(BaseException):
    """Ends the run as the end of the process would."""


def gather(state: State, parallel_results: Sequence[BranchResult]) -> dict[str, Any]:
    """A fan-in that puts all it is given into the state."""
    return {"results": [dict(each) for each in parallel_results]}


def fan(
    branches: dict[str, Run | Sequence[Run]],
    join: Run = gather,
    *,
    source: Run = None,
    then: dict[str, Run] | None = None,
    schema: Any = None,
    on_error: Any = "fail",
    policy: dict[str, Any] | None = None,
    **settings: Any,
) -> StateGraph:
    """src → a branch of nodes a → a2 → … for each name → join → the nodes of `then`.

    `policy` is that of the fan-in.
    """
    graph = StateGraph(schema, name="fan", **settings).add_node("src", run=source)
    for name, functions in branches.items():
        chain(graph, name, functions if isinstance(functions, Sequence) else [functions])
        graph.add_parallel_edge("src", name, "join", on_error=on_error)
    graph.add_fanin_node("join", run=join, **(policy or {}))
    last = "join"
    for name, function in (then or {}).items():
        graph.add_node(name, run=function).add_edge(last, name)
        last = name
    return graph.set_entry_point("src").set_finish_point(last)


def chain(graph: StateGraph, name: str, functions: Sequence[Run], **policy: Any) -> None:
    """Add nodes a → a2 → …, one for each function. `policy` is that of each."""
    names = [name, *(f"{name}{number}" for number in range(2, len(functions) + 1))]
    for node, function in zip(names, functions, strict=True):
        graph.add_node(node, run=function, **policy)
    for one, other in pairwise(names):
        graph.add_edge(one, other)


class Calls:
    """A function for nodes and fan-ins that notes which were called, by the whole way there."""

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.fail: set[str] = set()

    def __call__(
        self, state: State, ctx: NodeContext, parallel_results: Sequence[BranchResult] = ()
    ) -> dict[str, Any]:
        place = f"{ctx.branch}/{ctx.node}" if ctx.branch else ctx.node
        self.nodes.append(place)
        if place in self.fail:
            raise ValueError(f"no {place} today")
        return {ctx.node: True, **(gather(state, parallel_results) if parallel_results else {})}

    def take(self) -> list[str]:
        """The calls since the last look, sorted: branches come in any order."""
        return sorted(self.take_in_order())

    def take_in_order(self) -> list[str]:
        """The calls since the last look, as they came."""
        taken, self.nodes = self.nodes, []
        return taken


class Via:
    """Runs graphs through the sync or the async API."""

    def __init__(self, api: str) -> None:
        self.api = api

    def execute(self, graph: StateGraph, given: Any = None, **more: Any) -> State:
        if self.api == "sync":
            return graph.execute(given, **more)
        return asyncio.run(graph.aexecute(given, **more))

    def resume(self, graph: StateGraph, run_id: str, *value: Any, **more: Any) -> State:
        if self.api == "sync":
            return graph.resume(run_id, *value, **more)
        return asyncio.run(graph.aresume(run_id, *value, **more))

    def paused(self, graph: StateGraph, given: Any = None, **more: Any) -> RunPaused:
        """Run "r" until it pauses."""
        with pytest.raises(RunPaused) as caught:
            self.execute(graph, given, run_id="r", **more)
        return caught.value

    def paused_again(self, graph: StateGraph, *value: Any, **more: Any) -> RunPaused:
        """Resume "r" until it pauses."""
        with pytest.raises(RunPaused) as caught:
            self.resume(graph, "r", *value, **more)
        return caught.value

    def events(
        self, graph: StateGraph, given: Any = None, *, stream: bool = True, **more: Any
    ) -> list[dict[str, Any]]:
        """All that `stream`, or `invoke`, tells."""

        async def collect() -> list[dict[str, Any]]:
            return [event async for event in (graph.astream if stream else graph.ainvoke)(given, **more)]

        if self.api == "sync":
            return list((graph.stream if stream else graph.invoke)(given, **more))
        return asyncio.run(collect())
