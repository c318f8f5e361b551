"""Schedules on a store, looked after without a supervisor, so that a test decides when a worker looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from limpet import Runs, State, StateGraph
from limpet.engine.supervisor.catalog import GraphCatalog
from limpet.engine.supervisor.schedule_firing import ScheduleFiring


def counting_graph(store: Any, name: str = "report", **settings: Any) -> StateGraph:
    """A graph of one node that adds 1 to `x`."""
    graph = StateGraph({"x": int}, name=name, **settings)
    graph.add_node("add", run=lambda state: {"x": state.get("x", 0) + 1})
    return graph.set_entry_point("add").set_finish_point("add").compile(store=store)


def effect_graph(store: Any, effect: Callable[[str], object], name: str = "report") -> StateGraph:
    """A graph of one node, which has an effect."""

    def work(state: State, ctx: Any) -> dict[str, Any]:
        effect(ctx.run_id)
        return {"x": 1}

    graph = StateGraph({"x": int}, name=name).add_node("work", run=work)
    return graph.set_entry_point("work").set_finish_point("work").compile(store=store)


def worker(store: Any, *graphs: StateGraph) -> ScheduleFiring:
    """The part of a worker that fires schedules."""
    return ScheduleFiring(store, GraphCatalog(graphs))


def run_ids(store: Any) -> list[str]:
    """The runs in the store, by id."""
    return sorted(info.run_id for info in Runs(store).list())
