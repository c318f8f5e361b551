"""H22: real graphs of LangGraph on `LimpetSaver`: pauses, forks, graphs in graphs, and processes that are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph")

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from limpet.integrations.langgraph import LimpetSaver


class Chat(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    approved: str


def answer(state: Chat) -> dict[str, Any]:
    return {"messages": [AIMessage(f"answer {len(state['messages'])}", id=f"a{len(state['messages'])}")]}


def approve(state: Chat) -> dict[str, Any]:
    return {"approved": interrupt({"publish": state["messages"][-1].content})}


def chat(saver: Any) -> Any:
    builder = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_node("approve", approve)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", "approve")
    builder.add_edge("approve", END)
    return builder.compile(checkpointer=saver)


def of(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def test_a_graph_pauses_and_another_process_resumes_it(tmp_path: Path) -> None:
    """H22: `interrupt` and `Command(resume=…)`, the history, an update and a fork, and time travel."""
    url = f"sqlite:///{tmp_path}/runs.db?level=process"
    graph = chat(LimpetSaver(url))
    paused = graph.invoke({"messages": [HumanMessage("hello", id="h")]}, of("1"), durability="sync")
    assert paused["__interrupt__"][0].value == {"publish": "answer 1"}
    assert graph.get_state(of("1")).next == ("approve",)

    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_langgraph_graphs import *
graph = chat(LimpetSaver({url!r}))
done = graph.invoke(Command(resume="yes"), of("1"), durability="sync")
print(done["approved"], [each.content for each in done["messages"]])
"""
    resumed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert resumed.stdout.strip() == "yes ['hello', 'answer 1']", resumed.stderr

    history = list(graph.get_state_history(of("1")))
    assert [each.next for each in history] == [(), ("approve",), ("answer",), ("__start__",)]
    assert [each.metadata["step"] for each in history] == [2, 1, 0, -1]
    forked = graph.update_state(history[1].config, {"messages": [AIMessage("other", id="a1")]})
    again = graph.invoke(None, forked)
    assert again["__interrupt__"][0].value == {"publish": "other"}
    assert graph.invoke(Command(resume="no"), of("1"))["approved"] == "no"
    assert graph.get_state(history[0].config).values["approved"] == "yes"
    replayed = graph.invoke(None, history[2].config)
    assert replayed["__interrupt__"][0].value == {"publish": "answer 1"}


def test_graphs_in_graphs_have_namespaces_of_their_own() -> None:
    """H22: a pause within is resumed from there, and its state is looked at through the outer one."""
    saver = LimpetSaver("memory://")
    inner = StateGraph(Chat).add_node("approve", approve).add_edge(START, "approve").compile()
    builder = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_node("inner", inner)
    builder.add_edge(START, "answer").add_edge("answer", "inner").add_edge("inner", END)
    graph = builder.compile(checkpointer=saver)

    async def run() -> Any:
        await graph.ainvoke({"messages": [("user", "hello")]}, of("n"))
        state = await graph.aget_state(of("n"), subgraphs=True)
        assert state.tasks[0].state.next == ("approve",)
        return await graph.ainvoke(Command(resume="yes"), of("n"))

    assert asyncio.run(run())["approved"] == "yes"
    namespaces = {each.config["configurable"]["checkpoint_ns"] for each in saver.list(of("n"))}
    assert len(namespaces) == 2
    assert "" in namespaces
    assert any(name.startswith("inner:") for name in namespaces)
    saver.delete_thread("n")
    assert list(saver.list(None)) == []


def _joined(old: list[str], writes: Any) -> list[str]:
    return [*old, *(item for write in writes for item in write)]


class Log(TypedDict, total=False):
    lines: Annotated[list[str], DeltaChannel(_joined, list, snapshot_frequency=3)]  # type: ignore[call-arg]  # beta
    more: int


def test_delta_channels_are_restored_also_after_a_prune() -> None:
    """H22: what the newest checkpoint needs of its ancestors stays, and is copied with it."""
    saver = LimpetSaver("memory://")
    builder = StateGraph(Log)
    builder.add_node("write", lambda state: {"lines": [f"line {len(state['lines'])}"]})
    builder.add_edge(START, "write").add_edge("write", END)
    graph = builder.compile(checkpointer=saver)
    for number in range(4):
        graph.invoke({"lines": [f"in {number}"]}, of("d"))
    lines = graph.get_state(of("d")).values["lines"]
    assert len(lines) == 8
    before = len(list(saver.list(of("d"))))
    saver.prune(["d"])
    assert graph.get_state(of("d")).values["lines"] == lines
    assert 1 <= len(list(saver.list(of("d")))) < before
    saver.copy_thread("d", "copy")
    assert graph.get_state(of("copy")).values["lines"] == lines
    asyncio.run(saver.aget_delta_channel_history(config=of("copy"), channels=["lines"]))
    assert graph.invoke({"lines": ["on"]}, of("copy"))["lines"][: len(lines) + 1] == [*lines, "on"]


KILLED = """
import sys
sys.path.insert(0, {folder!r})
from test_langgraph_graphs import *

class Many(TypedDict):
    messages: Annotated[list[Any], add_messages]

def say(state):
    return {{"messages": [AIMessage("m" * 200, id=f"m{{len(state['messages'])}}")]}}

builder = StateGraph(Many)
builder.add_node("say", say)
builder.add_edge(START, "say")
builder.add_conditional_edges("say", lambda state: "say")
graph = builder.compile(checkpointer=LimpetSaver({url!r}))
saver = graph.checkpointer
put = saver.put
def told(config, checkpoint, metadata, new_versions):
    saved = put(config, checkpoint, metadata, new_versions)
    print(saved["configurable"]["checkpoint_id"], flush=True)
    return saved
saver.put = told
graph.invoke({{"messages": []}}, {{"recursion_limit": 100000, **of("k")}}, durability="sync")
"""


def test_kill_9_between_puts_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """H22, R1: each checkpoint whose put has returned is there, and so is every one before it."""
    store_url = f"sqlite:///{tmp_path}/runs.db"
    code = KILLED.format(folder=str(Path(__file__).parent), url=store_url)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    acknowledged = [process.stdout.readline().strip() for _ in range(25)]
    os.kill(process.pid, signal.SIGKILL)
    rest, _ = process.communicate(timeout=60)
    acknowledged += [line for line in rest.split("\n")[:-1] if line]
    saver = LimpetSaver(store_url)
    found = {each.checkpoint["id"]: each for each in saver.list(of("k"))}
    assert acknowledged[0]
    assert set(acknowledged) <= found.keys()
    newest = saver.get_tuple(of("k"))
    assert newest is not None
    assert newest.checkpoint["id"] >= acknowledged[-1]
    messages = newest.checkpoint["channel_values"]["messages"]
    assert [each.id for each in messages] == [f"m{number}" for number in range(len(messages))]
