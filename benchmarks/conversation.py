"""A conversation of 10,000 turns that pauses at each: its journal, and what a turn takes, at the end and at first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from statistics import median
from time import process_time
from typing import Annotated, Any

from measure import Result, folder, ratio, sizes

from limpet import RunPaused, StateGraph, open_store, pause

TURNS, FIRST = 10_000, 1_000
WINDOW = 20


def conversation() -> Iterator[Result]:
    """`max_iterations=None, keep=20`: the last 1,000 turns against the first. A turn is a resume and a pause."""
    with folder() as place:
        store = open_store(f"sqlite:///{place}/chat.db?level=process")
        graph = _chat().compile(store=store, keep=20)
        with suppress(RunPaused):
            graph.execute({"history": []}, run_id="chat")
        taken = []
        stored = []
        for turn in range(TURNS):
            began = process_time()
            with suppress(RunPaused):
                graph.resume("chat", f"message {turn}")
            taken.append(process_time() - began)
            if turn % 50 == 0:
                stored.append(sum(map(len, store.read("chat", first=1).records)))
    first = FIRST // 50
    yield sizes(f"{TURNS:,} turns: journal, last and first", max(stored[:first]), max(stored[-first:]), 1.5)
    yield ratio(
        f"{TURNS:,} turns: a turn, last and first", median(taken[:FIRST]), median(taken[-FIRST:]), 1.3, "ms"
    )


def _chat() -> StateGraph:
    graph = StateGraph({"history": Annotated[list, _window]}, name="chat", max_iterations=None)
    graph.add_node("listen", lambda state: {"history": [pause("What next?")]})
    graph.add_node("reply", lambda state: {"history": [f"a reply to {state['history'][-1]}"]})
    graph.set_entry_point("listen")
    graph.add_edge("listen", "reply")
    graph.add_edge("reply", "listen", lambda state: state["history"][-2] != "bye")
    graph.set_finish_point("reply")
    return graph


def _window(old: list[Any] | None, new: list[Any]) -> list[Any]:
    return [*(old or ()), *new][-WINDOW:]
