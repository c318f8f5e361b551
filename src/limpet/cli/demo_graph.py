"""The graph of `limpet demo`: an article that is researched in parallel, drafted, reviewed by a person, published.

Each function stands for a paid call of a language model. While `LIMPET_DEMO_CRASH` is set, one of them kills its
process.
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

CRASH = "LIMPET_DEMO_CRASH"
PACE = "LIMPET_DEMO_PACE"
"""Seconds that each step takes, so that it can be followed."""

_saved = threading.Semaphore(0)


def outline(state: dict[str, Any]) -> dict[str, Any]:
    """Plan the article."""
    show("outline", f"what to find out about {state['topic']}")
    return {"sections": ["growth", "habitat", "uses"]}


def growth(state: dict[str, Any]) -> dict[str, Any]:
    """The first of three branches that run in parallel."""
    show("growth", "how fast it grows")
    return {"found": f"{state['topic'].title()} grows half a metre a day."}


def habitat(state: dict[str, Any]) -> dict[str, Any]:
    """The second branch."""
    show("habitat", "where it lives")
    return {"found": "It lives on rocks in cold water."}


def uses(state: dict[str, Any]) -> dict[str, Any]:
    """The third branch, in which the process is killed."""
    show("uses", "what it is good for")
    if os.environ.get(CRASH):
        _saved.acquire(timeout=30)
        _saved.acquire(timeout=30)  # the other two branches
        show("uses", "kill -9, now")
        _kill_this_process()
    return {"found": "It is eaten, and it shelters limpets."}


def gather(parallel_results: list[dict[str, Any]]) -> dict[str, Any]:
    """Collect what the branches found."""
    return {"notes": [each["found"] for each in parallel_results]}


def draft(state: dict[str, Any]) -> dict[str, Any]:
    """Write the article."""
    show("draft", f"{len(state['notes'])} notes")
    return {"text": " ".join(state["notes"])}


def review(state: dict[str, Any]) -> dict[str, Any]:
    """Ask a person. The run waits in the store for as long as it takes; no process has to."""
    return {"verdict": pause(f"Publish “{state['text']}”?", choices=["yes", "no"])}


def publish(state: dict[str, Any]) -> dict[str, Any]:
    """Publish the article."""
    show("publish", state["text"])
    return {"published": True}


def show(node: str, text: str) -> None:
    """Show which node runs in which process, slowly enough to follow."""
    line = f"    process {os.getpid()} is at {node}: {text}\n"
    sys.stderr.write(line)  # in one write, because branches print at the same time
    sys.stderr.flush()
    time.sleep(_pace())


def count_saved_branches(event: Event) -> None:
    """Note each branch whose end is saved."""
    if event.type == BRANCH_COMPLETE:
        _saved.release()


def _pace() -> float:
    return float(os.environ.get(PACE, "0"))


def _kill_this_process() -> None:
    if hasattr(signal, "SIGKILL"):
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(137)


SCHEMA = {"topic": str, "notes": list, "text": str, "verdict": str}

graph = StateGraph(SCHEMA, name="article", observer=count_saved_branches)
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
