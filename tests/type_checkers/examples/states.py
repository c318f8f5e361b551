"""A graph with each kind of schema, as type checkers see it and as it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict, assert_type

from pydantic import BaseModel

from limpet import END, START, AsyncRun, Run, RunHandle, State, StateGraph, append


class Essay(TypedDict):
    topic: str
    words: int


@dataclass
class Review:
    topic: str
    score: int = 0
    notes: Annotated[list[str], append] = field(default_factory=list[str])


class Order(BaseModel):
    item: str
    count: int = 1


def write(state: Essay) -> dict[str, Any]:
    return {"words": len(state["topic"])}


def grade(review: Review) -> Review:
    return Review(review.topic, score=len(review.topic), notes=[*review.notes, "graded"])


async def double(order: Order) -> Order:
    return order.model_copy(update={"count": order.count * 2})


def is_short(state: Essay) -> bool:
    return state["words"] < 3


def is_poor(review: Review) -> bool:
    return review.score < 4


def verdict(review: Review) -> str:
    return END if review.score else "grade"


def essays() -> StateGraph[Essay]:
    graph = StateGraph(Essay, name="essays").add_node("write", write)
    graph.add_edge(START, "write").add_edge("write", "write", is_short).add_edge("write", END)
    return graph.compile(store="memory://")


def reviews() -> StateGraph[Review]:
    graph = StateGraph(Review, name="reviews").add_node(grade)
    graph.set_entry_point("grade").add_edge("grade", "grade", is_poor)
    return graph.add_conditional_edges("grade", verdict, [END, "grade"]).compile(store="memory://")


def orders() -> StateGraph[Order]:
    graph = StateGraph(Order, name="orders").add_node(double)
    return graph.set_entry_point("double").set_finish_point("double").compile(store="memory://")


def typed_dict() -> int:
    final = essays().execute({"topic": "kelp"})
    assert_type(final, State[Essay])
    assert_type(final["words"], Any)
    assert_type(final.model, Essay)
    return final.model["words"]


def data_class() -> int:
    graph = reviews()
    final = graph.execute(Review("kelp"))
    assert_type(final, State[Review])
    assert_type(graph.invoke({"topic": "kelp"}), Run[State[Review]])
    assert_type(graph.ainvoke({"topic": "kelp"}), AsyncRun[State[Review]])
    assert_type(graph.start({"topic": "kelp"}), RunHandle[State[Review]])
    assert_type(final.set("score", 3).model.notes, list[str])
    return final.model.score


async def model() -> Order:
    final = await orders().aexecute({"item": "nets", "count": "2"})
    assert_type(final, State[Order])
    return final.model


def untyped() -> dict[str, Any]:
    graph = StateGraph({"topic": str}).add_node("a").set_entry_point("a").set_finish_point("a")
    final = graph.execute({"topic": "kelp"})
    assert_type(final.model, Any)
    return dict(final)


def without_schema(graph: StateGraph, state: State) -> None:
    """The classes by themselves, without an argument, stay valid annotations."""
    graph.execute(state)
    without_schema(reviews(), final_state())


def final_state() -> State[Review]:
    return reviews().execute({"topic": "kelp"})
