"""The graphs of the simulation of limits in the whole engine, each with a plain model of the result of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from limpet import BranchResult, Limit, MemoryStore, Retry, State, StateGraph, Workflow, append
from support.simulated_graphs import BACKOFF, NAP, SLEEP, Case, effect, say, slept

API = Limit("api", concurrency=2)
DB = Limit("db", concurrency=1)
PACED = Limit("paced", rate="3/10s")
WHOLE = Limit("whole", concurrency=2)
OFTEN = Limit("often", rate="4/10s")
LANE = Limit("lane", concurrency=1, queues=("slow",))
LIMITS = (API, DB, PACED, WHOLE, OFTEN, LANE)
QUEUES = ("default", "fast", "slow")
AGAIN = Retry(attempts=99, backoff=BACKOFF, factor=1, jitter=0)


def _schema() -> dict[str, Any]:
    return {"log": Annotated[list, append], "n": int}


def _log(state: Any) -> Any:
    return list(state["log"])


def _calls() -> Case:
    """Calls of one limit, of two, and of a rate, one after the other; one of them naps while it has its slot."""

    def ask(state: State) -> dict[str, Any]:
        return {"n": state["n"] + 1, **say(f"ask {state['n']}")}

    def write(state: State) -> dict[str, Any]:
        slept(NAP)
        return say(effect("write"))

    graph = StateGraph(_schema(), name="calls").add_node("ask", run=ask, limits=[API])
    graph.add_node("write", run=write, limits=[API, DB])
    graph.add_node("end", run=lambda state: say("end"), limits=[PACED])
    graph.add_edge("ask", "ask", lambda state: state["n"] < 3).add_edge("ask", "write")
    graph.add_edge("write", "end").set_entry_point("ask").set_finish_point("end")

    def model(n: int, answers: Any) -> list[str]:
        return [*(f"ask {each}" for each in range(n, max(n + 1, 3))), "write", "end"]

    return Case(graph, model, _log)


def _items() -> Case:
    """A map whose items need slots. One fails at first, and gives its slot back until it is tried again."""

    def each(state: State, ctx: Any) -> dict[str, Any]:
        if ctx.attempt == 1 and state["item"] == 1:
            raise ValueError("not yet")
        return {"n": state["item"] * 10, **say(effect(f"item {state['item']}"))}

    def join(state: State, parallel_results: Sequence[BranchResult]) -> dict[str, Any]:
        return say(*(f"{each['n']}" for each in parallel_results))

    graph = StateGraph(_schema(), name="items").add_node("src", run=lambda state: say("src"), limits=[PACED])
    graph.add_node("each", run=each, limits=[API], retry=AGAIN)
    graph.add_map("src", "each", lambda state: range(state["n"] + 1), "join")
    graph.add_fanin_node("join", run=join).set_entry_point("src").set_finish_point("join")
    return Case(graph, lambda n, _: ["src", *(f"{each * 10}" for each in range(n + 1))], _log)


def _whole() -> Case:
    """A run that needs a slot as a whole, gives it back while it sleeps, and has a call with a limit."""

    def rest(state: State) -> dict[str, Any]:
        slept(SLEEP)
        return say("rested")

    graph = StateGraph(_schema(), name="whole").add_node("first", run=lambda state: say(effect("first")))
    graph.add_node("rest", run=rest).add_node("last", run=lambda state: say("last"), limits=[DB])
    graph.add_edge("first", "rest").add_edge("rest", "last")
    graph.set_entry_point("first").set_finish_point("last")
    graph.compile(store=MemoryStore(), limits=[WHOLE, LANE])
    return Case(graph, lambda *_: ["first", "rested", "last"], _log)


def _often() -> Case:
    """A run whose graph has a rate: few may begin in a time."""
    graph = StateGraph(_schema(), name="often").add_node("one", run=lambda state: say("one"))
    graph.add_node("two", run=lambda state: say(effect("two"))).add_edge("one", "two")
    graph.set_entry_point("one").set_finish_point("two")
    graph.compile(store=MemoryStore(), limits=[OFTEN])
    return Case(graph, lambda *_: ["one", "two"], _log)


def _tasks() -> Case:
    """A workflow whose tasks need slots, in parallel."""
    flow = Workflow("tasks").add_task("first", lambda: 1)
    flow.add_task("left", lambda first: first + 1, depends_on=["first"], limits=[DB])
    flow.add_task("right", lambda first: first + 2, depends_on=["first"], limits=[API])
    flow.add_task("last", lambda left, right: f"{left} {right}", depends_on=["left", "right"], limits=[API])
    return Case(flow, lambda *_: "2 3", lambda state: state["tasks"]["last"]["result"])


def _free() -> Case:
    """A run without limits: none of the others holds it up."""
    graph = StateGraph(_schema(), name="free").add_node("one", run=lambda state: say("one"))
    graph.add_node("two", run=lambda state: say("two")).add_edge("one", "two")
    graph.set_entry_point("one").set_finish_point("two")
    return Case(graph, lambda *_: ["one", "two"], _log)


LIMITED_CASES = {
    case.graph.name: case for case in (_calls(), _items(), _whole(), _often(), _tasks(), _free())
}
