"""The graphs with branches that the crash suites kill."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Annotated, Any

from crash.recording import begin, join, note_save, pay
from limpet import Retry, StateGraph, append, merge

PAGES = 7
PARTS = 6
ITEMS = 2000
MAX_ITEMS_AT_ONCE = 16


def wide() -> StateGraph:
    return build_wide(None)


def wide_observed() -> StateGraph:
    return build_wide(note_save)


def wide_every_seventh(store: Any) -> StateGraph:
    return wide_observed().compile(store=store, interval=7)


def build_wide(observer: Any) -> StateGraph:
    """Eight branches of five nodes each: with nodes in common, cycles, choices, async ones, changes in place.

    The input is {"page_size": bytes}, that of the pages which are replaced before the branches begin. They bring on a
    snapshot while the branches are under way; at which moment depends on the size.
    """
    schema = {
        "log": Annotated[list, append],
        "totals": Annotated[dict, merge],
        "nested": dict,
        "turns": int,
    }
    graph = StateGraph(schema, name="wide", observer=observer)
    graph.add_node("open", run=open_wide).add_fanin_node("join", run=join_wide).add_node(
        "close", run=close_wide
    )
    graph.add_edge("open", "open", lambda state: "page" in state)
    for number in range(8):
        graph.add_parallel_edge("open", f"b{number}", "join")
    shared = [f"shared-{number}" for number in range(2, 6)]
    for node in (*shared, "b1", "spin", "b2", "x", "y", "b4", "b5", "b6", "b4-2"):
        graph.add_node(node, run=work)
    for node in ("b0", "b3", "later-3", "later-4", "b7", "b4-4", "b4-5"):
        graph.add_node(node, run=later)
    for node in ("forget-3", "forget-5"):
        graph.add_node(node, run=forget)
    # b0, b5 and b6 go the same way; b6 leaves it for one of its own.
    for branch in ("b0", "b5", "b6"):
        graph.add_edge(branch, "shared-2")
    graph.add_edge("shared-2", "shared-3").add_edge("shared-3", "shared-4")
    graph.add_edge("shared-4", "forget-5", lambda state: state["log"][-4:][0][0] == "b6")
    graph.add_edge("shared-4", "shared-5").add_edge("shared-5", "join").add_edge("forget-5", "join")
    # b1 turns in a circle of one, b2 in one of two.
    graph.add_edge("b1", "spin").add_edge("spin", "spin", lambda state: len(state["nested"]["trail"]) < 5)
    graph.add_edge("spin", "join")
    graph.add_edge("b2", "x").add_conditional_edges("x", lambda state: True, {True: "y"})
    graph.add_edge("y", "x", lambda state: len(state["nested"]["trail"]) < 5).add_edge("y", "join")
    # b3 and b7 have async nodes; b4 forgets what it has, in its middle.
    graph.add_edge("b3", "later-3").add_edge("later-3", "later-4")
    graph.add_edge("later-4", "later-3", lambda state: state["large"] < 10**30 * 7**5)
    graph.add_edge("later-4", "join").add_edge("b7", "later-3")
    for source, target in pairwise(("b4", "b4-2", "forget-3", "b4-4", "b4-5")):
        graph.add_edge(source, target)
    graph.add_edge("join", "close")
    return graph.set_entry_point("open").set_finish_point("close")


def open_wide(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    if state.get("turns", 0) < PAGES:
        return {"turns": ctx.visit, "page": f"{ctx.visit:04}" * (state["page_size"] // 4)}
    del state["page"], state["page_size"]
    state["nested"] = {"trail": [], "deep": {"pair": (1, [2])}}
    return {"when": datetime(2024, 2, 29, 12, 30, tzinfo=UTC), "odd": ("a", (2.5, None)), "large": 10**30}


def work(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    pretend_to_work(ctx)
    place = len(state["nested"]["trail"])
    state["nested"]["trail"].append((ctx.branch, ctx.node, ctx.visit))
    state["odd"] = (*state["odd"], place)
    return {
        "log": [(ctx.node, place)],
        "totals": {ctx.branch: Decimal(place) / 8},
        "when": state["when"] + timedelta(days=place, microseconds=1),
    }


async def later(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    await asyncio.sleep(0.0005)
    state["nested"]["deep"]["pair"][1].append({ctx.node: b"\x00\xff"})
    return {"large": state["large"] * 7, "seen": {ctx.node, "x"}, "log": f"{ctx.node} {ctx.visit}"}


def forget(state: Any, ctx: Any) -> None:
    begin(ctx)
    pretend_to_work(ctx)
    del state["odd"]
    state["nested"]["trail"].clear()
    state["left"] = frozenset(state["totals"])


def join_wide(state: Any, ctx: Any, parallel_results: list[Any]) -> dict[str, Any]:
    join(*(f"{each.branch}:{len(each['log'])}" for each in parallel_results))
    begin(ctx)
    assert all(each.started <= each.ended for each in parallel_results)
    results = [(each.branch, each.index, each.error, dict(each)) for each in parallel_results]
    return {"results": results, "log": [("join", len(results))]}


def close_wide(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    return {"log": [None, True], "last": (ctx.step, state["results"][0][0])}


def nested() -> StateGraph:
    return build_nested(None)


def nested_observed() -> StateGraph:
    return build_nested(note_save)


def nested_every_seventh(store: Any) -> StateGraph:
    return nested_observed().compile(store=store, interval=7)


def build_nested(observer: Any) -> StateGraph:
    """plan → review → done, where `review` is a graph with two branches, and there is a map inside of each of these.

        review: split ─┬─ left ─ [price → book] for each part ─ gather ─ polish ─┬─ merge
                       └─ right ─ <leaf: weigh → label> for each part ─ pack ────┘

    The left map's items are two nodes long and pay for something; those of the right are graphs of their own. Pages
    that `plan` replaces bring on a snapshot while all of them are under way; the input is as that of `wide`.
    """
    schema = {"parts": list, "log": Annotated[list, append], "report": dict}
    graph = StateGraph(schema, name="nested", observer=observer)
    graph.add_node("plan", run=plan_parts).add_node("done", run=done)
    outputs = {"report": "report", "log": "log"}
    graph.add_node("review", review(), inputs={"todo": "parts"}, outputs=outputs)
    graph.add_edge("plan", "plan", lambda state: "page" in state)
    graph.add_edge("plan", "review").add_edge("review", "done")
    return graph.set_entry_point("plan").set_finish_point("done")


def review() -> StateGraph:
    graph = StateGraph(name="reviewing").add_node("split", run=split)
    graph.add_node("left", run=left).add_node("polish", run=polish).add_fanin_node("gather", run=gather)
    graph.add_node("price", run=price_part).add_node("book", run=book).add_edge("price", "book")
    graph.add_node("right", run=right).add_fanin_node("pack", run=pack).add_fanin_node(
        "merge", run=merge_halves
    )
    graph.add_parallel_edge("split", "left", "merge").add_parallel_edge("split", "right", "merge")
    graph.add_map("left", each="price", over="todo", fan_in="gather", max_concurrency=4)
    graph.add_edge("gather", "polish")
    graph.add_map("right", each=leaf(), over=lambda state: reversed(state["todo"]), fan_in="pack")
    return graph.set_entry_point("split").set_finish_point("merge")


def leaf() -> StateGraph:
    graph = StateGraph({"item": tuple, "scale": int, "weight": int, "label": tuple}, name="leaf")
    graph.add_node("weigh", run=weigh).add_node("label", run=label).add_edge("weigh", "label")
    return graph.set_entry_point("weigh").set_finish_point("label")


def plan_parts(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    if ctx.visit <= PAGES:
        return {"page": f"{ctx.visit:04}" * (state["page_size"] // 4)}
    del state["page"], state["page_size"]
    return {"parts": [("part", number) for number in range(PARTS)], "log": ["plan"]}


def done(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    return {"log": ["done"], "size": len(state["report"])}


def split(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    return {"log": ["split"], "shared": {"seen": []}}


def left(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    state["shared"]["seen"].append("left")
    return {"log": ["left"], "rate": Decimal("1.25")}


def price_part(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    receipt = pay(ctx, "charge", state["item"][1] * state["rate"])
    state["shared"]["seen"].append(ctx.index)
    return {"receipt": receipt}


async def book(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    await asyncio.sleep(0.0005)
    return {"booked": (state["receipt"], ctx.branch), "log": [("book", ctx.index)]}


def gather(state: Any, ctx: Any, parallel_results: list[Any]) -> dict[str, Any]:
    join("gather", *(each.branch for each in parallel_results))
    begin(ctx)
    booked = [(each["booked"], each["shared"]["seen"], each["log"]) for each in parallel_results]
    return {"booked": booked, "log": ["gather"]}


def polish(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    again = pay(ctx, "polish", len(state["booked"]))
    return {"polished": (again, state["rate"])}


async def right(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    return {"log": ["right"], "scale": 10**20}


def pack(ctx: Any, parallel_results: list[Any]) -> dict[str, Any]:
    join("pack", *(each.branch for each in parallel_results))
    begin(ctx)
    return {"packed": [dict(each) for each in parallel_results]}


def merge_halves(ctx: Any, parallel_results: list[Any]) -> dict[str, Any]:
    join("merge", *(each.branch for each in parallel_results))
    begin(ctx)
    return {"report": {each.branch: dict(each) for each in parallel_results}, "log": ["merge"]}


def weigh(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    return {"weight": state["item"][1] * state["scale"]}


def label(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    return {"label": pay(ctx, "stamp", (ctx.branch, state["weight"]))}


def planned() -> StateGraph:
    return build_planned(None)


def planned_observed() -> StateGraph:
    return build_planned(note_save)


def build_planned(observer: Any) -> StateGraph:
    """A planner that is its own fan-in: three times, it starts five jobs and reads their results.

    A job is fetched, at the third attempt, and checked; every other one fails there, which is collected.
    """
    graph = StateGraph({"log": Annotated[list, append], "jobs": list}, name="planned", observer=observer)
    graph.add_fanin_node("plan", run=plan_jobs).add_node("check", run=check).add_node(
        "close", run=close_planned
    )
    graph.add_node("fetch", run=fetch, retry=Retry(attempts=3, backoff=0.001))
    graph.add_edge("plan", "close", lambda state: len(state["log"]) > 3)
    graph.add_map("plan", each="fetch", over="jobs", fan_in="plan", on_error="collect")
    graph.add_edge("fetch", "check").add_edge("check", "plan")
    return graph.set_entry_point("plan").set_finish_point("close")


def plan_jobs(state: Any, ctx: Any, parallel_results: list[Any]) -> dict[str, Any]:
    join(ctx.visit, *(f"{each.branch}:{each.error is not None}" for each in parallel_results))
    begin(ctx)
    errors = [each.error and (each.error["type"], each.error["node"]) for each in parallel_results]
    results = [(each.branch, each["item"], each.get("fetched")) for each in parallel_results]
    return {"log": [(ctx.visit, results, errors)], "jobs": [(ctx.visit, number) for number in range(5)]}


def fetch(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    if ctx.attempt < 3:
        raise ConnectionError("not now")
    return {"fetched": (state["item"], ctx.attempt)}


async def check(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    if state["item"][1] % 2:
        raise ValueError("an odd one")
    return {"fetched": [state["fetched"]]}


def close_planned(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    return {"rounds": len(state["log"]) - 1}


def mapped() -> StateGraph:
    """A map over two thousand items, at most sixteen at once, with an observer."""
    graph = StateGraph(name="mapped", observer=note_save).add_node("list", run=list_orders)
    graph.add_map("list", each=price_order, over="orders", fan_in="total", max_concurrency=MAX_ITEMS_AT_ONCE)
    graph.add_fanin_node("total", run=total)
    return graph.set_entry_point("list").set_finish_point("total")


def list_orders(ctx: Any) -> dict[str, Any]:
    begin(ctx)
    return {"orders": [(number, f"order {number}") for number in range(ITEMS)], "day": date(2024, 2, 28)}


def price_order(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    number, _ = state["item"]
    return {"price": number * number, "due": state["day"] + timedelta(days=number % 3), "at": (ctx.index,)}


def total(parallel_results: list[Any], ctx: Any) -> dict[str, Any]:
    join(len(parallel_results), sum(each["price"] for each in parallel_results))
    begin(ctx)
    results = [
        (each.branch, each["item"], each["price"], each["due"], each["at"]) for each in parallel_results
    ]
    return {"total": sum(each["price"] for each in parallel_results), "results": results}


def pretend_to_work(ctx: Any) -> None:
    """Take a moment, of a length that depends on the node, so that branches overtake each other."""
    time.sleep(sum(map(ord, f"{ctx.branch}{ctx.node}")) % 5 / 2500)
