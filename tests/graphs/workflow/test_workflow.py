"""Workflows: how they are defined, what their tasks are given, and what a run comes to."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any

import pytest

from limpet import (
    DefinitionError,
    ExecutionError,
    MemoryStore,
    NodeContext,
    NodeTimeout,
    Retry,
    RunPaused,
    State,
    StateGraph,
    TaskResult,
    UnknownKey,
    UnstorableValue,
    UsageError,
    Workflow,
    WorkflowState,
)
from support.graphs import AT_ONCE, SOON, Via, single
from support.timed_calls import TimedCalls, run_timed


def one() -> int:
    return 1


def boom() -> None:
    raise ValueError("no")


def line(count: int, **settings: Any) -> Workflow:
    """t0 → t1 → …, each of which adds 1."""
    flow = Workflow("line", **settings)
    for i in range(count):
        flow.add_task(f"t{i}", lambda **before: 1 + sum(before.values()), [f"t{i - 1}"] if i else ())
    return flow


def mistakes(flow: Workflow) -> list[str]:
    with pytest.raises(DefinitionError) as caught:
        flow.validate()
    return list(caught.value.mistakes)


def test_layers_follow_the_longest_path() -> None:
    """D1: and within a layer, the order of declaration."""
    flow = Workflow("f").add_task("end", one, ["mid", "b"]).add_task("b", one).add_task("a", one)
    assert flow.add_task("mid", one, optional=["a"]).layers == [["b", "a"], ["mid"], ["end"]]


def test_all_mistakes_are_reported_at_once() -> None:
    """D1: unknown dependencies, with what may have been meant, and arguments that no task takes."""
    flow = Workflow("f").add_task("load", one).add_task("use", one, ["laod"], optional=["missing"])
    flow.add_task("more", one, arguments={"x": 1})
    told = mistakes(flow)
    assert len(told) == 3
    assert "'laod'" in told[0]
    assert "'load'" in told[0]
    assert "'missing'" in told[1]
    assert "'x'" in told[2]


@pytest.mark.parametrize("edges", [{"a": ["a"]}, {"a": ["c"], "b": ["a"], "c": ["b"]}])
def test_a_circle_is_named(edges: dict[str, list[str]]) -> None:
    """D1: of one task too, and through an optional dependency."""
    flow = Workflow("f").add_task("fine", one)
    for name, needs in edges.items():
        flow.add_task(name, one, optional=needs)
    assert len(told := mistakes(flow)) == 1
    assert "in a circle" in told[0]
    assert all(repr(name) in told[0] for name in edges)


def test_a_workflow_without_tasks_is_a_mistake() -> None:
    """D1"""
    assert "no task" in mistakes(Workflow("f"))[0]
    assert "no task" in mistakes(Workflow("f").add_template("t", one))[0]


@pytest.mark.parametrize("name", ["", "a/b", "__x", "a\n", "\x00", 5, None, b"a"])
def test_names_that_cant_be_are_refused(name: Any) -> None:
    """D1"""
    with pytest.raises(DefinitionError, match="a task's name must be"):
        Workflow("f").add_task(name, one)


def test_odd_names_are_names(store: Any) -> None:
    """D1, D2: also in the store, and as dependencies."""
    names = [" ", "é ✓", "a:b", "a@1", ".", "result x", "ctx", "x" * 2000, "state", "%s{0}", "None"]
    flow = Workflow("f", store=store)
    for name in names:
        flow.add_task(name, lambda ctx: ctx.node)
    flow.add_task("all", lambda results, **each: results == each and list(results.values()), names)
    state = flow.execute()
    assert state.results == {**{name: name for name in names}, "all": names}
    state.check()


def test_a_name_may_be_a_str_enum() -> None:
    """D1: it is a str."""

    class Step(StrEnum):
        LOAD = "load"

    flow = Workflow("f", store=MemoryStore()).add_task(Step.LOAD, one)
    flow.add_task("use", lambda load: load + 1, [Step.LOAD])
    assert flow.execute().results == {"load": 1, "use": 2}


def test_a_name_is_given_once() -> None:
    """D1: to a task or a template."""
    flow = Workflow("f").add_task("a", one).add_template("t", one)
    for name in ("a", "t"):
        with pytest.raises(DefinitionError, match=f"a task named '{name}' already exists"):
            flow.add_task(name, one)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"depends_on": "a"}, r"write \['a'\]"),
        ({"depends_on": ["a", "a"]}, "twice"),
        ({"depends_on": ["a"], "optional": ["a"]}, "twice"),
        ({"depends_on": [None]}, "names of tasks"),
        ({"arguments": [1]}, "arguments must be a dict"),
        ({"arguments": {1: 2}}, "arguments must be a dict"),
        ({"retry": 0}, "attempts"),
        ({"retry": "3"}, "retry must be"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"condition": 5}, "not callable"),
        ({"timeout": "5"}, "timeout"),
        ({"depends_on": 5}, "depends_on"),
        ({"depends_on": {1: "a"}}, "depends_on"),
        ({"depends_on": {"x": "a"}, "optional": {"x": "b"}}, "'x'"),
    ],
)  # fmt: skip
def test_options_that_cant_be_are_refused_when_the_task_is_added(options: dict[str, Any], told: str) -> None:
    """D1"""
    with pytest.raises(DefinitionError, match=told):
        Workflow("f").add_task("a", one).add_task("b", one).add_task("c", lambda x=0: x, **options)


@pytest.mark.parametrize("run", [None, 5, "one", len, dict, lambda a, /: a])
def test_what_cant_be_called_by_name_is_refused(run: Any) -> None:
    """D1"""
    with pytest.raises(DefinitionError, match="task 'a'"):
        Workflow("f").add_task("a", run)


@pytest.mark.parametrize(
    "setting", [{"colour": 1}, {"max_layers": 0}, {"max_layers": True}, {"keep": "x"}, {"on_mismatch": "x"}]
)
def test_settings_that_cant_be_are_refused(setting: dict[str, Any]) -> None:
    """D1: when it is made, or compiled."""
    with pytest.raises(DefinitionError):
        Workflow("f", **setting).add_task("a", one).compile()


def test_tasks_are_added_as_functions_and_by_decorators() -> None:
    """D1: dependencies may be given as the functions themselves."""
    flow = Workflow("f")

    @flow.task
    def load() -> int:
        return 2

    @flow.task(name="twice", depends_on=[load])
    def double(load: int) -> int:
        return load * 2

    flow.add_task(one)
    assert flow.layers == [["load", "one"], ["twice"]]
    assert flow.execute().results == {"load": 2, "one": 1, "twice": 4}
    assert double(3) == 6, "the function is still itself"


def test_a_task_that_was_refused_leaves_nothing_behind() -> None:
    """D1"""
    flow = Workflow("f")
    with pytest.raises(DefinitionError):
        flow.add_task("a", line(1), retry="often")  # type: ignore[arg-type]
    assert flow.add_task("a", lambda: "mine").execute().results == {"a": "mine"}


def test_a_workflow_that_contains_itself_is_refused() -> None:
    """D1"""
    flow, other = Workflow("f"), Workflow("g")
    flow.add_task("g", other)
    other.add_task("f", flow)
    with pytest.raises(DefinitionError, match="contains itself"):
        flow.execute()


def test_what_is_added_after_a_run_is_in_the_next() -> None:
    """D1"""
    flow = Workflow("f").add_task("a", one).compile(store=MemoryStore())
    assert flow.execute().results == {"a": 1}
    assert flow.add_task("b", lambda a: a + 1, ["a"]).execute().results == {"a": 1, "b": 2}


def test_parameters_are_bound_by_name_results_before_arguments_before_offers_before_inputs() -> None:
    """D1: names that everything has."""
    flow = Workflow("f").add_task("context", lambda: "result")
    flow.add_task(
        "a", lambda context, config, n: (context, config, n), ["context"], arguments={"config": "argument"}
    )
    flow.add_task("b", lambda context, config, n, q="default": (context, config, n, q))
    state = flow.execute({"context": "input", "config": "input", "n": "input"}, {"c": 1})
    assert state.results["a"] == ("result", "argument", "input")
    assert state.results["b"] == ({}, {"c": 1}, "input", "default")


def test_a_dependency_can_have_another_name_in_the_function() -> None:
    """D1: two that swap theirs as well."""
    flow = Workflow("f").add_task("a", lambda: "A").add_task("b", lambda: "B")
    flow.add_task("c", lambda a, b: (a, b), {"a": "b", "b": "a"})
    flow.add_task("d", lambda x, y, results: (x, y, results), {"x": "a"}, optional={"y": "b"})
    found = flow.execute().results
    assert found["c"] == ("B", "A")
    assert found["d"] == ("A", "B", {"a": "A", "b": "B"})


def test_the_rest_gets_what_no_parameter_takes() -> None:
    """D1: dependencies and arguments, not the inputs."""
    flow = Workflow("f").add_task("a", one).add_task("b b", one)
    flow.add_task("c", lambda a, n=0, *no, **rest: rest, ["a", "b b"], arguments={"n": 1, "m": 2})
    assert flow.execute({"other": 1}).results["c"] == {"b b": 1, "m": 2}


def test_a_result_comes_before_an_argument_of_its_name_with_a_rest_too() -> None:
    """D1"""
    flow = Workflow("f").add_task("a", lambda: "result")
    flow.add_task("b", lambda a, **rest: a, ["a"], arguments={"a": "argument"})
    assert flow.execute().results["b"] == "result"


def test_a_misspelt_parameter_suggests_the_task_that_was_meant() -> None:
    """H13: parameters name tasks, so a task may be meant; or a resource."""
    flow = Workflow("f").add_task("source", lambda: 1).add_task("sum", lambda sorce: sorce)
    meant = "did you mean 'source'?; give the run an input 'sorce', or the workflow a resource or a task"
    with pytest.raises(UsageError, match=re.escape(meant)):
        flow.execute({})


def test_an_input_that_is_missing_is_reported_before_anything_runs(place: dict[str, Any], via: Via) -> None:
    """D1: of a later task, and of a condition."""
    calls: list[int] = []
    flow = Workflow("f", **place).add_task("a", lambda: calls.append(1))
    flow.add_task("b", lambda a, limit: a, ["a"], condition=lambda floor: True)
    for given in ({"floor": 1}, {"limit": 1}, None):
        with pytest.raises(
            UsageError, match=r"unknown parameter '(limit|floor)'.*give the run an input '(limit|floor)'"
        ):
            via.execute(flow, given)
    assert calls == []
    assert via.execute(flow, {"floor": 1, "limit": 2}).results["b"] is None


@pytest.mark.parametrize("given", [[1], "ab", {1: 2}, 5])
def test_inputs_are_a_dict_by_name(given: Any) -> None:
    """D1"""
    with pytest.raises(UsageError, match="input"):
        Workflow("f").add_task("a", one).execute(given)


def test_callables_of_all_kinds_are_tasks() -> None:
    """D1, H7: also one that returns a coroutine without saying so."""

    class Adder:
        def __init__(self, by: int = 1) -> None:
            self.by = by

        def __call__(self, n: int) -> int:
            return n + self.by

        async def later(self, n: int) -> int:
            return n + self.by

    adder = Adder(2)
    flow = Workflow("f").add_task("object", adder).add_task("method", adder.later)
    flow.add_task("partial", functools.partial(lambda x, n: (x, n), 5)).add_task(
        "hidden", lambda n: adder.later(n)
    )
    assert flow.execute({"n": 1}).results == {"object": 3, "method": 3, "partial": (5, 1), "hidden": 3}


def test_one_function_serves_many_tasks(via: Via, place: dict[str, Any]) -> None:
    """D1: each with its own arguments, name, and key for outside services."""
    flow = Workflow("f", **place)
    for i in range(20):
        flow.add_task(f"t{i}", lambda ctx, n: (ctx.node, n, ctx.idempotency_key), arguments={"n": i})
    found = via.execute(flow).results
    assert [found[f"t{i}"][:2] for i in range(20)] == [(f"t{i}", i) for i in range(20)]
    assert len({key for _, _, key in found.values()}) == 20


def test_tasks_cant_change_what_others_are_given(place: dict[str, Any]) -> None:
    """D1: each gets copies of its own, tasks of the same layer included."""
    flow = Workflow("f", **place).add_task("a", lambda ctx: ctx.add_context(c=[0]) or [0])
    both = threading.Barrier(2)

    def spoil(a: list[Any], items: list[Any], own: list[Any], **more: Any) -> list[Any]:
        state, config = more["state"], more["config"]
        both.wait(SOON)
        for mine in (
            a,
            items,
            own,
            more["inputs"]["items"],
            more["results"]["a"],
            more["context"]["c"],
            config["c"],
        ):
            mine.append("x")
        state["messages"].append("x")
        state["tasks"]["a"]["result"].append("x")
        with pytest.raises(UsageError, match="can't change the state"):
            state["more"] = 1
        both.wait(SOON)
        return [a, items, own]

    def task(
        a: Any, items: Any, own: Any, state: Any, config: Any, inputs: Any, results: Any, context: Any
    ) -> Any:
        return spoil(
            a, items, own, state=state, config=config, inputs=inputs, results=results, context=context
        )

    for name in ("b", "c"):
        flow.add_task(name, task, ["a"], arguments={"own": [0]})
    given, config = {"items": [0]}, {"c": [0]}
    state = flow.execute(given, config)
    assert state.results == {"a": [0], "b": [[0, "x"]] * 3, "c": [[0, "x"]] * 3}
    assert (state.messages, state.context, state.inputs, "more" in state) == ([], {"c": [0]}, given, False)
    assert (given, config) == ({"items": [0]}, {"c": [0]})
    state.check()
    assert flow.execute(given, config).results == state.results, "nor what the next run is given"


def test_a_final_state_shares_nothing_with_the_definition() -> None:
    """D1: code that changes the state that a run returned changes no other run."""
    flow = Workflow("f").add_task("a", lambda own: own, arguments={"own": [0]})
    flow.execute()["dag"]["a"]["arguments"]["own"].append("x")
    assert flow.execute().results == {"a": [0]}


def test_a_task_has_no_state_of_its_own_to_write_to() -> None:
    """D2"""

    def write(ctx: NodeContext) -> None:
        ctx.state["x"] = 1

    with pytest.raises(ExecutionError, match="a task of a workflow has no state of its own"):
        Workflow("f").add_task("a", write).execute()


def test_a_condition_takes_what_the_task_may() -> None:
    """D1: by the same names."""
    flow = Workflow("f").add_task("a", lambda ctx: ctx.add_context(c=1) or 5)
    flow.add_task(
        "b", lambda: "ran", {"x": "a"},
        condition=lambda x, n, results, context, inputs, state: (
            (x, n, results, context, inputs, state.results) == (5, 1, {"a": 5}, {"c": 1}, {"n": 1}, {"a": 5})
        ),
    )  # fmt: skip
    assert flow.execute({"n": 1}).results["b"] == "ran"


@pytest.mark.parametrize(
    "condition", [lambda n: n == 3, lambda config: config == {"c": 1}, lambda ctx: ctx.run_id]
)
def test_a_condition_takes_arguments_config_and_ctx_too(condition: Callable[..., Any]) -> None:
    """D1: `condition` takes what `run` may."""
    flow = Workflow("f").add_task("a", lambda n: n, arguments={"n": 3}, condition=condition)
    assert flow.execute({}, {"c": 1}).results == {"a": 3}


def test_what_is_skipped_says_why_and_what_needs_it_is_skipped_too(via: Via, place: dict[str, Any]) -> None:
    """D1, D2: an optional dependency that was skipped gives None."""

    def is_large(n: int) -> bool:
        return n > 5

    flow = Workflow("f", **place).add_task("a", one, condition=is_large).add_task("b", lambda a: a, ["a"])
    flow.add_task("c", lambda b, results: (b, results), optional=["b"])
    state = via.execute(flow, {"n": 1})
    assert {name: (r.status, r.reason) for name, r in state.tasks.items()} == {
        "a": ("skipped", "its condition 'is_large' doesn't hold"),
        "b": ("skipped", "'a', which it depends on, was skipped"),
        "c": ("completed", None),
    }
    assert state.results == {"c": (None, {"b": None})}
    state.check()


def test_a_run_may_skip_everything(via: Via, place: dict[str, Any]) -> None:
    """D1"""
    flow = Workflow("f", **place).add_task("a", one, condition=lambda: None).add_task("b", one, ["a"])
    state = via.execute(flow)
    assert (state.results, [record.status for record in state.tasks.values()]) == ({}, ["skipped"] * 2)


def test_a_condition_that_fails_fails_the_run_and_can_be_fixed() -> None:
    """D1, H3: what is done isn't done again."""
    calls, broken = [], [True]

    def holds() -> bool:
        if broken:
            raise KeyError("limit")
        return True

    flow = Workflow("f", store=MemoryStore()).add_task("a", lambda: calls.append(1))
    flow.add_task("b", one, ["a"], condition=holds)
    with pytest.raises(ExecutionError, match="in the condition of task 'b'"):
        flow.execute(run_id="r")
    broken.clear()
    assert flow.resume("r").results == {"a": None, "b": 1}
    assert len(calls) == 1


def test_a_task_that_is_safe_to_fail_fails_alone_after_its_retries(via: Via, place: dict[str, Any]) -> None:
    """D2, H8: its record says so; its messages and decisions don't count."""
    calls: list[int] = []

    def fail(ctx: NodeContext) -> None:
        calls.append(ctx.attempt)
        ctx.add_message("never heard")
        raise ValueError("no")

    flow = Workflow("f", **place).add_task("a", fail, safe_to_fail=True, retry=AT_ONCE)
    flow.add_task("b", one, ["a"]).add_task("c", lambda a: a, optional=["a"])
    state = via.execute(flow)
    record = state.tasks["a"]
    assert calls == [1, 2, 3]
    assert (record.status, record.attempts, record.result) == ("failed", 3, None)
    assert (record.error or {})["type"] == "ValueError"
    assert state.tasks["b"].reason == "'a', which it depends on, failed"
    assert (state.results, state.messages) == ({"c": None}, [])
    state.check()


@pytest.mark.parametrize("retry", [None, AT_ONCE])
@pytest.mark.parametrize("kind", ["workflow", "graph"])
def test_a_graph_that_is_a_task_is_safe_to_fail_too(kind: str, retry: Retry | None) -> None:
    """D2, H8"""
    graph = StateGraph(name="g").add_node("n", run=lambda state: boom())
    inner = (
        Workflow("g").add_task("n", boom)
        if kind == "workflow"
        else graph.set_entry_point("n").set_finish_point("n")
    )
    state = Workflow("f").add_task("a", inner, safe_to_fail=True, retry=retry).add_task("b", one).execute()
    assert (state.tasks["a"].status, state.results) == ("failed", {"b": 1})


def test_the_run_fails_with_its_task_while_siblings_finish_and_are_kept(via: Via, store: Any) -> None:
    """D4, H3: a resume runs what hasn't completed, and nothing else."""
    calls: list[str] = []
    both, broken = threading.Barrier(2), [True]

    def fail(ctx: NodeContext) -> str:
        calls.append(ctx.node)
        if broken:
            both.wait(SOON)
            raise ValueError("no")
        return "fixed"

    def sibling(ctx: NodeContext) -> int:
        calls.append(ctx.node)
        both.wait(SOON)
        return 1

    flow = Workflow("f", store=store).add_task("a", fail).add_task("b", sibling)
    flow.add_task("c", lambda a, b, ctx: calls.append(ctx.node), ["a", "b"])
    with pytest.raises(ExecutionError, match=r"node 'a' .*ValueError: no"):
        via.execute(flow, run_id="r")
    assert sorted(calls) == ["a", "b"]
    broken.clear()
    assert via.resume(flow, "r").results == {"a": "fixed", "b": 1, "c": None}
    assert sorted(calls) == ["a", "a", "b", "c"]


def test_tasks_that_havent_begun_dont_when_one_has_failed() -> None:
    """D4, H13: one at a time, so that there are some; on_error="stop" starts nothing new."""
    calls: list[str] = []
    flow = Workflow("f", max_concurrency=1, on_error="stop").add_task("a", boom)
    for name in ("b", "c"):
        flow.add_task(name, lambda ctx: calls.append(ctx.node))
    with pytest.raises(ExecutionError):
        flow.execute()
    assert calls == []


def test_a_retry_starts_again_and_is_counted(via: Via, place: dict[str, Any]) -> None:
    """H8, D2: what a failed attempt said is forgotten, and so is what it did to its arguments."""

    def flaky(ctx: NodeContext, own: list[int]) -> list[int]:
        ctx.add_message(ctx.attempt)
        ctx.add_task(f"after {ctx.attempt}", "t")
        own.append(ctx.attempt)
        if ctx.attempt < 3:
            raise OSError("busy")
        return own

    flow = (
        Workflow("f", **place)
        .add_task("a", flaky, retry=AT_ONCE, arguments={"own": []})
        .add_template("t", one)
    )
    state = via.execute(flow)
    assert state.results == {"a": [3], "after 3": 1}
    assert (state.messages, state.tasks["a"].attempts, len(state.decisions)) == ([3], 3, 1)


def test_only_the_errors_in_on_are_tried_again() -> None:
    """H8"""
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise KeyError("x")

    flow = Workflow("f").add_task("a", fail, retry=Retry(3, backoff=0, on=OSError), safe_to_fail=True)
    assert (flow.execute().tasks["a"].status, len(calls)) == ("failed", 1)


def test_a_task_that_takes_too_long_has_failed_and_says_nothing_more(via: Via, place: dict[str, Any]) -> None:
    """H8: its thread is left behind."""
    left, proceed = threading.Event(), threading.Event()

    def slow(ctx: NodeContext) -> str:
        proceed.wait(SOON)
        try:
            ctx.add_message("late")
        finally:
            left.set()
        return "late"

    flow = Workflow("f", **place).add_task("a", slow, timeout=0.05, safe_to_fail=True)
    flow.add_task("b", lambda a: (proceed.set(), left.wait(SOON), a)[-1], optional=["a"])
    state = via.execute(flow)
    assert "NodeTimeout" in (state.tasks["a"].error or {})["type"]
    assert (state.results, state.messages) == ({"b": None}, [])
    with pytest.raises(ExecutionError) as caught:
        Workflow("f").add_task("a", lambda: proceed.clear() or proceed.wait(SOON), timeout=0.01).execute()
    proceed.set()
    assert isinstance(caught.value.__cause__, NodeTimeout)


@pytest.mark.parametrize(
    "error",
    [
        StopIteration(1),
        StopAsyncIteration(),
        RecursionError(),
        ExceptionGroup("g", [OSError()]),
        TimeoutError(),
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_exceptions_that_mean_something_to_python_are_failures_like_others(
    error: Exception, kind: str, via: Via
) -> None:
    """D2: the loop is a generator, and may be driven by asyncio."""

    def fail() -> None:
        raise error

    async def fail_later() -> None:
        raise error

    run = fail if kind == "def" else fail_later
    state = via.execute(Workflow("f").add_task("a", run, safe_to_fail=True).add_task("b", one))
    assert (state.tasks["a"].status, state.results) == ("failed", {"b": 1})


def test_results_keep_their_types(store: Any, via: Via) -> None:
    """H4, D2: what a task returned is what the next one is given, and what is read later."""
    value = {
        "t": (1, (2,)),
        5: 2**200,
        "d": datetime(2026, 1, 2, tzinfo=UTC),
        "s": {1},
        "n": None,
        "b": b"\x00",
    }
    flow = Workflow("f", store=store, preserve=True).add_task("a", lambda: value)
    flow.add_task("b", lambda a: a == value and type(a["t"][1]) is tuple, ["a"])
    state = via.execute(flow, run_id="r")
    assert state.results == {"a": value, "b": True}
    assert flow.checkpoint("r").state.results == state.results


def test_none_is_a_result(place: dict[str, Any]) -> None:
    """D2"""
    flow = Workflow("f", **place).add_task("a", lambda: None).add_task("b", lambda a, n=1: (a, n), ["a"])
    state = flow.execute()
    assert (state.results, state.tasks["a"].status) == ({"a": None, "b": (None, 1)}, "completed")


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (lambda: (i for i in [1]), "tasks.a.result"),
        (lambda: ValueError("x"), "tasks.a.result"),
        (lambda: {"k": [1, object()]}, r"tasks.a.result.k\[1\]"),
        (lambda: TaskResult(TaskResult(1)), "tasks.a.result"),
        (lambda: TaskResult(1, messages=[object()]), r"messages\[0\]"),
        (lambda: TaskResult(1, context={"k": object()}), "context.k"),
        (lambda: TaskResult(1, decisions=[{"k": object()}]), r"decisions\[0\].k"),
    ],
)
def test_what_cant_be_stored_is_refused_with_its_path_and_not_tried_again(
    value: Callable[[], Any], path: str, store: Any
) -> None:
    """H4: nothing of the task is kept, and the run can be resumed when the task was fixed."""
    calls: list[int] = []

    def work() -> Any:
        calls.append(1)
        return value() if len(calls) == 1 else "fixed"

    flow = Workflow("f", store=store).add_task("a", work, retry=AT_ONCE)
    with pytest.raises(ExecutionError, match=f"at {path} can't be stored") as caught:
        flow.execute(run_id="r")
    assert isinstance(caught.value.__cause__, UnstorableValue)
    state = flow.resume("r")
    assert (state.results, state.messages, state.context, len(calls)) == ({"a": "fixed"}, [], {}, 2)


@pytest.mark.parametrize("what", ["inputs", "arguments"])
def test_what_cant_be_stored_is_refused_before_anything_runs(what: str, store: Any) -> None:
    """H4"""
    calls: list[int] = []
    flow = Workflow("f", store=store).add_task("first", lambda: calls.append(1))
    flow.add_task("a", lambda x: x, ["first"], arguments={"x": object()} if what == "arguments" else None)
    with pytest.raises(UnstorableValue, match="x can't be stored"):
        flow.execute({"x": object()} if what == "inputs" else None)
    assert calls == []


def test_without_a_store_a_result_may_be_anything(via: Via) -> None:
    """D2: what can't be copied is handed on as it is."""
    made = threading.Lock()
    flow = Workflow("f").add_task("a", lambda: made).add_task("b", lambda a: a is made, ["a"])
    assert via.execute(flow).results == {"a": made, "b": True}


def test_a_generator_function_isnt_accepted_as_a_task_or_a_node() -> None:
    """H4, H12: nothing would run it; what comes before the result is emitted."""

    def numbers() -> Any:
        yield 1

    async def later() -> Any:
        yield 1

    for run in (numbers, later, partial(numbers)):
        with pytest.raises(DefinitionError, match=r"task 'a' yields; it must return its result. emit\(\)"):
            Workflow("f").add_task("a", run)
        with pytest.raises(DefinitionError, match="node 'a' yields"):
            StateGraph().add_node("a", run)


@pytest.mark.parametrize("size", [1_000_000, 20_000_000])
def test_huge_results_are_results(size: int, store: Any) -> None:
    """D9, H4"""
    flow = (
        Workflow("f", store=store).add_task("a", lambda: b"x" * size).add_task("b", lambda a: len(a), ["a"])
    )
    assert flow.execute().results["b"] == size


def test_what_a_task_says_counts_in_the_order_of_declaration_not_of_arrival(
    via: Via, place: dict[str, Any]
) -> None:
    """D2: the last of a layer completes first."""
    done = [threading.Event() for _ in range(4)]

    def speak(ctx: NodeContext, n: int) -> None:
        if n < 3:
            done[n + 1].wait(SOON)
        ctx.add_message(n)
        ctx.add_decision("go", n=n)
        ctx.add_context({"last": n, f"of {n}": n})
        done[n].set()

    flow = Workflow("f", **place)
    for n in range(4):
        flow.add_task(f"t{n}", speak, arguments={"n": n})
    flow.add_task(
        "end", lambda state, context: (state.messages, context["last"]), [f"t{n}" for n in range(4)]
    )
    state = via.execute(flow)
    assert state.messages == [0, 1, 2, 3]
    assert state.decisions == [
        {"decision": "go", "n": n, "kind": "decision", "by": f"t{n}"} for n in range(4)
    ]
    assert list(state.context.items()) == [("last", 3), *((f"of {n}", n) for n in range(4))]
    assert state.results["end"] == ([0, 1, 2, 3], 3)
    assert [name for name in state.tasks if name != "end"] == ["t0", "t1", "t2", "t3"]


def test_a_task_result_says_what_ctx_does_after_it(place: dict[str, Any]) -> None:
    """D2"""

    def by_ctx(ctx: NodeContext) -> int:
        ctx.add_message("m1")
        ctx.add_message("m2")
        ctx.add_decision({"go": True}, why="so")
        ctx.add_context(k=1)
        ctx.add_task("late", "t", arguments={"n": 7})
        ctx.skip("never")
        return 1

    def returned(ctx: NodeContext) -> TaskResult:
        ctx.add_message("m1")
        return TaskResult(
            1, messages=iter(["m2"]), decisions=({"go": True, "why": "so"},), context={"k": 1}, skip=["never"],
            add_tasks=[{"name": "late", "run": "t", "arguments": {"n": 7}}],
        )  # fmt: skip

    states = []
    for run in (by_ctx, returned):
        flow = Workflow("f", **place).add_task("a", run).add_task("never", one, ["a"])
        states.append(flow.add_template("t", lambda n: n).execute())
    for state in states:
        assert (state.messages, state.context, state.results) == (["m1", "m2"], {"k": 1}, {"a": 1, "late": 7})
        assert state.tasks["never"].reason == "'a' decided so"
        assert state.decisions[0] == {"go": True, "why": "so", "kind": "decision", "by": "a"}
        assert {each["kind"] for each in state.decisions} == {"decision", "add_task", "skip_tasks"}
        state.check()


def test_a_decision_cant_pass_for_a_change_or_for_anothers() -> None:
    """D11: kind and author are what they are."""

    def forge(ctx: NodeContext) -> TaskResult:
        ctx.add_decision({"kind": "skip_tasks", "by": "boss", "tasks": ["b"]})
        return TaskResult(decisions=[{"kind": "add_task", "by": "boss", "name": "x"}])

    state = Workflow("f").add_task("a", forge).add_task("b", one, ["a"]).execute()
    assert [(each["kind"], each["by"]) for each in state.decisions] == [("decision", "a")] * 2
    assert state.results["b"] == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": "abc"},
        {"messages": {"a": 1}},
        {"decisions": "abc"},
        {"decisions": [5]},
        {"decisions": [{1: 2}]},
        {"context": [1]},
        {"context": {1: 2}},
        {"add_tasks": [{}]},
        {"add_tasks": [{"name": "x", "run": "missing"}]},
        {"add_tasks": [{"name": "x", "run": "a", "colour": 1}]},
        {"add_tasks": [{"name": "x", "run": "a", "arguments": 5}]},
        {"add_tasks": [{"name": "x", "run": "a", "before": ["missing"]}]},
        {"messages": None},
        {"decisions": 5},
        {"add_tasks": {"name": "x"}},
        {"add_tasks": ["x"]},
        {"add_tasks": [{"name": "x", "run": ["a"]}]},
        {"add_tasks": [{"name": "x", "run": "a", "depends_on": 5}]},
        {"add_tasks": [{"name": "x", "run": "a", "before": 5}]},
        {"skip": 5},
    ],
    ids=repr,
)
def test_a_task_result_that_cant_be_is_a_usage_error_of_its_task(fields: dict[str, Any]) -> None:
    """D2: nothing of it counts, and it isn't tried again."""
    calls: list[int] = []
    flow = Workflow("f").add_task("a", lambda: calls.append(1) or TaskResult(1, **fields), retry=AT_ONCE)
    with pytest.raises(ExecutionError, match="node 'a'") as caught:
        flow.execute()
    assert len(calls) == 1
    assert isinstance(caught.value.__cause__, UsageError), caught.value.__cause__


@pytest.mark.parametrize("how", ["ctx.skip", "TaskResult"])
def test_a_skip_that_names_no_task_doesnt_spoil_the_run_for_good(how: str) -> None:
    """D2, H3: a list where a name should be; the task is at fault, so that a fixed one can complete."""
    broken: list[Any] = [["b"]]

    def work(ctx: NodeContext) -> Any:
        if broken and how == "ctx.skip":
            ctx.skip(broken.pop())
        return TaskResult(1, skip=[broken.pop()] if broken else [])

    flow = Workflow("f", store=MemoryStore()).add_task("a", work).add_task("b", one, ["a"])
    try:
        flow.execute(run_id="r")
    except ExecutionError:
        assert flow.resume("r").results["a"] == 1


@pytest.mark.parametrize(
    "say",
    [
        lambda ctx: ctx.add_context(values=1) or ctx.add_decision("d", k=1),
        lambda ctx: ctx.add_context(k=1) or ctx.add_decision({"n": 1}, decision="d"),
    ],
)
def test_context_and_decisions_may_have_any_key(say: Callable[[NodeContext], None]) -> None:
    """D2"""
    state = Workflow("f").add_task("a", say).execute()
    assert state.context in ({"values": 1}, {"k": 1})
    assert state.decisions[0]["decision"] == "d"


def test_context_that_isnt_a_dict_is_a_usage_error() -> None:
    """D2: as in a TaskResult."""
    with pytest.raises(ExecutionError) as caught:
        Workflow("f").add_task("a", lambda ctx: ctx.add_context([1])).execute()
    assert isinstance(caught.value.__cause__, UsageError)


@pytest.mark.parametrize("store", [MemoryStore, lambda: None], ids=["memory", "no store"])
def test_a_ctx_says_nothing_more_when_its_task_is_over(store: Callable[[], Any]) -> None:
    """D2: not in a later layer, and not while a sibling still runs."""
    kept: list[NodeContext] = []
    over = threading.Event()

    def sibling() -> None:
        assert over.wait(SOON)
        late()

    def late() -> None:
        for say in (kept[0].add_message, kept[0].add_decision):
            with suppress(UsageError):
                say("late")

    flow = Workflow("f", store=store())
    flow.add_task("a", lambda ctx: kept.append(ctx) or ctx.add_message("in time"))
    flow.add_task("b", sibling).add_task("c", lambda a: late(), ["a"])
    run = flow.stream()
    for event in run:
        if event["type"] == "task_complete" and event["task"] == "a":
            over.set()
    state = run.result()
    assert (state.messages, state.decisions) == (["in time"], [])


def test_a_ctx_that_is_used_too_late_says_so() -> None:
    """D2: a message that no task will read is a mistake to report."""
    kept: list[NodeContext] = []
    flow = Workflow("f").add_task("a", lambda ctx: kept.append(ctx))
    flow.execute()
    with pytest.raises(UsageError, match="is over"):
        kept[0].add_message("late")


def test_a_node_of_a_graph_has_nothing_to_say() -> None:
    """D2: it returns what it changes."""
    graph = StateGraph(name="g").add_node("n", run=lambda state, ctx: ctx.add_message("x"))
    with pytest.raises(ExecutionError, match="add_message is for a task of a workflow"):
        graph.set_entry_point("n").set_finish_point("n").execute({})


def test_a_record_says_when_how_long_and_how_often(place: dict[str, Any]) -> None:
    """D2"""
    state = line(2, **place).execute()
    first, second = state.tasks["t0"], state.tasks["t1"]
    assert (first.id, first.status, first.result, first.attempts, first.layer) == ("t0", "completed", 1, 1, 0)
    assert (second.layer, second.result) == (1, 2)
    assert 0 < first.timestamp <= second.timestamp
    assert state["tasks"]["t0"] == {
        key: value for key, value in first._asdict().items() if key not in ("reason", "error", "secret")
    }


def test_a_graph_that_used_up_its_iterations_is_not_tried_again(via: Via, place: dict[str, Any]) -> None:
    """D2, H8: another attempt would end the same. The task is safe to fail, so its failure is its result."""
    calls: list[bool] = []
    graph = StateGraph(name="inner", max_iterations=3).add_node("n", run=lambda: calls.append(True))
    graph.add_edge("n", "n", lambda state: len(calls) < 100).set_entry_point("n").set_finish_point("n")
    flow = Workflow("f", **place).add_task("a", graph, safe_to_fail=True, retry=AT_ONCE).add_task("b", one)
    state = via.execute(flow)
    assert (state.tasks["a"].status, state.tasks["a"].attempts, len(calls)) == ("failed", 1, 3)
    assert state.tasks["b"].result == 1


@pytest.mark.parametrize("reports", [False, True])
def test_what_a_task_alters_after_it_returned_is_not_in_its_result(
    via: Via, store: Any, reports: bool
) -> None:
    """D2: the run has what was saved, also where the task has put more into the state than its result."""
    kept: list[int] = [1]

    def first(ctx: Any) -> list[int]:
        if reports:
            ctx.add_message("done")
        return kept

    flow = Workflow("f", store=store, preserve=True).add_task("first", first)
    flow.add_task("alters", lambda first: kept.append(2), ["first"])
    flow.add_task("reads", lambda first: first, ["first"], optional=["alters"])
    state = via.execute(flow, run_id="r")
    assert kept == [1, 2]
    assert (state.tasks["first"].result, state.tasks["reads"].result) == ([1], [1])
    assert flow.state_at("r") == state


def test_the_duration_of_a_task_is_that_of_its_last_attempt(via: Via, place: dict[str, Any]) -> None:
    """D2: of one that completed, that failed for good, and that is a graph."""
    done = TimedCalls(failures=1)
    failed = TimedCalls(failures=1)
    inner = TimedCalls()
    graph = StateGraph(name="inner").add_node("n", run=inner).set_entry_point("n").set_finish_point("n")
    flow = Workflow("f", **place).add_task("done", done, retry=AT_ONCE)
    flow.add_task("failed", failed, optional=["done"], safe_to_fail=True)
    flow.add_task("graph", graph, optional=["failed"])
    state, run = run_timed(via, flow)
    tasks = state.tasks
    assert (tasks["done"].attempts, tasks["failed"].status) == (2, "failed")
    assert done.spans[1].seconds <= tasks["done"].duration <= failed.spans[0].began - done.spans[0].ended
    assert failed.spans[0].seconds <= tasks["failed"].duration <= inner.spans[0].began - done.spans[1].ended
    assert inner.spans[0].seconds <= tasks["graph"].duration <= run.ended - failed.spans[0].ended


def test_a_state_knows_its_checkpoint_while_there_is_one(store: Any, via: Via) -> None:
    """D3: None where nothing is kept."""
    kept = line(2, store=store, preserve=True)
    state = via.execute(kept, run_id="r")
    assert state.checkpoint_id is not None
    assert kept.checkpoint(state.checkpoint_id).state == state
    assert via.execute(line(2, store=store)).checkpoint_id is not None
    assert via.execute(line(2, store=store, keep_result=False)).checkpoint_id is None
    assert via.execute(line(2)).checkpoint_id is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda s: s.update(messages=()), "'messages' is tuple"),
        (lambda s: s.pop("dag"), "'dag' is NoneType"),
        (lambda s: s["tasks"].update(x={"id": "x", "status": "completed"}), "'x' has a record but isn't one"),
        (lambda s: s["tasks"]["a"].update(id="b"), "says id 'b'"),
        (lambda s: s["tasks"]["a"].update(status="pending"), "status 'pending'"),
        (lambda s: s["tasks"]["a"].update(status="skipped"), "without a reason"),
        (lambda s: s["tasks"]["a"].update(status="failed"), "'b' completed although 'a'"),
        (lambda s: s["tasks"].update(a=None), "'a'"),
    ],
)  # fmt: skip
def test_check_lists_what_cant_be(change: Callable[[Any], Any], told: str) -> None:
    """D2: the invariants of a state."""
    state = Workflow("f").add_task("a", one).add_task("b", one, ["a"]).execute()
    state.check()
    spoiled = WorkflowState(state.copy())
    change(spoiled)
    with pytest.raises(UsageError, match=told):
        spoiled.check()


def test_lists_and_dicts_that_a_state_gives_are_the_readers_own() -> None:
    """D2: the properties read, they don't write."""
    state = Workflow("f").add_task("a", lambda ctx: ctx.add_message(1)).execute()
    state.messages.append("x")
    state.decisions.append({})
    state.context["x"] = state.inputs["x"] = state.results["x"] = 1
    state.tasks.clear()
    assert (state.messages, state.decisions, state.context, state.inputs) == ([1], [], {}, {})
    assert list(state.tasks) == ["a"]
    state.check()


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda state: pickle.loads(pickle.dumps(state))]
)
def test_a_copy_of_a_state_is_one(copied: Callable[[Any], Any]) -> None:
    """D2: with the properties that read it."""
    state = Workflow("f").add_task("a", one).execute()
    assert copied(state) == state
    assert copied(state).results == {"a": 1}


class Arranged(frozenset[str]):
    """A set in an order of its own, as sets have in each process."""

    backwards = False

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(super().__iter__(), reverse=self.backwards))


def test_the_order_of_a_set_of_dependencies_isnt_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """D7: it is another one in each process."""
    store = MemoryStore()

    def build() -> Workflow:
        flow = Workflow("f", store=store).add_task("a", one).add_task("b", one)
        return flow.add_task("c", lambda ctx: ctx.pause("go?"), Arranged(["a", "b"]))

    with pytest.raises(RunPaused):
        build().execute(run_id="r")
    monkeypatch.setattr(Arranged, "backwards", True)
    assert build().resume("r", "yes").results["c"] == "yes"


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_tasks_of_a_layer_run_in_parallel(kind: str, via: Via, place: dict[str, Any]) -> None:
    """D1, H7: they wait for each other."""
    import asyncio

    here: list[int] = []
    barrier = threading.Barrier(5)

    def meet() -> int:
        barrier.wait(SOON)
        return 1

    async def meet_later() -> int:
        here.append(1)
        async with asyncio.timeout(SOON):
            while len(here) < 5:
                await asyncio.sleep(0)
        return 1

    flow = Workflow("f", **place)
    for n in range(5):
        flow.add_task(f"t{n}", meet if kind == "def" else meet_later)
    assert sum(via.execute(flow).results.values()) == 5


def test_no_more_run_at_once_than_may(via: Via) -> None:
    """D1"""
    running, most, lock = [0], [0], threading.Lock()
    gone = threading.Semaphore(0)

    def work() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        gone.acquire(timeout=0.01)
        with lock:
            running[0] -= 1

    flow = Workflow("f", max_concurrency=3)
    for n in range(12):
        flow.add_task(f"t{n}", work)
    via.execute(flow)
    assert most[0] <= 3


def test_a_layer_begins_when_the_one_before_is_done() -> None:
    """D1: even where a task has all that it needs."""
    order: list[str] = []
    flow = Workflow("f")
    for name, needs in {"a": [], "slow": [], "b": ["a"], "c": ["b"]}.items():
        flow.add_task(name, lambda ctx: order.append(ctx.node), needs)
    flow.execute()
    assert sorted(order[:2]) == ["a", "slow"]
    assert order[2:] == ["b", "c"]


def test_a_thousand_tasks_and_three_hundred_layers(via: Via) -> None:
    """D1"""
    store = MemoryStore()
    wide = Workflow("wide", store=store)
    for n in range(1000):
        wide.add_task(f"t{n}", lambda n: n, arguments={"n": n})
    wide.add_task("sum", lambda results: sum(results.values()), [f"t{n}" for n in range(1000)])
    assert via.execute(wide).results["sum"] == 499500
    assert via.execute(line(300, store=store)).results["t299"] == 300


def test_max_layers_is_a_budget_that_a_run_which_adds_to_itself_cant_exceed() -> None:
    """D1"""
    flow = Workflow("f", max_layers=10).add_task("a", one)
    flow.add_task("more", lambda ctx: ctx.add_task("more 1", "again"))
    flow.add_template("again", lambda ctx: ctx.add_task(f"more {int(ctx.node[5:]) + 1}", "again"))
    with pytest.raises(ExecutionError, match="10"):
        flow.execute()


def test_as_many_layers_as_max_layers_may_run() -> None:
    """D1"""
    assert len(line(3, max_layers=3).execute().results) == 3


@pytest.mark.parametrize("give", ["state", "run"])
def test_a_run_that_is_over_is_garbage(give: str) -> None:
    """D1: no cycle keeps its values alive in the workflow."""
    import weakref

    class Big:
        pass

    seen: list[weakref.ref[Big]] = []

    def make() -> Big:
        big = Big()
        seen.append(weakref.ref(big))
        return big

    flow = Workflow("f").add_task("a", make).add_task("b", lambda a: None, ["a"])
    flow.execute() if give == "state" else flow.invoke().wait()
    gc.collect()
    assert seen[0]() is None


def test_a_graph_and_a_workflow_are_tasks(via: Via, place: dict[str, Any]) -> None:
    """D1: they start with inputs, arguments and results; inputs may come from a dependency."""
    graph = StateGraph(name="g").add_node("n", run=lambda state: {"got": dict(state)})
    graph.set_entry_point("n").set_finish_point("n")
    inner = Workflow("in").add_task("x", lambda n, k: n + k).add_task("y", lambda x: x * 2, ["x"])
    flow = Workflow("f", **place).add_task("a", lambda: 10)
    flow.add_task("g", graph, {"renamed": "a"}, arguments={"k": 2}).add_task(
        "w", inner, {"n": "a"}, arguments={"k": 2}
    )
    flow.add_task("end", lambda g, w: (sorted(g), w["y"]), ["g", "w"])
    state = via.execute(flow, {"i": 1})
    assert state.results["w"] == {"x": 12, "y": 24}
    assert {"i": 1, "k": 2, "renamed": 10}.items() <= state.results["g"]["got"].items()
    assert state.results["end"][1] == 24
    state.check()


def test_an_input_that_a_workflow_inside_lacks_fails_its_task(via: Via) -> None:
    """D1"""
    flow = Workflow("f").add_task("w", Workflow("in").add_task("x", lambda n: n), safe_to_fail=True)
    state = via.execute(flow)
    assert state.tasks["w"].error is not None
    assert "has an unknown parameter 'n'" in state.tasks["w"].error["message"]


def test_a_workflow_is_a_node_of_a_graph(via: Via, place: dict[str, Any]) -> None:
    """D1, H3: the results of its tasks are what it changes."""

    def total(state: State) -> dict[str, Any]:
        return {"total": state["x"] + state["y"]}

    inner = Workflow("in").add_task("x", lambda n: n + 1).add_task("y", lambda x: x * 2, ["x"])
    graph = StateGraph(name="g").add_node("w", run=inner).add_node("end", run=total).add_edge("w", "end")
    graph.set_entry_point("w").set_finish_point("end").compile(**place)
    assert via.execute(graph, {"n": 1}) == {"n": 1, "x": 2, "y": 4, "total": 6}


def test_a_misspelt_name_of_a_result_suggests_the_task(store: Any) -> None:
    """D1, H14: as a misspelt key of a state does; and it is a `KeyError`, too."""
    flow = Workflow("flow", store=store, preserve=True, on_error="continue")
    flow.add_task("clean", lambda: 1).add_task("idle", lambda clean: 2, condition=lambda state: False)
    results = flow.execute(run_id="r").results
    for found in (
        results,
        copy.deepcopy(results),
        pickle.loads(pickle.dumps(results)),
        flow.get("r").state.results,
    ):
        assert (found, found.get("claen"), "claen" in found) == ({"clean": 1}, None, False)
        with pytest.raises(UnknownKey, match=r"no result of task 'claen'; did you mean 'clean'\?"):
            found["claen"]
        with pytest.raises(KeyError, match="no result of task 'idle': it is skipped"):
            found["idle"]


def test_results_of_a_workflow_can_be_kept_in_a_state(store: Any) -> None:
    """H4: they come back as what they were."""
    flow = Workflow("flow", store=MemoryStore()).add_task("clean", lambda: 1)
    graph = single(lambda state: {"kept": flow.execute({}).results}, "keep", {"kept": dict})
    graph.compile(store=store, preserve=True).execute({}, run_id="r")
    kept = graph.get("r").state["kept"]
    assert (kept, type(kept)) == ({"clean": 1}, type(flow.execute({}).results))
