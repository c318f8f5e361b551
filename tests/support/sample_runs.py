"""Runs of every kind: for the pictures of the web page, and for its tests.

PYTHONPATH=src:tests .venv/bin/python -m support.sample_runs runs.db
PYTHONPATH=src:tests .venv/bin/limpet serve --store sqlite:///runs.db --graph support.sample_runs:research
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from limpet import (
    END,
    LimpetError,
    Retry,
    RunPaused,
    Schedules,
    StateGraph,
    Workflow,
    append,
    emit,
    pause,
    secret,
)

PACE = 0.05
"""Seconds that a step of a sample takes, about."""


class Article(TypedDict, total=False):
    """The state of an article."""

    topic: str
    tone: Literal["calm", "lively"]
    words: int
    text: str
    notes: Annotated[list[str], append]
    key: Annotated[str, secret]
    verdict: str


def outline(state: Any) -> dict[str, Any]:
    time.sleep(PACE)
    return {"words": 400, "notes": [f"what is {state['topic']}?"], "key": "sk-not-to-be-seen"}


def draft(state: Any) -> dict[str, Any]:
    for word in f"All about {state['topic']}, and what lives on it.".split():
        emit(word + " ")
        time.sleep(PACE / 4)
    return {"text": f"All about {state['topic']}.", "notes": ["first draft"]}


def review(state: Any) -> dict[str, Any]:
    return {"verdict": pause(f"Publish “{state['text']}”?", choices=["yes", "no"])}


def publish(state: Any) -> dict[str, Any]:
    time.sleep(PACE)
    return {"published": True}


def article() -> StateGraph:
    """A cycle with a question, a secret, and words that are emitted."""
    graph = StateGraph(Article, name="article")
    for node in (outline, draft, review, publish):
        graph.add_node(node.__name__, node)
    graph.set_entry_point("outline").set_finish_point("publish")
    graph.add_edge("outline", "draft").add_edge("draft", "review")
    verdicts = {"yes": "publish", "no": "draft"}
    return graph.add_conditional_edges("review", lambda state: state["verdict"], verdicts)


def plan(state: Any) -> dict[str, Any]:
    time.sleep(PACE)
    return {"queue": ["tides", "kelp", "moss", "rocks"], "ratings": []}


def papers(state: Any) -> dict[str, Any]:
    time.sleep(PACE * 3)
    return {"queue": state["queue"][1:], "found": {"papers": 12, "newest": "2026-03"}}


def read(state: Any) -> dict[str, Any]:
    time.sleep(PACE * 4)
    return {"ratings": [3, 5]}


def rate(state: Any) -> dict[str, Any]:
    time.sleep(PACE * 2)
    if state.get("strict"):
        raise ValueError("no rating for “rocks”: the page has no text")
    return {"ratings": [3, 5, 4]}


def news(state: Any) -> dict[str, Any]:
    time.sleep(PACE * 5)
    return {"headlines": ["Kelp forests return"]}


def combine(parallel_results: Any) -> dict[str, Any]:
    time.sleep(PACE)
    return {"pages": [1, 2, 3]}


def research() -> StateGraph:
    """Branches of different lengths, of which one may fail again and again."""
    graph = StateGraph({"queue": list, "ratings": list, "strict": bool}, name="research")
    for node in (plan, papers, read, news):
        graph.add_node(node.__name__, node)
    graph.add_node("rate", rate, retry=Retry(attempts=3, backoff=PACE * 10))
    graph.add_fanin_node("combine", run=combine)
    graph.set_entry_point("plan")
    graph.add_parallel_edge("plan", "papers", "combine").add_parallel_edge("plan", "news", "combine")
    graph.add_edge("papers", "read").add_edge("read", "rate")
    return graph.add_edge("combine", END)


class Rebuild(TypedDict):
    """What a person decides."""

    strategy: Literal["all", "changed"]
    keep: list[Literal["logs", "caches", "reports"]]
    attempts: int
    reason: str


def order() -> Workflow:
    """Tasks that depend on each other, one of which asks for several things."""
    flow = Workflow("import", preserve=True)
    flow.add_task("fetch", lambda: _slowly(2, {"rows": 1200}))
    flow.add_task("check", lambda fetch: _slowly(3, fetch["rows"] > 0), ["fetch"])
    flow.add_task("clean", lambda fetch: _slowly(4, fetch["rows"] - 3), ["fetch"])
    flow.add_task("load", lambda check, clean: _slowly(2, clean), ["check", "clean"])
    schema = {
        "type": "object",
        "properties": {
            "strategy": {"enum": ["all", "changed"], "title": "What to rebuild"},
            "keep": {"type": "array", "items": {"enum": ["logs", "caches", "reports"]}},
            "attempts": {"type": "integer", "default": 3},
            "reason": {"type": "string", "description": "for the log"},
        },
        "required": ["strategy", "reason"],
    }
    flow.add_task("rebuild", lambda load: pause("How shall the index be rebuilt?", schema=schema), ["load"])
    return flow


def _slowly(steps: int, value: Any) -> Any:
    time.sleep(PACE * steps)
    return value


def wide() -> StateGraph:
    """A graph of two thousand nodes, too large to be drawn."""
    graph = StateGraph(name="wide", max_iterations=None)
    names = [f"node {number}" for number in range(2000)]
    for name in names:
        graph.add_node(name, lambda state: {})
    for before, after in pairwise(names):
        graph.add_edge(before, after)
    return graph.set_entry_point(names[0]).set_finish_point(names[-1])


def counter() -> StateGraph:
    """A cycle that counts, for runs of many steps."""
    graph = StateGraph({"count": int, "until": int}, name="counter", max_iterations=None)
    graph.add_node("count", lambda state: {"count": state.get("count", 0) + 1})
    graph.set_entry_point("count")
    return graph.add_conditional_edges(
        "count", lambda state: state["count"] < state["until"], {True: "count", False: END}
    )


def ticking() -> StateGraph:
    """A cycle that counts as far as the number in a file allows, so that a test decides when its run continues."""

    def tick(state: Any) -> dict[str, Any]:
        number = state.get("count", 0) + 1
        while int(Path(state["allowed"]).read_text() or 0) < number:
            time.sleep(0.01)
        return {"count": number}

    graph = StateGraph({"count": int, "until": int, "allowed": str}, name="ticking", max_iterations=None)
    graph.add_node("tick", tick).set_entry_point("tick")
    return graph.add_conditional_edges(
        "tick", lambda state: state["count"] < state["until"], {True: "tick", False: END}
    )


COLOURS = ("red", "orange", "yellow", "green", "blue", "indigo", "violet")

TRIP = {
    "type": "object",
    "properties": {
        "place": {"type": "string"},
        "days": {"type": "integer"},
        "rooms": {"type": "object", "properties": {"beds": {"type": "integer"}, "view": {"type": "boolean"}}},
    },
    "required": ["place", "days"],
}

QUESTIONS: dict[str, dict[str, Any]] = {
    "Publish it?": {"choices": ["now", "later"]},
    "Which colour?": {"choices": COLOURS},
    "What is it called?": {},
    "How many?": {"schema": {"type": "integer", "minimum": 1}},
    "Is it alive?": {"schema": bool},
    "Which of them?": {"schema": {"type": "array", "items": {"enum": ["logs", "caches", "reports"]}}},
    "Where to?": {"schema": TRIP},
    "What else?": {"schema": {"type": "array"}},
    "What is the password?": {"secret": True},
}
"""Questions of every kind, with what each allows as an answer."""


def survey() -> StateGraph:
    """A node that asks questions of every kind, one after another. It keeps the answers that aren't secret."""

    def ask(state: Any) -> dict[str, Any]:
        answers = [pause(prompt, **kind) for prompt, kind in QUESTIONS.items()]
        return {"answers": answers[:-1], "length": len(answers[-1])}

    graph = StateGraph({"answers": list, "length": int}, name="survey").add_node("ask", ask)
    return graph.set_entry_point("ask").set_finish_point("ask")


def fill(store: Any) -> dict[str, Any]:
    """Put runs of every kind into a store, and return the graphs by name."""
    graphs: dict[str, Any] = {"article": article(), "research": research(), "import": order()}
    for graph in graphs.values():
        graph.compile(store=store, preserve=True, allow_plain_text_secrets=True)
    _run(graphs["article"], {"topic": "kelp", "tone": "calm"}, "kelp-1", tags=["nightly"])
    _run(graphs["article"], {"topic": "moss"}, "moss-2", answer="yes")
    _run(graphs["article"], {"topic": "tides"}, "tides-3", tags=["nightly"], answer="yes")
    _run(graphs["research"], {"strict": False}, "papers-4")
    _run(graphs["research"], {"strict": True}, "rocks-5", tags=["nightly"])
    _run(graphs["import"], {}, "batch-6")
    with suppress(LimpetError):
        graphs["article"].start({"topic": "weed"}, run_id="weed-7", delay=3 * 3600)
    graphs["research"].start({}, run_id="papers-8")
    graphs["article"].start({"topic": "sand"}, run_id="sand-9")
    graphs["article"].get("sand-9").cancel()
    schedules = Schedules(store)
    schedules.add("nightly", graphs["article"], every="24h", input={"topic": "the sea"})
    return graphs


def _run(graph: Any, given: Any, run_id: str, tags: Any = (), answer: str | None = None) -> None:
    with suppress(LimpetError):
        handle = graph.start(given, run_id=run_id, tags=tags)
        with suppress(RunPaused):
            graph.resume(handle.run_id)
        if answer is not None:
            graph.resume(run_id, answer)


if __name__ == "__main__":
    fill(f"sqlite:///{sys.argv[1]}")
