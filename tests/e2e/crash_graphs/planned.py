"""A planner that is its own fan-in: it hands out five jobs, three times, and looks at what came of them.

A job is fetched, at the third attempt, and checked; every other one fails there, which is collected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from limpet import Retry, StateGraph, append

ROUNDS = 3
JOBS = 5


def build(life: Any, observer: Callable[..., None] | None) -> StateGraph:
    def plan(state: Any, ctx: Any, parallel_results: list[Any]) -> dict[str, Any]:
        life.note(
            "join", ctx.visit, *(f"{each.branch}:{each.error is not None}" for each in parallel_results)
        )
        life.begin(ctx)
        errors = [each.error and (each.error["type"], each.error["node"]) for each in parallel_results]
        got = [(each.branch, each["item"], each.get("fetched")) for each in parallel_results]
        return {"log": [(ctx.visit, got, errors)], "jobs": [(ctx.visit, number) for number in range(JOBS)]}

    def fetch(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        if ctx.attempt < 3:
            raise ConnectionError("not now")
        return {"fetched": (state["item"], ctx.attempt)}

    async def check(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        if state["item"][1] % 2:
            raise ValueError("an odd one")
        return {"fetched": [state["fetched"]]}

    def close(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        return {"rounds": len(state["log"]) - 1}

    graph = StateGraph({"log": Annotated[list, append], "jobs": list}, name="planned", observer=observer)
    graph.add_fanin_node("plan", run=plan).add_node("check", run=check).add_node("close", run=close)
    graph.add_node("fetch", run=fetch, retry=Retry(attempts=3, backoff=0.001))
    graph.add_edge("plan", "close", lambda state: len(state["log"]) > ROUNDS)
    graph.add_map("plan", each="fetch", over="jobs", fan_in="plan", on_error="collect")
    graph.add_edge("fetch", "check").add_edge("check", "plan")
    return graph.set_entry_point("plan").set_finish_point("close")
