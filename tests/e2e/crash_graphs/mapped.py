"""A map over two thousand items, at most sixteen at once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from typing import Any

from limpet import StateGraph

ITEMS = 2000
AT_ONCE = 16


def build(life: Any, observer: Callable[..., None] | None) -> StateGraph:
    def listing(ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        return {"orders": [(number, f"order {number}") for number in range(ITEMS)], "day": date(2024, 2, 28)}

    def price(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        number, _ = state["item"]
        return {
            "price": number * number,
            "due": state["day"] + timedelta(days=number % 3),
            "at": (ctx.index,),
        }

    def total(parallel_results: list[Any], ctx: Any) -> dict[str, Any]:
        life.note("join", len(parallel_results), sum(each["price"] for each in parallel_results))
        life.begin(ctx)
        told = [
            (each.branch, each["item"], each["price"], each["due"], each["at"]) for each in parallel_results
        ]
        return {"total": sum(each["price"] for each in parallel_results), "told": told}

    graph = StateGraph(name="mapped", observer=observer).add_node("list", run=listing)
    graph.add_map("list", each=price, over="orders", fan_in="total", max_concurrency=AT_ONCE)
    graph.add_fanin_node("total", run=total)
    return graph.set_entry_point("list").set_finish_point("total")
