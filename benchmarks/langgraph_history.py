"""LangGraph's checkpoints of a long history: bytes and time with `LimpetSaver`, with other savers, and in our engine.

    python benchmarks/langgraph_history.py [MESSAGES]

A graph adds one message of 1 KB a step, with `add_messages`. `langgraph-checkpoint-sqlite` is compared if it is
installed; it isn't among the packages for development. Our own engine keeps the same messages with its own graph.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, NamedTuple, TypedDict

from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START
from langgraph.graph import StateGraph as TheirGraph
from langgraph.graph.message import add_messages as their_messages

from limpet import StateGraph, add_messages, open_store, register_type
from limpet.integrations.langgraph import LimpetSaver
from limpet.journal.store import Store

MESSAGES = 2_000
THREAD: Any = {"configurable": {"thread_id": "history"}}


class TheirState(TypedDict):
    messages: Annotated[list[Any], their_messages]


class OurState(TypedDict):
    messages: Annotated[list[Any], add_messages]


class Figures(NamedTuple):
    """What a history took: bytes of records, bytes on disk if there are any, and seconds in all."""

    what: str
    stored: int
    on_disk: int
    seconds: float


def main(messages: int) -> None:
    register_type(AIMessage)
    found = [ours(messages), limpet_saver(messages), in_memory(messages), *their_sqlite(messages)]
    base = found[0].stored
    print(f"{messages:,} messages of 1 KB")
    for each in found:
        disk = "" if not each.on_disk else f", {each.on_disk / 1e6:.1f} MB on disk"
        print(
            f"{each.what:34} {each.stored / 1e6:9.2f} MB ({each.stored / base:6.2f}×){disk:22} "
            f"{1e3 * each.seconds / messages:7.2f} ms a message"
        )


def ours(messages: int) -> Figures:
    """The same history as a run of ours."""
    with folder() as place:
        store = open_store(f"sqlite:///{place}/runs.db?level=process")
        graph = StateGraph(OurState, name="history", max_iterations=None)
        graph.add_node("say", run=lambda state: {"messages": [message(len(state["messages"]))]})
        graph.add_edge("say", "say", lambda state: len(state["messages"]) < messages)
        graph.set_entry_point("say").set_finish_point("say").compile(store=store)
        seconds = timed(lambda: graph.execute({"messages": []}, run_id="history"))
        return Figures("our engine, SQLite", size_of(store, "history"), disk_of(place), seconds)


def limpet_saver(messages: int) -> Figures:
    with folder() as place:
        store = open_store(f"sqlite:///{place}/runs.db?level=process")
        seconds = timed(lambda: run_theirs(LimpetSaver(store), messages))
        return Figures("LimpetSaver, SQLite", size_of(store, "langgraph:history"), disk_of(place), seconds)


def in_memory(messages: int) -> Figures:
    saver = InMemorySaver()
    seconds = timed(lambda: run_theirs(saver, messages))
    blobs = sum(len(data) for _, data in saver.blobs.values())
    writes = sum(len(each[2][1]) for written in saver.writes.values() for each in written.values())
    rest = sum(
        len(part[1])
        for namespaces in saver.storage.values()
        for checkpoints in namespaces.values()
        for checkpoint in checkpoints.values()
        for part in checkpoint[:2]
    )
    return Figures("LangGraph's InMemorySaver", blobs + writes + rest, 0, seconds)


def their_sqlite(messages: int) -> Iterator[Figures]:
    try:
        from langgraph.checkpoint.sqlite import SqliteSaver  # type: ignore[import-not-found]  # maybe not installed
    except ImportError:
        return
    with folder() as place, SqliteSaver.from_conn_string(f"{place}/theirs.db") as saver:
        seconds = timed(lambda: run_theirs(saver, messages))
        yield Figures("LangGraph's SqliteSaver", disk_of(place), disk_of(place), seconds)


def run_theirs(saver: Any, messages: int) -> None:
    builder = TheirGraph(TheirState)
    builder.add_node("say", lambda state: {"messages": [message(len(state["messages"]))]})
    builder.add_edge(START, "say")
    builder.add_conditional_edges("say", lambda state: "say" if len(state["messages"]) < messages else END)
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"messages": []}, {"recursion_limit": messages + 10, **THREAD}, durability="sync")


def message(number: int) -> AIMessage:
    return AIMessage(os.urandom(500).hex(), id=f"message-{number}")


def size_of(store: Store, run_id: str) -> int:
    return sum(map(len, store.read(run_id, first=1).records))


def disk_of(place: Path) -> int:
    return sum(each.stat().st_size for each in place.iterdir())


def timed(call: Callable[[], Any]) -> float:
    began = perf_counter()
    call()
    return perf_counter() - began


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as place:
        yield Path(place)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES)
