"""H19: the history says who gave an answer, however it comes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from limpet import MemoryStore, RunPaused, Runs, StateGraph, UsageError
from limpet.journal.inbox import answer_post
from support.graphs import asking, chain


def waiting(store: Any) -> tuple[StateGraph, str]:
    """A run that waits for an answer, and the id of its question."""
    graph = chain(asking()).compile(store=store, preserve=True)
    with pytest.raises(RunPaused) as paused:
        graph.execute({}, run_id="r")
    return graph, paused.value.questions[0].id


def who_answered(graph: StateGraph) -> list[Any]:
    return [event.get("by") for event in graph.get("r").events() if event["type"] == "answer"]


@pytest.mark.parametrize("held", [False, True], ids=["stored", "posted"])
@pytest.mark.parametrize("by", ["ann", None])
def test_the_history_has_who_answered(any_store: Any, held: bool, by: str | None) -> None:
    """H19: an answer is stored with the run, or posted to the process that holds it."""
    graph, question = waiting(any_store)
    lease = any_store.claim("r", "another process", 60.0) if held else None
    graph.get("r").answer("yes", by=by)
    if lease is not None:
        any_store.release(lease)
    assert graph.recover() == ["r"]
    assert who_answered(graph) == [by and {question: by}]


@pytest.mark.parametrize("by", ["ann", None])
def test_the_history_has_who_approved(any_store: Any, by: str | None) -> None:
    """H19: a run that was interrupted, and asks nothing."""
    graph = chain(None, None).compile(store=any_store, preserve=True, interrupt_before=["n2"])
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="r")
    graph.get("r").answer(by=by)
    assert graph.recover() == ["r"]
    events = [event for event in graph.get("r").events() if event["type"] in ("answer", "resume")]
    assert [(event["type"], event.get("by")) for event in events] == [("resume", by)]
    assert graph.verify("r").ok


@pytest.mark.parametrize("held", [False, True], ids=["stored", "posted"])
@pytest.mark.parametrize("by", [42, b"ann", ["ann"], object()])
def test_who_answers_is_a_text(held: bool, by: Any) -> None:
    """H19: anything else is refused before it is stored, as it would make the run unreadable."""
    store = MemoryStore()
    graph, _ = waiting(store)
    if held:
        store.claim("r", "another process", 60.0)
    before = store.head("r")
    for answer in (graph.get("r").answer, lambda value, by: Runs(store).answer("r", value, by=by)):
        with pytest.raises(UsageError, match="by is who answers, as a text, not"):
            answer("yes", by=by)
    assert store.head("r") == before


def test_who_gave_an_answer_that_was_dropped_is_not_told() -> None:
    """H19: another post has None as the answer to a question that isn't asked."""
    store = MemoryStore()
    graph, question = waiting(store)
    for name, answer, by in (("gone:1:1", None, "bo"), (question, "yes", "ann")):
        post = answer_post("r", name, answer, time.time(), by=by)
        assert store.post("r", post.key, post.body)
    assert graph.recover() == ["r"]
    assert who_answered(graph) == [{question: "ann"}]
