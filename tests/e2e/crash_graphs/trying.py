"""before → try → after: what the n-th attempt at `try` does is the n-th word of the file "attempts"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from effects import die, effect

from limpet import Retry, StateGraph


def build(folder: Path) -> StateGraph:
    def trying(ctx: Any) -> dict[str, Any]:
        effect(folder, ctx.attempt, ctx.idempotency_key)
        match (folder / "attempts").read_text().split()[ctx.attempt - 1]:
            case "die":
                die()
            case "raise":
                raise ConnectionError("not now")
        return {"attempt": ctx.attempt}

    graph = StateGraph(name="trying").add_node("before").add_node("after")
    graph.add_node("try", run=trying, retry=Retry(attempts=3, backoff=0))
    graph.add_edge("before", "try").add_edge("try", "after")
    return graph.set_entry_point("before").set_finish_point("after")
