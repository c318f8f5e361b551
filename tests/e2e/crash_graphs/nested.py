"""plan → review → done, where `review` is a graph with two branches, and there is a map inside of each of these.

    review: split ─┬─ left ─ [price → book] for each part ─ gather ─ polish ─┬─ merge
                   └─ right ─ <leaf: weigh → label> for each part ─ pack ────┘

The left map's items are two nodes long and pay for something; those of the right are graphs of their own. Pages that
`plan` replaces bring on a snapshot while all of them are under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from typing import Annotated, Any

from limpet import StateGraph, append

PARTS = 6
PAGES = 7


def build(life: Any, observer: Callable[..., None] | None, page: int = 9000) -> StateGraph:
    def plan(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        if ctx.visit <= PAGES:
            return {"page": f"{ctx.visit:04}" * (page // 4)}
        state.pop("page")
        return {"parts": [("part", number) for number in range(PARTS)], "log": ["plan"]}

    def done(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        return {"log": ["done"], "size": len(state["report"])}

    schema = {"parts": list, "log": Annotated[list, append], "report": dict}
    graph = StateGraph(schema, name="nested", observer=observer)
    graph.add_node("plan", run=plan).add_node("done", run=done)
    outputs = {"report": "report", "log": "log"}
    graph.add_node("review", review(life), inputs={"todo": "parts"}, outputs=outputs)
    graph.add_edge("plan", "plan", lambda state: "page" in state)
    graph.add_edge("plan", "review").add_edge("review", "done")
    return graph.set_entry_point("plan").set_finish_point("done")


def review(life: Any) -> StateGraph:
    def split(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        return {"log": ["split"], "shared": {"seen": []}}

    def left(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        state["shared"]["seen"].append("left")
        return {"log": ["left"], "rate": Decimal("1.25")}

    def price(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        receipt = life.pay(ctx, "charge", state["item"][1] * state["rate"])
        state["shared"]["seen"].append(ctx.index)
        return {"receipt": receipt}

    async def book(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        await asyncio.sleep(0.0005)
        return {"booked": (state["receipt"], ctx.branch), "log": [("book", ctx.index)]}

    def gather(state: Any, ctx: Any, parallel_results: list[Any]) -> dict[str, Any]:
        life.note("join", "gather", *(each.branch for each in parallel_results))
        life.begin(ctx)
        booked = [(each["booked"], each["shared"]["seen"], each["log"]) for each in parallel_results]
        return {"booked": booked, "log": ["gather"]}

    def polish(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        again = life.pay(ctx, "polish", len(state["booked"]))
        return {"polished": (again, state["rate"])}

    async def right(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        return {"log": ["right"], "scale": 10**20}

    def pack(ctx: Any, parallel_results: list[Any]) -> dict[str, Any]:
        life.note("join", "pack", *(each.branch for each in parallel_results))
        life.begin(ctx)
        return {"packed": [dict(each) for each in parallel_results]}

    def merge(ctx: Any, parallel_results: list[Any]) -> dict[str, Any]:
        life.note("join", "merge", *(each.branch for each in parallel_results))
        life.begin(ctx)
        return {"report": {each.branch: dict(each) for each in parallel_results}, "log": ["merge"]}

    graph = StateGraph(name="reviewing").add_node("split", run=split)
    graph.add_node("left", run=left).add_node("polish", run=polish).add_fanin_node("gather", run=gather)
    graph.add_node("price", run=price).add_node("book", run=book).add_edge("price", "book")
    graph.add_node("right", run=right).add_fanin_node("pack", run=pack).add_fanin_node("merge", run=merge)
    graph.add_parallel_edge("split", "left", "merge").add_parallel_edge("split", "right", "merge")
    graph.add_map("left", each="price", over="todo", fan_in="gather", max_concurrency=4).add_edge(
        "gather", "polish"
    )
    graph.add_map("right", each=leaf(life), over=lambda state: reversed(state["todo"]), fan_in="pack")
    return graph.set_entry_point("split").set_finish_point("merge")


def leaf(life: Any) -> StateGraph:
    def weigh(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        return {"weight": state["item"][1] * state["scale"]}

    def label(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        return {"label": life.pay(ctx, "stamp", (ctx.branch, state["weight"]))}

    graph = StateGraph({"item": tuple, "scale": int, "weight": int, "label": tuple}, name="leaf")
    graph.add_node("weigh", run=weigh).add_node("label", run=label).add_edge("weigh", "label")
    return graph.set_entry_point("weigh").set_finish_point("label")
