"""What people ran into who changed a workflow under a run, or fanned out into tasks that may fail."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from time import sleep, time
from typing import Any

import pytest

import limpet
from limpet import (
    DefinitionError,
    ExecutionError,
    MemoryStore,
    NodeContext,
    Retry,
    RunPaused,
    Runs,
    UsageError,
    Workflow,
    WorkflowChanged,
    once,
    pause,
)
from limpet.engine.operations.stored_state import progress_of
from support.waiting import until


def paged(store: Any, page: Any, merge: str = "merge", plan: str = "plan", **settings: Any) -> Workflow:
    """A task that adds pages before a merge, and one that asks in parallel to the merge."""
    flow = Workflow("paged", store=store, preserve=True, **settings)

    def add(ctx: NodeContext) -> int:
        for number in range(2):
            ctx.add_task(f"p{number}", run="page", arguments={"n": number}, before=[merge])
        return 2

    flow.add_task(plan, add)
    flow.add_template("page", page)
    flow.add_task("ask", lambda: pause("go on?"), [plan])
    flow.add_task(merge, lambda results: sorted(results), ["ask"])
    return flow


def stopped(flow: Workflow) -> RunPaused:
    with pytest.raises(RunPaused) as caught:
        flow.execute({}, run_id="r")
    return caught.value


def test_a_finished_task_needs_no_code_that_takes_its_arguments() -> None:
    """D7: a template's parameter was renamed, and its tasks are done."""
    store = MemoryStore()
    stopped(paged(store, lambda n: n))
    now = paged(store, lambda number: number)
    assert {"p0", "p1"} <= set(now.plan_resume("r").kept)
    assert now.resume("r", 1).results["merge"] == ["ask", "p0", "p1"]


def test_an_unfinished_task_whose_code_takes_something_else_is_gone() -> None:
    """D7: the plan says so before anything runs."""
    store = MemoryStore()

    def broken(n: int) -> int:
        raise ValueError(n)

    with pytest.raises(ExecutionError):
        paged(store, broken).execute({}, run_id="r")
    now = paged(store, lambda number: number)
    assert set(now.plan_resume("r").gone) == {"p0", "p1"}
    with pytest.raises(WorkflowChanged, match="'p0', 'p1'"):
        now.resume("r")


def test_a_plan_lists_results_that_no_task_takes_any_more() -> None:
    """D7: those of tasks that were put before one that is gone."""
    store = MemoryStore()
    stopped(paged(store, lambda n: n))
    now = paged(store, lambda n: n, merge="join", on_mismatch="warn")
    plan = now.plan_resume("r")
    assert plan.notes == ["'p0', 'p1' came before 'merge', which is gone: no task takes their results"]
    assert "no task takes their results" in str(plan)


def test_a_task_that_is_there_already_may_be_added_again_as_it_is() -> None:
    """D3, D7: so that a run resumes when the task that added it has another name now."""
    store = MemoryStore()
    stopped(paged(store, lambda n: n))
    now = paged(store, lambda n: n, plan="replan", on_mismatch="warn")
    with pytest.raises(RunPaused):
        now.resume("r")
    assert now.resume("r", 1).results["merge"] == ["ask", "p0", "p1"]
    assert [each["kind"] for each in now.state_at("r").decisions].count("refused") == 0


def test_an_answer_to_a_question_that_is_gone_gets_the_reason() -> None:
    """D7, D11: and how to resume."""
    store = MemoryStore()
    question = stopped(paged(store, lambda n: n)).questions[0]
    now = paged(store, lambda n: n, plan="replan", on_mismatch="warn")
    assert any(question.id in note for note in now.plan_resume("r").notes)
    with pytest.raises(
        UsageError, match=r"no longer exists, as the task that asked it has changed; .* call resume\('r'\)"
    ):
        now.resume("r", "yes")


def test_a_new_task_that_asks_for_an_input_that_the_run_has_not_is_found_before_anything_runs() -> None:
    """D7: with what to do about it."""
    store, calls = MemoryStore(), []

    def made(*more: Any, **settings: Any) -> Workflow:
        flow = Workflow("grows", store=store, **settings).add_task("a", lambda: pause("?"))
        for task in more:
            flow.add_task(task)
        return flow

    def b(city: str) -> str:
        calls.append(city)
        return city

    stopped(made())
    with pytest.raises(UsageError, match=r"'city'.*give the parameter a default"):
        made(b, on_mismatch="warn").resume("r", 1)
    assert not calls


@pytest.mark.parametrize(
    ("given", "told"),
    [({"answers": [3]}, "answers are a dict"), ({"value": 3, "answers": True}, "answered twice")],
)
def test_answers_that_cannot_be_are_refused(given: dict[str, Any], told: str) -> None:
    """P1: the run stays as it is."""
    flow = Workflow("asks", store=MemoryStore()).add_task("a", lambda: pause("?"))
    (question,) = stopped(flow).questions
    if given["answers"] is True:
        given = {**given, "answers": {question.id: 4}}
    with pytest.raises(UsageError, match=told):
        flow.resume("r", **given)
    assert flow.resume("r", 5).results == {"a": 5}


@pytest.mark.parametrize(
    ("parameter", "told"),
    [
        ("fetsh", "did you mean 'fetsch'"),
        ("xyz", "available parameters: fetsch, ctx"),
    ],
)
def test_a_parameter_without_a_source_gets_a_suggestion(parameter: str, told: str) -> None:
    """D1: the most common mistakes."""
    flow = Workflow("f").add_task("fetch", lambda: 1)
    flow.add_task("clean", eval(f"lambda {parameter}: 1"))
    with pytest.raises(UsageError, match=told):
        flow.execute({"fetsch": 1})


def test_what_tasks_that_may_fail_come_before_runs_all_the_same() -> None:
    """D1, D3: a fan-out of which some fail."""

    def page(n: int) -> int:
        return 10 // n

    flow = Workflow("pages", store=MemoryStore())

    def add(ctx: NodeContext) -> None:
        for number in range(3):
            given = {"n": number}
            ctx.add_task(f"p{number}", "page", arguments=given, before=["merge"], may_fail=True)

    flow.add_task("plan", add).add_template("page", page, safe_to_fail=True)
    flow.add_task("merge", lambda results: results, ["plan"])
    state = flow.execute({})
    assert state.results["merge"] == {"plan": None, "p0": None, "p1": 10, "p2": 5}
    assert state.tasks["p0"].status == "failed"


def test_a_dependency_may_be_given_by_its_function_whatever_it_is_called() -> None:
    """D1: in lists and dicts."""
    flow = Workflow("f")

    @flow.task(name="first")
    def one() -> int:
        return 1

    flow.add_task("second", lambda x, first: x + first, {"x": one}).add_task(
        "third", lambda first: first, [one]
    )
    assert flow.execute({}).results == {"first": 1, "second": 2, "third": 1}


def test_the_order_of_dependencies_isnt_a_change() -> None:
    """D7: what counts is which they are."""
    store = MemoryStore()

    def made(*needs: str) -> Workflow:
        flow = Workflow("f", store=store).add_task("a", lambda: 1).add_task("b", lambda: 2)
        return flow.add_task("c", lambda **results: pause("?"), needs)

    stopped(made("a", "b"))
    assert made("b", "a").resume("r", 3).results["c"] == 3


def test_a_plan_of_a_run_that_is_complete_says_so() -> None:
    """D7, G8: also when its journal went with that."""
    flow = Workflow("f", store=MemoryStore()).add_task("a", lambda: 1)
    flow.execute({}, run_id="r")
    assert flow.plan_resume("r").status == "completed"


def test_a_setting_that_there_is_not_is_refused() -> None:
    """D1: with the one that was meant."""
    with pytest.raises(DefinitionError, match="'stroe'; did you mean 'store'"):
        Workflow("f", stroe="memory")  # type: ignore[call-arg]  # it isn't one


TYPED = """
from limpet import NodeContext, StateGraph, Workflow, WorkflowState, once

flow = Workflow("typed", store="memory")

@flow.task
def a(ctx: NodeContext) -> int:
    return once("k", len, "abc")

@flow.task(depends_on=["a"], retry=3)
def b(a: int, state: WorkflowState) -> str:
    return str(a)

@flow.template(safe_to_fail=True)
def c(n: int) -> int:
    return n

@flow.after_layer
def after(layer: int, ctx: NodeContext) -> None: ...

text: str = b(1, WorkflowState())
print(flow.stream({}).result().results, flow.fork("r").result().tasks, flow.resume("r").context)
print(StateGraph().invoke({}).state.run_id)
"""


def test_types_reach_those_who_define_and_run_workflows(tmp_path: Path) -> None:
    """H7: decorated functions keep theirs, and the result of a workflow's run is its state."""
    pytest.importorskip("mypy")
    (tmp_path / "typed.py").write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "typed.py"]
    found = os.environ | {"MYPYPATH": str(Path(limpet.__file__).parents[1])}
    checked = subprocess.run(command, cwd=tmp_path, env=found, capture_output=True, text=True, timeout=100)
    assert "Success" in checked.stdout, checked.stdout


# What a reviewer found


class Slow(MemoryStore):
    """A store whose second save waits until those who meet at `both` are there."""

    def __init__(self, both: threading.Barrier) -> None:
        super().__init__()
        self.both, self.saves = both, 0

    def append(self, commits: Any) -> Any:
        self.saves += 1
        if self.saves == 2:
            self.both.wait(30)
            sleep(0.05)  # what they come to is heard of together
        return super().append(commits)


def test_a_finished_task_is_saved_while_another_waits_for_its_next_attempt() -> None:
    """D4, H3: also when both were heard of together, and nothing else runs."""
    both = threading.Barrier(3)
    flow = Workflow("f", store=Slow(both))

    def done() -> int:
        both.wait(30)
        return 1

    def fails() -> None:
        both.wait(30)
        raise OSError("not yet")

    flow.add_task("first", lambda: 1).add_task("done", done).add_task(
        "fails", fails, retry=Retry(5, backoff=60)
    )
    run = flow.invoke({}, run_id="r")
    thread = threading.Thread(target=run.wait)
    thread.start()
    try:
        until(lambda: is_stored(flow) and set(flow.plan_resume("r").kept) == {"first", "done"})
    finally:
        run.cancel()
        thread.join(30)


def test_failed_attempts_of_a_task_alone_are_counted_durably() -> None:
    """H8, D4: a crash doesn't give it all its attempts again."""
    flow = Workflow("f", store=MemoryStore())

    def fails(ctx: NodeContext) -> None:
        raise OSError(ctx.attempt)

    flow.add_task("a", fails, retry=Retry(3, backoff=0.001, factor=60_000))
    run = flow.invoke({}, run_id="r")
    thread = threading.Thread(target=run.wait)
    thread.start()
    try:
        until(lambda: is_stored(flow) and stored_attempts(flow) == 2)
    finally:
        run.cancel()
        thread.join(30)


def is_stored(flow: Workflow) -> bool:
    """Whether the run has begun."""
    return flow.compiled().need_client("test").store.heads(["r"]) != [None]


def stored_attempts(flow: Workflow) -> int:
    section = progress_of(flow.compiled().need_client("test"), "r", None).section
    return section.children["a"].attempts if section is not None else 0


def test_a_workflow_has_as_many_layers_as_it_may_and_no_more() -> None:
    """D1: the budget of runs that add tasks to themselves."""
    calls: list[str] = []

    def chain(most: int) -> Workflow:
        flow = Workflow("f", max_layers=most)
        for number in range(4):
            flow.add_task(
                f"t{number}", lambda ctx, **_: calls.append(ctx.node), [f"t{number - 1}"] if number else []
            )
        return flow

    chain(4).execute({})
    assert len(calls) == 4
    with pytest.raises(ExecutionError, match=r"max_layers \(3\) exceeded"):
        chain(3).execute({})
    assert len(calls) == 7


def test_a_condition_only_looks() -> None:
    """D1: what it says or decides would come to nothing."""
    flow = Workflow("f").add_template("t", lambda: 1)
    flow.add_task("a", lambda: 1, condition=lambda ctx: ctx.add_task("x", "t") is None)
    with pytest.raises(ExecutionError, match="a condition can't add messages"):
        flow.execute({})


def test_a_condition_may_ask() -> None:
    """D1, P1: whether a task is to run is a question for a person, too; the answer is a decision of the run."""
    flow = Workflow("f", store=MemoryStore()).add_task("a", lambda: 1)
    flow.add_task("b", lambda a: 2, ["a"], condition=lambda a: pause("run b?", schema=bool))
    stopped(flow)
    state = flow.resume("r", False)
    assert state.tasks["b"].status == "skipped"
    assert [(each["kind"], each["answer"]) for each in state.decisions] == [("answer", False)]


def test_a_plan_knows_of_workflows_inside_of_tasks() -> None:
    """D7: with what is different there."""
    store = MemoryStore()

    def made(*more: str) -> Workflow:
        inner = Workflow("inner").add_task("ask", lambda: pause("?"))
        for name in more:
            inner.add_task(name, lambda: 1)
        return Workflow("outer", store=store).add_task("in", inner)

    stopped(made())
    plan = made("more").plan_resume("r")
    assert plan.differs
    assert plan.inside["in"].new == ["more"]
    assert "the workflow at 'in' has changed, too" in str(plan)
    assert not made().plan_resume("r").differs


def test_decisions_in_a_workflow_inside_of_a_task_are_decisions_of_the_run() -> None:
    """D11, P2: answers too, while it is under way and after that."""
    inner = Workflow("inner").add_task("first", lambda ctx: [ctx.add_decision("so"), pause("one?")][1])
    inner.add_task("second", lambda first: pause("two?"), ["first"])
    flow = Workflow("outer", store=MemoryStore(), preserve=True).add_task("in", inner)
    stopped(flow)
    with pytest.raises(RunPaused):
        flow.resume("r", 1)
    assert [each.response for each in flow.checkpoint("r").pauses if each.answered] == [1]
    state = flow.resume("r", 2)
    assert [(each["kind"], each["by"]) for each in state.decisions] == [
        ("decision", "in/first"),
        ("answer", "in/first"),
        ("answer", "in/second"),
    ]


def test_values_of_arguments_are_not_shown() -> None:
    """D7: an account of what has changed names them only."""
    store = MemoryStore()

    def made(secret: str) -> Workflow:
        return Workflow("f", store=store).add_task("a", lambda key: pause("?"), arguments={"key": secret})

    stopped(made("s3cret"))
    with pytest.raises(WorkflowChanged) as caught:
        made("0ther").resume("r", 1)
    assert "'key'" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert "0ther" not in str(caught.value)


def test_settings_that_are_refused_are_not_kept() -> None:
    """D5: a workflow can be run after a mistake as before it."""
    flow = Workflow("f").add_task("a", lambda: 1)
    with pytest.raises(DefinitionError):
        flow.compile(keep=0)
    assert flow.execute({}).results == {"a": 1}


def test_no_two_questions_have_one_id() -> None:
    """P3: whatever tasks and keys are called."""
    flow = Workflow("f", store=MemoryStore())
    flow.add_task("x", lambda: pause("1?", key="1.1:k")).add_task("x:1.1", lambda: pause("2?", key="k"))
    questions = stopped(flow).questions
    assert len({question.id for question in questions}) == 2
    answers = {question.id: question.prompt for question in questions}
    assert flow.resume("r", answers=answers).results == {"x": "1?", "x:1.1": "2?"}


def test_what_a_changed_task_has_kept_is_kept_where_it_can_resume() -> None:
    """D7, H3: a new dependency that is done doesn't make a task pay twice."""
    store, paid = MemoryStore(), []

    def buy() -> Any:
        once("pay", lambda: paid.append(1))
        return pause("?")

    def made(**options: Any) -> Workflow:
        flow = (
            Workflow("f", store=store, on_mismatch="warn").add_task("a", lambda: 1).add_task("b", lambda: 2)
        )
        return flow.add_task("buy", buy, ["a"], **options)

    (question,) = stopped(made()).questions
    assert made(optional=["b"]).plan_resume("r").questions == [question]
    assert made(optional=["b"]).resume("r", 5).results["buy"] == 5
    assert paid == [1]


def test_runs_that_ended_long_ago_are_cleaned_up_and_others_are_not() -> None:
    """P7, F14: paused and running ones only if they are named."""
    hours_ago = [25]
    store = MemoryStore(clock=lambda: time() - hours_ago[0] * 3600)
    flow = Workflow("f", store=store).add_task("a", lambda ask: pause("?") if ask else 1)
    flow.execute({"ask": False}, run_id="old")
    with pytest.raises(RunPaused):
        flow.execute({"ask": True}, run_id="paused")
    hours_ago[0] = 23
    flow.execute({"ask": False}, run_id="new")
    hours_ago[0] = 0
    assert flow.cleanup_expired(26) == 0
    assert flow.cleanup_expired() == 1
    assert {run.run_id for run in flow.runs()} == {"paused", "new"}
    assert flow.cleanup_expired(24, ["paused"]) == 1
    assert Runs(store).cleanup_expired(22) == 1
    with pytest.raises(UsageError, match="statuses"):
        flow.cleanup_expired(1, "asleep")
