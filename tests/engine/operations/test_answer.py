"""Answers to runs that wait, and to runs that other branches of which are under way. H10."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from limpet import (
    AlreadyAnswered,
    AnswerRefused,
    Conflict,
    ExecutionError,
    MemoryStore,
    RunPaused,
    Runs,
    StateGraph,
    UsageError,
    Workflow,
    pause,
    supervise,
)
from limpet.engine.leases import inbox_checks
from limpet.engine.operations import answer
from limpet.journal.encoding import codec
from limpet.journal.encoding.user_types import TypeRegistry
from limpet.journal.inbox import answer_post, cancel_post
from support.graphs import Via, asking, asking_while_another_runs, chain, fan
from support.waiting import until

LONG = 30.0


def test_a_question_whose_answer_waits_for_its_process_is_no_longer_open(
    any_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H10: for readers, and for an answer that names no question, before the process has taken it in."""
    # As in another process, which doesn't hear of posts, and looks for them only when the test is over.
    monkeypatch.setattr(answer, "held_in_this_process", lambda *names: None)
    monkeypatch.setattr(inbox_checks.InboxChecks, "interval", 60.0)
    proceed = threading.Event()
    flow = Workflow("two", store=any_store)
    flow.add_task("a", lambda ctx: ctx.pause("a?")).add_task("b", lambda ctx: ctx.pause("b?"))
    flow.add_task("slow", lambda: proceed.wait(LONG))
    runs = Runs(any_store)
    with ThreadPoolExecutor() as threads:
        done = threads.submit(flow.execute, run_id="r")
        until(lambda: "r" in [each.run_id for each in runs.list()] and len(runs.get("r").questions) == 2)
        first, second = (question.id for question in runs.get("r").questions)
        runs.answer("r", answers={first: 1})
        assert [question.id for question in runs.get("r").questions] == [second]
        assert [question.id for question in runs.list()[0].questions] == [second]
        with pytest.raises(AlreadyAnswered):
            runs.answer("r", answers={first: 2})
        runs.answer("r", 3)
        assert runs.get("r").questions == []
        with pytest.raises(AlreadyAnswered):
            runs.answer("r", 4)
        proceed.set()
        assert done.result(LONG)["tasks"]["b"]["result"] == 3


def test_of_two_answers_at_once_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """P1, H10: an answer by post comes first where it is stored before the other one is committed."""
    store = MemoryStore()
    one, other = (chain(asking()).compile(store=store, lease=lease) for lease in (10.0, 20.0))
    with pytest.raises(RunPaused):
        one.execute({}, run_id="r")
    append = store.append

    def append_later(commits: Any) -> Any:
        monkeypatch.setattr(store, "append", append)
        other.answer("r", "other")
        return append(commits)

    monkeypatch.setattr(store, "append", append_later)
    with pytest.raises(AlreadyAnswered):
        one.answer("r", "one")
    one.recover()
    assert "other" in one.get("r").result(0).values()


def test_a_question_is_answered_while_other_branches_run(store: Any, via: Via) -> None:
    """H10: `wait` returns when it is asked, and its branch continues at once when it is answered."""
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
        asked = handle.wait(LONG) if via.api == "sync" else asyncio.run(handle.await_(LONG))
        assert [question.prompt for question in asked.questions] == ["well?"]
        assert (asked.status, handle.wait(0).questions) == ("running", asked.questions)
        with pytest.raises(TimeoutError):
            handle.result(0)
        with pytest.raises(AnswerRefused):
            handle.answer("maybe")
        handle.answer("yes")
        with pytest.raises(TimeoutError):
            handle.wait(0)
        until(lambda: "ask" in steps)
        assert not running.done()
        with pytest.raises(TimeoutError):
            handle.wait(0)
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


def test_an_answer_that_was_posted_came_first() -> None:
    """H10: a later one is refused, whichever way it comes."""
    store = MemoryStore()
    graph = chain(lambda state: {"said": pause("well?")}).compile(store=store)
    with pytest.raises(RunPaused) as paused:
        graph.execute({}, run_id="r")
    post = answer_post("r", paused.value.questions[0].id, "first", time.time())
    assert store.post("r", post.key, post.body)
    with pytest.raises((AlreadyAnswered, UsageError)):
        graph.answer("r", "second")
    assert graph.recover() == ["r"]
    assert graph.state_at("r")["said"] == "first"


def test_an_answer_counts_from_when_it_was_given() -> None:
    """H9, H10: a node that keeps the run busy beyond the deadline takes nothing away from it."""
    asked = threading.Event()

    def slow(state: Any) -> dict[str, Any]:
        assert asked.wait(LONG)
        time.sleep(1.2)
        return {}

    graph = StateGraph({"said": object}, name="late").add_node("src", run=lambda state: {})
    graph.add_node("ask", run=lambda state: {"said": pause("well?", deadline=1.0, default="none")})
    graph.add_node("slow", run=slow)
    graph.add_fanin_node("join", run=lambda state, parallel_results: {"said": parallel_results[0]["said"]})
    for branch in ("ask", "slow"):
        graph.add_parallel_edge("src", branch, "join")
    store = MemoryStore()
    graph.set_entry_point("src").set_finish_point("join").compile(store=store, max_concurrency=1)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(graph.execute, {}, run_id="r")
        until(lambda: graph.runs() and graph.get("r").questions)
        graph.answer("r", "yes")
        asked.set()
        assert running.result(LONG)["said"] == "yes"


def test_an_answer_retries_no_branch_that_failed(store: Any) -> None:
    """H10: only its own branch runs again."""
    proceed = threading.Event()
    calls: list[str] = []

    def bad(state: Any) -> dict[str, Any]:
        calls.append("bad")
        raise ValueError("broken")

    graph = StateGraph({"said": object}, name="failing").add_node("src", run=lambda state: {})
    graph.add_node("ask", run=lambda state: {"said": pause("well?")}).add_node("bad", run=bad)
    graph.add_node("slow", run=lambda state: {"x": proceed.wait(LONG)})
    graph.add_fanin_node("join", run=lambda state, parallel_results: {})
    for branch in ("ask", "bad", "slow"):
        graph.add_parallel_edge("src", branch, "join")
    graph.set_entry_point("src").set_finish_point("join").compile(store=store)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(graph.execute, {}, run_id="r")
        until(lambda: graph.runs() and graph.get("r").questions and calls)
        graph.answer("r", "yes")
        proceed.set()
        with pytest.raises(ExecutionError, match="broken"):
            running.result(LONG)
    assert graph.get("r").status == "failed"
    assert calls == ["bad"]
    with pytest.raises(ExecutionError):
        graph.resume("r")
    assert calls == ["bad", "bad"]


ELSEWHERE = "elsewhere|boot|namespace|1|2"


def two_ask(store: Any) -> tuple[StateGraph, str, str]:
    """A graph, and what two branches of its run `r` ask."""
    graph = StateGraph({"said": object}, name="two").add_node("src", run=lambda state: {})
    graph.add_fanin_node("join", run=lambda state, parallel_results: {"joined": True})
    for branch in ("a", "b"):
        graph.add_node(branch, run=lambda state: {"said": pause("well?", choices=["yes", "no"])})
        graph.add_parallel_edge("src", branch, "join")
    graph.set_entry_point("src").set_finish_point("join").compile(store=store)
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="r")
    one, other = (question.id for question in graph.get("r").questions)
    return graph, one, other


def test_of_several_answers_by_post_none_is_sent_if_one_comes_too_late() -> None:
    """H10: as where the run isn't held; the error names the question."""
    store = MemoryStore()
    graph, one, other = two_ask(store)
    handle = graph.get("r")
    lease = store.claim("r", ELSEWHERE, 60.0)
    handle.answer(answers={one: "yes"})
    with pytest.raises(AlreadyAnswered, match=f"question '{one}'; open: '{other}'") as refused:
        handle.answer(answers={one: "no", other: "no"})
    assert refused.value.questions == [one]
    assert len(store.inbox("r")) == 1
    handle.answer(answers={other: "yes"})
    store.release(lease)
    assert graph.recover() == ["r"]
    assert handle.result(0)["joined"]


def test_a_second_answer_is_already_answered_however_it_comes(store: Any) -> None:
    """H10: while the first waits, once it is taken in, and once its step is over."""
    proceed = threading.Event()
    graph = asking_while_another_runs(store, proceed)
    handle = graph.start({}, run_id="r")
    second = "no"

    def refuse(answer: Any) -> None:
        with pytest.raises(AlreadyAnswered):
            handle.answer(answers={question: answer})

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(graph.recover)
        until(lambda: handle.questions)
        question = handle.questions[0].id
        handle.answer("yes")
        refuse(second)
        until(lambda: not handle.questions)
        refuse(second)
        proceed.set()
        assert running.result(LONG) == ["r"]
    graph, one, other = two_ask(MemoryStore())
    handle, question = graph.get("r"), one
    handle.answer(answers={one: "yes"})
    refuse(second)
    handle.answer(answers={other: "yes"})
    with pytest.raises(AlreadyAnswered, match="open: none"):
        handle.answer("no")
    with pytest.raises(UsageError, match=r"has no open question 'c/c:1\.1:1'") as refused:
        handle.answer(answers={"c/c:1.1:1": "no"})
    assert refused.type is UsageError


def test_an_answer_without_effect_does_not_stand_in_the_way_of_the_next() -> None:
    """H10: a run drops an answer that doesn't fit, and its question stays open."""
    store = MemoryStore()
    graph, one, other = two_ask(store)
    handle = graph.get("r")
    wrong = answer_post("r", one, "perhaps", time.time())
    assert store.post("r", wrong.key, wrong.body)
    assert graph.recover() == []
    assert [question.id for question in handle.questions] == [one, other]
    for wanted in (one, other):
        lease = store.claim("r", ELSEWHERE, 60.0)
        handle.answer(answers={wanted: "yes"})
        with pytest.raises(AlreadyAnswered):
            handle.answer(answers={wanted: "no"})
        store.release(lease)
    assert graph.recover() == ["r"]
    assert handle.result(0)["joined"]


class Card(NamedTuple):
    """An answer of a class of one's own."""

    number: int


def test_an_answer_of_an_unknown_class_is_left_to_a_process_that_knows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H10: a retry, a cancel and an answer elsewhere leave it in the inbox, and what came after it, in order."""
    fixed: list[bool] = []

    def flaky(state: Any) -> dict[str, Any]:
        if not fixed:
            raise ValueError("not yet")
        return {}

    store = MemoryStore()
    graph = fan({"ask": lambda state: {"said": pause("card?")}, "flaky": flaky}, schema={"results": list})
    graph.compile(store=store)
    with pytest.raises(ExecutionError):
        graph.execute({}, run_id="r")
    handle = graph.get("r")
    known = TypeRegistry()
    known.register(Card)
    monkeypatch.setattr(codec, "TYPES", known)
    for post in (answer_post("r", handle.questions[0].id, Card(7), time.time()), cancel_post("r", "late")):
        assert store.post("r", post.key, post.body)
    monkeypatch.setattr(codec, "TYPES", TypeRegistry())
    handle.retry()
    handle.cancel()
    handle.retry()
    assert len(store.inbox("r")) == 2
    monkeypatch.setattr(codec, "TYPES", known)
    fixed.append(True)
    assert graph.resume("r")["results"] == [{"said": Card(7)}, {}]
    assert store.inbox("r") == []


def test_a_question_is_answered_though_an_answer_to_another_can_not_be_read_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H10: that one waits for a process that knows its class."""
    store = MemoryStore()
    graph = fan({name: lambda state: {"said": pause("card?")} for name in "ab"}, schema={"results": list})
    graph.compile(store=store)
    with pytest.raises(RunPaused) as paused:
        graph.execute({}, run_id="r")
    first, second = (question.id for question in paused.value.questions)
    known = TypeRegistry()
    known.register(Card)
    monkeypatch.setattr(codec, "TYPES", known)
    post = answer_post("r", first, Card(7), time.time())
    assert store.post("r", post.key, post.body)
    monkeypatch.setattr(codec, "TYPES", TypeRegistry())
    graph.answer("r", answers={second: 8})
    assert len(store.inbox("r")) == 1
    monkeypatch.setattr(codec, "TYPES", known)
    graph.recover()
    assert graph.get("r").result(0)["results"] == [{"said": Card(7)}, {"said": 8}]


def interrupted(store: Any, **stops: Any) -> StateGraph:
    """A graph of three nodes that is interrupted there, and keeps its history."""
    nodes = [lambda state, name=name: {name: 1} for name in "abc"]
    return chain(*nodes).compile(store=store, preserve=True, **stops)


@pytest.mark.parametrize("via", ["handle", "runs", "graph", "async"])
def test_an_interrupted_run_is_approved_for_a_worker_by_an_answer_without_a_value(
    store: Any, via: str
) -> None:
    """H10, F3: in any process, without the code of the graph; each gate needs its own approval."""
    graph = interrupted(store, interrupt_before=["n1"], interrupt_after=["n1"])
    handle = graph.start({})
    graph.recover()
    approve: dict[str, Any] = {
        "handle": Runs(store).get(handle.id).answer,
        "runs": lambda *value: Runs(store).answer(handle.id, *value),
        "graph": lambda *value: graph.answer(handle.id, *value),
        "async": lambda *value: asyncio.run(handle.aanswer(*value)),
    }
    for gate in ("before 'n1'", "after 'n1'"):
        info = handle.info
        assert (info.reason, info.waits_for_approval) == (f"interrupted {gate}", True)
        with pytest.raises(RunPaused, match=r"answer\('.*'\) without a value approves it"):
            handle.result(1)
        with pytest.raises(UsageError, match=r"no open question: it was .*\) without a value approves it"):
            approve[via](True)
        with pytest.raises(UsageError, match=r"can't be retried: .*\) without a value approves it"):
            handle.retry()
        assert [each.result for each in Runs(store).retry(all_runs=True)] == ["skipped"]
        assert (handle.info, graph.recover()) == (info, [])
        approve[via]()
        assert (handle.shown_status, handle.info.waits_for_approval) == ("queued", False)
        with pytest.raises(UsageError, match="no open question: it is queued"):
            approve[via]()
        graph.recover()
    assert handle.result(1) == {"a": 1, "b": 1, "c": 1}


def test_an_approval_by_a_checkpoint_counts_once(store: Any) -> None:
    """H10: a client that sends it twice doesn't approve the next gate."""
    graph = interrupted(store, interrupt_before=["n1", "n2"])
    handle = graph.start({})
    graph.recover()
    first = handle.history()[-1].id
    graph.answer(first)
    graph.recover()
    assert handle.info.reason == "interrupted before 'n2'"
    with pytest.raises(Conflict, match="was interrupted before 'n2' after the checkpoint that is named"):
        graph.answer(first)
    graph.answer(handle.history()[-1].id)
    graph.recover()
    assert handle.status == "completed"


def test_branches_that_were_interrupted_are_approved_together(store: Any) -> None:
    """H10, F3."""
    branches = {name: lambda state: {} for name in ("x", "y")}
    graph = fan(branches, schema={"results": list}).compile(store=store, interrupt_before=["x", "y"])
    handle = graph.start({})
    graph.recover()
    assert handle.info.waits_for_approval
    handle.answer()
    graph.recover()
    assert handle.status == "completed"


def test_a_fork_and_a_run_that_was_rolled_back_are_handed_to_the_workers_by_a_retry(store: Any) -> None:
    """H10, H11: the approval of the run that was forked isn't one of the fork."""
    graph = interrupted(store, interrupt_before=["n2"])
    handle = graph.start({})
    graph.recover()
    forked = handle.fork()
    several = [handle.fork().id for _ in range(2)]
    handle.rollback(1)
    for each in (handle, forked):
        with pytest.raises(UsageError, match=r"no open question: it is paused; retry\('.*'\) hands it"):
            each.answer()
        assert not each.info.waits_for_approval
        each.retry({"late": 1})
        graph.recover()
        assert each.info.waits_for_approval
        each.answer()
        graph.recover()
        assert each.result(1) == {"a": 1, "b": 1, "c": 1, "late": 1}
    assert Runs(store).retry(several).done == 2
    graph.recover()
    assert all(info.waits_for_approval for info in graph.runs("paused"))


def test_an_answer_without_a_value_to_a_run_under_way_is_refused(store: Any) -> None:
    """H10: nothing was answered, so that isn't a success; what failed isn't retried by it either."""
    proceed = threading.Event()

    def slow(state: Any) -> dict[str, Any]:
        assert proceed.wait(30)
        raise ConnectionError("no")

    branches = {"ask": lambda state: {"said": pause("q?")}, "slow": slow}
    graph = fan(branches, schema={"said": str, "results": list}).compile(store=store)
    handle = graph.start({})
    with supervise(store, [graph]):
        until(lambda: handle.questions)
        assert handle.status == "running"
        for nothing in ({}, {"answers": {}}):
            with pytest.raises(RunPaused, match="an answer to ask") as refused:
                handle.answer(**nothing)
            assert [each.prompt for each in refused.value.questions] == ["q?"]
        proceed.set()
        until(lambda: handle.status == "failed")
    with pytest.raises(RunPaused, match="an answer to ask"):
        handle.answer()
    assert handle.status == "failed"
