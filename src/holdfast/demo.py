"""A graph that is killed in the middle of its work, and goes on where it stopped: `python -m holdfast.demo`.

The graph below is what a user would write. Everything after it stages the accident: a child process runs
the graph and is killed without warning while a node works; another process then resumes the run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from inspect import getsource
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any

from holdfast import StateGraph, append

PARAGRAPHS = 6
FATAL = 4
PACE = float(os.environ.get("HOLDFAST_DEMO_PACE", "0.15"))


def outline(state: dict[str, Any]) -> dict[str, Any]:
    """Plan the article. Stands for a paid call of a language model, as does the next one."""
    say("outline", f"planning {PARAGRAPHS} paragraphs about {state['topic']}")
    return {"planned": PARAGRAPHS}


def write(state: dict[str, Any]) -> dict[str, Any]:
    """Write the next paragraph."""
    number = len(state["paragraphs"]) + 1
    say("write", f"paragraph {number} of {state['planned']}")
    if number == FATAL and os.environ.get("HOLDFAST_DEMO_ACCIDENT"):
        say("write", "kill -9, now", colour="31")
        _kill_this_process()
    return {"paragraphs": f"What {state['topic']} does, part {number}."}


def publish(state: dict[str, Any]) -> dict[str, Any]:
    """Put the article together."""
    say("publish", f"{len(state['paragraphs'])} paragraphs")
    return {"article": " ".join(state["paragraphs"])}


def article_graph(store: str) -> StateGraph:
    """The graph: outline, then write until there is enough, then publish."""
    graph = StateGraph({"topic": str, "paragraphs": Annotated[list, append]}, name="article")
    graph.add_node("outline", run=outline)
    graph.add_node("write", run=write)
    graph.add_node("publish", run=publish)
    graph.set_entry_point("outline")
    graph.add_edge("outline", "write")
    graph.add_conditional_edges(
        "write", lambda s: len(s["paragraphs"]) < s["planned"], {True: "write", False: "publish"}
    )
    graph.set_finish_point("publish")
    return graph.compile(store=store, preserve=True)


def main() -> int:
    """Stage the accident in a folder of its own, and leave nothing behind."""
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        store = f"sqlite:///{Path(folder, 'article.db').as_posix()}"
        print("The lines that a user writes, besides the three functions:\n")
        print(indent(getsource(article_graph), "   "))
        print('1. A process runs graph.execute({"topic": "kelp"}, run_id="kelp-1") and dies in a node:\n')
        died = _child("run", store, accident=True)
        print(f"\n   The process is gone (exit status {died}). What it left in the store:\n")
        graph = article_graph(store)
        for step in graph.history("kelp-1"):
            print(f"   step {step.step}: {step.node or 'start':8} saved, next is {step.next}")
        print('\n2. Another process goes on:  graph.resume("kelp-1")\n')
        status = _child("resume", store, accident=False)
        nodes = [step.node for step in graph.history("kelp-1") if step.node]
        print(f"\n   Completed after {len(nodes)} steps: {' → '.join(nodes)}.")
        print("   Only the node that was cut off ran again; nothing that was finished did.")
        graph.compiled().need_link("demo").store.close()
    return status


def say(node: str, text: str, colour: str = "32") -> None:
    """Show what a node does, at a pace that can be followed."""
    label = f"\033[{colour}m{node:8}\033[0m" if sys.stdout.isatty() else f"{node:8}"
    print(f"   [process {os.getpid()}] {label} {text}", flush=True)
    time.sleep(PACE)


def _child(what: str, store: str, *, accident: bool) -> int:
    sys.stdout.flush()
    environment = {**os.environ, "HOLDFAST_DEMO_ACCIDENT": "1" if accident else ""}
    return subprocess.run([sys.executable, "-m", "holdfast.demo", what, store], env=environment).returncode


def _kill_this_process() -> None:
    if hasattr(signal, "SIGKILL"):
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(137)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", store]:
            article_graph(store).execute({"topic": "kelp"}, run_id="kelp-1")
        case ["resume", store]:
            article_graph(store).resume("kelp-1")
        case _:
            sys.exit(main())
