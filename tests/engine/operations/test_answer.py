"""Answers to runs that wait, and to runs that other branches of which are under way. H10."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from limpet import AlreadyAnswered, AnswerRefused, RunPaused, StateGraph, UsageError, Workflow, pause
from support.graphs import chain

LONG = 30.0


def asking_while_another_runs(store: Any, proceed: threading.Event) -> StateGraph:
    """Two branches: one asks, the other waits for the test."""

    def slow(state: Any) -> dict[str, Any]:
        assert proceed.wait(LONG)
        return {"slow": True}

    def ask(state: Any) -> dict[str, Any]:
        return {"said": pause("well?", choices=["yes", "no"])}

    def join(state: Any, parallel_results: Any) -> dict[str, Any]:
        return {"said": [each.get("said") for each in parallel_results]}

    graph = StateGraph({"said": object}, name="asking").add_node("src", run=lambda state: {})
    graph.add_node("ask", run=ask).add_node("slow", run=slow).add_fanin_node("join", run=join)
    for branch in ("ask", "slow"):
        graph.add_parallel_edge("src", branch, "join")
    return graph.set_entry_point("src").set_finish_point("join").compile(store=store)


def until(is_true: Any) -> None:
    deadline = time.monotonic() + LONG
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_question_is_answered_while_other_branches_run(store: Any) -> None:
    """H10: it shows from the moment it is asked, and its branch continues at once."""
    proceed = threading.Event()
    graph = asking_while_another_runs(store, proceed)
    other = asking_while_another_runs(store, proceed).compile(store=store, lease=20.0)
    steps: list[str] = []
    with ThreadPoolExecutor(1) as pool:

        def run() -> Any:
            for event in graph.stream({}, run_id="r"):
                steps.append(event.get("node") or "")
            return event["state"]

        running = pool.submit(run)
        until(lambda: "src" in steps)
        handle = other.get("r")
        until(lambda: handle.questions)
        assert handle.status == "running"
        with pytest.raises(AnswerRefused):
            handle.answer("maybe")
        handle.answer("yes")
        until(lambda: "ask" in steps)
        assert not running.done()
        with pytest.raises((AlreadyAnswered, UsageError)):
            handle.answer("no")
        proceed.set()
        assert running.result(LONG)["said"] == ["yes", None]
    assert handle.questions == []


def test_tasks_of_a_layer_are_answered_one_by_one_while_others_run(store: Any) -> None:
    """H10, P3: each answer goes to its question."""
    proceed = threading.Event()
    flow = Workflow("flow")
    for name in ("a", "b"):
        flow.add_task(name, lambda ctx: pause(f"{ctx.node}?"))
    flow.add_task("slow", lambda: proceed.wait(LONG))
    flow.compile(store=store)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(flow.execute, {}, run_id="r")
        until(lambda: flow.runs() and len(flow.get("r").questions) == 2)
        for question in reversed(flow.get("r").questions):
            flow.answer("r", answers={question.id: f"to {question.prompt}"})
        proceed.set()
        final = running.result(LONG)
    assert (final.results["a"], final.results["b"]) == ("to a?", "to b?")


def test_an_answer_that_is_refused_leaves_the_run_as_it_is(store: Any) -> None:
    """H10: not even the time of its last change differs."""
    graph = chain(lambda state: {"said": pause("well?", choices=["yes"])}).compile(store=store)
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="r")
    before = graph.get("r").info
    with pytest.raises(AnswerRefused):
        graph.answer("r", "no")
    with pytest.raises(UsageError):
        graph.answer("r", answers={"unknown:1:1": "yes"})
    assert graph.get("r").info == before
