"""What a type checker has to refuse. Each line that ends in `# wrong` is an error to mypy and to pyright."""

from __future__ import annotations

from dataclasses import dataclass

from limpet import State, StateGraph, Workflow, once, pause


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


def define() -> None:
    StateGraph(3)  # wrong
    graph: StateGraph[Review] = StateGraph(Review).compile()
    final: State[Workflow] = graph.execute(Review("kelp"))  # wrong
    flow = Workflow("etl")
    flow.add_task("a", ask, depends_on=[3])  # wrong
    print(final)
