"""Nodes and tasks of files that talk with their run: messages, questions with a deadline, what they show."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, Field

import limpet
from limpet import (
    ActionFailed,
    DeadlinePassed,
    DeclarationError,
    DefinitionError,
    ExecutionError,
    MemoryStore,
    RunPaused,
    Runs,
    RunWaiting,
    StateGraph,
    UsageError,
    Workflow,
    loads,
)
from limpet.testing.clock import FakeClock
from limpet.yaml_files.loading import check_text


class Order(BaseModel):
    """What tests of schemas ask for."""

    item: str
    amount: int = Field(1, gt=0)


CHAT = """
state: {said: {type: list, reducer: append}}
nodes:
  - {name: hear, receive: user, output: said, goto: [{to: hear, condition: "state.said[-1] != 'bye'"}, END]}
"""


def test_a_node_takes_messages_in_their_order_and_waits_for_the_next() -> None:
    """H16"""
    graph = loads(CHAT, store=MemoryStore())
    with pytest.raises(RunWaiting) as waiting:
        graph.execute({}, run_id="r")
    assert [(wait.name, wait.node) for wait in waiting.value.waits] == [("user", "hear")]
    for text in ("hello", "kelp", "bye"):
        graph.send("r", "user", text)
    assert graph.resume("r") == {"said": ["hello", "kelp", "bye"]}


def test_a_node_of_an_async_run_takes_a_message() -> None:
    """H16"""
    graph = loads(CHAT, store=MemoryStore())
    graph.start({}, run_id="r").send("user", "bye")
    assert asyncio.run(graph.aresume("r")) == {"said": ["bye"]}


def test_a_task_takes_a_message_while_others_continue() -> None:
    """H16, H13: its value is the result; the name may be a template."""
    flow = loads(
        """
tasks:
  - {name: hear, receive: "order {{ inputs.number }}"}
  - {name: other, set: {n: 1}}
  - {name: ship, set: {to: "{{ results.hear.city }}"}}
""",
        store=MemoryStore(),
    )
    with pytest.raises(RunWaiting):
        flow.execute({"number": 7}, run_id="r")
    assert flow.get("r").state.results == {"other": {"n": 1}}
    flow.send("r", "order 7", {"city": "Bergen"})
    assert flow.resume("r").results["ship"] == {"to": "Bergen"}


def test_branches_and_graphs_inside_take_messages() -> None:
    """H16"""
    graph = loads(
        """
nodes:
  - {name: begin}
  - {name: left, receive: user, output: said}
  - name: right
    graph: {nodes: [{name: hear, receive: user, output: said}]}
    outputs: {said: said}
  - {name: join, set: {all: "{{ parallel_results | map(attribute='said') | list }}"}, goto: END}
edges: [{from: begin, parallel: [left, right], fan_in: join}]
""",
        store=MemoryStore(),
    )
    with pytest.raises(RunWaiting):
        graph.execute({}, run_id="r")
    graph.send("r", "user", 1)
    graph.send("r", "user", 2)
    assert graph.resume("r")["all"] == [1, 2]


def test_after_the_deadline_there_is_the_default_or_a_failure() -> None:
    """H16: 0 doesn't wait; an error edge leads on from a deadline that passed."""
    graph = loads(
        """
nodes:
  - {name: look, receive: {name: stop, deadline: 0, default: null}, output: stop}
  - name: wait
    receive: {name: go, deadline: "{{ state.patience }}", default: "{{ state.other }}"}
    output: go
  - {name: need, receive: {name: key, deadline: 0}, output: key, goto: [END, {to: late, on: "limpet:DeadlinePassed"}]}
  - {name: late, set: {why: "{{ error.message }}"}, goto: END}
edges: [{from: look, to: wait}, {from: wait, to: need}]
""",
        store=MemoryStore(),
    )
    ended = graph.execute({"patience": 0, "other": ["plan b"]})
    assert (ended["stop"], ended["go"]) == (None, ["plan b"])
    assert "no message 'key' came in time" in ended["why"]


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        ("int", "7", "the message 'n' is '7', not of type integer"),
        ("{type: object, required: [id]}", {"name": "x"}, "the message 'n' has no 'id'"),
        ("{type: 5}", 1, "schema can't be used"),
        ("str", [0] * 100_000, "the message 'n' is [0, 0"),
    ],
)
def test_a_message_that_does_not_fit_fails_the_node_and_is_kept_for_a_retry(
    schema: str, value: Any, problem: str
) -> None:
    """H16: what can send to a run can send anything."""
    graph = loads(f"nodes: [{{name: a, receive: {{name: n, schema: {schema}}}}}]", store=MemoryStore())
    graph.start({}, run_id="r").send("n", value)
    with pytest.raises(ExecutionError) as failed:
        graph.resume("r")
    assert isinstance(failed.value.cause, ActionFailed)
    assert problem in str(failed.value.cause)
    assert len(str(failed.value.cause)) < 500
    loose = loads("nodes: [{name: a, receive: n, output: n}]", store=graph.compiled().need_client("x").store)
    Runs(loose.compiled().need_client("x").store).retry("r")
    assert loose.resume("r")["n"] == value


def test_a_class_is_the_schema_of_questions_and_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """H14, H16: the answer is checked by the class, and is plain data; the file names it, never data."""
    module = ModuleType("shapes")
    module.Order = Order  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "shapes", module)
    graph = loads(
        """
nodes:
  - {name: ask, prompt: {text: What?, schema: "shapes:Order"}, output: asked}
  - {name: hear, receive: {name: order, schema: "shapes:Order"}, output: heard}
""",
        store=MemoryStore(),
    )
    run = graph.start({}, run_id="r")
    run.send("order", {"item": "kelp", "amount": 2})
    with pytest.raises(RunPaused):
        graph.resume("r")
    with pytest.raises(UsageError, match="has no 'item'"):
        run.answer({"amount": 1})
    ended = graph.resume("r", {"item": "rope"})
    assert ended == {"asked": {"item": "rope", "amount": 1}, "heard": {"item": "kelp", "amount": 2}}
    with pytest.raises(RunPaused):
        graph.execute({}, run_id="s")
    graph.send("s", "order", {"item": "kelp", "amount": 0})
    with pytest.raises(ExecutionError, match="amount"):
        graph.resume("s", {"item": "rope"})
    for action in (
        "prompt: {text: x, schema: '{{ state.x }}'}",
        "receive: {name: x, schema: '{{ state.x }}'}",
    ):
        with pytest.raises(ExecutionError, match="the file names the code, not the state"):
            loads(f"nodes: [{{name: a, {action}}}]", store=MemoryStore()).execute({"x": "shapes:Order"})
    text = "nodes: [{name: a, prompt: {text: x, schema: '%s'}}]"
    with pytest.raises(DeclarationError, match="1:45: schema is a type"):
        loads(text % "json:dumps")
    with pytest.raises(DeclarationError, match="1:45: there is no module 'no_such_module'"):
        loads(text % "no_such_module:x")
    assert check_text(text % "no_such_module:x").name == "graph"


def test_the_default_of_a_message_need_not_fit_its_schema() -> None:
    """H16: as that of a question; it says that none came."""
    text = "nodes: [{name: a, receive: {name: x, schema: int, deadline: 0, default: null}, output: x}]"
    assert loads(text, store=MemoryStore()).execute({}) == {"x": None}


def test_a_message_is_data_and_no_template() -> None:
    """H16: what was sent is never interpreted."""
    graph = loads(
        "nodes: [{name: a, receive: n, output: n}, {name: b, set: {c: '{{ state.n }}!'}}]",
        store=MemoryStore(),
    )
    graph.start({}, run_id="r").send("n", "{{ env }}{{ 7 * 7 }}")
    assert graph.resume("r")["c"] == "{{ env }}{{ 7 * 7 }}!"


def test_a_question_has_a_deadline_and_a_default() -> None:
    """P1, H8: as in Python; without a default the node fails."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    graph = loads(
        """
nodes:
  - {name: ask, prompt: {text: Ship?, deadline: 2h, default: {ship: "{{ state.usual }}"}}, output: answer}
  - {name: again, prompt: {text: Sure?, deadline: "{{ state.patience }}"}, output: sure}
""",
        store=store,
    )
    with pytest.raises(RunPaused) as paused:
        graph.execute({"usual": True, "patience": 60}, run_id="r")
    assert paused.value.questions[0].deadline == pytest.approx(clock() + 7200, abs=1)
    clock.advance(7201)
    with pytest.raises(RunPaused):
        graph.resume("r")
    assert graph.get("r").state["answer"] == {"ship": True}
    clock.advance(61)
    with pytest.raises(ExecutionError) as failed:
        graph.resume("r")
    assert isinstance(failed.value.cause, DeadlinePassed)


def test_a_secret_answer_needs_a_store_that_keeps_it(tmp_path: Path) -> None:
    """`prompt: {secret: true}` is `pause(secret=True)`."""
    graph = loads(
        "nodes: [{name: a, prompt: {text: Key?, secret: true}, output: key}]",
        store=f"sqlite:///{tmp_path}/r.db",
    )
    with pytest.raises(ExecutionError, match="plain text"):
        graph.execute({})


@pytest.mark.parametrize(
    "time", ["3600", "1h", "'{{ state.span }}'", "{time: '{{ state.at }}'}", "'{{ state.at.isoformat() }}'"]
)
def test_a_node_sleeps_while_no_process_holds_the_run(time: str) -> None:
    """H9: for a while, or until a date; the file says so, or data does."""
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    graph = loads(f"nodes: [{{name: rest, sleep: {time}}}, {{name: b, set: {{rested: true}}}}]", store=store)
    wake_at = clock() + 3600
    run = graph.start({"span": "60m", "at": datetime.fromtimestamp(wake_at, UTC)})
    assert graph.recover() == [run.id]
    head = store.head(run.id)
    assert head.holder is None
    assert head.due == pytest.approx(wake_at, abs=0.01)
    clock.skip(3601)
    assert graph.recover() == [run.id]
    assert run.result(0)["rested"] is True


def test_edges_take_their_time() -> None:
    """H9: by a choice or a condition; not to the end, and not after an error."""
    text = """
nodes:
  - {name: a, goto: {to: b, delay: 60}}
  - {name: b, goto: {choose: state.next, cases: {x: c}, delay: 0.5}}
  - {name: c, goto: END}
"""
    plan = loads(text).compiled().plan
    assert [plan.nodes[name].delays for name in "abc"] == [{"b": 60.0}, {"c": 0.5}, None]
    for wrong, mistake in (
        ("{to: b, delay: soon}", "2:40: delay must be a number of seconds"),
        ("{to: b, delay: -1}", "2:40: delay must be a number of seconds"),
        ("{to: END, delay: 5}", "an edge from START or to END can't have a delay"),
        ("{to: b, on: ValueError, delay: 5}", "only one of them is allowed"),
        ("{parallel: [b], fan_in: c, delay: 5}", "'delay' needs"),
    ):
        broken = "\nnodes: [{name: a, goto: " + wrong + "}, {name: b, goto: c}, {name: c, goto: END}]"
        with pytest.raises(DeclarationError) as refused:
            loads(broken)
        assert any(mistake in each for each in refused.value.mistakes), refused.value.mistakes


def test_a_task_sleeps_and_a_time_from_data_is_checked() -> None:
    """H9, F13"""
    store = MemoryStore(clock=FakeClock(auto=True))
    assert loads("tasks: [{name: a, sleep: 2w}]", store=store).execute({}).results == {"a": None}
    graph = loads("nodes: [{name: a, sleep: '{{ state.time }}'}]", store=store)
    for wrong in ("soon", None, [], -1, "2026-02-31"):
        with pytest.raises(ExecutionError, match="time"):
            graph.execute({"time": wrong})


def test_nodes_emit_and_say_how_far_they_are() -> None:
    """H12"""
    graph = loads(
        """
nodes:
  - {name: begin, uses: progress, with: {done: 1, total: "{{ state.pages | length }}", message: "page {{ node }}"}}
  - {name: tell, uses: emit, with: {data: {first: "{{ state.pages[0] }}"}}}
"""
    )
    events = [
        event for event in graph.stream({"pages": ["a", "b"]}) if event["type"] in ("output", "progress")
    ]
    assert [event["node"] for event in events] == ["begin", "tell"]
    begun, told = events
    assert (begun["done"], begun["total"], begun["message"]) == (1, 2, "page begin")
    assert told["data"] == {"first": "a"}


def test_templates_read_the_error_that_led_to_a_node() -> None:
    """Error edges: None where no error edge did."""
    graph = loads(
        """
nodes:
  - {name: first, set: {before: "{{ error == none }}"}, goto: work}
  - {name: work, uses: shell, with: {script: exit 3}, goto: [END, {to: tell, on: Exception}]}
  - {name: tell, set: {failed: "{{ error.node }}: {{ error.type }} after {{ error.attempts }}"}, goto: END}
"""
    )
    state = graph.execute({})
    assert state["before"] is True
    assert state["failed"] == "work: limpet.errors.ActionFailed after 1"


def test_messages_of_the_same_id_take_each_others_place() -> None:
    """H14: the reducer for lists of messages has a word."""
    graph = loads(
        """
state: {log: {reducer: add_messages}}
nodes:
  - {name: a, set: {log: [{id: 1, text: a}, {id: 2, text: b}]}}
  - {name: b, set: {log: {id: 1, text: c}}}
"""
    )
    assert graph.execute({})["log"] == [{"id": 1, "text": "c"}, {"id": 2, "text": "b"}]


# the deadline of runs


@pytest.mark.parametrize("work", ["nodes: [{name: a, receive: x}]", "tasks: [{name: a, receive: x}]"])
def test_a_file_says_by_when_its_runs_end_and_a_caller_may_say_otherwise(work: str) -> None:
    """Run-wide deadlines: counted from the start of each run."""
    clock = FakeClock()
    graph = loads(f"{work}\nconfig: {{deadline: 2h}}", store=MemoryStore(clock=clock))
    assert graph.start({}, run_id="started").info.deadline == pytest.approx(clock() + 7200, abs=1)
    clock.advance(3600)
    with pytest.raises(RunWaiting):
        graph.execute({}, run_id="executed")
    assert graph.get("executed").info.deadline == pytest.approx(clock() + 7200, abs=1)
    assert graph.start({}, run_id="other", deadline="5m").info.deadline == pytest.approx(clock() + 300, abs=1)
    clock.advance(3601)
    with pytest.raises(DeadlinePassed):
        graph.resume("started")


def test_the_deadline_of_a_graph_can_be_given_in_python() -> None:
    """Run-wide deadlines: `compile(deadline=…)`, and `load(…, deadline=…)` in place of what the file says."""
    graph = StateGraph(name="g").add_node("a").add_edge(limpet.START, "a").add_edge("a", limpet.END)
    assert graph.compile(deadline=60, store=MemoryStore()).start({}).info.deadline is not None
    flow = Workflow("w", deadline="7d", store=MemoryStore())
    flow.add_task("a", lambda: 1)
    assert flow.start({}).info.deadline is not None
    for wrong in ("soon", -1, True, "9999999w"):
        with pytest.raises(DefinitionError, match="deadline"):
            graph.compile(deadline=wrong)
    loaded = loads("nodes: [{name: a}]\nconfig: {deadline: 0, store: memory}", deadline="1h")
    assert loaded.execute({}) == {}


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("nodes: [{name: a, receive: {deadline: 1}}]", "1:28: receive needs the key 'name'"),
        ("nodes: [{name: a, receive: ''}]", "1:28: receive must be the name of a message"),
        ("nodes: [{name: a, receive: {name: x, default: 1}}]", "1:38: 'default' needs 'deadline'"),
        ("nodes: [{name: a, receive: {name: x, timeout: 1}}]", "did you mean 'deadline'?"),
        ("nodes: [{name: a, receive: x, prompt: y}]", "only one of them is allowed"),
        (
            "nodes: [{name: a, receive: {name: x, deadline: soon}}]",
            "1:48: deadline must be a number of seconds",
        ),
        ("nodes: [{name: a, prompt: {text: x, deadline: 2026-02-31}}]", "1:47: deadline is a time, not"),
        ("nodes: [{name: a, prompt: {text: x, default: 1}}]", "1:37: 'default' needs 'deadline'"),
        ("nodes: [{name: a}]\nconfig: {deadline: 1y}", "2:20: deadline must be"),
        ("nodes: [{name: a}]\nconfig: {deadline: '{{ 1 }}'}", "2:20: deadline can't be a template"),
        ("nodes: [{name: a}]\nconfig: {deadline: 99999999w}", "2:20: deadline must be at most"),
        ("tasks: [{name: a, set: {x: 1}}]\nconfig: {deadline: -5}", "2:20: deadline must be"),
        ("nodes: [{name: a, uses: progress, with: {total: 1}}]", "needs the key 'done'"),
        ("nodes: [{name: a, uses: emit}]", "needs the key 'data'"),
        ("nodes: [{name: a, sleep: soon}]", "1:26: sleep must be a number of seconds"),
        ("nodes: [{name: a, sleep: {until: 5}}]", "did you mean 'time'?"),
        ("nodes: [{name: a, sleep: 2026-02-31}]", "1:26: time is a time, not"),
        ("nodes: [{name: a, sleep: 1h, output: x}]", "'output' needs"),
    ],
)
def test_mistakes_have_their_places(text: str, mistake: str) -> None:
    """F13: in a file that is only looked at, too."""
    for read in (loads, check_text):
        with pytest.raises(DeclarationError) as refused:
            read(text)
        assert any(mistake in each for each in refused.value.mistakes), refused.value.mistakes


def test_a_time_that_a_template_gives_is_checked_when_the_node_runs() -> None:
    """H16, F13: data can't make a run wait for ever by being no time."""
    graph = loads(
        "nodes: [{name: a, receive: {name: x, deadline: '{{ state.until }}'}}]", store=MemoryStore()
    )
    for until in ("tomorrow", -1, [], None, 1e300):
        with pytest.raises(ExecutionError) as failed:
            graph.execute({"until": until})
        assert isinstance(failed.value.cause, ActionFailed)
        assert "deadline must be" in str(failed.value.cause)


def limpet_command(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(limpet.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-m", "limpet", *words], cwd=place, env=environment, capture_output=True, text=True
    )


def test_what_a_killed_process_received_is_there_in_the_next(tmp_path: Path) -> None:
    """H16: the file is run, its process killed, and its run resumed by other processes."""
    (tmp_path / "chat.yaml").write_text(
        """
state: {said: {type: list, reducer: append}}
nodes:
  - {name: hear, receive: user, output: said}
  - {name: crash, uses: shell, with: {script: "test -e crashed || { touch crashed; kill -9 $PPID; }"}}
  - {name: more, receive: {name: user, deadline: 1h}, output: said}
config: {store: "sqlite:///chats.db", deadline: 1d}
""",
        encoding="utf-8",
    )
    begun = limpet_command(tmp_path, "run", "chat.yaml", "--id", "chat-1", "--deadline", "2h")
    assert "hear waits for the message user" in begun.stderr
    sent = limpet_command(tmp_path, "runs", "send", "chat-1", "user", "hello", "--graph", "chat.yaml")
    assert sent.returncode == 0, sent.stderr
    killed = limpet_command(tmp_path, "resume", "chat-1", "--graph", "chat.yaml")
    assert killed.returncode == -signal.SIGKILL
    runs = Runs(f"sqlite:///{tmp_path}/chats.db")
    runs.send("chat-1", "user", "bye")
    ended = limpet_command(tmp_path, "resume", "chat-1", "--graph", "chat.yaml", "--json")
    assert ended.returncode == 0, ended.stderr
    assert runs.get("chat-1").state["said"] == ["hello", "bye"]
    info = runs.get("chat-1").info
    assert info.deadline is not None
    assert info.deadline - info.created < 7300
