"""What is marked secret is never in events, logs or summaries; code that reads it by its key gets it."""

from __future__ import annotations

import copy
import io
import logging
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pprint import pformat
from typing import Annotated, Any, NotRequired, Optional, TypedDict

import pydantic
import pytest

from limpet import (
    END,
    START,
    AnswerRefused,
    DefinitionError,
    ExecutionError,
    MemoryCheckpointer,
    MemoryStore,
    NodeContext,
    RunPaused,
    State,
    StateGraph,
    TaskRecord,
    UnstorableValue,
    UsageError,
    Workflow,
    append,
    pause,
    secret,
)
from limpet.graphs.secrets import MASK, mask_text, text_forms
from limpet.journal.run_filter import RunFilter
from limpet.observe import LogObserver, ProgressObserver
from support.checkpoint_stores import InMemoryCheckpointStore
from support.graphs import chain

TOKEN = "sk-live-7f3a9c"


class Shown:
    """All that a run shows: events, log lines, progress, summaries, history, errors, notes."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        self.caplog = caplog
        self.texts: list[str] = []
        self.screen = io.StringIO()
        self.observers: list[Any] = [
            lambda event: self.see(event),
            LogObserver(),
            ProgressObserver(self.screen),
        ]

    def see(self, *things: Any) -> None:
        for thing in things:
            self.texts += [repr(thing), str(thing)]

    def drive(self, run: Any) -> Any:
        for event in run:
            self.see(event, pformat(event))
        self.see(run, run.error, run.questions, run.state)
        return run

    def of(self, graph: Any, run_id: str) -> None:
        """What can be seen of a run from outside, also in the store without opening its journal."""
        store = graph.compiled().client.store
        steps = [each.step for each in graph.history(run_id)]
        self.see(graph.runs(), graph.history(run_id), graph.state_at(run_id), graph.verify(run_id))
        self.see(graph.diff(run_id, steps[0], steps[-1]))
        self.texts += [each.note.decode("latin-1") for each in store.list(RunFilter())]

    def leaks(self, *secrets: str) -> list[str]:
        texts = [*self.texts, self.caplog.text, self.screen.getvalue()]
        assert len(texts) > 5
        return [text for text in texts for each in secrets or (TOKEN,) if each in text]


@pytest.fixture
def shown(caplog: pytest.LogCaptureFixture) -> Shown:
    return Shown(caplog)


def line(schema: Any, *nodes: Callable[..., Any], observers: Any = (), **options: Any) -> StateGraph:
    """A graph of nodes in a row, named n0, n1 …"""
    names = [f"n{number}" for number in range(len(nodes))]
    graph = chain(*nodes, names=names, schema=schema, name="line", observers=observers)
    return graph.compile(**{"store": MemoryStore(), "preserve": True, **options})


# Marking


class Typed(TypedDict):
    token: Annotated[str, secret]
    later: NotRequired[Annotated[str, secret]]
    maybe: Optional[Annotated[str, secret]]  # noqa: UP045  # a spelling that people use
    each: list[Annotated[str, secret]]
    plain: str


@dataclass
class Data:
    token: Annotated[str, secret] = "x"
    plain: Annotated[str, "a remark"] = "y"


def test_a_key_is_marked_in_every_kind_of_schema() -> None:
    """F1: also inside of what surrounds a type, and next to a reducer."""
    assert StateGraph(Typed).schema.secrets == {"token", "later", "maybe", "each"}
    assert StateGraph(Data).schema.secrets == {"token"}
    made = StateGraph({"token": Annotated[str, secret], "log": Annotated[list, append, secret], "n": int})
    assert made.schema.secrets == {"token", "log"}
    other_way_round = StateGraph({"log": Annotated[list, secret, append]}).schema
    assert (other_way_round.secrets, other_way_round.reducers["log"]) == ({"log"}, append)
    assert not callable(secret)
    assert repr(secret) == "secret"


def test_a_pydantic_model_marks_its_keys_and_its_secret_types_mark_themselves() -> None:
    """F1, H4: SecretStr is stored, and comes back as one."""

    class Model(pydantic.BaseModel):
        token: Annotated[str, secret]
        password: pydantic.SecretStr
        raw: pydantic.SecretBytes | None = None
        plain: int = 3

    graph = line(Model, lambda state: {"plain": len(state["password"].get_secret_value())})
    assert graph.schema.secrets == {"token", "password", "raw"}
    state = graph.execute({"token": TOKEN, "password": TOKEN, "raw": TOKEN.encode()}, run_id="r")
    assert state["plain"] == len(TOKEN)
    stored = graph.state_at("r")
    assert stored["password"] == pydantic.SecretStr(TOKEN)
    assert stored["raw"].get_secret_value() == TOKEN.encode()
    assert TOKEN not in repr(stored)
    with pytest.raises(UsageError, match="plain: Input should be a valid integer") as refused:
        graph.execute({"token": TOKEN, "password": "p", "plain": TOKEN})
    assert TOKEN not in str(refused.value)
    assert refused.value.__cause__ is None


def test_marking_a_key_doesnt_change_what_a_graph_is() -> None:
    """Invariant 4: a run that was saved before a key was marked resumes after it was."""
    store = MemoryStore()

    def ask(state: State) -> dict[str, Any]:
        return {"answer": pause("?")}

    plain = line({"token": str}, ask, store=store)
    marked = line({"token": Annotated[str, secret]}, ask, store=store)
    assert plain.compiled().plan.fingerprint == marked.compiled().plan.fingerprint
    with pytest.raises(RunPaused):
        plain.execute({"token": TOKEN}, run_id="r")
    assert repr(marked.resume("r", "yes")) == f"State({{'token': {MASK}, 'answer': 'yes'}})"


# What is shown


def test_nothing_of_a_run_that_completes_shows_a_secret(shown: Shown) -> None:
    """G11, F4, H6: the state is yours by key; printed, it has a mask."""
    seen: list[str] = []

    def use(state: State) -> dict[str, Any]:
        seen.append(state["token"])
        shown.see(state)
        return {"log": [f"used {state['token']}"], "token": state["token"] + "-next"}

    schema = {"token": Annotated[str, secret], "log": Annotated[list, append, secret], "n": int}
    graph = line(schema, use, lambda state: {"n": 1}, observers=shown.observers)
    run = shown.drive(graph.stream({"token": TOKEN, "n": 0}, run_id="r"))
    shown.of(graph, "r")
    shown.see(graph.fork("r", 1, {"token": TOKEN + "-fork"}).state)
    assert shown.leaks() == []
    assert seen[0] == TOKEN
    assert run.state["token"] == TOKEN + "-next"
    assert graph.state_at("r", 0)["token"] == TOKEN
    difference = graph.diff("r", 0, 1)
    assert difference.changed["token"] == (TOKEN, TOKEN + "-next")
    assert (
        repr(difference)
        == f"Difference(added={{}}, removed={{}}, changed={{'token': {MASK}, 'log': {MASK}}})"
    )


def test_a_state_keeps_its_secrets_whatever_is_made_of_it() -> None:
    """G1: copies, changed ones and pickled ones."""
    state = line({"token": Annotated[str, secret]}, lambda state: None).execute(
        {"token": TOKEN, "n": [{"token": TOKEN}]}
    )
    made = [state, state.set("a", 1), state.merge({"b": 2}), state.clone(), state.copy(), copy.copy(state)]
    made += [copy.deepcopy(state), pickle.loads(pickle.dumps(state))]
    for each in made:
        assert each["token"] == TOKEN
        assert each.get("token") == TOKEN
        assert TOKEN not in f"{each} {each!r} {each!s} {pformat(each)} {[each]}"
    assert TOKEN in repr(State({"token": TOKEN})), "a State of one's own has no schema"


@pytest.mark.parametrize(
    "secret_value", [TOKEN, [TOKEN], {"key": TOKEN}, (1, {"a": [TOKEN]}), TOKEN.encode()]
)
def test_a_secret_in_the_text_of_an_error_is_covered(secret_value: Any, shown: Shown) -> None:
    """G9, H8: also in the traceback and in a cause, in what is stored of it, and in retries."""

    def fail(state: State) -> None:
        try:
            raise KeyError(f"deep {state['token']}")
        except KeyError as error:
            raise ValueError(f"no good: {state['token']!r}") from error

    graph = StateGraph({"token": Annotated[Any, secret]}, name="g", observers=shown.observers)
    graph.add_node("a", run=fail, retry=2).add_edge(START, "a").add_edge("a", END)
    graph.compile(store=MemoryStore(), preserve=True)
    run = shown.drive(graph.stream({"token": secret_value}, run_id="r"))
    assert isinstance(run.error, ExecutionError)
    assert "no good: " in str(run.error)
    shown.of(graph, "r")
    (info,) = graph.runs()
    assert info.error is not None
    assert info.error["message"].startswith("no good: ")
    assert "KeyError" in info.error["traceback"]
    assert shown.leaks() == []


def test_a_secret_that_a_failing_node_had_just_assigned_is_covered(shown: Shown) -> None:
    """G9: it never came into the state."""

    def fail(state: State) -> None:
        state["token"] = TOKEN
        raise ValueError(f"{TOKEN} was refused")

    graph = line({"token": Annotated[str, secret]}, fail, observers=shown.observers)
    shown.drive(graph.stream({}, run_id="r"))
    shown.of(graph, "r")
    assert shown.leaks() == []
    assert graph.runs()[0].error["message"] == f"{MASK} was refused"  # type: ignore[index]


def test_what_a_node_returns_wrongly_isnt_quoted(shown: Shown) -> None:
    """H4: a value that can't be stored is named by its key alone, where that is secret."""
    schema = {"token": Annotated[Any, secret]}
    inside = line(schema, lambda state: {"token": {TOKEN: [object()]}}, observers=shown.observers)
    with pytest.raises(ExecutionError, match="the value at token can't be stored") as failed:
        inside.execute({})
    assert isinstance(failed.value.cause, UnstorableValue)
    assert TOKEN not in f"{failed.value} {failed.value.cause}"
    with pytest.raises(UnstorableValue, match="the value at token can't be stored") as refused:
        inside.execute({"token": {TOKEN: object()}})
    assert TOKEN not in str(refused.value)
    with pytest.raises(ExecutionError, match="must return a dict of updates or None, not str") as wrong:
        line(schema, lambda state: TOKEN).execute({})
    assert TOKEN not in f"{wrong.value} {wrong.value.cause}"
    chosen = StateGraph(schema, name="c").add_node("a").add_edge(START, "a")
    chosen.add_conditional_edges("a", lambda state: state["token"], {"x": END}).compile(store=MemoryStore())
    with pytest.raises(ExecutionError, match=f"was '{MASK}', not one of") as lost:
        chosen.execute({"token": TOKEN})
    assert TOKEN not in f"{lost.value} {lost.value.cause}"
    assert line({"n": int}, lambda state: None).execute({"n": 1}) == {"n": 1}


def test_texts_that_are_too_short_to_be_distinguished_from_words_stay() -> None:
    """A secret of three characters isn't looked for in texts."""

    def fail(state: State) -> None:
        raise ValueError("the cat sat")

    graph = line({"pin": Annotated[str, secret], "number": Annotated[int, secret]}, fail)
    with pytest.raises(ExecutionError, match="the cat sat"):
        graph.execute({"pin": "cat", "number": 7})
    with pytest.raises(ExecutionError, match=f"the {MASK}"):
        graph.execute({"pin": "cat sat", "number": 7})


@pytest.mark.parametrize(
    ("value", "text", "told"),
    [
        ("abcd", "abcd, abcde", f"{MASK}, {MASK}e"),
        ("line one\nline two\n", "only line two", f"only {MASK}"),
        ("it's\there", 'as repr: "it\'s\\there"', f'as repr: "{MASK}"'),
        (b"\x00raw!", "b'\\x00raw!'", f"b'{MASK}'"),
        (47110815, "pin 47110815", f"pin {MASK}"),
        (True, "True", "True"),
        ({"a": {"b": ("deep-value",)}}, "deep-value", MASK),
        ({"password": "x"}, "the password", "the password"),
        (Data(token="of-a-dataclass"), "of-a-dataclass", MASK),
        (pydantic.SecretStr("of-pydantic"), "of-pydantic", MASK),
        (["abcd", "abcdef"], "abcdef", MASK),
        (" spaced out ", "(spaced out)", f"({MASK})"),
    ],
    ids=lambda each: repr(each)[:20],
)
def test_what_is_looked_for_in_a_text(value: Any, text: str, told: str) -> None:
    """The longest first, so that no end of one is left."""
    assert mask_text(text, text_forms([value])) == told


def test_looking_for_secrets_ends_also_in_values_that_contain_themselves() -> None:
    endless: list[Any] = ["the-secret"]
    endless.append(endless)
    assert mask_text("the-secret", text_forms([endless])) == MASK
    state = line({"n": Annotated[Any, secret]}, lambda state: None, store=None, preserve=None).execute(
        {"n": 1, "m": endless}
    )
    assert repr(state).startswith(f"State({{'n': {MASK}, 'm': ['the-secret', ['the-secret', [")


def test_a_prompt_is_shown_without_the_secrets_in_it(shown: Shown) -> None:
    """P1: a prompt is part of the run's summary."""
    graph = line(
        {"token": Annotated[str, secret]},
        lambda state: {"ok": pause(f"Is {state['token']} right?")},
        observers=shown.observers,
    )
    run = shown.drive(graph.stream({"token": TOKEN}, run_id="r"))
    assert run.questions[0].prompt == f"Is {MASK} right?"
    with pytest.raises(RunPaused) as paused:
        graph.resume("r")
    shown.see(paused.value)
    shown.of(graph, "r")
    assert shown.leaks() == []
    assert graph.resume("r", True)["ok"] is True


# Branches and graphs inside


def test_a_secret_stays_one_in_branches_maps_and_graphs_inside(shown: Shown) -> None:
    """F12: by its own name, and by another one that it is passed as."""
    inner = StateGraph({"key": str, "found": str}, name="inner")
    inner.add_node("look", run=lambda state: {"found": f"with {state['key']}"})
    inner.add_edge(START, "look").add_edge("look", END)
    graph = StateGraph(
        {"token": Annotated[str, secret], "tokens": Annotated[list, secret]}, observers=shown.observers
    )
    graph.add_node("begin", run=lambda state: {"tokens": [TOKEN + "1", TOKEN + "2"]})
    graph.add_node("sub", inner, inputs={"key": "token"}, outputs={"answer": "found", "copied": "key"})
    graph.add_map("sub", lambda_each, "tokens", "join")
    graph.add_fanin_node("join", run=lambda state, parallel_results: {"all": parallel_results})
    graph.add_edge(START, "begin").add_edge("begin", "sub").add_edge("join", END)
    graph.compile(store=MemoryStore(), preserve=True, interrupt_before=["join"])
    run = shown.drive(graph.stream({"token": TOKEN}, run_id="r"))
    assert run.status == "paused"
    state = graph.resume("r")
    shown.see(
        state, state["all"], state["all"][0], state["all"][0].state, pickle.loads(pickle.dumps(state["all"]))
    )
    shown.see(graph.state_at("r"), graph.runs(), graph.history("r"))
    leaks = [text for text in shown.leaks() if f"with {TOKEN}" not in text]
    assert leaks == [], "what was made of a secret, under a key that isn't marked, isn't secret"
    assert state["all"][1]["item"] == TOKEN + "2"
    assert graph.compiled().plan.secrets == {"token", "tokens", "key", "item", "copied"}


def lambda_each(state: State) -> dict[str, Any]:
    return {"size": len(state["item"])}


def test_a_secret_that_only_a_graph_inside_has_is_covered_in_what_the_run_says(shown: Shown) -> None:
    """F12, G9: what passes out of it fails, and the outer state has no such value."""
    inner = StateGraph({"token": Annotated[str, secret]}, name="inner")
    inner.add_node("find", run=lambda: {"token": TOKEN}).add_edge(START, "find").add_edge("find", END)

    def fail(state: State) -> dict[str, Any]:
        raise ValueError(f"{TOKEN} was refused")

    graph = StateGraph({"n": int}, name="g", observers=shown.observers)
    graph.add_node("sub", inner, outputs=fail).add_edge(START, "sub").add_edge("sub", END)
    graph.compile(store=MemoryStore(), preserve=True)
    shown.drive(graph.stream({}, run_id="r"))
    shown.of(graph, "r")
    assert shown.leaks() == []
    assert graph.runs()[0].error["message"] == f"{MASK} was refused"  # type: ignore[index]


def test_errors_of_branches_are_covered(shown: Shown) -> None:
    """F12: where they are collected, too."""

    def fail(state: State) -> None:
        raise ValueError(f"{state['item']} of {state['token']}")

    graph = StateGraph({"token": Annotated[str, secret], "items": list}, observers=shown.observers)
    graph.add_node("begin").add_node("fail", run=fail)
    graph.add_map("begin", "fail", "items", "join", on_error="collect")
    graph.add_fanin_node(
        "join", run=lambda state, parallel_results: {"errors": [r.error for r in parallel_results]}
    )
    graph.add_edge(START, "begin").add_edge("join", END).compile(store=MemoryStore(), preserve=True)
    run = shown.drive(graph.stream({"token": TOKEN, "items": [1, 2]}, run_id="r"))
    shown.of(graph, "r")
    assert shown.leaks() == []
    assert [each["message"] for each in run.state["errors"]] == [f"1 of {MASK}", f"2 of {MASK}"]


def test_errors_deep_inside_are_covered_by_what_is_secret_on_the_way_there(shown: Shown) -> None:
    """F12: any section around it may have passed it in."""

    def fail(state: State) -> None:
        raise ValueError(f"{TOKEN}-outer and {TOKEN}-middle")

    inner = line({"x": int}, fail)
    middle = StateGraph({"mid": Annotated[str, secret], "x": int}, name="middle")
    middle.add_node("in", inner).add_edge(START, "in").add_edge("in", END)
    graph = StateGraph({"token": Annotated[str, secret], "x": int}, observers=shown.observers)
    graph.add_node("begin").add_node("mid", middle, inputs=lambda state: {"mid": f"{TOKEN}-middle"})
    graph.add_edge(START, "begin").add_edge("begin", "mid").add_edge("mid", END)
    graph.compile(store=MemoryStore(), preserve=True)
    shown.drive(graph.stream({"token": f"{TOKEN}-outer", "x": 1}, run_id="r"))
    shown.of(graph, "r")
    assert shown.leaks() == []
    assert graph.runs()[0].error["message"] == f"{MASK} and {MASK}"  # type: ignore[index]


# Workflows


def test_secret_inputs_context_and_results_of_a_workflow_arent_shown(shown: Shown) -> None:
    """D2, D3: tasks get them, and so does who reads the state."""

    def login(password: str, ctx: Any) -> str:
        ctx.add_context(cookie=f"{password}-cookie")
        return f"{password}-session"

    def use(login: str, context: Any) -> int:
        return len(login) + len(context["cookie"])

    def fail(login: str) -> None:
        raise ValueError(f"{login} has expired")

    flow = Workflow(
        "w", store=MemoryStore(), preserve=True, secrets=["password", "cookie"], observers=shown.observers
    )
    flow.add_task("login", login, secret=True)
    flow.add_task("use", use, ["login"])
    flow.add_task("fail", fail, ["login"], safe_to_fail=True)
    run = shown.drive(flow.stream({"password": TOKEN, "user": "ann"}, {"password": TOKEN}, run_id="r"))
    shown.of(flow, "r")
    checkpoint = flow.checkpoint("r")
    shown.see(checkpoint, checkpoint.state, run.state.tasks, pickle.loads(pickle.dumps(run.state)))
    assert shown.leaks() == []
    assert run.state.results["login"] == f"{TOKEN}-session"
    assert run.state.results["use"] == 2 * len(TOKEN) + len("-session-cookie")
    assert run.state.inputs == {"password": TOKEN, "user": "ann"}
    assert checkpoint.inputs["password"] == TOKEN
    record = run.state.tasks["login"]
    assert (record.secret, record.result) == (True, f"{TOKEN}-session")
    assert repr(record).endswith(", secret=True)")
    error = run.state.tasks["fail"].error
    assert error is not None
    assert error["message"] == f"{MASK} has expired"
    assert repr(TaskRecord("a", "completed", 1)) == (
        "TaskRecord(id='a', status='completed', result=1, timestamp=0.0, duration=0.0, attempts=0, layer=0, "
        "reason=None, error=None)"
    )


def test_a_task_that_runs_a_graph_with_secrets_has_a_secret_result(shown: Shown) -> None:
    """D1: its result is the graph's state."""
    inner = line({"token": Annotated[str, secret]}, lambda state: {"token": TOKEN})
    flow = Workflow("w", store=MemoryStore(), preserve=True, observers=shown.observers).add_task(
        "inner", inner
    )
    run = shown.drive(flow.stream({}, run_id="r"))
    shown.of(flow, "r")
    shown.see(run.state.tasks)
    assert shown.leaks() == []
    assert run.state.results["inner"]["token"] == TOKEN


def test_the_names_of_secrets_are_checked() -> None:
    with pytest.raises(DefinitionError, match="secrets must be a list of names"):
        Workflow("w", secrets="password")
    with pytest.raises(DefinitionError, match="secrets must be a list of names"):
        Workflow("w", secrets=[1])  # type: ignore[list-item]


# Answers


def test_a_secret_answer_is_the_nodes_alone(shown: Shown) -> None:
    """P1, P3: it isn't quoted when it is refused, nor where it was given."""

    def ask(state: State) -> dict[str, Any]:
        code = pause("Your code?", schema={"type": "string", "minLength": 6}, secret=True)
        if code.endswith("0"):
            raise ValueError(f"{code} is wrong")
        return {"size": len(code)}

    graph = line({"size": int}, ask, observers=shown.observers)
    run = shown.drive(graph.stream({}, run_id="r"))
    assert run.questions[0].secret
    assert graph.runs()[0].questions[0].secret
    for wrong in (12345678, "1234"):
        with pytest.raises(AnswerRefused) as refused:
            graph.resume("r", wrong)
        shown.see(refused.value)
    with pytest.raises(ExecutionError) as failed:
        graph.resume("r", "12345670")
    shown.see(failed.value)
    shown.of(graph, "r")
    assert shown.leaks("12345678", "1234'", "12345670") == []


def test_a_secret_answer_that_isnt_a_choice_isnt_quoted(shown: Shown) -> None:
    graph = line({}, lambda state: {"x": pause("?", choices=["red", "blue"], secret=True)})
    shown.drive(graph.stream({}, run_id="r"))
    with pytest.raises(AnswerRefused, match=f"{MASK} is not one of 'red', 'blue'") as refused:
        graph.resume("r", "green")
    assert "green" not in str(refused.value)


def test_a_model_that_refuses_a_secret_answer_doesnt_quote_it(shown: Shown) -> None:
    """P1: the run asks again, and says no more than that."""

    class Code(pydantic.BaseModel):
        code: str

        @pydantic.field_validator("code")
        @classmethod
        def check(cls, value: str) -> str:
            if "x" not in value:
                raise ValueError(f"{value} has no x")
            return value

    graph = line(
        {}, lambda state: {"n": len(pause("Code?", schema=Code, secret=True).code)}, observers=shown.observers
    )
    shown.drive(graph.stream({}, run_id="r"))
    with pytest.raises(RunPaused, match="the last answer was refused") as asked:
        graph.resume("r", {"code": TOKEN})
    shown.see(asked.value)
    shown.of(graph, "r")
    assert shown.leaks() == []
    assert graph.resume("r", {"code": "xyz"})["n"] == 3


def test_a_secret_answer_isnt_among_the_decisions_of_a_workflow(shown: Shown) -> None:
    """D11, P2: that it was answered is."""

    def ask() -> int:
        pause("First?", key="first", secret=True)
        return len(pause("Second?", key="second"))

    flow = Workflow("w", store=MemoryStore(), preserve=True, observers=shown.observers).add_task("ask", ask)
    shown.drive(flow.stream({}, run_id="r"))
    with pytest.raises(RunPaused):
        flow.resume("r", TOKEN)
    first, second = flow.checkpoint("r").pauses
    assert (first.prompt, first.answered, first.secret, first.response) == ("First?", True, True, MASK)
    assert (second.answered, second.secret) == (False, False)
    state = flow.resume("r", "yes")
    assert [each["answer"] for each in state.decisions] == [MASK, "yes"]
    shown.of(flow, "r")
    shown.see(flow.checkpoint("r"), state.decisions)
    assert shown.leaks() == []


def test_a_prompt_among_the_decisions_of_a_workflow_is_covered(shown: Shown) -> None:
    """D11: it is reported in the words in which it was asked."""
    flow = Workflow("w", store=MemoryStore(), preserve=True, secrets=["key"], observers=shown.observers)
    flow.add_task("ask", lambda key: pause(f"Is it {key}?"))
    shown.drive(flow.stream({"key": TOKEN}, run_id="r"))
    state = flow.resume("r", "yes")
    assert [each["prompt"] for each in state.decisions] == [f"Is it {MASK}?"]
    shown.of(flow, "r")
    shown.see(flow.checkpoint("r"), state.decisions)
    assert shown.leaks() == []


# Where secrets may be stored

SECRETIVE = {"token": Annotated[str, secret]}


def one_node(schema: Any, **options: Any) -> StateGraph:
    return line(schema, lambda state: None, **options)


def test_a_store_that_isnt_encrypted_refuses_secrets(tmp_path: Path) -> None:
    """P6: no secret is stored in plain text unless the user allows it."""
    targets: list[dict[str, Any]] = [
        {"store": f"sqlite:///{tmp_path}/runs.db"},
        {"store": f"file://{tmp_path}/runs"},
        {"store": InMemoryCheckpointStore()},
        {"store": None, "checkpoint_dir": tmp_path / "files"},
    ]
    for target in targets:
        with pytest.raises(
            DefinitionError, match=r"secrets \('token'\).* in plain text: .*allow_plain_text_secrets=True"
        ):
            one_node(SECRETIVE, **target)
        assert one_node({"n": int}, **target)
        allowed = one_node(SECRETIVE, **target, allow_plain_text_secrets=True)
        assert allowed.execute({"token": TOKEN})["token"] == TOKEN
    assert one_node(SECRETIVE, store=None, checkpointer=MemoryCheckpointer()).execute({"token": TOKEN})
    flow = Workflow("w", store=tmp_path / "runs.db").add_task("a", lambda: 1, secret=True)
    with pytest.raises(DefinitionError, match=r"secrets \('a'\)"):
        flow.compile()
    assert flow.compile(allow_plain_text_secrets=True).execute({}).results == {"a": 1}
    hidden = Workflow("v", store=tmp_path / "runs.db").add_task("a", lambda: 1)
    with pytest.raises(DefinitionError, match="the results of tasks"):
        hidden.add_template("t", lambda: 1, secret=True).compile()


def test_a_secret_question_is_refused_where_its_answer_would_be_in_plain_text(tmp_path: Path) -> None:
    """P1, P6: the node fails before the question is asked."""

    def ask(state: State) -> dict[str, Any]:
        return {"x": pause("Code?", secret=True)}

    store = f"sqlite:///{tmp_path}/runs.db?level=process"
    with pytest.raises(ExecutionError, match="would keep the answer in plain text"):
        line({}, ask, store=store).execute({})
    with pytest.raises(RunPaused):
        line({}, ask, store=store, allow_plain_text_secrets=True).execute({})


def test_a_checkpoint_file_isnt_written_with_secrets_by_hand(tmp_path: Path) -> None:
    """F7: unless it is allowed."""
    graph, path = one_node(SECRETIVE), tmp_path / "a.pkl"
    with pytest.raises(UsageError, match="'token' in plain text"):
        graph.save_checkpoint(path, {"token": TOKEN}, "n0")
    assert not path.exists()
    graph.save_checkpoint(path, {"n": 1}, "n0")
    graph.compile(store=MemoryStore(), allow_plain_text_secrets=True).save_checkpoint(
        path, {"token": TOKEN}, "n0"
    )
    assert graph.load_checkpoint(path)["state"] == {"token": TOKEN}


def test_a_child_run_in_the_store_of_its_parent_doesnt_keep_secrets_in_plain_text(tmp_path: Path) -> None:
    """H16: the child's own graph says what is secret, and the parent's store would keep it as it is."""
    child = StateGraph({"token": Annotated[str, secret]}, name="child")
    child.add_node("use", run=lambda state: None).set_entry_point("use").set_finish_point("use")

    def begin(ctx: NodeContext) -> None:
        ctx.join(ctx.start(child, {"token": TOKEN}))

    database = tmp_path / "runs.db"
    parent = StateGraph(name="parent").add_node("begin", run=begin).set_entry_point("begin")
    parent.set_finish_point("begin").compile(store=f"sqlite:///{database}")
    with pytest.raises(ExecutionError, match=r"'child': it has secrets \('token'\), and SQLiteStore"):
        parent.execute({}, run_id="r")
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert TOKEN.encode() not in stored

    child.compile(allow_plain_text_secrets=True)
    assert parent.resume("r") == {}
