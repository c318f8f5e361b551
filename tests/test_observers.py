"""Observers that are given when a graph is compiled, and when a run is started."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from limpet import (
    MemoryStore,
    NodeContext,
    Retry,
    State,
    StateGraph,
    UnknownName,
    UsageError,
    Workflow,
    pause,
    receive,
)
from limpet.observe import Event
from support.graphs import chain, single


class Seen:
    """An observer that remembers the runs, and the types of events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]


def test_observers_of_the_constructor_of_compile_and_of_a_call_all_watch() -> None:
    """H12, G11: in this order, each event once."""
    order: list[str] = []
    names = ("constructor", "compile", "call")
    watch = {name: lambda event, name=name: order.append(name) for name in names}
    graph = StateGraph(name="one", observer=watch["constructor"]).add_node("only")
    graph.set_entry_point("only").set_finish_point("only")
    graph.compile(observers=[watch["compile"]]).execute({}, observers=[watch["call"]])
    assert order == list(names) * (len(order) // 3)
    assert order


@pytest.mark.parametrize("how", ["execute", "invoke", "stream", "aexecute", "ainvoke", "astream"])
def test_an_observer_of_a_call_watches_that_run_alone(how: str) -> None:
    """H12: in every way to start a run."""
    seen = Seen()
    graph = chain(lambda state: {"n": 1}).compile(store=MemoryStore())
    started = getattr(graph, how)({}, run_id="watched", observers=[seen])
    if how == "aexecute":
        asyncio.run(started)
    elif how.startswith("a"):
        asyncio.run(started.wait())
    elif how != "execute":
        started.wait()
    graph.execute({}, run_id="other")
    assert seen.types[0] == "graph.start"
    assert seen.types[-1] == "graph.complete"
    assert {event.data["run_id"] for event in seen.events if "run_id" in event.data} == {"watched"}


@pytest.mark.parametrize("how", ["resume", "aresume"])
def test_a_resume_takes_observers(how: str) -> None:
    """H12."""
    seen = Seen()
    for graph in (
        single(lambda state: {"a": pause("Go on?")}).compile(store=MemoryStore()),
        Workflow("ask", store=MemoryStore()).add_task("ask", lambda: pause("Go on?")),
    ):
        graph.invoke({}, run_id="r").wait()
        resumed = getattr(graph, how)("r", "yes", observers=[seen])
        if how == "aresume":
            asyncio.run(resumed)
    assert seen.types.count("checkpoint.resume") == 2
    assert seen.types.count("graph.complete") == 2


def test_a_workflow_takes_observers_when_it_is_compiled() -> None:
    """H12: a later compile without them leaves them as they are, as with all of its settings."""
    seen = Seen()
    flow = Workflow("one", observer="noop").add_task("only", lambda: 1).compile(observers=[seen])
    flow.compile(store=MemoryStore()).execute({})
    assert "node.complete" in seen.types


def test_observers_are_given_by_name_and_alone_as_well() -> None:
    """H12: as a list, or one."""
    seen = Seen()
    single(lambda state: None).compile(observers="noop").execute({}, observers=seen)
    assert "node.start" in seen.types
    with pytest.raises(UnknownName, match="observer"):
        single(lambda state: None).compile(observers=["lgo"])
    with pytest.raises(UnknownName, match="observer"):
        single(lambda state: None).execute({}, observers=["lgo"])


def test_a_run_that_a_worker_executes_is_watched_by_the_observers_of_compile() -> None:
    """H12: those of `start` would live in another process, so they are refused."""
    seen = Seen()
    graph = single(lambda state: {"n": 1}).compile(store=MemoryStore(), observers=[seen])
    given: Any = [seen]
    with pytest.raises(UsageError, match="compile\\(observers"):
        graph.start({}, observers=given)
    graph.start({}, run_id="r")
    graph.recover()
    assert seen.types[0] == "graph.start"
    assert seen.types[-1] == "graph.complete"


@pytest.mark.parametrize("stops", ["question", "message", "retry"])
def test_a_queued_run_starts_once_although_its_first_node_is_called_again(stops: str) -> None:
    """G11: after an answer, a message or a failed attempt it resumes."""

    def first(state: State, ctx: NodeContext) -> dict[str, Any]:
        if stops == "question":
            return {"x": pause("Go on?")}
        if stops == "message":
            return {"x": receive("user")}
        if ctx.attempt == 1:
            raise ConnectionError("no answer")
        return {"x": "yes"}

    seen = Seen()
    graph = StateGraph(name="queued").add_node("first", run=first, retry=Retry(2, backoff=0.0))
    graph.set_entry_point("first").set_finish_point("first").compile(store=MemoryStore(), observers=[seen])
    handle = graph.start({}, run_id="r")
    graph.recover()
    if stops == "question":
        handle.answer("yes")
    elif stops == "message":
        handle.send("user", "yes")
    graph.recover()
    assert handle.result(timeout=0)["x"] == "yes"
    assert seen.types.count("graph.start") == 1
    assert seen.types.count("checkpoint.resume") == (0 if stops == "retry" else 1)
