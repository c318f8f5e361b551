"""open → three branches of two nodes → join → last, where files say what each node does.

A node NAME waits for the file "gate-NAME" if there is "hold-NAME", and it is broken in a process that found a file
"break-NAME" when it built the graph. "over BRANCH" among the effects says that a branch has ended, and was saved.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from effects import effect, wait_until_there

from limpet import Event, StateGraph, once

BRANCHES = ("north", "east", "south")


def build(folder: Path) -> StateGraph:
    broken = {file.name.removeprefix("break-") for file in folder.glob("break-*")}

    def work(state: Any, ctx: Any) -> dict[str, Any]:
        effect(folder, ctx.node, os.getpid())
        if ctx.node in broken:
            raise RuntimeError(f"{ctx.node} is broken")
        if (folder / f"hold-{ctx.node}").exists():
            wait_until_there(folder / f"gate-{ctx.node}")
        if (folder / "use-once").exists():
            once("late", os.getpid)
        state["trail"].append((ctx.node, os.getpid()))
        return {"by": os.getpid()}

    def opening() -> dict[str, Any]:
        effect(folder, "open", os.getpid())
        return {"trail": []}

    def join(state: Any, ctx: Any, parallel_results: list[Any]) -> dict[str, Any]:
        work(state, ctx)
        return {"got": {each.branch: each["trail"] for each in parallel_results}, "joined": os.getpid()}

    def over(event: Event) -> None:
        if event.type == "branch.complete":
            effect(folder, "over", event.data["branch"])

    graph = StateGraph(name="branches", observer=over).add_node("open", run=opening)
    graph.add_fanin_node("join", run=join).add_node("last", run=work).add_edge("join", "last")
    for branch in BRANCHES:
        graph.add_node(branch, run=work).add_node(f"{branch}-2", run=work).add_edge(branch, f"{branch}-2")
        graph.add_parallel_edge("open", branch, "join")
    return graph.set_entry_point("open").set_finish_point("last")
