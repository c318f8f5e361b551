"""pay → ship: `pay` charges once, asks whether to ship, and may be killed between the two."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from effects import die, effect, used_up

from limpet import StateGraph, once, pause


def build(folder: Path) -> StateGraph:
    def charge(amount: int) -> tuple[str, int]:
        effect(folder, "charge", os.getpid())
        return "receipt", amount

    def pay() -> dict[str, Any]:
        effect(folder, "pay", os.getpid())
        receipt = once("charge", charge, 42)
        if used_up(folder / "die-after-once"):
            die()
        answer = pause("Ship it?", choices=["yes", "no"])
        if used_up(folder / "die-after-answer"):
            die()
        return {"receipt": receipt, "answer": answer}

    def ship(state: Any) -> dict[str, Any]:
        effect(folder, "ship", os.getpid())
        return {
            "shipped": state["answer"] == "yes",
            "by": os.getpid(),
            "kind": type(state["receipt"]).__name__,
        }

    graph = StateGraph(name="asking").add_node("pay", run=pay).add_node("ship", run=ship)
    return graph.add_edge("pay", "ship").set_entry_point("pay").set_finish_point("ship")
