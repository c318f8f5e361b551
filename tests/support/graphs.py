"""The shapes of graphs that tests build, nodes that record their calls, and ways to run them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import pairwise
from typing import Any

import pytest

from limpet import (
    BranchResult,
    MemoryStore,
    NodeContext,
    Retry,
    RunPaused,
    State,
    StateGraph,
    Workflow,
    pause,
)

SOON = 10.0
"""Seconds within which what is waited for has happened, on any machine."""

AT_ONCE = Retry(attempts=3, backoff=0)

Run = Callable[..., Any] | None


class Crash(BaseException):
    """Ends a run as the end of its process would: nothing after it is saved."""


def count(state: State) -> dict[str, Any]:
    """A node that counts `n`."""
    return {"n": state.get("n", 0) + 1}


def single(
    run: Any, node: str = "only", schema: Any = None, name: str = "single", **policy: Any
) -> StateGraph:
    """A graph of one node. `policy` is that of the node."""
    graph = StateGraph(schema, name=name).add_node(node, run=run, **policy)
    return graph.set_entry_point(node).set_finish_point(node)


def chain(
    *functions: Any,
    names: Sequence[str] | None = None,
    schema: Any = None,
    name: str = "chain",
    **settings: Any,
) -> StateGraph:
    """A graph of nodes n1 → n2 → …, or of these names, one for each function or graph."""
    graph = StateGraph(schema, name=name, **settings)
    nodes = list(names or [f"n{number}" for number in range(1, len(functions) + 1)])[: len(functions)]
    for node, function in zip(nodes, functions, strict=True):
        graph.add_node(node, run=function)
    for node, following in pairwise(nodes):
        graph.add_edge(node, following)
    return graph.set_entry_point(nodes[0]).set_finish_point(nodes[-1])


def stored_chain(*functions: Any, schema: Any = None, **options: Any) -> StateGraph:
    """A `chain` with a new store that keeps ended runs. `options` are those of `compile`."""
    return chain(*functions, schema=schema).compile(store=MemoryStore(), preserve=True, **options)


def loop(times: int, function: Run = count, **settings: Any) -> StateGraph:
    """A graph whose one node, `again`, runs until `n` is `times`."""
    graph = StateGraph(name="loop", **settings).add_node("again", run=function)
    graph.set_entry_point("again").set_finish_point("again")
    return graph.add_edge("again", "again", lambda state: state["n"] < times)


def asking(**question: Any) -> Callable[..., Any]:
    """A node that asks "Ship it?" and returns the answer."""

    def ask(state: State) -> dict[str, Any]:
        answer = pause("Ship it?", **question)
        return {"answer": dict(answer) if hasattr(answer, "model_dump") else answer}

    return ask


def asking_workflow(name: str = "asking", **settings: Any) -> Workflow:
    """A workflow whose one task, `ask`, asks "Continue?" and returns the answer."""
    return Workflow(name, **settings).add_task("ask", lambda: pause("Continue?"))


def crash_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The node as it is, but for its first call, which crashes before it does anything."""
    crashed = False

    @wraps(function)
    def run(*args: Any, **given: Any) -> Any:
        nonlocal crashed
        if not crashed:
            crashed = True
            raise Crash
        return function(*args, **given)

    return run


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
        add_chain(graph, name, functions if isinstance(functions, Sequence) else [functions])
        graph.add_parallel_edge("src", name, "join", on_error=on_error)
    graph.add_fanin_node("join", run=join, **(policy or {}))
    last = "join"
    for name, function in (then or {}).items():
        graph.add_node(name, run=function).add_edge(last, name)
        last = name
    return graph.set_entry_point("src").set_finish_point(last)


def add_chain(graph: StateGraph, name: str, functions: Sequence[Run], **policy: Any) -> None:
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

        more |= {} if given is None else {"input": given}

        async def collect() -> list[dict[str, Any]]:
            return [event async for event in (graph.astream if stream else graph.ainvoke)(**more)]

        if self.api == "sync":
            return list((graph.stream if stream else graph.invoke)(**more))
        return asyncio.run(collect())


def asking_while_another_runs(store: Any, proceed: threading.Event) -> StateGraph:
    """Two branches: one asks, the other waits for the test."""

    def slow(state: Any) -> dict[str, Any]:
        assert proceed.wait(SOON)
        return {"slow": True}

    def ask(state: Any) -> dict[str, Any]:
        return {"said": pause("well?", choices=["yes", "no"])}

    def join(state: Any, parallel_results: Any) -> dict[str, Any]:
        return {"said": [each.get("said") for each in parallel_results]}

    graph = StateGraph({"said": object}, name="asking").add_node("src", run=lambda state: {})
    graph.add_node("ask", run=ask).add_node("slow", run=slow).add_fanin_node("join", run=join)
    for branch in ("ask", "slow"):
        graph.add_parallel_edge("src", branch, "join")
    return graph.set_entry_point("src").set_finish_point("join").compile(store=store)
