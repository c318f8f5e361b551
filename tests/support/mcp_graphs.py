"""Graphs that agents run in tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel

from limpet import END, START, StateGraph, Workflow, pause, receive, secret


def one(name: str, function: Any, schema: Any = None, **options: Any) -> StateGraph:
    """A graph of one node."""
    graph = StateGraph(schema or {"out": object}, name=name)
    graph.add_node("only", function)
    graph.add_edge(START, "only")
    graph.add_edge("only", END)
    graph.compile(**options)
    return graph


def article() -> StateGraph:
    graph = StateGraph({"topic": str, "text": str, "verdict": str}, name="article")
    graph.add_node("draft", lambda state: {"text": f"About {state['topic']}."})
    graph.add_node("review", lambda state: {"verdict": pause("Publish?", choices=["yes", "no"])})
    graph.add_edge(START, "draft")
    graph.add_edge("draft", "review")
    graph.add_edge("review", END)
    graph.description = "Write about a topic, once a person agrees."
    return graph


class Trip(BaseModel):
    """A flat answer."""

    city: str
    nights: int = 2
    breakfast: bool = False


@dataclass
class Room:
    """A part of an answer that isn't flat."""

    name: str


class House(BaseModel):
    """An answer that isn't flat."""

    rooms: list[Room]


def asking(name: str, prompt: str = "Well?", **options: Any) -> StateGraph:
    """A graph that asks one question, and has the answer as its result."""

    def ask(state: Any) -> dict[str, Any]:
        answer = pause(prompt, **options)
        return {"out": answer.model_dump() if isinstance(answer, BaseModel) else answer}

    return one(name, ask)


def twice() -> StateGraph:
    """Two branches ask at the same time."""
    graph = StateGraph({"sum": list}, name="twice")
    graph.add_node("begin", lambda state: {})
    graph.add_node("a", lambda state: {"a": pause("A?", schema=int)})
    graph.add_node("b", lambda state: {"b": pause("B?")})
    graph.add_fanin_node(
        "join", lambda state, parallel_results: {"sum": [dict(each) for each in parallel_results]}
    )
    graph.add_edge(START, "begin")
    graph.add_parallel_edge("begin", "a", "join")
    graph.add_parallel_edge("begin", "b", "join")
    graph.add_edge("join", END)
    return graph


def approved() -> StateGraph:
    """It is interrupted before its node."""
    return one("approved", lambda state: {"out": "done"}, interrupt_before=["only"], store="memory")


def failing() -> StateGraph:
    """It fails until it is repaired."""

    def fail(state: Any) -> dict[str, Any]:
        if not state.get("repaired"):
            raise ValueError("the line is busy")
        return {"out": "done"}

    return one("failing", fail, {"repaired": bool, "out": str})


def vault() -> StateGraph:
    """It has a secret key, and asks a secret question."""

    def look(state: Any) -> dict[str, Any]:
        pin = pause("The PIN?", secret=True)
        return {"seen": len(state["token"]) + len(pin)}

    schema = {"token": Annotated[str, secret], "seen": int}
    return one("vault", look, schema, allow_plain_text_secrets=True)


def large() -> StateGraph:
    """Its result is as large as its input says."""
    return one("large", lambda state: {"out": "x" * state["size"]}, {"size": int, "out": str})


def listening() -> StateGraph:
    """It waits for a message."""
    return one("listening", lambda state: {"out": receive("note")})


def report() -> Workflow:
    """A workflow, of which one task is secret."""
    flow = Workflow("report")
    flow.add_task("fetch", lambda topic: f"{topic} grows")
    flow.add_task("count", lambda fetch: len(fetch.split()), depends_on=["fetch"])
    flow.add_task("sign", lambda count: pause(f"{count} words. Sign?", schema=bool), depends_on=["count"])
    return flow
