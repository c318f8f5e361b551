"""The graph of `limpet demo`: an article that is researched side by side, drafted, reviewed by a person, published.

Each function stands for a paid call of a language model. While `LIMPET_DEMO_ACCIDENT` is set, one of them takes
its process down without warning.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

from limpet import Event, StateGraph, pause
from limpet.observe.events import BRANCH_COMPLETE

ACCIDENT = "LIMPET_DEMO_ACCIDENT"
PACE = "LIMPET_DEMO_PACE"
"""Seconds that each step takes, so that it can be followed."""

_saved = threading.Semaphore(0)


def outline(state: dict[str, Any]) -> dict[str, Any]:
    """Plan the article."""
    say("outline", f"what to find out about {state['topic']}")
    return {"sections": ["growth", "habitat", "uses"]}


def growth(state: dict[str, Any]) -> dict[str, Any]:
    """One of three branches that run side by side."""
    say("growth", "how fast it grows")
    return {"found": f"{state['topic'].title()} grows half a metre a day."}


def habitat(state: dict[str, Any]) -> dict[str, Any]:
    """Another one."""
    say("habitat", "where it lives")
    return {"found": "It lives on rocks in cold water."}


def uses(state: dict[str, Any]) -> dict[str, Any]:
    """The third, in which the accident happens."""
    say("uses", "what it is good for")
    if os.environ.get(ACCIDENT):
        _saved.acquire(timeout=30)
        _saved.acquire(timeout=30)  # the other two branches
        say("uses", "kill -9, now")
        _kill_this_process()
    return {"found": "It is eaten, and it holds fast."}


def gather(parallel_results: list[dict[str, Any]]) -> dict[str, Any]:
    """Put together what the branches found."""
    return {"notes": [each["found"] for each in parallel_results]}


def draft(state: dict[str, Any]) -> dict[str, Any]:
    """Write the article."""
    say("draft", f"{len(state['notes'])} notes")
    return {"text": " ".join(state["notes"])}


def review(state: dict[str, Any]) -> dict[str, Any]:
    """Ask a person. The run waits, however long that takes, and no process has to."""
    return {"verdict": pause(f"Publish “{state['text']}”?", choices=["yes", "no"])}


def publish(state: dict[str, Any]) -> dict[str, Any]:
    """Done."""
    say("publish", state["text"])
    return {"published": True}


def say(node: str, text: str) -> None:
    """Show what a node does, in which process, at a pace that can be followed."""
    line = f"    process {os.getpid()} is at {node}: {text}\n"
    sys.stderr.write(line)  # in one piece, as branches speak together
    sys.stderr.flush()
    time.sleep(_pace())


def note(event: Event) -> None:
    """Hear of branches whose end is saved."""
    if event.type == BRANCH_COMPLETE:
        _saved.release()


def _pace() -> float:
    return float(os.environ.get(PACE, "0"))


def _kill_this_process() -> None:
    if hasattr(signal, "SIGKILL"):
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(137)


graph = StateGraph({"topic": str, "notes": list, "text": str, "verdict": str}, name="article", observer=note)
graph.add_node("outline", run=outline)
for branch in (growth, habitat, uses):
    graph.add_node(branch)
    graph.add_parallel_edge("outline", branch.__name__, "gather")
graph.add_fanin_node("gather", run=gather)
graph.add_node("draft", run=draft)
graph.add_node("review", run=review)
graph.add_node("publish", run=publish)
graph.set_entry_point("outline")
graph.add_edge("gather", "draft")
graph.add_edge("draft", "review")
graph.add_conditional_edges("review", lambda state: state["verdict"], {"yes": "publish", "no": "draft"})
graph.set_finish_point("publish")
graph.compile(preserve=True)
