"""Resuming workflows: from a fresh object over the same store, after a failure, a question, a crash."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import permutations
from time import time
from typing import Any

import pytest

from limpet import (
    AlreadyAnswered,
    AlreadyCompleted,
    AnswerRefused,
    Conflict,
    DamagedRecord,
    ExecutionError,
    MemoryStore,
    NodeContext,
    PauseInfo,
    Retry,
    RunCancelled,
    RunExists,
    RunNotFound,
    RunPaused,
    Runs,
    StateGraph,
    UsageError,
    Workflow,
    WorkflowState,
    once,
    pause,
)
from limpet.journal.encoding.codec import encode
from support.graphs import SOON, Crash, Via

TIMES = ("timestamp", "duration")


class Calls:
    """A function for tasks: it counts its calls by task, and fails where the test says."""

    def __init__(self, *bad: str) -> None:
        self.ran: Counter[str] = Counter()
        self.bad = set(bad)
        self.asking: set[str] = set()
        self.ends: set[str] = set()

    def __call__(self, ctx: NodeContext, **given: Any) -> Any:
        self.ran[ctx.node] += 1
        if ctx.node in self.ends:
            raise Crash
        if ctx.node in self.bad:
            raise ValueError(f"no {ctx.node} today")
        ctx.add_message(ctx.node)
        return (ctx.node, pause(f"{ctx.node}?") if ctx.node in self.asking else None, given)

    def take(self) -> dict[str, int]:
        """The calls since the last look."""
        taken, self.ran = dict(self.ran), Counter()
        return taken


DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}


def flow(
    store: Any,
    run: Callable[..., Any] | Mapping[str, Callable[..., Any]],
    tasks: Mapping[str, Sequence[str]] = DIAMOND,
    **settings: Any,
) -> Workflow:
    """A workflow as a process that has just been started would build it."""
    made = Workflow("made", store=store, **{"preserve": True, **settings})
    for name, needs in tasks.items():
        made.add_task(name, run if callable(run) else run[name], needs)
    return made


def told(state: WorkflowState) -> bytes:
    """All of a state, with types and the order of keys, but for what the clock says."""
    tasks = {
        name: {key: value for key, value in record.items() if key not in TIMES}
        for name, record in state["tasks"].items()
    }
    return encode({**state, "tasks": tasks})


def uncut(tasks: Mapping[str, Sequence[str]] = DIAMOND, given: Any = None) -> bytes:
    return told(flow(MemoryStore(), Calls(), tasks).execute(given))


def stopped(made: Workflow, given: Any = None, **more: Any) -> Exception:
    """Run "r" until it fails or pauses."""
    with pytest.raises((ExecutionError, RunPaused)) as caught:
        made.execute(given, run_id="r", **more)
    return caught.value


def paused(made: Workflow, *value: Any, **more: Any) -> RunPaused:
    """Resume "r" until it pauses."""
    with pytest.raises(RunPaused) as caught:
        made.resume("r", *value, **more)
    return caught.value


# By run id and by checkpoint id


WAYS: dict[str, Callable[[Via, Workflow], WorkflowState]] = {
    "run id": lambda via, made: via.resume(made, "r"),
    "newest": lambda via, made: via.resume(made, made.checkpoint("r").checkpoint_id),
    "older": lambda via, made: via.resume(made, "r@1"),
    "oldest": lambda via, made: from_checkpoint(via, made, "r@0"),
    "checkpoint": lambda via, made: from_checkpoint(via, made, made.checkpoints("r")[-1].id),
    "checkpoint of a run": lambda via, made: from_checkpoint(via, made, "r"),
    "invoke": lambda via, made: via.events(made, None, stream=False, checkpoint="r@1")[-1]["state"],
}


def from_checkpoint(via: Via, made: Workflow, id: str, **more: Any) -> WorkflowState:
    if via.api == "sync":
        return made.resume_from_checkpoint(id, **more)
    return asyncio.run(made.aresume_from_checkpoint(id, **more))


@pytest.mark.parametrize("way", WAYS)
def test_a_fresh_object_resumes_by_any_id_of_the_run(way: str, store: Any, via: Via) -> None:
    """D3, H3: all lead to where the run stands; what is finished stays so, and the end is that of an uncut run."""
    calls = Calls("c")
    stopped(flow(store, calls))
    assert calls.take() == {"a": 1, "b": 1, "c": 1}
    calls.bad.clear()
    final = WAYS[way](via, flow(store, calls))
    assert calls.take() == {"c": 1, "d": 1}
    assert told(final) == uncut()
    assert final.check() is None


def test_inputs_results_and_arguments_come_back_with_their_types(store: Any) -> None:
    """D3, D4: what a task is given after a resume is what it would have been given before."""
    given = {"t": (1, (2.5, b"x")), "when": datetime(2024, 2, 29, tzinfo=UTC), "s": {3, 4}, "n": None}
    seen: list[Any] = []

    def look(a: Any, t: Any, when: Any, s: Any, n: Any, inputs: Any, more: Any) -> None:
        seen.append([a, t, when, s, n, inputs, more])
        if len(seen) == 1:
            raise ValueError

    def made() -> Workflow:
        flow = Workflow("made", store=store).add_task("a", lambda inputs: {1: inputs["t"], "s": inputs["s"]})
        return flow.add_task("look", look, ["a"], arguments={"more": [(), {}, {"k": (True,)}]})

    stopped(made(), given)
    made().resume("r")
    assert encode(seen[0]) == encode(seen[1])
    assert seen[1][5] == given


# Failures, crashes, runs that were left


def test_siblings_that_had_begun_are_kept_and_others_do_not_begin(store: Any, via: Via) -> None:
    """D4, H3, H13: with on_error="stop", only what isn't finished runs again."""
    calls = Calls("2")
    tasks: dict[str, list[str]] = {**{str(n): [] for n in range(5)}, "end": [str(n) for n in range(5)]}
    error = stopped(flow(store, calls, tasks, max_concurrency=1, on_error="stop"))
    assert isinstance(error, ExecutionError)
    assert error.node == "2"
    assert calls.take() == {"0": 1, "1": 1, "2": 1}
    made = flow(store, calls, tasks)
    assert list(made.state_at("r").tasks) == ["0", "1"]
    calls.bad.clear()
    assert told(via.resume(made, "r")) == uncut(tasks)
    assert calls.take() == {"2": 1, "3": 1, "4": 1, "end": 1}


def test_a_task_may_fail_at_each_of_many_resumes(store: Any, via: Via) -> None:
    """D4, H3: nothing else is done again, however often; each resume has all attempts of the retry policy."""
    calls = Calls("b")

    def made() -> Workflow:
        made = Workflow("made", store=store, preserve=True).add_task("a", calls)
        return made.add_task("b", calls, ["a"], retry=Retry(attempts=2, backoff=0)).add_task("c", calls)

    stopped(made())
    for _ in range(3):
        with pytest.raises(ExecutionError):
            via.resume(made(), "r")
    assert calls.take() == {"a": 1, "b": 8, "c": 1}
    calls.bad.clear()
    assert via.resume(made(), "r").tasks["b"].attempts == 1
    assert calls.take() == {"b": 1}


@pytest.mark.parametrize("last", ["a", "b", "c", "d"])
def test_a_crash_in_any_task_costs_nothing_that_was_finished(last: str, store: Any) -> None:
    """D4, H3: the task that it happened in runs again, and what comes after it."""
    calls = Calls()
    calls.ends = {last}
    with pytest.raises(Crash):
        flow(store, calls, max_concurrency=1).execute(run_id="r")
    before = set(calls.take()) - {last}
    calls.ends.clear()
    made = flow(store, calls)
    assert set(made.state_at("r").tasks) == before
    final = made.resume("r")
    assert set(calls.take()) == set(DIAMOND) - before
    assert final.results == flow(MemoryStore(), Calls()).execute().results


def test_a_run_that_is_left_after_any_event_resumes_from_there(via: Via) -> None:
    """D4, H3: what was reported as complete isn't done again; nothing is stored as done that wasn't."""
    whole = via.events(flow(MemoryStore(), Calls()))
    for count in range(1, len(whole)):
        store, calls = MemoryStore(), Calls()
        told_of = left_after(via, flow(store, calls), count)
        done = {event["task"] for event in told_of if event["type"] == "task_complete"}
        made = flow(store, calls)
        assert done <= set(made.state_at("r").tasks)
        assert told(made.resume("r")) == uncut(), count
        assert all(calls.ran[task] == 1 for task in done)


def left_after(via: Via, made: Workflow, count: int) -> list[dict[str, Any]]:
    """The first events of run "r", which is closed then."""

    async def look() -> list[dict[str, Any]]:
        run = made.astream(run_id="r")
        events = [await anext(run) for _ in range(count)]
        await run.aclose()
        return events

    if via.api == "async":
        return asyncio.run(look())
    run = made.stream(run_id="r")
    events = [next(run) for _ in range(count)]
    run.close()
    return events


def test_what_once_has_kept_is_not_paid_for_again(store: Any, via: Via) -> None:
    """H3, P1: in a task that fails, asks and continues, each by another object."""
    paid: list[str] = []
    calls = Calls("a")

    def a(ctx: NodeContext) -> Any:
        price = once("price", lambda: paid.append("price") or (7, b"7"))
        if "a" in calls.bad:
            raise ValueError
        approved = pause(f"{price}?")
        return [price, approved, once("buy", lambda: paid.append("buy") or "bought")]

    stopped(flow(store, a, {"a": []}))
    calls.bad.clear()
    paused(flow(store, a, {"a": []}))
    assert via.resume(flow(store, a, {"a": []}), "r", "yes").results["a"] == [(7, b"7"), "yes", "bought"]
    assert paid == ["price", "buy"]


def test_an_idempotency_key_is_the_same_at_every_resume_and_another_in_a_fork(store: Any) -> None:
    """H3: so that others can tell that they are asked for the same thing again."""
    keys: list[str] = []

    def a(ctx: NodeContext) -> Any:
        keys.append(ctx.idempotency_key)
        return pause("?")

    made = flow(store, {"a": a, "b": a}, {"a": [], "b": []})
    stopped(made)
    paused(made, answers={"a:1.1:1": 1})
    made.resume("r", 1)
    assert len(set(keys)) == 2
    assert len(keys) == 4
    with pytest.raises(RunPaused):
        made.fork("r", 1).result()
    assert len(set(keys)) == 4


# Questions


ASKING = {"x": [], "p": [], "q": [], "r": [], "end": ["x", "p", "q", "r"]}


@pytest.mark.parametrize("order", list(permutations("pqr")))
def test_answers_go_to_the_right_question_in_any_order(order: tuple[str, ...], via: Via) -> None:
    """P3, H3: one at a time, each from a fresh object; a sibling that asks nothing runs once."""
    store, calls = MemoryStore(), Calls()
    calls.asking = set("pqr")
    asked = {each.node: each.id for each in stopped(flow(store, calls, ASKING)).questions}  # type: ignore[attr-defined]  # it paused
    assert list(asked) == ["p", "q", "r"]
    for number, task in enumerate(order, 1):
        made, answers = flow(store, calls, ASKING), {asked[task]: {"for": task}}
        if number < 3:
            with pytest.raises(RunPaused) as caught:
                via.resume(made, "r", answers=answers)
            assert [each.node for each in caught.value.questions] == sorted(set("pqr") - set(order[:number]))
        else:
            final = via.resume(made, "r", answers=answers)
    assert {name: final.results[name][1] for name in "pqr"} == {name: {"for": name} for name in "pqr"}
    assert calls.take() == {"x": 1, "p": 2, "q": 2, "r": 2, "end": 1}
    assert final.messages == ["x", "p", "q", "r", "end"]
    assert [each["by"] for each in final.decisions] == ["p", "q", "r"]


def test_some_of_the_questions_may_be_answered_and_the_rest_later(store: Any, via: Via) -> None:
    """P3: by a checkpoint id too; what was answered stays so."""
    calls = Calls()
    calls.asking = set("pqr")
    stopped(flow(store, calls, ASKING))
    made = flow(store, calls, ASKING)
    with pytest.raises(RunPaused) as caught:
        from_checkpoint(via, made, made.checkpoint("r").checkpoint_id, answers={"p:1.1:1": 1, "r:1.1:1": 3})
    (left,) = caught.value.questions
    assert left.node == "q"
    final = from_checkpoint(via, flow(store, calls, ASKING), "r@1", response=2)
    assert [final.results[name][1] for name in "pqr"] == [1, 2, 3]


def test_answers_that_fit_no_open_question_change_nothing(store: Any, via: Via) -> None:
    """P3: an unknown one, one that has been answered, one value for several questions, half of a pair."""
    calls = Calls()
    calls.asking = set("pqr")
    stopped(flow(store, calls, ASKING))
    made = flow(store, calls, ASKING)
    paused(made, answers={"p:1.1:1": 1})
    calls.take()
    before = made.history("r")
    for wrong in ({"p:1.1:1": 1}, {"q:1.1:1": 2, "p:1.1:1": 1}):
        with pytest.raises(AlreadyAnswered, match=r"answer to question 'p:1\.1:1'"):
            via.resume(made, "r", answers=wrong)
    for wrong in ({"missing": 1}, {"end:1.1:1": 1}):
        with pytest.raises(UsageError, match="no open question"):
            via.resume(made, "r", answers=wrong)
    with pytest.raises(UsageError, match="several questions are open"):
        via.resume(made, "r", "yes")
    with pytest.raises(RunPaused, match=r"q:1\.1:1"):
        via.resume(made, "r")
    assert made.history("r") == before
    assert calls.take() == {}


def test_an_answer_must_be_one_of_the_choices_and_fit_the_schema(store: Any, via: Via) -> None:
    """P1, P3: refused ones leave all questions open, also if another one with it would do."""
    ran: Counter[str] = Counter()

    def p() -> Any:
        ran["p"] += 1
        return pause("which?", choices=["left", 1])

    def q() -> Any:
        ran["q"] += 1
        return pause("how many?", schema={"type": "object", "properties": {"n": {"type": "integer"}}})

    def made() -> Workflow:
        return flow(store, {"p": p, "q": q}, {"p": [], "q": []})

    error = stopped(made())
    assert isinstance(error, RunPaused)
    assert [each.choices for each in error.questions] == [["left", 1], None]
    assert error.questions[1].schema is not None
    for wrong in (
        {"p:1.1:1": "up", "q:1.1:1": {"n": 1}},
        {"p:1.1:1": "left", "q:1.1:1": {"n": "1"}},
        {"p:1.1:1": True},
    ):
        with pytest.raises(AnswerRefused, match="still open"):
            via.resume(made(), "r", answers=wrong)
    assert len(made().runs()[0].questions) == 2
    assert via.resume(made(), "r", {"p:1.1:1": 1, "q:1.1:1": {"n": 2}}).results == {"p": 1, "q": {"n": 2}}
    assert ran == {"p": 2, "q": 2}


def test_a_task_that_asks_again_gets_each_answer_where_it_asked(store: Any, via: Via) -> None:
    """P1: None and False are answers, too."""

    def a() -> Any:
        return [pause("1?"), pause("2?", key="second"), pause("3?")]

    stopped(flow(store, a, {"a": []}))
    assert paused(flow(store, a, {"a": []}), None).questions[0].prompt == "2?"
    assert paused(flow(store, a, {"a": []}), False).questions[0].prompt == "3?"
    final = via.resume(flow(store, a, {"a": []}), "r", response={"a": 1})
    assert final.results["a"] == [None, False, {"a": 1}]
    assert [(each["prompt"], each["answer"]) for each in final.decisions] == [
        ("1?", None), ("2?", False), ("3?", {"a": 1}),
    ]  # fmt: skip


def test_the_handler_after_a_layer_may_ask_before_anything_continues(store: Any, via: Via) -> None:
    """P1, D11: the layer isn't done until it is answered, but its tasks are."""
    calls, handled = Calls(), []

    def made() -> Workflow:
        made = flow(store, calls)

        @made.after_layer
        def handler(layer: int, results: dict[str, Any], ctx: NodeContext) -> None:
            handled.append((layer, list(results)))
            if layer == 1:
                ctx.add_message(pause("go on?"))

        return made

    (question,) = stopped(made()).questions  # type: ignore[attr-defined]  # it paused
    assert question.prompt == "go on?"
    assert calls.take() == {"a": 1, "b": 1, "c": 1}
    point = made().checkpoint("r")
    assert (point.status, point.completed_layers, point.layers) == ("paused", 1, [["a"], ["b", "c"], ["d"]])
    assert point.state.messages == ["a", "b", "c"]
    with pytest.raises(RunPaused):
        via.resume(made(), "r")
    final = via.resume(made(), "r", "yes")
    assert calls.take() == {"d": 1}
    assert final.messages == ["a", "b", "c", "yes", "d"]
    assert [each for each in handled if each[0] == 1] == [(1, ["b", "c"])] * 2
    assert final.decisions[0]["by"] == "after_layer"


@pytest.mark.parametrize("id", ["r", "r@1", "r@2"])
def test_an_approval_that_was_open_when_another_task_failed_is_still_open(
    id: str, store: Any, via: Via
) -> None:
    """D11: resumes of the failed run repair what failed, and never take the approval for given."""
    calls = Calls("bad")
    calls.asking = {"ask"}
    tasks: dict[str, list[str]] = {"ask": [], "ok": [], "bad": [], "pay": ["ask"], "end": ["bad"]}
    assert isinstance(stopped(flow(store, calls, tasks, max_concurrency=1)), ExecutionError)
    assert [each.node for each in flow(store, calls, tasks).runs("failed")[0].questions] == ["ask"]
    with pytest.raises(ExecutionError):
        via.resume(flow(store, calls, tasks), id)
    calls.bad.clear()
    with pytest.raises(RunPaused) as caught:
        via.resume(flow(store, calls, tasks), id)
    assert [each.node for each in caught.value.questions] == ["ask"]
    assert calls.take() == {"ask": 1, "ok": 1, "bad": 3, "end": 1}
    assert via.resume(flow(store, calls, tasks), id, "yes").results["pay"][0] == "pay"
    assert calls.take() == {"ask": 1, "pay": 1}


def test_an_answer_to_a_failed_run_is_kept_when_it_fails_again(store: Any) -> None:
    """P3, D11: the task that asked completes, and isn't asked again."""
    calls = Calls("bad")
    calls.asking = {"ask"}
    tasks: dict[str, list[str]] = {"ask": [], "bad": [], "end": ["ask", "bad"]}
    stopped(flow(store, calls, tasks, max_concurrency=1))
    with pytest.raises(ExecutionError):
        flow(store, calls, tasks, max_concurrency=1).resume("r", "yes")
    calls.take()
    calls.bad.clear()
    final = flow(store, calls, tasks).resume("r")
    assert final.results["ask"] == ("ask", "yes", {})
    assert calls.take() == {"bad": 1, "end": 1}


# Cancelling


def test_a_cancelled_run_can_be_resumed_and_asks_again(store: Any, via: Via) -> None:
    """D11, P1: resuming is the newer wish, but no answer."""
    calls = Calls()
    calls.asking = {"b"}
    stopped(flow(store, calls))
    flow(store, calls).cancel("r")
    (info,) = flow(store, calls).runs("cancelled")
    assert info.questions == []
    with pytest.raises(RunCancelled, match="takes no answer"):
        via.resume(flow(store, calls), "r", 1)
    with pytest.raises(RunPaused):
        via.resume(flow(store, calls), "r")
    assert via.resume(flow(store, calls), "r", 1).results["d"][0] == "d"
    assert calls.take() == {"a": 1, "b": 2, "c": 1, "d": 1}
    with pytest.raises(UsageError, match="has already ended"):
        flow(store, calls).cancel("r")


def test_a_run_cancelled_between_tasks_resumes_with_the_next_one(store: Any) -> None:
    """D4, H3: by its handle, in the middle of a layer."""
    calls = Calls()
    run = flow(store, calls, max_concurrency=1).stream(run_id="r")
    for event in run:
        if event["type"] == "task_complete" and event["task"] == "b":
            run.cancel()
    assert run.status == "cancelled"
    assert isinstance(run.error, RunCancelled)
    assert calls.take() == {"a": 1, "b": 1}
    assert told(flow(store, calls).resume("r")) == uncut()
    assert calls.take() == {"c": 1, "d": 1}


# Forks and rollbacks


STEPS_DONE = {0: "", 1: "", 2: "a", 3: "a", 4: "ab", 5: "abc", 6: "abc", 7: "abcd", 8: "abcd"}
"""What is finished after each step of the diamond, one task at a time."""


@pytest.mark.parametrize("step", STEPS_DONE)
def test_a_fork_at_any_step_runs_what_was_not_finished_there(step: int, store: Any) -> None:
    """D3, H3: at a layer and inside of one; the old run is left as it is."""
    calls = Calls()
    flow(store, calls, max_concurrency=1).execute({"k": 1}, run_id="r")
    calls.take()
    made = flow(store, calls)
    before = made.history("r")
    run = made.fork("r", step, new_run_id="f")
    assert set(made.state_at("f").tasks) == set(STEPS_DONE[step])
    assert told(run.result()) == uncut(given={"k": 1})
    assert set(calls.take()) == set(DIAMOND) - set(STEPS_DONE[step])
    assert made.history("r") == before
    assert made.runs()[0].forked_from == f"r@{step}"
    with pytest.raises(RunExists):
        made.fork("r", step, new_run_id="f")


@pytest.mark.parametrize("step", STEPS_DONE)
def test_a_rollback_to_any_step_does_again_what_came_after(step: int, store: Any) -> None:
    """D3: and nothing else; messages aren't there twice."""
    calls = Calls()
    flow(store, calls, max_concurrency=1).execute(run_id="r")
    calls.take()
    back = flow(store, calls).rollback("r", step)
    assert isinstance(back, WorkflowState)
    assert sorted(back.tasks) == sorted(back.messages) == list(STEPS_DONE[step])
    assert told(flow(store, calls).resume("r")) == uncut()
    assert set(calls.take()) == set(DIAMOND) - set(STEPS_DONE[step])


def test_a_fork_of_a_paused_run_asks_for_itself(store: Any) -> None:
    """D11, P3: an approval counts for the run in which it was asked for; what siblings finished is kept."""
    calls = Calls()
    calls.asking = {"b"}
    stopped(flow(store, calls))
    made = flow(store, calls)
    with pytest.raises(RunPaused) as caught:
        made.fork("r", new_run_id="f").result()
    assert caught.value.run_id == "f"
    assert made.resume("f", "fork").results["b"][1] == "fork"
    assert [each.prompt for each in made.runs("paused")[0].questions] == ["b?"]
    assert made.resume("r", "run").results["b"][1] == "run"
    assert calls.take() == {"a": 1, "b": 4, "c": 1, "d": 2}


def test_a_fork_does_not_inherit_an_answer_it_has_not_heard(store: Any) -> None:
    """D11: a rollback to before the answer doesn't, either."""
    calls = Calls()
    calls.asking = {"b"}
    stopped(flow(store, calls, max_concurrency=1))
    made = flow(store, calls, max_concurrency=1)
    made.resume("r", "yes")
    for proceed in (lambda: made.fork("r", 3).result(), lambda: made.rollback("r", 3) and made.resume("r")):
        with pytest.raises(RunPaused):
            proceed()


def test_an_update_of_a_fork_is_seen_by_the_tasks_that_run_in_it(store: Any) -> None:
    """D3: inside of a layer too, and once."""
    seen: list[Any] = []
    calls = Calls()

    def look(context: dict[str, Any], state: WorkflowState) -> None:
        seen.append((context, state.messages))

    tasks: dict[str, list[str]] = {"a": [], "b": [], "c": ["a", "b"]}
    runs = {"a": calls, "b": look, "c": look}
    flow(store, runs, tasks, max_concurrency=1).execute(run_id="r")
    seen.clear()
    update = {"context": {"k": (1,)}, "messages": ["u"], "decisions": ["so be it"]}
    final = flow(store, runs, tasks).fork("r", 2, update).result()
    assert seen == [({"k": (1,)}, ["u"]), ({"k": (1,)}, ["u", "a"])]
    assert (final["messages"], final["context"]) == (["u", "a"], {"k": (1,)})
    assert final["decisions"] == [{"decision": "so be it", "kind": "decision", "by": "outside"}]
    with pytest.raises(UsageError, match="'tasks'"):
        flow(store, runs, tasks).fork("r", 2, {"tasks": {}})


def test_a_fork_knows_how_it_is_executed(store: Any) -> None:
    """P2, D3: a checkpoint of it has the execution config, as every other one."""
    made = flow(store, Calls(), keep=3)
    made.execute(config={"k": 1}, run_id="r")
    made.fork("r", 3, new_run_id="f")
    assert made.checkpoint("f").config == {"k": 1}
    assert made.checkpoint("f").settings == made.checkpoint("r").settings


# Looking at runs


def test_the_history_has_each_task_and_each_layer(store: Any) -> None:
    """D3, D4: with the state that there was after each; ids that events told can be looked up."""
    made = flow(store, Calls(), max_concurrency=1)
    events = list(made.stream(run_id="r"))
    history = flow(store, Calls()).history("r")
    assert [(each.step, each.node) for each in history] == [
        (0, None), (1, "after_layer"), (2, "a"), (3, "after_layer"), (4, "b"), (5, "c"), (6, "after_layer"), (7, "d"),
        (8, "after_layer"),
    ]  # fmt: skip
    assert {step: "".join(made.state_at("r", step).tasks) for step in STEPS_DONE} == STEPS_DONE
    saved = [event["checkpoint_id"] for event in events if event["type"] == "checkpoint_saved"]
    assert saved == [each.id for each in made.checkpoints("r")] == ["r@3", "r@6", "r@8"]
    assert [made.checkpoint(id).completed_layers for id in saved] == [1, 2, 3]
    assert len({each.id for each in history}) == len(history)


@pytest.mark.parametrize(("keep", "kept"), [(1, 1), (2, 2), (5, 5), (None, 8)])
def test_the_newest_checkpoints_are_kept_and_the_run_can_be_resumed(
    keep: int | None, kept: int, store: Any
) -> None:
    """D5: also by the id of one that is no longer listed."""
    calls = Calls("t8")
    tasks = {f"t{n}": [f"t{n - 1}"] if n else [] for n in range(10)}
    stopped(flow(store, calls, tasks, keep=keep))
    made = flow(store, calls, tasks, keep=keep)
    listed = made.checkpoints("r")
    assert [each.id for each in listed] == [f"r@{2 * n + 1}" for n in range(9 - kept, 9)]
    assert all(made.checkpoint(each.id).checkpoint_id == each.id for each in listed)
    calls.bad.clear()
    assert told(made.resume("r@3")) == uncut(tasks)
    assert set(calls.ran.values()) == {1, 2}


def test_a_checkpoint_knows_all_that_a_run_needs(store: Any) -> None:
    """P2, D3: id, workflow, inputs, layers and those completed, state, DAG, config, settings, time, questions."""
    calls = Calls()
    calls.asking = {"c"}
    stopped(flow(store, calls, keep=7), {"n": (1,)}, config={"model": "m"})
    point = flow(store, Calls()).checkpoint("r")
    assert (point.checkpoint_id, point.run_id, point.workflow, point.status) == ("r@4", "r", "made", "paused")
    assert (point.inputs, point.config) == ({"n": (1,)}, {"model": "m"})
    assert (point.layers, point.completed_layers) == ([["a"], ["b", "c"], ["d"]], 1)
    assert list(point.dag) == list("abcd")
    assert point.dag["d"] == {"depends_on": ["b", "c"]}
    assert point.settings["keep"] == 7
    assert max(record.timestamp for record in point.state.tasks.values()) <= point.created <= time()
    assert point.state.checkpoint_id == "r@4"
    assert set(point.state.results) == {"a", "b"}
    assert point.pauses == [PauseInfo("c", "c:1.1:1", "c?")]
    assert flow(store, Calls()).checkpoint("r@4") == point


def test_a_checkpoint_shows_questions_with_the_responses(store: Any) -> None:
    """P2, P3: whose was answered, and what is still open; an older one says what was open then."""
    calls = Calls()
    calls.asking = set("pqr")
    stopped(flow(store, calls, ASKING))
    paused(flow(store, calls, ASKING), answers={"q:1.1:1": None})
    made = flow(store, calls, ASKING)
    assert [(each.task, each.answered, each.response) for each in made.checkpoint("r").pauses] == [
        ("q", True, None), ("p", False, None), ("r", False, None),
    ]  # fmt: skip
    made.resume("r", {"p:1.1:1": (1,), "r:1.1:1": "x"})
    pauses = {each.task: each for each in made.checkpoint("r").pauses}
    assert {task: each.response for task, each in pauses.items()} == {"p": (1,), "q": None, "r": "x"}
    assert all(each.answered and each.question_id == f"{each.task}:1.1:1" for each in pauses.values())


def test_a_checkpoint_shows_the_answer_of_a_task_that_asks_on(store: Any) -> None:
    """P2: the first response is stored, and readable while the second question is open."""

    def made() -> Workflow:
        return flow(store, lambda: [pause("1?"), pause("2?")], {"a": []})

    stopped(made())
    paused(made(), "one")
    assert [(each.prompt, each.answered, each.response) for each in made().checkpoint("r").pauses] == [
        ("1?", True, "one"), ("2?", False, None),
    ]  # fmt: skip


def test_a_question_of_the_handler_has_one_name_before_and_after_the_answer(store: Any) -> None:
    """P2: a reader of the pauses can tell that they are the same."""
    made = flow(store, Calls(), {"a": []})
    made.after_layer(lambda: pause("go?") and None)
    stopped(made)
    (before,) = made.checkpoint("r").pauses
    made.resume("r", True)
    (after,) = made.checkpoint("r").pauses
    assert after.question_id == before.question_id
    assert after.task == before.task


def test_the_list_of_runs_shows_what_each_needs(store: Any) -> None:
    """P1: where a failed one failed and why, what a paused one asks, tags, and of this workflow alone."""
    calls = Calls()
    made = flow(store, calls)
    made.execute(run_id="done", tags=["x"])
    calls.asking = {"b"}
    with pytest.raises(RunPaused):
        made.execute(run_id="asks")
    calls.bad = {"d"}
    calls.asking.clear()
    with pytest.raises(ExecutionError):
        made.execute(run_id="fails")
    Workflow("other", store=store, preserve=True).add_task("a", calls).execute(run_id="other")
    found = {info.run_id: info for info in flow(store, Calls()).runs()}
    assert {run_id: info.status for run_id, info in found.items()} == {
        "done": "completed", "asks": "paused", "fails": "failed",
    }  # fmt: skip
    assert (found["asks"].node, [each.prompt for each in found["asks"].questions]) == ("b", ["b?"])
    assert found["fails"].node == "d"
    assert found["fails"].error is not None
    assert "no d today" in found["fails"].error["message"]
    assert found["done"].tags == ("x",)
    assert {info.holder for info in found.values()} == {None}
    assert [info.run_id for info in Runs(store).list(limit=1)] == ["other"]


# Ids and records that are no good


LOOKS: dict[str, Callable[[Workflow, Any], Any]] = {
    "resume": lambda made, id: made.resume(id),
    "aresume": lambda made, id: asyncio.run(made.aresume(id)),
    "resume_from_checkpoint": lambda made, id: made.resume_from_checkpoint(id),
    "aresume_from_checkpoint": lambda made, id: asyncio.run(made.aresume_from_checkpoint(id)),
    "checkpoint": lambda made, id: made.checkpoint(id),
    "plan_resume": lambda made, id: made.plan_resume(id),
}


@pytest.mark.parametrize("look", LOOKS)
def test_an_unknown_id_is_an_error_that_names_it(look: str, store: Any) -> None:
    """D7: a run that doesn't exist, and what isn't a checkpoint of one that does."""
    calls = Calls("b")
    stopped(flow(store, calls))
    calls.take()
    made = flow(store, calls)
    for id in ("missing", "missing@1", "", "@", "@1", "r@", "r@x", "r@-1", "r@1.0", "r@1@1", " r", "r@ 1"):
        with pytest.raises(RunNotFound) as caught:
            LOOKS[look](made, id)
        assert caught.value.run_id in (id, id.rpartition("@")[0])
    assert calls.take() == {}
    assert made.runs()[0].status == "failed"


@pytest.mark.parametrize("look", ["resume", "aresume", "resume_from_checkpoint", "checkpoint"])
def test_a_step_that_the_run_has_not_come_to_is_an_error(look: str, store: Any) -> None:
    """D7: and leaves the run free."""
    calls = Calls("b")
    stopped(flow(store, calls))
    made = flow(store, calls)
    for id in ("r@99", "r@9999999999999999999999"):
        with pytest.raises(UsageError, match="99"):
            LOOKS[look](made, id)
    assert made.runs()[0].holder is None


def test_a_plan_from_a_step_that_the_run_has_not_come_to_is_an_error(store: Any) -> None:
    """D7: as the resume that it speaks of would be."""
    stopped(flow(store, Calls("b")))
    with pytest.raises(UsageError):
        flow(store, Calls()).plan_resume("r@99")


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("id", ["r@²", "r@" + "9" * 5000], ids=["superscript", "long"])
def test_an_id_with_odd_digits_is_refused_like_any_other(id: str, look: str) -> None:
    """D7: it is an error of the library's own."""
    store = MemoryStore()
    stopped(flow(store, Calls("b")))
    with pytest.raises((RunNotFound, UsageError)):
        LOOKS[look](flow(store, Calls()), id)


@pytest.mark.parametrize("id", [None, 5, b"r", ["r"]])
@pytest.mark.parametrize("look", list(LOOKS))
def test_an_id_that_isnt_a_str_is_refused(look: str, id: Any) -> None:
    """D7: with an error of the library's own."""
    with pytest.raises(UsageError):
        LOOKS[look](flow(MemoryStore(), Calls()), id)


def test_run_ids_may_look_like_checkpoints(store: Any) -> None:
    """D3: an '@' in a run's id doesn't keep its checkpoints from being found."""
    calls = Calls("b")
    for run_id in ("x@y", "x@7", "@", "x@y@z"):
        with pytest.raises(ExecutionError):
            flow(store, calls).execute(run_id=run_id)
        made = flow(store, calls)
        assert made.checkpoint(made.checkpoint(run_id).checkpoint_id).run_id == run_id
    calls.bad.clear()
    for run_id in ("x@y", "x@7", "@", "x@y@z"):
        assert flow(store, calls).resume(f"{run_id}@1").run_id == run_id


def test_a_checkpoint_id_leads_to_its_own_run(store: Any) -> None:
    """D3: or it is said that it could be another's."""
    for run_id in ("r@3", "r"):
        with pytest.raises(ExecutionError):
            flow(store, Calls("b")).execute(run_id=run_id)
    made = flow(store, Calls())
    (listed,) = made.checkpoints("r")
    with pytest.raises(UsageError, match="'r@3' is a run"):
        made.checkpoint(listed.id)
    assert made.checkpoint("r@2").run_id == "r"


def test_a_damaged_record_is_named_and_nothing_runs() -> None:
    """D7: whichever it is, and whichever process reads it."""
    store, calls = MemoryStore(), Calls("d")
    stopped(flow(store, calls))
    calls.take()
    records = store._runs["r"].records  # type: ignore[index]  # it is open
    for number, whole in enumerate(list(records), 1):
        records[number - 1] = whole[:-1] + bytes([whole[-1] ^ 1])
        for look in LOOKS.values():
            with pytest.raises(DamagedRecord, match=f"record {number} of run 'r'") as caught:
                look(flow(store, calls), "r")
            assert (caught.value.run_id, caught.value.sequence) == ("r", number)
        records[number - 1] = whole
    assert calls.take() == {}
    calls.bad.clear()
    assert told(flow(store, calls).resume("r")) == uncut()


def test_a_run_that_completed_is_not_resumed(store: Any, via: Via) -> None:
    """D7: kept or not."""
    for kept in (True, False):
        made = flow(store, Calls(), preserve=False, keep_result=kept)
        final = made.execute()
        assert (final.checkpoint_id is not None) is kept
        for id in (final.run_id, f"{final.run_id}@3"):
            with pytest.raises(AlreadyCompleted):
                from_checkpoint(via, made, id)


def test_a_run_of_another_graph_is_not_resumed(store: Any) -> None:
    """D7: of another workflow, or of a graph that isn't a workflow."""
    with pytest.raises(ExecutionError):
        Workflow("other", store=store).add_task("a", Calls("a")).execute(run_id="r")
    graph = StateGraph(name="graph").add_node("n", run=lambda state: {"x": pause("?")})
    with pytest.raises(RunPaused):
        graph.set_entry_point("n").set_finish_point("n").compile(store=store).execute({}, run_id="g")
    for run_id in ("r", "g"):
        with pytest.raises(UsageError, match="belongs to graph"):
            flow(store, Calls()).resume(run_id)


@pytest.mark.parametrize("look", ["checkpoint", "plan_resume"])
def test_a_run_of_another_kind_of_graph_is_not_looked_at_as_a_workflow(look: str, store: Any) -> None:
    """D7: an error of the library's own says whose run it is."""
    graph = StateGraph(name="graph").add_node("n", run=lambda state: {"x": pause("?")})
    with pytest.raises(RunPaused):
        graph.set_entry_point("n").set_finish_point("n").compile(store=store).execute({}, run_id="g")
    with pytest.raises(UsageError):
        LOOKS[look](flow(store, Calls()), "g")


@pytest.mark.parametrize("look", LOOKS)
def test_without_a_store_there_is_nothing_to_resume(look: str) -> None:
    """D7: and the error says what to give."""
    with pytest.raises(UsageError, match="store"):
        LOOKS[look](flow(None, Calls(), preserve=False), "r")


# What a resume brings along


def test_the_config_of_a_resume_is_merged_over_the_saved_one(store: Any, via: Via) -> None:
    """D3: and is saved with the run in turn."""
    seen: list[Any] = []

    def look(config: dict[str, Any]) -> Any:
        seen.append(config)
        return pause(f"{len(seen)}?")

    tasks: dict[str, list[str]] = {"a": [], "b": ["a"]}
    with pytest.raises(RunPaused):
        via.execute(flow(store, look, tasks), None, config={"model": "m", "n": (1,)}, run_id="r")
    with pytest.raises(RunPaused):
        via.resume(flow(store, look, tasks), "r", 1, config={"n": (2,), "more": None})
    via.resume(flow(store, look, tasks), "r", 2)
    first, merged = {"model": "m", "n": (1,)}, {"model": "m", "n": (2,), "more": None}
    assert seen == [first, merged, merged, merged]
    assert flow(store, look, tasks).checkpoint("r").config == merged
    assert flow(store, look, tasks).checkpoint("r@0").config == first


def test_an_update_adds_to_messages_decisions_and_context(store: Any, via: Via) -> None:
    """D11: the next layer sees it; it is stored at once, also when the run pauses again."""
    seen: list[Any] = []
    calls = Calls()
    calls.asking = {"b"}

    def look(context: dict[str, Any], state: WorkflowState) -> None:
        seen.append((context, state.messages))

    made = flow(store, {"a": calls, "b": calls, "c": look}, {"a": [], "b": ["a"], "c": ["b"]})
    stopped(made)
    update = {"messages": [("m",)], "context": {"k": b"v"}, "decisions": ["x", {"y": 1}]}
    final = via.resume(made, "r", 1, update=update)
    assert seen == [({"k": b"v"}, ["a", ("m",), "b"])]
    assert final.decisions[:2] == [
        {"decision": "x", "kind": "decision", "by": "outside"}, {"y": 1, "kind": "decision", "by": "outside"},
    ]  # fmt: skip
    assert made.state_at("r") == final


@pytest.mark.parametrize(
    "update",
    [{"tasks": {}}, {"dag": {}}, {"inputs": {}}, {"new": 1}, {"messages": "m"}, {"messages": {"m": 1}},
     {"context": [1]}, {"context": {1: 2}}, {"decisions": [1]}, {"decisions": "d"}, {"messages": [1], "tasks": {}}],
    ids=str,
)  # fmt: skip
def test_an_update_of_anything_else_is_refused_and_changes_nothing(update: Any) -> None:
    """D11: neither the state nor the question that was to be answered with it."""
    store, calls = MemoryStore(), Calls()
    calls.asking = {"b"}
    stopped(flow(store, calls))
    before = flow(store, calls).history("r")
    with pytest.raises(UsageError):
        flow(store, calls).resume("r", 1, update=update)
    assert flow(store, calls).history("r") == before
    assert [each.prompt for each in flow(store, calls).runs("paused")[0].questions] == ["b?"]


@pytest.mark.parametrize("asks", ["a task", "the handler"])
def test_an_update_of_the_context_is_newer_than_what_finished_tasks_have_said(asks: str, store: Any) -> None:
    """D11: who answers has seen the context as `state_at` shows it, and changes that."""
    made = Workflow("made", store=store).add_task("a", lambda ctx: ctx.add_context(limit=10))
    if asks == "a task":
        made.add_task("b", lambda: pause("?"))
    else:
        made.after_layer(lambda: pause("?") and None)
    stopped(made)
    assert made.state_at("r").context == {"limit": 10}
    assert made.resume("r", True, update={"context": {"limit": 99}}).context == {"limit": 99}


def test_an_update_adds_messages_before_those_of_the_layer_that_is_open(store: Any) -> None:
    """D11: what a layer says counts when it is done, whichever task of it was done before."""
    calls = Calls()
    calls.asking = {"b"}
    made = flow(store, calls, {"a": [], "b": []})
    stopped(made)
    assert made.state_at("r").messages == ["a"]
    assert made.resume("r", 1, update={"messages": ["u"]}).messages == ["u", "a", "b"]


def test_an_answer_is_given_once(store: Any) -> None:
    """P1: as a value or as a response."""
    calls = Calls()
    calls.asking = {"a"}
    stopped(flow(store, calls))
    with pytest.raises(UsageError, match="once"):
        flow(store, calls).resume("r", 1, response=2)
    assert flow(store, calls).resume("r", response=None).results["a"] == ("a", None, {})


# Two at once


def test_of_two_callers_that_resume_one_succeeds_and_the_other_is_refused(store: Any) -> None:
    """H3, D3: nothing runs twice, and the other one can resume when the run has stopped."""
    calls, begun, go = Calls(), threading.Event(), threading.Event()
    calls.asking = {"a", "c"}

    def b(ctx: NodeContext) -> Any:
        begun.set()
        assert go.wait(SOON)
        return calls(ctx)

    def made() -> Workflow:
        return flow(store, {"a": calls, "b": b, "c": calls}, {"a": [], "b": ["a"], "c": ["b"]})

    stopped(made())
    first = threading.Thread(target=lambda: paused(made(), 1))
    first.start()
    assert begun.wait(SOON)
    for id in ("r", "r@1"):
        with pytest.raises(Conflict, match="held by") as caught:
            made().resume(id, 2)
        assert caught.value.run_id == "r"
    with pytest.raises(Conflict):
        made().rollback("r", 0)
    assert made().plan_resume("r").layers == [["b"], ["c"]]
    go.set()
    first.join(SOON)
    final = made().resume("r", 3)
    assert (final.results["a"][1], final.results["c"][1]) == (1, 3)
    assert calls.take() == {"a": 2, "b": 1, "c": 2}


def test_many_who_answer_at_once_are_heard_once() -> None:
    """P3, H3: one answer counts, and is what the task gets; all others are refused."""
    store, calls = MemoryStore(), Calls()
    calls.asking = {"a"}
    stopped(flow(store, calls))
    barrier, got, lost = threading.Barrier(6), [], []

    def answer(value: int) -> None:
        made = flow(store, calls)
        barrier.wait(SOON)
        try:
            got.append((value, made.resume("r", value)))
        except (Conflict, AlreadyCompleted, UsageError) as error:
            lost.append(error)

    threads = [threading.Thread(target=answer, args=(value,)) for value in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    ((value, final),) = got
    assert len(lost) == 5
    assert final.results["a"][1] == value
    assert calls.take() == {"a": 2, "b": 1, "c": 1, "d": 1}
