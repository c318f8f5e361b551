"""first → hold → last, where `hold` waits for the file "gate", and `last` for "gate2" if there is "gate2-needed"."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from effects import effect, used_up, wait_until_there

from limpet import StateGraph, once


def build(folder: Path) -> StateGraph:
    def first() -> dict[str, Any]:
        effect(folder, "first", os.getpid())
        return {"first": os.getpid(), "held": []}

    def hold(state: Any) -> dict[str, Any]:
        effect(folder, "hold", os.getpid())
        wait_until_there(folder / "gate", folder / "fail")
        if (folder / "use-once").exists():
            once("late", os.getpid)
        state["held"].append((os.getpid(), "in place"))
        return {"hold": os.getpid()}

    def last() -> dict[str, Any]:
        effect(folder, "last", os.getpid())
        if used_up(folder / "gate2-needed"):
            wait_until_there(folder / "gate2")
        return {"last": os.getpid()}

    graph = StateGraph(name="gated").add_node("first", run=first).add_node("hold", run=hold)
    graph.add_node("last", run=last).add_edge("first", "hold").add_edge("hold", "last")
    return graph.set_entry_point("first").set_finish_point("last")
