"""The pictures of the documentation. `PYTHONPATH=src:tests python -m support.pictures` writes them again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from limpet import ExecutionError, MemoryStore, RunPaused, StateGraph, Workflow, pause

IMAGES = Path(__file__).parents[2] / "docs" / "images"


def nothing(state: Any) -> dict[str, Any]:
    return {}


def review(state: Any) -> dict[str, Any]:
    return {"verdict": pause("Publish it?", choices=["yes", "no"])}


def article() -> StateGraph:
    """A cycle with a question: draft, review, publish."""
    graph = StateGraph(name="article")
    graph.add_node("draft", run=nothing).add_node("review", run=review).add_node("publish", run=nothing)
    graph.set_entry_point("draft").set_finish_point("publish")
    graph.add_edge("draft", "review")
    return graph.add_conditional_edges(
        "review", lambda state: state["verdict"], {"yes": "publish", "no": "draft"}
    )


def research(rate: Any = nothing) -> StateGraph:
    """Branches of different lengths, and a map over a graph."""
    page = StateGraph(name="page").add_node("load", run=nothing).add_node("parse", run=nothing)
    page.set_entry_point("load").add_edge("load", "parse").set_finish_point("parse")
    graph = StateGraph(name="research")
    for name in ("plan", "papers", "read", "news", "write"):
        graph.add_node(name, run=nothing)
    graph.add_node("rate", run=rate)
    graph.add_fanin_node("combine", run=lambda parallel_results: {"pages": [1, 2, 3]})
    graph.add_fanin_node("quote", run=lambda parallel_results: {})
    graph.set_entry_point("plan").set_finish_point("write")
    graph.add_parallel_edge("plan", "papers", "combine").add_parallel_edge("plan", "news", "combine")
    graph.add_edge("papers", "read").add_edge("read", "rate")
    return graph.add_map("combine", page, "pages", "quote").add_edge("quote", "write")


def weather() -> Workflow:
    """Tasks in layers: one with a condition, one that is added on the way, one that asks."""
    flow = Workflow("weather report", preserve=True)

    def fetch(ctx: Any) -> int:
        ctx.add_task("radar", run="image", depends_on=["fetch"], before=["report"])
        return 1

    def is_stormy() -> bool:
        return False

    flow.add_task("fetch", fetch)
    flow.add_task("chart", lambda fetch: 1, depends_on=["fetch"])
    flow.add_task("text", lambda fetch: pause("Which tone?"), depends_on=["fetch"])
    flow.add_task("warning", lambda fetch: 1, depends_on=["fetch"], condition=is_stormy)
    flow.add_task("report", lambda **_: 1, depends_on=["chart", "text"], optional=["warning"])
    return flow.add_template("image", lambda fetch: 1)


def broken(state: Any) -> dict[str, Any]:
    raise ValueError("the password is swordfish")


def stopped(graph: Any, run_id: str) -> Any:
    """The graph, with a run of that id that has run until it stops."""
    graph.compile(store=MemoryStore(), preserve=True)
    with suppress(RunPaused, ExecutionError):
        graph.execute({}, run_id=run_id)
    return graph


def pictures() -> dict[str, str]:
    """All of them, by file name."""
    return {
        "article.svg": article().draw(),
        "article-paused.svg": stopped(article(), "kelp-1").draw(run_id="kelp-1"),
        "research.svg": research().draw(),
        "research-failed.svg": stopped(research(broken), "moss-7").draw(run_id="moss-7"),
        "weather-paused.svg": stopped(weather(), "monday").draw(run_id="monday"),
        "unfinished.svg": unfinished()._repr_svg_() or "",
    }


def unfinished() -> StateGraph:
    """What a notebook shows of a graph that isn't right yet."""
    return StateGraph(name="unfinished").add_node("draft", run=nothing).add_edge("draft", "reveiw")


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (IMAGES / name).write_text(text, encoding="utf-8", newline="\n")
