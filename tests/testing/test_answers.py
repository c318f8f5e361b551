"""Scripted answers: by prompt, node or id, in turn, by a function; and nothing unscripted, and nothing unused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from limpet import ExecutionError, MemoryStore, Question, State, StateGraph, Workflow, pause, receive
from limpet.testing import UNANSWERED, FakeClock, Unscripted, arun_to_end, in_turn, run_to_end


def reviewing(**settings: Any) -> StateGraph:
    """Asks two things in a node, until both are answered with yes."""

    def review(state: Any) -> dict[str, Any]:
        return {"one": pause("One?", choices=["yes", "no"]), "two": pause("Two?", key="two")}

    graph = StateGraph(name="reviewing").add_node("review", run=review).add_node("end")
    graph.set_entry_point("review")
    graph.add_edge("review", "review", lambda state: state["one"] != "yes").add_edge("review", "end")
    return graph.set_finish_point("end").compile(store=MemoryStore(), **settings)


@pytest.mark.parametrize(
    "answers",
    [
        {"One?": "yes", "Two?": 2},
        {"One?": "yes", "review": 2},
        {"review:1:1": "yes", "review:1:two": 2},
        {"One?": lambda question: question.choices[0], "Two?": lambda question: 2},
        {"review": in_turn("yes", 2)},
        {"One?": in_turn("yes"), "Two?": 2},
    ],
)
def test_a_run_that_asks_goes_to_its_end(answers: dict[str, Any]) -> None:
    """P1: whichever way the answers are named; sync and async."""
    expected = {"one": "yes", "two": 2}
    assert run_to_end(reviewing(), answers=answers) == expected
    assert asyncio.run(arun_to_end(reviewing(), answers=answers)) == expected


def test_answers_in_turn_are_for_what_is_asked_again() -> None:
    """P1: and a plain one is for every time."""
    asked: list[str] = []

    def two(question: Question) -> int:
        asked.append(question.id)
        return len(asked)

    state = run_to_end(reviewing(), answers={"One?": in_turn("no", "no", "yes"), "Two?": two})
    assert state == {"one": "yes", "two": 3}
    assert asked == ["review:1:two", "review:2:two", "review:3:two"]


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({}, "no answer is scripted for 'One?'"),
        ({"One?": "yes"}, "no answer is scripted for 'Two?'"),
        (
            {"One?": "yes", "Two?": 2, "Three?": 3},
            "never asked for these answers, or not as often: 'Three?': 3",
        ),
        ({"One?": in_turn("yes", "no"), "Two?": 2}, "'One?': in_turn('yes', 'no')"),
        ({"One?": in_turn("no"), "Two?": 2}, "'One?' was asked 2 times, and 1 answers are scripted"),
        ({"One?": UNANSWERED, "Two?": 2}, "stay unanswered: that needs a question with a deadline"),
    ],
)
def test_what_does_not_fit_the_script_is_an_error(answers: dict[str, Any], problem: str) -> None:
    """P1: neither a question without an answer nor an answer without a question goes unnoticed."""
    with pytest.raises(Unscripted) as raised:
        run_to_end(reviewing(), answers=answers)
    assert problem in str(raised.value)


def test_a_run_is_resumed_after_interrupts() -> None:
    """F3, F6: with an update where one is scripted for the node."""
    answers = {"One?": "yes", "Two?": 2}
    graph = reviewing(interrupt_before=["review"], interrupt_after=["end"])
    assert run_to_end(graph, answers=answers) == {"one": "yes", "two": 2}
    assert run_to_end(graph, answers={**answers, "end": {"more": 3}}) == {"one": "yes", "two": 2, "more": 3}


def test_several_questions_of_a_layer_are_answered_together() -> None:
    """P3: each gets its own."""
    flow = Workflow("flow", store=MemoryStore())
    flow.add_task("a", lambda: pause("A?"))
    flow.add_task("b", lambda: pause("B?"))
    flow.add_task("c", lambda a, b: a + b, ["a", "b"])
    assert run_to_end(flow, answers={"A?": 1, "b": 2}).results["c"] == 3


def test_what_a_run_raises_is_raised() -> None:
    """G9."""
    graph = StateGraph(name="bad").add_node("bad", run=lambda state: 1 // 0)
    graph.set_entry_point("bad").set_finish_point("bad").compile(store=MemoryStore())
    with pytest.raises(ExecutionError):
        run_to_end(graph, {}, run_id="mine")
    assert [info.run_id for info in graph.runs()] == ["mine"]


def chatting() -> StateGraph:
    """Receives "user" until that is "bye", and a hint that may not come."""

    def turn(state: State) -> dict[str, Any]:
        return {"log": [*state.get("log", []), receive("user"), receive("hint", deadline=60, default=None)]}

    graph = StateGraph(name="chatting").add_node("turn", run=turn).set_entry_point("turn").add_node("end")
    graph.add_edge("turn", "turn", lambda state: state["log"][-2] != "bye").add_edge("turn", "end")
    return graph.set_finish_point("end").compile(store=MemoryStore(clock=FakeClock()))


def test_messages_are_sent_when_a_node_waits_for_them() -> None:
    """H16: in order, each once; where none is left, the deadline passes."""
    state = run_to_end(chatting(), messages={"user": ["hi", "bye"], "hint": ["wave"]})
    assert state["log"] == ["hi", "wave", "bye", None]
    with pytest.raises(Unscripted, match="more messages"):
        run_to_end(chatting(), messages={"user": ["hi"]})
    with pytest.raises(Unscripted, match="never waited"):
        run_to_end(chatting(), messages={"user": ["bye", "too many"]})
