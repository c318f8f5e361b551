"""Four branches: three ask, one of them twice, and `slow` waits for the file "gate" if there is "hold".

With a file "die-after-answer", the process that hears the first answer of those two is killed by it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from effects import die, effect, used_up, wait_until_there

from limpet import StateGraph, once, pause


def build(folder: Path) -> StateGraph:
    def quote() -> tuple[str, int]:
        effect(folder, "quote")
        return "quote", 42

    def price(state: Any) -> dict[str, Any]:
        effect(folder, "price")
        offer = once("quote", quote)
        return {"answer": (offer, pause("Which price?", schema=int))}

    def colour() -> dict[str, Any]:
        effect(folder, "colour")
        return {"answer": pause("Which colour?", choices=["red", "blue"])}

    def name() -> dict[str, Any]:
        effect(folder, "name")
        first = pause("Which first name?", key="first")
        if used_up(folder / "die-after-answer"):
            die()
        return {"answer": [first, pause(f"And which last name, {first}?", key="last")]}

    def slow() -> dict[str, Any]:
        effect(folder, "slow")
        if (folder / "hold").exists():
            wait_until_there(folder / "gate")
        return {"answer": None}

    def join(parallel_results: list[Any]) -> dict[str, Any]:
        effect(folder, "join")
        return {each.branch: (each["answer"], os.getpid()) for each in parallel_results}

    graph = StateGraph(name="asked").add_node("open").add_fanin_node("join", run=join)
    for node in (price, colour, name, slow):
        graph.add_node(node).add_parallel_edge("open", node.__name__, "join")
    return graph.set_entry_point("open").set_finish_point("join")
