"""Eight branches of five nodes each: with nodes in common, cycles, choices, async ones, changes in place.

Pages that are replaced before the branches begin bring on a snapshot while they are under way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Annotated, Any

from limpet import StateGraph, append, merge

BRANCHES = [f"b{number}" for number in range(8)]
PAGES = 7

SCHEMA = {
    "log": Annotated[list, append],
    "totals": Annotated[dict, merge],
    "nested": dict,
    "turns": int,
}


def build(life: Any, observer: Callable[..., None] | None, page: int = 9000) -> StateGraph:
    def opening(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        if state.get("turns", 0) < PAGES:
            return {"turns": ctx.visit, "page": f"{ctx.visit:04}" * (page // 4)}
        state.pop("page")
        state["nested"] = {"trail": [], "deep": {"pair": (1, [2])}}
        return {"when": datetime(2024, 2, 29, 12, 30, tzinfo=UTC), "odd": ("a", (2.5, None)), "large": 10**30}

    def work(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
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
        life.begin(ctx)
        await asyncio.sleep(0.0005)
        state["nested"]["deep"]["pair"][1].append({ctx.node: b"\x00\xff"})
        return {"large": state["large"] * 7, "seen": {ctx.node, "x"}, "log": f"{ctx.node} {ctx.visit}"}

    def forget(state: Any, ctx: Any) -> None:
        life.begin(ctx)
        pretend_to_work(ctx)
        del state["odd"]
        state["nested"]["trail"].clear()
        state["left"] = frozenset(state["totals"])

    def join(state: Any, ctx: Any, parallel_results: list[Any]) -> dict[str, Any]:
        life.note("join", *(f"{each.branch}:{len(each['log'])}" for each in parallel_results))
        life.begin(ctx)
        assert all(each.started <= each.ended for each in parallel_results)
        told = [(each.branch, each.index, each.error, dict(each)) for each in parallel_results]
        return {"results": told, "log": [("join", len(told))]}

    def close(state: Any, ctx: Any) -> dict[str, Any]:
        life.begin(ctx)
        return {"log": [None, True], "last": (ctx.step, state["results"][0][0])}

    graph = StateGraph(SCHEMA, name="wide", observer=observer)
    graph.add_node("open", run=opening).add_fanin_node("join", run=join).add_node("close", run=close)
    graph.add_edge("open", "open", lambda state: "page" in state)
    for branch in BRANCHES:
        graph.add_parallel_edge("open", branch, "join")
    for node in (
        *(f"shared-{number}" for number in range(2, 6)),
        "b1",
        "spin",
        "b2",
        "x",
        "y",
        "b4",
        "b5",
        "b6",
    ):
        graph.add_node(node, run=work)
    for node in ("b0", "b3", "later-3", "later-4", "b7"):
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
    graph.add_node("b4-2", run=work).add_node("b4-4", run=later).add_node("b4-5", run=later)
    for source, target in pairwise(("b4", "b4-2", "forget-3", "b4-4", "b4-5")):
        graph.add_edge(source, target)
    graph.add_edge("join", "close")
    return graph.set_entry_point("open").set_finish_point("close")


def pretend_to_work(ctx: Any) -> None:
    """Take a moment, of a length that depends on the node, so that branches overtake each other."""
    time.sleep(sum(map(ord, f"{ctx.branch}{ctx.node}")) % 5 / 2500)
