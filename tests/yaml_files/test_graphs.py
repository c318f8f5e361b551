"""Graphs that a file declares: what they do, and that they are the graphs that Python would have defined."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pytest

import limpet
from limpet import (
    END,
    START,
    DeclarationError,
    ExecutionError,
    Limit,
    MemoryCheckpointer,
    MemoryStore,
    Retry,
    StateGraph,
    UsageError,
    append,
    load,
    load_from_file,
    loads,
)
from limpet.stores.user_stores.checkpoint_files import CheckpointFiles
from limpet.yaml_files.actions import registry
from limpet.yaml_files.loading import check, check_text


def prepare(state: Any) -> dict[str, Any]:
    return {"value": state["value"] + 1, "log": "prepare"}


def review(state: Any, node: str) -> dict[str, Any]:
    return {"log": node}


async def execute(state: Any) -> dict[str, Any]:
    return {"log": "execute", "result": state["value"] * 10}


def bind(state: Any, parallel_results: Any) -> dict[str, Any]:
    return {"book": [result["page"] for result in parallel_results]}


def page(state: Any) -> dict[str, Any]:
    return {"page": f"{state['item']}!"}


def total(old: int, new: int) -> int:
    return old + new


class Odd(Exception):
    pass


def odd(state: Any) -> None:
    raise Odd("odd")


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that files name."""
    module = ModuleType("steps")
    for each in (prepare, review, execute, bind, page, total, Odd, odd):
        setattr(module, each.__name__, each)
    monkeypatch.setitem(sys.modules, "steps", module)
    return module


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str, name: str = "agent.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


AGENT = """
name: agent
description: An example.
state:
  value: int
  log: {type: list, reducer: append}
  limit: {type: int, default: 3}
nodes:
  - {name: prepare, run: "steps:prepare"}
  - {name: review, run: "steps:review"}
  - {name: execute, run: "steps:execute"}
edges:
  - {from: START, to: prepare}
  - {from: prepare, to: prepare, condition: state.value < state.limit}
  - {from: prepare, to: review}
  - {from: review, to: execute}
  - {from: execute, to: END}
"""


def in_python() -> StateGraph:
    graph = StateGraph({"value": int, "log": Annotated[list, append], "limit": int}, name="agent")
    graph.add_node("prepare", run=prepare).add_node("review", run=review).add_node("execute", run=execute)
    graph.add_edge(START, "prepare")
    graph.add_edge("prepare", "prepare", lambda state: state["value"] < 3)
    graph.add_edge("prepare", "review")
    graph.add_edge("review", "execute")
    graph.add_edge("execute", END)
    return graph


def fingerprint(graph: Any) -> str:
    found: str = graph.compiled().plan.fingerprint
    return found


def test_a_file_runs_as_the_same_graph_in_python_does(file: Callable[..., Path]) -> None:
    """F13, F1, H7: sync and async, with a loop, a reducer and a default."""
    graph = load(file(AGENT))
    expected = {"value": 3, "log": ["prepare"] * 3 + ["review", "execute"], "limit": 3, "result": 30}
    assert graph.execute({"value": 0}) == expected
    assert asyncio.run(graph.aexecute({"value": 0})) == expected
    assert graph.execute({"value": 9})["log"] == ["prepare", "review", "execute"]
    assert graph.name == "agent"


def test_the_same_graph_has_the_same_fingerprint_in_yaml_and_in_python(file: Callable[..., Path]) -> None:
    """F13: also where the file is only looked at, and however ways are written down."""
    path = file(AGENT)
    assert fingerprint(load(path)) == fingerprint(in_python()) == check(path).freeze().fingerprint
    by_goto = """
name: agent
state_schema: {value: int, log: {type: list, reducer: append}}
nodes:
  - name: prepare
    run: steps:prepare
    goto: [{to: prepare, condition: "{{ state.value < 3 }}"}, review]
  - {name: review, run: "steps:review", goto: execute}
  - {name: execute, run: "steps:execute", goto: END}
"""
    assert fingerprint(loads(by_goto)) == fingerprint(in_python())
    other = by_goto.replace(", review]", ", review, execute]")
    assert fingerprint(loads(other)) != fingerprint(in_python())


def test_sections_and_graphs_inside_have_the_same_fingerprint_too() -> None:
    """F13, F12."""
    declared = loads("""
nodes:
  - name: start
  - {name: a, run: "steps:page"}
  - {name: b, run: "steps:page"}
  - {name: join, run: "steps:bind"}
  - {name: inner, graph: {name: small, nodes: [{name: x}, {name: y}]}}
  - {name: last}
  - {name: done}
edges:
  - {from: start, parallel: [a, b], fan_in: join, on_error: collect}
  - {from: join, to: inner}
  - {from: inner, choose: state.kind, cases: {1: last, two: END}}
  - {from: last, each: a, over: pages, fan_in: done}
finish: done
""")
    small = StateGraph(name="small").add_node("x").add_node("y").set_entry_point("x")
    small.add_edge("x", "y").set_finish_point("y")
    graph = StateGraph().add_node("start").add_node("a", run=page).add_node("b", run=page)
    graph.add_node("join", run=bind).add_node("inner", small).add_node("last").add_node("done")
    graph.set_entry_point("start")
    for branch in ("a", "b"):
        graph.add_parallel_edge("start", branch, "join", on_error="collect")
    graph.add_edge("join", "inner")
    graph.add_conditional_edges("inner", lambda state: state["kind"], {1: "last", "two": END})
    graph.add_map("last", each="a", over="pages", fan_in="done").set_finish_point("done")
    assert fingerprint(declared) == fingerprint(graph)


def test_without_a_word_on_ways_nodes_follow_each_other_as_listed() -> None:
    """F13: the guide's own snippets have nodes only."""
    graph = loads(
        "nodes: [{name: a, run: 'steps:review'}, {name: b, run: 'steps:review'}]\nstate: {log: {reducer: append}}"
    )
    assert graph.execute({})["log"] == ["a", "b"]
    plain = StateGraph({"log": Annotated[list, append]}).add_node("a").add_node("b").set_entry_point("a")
    assert fingerprint(graph) == fingerprint(plain.add_edge("a", "b").set_finish_point("b"))


def test_a_file_without_a_name_is_called_as_the_file(file: Callable[..., Path]) -> None:
    """F13."""
    assert load(file("nodes: [{name: a}]", "daily-report.yaml")).name == "daily-report"
    assert loads("nodes: [{name: a}]").name == "graph"


def test_choices_lead_by_value_by_name_or_to_the_end() -> None:
    """F13, F1: and results keep their types."""
    graph = loads("""
nodes: [{name: ask}, {name: a, run: "steps:review"}, {name: b, run: "steps:review"}]
edges:
  - {from: ask, choose: state.n, cases: {1: a, "1": b, END: END}}
  - {from: a, choose: "'END'"}
  - {from: b, choose: "{{ 'a' }}", cases: [a, END]}
""")
    assert graph.execute({"n": 1})["log"] == "a"
    assert graph.execute({"n": "1"})["log"] == "a"
    assert "log" not in graph.execute({"n": "END"})
    with pytest.raises(ExecutionError, match="was 5, not one of"):
        graph.execute({"n": 5})


def test_parallel_sections_and_maps_run(file: Callable[..., Path]) -> None:
    """F13, F12: with nodes, with a graph in the file, with a graph of its own, over a key and over a template."""
    sections = """
nodes: [{name: plan}, {name: write, run: "steps:page"}, {name: bind, run: "steps:bind"}]
edges:
  - {from: plan, each: EACH, over: OVER, fan_in: bind, max_concurrency: 2}
  - {from: bind, to: END}
"""
    inline = sections.replace("EACH", "{name: p, nodes: [{name: w, run: 'steps:page'}]}").replace(
        '{name: write, run: "steps:page"}, ', ""
    )
    file("nodes: [{name: w, run: 'steps:page'}]", "page.yaml")
    other = inline.replace("{name: p, nodes: [{name: w, run: 'steps:page'}]}", "page.yaml")
    for text in (sections.replace("EACH", "write"), inline, other):
        for over in ("pages", '"{{ state.pages | sort }}"'):
            graph = load(file(text.replace("OVER", over)))
            assert graph.execute({"pages": ["a", "b"]})["book"] == ["a!", "b!"]


def measure(state: Any) -> dict[str, Any]:
    return {"n": len(state["text"].split())}


INSIDE = """
state: {draft: str, words: int, loud: str}
nodes:
  - name: count
    graph:
      state: {text: str, n: int}
      nodes: [{name: measure, run: "steps:measure", interrupt: before}]
    inputs: {text: draft}
    outputs: {words: n, loud: "{{ state.text | upper }}"}
"""


def test_a_graph_inside_a_node_has_inputs_outputs_and_interrupts_of_its_own(steps: ModuleType) -> None:
    """F13, F3: keys by name, or templates; an interrupt is named by the way there."""
    steps.measure = measure  # type: ignore[attr-defined]  # of this test
    graph = loads(INSIDE, store=MemoryStore())
    (stop,) = graph.invoke({"draft": "kelp grows fast"}, run_id="r")
    assert (stop["type"], stop["branch"], stop["node"]) == ("interrupt", "count", "measure")
    assert graph.resume("r") == {"draft": "kelp grows fast", "words": 3, "loud": "KELP GROWS FAST"}


def test_a_file_that_contains_itself_is_refused(file: Callable[..., Path]) -> None:
    """F13: directly, or by a detour; a file may be used twice."""
    file("nodes: [{name: x, graph: a.yaml}]", "b.yaml")
    a = file("nodes: [{name: x, graph: b.yaml}]", "a.yaml")
    for read in (load, check):
        with pytest.raises(
            DeclarationError, match=r"a\.yaml:1:\d+: .*b\.yaml:1:\d+: a\.yaml contains itself"
        ):
            read(a)
    file("nodes: [{name: x}]", "leaf.yaml")
    assert load(file("nodes: [{name: x, graph: leaf.yaml}, {name: y, graph: leaf.yaml}]")).execute({}) == {}


def test_the_mistakes_of_a_nested_file_are_listed_with_both_places(file: Callable[..., Path]) -> None:
    """F13."""
    file("nodes: [{nam: x}]", "inner.yaml")
    with pytest.raises(DeclarationError) as caught:
        load(file("nodes:\n  - {name: x, graph: inner.yaml}\n  - {name: y, graph: gone.yaml}"))
    text = str(caught.value)
    assert "agent.yaml:2:22: " in text
    assert "inner.yaml:1:10: nodes[0] has no key 'nam'; did you mean 'name'?" in text
    assert "agent.yaml:3:22: there is no file" in text


STOPPING = (
    AGENT + "config: {checkpoint_dir: ./checkpoints, interrupt_before: [review], interrupt_after: [prepare]}"
)


def test_interrupts_stop_where_the_config_and_the_nodes_say(monkeypatch: Any, tmp_path: Path) -> None:
    """F13, F3, F5, F8."""
    monkeypatch.chdir(tmp_path)
    graph = loads(STOPPING)
    (after,) = graph.invoke({"value": 5})
    assert (after["type"], after["node"]) == ("interrupt", "prepare")
    (before,) = graph.invoke(None, checkpoint=after["checkpoint_path"])
    assert before["node"] == "review"
    assert Path(before["checkpoint_path"]).parent == tmp_path / "checkpoints"
    (final,) = graph.invoke({"value": 7}, checkpoint=before["checkpoint_path"])
    assert (final["state"]["log"], final["state"]["result"]) == (["prepare", "review", "execute"], 70)
    twice = AGENT.replace('run: "steps:review"}', 'run: "steps:review", interrupt: [before, after]}')
    graph = loads(twice, checkpointer=MemoryCheckpointer())
    stops = [next(iter(graph.invoke({"value": 5})))]
    stops += graph.invoke(None, checkpoint=stops[-1]["checkpoint_path"])
    assert [stop["node"] for stop in stops] == ["review", "review"]
    assert [stop["state"]["log"] for stop in stops] == [["prepare"], ["prepare", "review"]]


def test_interrupts_without_anywhere_to_save_are_a_mistake() -> None:
    """F13, F3."""
    text = AGENT + "config: {interrupt_before: [review]}"
    with pytest.raises(DeclarationError, match="interrupts need somewhere to save"):
        loads(text)
    assert loads(text, store="memory://").compiled().plan.interrupt_before == {"review"}
    for read in (check_text, loads):
        with pytest.raises(DeclarationError, match="no node 'reviw'; did you mean 'review'"):
            read(text.replace("[review]", "[reviw]"))


def test_a_loaded_graph_really_resumes_from_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: Callable[..., Path]
) -> None:
    """F13, F6, F7: named in the file or when loading; sync, async, streamed or executed; with values and config."""
    monkeypatch.chdir(tmp_path)
    (stop,) = [*loads(STOPPING.replace(", interrupt_after: [prepare]", "")).invoke({"value": 5})]
    saved = stop["checkpoint_path"]
    named = load(file(AGENT + f"config: {{checkpoint: '{saved}'}}"))
    given = load_from_file(file(AGENT), checkpoint=saved)
    as_path = load_from_file(file(AGENT), checkpoint=Path(saved))
    for graph in (named, given, as_path):
        for final in (
            graph.execute(),
            asyncio.run(graph.aexecute()),
            next(iter(graph.invoke()))["state"],
            [*graph.stream()][-1]["state"],
        ):
            assert (final["log"], final["result"]) == (["prepare", "review", "execute"], 60)
        assert graph.execute({"value": 100})["result"] == 1000
    other = StateGraph.load_checkpoint(saved)
    graph.save_checkpoint("by_hand.pkl", {**other["state"], "value": 1}, "execute")
    assert named.invoke(checkpoint="by_hand.pkl").result()["log"] == ["prepare", "execute"]
    with pytest.raises(UsageError, match="resume from the checkpoint"):
        named.execute({}, run_id="mine")


def test_runs_can_resume_from_a_checkpoint_of_a_store_too() -> None:
    """F13: by its id, run and step."""
    store = MemoryStore()
    text = AGENT + "config: {interrupt_before: [review]}"
    (stop,) = loads(text, store=store).invoke({"value": 5}, run_id="r")
    assert loads(text, store=store, checkpoint=stop["checkpoint_path"]).execute()["result"] == 60


def test_settings_of_the_config_are_those_of_compile_and_can_be_overridden(tmp_path: Path) -> None:
    """F13."""
    url = f"sqlite:///{tmp_path}/runs.db"
    text = (
        AGENT
        + f"config: {{store: '{url}', preserve: true, keep: 7, lease: 4.5, max_concurrency: 3, "
        + ("on_save_error: continue, interval: 2, max_iterations: 4, observers: [log]}")
    )
    graph = loads(text)
    compiled = graph.compiled()
    assert (compiled.preserve, compiled.keep, compiled.max_concurrency, compiled.interval) == (True, 7, 3, 2)
    assert (compiled.on_save_error, compiled.plan.max_iterations, compiled.emit is not None) == (
        "continue",
        4,
        True,
    )
    with pytest.raises(ExecutionError):
        graph.execute({"value": -10})
    assert loads(text, preserve=False).compiled().preserve is False
    with pytest.raises(DeclarationError, match="unknown store 'nothing'"):
        loads(AGENT + "config: {store: nothing}")
    with pytest.raises(DeclarationError, match="unknown observer 'lgo'"):
        loads(AGENT + "config: {observers: [lgo]}")


CONFIG = """
config:
  store: memory
  checkpoint_dir: {folder}/stops
  interval: 2
  preserve: true
  keep_result: false
  lease: 4.5
  max_concurrency: 3
  on_save_error: continue
  keep: 7
  deadline: 2h
  queue: gpu
  interrupt_before: [review]
  interrupt_after: [prepare]
"""


def test_compile_after_load_keeps_the_settings_that_it_is_not_given(tmp_path: Path) -> None:
    """F13: a program may give the graph of a file another store, and the rest stays as in the file."""
    loaded = loads(AGENT + CONFIG.format(folder=tmp_path))
    assert isinstance(loaded, StateGraph)
    store = MemoryStore()
    before = loaded.compiled()
    after = loaded.compile(store=store, keep=3, interrupt_after=[]).compiled()
    assert after.client is not None
    assert before.client is not None
    assert after.client.store is store
    assert (after.keep, after.plan.interrupt_after) == (3, frozenset())
    assert after.client.ttl == before.client.ttl == 4.5
    assert isinstance(after.checkpointer, CheckpointFiles)
    for name in (
        *("interval", "preserve", "keep_result", "max_concurrency", "on_save_error", "deadline", "queue"),
        "given",
    ):
        assert getattr(after, name) == getattr(before, name), name
    assert after.plan.interrupt_before == before.plan.interrupt_before == {"review"}
    # What one call gives is not a setting of the file.
    assert loaded.compile(queue=None).compiled().keep == 7
    assert loaded.compiled().queue is None


@pytest.mark.parametrize("kind", ["nodes", "tasks"])
def test_compile_after_load_keeps_the_limits_of_runs(kind: str) -> None:
    """F13, H18: also those that the caller of `load` gave."""
    limits = "limits: {tenant: {concurrency: 1}}\nconfig: {limits: [tenant]}"
    text = f"{limits}\n{kind}: [{{name: a, set: {{x: 1}}}}]"
    tenant = Limit("tenant", concurrency=1)
    assert loads(text).compile(store=MemoryStore()).compiled().limits == (tenant,)
    given = loads(text, queue="gpu").compile(store=MemoryStore()).compiled()
    assert (given.queue, given.limits) == ("gpu", (tenant,))
    assert loads(text).compile(limits=[]).compiled().limits == ()


def test_retries_and_timeouts_are_those_of_python() -> None:
    """F13, H8."""
    graph = loads("""
nodes:
  - {name: a, retry: 4, timeout: 2.5}
  - name: b
    retry: {attempts: 2, backoff: 0, factor: 1, max_delay: 3, jitter: 0, on: [OSError, "steps:Odd"]}
  - {name: c, retry: {on: ValueError}}
""")
    nodes = graph.compiled().plan.nodes
    assert (nodes["a"].retry, nodes["a"].timeout) == (Retry(4), 2.5)
    assert nodes["b"].retry == Retry(2, 0, 1, 3, 0, (OSError, Odd))
    assert nodes["c"].retry == Retry(on=(ValueError,))
    watched = loads("nodes: [{name: b, retry: {attempts: 2, backoff: 0}, run: 'steps:odd'}]")
    with pytest.raises(ExecutionError) as caught:
        watched.execute({})
    assert isinstance(caught.value.cause, Odd)


def test_a_state_may_be_a_class_and_reducers_functions(steps: ModuleType) -> None:
    """F13: by reference, or key by key."""

    @dataclass
    class Shape:
        log: Annotated[list, append]  # type: ignore[type-arg]  # as a user writes it
        n: int = 7

    steps.Shape = Shape  # type: ignore[attr-defined]  # of this test
    graph = loads(
        "state: steps:Shape\nnodes: [{name: a, run: 'steps:review'}, {name: b, run: 'steps:review'}]"
    )
    assert graph.execute({}) == {"log": ["a", "b"], "n": 7}
    steps.add = lambda state: {"n": 2, "seen": {"x": 1}, "log": "y"}  # type: ignore[attr-defined]  # of this test
    keyed = loads("""
state:
  n: {type: int, reducer: "steps:total"}
  seen: {reducer: merge}
  log: {reducer: append, default: [x]}
nodes: [{name: a, run: "steps:add"}, {name: b, run: "steps:add"}]
""")
    assert keyed.execute({"n": 1}) == {"n": 5, "seen": {"x": 1}, "log": ["x", "y", "y"]}
    assert keyed.execute({}) == {"n": 4, "seen": {"x": 1}, "log": ["x", "y", "y"]}


def test_defaults_are_each_runs_own(steps: ModuleType) -> None:
    """F13: a list that one run changes is as it was for the next."""
    steps.grow = lambda state: state["seen"].append(2)  # type: ignore[attr-defined]  # of this test
    graph = loads("state: {seen: {type: list, default: [1]}}\nnodes: [{name: a, run: 'steps:grow'}]")
    assert [graph.execute({})["seen"] for _ in range(2)] == [[1, 2], [1, 2]]


def test_templates_see_state_config_node_and_run() -> None:
    """F13, F2."""
    graph = loads("""
nodes:
  - name: tell
    uses: python
    with:
      function: builtins:dict
      arguments:
        n: "{{ state.n }}"
        text: "{{ node }} of {{ run_id }} with {{ config.user }}"
        deep: [1, {x: "{{ state.n + 1 }}"}]
    output: told
""")
    final = graph.execute({"n": 4}, {"user": "Ann"}, run_id="r1")
    assert final["told"] == {"n": 4, "text": "tell of r1 with Ann", "deep": [1, {"x": 5}]}


def test_templates_see_the_environment_so_that_secrets_stay_out_of_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F13: what an action is given isn't stored."""
    monkeypatch.setenv("TOKEN", "hunter2")
    text = """
nodes:
  - {name: a, uses: shell, with: {script: 'test "$T" = hunter2', env: {T: "{{ env.TOKEN }}"}}, output: done}
"""
    graph = loads(text, store=(store := MemoryStore()), preserve=True)
    assert graph.execute({}, run_id="r")["done"]["code"] == 0
    assert b"hunter2" not in b"".join(store.read("r", first=1).records)
    monkeypatch.delenv("TOKEN")
    with pytest.raises(ExecutionError, match="no key 'TOKEN'"):
        graph.execute({})


def test_conditions_see_config_node_and_run_as_well() -> None:
    """F13, F2."""
    graph = loads("""
nodes: [{name: a}, {name: b, run: "steps:review"}]
edges:
  - {from: a, to: b, condition: config.go and node == 'a' and run_id == 'r'}
  - {from: a, to: END}
finish: b
""")
    assert "log" in graph.execute({}, {"go": True}, run_id="r")
    assert "log" not in graph.execute({}, {"go": True}, run_id="s")
    assert "log" not in graph.execute({}, {"go": False}, run_id="r")


def test_what_passes_into_a_graph_must_be_there() -> None:
    """F13: by name next to a template, with the nearest key."""
    graph = loads("""
nodes:
  - {name: a, graph: {nodes: [{name: x}]}, inputs: {text: darft, n: "{{ state.n + 1 }}"}}
""")
    with pytest.raises(ExecutionError, match="the state has no 'darft'; did you mean 'draft'"):
        graph.execute({"draft": "x", "n": 1})


def test_a_missing_key_fails_the_run_and_names_template_node_and_key() -> None:
    """F13: the cause has what is missing, where, and the nearest key."""
    graph = loads("nodes:\n  - name: a\n    uses: file.read\n    with:\n      path: '{{ state.paht }}'\n")
    with pytest.raises(ExecutionError) as caught:
        graph.execute({"path": "x"})
    cause = caught.value.cause
    assert isinstance(cause, limpet.TemplateError)
    assert (cause.key, cause.node, cause.place) == ("paht", "node 'a'", "<text>:5:13")
    assert str(cause).endswith("the state has no key 'paht'; did you mean 'path'?")
    edge = loads("nodes: [{name: a, goto: [{to: a, condition: state.missing > 3}, END]}]")
    with pytest.raises(ExecutionError) as caught:
        edge.execute({})
    assert isinstance(caught.value.cause, limpet.TemplateError)


def test_reading_imports_nothing_and_loading_imports_only_what_makes_sense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Callable[..., Path]
) -> None:
    """F13: a file that is wrong elsewhere has no module imported."""
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "yaml_side_effect.py"
    module.write_text(
        "import pathlib\npathlib.Path(__file__).with_suffix('.seen').touch()\ndef f(state): pass\n"
    )
    seen = module.with_suffix(".seen")
    text = "imports: [yaml_side_effect]\nnodes: [{name: a, run: 'yaml_side_effect:f'}]"
    sketch = check(file(text))
    with pytest.raises(ExecutionError, match="isn't imported"):
        sketch.execute({})
    with pytest.raises(DeclarationError):
        load(file(text + "\nedgs: []"))
    assert not seen.exists()
    assert load(file(text)).execute({}) == {}
    assert seen.exists()
    sys.modules.pop("yaml_side_effect")


def test_a_path_that_is_not_a_readable_file_is_refused(tmp_path: Path) -> None:
    """F13."""
    with pytest.raises(UsageError, match="there is no file"):
        load(tmp_path / "gone.yaml")
    with pytest.raises(UsageError, match="can't be read"):
        load(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(DeclarationError, match="UTF-8"):
        load(tmp_path / "latin.yaml")
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfnodes: [{name: a}]")
    assert load(tmp_path / "bom.yaml").name == "bom"
    for wrong in (None, 5, ""):
        with pytest.raises(UsageError, match="given by the path of its file"):
            load(wrong)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(UsageError, match="takes the text"):
        loads(b"nodes: []")  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("choice", ["fail", "continue", "wait"])
def test_a_file_takes_each_way_to_treat_a_save_that_fails(choice: str) -> None:
    """F13, D6: as `compile(on_save_error=…)` does."""
    graph = loads(f"nodes: [{{name: a}}]\nconfig: {{store: memory, on_save_error: {choice}}}\n")
    assert graph.compiled().on_save_error == choice


def test_a_file_names_resources_and_load_replaces_them(steps: ModuleType, file: Callable[..., Path]) -> None:
    """H15: a graph inside, inline or in a file, gets them as well, or has its own."""
    opened: list[str] = []

    def model() -> str:
        opened.append("model")
        return "model"

    def ask(state: Any, model: str, node: str) -> dict[str, Any]:
        return {node: model}

    steps.model = model  # type: ignore[attr-defined]
    steps.ask = ask  # type: ignore[attr-defined]
    steps.other = "other"  # type: ignore[attr-defined]
    inner = "nodes: [{name: %s, run: 'steps:ask'}]"
    file(inner % "inside", "inner.yaml")
    text = f"""
resources: {{model: "steps:model"}}
nodes:
  - {{name: top, run: "steps:ask"}}
  - {{name: b, graph: inner.yaml}}
  - {{name: c, graph: {{name: own, resources: {{model: "steps:other"}}, {inner % "mine"}}}}}
"""
    path = file(text)
    assert check(path).freeze().fingerprint
    graph = load(path)
    assert opened == []
    assert graph.execute({}) == {"top": "model", "inside": "model", "mine": "other"}
    assert opened == ["model"]
    assert load(path, resources={"model": "fake"}).execute({})["top"] == "fake"
    assert load(path).compile(max_concurrency=2).execute({})["top"] == "model"
    assert load(path).compile(resources={"model": "fake"}).execute({})["top"] == "fake"
    assert load(path).compile(resources={"other": "more"}).execute({})["top"] == "model"


def test_a_parameter_that_no_resource_fills_is_noted_at_its_node(steps: ModuleType) -> None:
    """H15: and `load` may give the resource that the file doesn't name."""

    def ask(state: Any, model: str) -> dict[str, Any]:
        return {"answer": model}

    steps.ask = ask  # type: ignore[attr-defined]
    text = "nodes:\n  - {name: a, run: 'steps:ask'}"
    with pytest.raises(DeclarationError, match="2:12: node 'a' has an unknown parameter 'model'"):
        loads(text)
    assert loads(text, resources={"model": "given"}).execute({}) == {"answer": "given"}
    with pytest.raises(
        DeclarationError, match=r"1:\d+: resource 'ctx' has the name of what nodes get anyway"
    ):
        loads("resources: {ctx: 'steps:odd'}\n" + text, resources={"model": 1})


def test_a_workflow_in_a_file_has_resources(steps: ModuleType) -> None:
    """H15"""
    steps.model = lambda: "model"  # type: ignore[attr-defined]
    steps.ask = lambda model: model  # type: ignore[attr-defined]
    flow = loads("resources: {model: 'steps:model'}\ntasks: [{name: a, run: 'steps:ask'}]")
    assert flow.execute({}).results == {"a": "model"}


@pytest.mark.parametrize("is_async", [False, True])
def test_actions_of_yours_take_resources(
    steps: ModuleType, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    """H15: by the names of parameters, also functions of the action python; built-in actions take none."""

    async def ask_async(question: str, model: str, input: str = "none") -> str:
        return f"{model}: {question}, {input}"

    def ask(question: str, model: str, input: str = "none") -> str:
        return f"{model}: {question}, {input}"

    steps.model = lambda: "model"  # type: ignore[attr-defined]
    steps.ask = ask_async if is_async else ask  # type: ignore[attr-defined]
    monkeypatch.setattr(registry, "_registered", {})
    limpet.register_action("model.ask", steps.ask)
    resources = "resources: {model: 'steps:model', input: 'steps:model'}\n"
    own = "uses: model.ask, with: {question: why, input: x}"
    python = "uses: python, with: {function: 'steps:ask', arguments: {question: how, input: y}}"
    graph = loads(
        f"{resources}nodes: [{{name: a, {own}, output: a}}, {{name: b, {python}, output: b}},"
        " {name: c, uses: shell, with: {command: [cat]}, output: c}]"
    )
    ended = asyncio.run(graph.aexecute({}))
    assert (ended["a"], ended["b"]) == ("model: why, x", "model: how, y")
    assert ended["c"]["stdout"] == ""
    flow = loads(f"{resources}tasks: [{{name: a, {own}}}, {{name: b, {python}}}]")
    assert asyncio.run(flow.aexecute({})).results == {"a": "model: why, x", "b": "model: how, y"}
    with pytest.raises(DeclarationError, match=r"action 'model.ask' takes 'model', which it isn't given"):
        loads(f"nodes: [{{name: a, {own}}}]")


JUMPS = """
nodes:
  - {name: draft, run: "steps:draft", goto_targets: [publish, END], goto: check}
  - {name: check, run: "steps:odd", retry: 2, goto: [publish, {to: repair, on: ["steps:Odd", KeyError]}]}
  - {name: repair, run: "steps:repair", goto: END}
  - {name: publish}
edges:
  - {from: publish, to: END}
  - {from: draft, to: repair, on: ValueError}
"""


def test_a_file_declares_gotos_and_error_edges(steps: ModuleType, file: Callable[..., Path]) -> None:
    """Goto and error edges: the same graph as in Python, also where nothing is imported."""

    def draft(state: Any) -> Any:
        if state["n"] == 2:
            raise ValueError("two")
        return [None, limpet.Goto("publish", {"x": 1})][state["n"]]

    def repair(state: Any, error: Any) -> dict[str, Any]:
        return {"error": str(error)}

    steps.draft = draft  # type: ignore[attr-defined]
    steps.repair = repair  # type: ignore[attr-defined]
    path = file(JUMPS)
    graph = load(path)
    same = StateGraph(name="agent").add_node("draft", draft, goto=["publish", END])
    same.add_node("check", odd).add_node("repair", repair).add_node("publish").set_entry_point("draft")
    same.add_edge("draft", "check").add_edge("check", "publish").set_finish_point("repair")
    same.set_finish_point("publish").add_error_edge("draft", "repair", ValueError)
    same.add_error_edge("check", "repair", on=(Odd, KeyError))
    assert {print_of(each) for each in (graph, same, check(path))} == {print_of(graph)}
    assert graph.execute({"n": 0}) == {"n": 0, "error": "Odd: odd"}
    assert graph.execute({"n": 1}) == {"n": 1, "x": 1}
    assert graph.execute({"n": 2}) == {"n": 2, "error": "ValueError: two"}
    assert "on Odd or KeyError" in check(path).draw(format="mermaid")


def print_of(graph: Any) -> str:
    return str(graph.freeze().fingerprint)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nodes: [{name: a, uses: log, with: {message: x}, goto_targets: [END]}]", "'goto_targets'"),
        (
            "nodes: [{name: a, run: 'steps:review', goto_targets: [bb]}]",
            "1:55: the goto of 'a': there is no node",
        ),
        ("nodes: [{name: a, goto: {to: b, on: NoError}}, {name: b}]", "'NoError' is not an exception"),
        ("nodes: [{name: a, goto: {to: END, on: ValueError}}]", "1:\\d+: the error edge of 'a' can't lead"),
        ("nodes: [{name: a, goto: {to: b, on: ValueError, condition: x}}, {name: b}]", "only one of them"),
    ],
)
def test_mistakes_in_gotos_and_error_edges_have_their_places(text: str, reason: str) -> None:
    """Goto and error edges"""
    with pytest.raises(DeclarationError, match=reason):
        loads(text)
