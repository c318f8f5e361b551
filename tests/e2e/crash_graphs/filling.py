"""forty steps that add 20 kB each, and a log, elsewhere, of what started and what was acknowledged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from effects import effect

from holdfast import Event, StateGraph, append

STEPS = 40


def build(folder: Path) -> StateGraph:
    log = Path((folder / "log-folder").read_text())

    def grow(ctx: Any) -> dict[str, Any]:
        effect(log, "start", ctx.step)
        return {"step": ctx.step, "pages": [f"{ctx.step:05}" * 4000]}

    def acknowledged(event: Event) -> None:
        if event.type == "checkpoint.save":
            effect(log, "ack", event.data["step"])

    schema = {"step": int, "pages": Annotated[list, append]}
    graph = StateGraph(schema, name="filling", observer=acknowledged).add_node("grow", run=grow)
    graph.add_edge("grow", "grow", lambda state: state["step"] < STEPS)
    return graph.set_entry_point("grow").set_finish_point("grow")
