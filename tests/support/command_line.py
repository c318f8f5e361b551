"""A module of graphs as a user has it, and the result of a command."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

FLOWS = """
from typing import Annotated

from limpet import StateGraph, Workflow, pause, secret


def draft(state):
    return {"text": f"About {state['topic']}."}


def review(state):
    return {"verdict": pause(f"Publish {state['text']!r}?", choices=["yes", "no"])}


def publish(state):
    return {"done": True}


def fail(state):
    if not state.get("fixed"):
        raise ValueError("the line is busy")
    return {"done": True}


graph = StateGraph({"topic": str, "text": str, "verdict": str, "done": bool}, name="article")
graph.add_node("draft", draft)
graph.add_node("review", review)
graph.add_node("publish", publish)
graph.set_entry_point("draft")
graph.add_edge("draft", "review")
graph.add_conditional_edges("review", lambda state: state["verdict"], {"yes": "publish", "no": "draft"})
graph.set_finish_point("publish")

busy = StateGraph({"fixed": bool, "done": bool}, name="busy")
busy.add_node("fail", fail, retry=1, timeout=60)
busy.set_entry_point("fail")
busy.set_finish_point("fail")

twice = StateGraph(name="twice")
twice.add_node("begin", lambda state: {"x": 1})
twice.add_node("a", lambda state: {"a": pause("A?", schema=int)})
twice.add_node("b", lambda state: {"b": pause("B?", key="b")})
twice.add_fanin_node("join", lambda state, parallel_results: {"sum": [dict(each) for each in parallel_results]})
twice.set_entry_point("begin")
twice.add_parallel_edge("begin", "a", "join")
twice.add_parallel_edge("begin", "b", "join")
twice.set_finish_point("join")

plain = StateGraph({"x": int}, name="plain")
plain.add_node("one", lambda state: {"x": state.get("x", 0) + 1})
plain.add_node("two", lambda state: {"x": state["x"] + 1, "name": "ann"})
plain.set_entry_point("one")
plain.add_edge("one", "two")
plain.set_finish_point("two")
plain.compile(preserve=True)

wrong = StateGraph(name="wrong")
wrong.add_node("alone")
wrong.add_edge("alone", "nowhere")

flow = Workflow("digest")


@flow.task
def page(topic):
    return f"{topic} grows"


@flow.task(depends_on=["page"], retry=2)
def words(page):
    return len(page.split())


def make():
    return plain


vault = StateGraph({"token": Annotated[str, secret], "seen": int}, name="vault")
vault.add_node("look", lambda state: {"seen": len(state["token"])})
vault.set_entry_point("look")
vault.set_finish_point("look")
vault.compile(preserve=True, allow_plain_text_secrets=True)

not_a_graph = 5
"""


class Done(NamedTuple):
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """What it printed for programs."""
        return json.loads(self.out)


Command = Callable[..., Done]
