"""A graph of each kind, as users define them, for the crash-test kit. What they do to the world is counted."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated, Any

from limpet import Retry, StateGraph, Workflow, append, once, pause, sleep
from limpet.testing import effects

TRAIL = {"trail": Annotated[list, append]}


def step(state: Any, ctx: Any) -> dict[str, Any]:
    effects.record(ctx.node, ctx.idempotency_key)
    return {"trail": (ctx.node, ctx.visit)}


async def async_step(state: Any, ctx: Any) -> dict[str, Any]:
    await asyncio.sleep(0)
    return step(state, ctx)


def linear() -> StateGraph:
    """It names no store: the kit has its own."""
    graph = StateGraph(TRAIL, name="linear")
    graph.add_node("fetch", run=step).add_node("clean", run=async_step).add_node("load", run=step)
    graph.set_entry_point("fetch").add_edge("fetch", "clean").add_edge("clean", "load", delay=3600)
    return graph.set_finish_point("load")


def cycle(store: Any) -> StateGraph:
    """It fails at times, and tries again an hour later."""

    def work(state: Any, ctx: Any) -> dict[str, Any]:
        if ctx.visit == 2 and ctx.attempt == 1:
            raise ConnectionError("not now")
        return {**step(state, ctx), "rounds": state.get("rounds", 0) + 1}

    graph = StateGraph(TRAIL, name="cycle").add_node(
        "work", run=work, retry=Retry(9, backoff=3600, max_delay=3600)
    )
    graph.add_node("end", run=step).set_entry_point("work")
    graph.add_edge("work", "work", lambda state: state["rounds"] < 3).add_edge("work", "end")
    return graph.set_finish_point("end").compile(store=store)


def parallel(store: Any) -> StateGraph:
    """Branches of two nodes, of which one sleeps for a day."""

    def nap(state: Any, ctx: Any) -> dict[str, Any]:
        once("before", effects.record, "before the nap", ctx.idempotency_key)
        sleep(timedelta(days=1))
        return step(state, ctx)

    def join(state: Any, ctx: Any, parallel_results: Any) -> dict[str, Any]:
        return {**step(state, ctx), "all": [dict(each)["trail"] for each in parallel_results]}

    graph = StateGraph(TRAIL, name="parallel").add_node("begin", run=step).set_entry_point("begin")
    graph.add_node("left", run=async_step).add_node("left2", run=step).add_node("right", run=nap)
    graph.add_edge("left", "left2").add_fanin_node("join", run=join).set_finish_point("join")
    graph.add_parallel_edge("begin", "left", "join").add_parallel_edge("begin", "right", "join")
    return graph.compile(store=store)


def mapped(store: Any) -> StateGraph:
    """A branch for each item, each with a graph inside."""

    def price(state: Any, ctx: Any) -> dict[str, Any]:
        effects.record("price", ctx.idempotency_key)
        return {"price": state["item"] * 10}

    def add_up(parallel_results: Any) -> dict[str, Any]:
        return {"sum": sum(each["price"] for each in parallel_results)}

    inner = (
        StateGraph(name="inner")
        .add_node("price", run=price)
        .set_entry_point("price")
        .set_finish_point("price")
    )
    graph = StateGraph(TRAIL, name="mapped")
    graph.add_node("begin", run=lambda state, ctx: {**step(state, ctx), "items": [1, 2, 3]})
    graph.set_entry_point("begin")
    graph.add_fanin_node("sum", run=add_up)
    graph.add_map("begin", inner, "items", "sum")
    return graph.set_finish_point("sum").compile(store=store)


def workflow(store: Any) -> Workflow:
    """Layers, a task that asks, and one that adds a task."""
    flow = Workflow("workflow", store=store)

    def effect(ctx: Any) -> str:
        effects.record(ctx.node, ctx.idempotency_key)
        return str(ctx.node)

    def plan(ctx: Any, fetch: str) -> str:
        ctx.add_task("more", run="extra", depends_on=["plan"], before=["end"])
        ctx.add_message("planned")
        return effect(ctx)

    def approve(ctx: Any, fetch: str) -> Any:
        return effect(ctx), pause("Approve?", choices=["yes", "no"])

    flow.add_task("fetch", effect)
    flow.add_task("plan", plan, ["fetch"])
    flow.add_task("approve", approve, ["fetch"])
    flow.add_template("extra", effect)
    flow.add_task("end", lambda ctx, approve: [effect(ctx), approve], ["approve", "plan"])
    return flow


def asking(store: Any) -> StateGraph:
    """It asks until the answer is yes, and one question is left to its deadline."""

    def review(state: Any, ctx: Any) -> dict[str, Any]:
        once("mail", effects.record, "mail", ctx.idempotency_key)
        return {"trail": pause("Publish?", choices=["yes", "no"])}

    def publish(state: Any, ctx: Any) -> dict[str, Any]:
        when = pause("When?", deadline=timedelta(days=30), default="now")
        return {**step(state, ctx), "when": when}

    graph = StateGraph(TRAIL, name="asking").add_node("draft", run=step).add_node("review", run=review)
    graph.add_node("publish", run=publish).set_entry_point("draft").add_edge("draft", "review")
    graph.add_conditional_edges("review", lambda state: state["trail"][-1], {"yes": "publish", "no": "draft"})
    return graph.set_finish_point("publish").compile(store=store, interrupt_before=["publish"])


linear_graph = linear()
