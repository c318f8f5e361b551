"""A graph of exactly fifty steps that uses what a state can hold, with an observer."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any

from crash.recording import begin, note_save
from limpet import StateGraph, append, merge

STEPS = 50
ROUNDS = 24


def fifty() -> StateGraph:
    schema = {
        "count": int,
        "log": Annotated[list, append],
        "totals": Annotated[dict, merge],
        "longest": Annotated[tuple, max],
        "nested": dict,
    }
    graph = StateGraph(schema, name="fifty", max_iterations=STEPS, observer=note_save)
    graph.add_node("open", run=open_fifty).add_node("turn", run=turn).add_node("close", run=close_fifty)
    graph.add_node("plain", run=plain).add_node("fizz", run=fizz).add_node("buzz", run=buzz)
    graph.add_edge("open", "turn")
    graph.add_conditional_edges("turn", lambda s: s["count"] % 3, {0: "fizz", 1: "buzz", 2: "plain"})
    for node in ("plain", "fizz", "buzz"):
        graph.add_edge(node, "turn", lambda s: s["count"] < ROUNDS)
        graph.add_edge(node, "close")
    return graph.set_entry_point("open").set_finish_point("close")


def fifty_every_seventh(store: Any) -> StateGraph:
    return fifty().compile(store=store, interval=7)


def open_fifty(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    return {
        "count": 0,
        "nested": {"trail": [], "by": {}, "deep": {"pair": (1, [2])}},
        "when": datetime(2024, 2, 29, 12, 30, tzinfo=timezone(timedelta(hours=5, minutes=45))),
        "odd": ("a", 1, (2.5, None)),
    }


def turn(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    count = state["count"] + 1
    state["nested"]["trail"].append((count, ctx.visit))
    # A page that replaces the one before: what is superseded brings on snapshots along the way.
    return {"count": count, "log": [("turn", count)], "page": f"{count:04}" * 1500}


async def fizz(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    await asyncio.sleep(0)
    state["nested"]["by"].setdefault("fizz", []).append(state["count"])
    return {
        "when": state["when"] + timedelta(days=1, microseconds=1),
        "totals": {"fizz": Decimal(state["count"]) / 8},
        "odd": (*state["odd"], state["count"]),
    }


def buzz(state: Any, ctx: Any) -> None:
    begin(ctx)
    state["large"] = state.get("large", 1) * 10**9
    state["nested"]["deep"]["pair"][1].append({"buzz": b"\x00" * state["count"]})
    state.pop("fleeting", None)


def plain(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    state["fleeting"] = {state["count"], "x"}
    return {"log": f"plain {state['count']}", "longest": (state["count"], "plain"), "share": 1 / 3}


def close_fifty(state: Any, ctx: Any) -> dict[str, Any]:
    begin(ctx)
    return {"log": [None, True], "done": frozenset(state["totals"])}
