"""What a type checker has to refuse. Each line that ends in `# wrong` is an error to mypy and to pyright."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from limpet import Goto, NodeContext, State, StateGraph, Workflow, once, pause


@dataclass
class Review:
    topic: str
    score: int = 0


def read(state: State[Review]) -> None:
    print(state.model.topc)  # wrong
    print(state.model.score + "1")  # wrong


def ask() -> None:
    count: str = pause("How many?", schema=int)  # wrong
    pause("How many?", schema=3)  # wrong
    pause("How many?", schema=int, deadlin=3)  # wrong
    number: int = pause("How many?", schema=int, deadline=3, default=None)  # wrong
    once("length", len, 5)  # wrong
    print(count, number)


def work(state: State[Review], ctx: NodeContext) -> Goto[Literal["ask", "read"]]:
    child = ctx.start(StateGraph(Review), {"topic": "kelp"})
    print(ctx.join(child).model.topc)  # wrong
    ctx.start(Review)  # wrong
    ctx.start(StateGraph(Review), {}, deadlin=3)  # wrong
    return Goto("raed")  # wrong


def define() -> None:
    StateGraph(3)  # wrong
    graph: StateGraph[Review] = StateGraph(Review).compile()
    final: State[Workflow] = graph.execute(Review("kelp"))  # wrong
    flow = Workflow("etl")
    flow.add_task("a", ask, depends_on=[3])  # wrong
    print(final)
