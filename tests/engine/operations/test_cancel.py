"""Cancelling stored runs: again, and on the way to an interrupt."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from time import time
from types import SimpleNamespace
from typing import Any

import pytest

from limpet import Conflict, MemoryStore, RunCancelled, RunPaused, Runs, State, StateGraph, pause
from limpet.engine.leases.held_lease import StopRequest
from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.operations import cancel
from limpet.journal.inbox import answer_post
from limpet.stores.opening import open_store
from support.graphs import asking_while_another_runs, chain
from support.posts import post_cancel


def paused_run(store: Any) -> StateGraph:
    """A graph whose run "r" has asked something, and waits for the answer."""
    graph = chain(lambda state: {"said": pause("well?")}).compile(store=store)
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="r")
    return graph


def test_cancelling_a_cancelled_run_isnt_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """G12, H11: it is skipped, for the same reason in every call, also if another process was quicker."""
    store = MemoryStore()
    graph = chain(lambda state: {"a": 1}, lambda state: {"b": 1}).compile(store=store)
    run = graph.stream({}, run_id="r")
    next(run)
    run.close()
    graph.cancel("r")
    updated = graph.get("r").info.updated
    graph.cancel("r")
    graph.get("r").cancel()
    runs = Runs(store)
    for outcomes in (runs.cancel("r"), runs.cancel(["r"]), runs.cancel(status="cancelled")):
        assert [each[3:5] for each in outcomes] == [("skipped", "it is cancelled already")]
    assert graph.get("r").info.updated == updated
    running = store.head("r")._replace(status="running")
    monkeypatch.setattr(store, "head", lambda run_id: running)
    assert runs.cancel("r").skipped == 1
    monkeypatch.undo()
    assert graph.resume("r") == {"a": 1, "b": 1}


def test_a_run_that_is_cancelled_on_its_way_to_an_interrupt_still_stops_there() -> None:
    """D11, F5: the approval was never asked for, so a resume doesn't skip it."""
    store, ran = MemoryStore(), []

    def first(state: State) -> None:
        elsewhere.cancel(state.run_id)

    def build(lease: float) -> StateGraph:
        graph = chain(first, lambda state: ran.append("n2"))
        return graph.compile(store=store, interrupt_before=["n2"], lease=lease)

    graph, elsewhere = build(10.0), build(20.0)
    run = graph.invoke({})
    assert [event["type"] for event in run] == ["cancelled"]
    (event,) = graph.invoke(None, checkpoint=f"{run.id}@1")
    assert (event["type"], ran) == ("interrupt", [])


@pytest.mark.parametrize("when", ["interrupt_before", "interrupt_after"])
@pytest.mark.parametrize("by", ["retry", "resume"])
@pytest.mark.parametrize("cancelled_by", ["the call", "a worker"])
def test_a_cancel_approves_no_interrupt(when: str, by: str, cancelled_by: str) -> None:
    """F3, H10: a run that was cancelled while it waited for an approval waits for it again."""
    ran: list[str] = []
    graph = chain(lambda state: ran.append("n1"), lambda state: ran.append("n2"))
    store = MemoryStore()
    graph.compile(store=store, **{when: ["n2" if when == "interrupt_before" else "n1"]})
    handle = graph.start(run_id="r")
    graph.recover()
    if cancelled_by == "the call":
        handle.cancel()
    else:
        post_cancel(store, "r")  # by a call that found the run under way
        graph.recover()
    assert (handle.status, ran) == ("cancelled", ["n1"])
    if by == "retry":
        Runs(store).retry(status="cancelled")
        graph.recover()
    else:
        with pytest.raises(RunPaused):
            graph.resume("r")
    assert (handle.status, handle.info.waits_for_approval, ran) == ("paused", True, ["n1"])
    handle.answer()
    graph.recover()
    assert (handle.status, ran) == ("completed", ["n1", "n2"])


def test_a_request_to_cancel_is_durable_when_it_returns() -> None:
    """G12, H10: though the caller leaves the run before its next node, or its process crashes."""
    graph = chain(lambda state: {}, lambda state: {"second": True}).compile(store=MemoryStore())
    run = graph.stream({}, run_id="r")
    next(run)
    graph.cancel("r")
    run.close()
    assert graph.recover() == ["r"]
    assert graph.get("r").status == "cancelled"


def test_a_request_that_was_carried_out_does_not_come_again() -> None:
    """G12, H10: a retry is a newer wish."""
    store = MemoryStore()
    graph = paused_run(store)
    post_cancel(store, "r")
    graph.cancel("r")
    graph.get("r").retry()
    assert graph.recover() == ["r"]
    graph.answer("r", "yes")
    assert graph.recover() == ["r"]
    assert graph.get("r").result(0)["said"] == "yes"


def test_a_cancelled_run_asks_nothing_and_an_answer_does_not_run_it_again(store: Any) -> None:
    """H10: every call refuses the answer, and says that a retry makes the run ask again."""
    graph = paused_run(store)
    handle = graph.get("r")
    question = handle.questions[0].id
    handle.cancel()
    assert (handle.questions, Runs(store).list()[0].questions) == ([], [])
    answers = {question: "yes"}
    calls: list[Callable[[], Any]] = [
        lambda: handle.answer("yes"),
        lambda: graph.answer("r", answers=answers),
        lambda: Runs(store).answer("r", "yes"),
        lambda: graph.answer("r@0", "yes"),
        lambda: graph.resume("r", "yes"),
        lambda: graph.resume("r", {"not": "an update"}),
        lambda: list(graph.invoke("yes", checkpoint="r@0")),
        lambda: asyncio.run(handle.aanswer("yes")),
        lambda: asyncio.run(graph.aresume("r", answers=answers)),
    ]
    for call in calls:
        with pytest.raises(RunCancelled, match=r"takes no answer; retry\(\) it") as refused:
            call()
        assert refused.value.next_operation == "retry"
    assert (handle.status, graph.recover()) == ("cancelled", [])
    handle.retry()
    assert graph.recover() == ["r"]
    assert [each.id for each in handle.questions] == [question]
    assert graph.resume("r", "yes")["said"] == "yes"


def test_an_answer_does_not_withdraw_a_request_to_cancel() -> None:
    """H10: the request came first, though no process has carried it out yet."""
    store = MemoryStore()
    graph = paused_run(store)
    post_cancel(store, "r")
    with pytest.raises(RunCancelled):
        graph.answer("r", "yes")
    graph.recover()
    assert graph.get("r").status == "cancelled"


@pytest.mark.parametrize("executed", ["here", "elsewhere"])
def test_a_run_that_pauses_just_before_the_request_is_stored_is_cancelled(
    executed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H10: its process doesn't look at what is posted any more, and a question may stay open for a month."""
    graph = paused_run(MemoryStore())
    holding = LeaseClient.holding

    def held_until_now(*args: Any) -> Any:
        monkeypatch.setattr(LeaseClient, "holding", holding)
        raise Conflict("r", "another process executes it")

    if executed == "here":
        lease = SimpleNamespace(graph=graph.name, stop=StopRequest())
        monkeypatch.setattr(cancel, "held_in_this_process", lambda store, run_id: lease)
    else:
        monkeypatch.setattr(LeaseClient, "holding", held_until_now)
    graph.cancel("r")
    assert graph.get("r").status == "cancelled"


def test_an_answer_that_crosses_a_cancel_counts_once_the_run_is_retried(store: Any) -> None:
    """H10: it never runs the run again by itself, and isn't lost."""
    opened = open_store(store)
    graph = chain(lambda state: {"said": pause("well?")}).compile(store=opened)
    for run_id in ("before", "after"):
        with pytest.raises(RunPaused):
            graph.execute({}, run_id=run_id)
        handle = graph.get(run_id)
        post = answer_post(run_id, handle.questions[0].id, "yes", time())
        if run_id == "before":
            opened.post(run_id, post.key, post.body)
        handle.cancel()
        if run_id == "after":
            opened.post(run_id, post.key, post.body)
        assert (handle.status, handle.questions, graph.recover()) == ("cancelled", [], [])
        handle.retry()
        assert graph.recover() == [run_id]
        assert handle.result(0)["said"] == "yes"


def test_what_a_branch_asks_is_asked_again_after_a_cancel(store: Any) -> None:
    """H10: from the moment the run is resumed, though another branch is under way."""
    proceed = threading.Event()
    graph = asking_while_another_runs(store, proceed)
    proceed.set()
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="r")
    handle = graph.get("r")
    asked = handle.questions
    handle.cancel()
    with pytest.raises(RunCancelled):
        handle.answer("yes")
    assert handle.questions == []
    handle.retry()
    assert handle.questions == asked
    handle.answer("yes")
    assert graph.recover() == ["r"]
    assert handle.result(0)["said"] == ["yes", None]
