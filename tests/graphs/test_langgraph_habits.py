"""H22: what those who come from LangGraph try first works, or says what to use instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest

pytest.importorskip("langgraph")

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

from limpet import (
    END,
    START,
    DefinitionError,
    ExecutionError,
    MemoryStore,
    StateGraph,
    UsageError,
    Workflow,
    pause,
    register_type,
)
from limpet.integrations.langgraph import LimpetSaver
from limpet.journal.run_filter import RunFilter

THREAD: Any = {"configurable": {"thread_id": "1"}}


def one(run: Callable[..., Any] = lambda state: {"x": 1}, schema: Any = None) -> StateGraph:
    graph = StateGraph(schema, name="g").add_node("a", run=run).add_edge(START, "a").add_edge("a", END)
    return graph.compile(store=MemoryStore())


def flow() -> Workflow:
    return Workflow("w", store=MemoryStore()).add_task("a", lambda: 1)


async def awaited(call: Callable[[], Any]) -> Any:
    found = call()
    return await found if hasattr(found, "__await__") else [event async for event in found]


CALLS: dict[str, Callable[..., Any]] = {
    "invoke": lambda graph, **given: graph.invoke({}, **given),
    "stream": lambda graph, **given: graph.stream({}, **given),
    "execute": lambda graph, **given: graph.execute({}, **given),
    "start": lambda graph, **given: graph.start({}, **given),
    "resume": lambda graph, **given: graph.resume("1", **given),
    "ainvoke": lambda graph, **given: asyncio.run(awaited(lambda: graph.ainvoke({}, **given))),
    "astream": lambda graph, **given: asyncio.run(awaited(lambda: graph.astream({}, **given))),
    "aexecute": lambda graph, **given: asyncio.run(awaited(lambda: graph.aexecute({}, **given))),
    "astart": lambda graph, **given: asyncio.run(awaited(lambda: graph.astart({}, **given))),
    "aresume": lambda graph, **given: asyncio.run(awaited(lambda: graph.aresume("1", **given))),
}


@pytest.mark.parametrize("make", [one, flow])
def test_a_config_that_names_a_thread_is_refused_by_every_call(make: Callable[[], Any]) -> None:
    """H22: it names `run_id`, and no run begins."""
    graph = make()
    for call in CALLS.values():
        with pytest.raises(UsageError, match="'thread_id', which isn't read here; give run_id=… instead"):
            call(graph, config=THREAD)
    for key, advice in (("checkpoint_id", "checkpoint="), ("checkpoint_ns", "leave it out")):
        with pytest.raises(UsageError, match=advice):
            graph.execute({}, {"configurable": {key: "1"}})
    assert graph.compiled().need_client("list").store.list(RunFilter()) == []


def test_other_settings_in_a_config_are_the_users() -> None:
    """H22: also those in `configurable`, which nodes read."""
    graph = one(
        lambda state, ctx: {"user": ctx.config["configurable"]["user"], "id": ctx.config["thread_id"]}
    )
    done = graph.execute({}, {"configurable": {"user": "ada"}, "thread_id": "of a forum"})
    assert dict(done) == {"user": "ada", "id": "of a forum"}


def test_a_command_is_refused_as_an_input_and_as_an_answer() -> None:
    """H22: it is a dataclass, and so would be a state."""
    graph = one(lambda state: {"said": pause("Ship it?")})
    graph.invoke({}, run_id="1").wait()
    for call in (
        lambda: graph.invoke(Command(resume="yes"), run_id="1"),
        lambda: graph.execute(Command(resume="yes"), run_id="1"),
        lambda: graph.start(Command(resume="yes"), run_id="1"),
        lambda: graph.resume("1", Command(resume="yes")),
        lambda: graph.answer("1", Command(resume="yes")),
        lambda: asyncio.run(awaited(lambda: graph.ainvoke(Command(resume="yes")))),
    ):
        with pytest.raises(UsageError, match=r"got a Command of LangGraph.*resume\(run_id, answer\)"):
            call()
    assert graph.resume("1", "yes")["said"] == "yes"


@pytest.mark.parametrize(
    ("returned", "advice"),
    [
        (Command(goto="b", update={"x": 1}), r"return Goto\(target, update\)"),
        ([Command(goto="b")], r"return Goto\(target, update\)"),
        (Send("b", {}), r"add_map\(\)"),
        ([Send("b", {})], r"add_map\(\)"),
    ],
)
def test_what_a_node_returned_to_say_where_to_go_isnt_taken_for_a_state(returned: Any, advice: str) -> None:
    """H22."""
    with pytest.raises(ExecutionError, match=advice):
        one(lambda state: returned).execute({})


@pytest.mark.parametrize(
    ("chosen", "advice"),
    [
        ([Send("a", {})], r"add_map\(\)"),
        (Send("a", {}), r"add_map\(\)"),
        (["a"], "a condition gives one target"),
    ],
)
def test_a_condition_with_several_targets_fails_and_names_what_runs_several(chosen: Any, advice: str) -> None:
    """H22."""
    graph = StateGraph(name="g").add_node("a", run=lambda state: {}).add_edge(START, "a")
    graph.add_conditional_edges("a", lambda state: chosen, ["a", END])
    with pytest.raises(ExecutionError, match=advice):
        graph.compile().execute({})


def test_interrupt_says_that_pause_asks() -> None:
    """H22."""
    with pytest.raises(
        ExecutionError, match=r"pause\(prompt\) of limpet asks, and resume\(run_id, answer\) answers"
    ):
        one(lambda state: {"x": interrupt("?")}).execute({})


def test_arguments_of_langgraphs_calls_say_what_to_use() -> None:
    """H22: and others are refused as Python does it."""
    graph = one()
    for call in ("invoke", "stream", "ainvoke", "astream"):
        with pytest.raises(TypeError, match=r"'stream_mode': stream\(\) gives an event with the state"):
            getattr(graph, call)({}, stream_mode="values")
        with pytest.raises(TypeError, match=rf"{call}\(\) got an unexpected keyword argument 'nonsense'$"):
            getattr(graph, call)({}, nonsense=1)


def test_methods_of_langgraphs_graphs_say_what_to_use() -> None:
    """H22: and a graph still doesn't have them."""
    for graph in (one(), flow()):
        for name, advice in (
            ("get_state", r"graph.state_at\(run_id\)"),
            ("aget_state", r"graph.state_at\(run_id\)"),
            ("get_state_history", r"graph.history\(run_id\)"),
            ("update_state", "fork"),
            ("astream_events", "events"),
        ):
            assert not hasattr(graph, name)
            with pytest.raises(AttributeError, match=f"no attribute '{name}': .*{advice}"):
                getattr(graph, name)
        with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
            graph.nonsense  # type: ignore[attr-defined]  # noqa: B018  # that is what is tested


@pytest.mark.parametrize("saver", [InMemorySaver(), LimpetSaver("memory://")], ids=["theirs", "ours"])
def test_a_checkpointer_of_langgraph_isnt_for_our_graphs(saver: Any) -> None:
    """H22: `store=` is."""
    with pytest.raises(DefinitionError, match=r'give store=…, such as "sqlite:///runs\.db"'):
        one().compile(checkpointer=saver)
    with pytest.raises(DefinitionError, match="give store=…"):
        flow().compile(checkpointer=saver)


class Chat(TypedDict):
    messages: Annotated[list[Any], add_messages]


def test_langgraphs_add_messages_is_a_reducer_here_too() -> None:
    """H22: with the classes of messages registered; and without, the error says so."""
    graph = one(lambda state: {"messages": [AIMessage("hi", id="2")]}, Chat)
    with pytest.raises(ExecutionError, match=r"register_type\((Human|AI)Message\)"):
        graph.execute({"messages": [("user", "hello")]})
    register_type(AIMessage)
    register_type(HumanMessage)
    graph.execute({"messages": [HumanMessage("hello", id="1")]}, run_id="1")
    assert graph.state_at("1")["messages"] == [HumanMessage("hello", id="1"), AIMessage("hi", id="2")]
