"""Defining workflows: what it costs, and what tasks depend on when `depends_on` isn't given."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from limpet import DefinitionError, ExecutionError, MemoryStore, TaskResult, UsageError, Workflow
from support.call_counts import calls_of


def add_one(before: int) -> int:
    return before + 1


def chain(count: int, **settings: Any) -> Workflow:
    """t0 → t1 → …, each of which adds 1."""
    flow = Workflow("chain", **settings)
    flow.add_task("t0", lambda: 0)
    for number in range(1, count):
        flow.add_task(f"t{number}", add_one, {"before": f"t{number - 1}"})
    return flow


def diamond() -> Workflow:
    flow = Workflow("diamond")
    flow.add_task("page", lambda text, chart: f"{text} {chart}")
    flow.add_task("text", lambda fetch: fetch.upper())
    flow.add_task("chart", lambda fetch: len(fetch))
    flow.add_task("fetch", lambda city: city)
    return flow


def depends_on(flow: Workflow, task: str) -> list[str]:
    plan = flow.freeze()
    assert plan.layers is not None
    return list(plan.layers.dag[task].get("depends_on", ()))


def test_a_task_costs_the_same_to_define_and_compile_in_a_workflow_of_any_size() -> None:
    """H13"""
    calls_of(lambda: chain(10).compile())
    few = calls_of(lambda: chain(100).compile()) / 100
    many = calls_of(lambda: chain(2000).compile()) / 2000
    assert many <= few * 1.05


def test_a_chain_of_ten_thousand_tasks_compiles() -> None:
    """H13: no step of it is recursive."""
    flow = chain(10_000).compile()
    assert [len(layer) for layer in flow.layers] == [1] * 10_000


def test_a_chain_of_ten_thousand_tasks_may_be_declared_from_its_end() -> None:
    """H13"""
    flow = Workflow("backwards")
    for number in range(10_000, 0, -1):
        flow.add_task(f"t{number}", add_one, {"before": f"t{number - 1}"})
    flow.add_task("t0", lambda: 0)
    assert flow.compile().layers[:2] == [["t0"], ["t1"]]
    assert len(flow.layers) == 10_001


@pytest.mark.parametrize(
    "function",
    [
        lambda a, *rest, b, c=1: 1,
        lambda a, b=2, *, c=None, **rest: 1,
        lambda: 1,
        functools.wraps(add_one)(lambda *args: add_one(*args)),
    ],
)
def test_what_a_function_takes_is_read_as_inspect_reads_it(function: Callable[..., Any]) -> None:
    """D1"""
    from inspect import Parameter, signature

    from limpet.graphs.workflow.tasks import read_signature

    named = [each for each in signature(function).parameters.values() if each.kind not in (2, 4)]
    read = read_signature(function, "it")
    assert read.required == tuple(each.name for each in named if each.default is Parameter.empty)
    assert read.optional == tuple(each.name for each in named if each.default is not Parameter.empty)
    assert read.any_keyword == any(each.kind == 4 for each in signature(function).parameters.values())


def test_a_task_depends_on_the_tasks_that_its_parameters_name() -> None:
    """H13: also on those that are declared later."""
    flow = diamond()
    assert flow.layers == [["fetch"], ["text", "chart"], ["page"]]
    assert flow.execute({"city": "oslo"}).results["page"] == "OSLO 4"


def test_functions_stand_for_their_tasks_in_whatever_depends_on_is() -> None:
    """D1, H14: a set, a generator, a method, and a function whose task has another name."""

    class Source:
        def fetch(self) -> int:
            return 1

    source = Source()
    for given in ({add_one}, iter([add_one]), (add_one,), {"one": add_one}):
        flow = Workflow("f").add_task("first", add_one, arguments={"before": 0})
        flow.add_task("second", lambda **results: results, given)
        assert depends_on(flow, "second") == ["first"]
    flow = Workflow("f").add_task("first", source.fetch)
    assert depends_on(flow.add_task("second", lambda **results: results, [source.fetch]), "second") == [
        "first"
    ]
    flow.add_task("third", source.fetch)
    with pytest.raises(
        DefinitionError, match="'fetch' is the function of several tasks, 'first', 'third': name one of them"
    ):
        flow.add_task("fourth", lambda **results: results, [source.fetch])


def test_a_name_alone_in_a_decorator_is_explained() -> None:
    """D1: it takes a function, and options by name."""
    for decorator in (Workflow().task, Workflow().template):
        with pytest.raises(DefinitionError, match="a decorator takes the name of a task as name='fetch'"):
            decorator("fetch")


def test_an_empty_depends_on_means_none() -> None:
    """H13: a parameter is an input then."""
    flow = Workflow("own")
    flow.add_task("rate", lambda: 1)
    flow.add_task("price", lambda rate: rate, depends_on=[])
    assert depends_on(flow, "price") == []
    assert flow.execute({"rate": 7}).results["price"] == 7
    with pytest.raises(UsageError, match=r"depends_on=\['rate'\]"):
        flow.execute()


def test_depends_on_that_is_given_is_all_that_a_task_depends_on() -> None:
    """H13"""
    flow = Workflow("some")
    flow.add_task("a", lambda: 1)
    flow.add_task("b", lambda: 2)
    flow.add_task("c", lambda a, b: a + b, depends_on=["a"])
    with pytest.raises(UsageError, match=r"depends_on=\['b'\]"):
        flow.execute()


def test_a_task_is_found_before_an_input_of_the_same_name() -> None:
    """H13"""
    flow = Workflow("both")
    flow.add_task("rate", lambda: 1)
    flow.add_task("price", lambda rate: rate)
    assert flow.execute({"rate": 7}).results["price"] == 1


def test_a_parameter_that_every_task_may_take_names_no_task() -> None:
    """H13: `state` is the state, unless depends_on says that it is a task."""
    flow = Workflow("special")
    flow.add_task("state", lambda: "of the art")
    flow.add_task("look", lambda state: sorted(state.tasks))
    flow.add_task("named", lambda state: state, depends_on=["state"])
    assert depends_on(flow, "look") == []
    assert flow.execute().results["named"] == "of the art"


def test_arguments_and_the_name_of_the_task_itself_name_no_task() -> None:
    """H13"""
    flow = Workflow("names")
    flow.add_task("a", lambda: 1)
    flow.add_task("b", lambda a, b: (a, b), arguments={"a": 5})
    assert depends_on(flow, "b") == []
    assert flow.execute({"b": 6}).results["b"] == (5, 6)


def test_a_parameter_with_a_default_and_one_of_a_condition_name_tasks_as_well() -> None:
    """H13"""
    flow = Workflow("more")
    flow.add_task("a", lambda: 1)
    flow.add_task("b", lambda: 2)
    flow.add_task("c", lambda a=0: a, condition=lambda b: b > 1)
    assert depends_on(flow, "c") == ["a", "b"]
    assert flow.execute().results["c"] == 1


def test_an_optional_dependency_stays_optional() -> None:
    """H13"""
    flow = Workflow("optional")
    flow.add_task("a", lambda: 1 // 0, safe_to_fail=True)
    flow.add_task("b", lambda: 2)
    flow.add_task("c", lambda a, b, other: (a, b, other), optional={"other": "b", "a": "a"})
    assert depends_on(flow, "c") == []
    assert flow.execute().results["c"] == (None, 2, 2)


def test_the_decorator_needs_no_depends_on() -> None:
    """H13"""
    flow = Workflow("decorated")

    @flow.task
    def total(rows: list[int]) -> int:
        return sum(rows)

    @flow.task
    async def rows() -> list[int]:
        return [1, 2]

    assert flow.execute().results["total"] == 3


def test_a_circle_of_parameters_is_a_mistake() -> None:
    """H13"""
    flow = Workflow("circle").add_task("hen", lambda egg: 1).add_task("egg", lambda hen: 1)
    with pytest.raises(DefinitionError, match="'hen' → 'egg' → 'hen'"):
        flow.compile()


@pytest.mark.parametrize("given", [{}, {"depends_on": None}])
def test_a_task_that_a_run_adds_depends_on_what_its_parameters_name(given: dict[str, Any]) -> None:
    """H13"""
    flow = Workflow("adds")
    flow.add_task("fetch", lambda: 3)
    flow.add_task("grow", lambda ctx, fetch: ctx.add_task("double", run="twice", **given))
    flow.add_template("twice", lambda fetch: fetch * 2)
    assert flow.execute().results["double"] == 6


def test_a_task_that_a_run_adds_with_no_dependencies_takes_the_input() -> None:
    """H13"""
    flow = Workflow("adds")
    flow.add_task("fetch", lambda: TaskResult(3, add_tasks=[{"name": "d", "run": "twice", "depends_on": []}]))
    flow.add_template("twice", lambda fetch: fetch * 2)
    assert flow.execute({"fetch": 5}).results["d"] == 10


def test_a_run_with_inferred_dependencies_resumes_with_those_that_are_written_out() -> None:
    """H13: they are the same workflow."""
    store = MemoryStore()
    tried = []

    def flow(**given: Any) -> Workflow:
        def flaky(a: int) -> int:
            tried.append(a)
            return a // (len(tried) - 1)

        made = Workflow("same", store=store).add_task("a", lambda: 4)
        return made.add_task("b", flaky, **given)

    with suppress(ExecutionError):
        flow().execute(run_id="r")
    assert flow(depends_on=["a"]).resume("r").results["b"] == 4


def test_pictures_show_inferred_dependencies() -> None:
    """H13"""
    picture = diamond().draw("mermaid")
    assert 'n1["text"]' in picture
    assert 'n3["fetch"]' in picture
    assert "n3 --> n1" in picture
