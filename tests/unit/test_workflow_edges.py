"""What people ran into who changed a workflow under a run, or fanned out into tasks that may fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import (
    DefinitionError,
    ExecutionError,
    MemoryStore,
    RunPaused,
    Task,
    UsageError,
    Workflow,
    WorkflowChanged,
    pause,
)


def paged(store: Any, page: Any, merge: str = "merge", plan: str = "plan", **settings: Any) -> Workflow:
    """A task that adds pages before a merge, and one that asks beside the merge."""
    flow = Workflow("paged", store=store, preserve=True, **settings)

    def add(ctx: Task) -> int:
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


def test_a_plan_tells_whose_results_nothing_takes_any_more() -> None:
    """D7: those of tasks that were put before one that is gone."""
    store = MemoryStore()
    stopped(paged(store, lambda n: n))
    now = paged(store, lambda n: n, merge="join", on_mismatch="warn")
    plan = now.plan_resume("r")
    assert plan.notes == ["'p0', 'p1' came before 'merge', which is gone: nothing takes what they come to"]
    assert "nothing takes what they come to" in str(plan)


def test_a_task_that_is_there_already_may_be_added_again_as_it_is() -> None:
    """D3, D7: so that a run goes on when the task that added it has another name now."""
    store = MemoryStore()
    stopped(paged(store, lambda n: n))
    now = paged(store, lambda n: n, plan="replan", on_mismatch="warn")
    with pytest.raises(RunPaused):
        now.resume("r")
    assert now.resume("r", 1).results["merge"] == ["ask", "p0", "p1"]
    assert [each["kind"] for each in now.state_at("r").decisions].count("refused") == 0


def test_an_answer_to_a_question_that_is_gone_is_told_why() -> None:
    """D7, D11: and how to go on."""
    store = MemoryStore()
    question = stopped(paged(store, lambda n: n)).questions[0]
    now = paged(store, lambda n: n, plan="replan", on_mismatch="warn")
    assert any(question.id in note for note in now.plan_resume("r").notes)
    with pytest.raises(UsageError, match=r"is gone, as the task that asked it has changed; resume\('r'\)"):
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
        ("fetch", r"depends_on=\['fetch'\]"),
        ("fetsh", "did you mean 'fetsch'"),
        ("xyz", "it may also take ctx"),
    ],
)
def test_a_parameter_that_nobody_provides_is_told_what_may_have_been_meant(parameter: str, told: str) -> None:
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

    def add(ctx: Task) -> None:
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


def test_the_order_of_dependencies_is_no_change() -> None:
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
from holdfast import StateGraph, Task, Workflow, WorkflowState, once

flow = Workflow("typed", store="memory")

@flow.task
def a(ctx: Task) -> int:
    return once("k", len, "abc")

@flow.task(depends_on=["a"], retry=3)
def b(a: int, state: WorkflowState) -> str:
    return str(a)

@flow.template(safe_to_fail=True)
def c(n: int) -> int:
    return n

@flow.after_layer
def after(layer: int, ctx: Task) -> None: ...

text: str = b(1, WorkflowState())
print(flow.stream({}).result().results, flow.fork("r").result().tasks, flow.resume("r").context)
print(StateGraph().invoke({}).state.run_id)
"""


def test_types_reach_those_who_define_and_run_workflows(tmp_path: Path) -> None:
    """H7: decorated functions keep theirs, and what comes of a workflow's run is its state."""
    pytest.importorskip("mypy")
    (tmp_path / "typed.py").write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "typed.py"]
    found = os.environ | {"MYPYPATH": str(Path(holdfast.__file__).parents[1])}
    checked = subprocess.run(command, cwd=tmp_path, env=found, capture_output=True, text=True, timeout=100)
    assert "Success" in checked.stdout, checked.stdout
