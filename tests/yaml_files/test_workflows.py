"""Workflows that a file declares."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from limpet import (
    DeclarationError,
    ExecutionError,
    MemoryStore,
    RunPaused,
    TemplateError,
    Workflow,
    WorkflowChanged,
    action,
    load,
    loads,
)
from limpet.yaml_files.actions import registry
from limpet.yaml_files.loading import check, check_text

FLOW = """\
name: weather
tasks:
  - {name: fetch, run: "flows:fetch"}
  - {name: text, run: "flows:text", depends_on: [fetch]}
  - {name: chart, run: "flows:chart", depends_on: {data: fetch}, arguments: {width: 3}}
  - {name: page, run: "flows:page", depends_on: [text], optional: [chart]}
"""


def fetch(city: str) -> dict[str, Any]:
    return {"city": city, "degrees": 21}


def text(fetch: dict[str, Any]) -> str:
    return f"{fetch['degrees']} degrees in {fetch['city']}"


def chart(data: dict[str, Any], width: int) -> str:
    return "#" * width


async def page(text: str, chart: str | None) -> str:
    return f"{text} {chart}"


def fail() -> None:
    raise ValueError("no chart today")


@pytest.fixture(autouse=True)
def flows(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("flows")
    for each in (fetch, text, chart, page, fail):
        setattr(module, each.__name__, each)
    monkeypatch.setitem(sys.modules, "flows", module)


def in_python() -> Workflow:
    flow = Workflow("weather")
    flow.add_task("fetch", fetch)
    flow.add_task("text", text, depends_on=["fetch"])
    flow.add_task("chart", chart, depends_on={"data": "fetch"}, arguments={"width": 3})
    return flow.add_task("page", page, depends_on=["text"], optional=["chart"])


def test_a_workflow_runs_as_the_same_one_in_python_and_has_its_fingerprint(tmp_path: Path) -> None:
    """F13, D1, H7."""
    path = tmp_path / "weather.yaml"
    path.write_text(FLOW)
    flow = load(path)
    assert isinstance(flow, Workflow)
    assert flow.compiled().plan.fingerprint == in_python().compiled().plan.fingerprint
    assert flow.layers == check(path).layers == [["fetch"], ["text", "chart"], ["page"]]  # type: ignore[union-attr]
    for state in (flow.execute({"city": "Bergen"}), asyncio.run(flow.aexecute({"city": "Bergen"}))):
        assert state.results["page"] == "21 degrees in Bergen ###"  # type: ignore[attr-defined]  # a WorkflowState


DECIDING = """
tasks:
  - name: measure
    uses: python
    with: {function: "builtins:dict", arguments: {n: "{{ inputs.n }}"}}
  - name: big
    uses: python
    depends_on: [measure]
    condition: results.measure.n > 10
    with: {function: "builtins:dict", arguments: {from: "{{ results.measure.n * 2 }}", by: "{{ node }}"}}
  - name: ship
    depends_on: [measure]
    prompt: {text: "Ship {{ results.measure.n }}?", choices: [yes, no]}
    condition: "{{ inputs.ask }}"
"""


def test_conditions_prompts_and_templates_see_inputs_and_results() -> None:
    """F13, D11, P1: a skipped task has the reason, in the words of the file."""
    flow = loads(DECIDING, store=MemoryStore(), preserve=True)
    state = flow.execute({"n": 3, "ask": False}, run_id="small")
    assert state.results == {"measure": {"n": 3}}  # type: ignore[attr-defined]  # a WorkflowState
    assert state.tasks["big"].reason == "its condition 'results.measure.n > 10' doesn't hold"  # type: ignore[attr-defined]
    with pytest.raises(RunPaused) as paused:
        flow.execute({"n": 30, "ask": True}, run_id="large")
    (question,) = paused.value.questions
    assert (question.prompt, question.choices) == ("Ship 30?", ["yes", "no"])
    done = flow.resume("large", "yes").results  # type: ignore[attr-defined]  # a WorkflowState
    assert done == {"measure": {"n": 30}, "big": {"from": 60, "by": "big"}, "ship": "yes"}


def test_a_task_may_be_an_async_action(monkeypatch: pytest.MonkeyPatch) -> None:
    """F13, H7: offered what tasks are."""
    monkeypatch.setattr(registry, "_registered", {})

    @action("later")
    async def later(n: int, inputs: Any, results: Any, ctx: Any) -> list[Any]:
        await asyncio.sleep(0)
        return [n, inputs, results, ctx.node]

    flow = loads("tasks: [{name: a, uses: later, with: {n: '{{ inputs.n }}'}}]")
    assert flow.execute({"n": 3}).results["a"] == [3, {"n": 3}, {}, "a"]  # type: ignore[attr-defined]


def test_a_missing_input_of_a_template_fails_the_task_by_name() -> None:
    """F13."""
    with pytest.raises(ExecutionError) as caught:
        loads(DECIDING).execute({"nn": 3})
    cause = caught.value.cause
    assert isinstance(cause, TemplateError)
    assert (cause.key, cause.node) == ("n", "task 'measure'")


def test_a_task_may_fail_be_tried_again_and_be_a_graph() -> None:
    """F13, D4: with the policies of Python."""
    flow = loads("""
tasks:
  - {name: chart, run: "flows:fail", safe_to_fail: true, retry: {attempts: 2, backoff: 0}, timeout: 60}
  - name: inner
    graph:
      state: {n: int}
      nodes: [{name: x, uses: python, with: {function: "builtins:dict", arguments: {n: "{{ state.n }}"}}, output: y}]
    arguments: {n: 4}
""")
    state = flow.execute({})
    assert (state.tasks["chart"].status, state.tasks["chart"].attempts) == ("failed", 2)  # type: ignore[attr-defined]
    assert state.results["inner"] == {"n": 4, "y": {"n": 4}}  # type: ignore[attr-defined]  # a WorkflowState


def test_a_workflow_may_be_a_node_of_a_graph() -> None:
    """F13."""
    graph = loads("""
nodes:
  - name: weather
    graph: {tasks: [{name: fetch, run: "flows:fetch"}, {name: text, run: "flows:text", depends_on: [fetch]}]}
    inputs: {city: place}
    outputs: {said: text}
""")
    assert graph.execute({"place": "Oslo"})["said"] == "21 degrees in Oslo"


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        (
            ("depends_on: [fetch]", "depends_on: [fetsh]"),
            "4:12: task 'text' depends on 'fetsh', which isn't a task; did",
        ),
        (("name: fetch, run", "depends_on: [page], name: fetch, run"), "in a circle"),
        (
            ("{width: 3}", "{widht: 3}"),
            "5:12: task 'chart' has the argument 'widht', which its function doesn't take",
        ),
        (("name: text", "name: inputs"), "4:12: a task can't be called 'inputs'"),
        (("name: text", "name: fetch"), "4:12: a task named 'fetch' already exists"),
        (('run: "flows:text"', "uses: checkpoint.save, with: {path: x}"), "is for graphs"),
        (('run: "flows:text"', "prompt: '{{ parallel_results }}'"), "the unknown variable 'parallel"),
        (
            ('run: "flows:text"', "condition: 'results.'"),
            "needs one of 'run', 'uses', 'prompt', 'receive', 'sleep', 'set', 'start', 'join', 'graph'",
        ),
        (('run: "flows:text"', 'run: "flows:text", condition: "results."'), "can't be parsed"),
        (("optional: [chart]", "optional: 5"), "6:67: optional must be a list of the names"),
    ],
)
def test_mistakes_have_their_places(change: tuple[str, str], mistake: str) -> None:
    """F13, D1."""
    with pytest.raises(DeclarationError) as caught:
        loads(FLOW.replace(*change, 1))
    assert mistake in str(caught.value)
    if "argument" not in mistake:
        with pytest.raises(DeclarationError) as caught:
            check_text(FLOW.replace(*change, 1))
        assert mistake in str(caught.value)


def test_settings_of_the_config_are_those_of_a_workflow(tmp_path: Path) -> None:
    """F13, D7: and a changed file is handled according to `on_mismatch`."""
    config = f"config: {{store: '{tmp_path}/runs.db', keep: 2, preserve: true, max_layers: 9, on_mismatch: MISMATCH}}"
    paused = FLOW + '  - {name: ask, prompt: "Go on?", depends_on: [page]}\n' + config
    flow = loads(paused.replace("MISMATCH", "fail"))
    assert (flow.compiled().keep, flow.compiled().plan.max_iterations) == (2, 10)
    with pytest.raises(RunPaused):
        flow.execute({"city": "Bergen"}, run_id="r")
    changed = paused.replace("optional: [chart]", "optional: []").replace(
        "tasks:\n", 'tasks:\n  - {name: new, prompt: "New?"}\n'
    )
    with pytest.raises(WorkflowChanged):
        loads(changed.replace("MISMATCH", "fail")).resume("r", "yes")
    with pytest.raises(RunPaused, match="'new' asks"):
        loads(changed.replace("MISMATCH", "warn")).resume("r", "yes")


def test_a_loaded_workflow_resumes_from_a_checkpoint() -> None:
    """F13, D3: by its id."""
    store = MemoryStore()
    asking = FLOW + '  - {name: ask, prompt: "Go on?", depends_on: [page]}\n'
    flow = loads(asking, store=store)
    run = flow.invoke({"city": "Bergen"}, run_id="r")
    stopped = [*run][-1]
    onward = loads(asking, store=store, checkpoint=stopped["checkpoint_id"])
    assert onward.execute("yes").results["ask"] == "yes"  # type: ignore[attr-defined]  # a WorkflowState


INFERRED = """
tasks:
  - {name: page, run: "flows:page"}
  - {name: text, run: "flows:text"}
  - {name: chart, run: "flows:chart", depends_on: {data: fetch}, arguments: {width: 3}}
  - {name: fetch, run: "flows:fetch"}
  - name: two parts
    uses: python
    with: {function: "builtins:dict", arguments: {a: "{{ results.text }}!", b: ["{{ results['chart'] }}"]}}
    condition: results.fetch.degrees > 20
  - {name: none, run: "flows:free", depends_on: []}
"""


def test_a_task_depends_on_what_its_parameters_and_templates_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """H13: if it has no depends_on. Templates are known where nothing is imported, too."""
    monkeypatch.setattr(sys.modules["flows"], "free", lambda text: text, raising=False)
    flow = loads(INFERRED)
    assert flow.layers == [["fetch", "none"], ["text", "chart"], ["page", "two parts"]]  # type: ignore[attr-defined]
    results = flow.execute({"city": "Bergen", "text": "mine"}).results  # type: ignore[attr-defined]
    assert results["page"] == "21 degrees in Bergen ###"
    assert results["two parts"] == {"a": "21 degrees in Bergen!", "b": ["###"]}
    assert results["none"] == "mine"
    looked_at = check_text(INFERRED)
    assert ["two parts"] in looked_at.layers  # type: ignore[attr-defined]  # a Workflow


def test_a_task_may_set_values_which_are_its_result() -> None:
    """F13, H13: from inputs, results, context and state."""
    flow = loads("""
tasks:
  - {name: a, set: {n: "{{ inputs.n + 1 }}", text: plain}}
  - {name: b, set: {twice: "{{ results.a.n * 2 }}", seen: "{{ state.tasks.a.status }}", c: "{{ context }}"}}
""")
    results = flow.execute({"n": 2}).results  # type: ignore[attr-defined]
    assert results["a"] == {"n": 3, "text": "plain"}
    assert results["b"] == {"twice": 6, "seen": "completed", "c": {}}


ADDING = """
tasks:
  - {name: index, run: "flows:index"}
  - {name: report, run: "flows:report", depends_on: [index]}
templates:
  - name: page
    set: {title: "{{ arguments.name }} of {{ results.index }}", by: "{{ node }}"}
    condition: arguments.name != 'c'
    safe_to_fail: true
  - {name: code, run: "flows:code", retry: 2}
after_layer: flows:after
"""


@pytest.fixture
def adding(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    told: list[Any] = []

    def index(ctx: Any) -> str:
        for name in "bc":
            ctx.add_task(
                f"page {name}", run="page", arguments={"name": name}, before=["report"], may_fail=True
            )
        ctx.add_task("coded", run="code", arguments={"factor": 3})
        return "index"

    def report(results: dict[str, Any]) -> dict[str, Any]:
        return results

    def code(index: str, factor: int) -> str:
        return index * factor

    def after(layer: int, results: dict[str, Any], ctx: Any) -> None:
        told.append((layer, sorted(results)))

    for each in (index, report, code, after):
        monkeypatch.setattr(sys.modules["flows"], each.__name__, each, raising=False)
    return told


def test_a_file_has_templates_for_tasks_and_a_handler_after_layers(adding: list[Any]) -> None:
    """F13, H13, D1: what runs add finds its arguments, and the results that its templates name."""
    state = loads(ADDING).execute()
    assert state.results["page b"] == {"title": "b of index", "by": "page b"}  # type: ignore[attr-defined]
    assert state.results["coded"] == "indexindexindex"  # type: ignore[attr-defined]
    assert state.tasks["page c"].status == "skipped"  # type: ignore[attr-defined]
    assert "arguments.name != 'c'" in state.tasks["page c"].reason  # type: ignore[attr-defined]
    assert adding[0] == (0, ["index"])
    assert adding[-1][1] == ["report"]


@pytest.mark.parametrize(
    ("change", "mistake"),
    [
        (("name: code", "name: page"), "a task named 'page' already exists"),
        (("name: code", "name: index"), "a task named 'index' already exists"),
        (
            ("arguments.name }}", "argumens.name }}"),
            "the unknown variable 'argumens'; did you mean 'arguments'?",
        ),
        (("flows:after", "flows:afterr"), "afterr"),
        (("retry: 2", "depends_on: [index]"), "template 'code' has no key 'depends_on'"),
        (('{name: code, run: "flows:code", retry: 2}', "{name: code}"), "needs one of 'run'"),
    ],
)
def test_mistakes_in_templates_for_tasks_have_their_places(
    change: tuple[str, str], mistake: str, adding: list[Any]
) -> None:
    """F13"""
    with pytest.raises(DeclarationError, match="<text>:") as caught:
        loads(ADDING.replace(*change, 1))
    assert mistake in str(caught.value)


def test_a_file_with_templates_and_a_handler_can_be_looked_at() -> None:
    """F13: nothing is imported."""
    assert check_text(ADDING).layers == [["index"], ["report"]]  # type: ignore[attr-defined]  # a Workflow
