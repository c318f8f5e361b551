"""Graphs whose runs are queued by the thousand: what a worker costs is seen when nodes cost nothing."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from limpet import StateGraph


def chain(nodes: int, store: Any) -> StateGraph:
    """A graph of this many nodes, one after the other, each of which counts."""
    graph = StateGraph({"n": int}, name=f"chain-{nodes}")
    names = [f"node-{number}" for number in range(nodes)]
    for name in names:
        graph.add_node(name, _count)
    for before, after in pairwise(names):
        graph.add_edge(before, after)
    graph.set_entry_point(names[0])
    graph.set_finish_point(names[-1])
    return graph.compile(store=store)


def _count(state: dict[str, Any]) -> dict[str, Any]:
    return {"n": state["n"] + 1}
