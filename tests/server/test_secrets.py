"""H19: a secret is in no answer, wherever it is in a run, and whatever is asked for."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from limpet import (
    END,
    LimpetError,
    MemoryStore,
    NodeContext,
    Schedules,
    StateGraph,
    Workflow,
    append,
    emit,
    pause,
    receive,
    register_type,
    secret,
)
from limpet.frontends.values import shown_value, size_of
from limpet.graphs.secrets import MASK
from limpet.journal.encoding import user_types
from limpet.server import app
from limpet.server.application import ENDPOINTS
from support.http_api import CANARY, Client, api, filled, plain, required
from support.http_server import API, TOKEN, Events, served

FORMS = (CANARY, b64encode(CANARY.encode()).decode().rstrip("="))


@register_type
@dataclass
class Login:
    """A value of a state with a field of the name of a secret key."""

    user: str
    password: str


@register_type
class Account(BaseModel):
    """A value of a state with a secret of pydantic's own kind."""

    name: str
    pin: SecretStr = SecretStr(CANARY)


@register_type
@dataclass
class Sealed:
    """A secret of a user's own kind."""

    content: str

    def get_secret_value(self) -> str:
        return self.content


class Secretive(BaseModel):
    """A state with secrets of all kinds."""

    topic: str = ""
    password: Annotated[str, secret] = CANARY
    tokens: Annotated[list[str], append, secret] = [CANARY]
    key: SecretStr = SecretStr(CANARY)
    login: Login | None = None
    account: Account | None = None
    nested: dict[str, Any] = {}
    code: Annotated[str, secret] = ""


def inner(store: Any) -> StateGraph:
    graph = StateGraph({"password": Annotated[str, secret], "deep": str}, name="inner")
    graph.add_node("deep", run=lambda state: {"deep": "done"}).set_entry_point("deep")
    return graph.add_edge("deep", END).compile(store=store, preserve=True)


def secretive(store: Any) -> StateGraph:
    """A graph with secrets in its state, its output, its answers, its messages, its children and its errors."""
    child = inner(store)
    graph = StateGraph(Secretive, name="secretive")

    def fill(state: Any) -> dict[str, Any]:
        emit({"password": CANARY, "shown": 1})
        emit(Login("ann", CANARY))
        return {
            "login": Login("ann", CANARY),
            "account": Account(name="ann"),
            "nested": {"deep": [{"password": CANARY}]},
            "tokens": [CANARY],
        }

    def wait(state: Any) -> None:
        receive("password")

    def ask(state: Any) -> dict[str, Any]:
        return {"code": pause("Your code?", secret=True)}

    def start(state: Any, ctx: NodeContext) -> None:
        ctx.start(child, {"password": CANARY}, config={"password": CANARY})

    def fail(state: Any) -> None:
        raise ValueError(f"wrong password {CANARY}")

    for node in (fill, wait, ask, start, fail):
        graph.add_node(node.__name__, node)
    graph.set_entry_point("fill")
    for one, other in [("fill", "wait"), ("wait", "ask"), ("ask", "start"), ("start", "fail"), ("fail", END)]:
        graph.add_edge(one, other)
    return graph.compile(store=store, preserve=True)


def tasks(store: Any) -> Workflow:
    """A workflow whose inputs, context and results are secret."""
    flow = Workflow("tasks", secrets=["password"], store=store, preserve=True)
    flow.add_task("log_in", lambda password: f"session {password}", secret=True)
    flow.add_task("use", lambda log_in: {"password": CANARY, "length": len(log_in)}, ["log_in"])
    flow.add_task("fail", lambda use, log_in: 1 // (len(log_in) - len(log_in)), ["use", "log_in"])
    return flow


def run_all(store: Any) -> list[Any]:
    """Have a run of each graph in a store, and a schedule; returns the graphs."""
    graph = secretive(store)
    flow = tasks(store)
    config = {"password": CANARY}
    with suppress(LimpetError):
        graph.execute({"topic": "x"}, config, run_id="graph")
    graph.get("graph").send("password", CANARY)
    for answer in ((), (CANARY,)):
        with suppress(LimpetError):
            graph.resume("graph", *answer)
    assert graph.get("graph").status == "failed"
    with suppress(LimpetError):
        flow.execute({"password": CANARY}, config, run_id="flow")
    graph.start({"password": CANARY}, config, run_id="queued")
    input = {"password": CANARY, "login": Login("ann", CANARY)}
    Schedules(store).add("nightly", graph, every="1h", input=input, config=config)
    return [graph, flow, inner(store)]


def paths(client: Client) -> Iterator[tuple[str, dict[str, Any]]]:
    """All paths that can be read, with all that can be asked for."""
    run_ids = [each["run_id"] for each in client.read("/runs")["runs"]]
    assert len(run_ids) >= 4  # with the child
    for endpoint in ENDPOINTS:
        if endpoint.method != "GET" or endpoint.gives == "EventStream":
            continue
        names = {each.name for each in endpoint.query}
        for run_id in run_ids if "{run_id}" in endpoint.path else ["none"]:
            for graph in ("secretive", "tasks") if "{graph}" in endpoint.path else ["none"]:
                for row in map(str, range(8)) if "{row}" in endpoint.path else ["0"]:
                    path = filled(endpoint, run_id=run_id, graph=graph, name="nightly", row=row)
                    params = required(endpoint) | ({"with": "flow"} if "with" in names else {})
                    yield path, params
                    for name, values in (
                        ("step", range(8)),
                        ("a", range(8)),
                        ("b", range(8)),
                        ("whole", ["true"]),
                        ("key", [*Secretive.model_fields, "tasks", "inputs", "context", "dag"]),
                        ("task", ["log_in", "use", "fail"]),
                        ("run_id", run_ids),
                        ("text", [CANARY, "password"]),
                    ):
                        if name in names:
                            yield from ((path, {**params, name: value}) for value in values)
    yield from ((path, {}) for path in ("/metrics", "/healthz", f"{API}/openapi.json", "/", "/runs/graph"))


@pytest.mark.parametrize("knows_code", [True, False])
def test_no_answer_has_a_secret(knows_code: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: with the code of the graphs and without it, where the classes of values aren't known either."""
    store = MemoryStore()
    graphs = run_all(store)
    if not knows_code:
        monkeypatch.setattr(user_types.TYPES, "is_known", lambda name: False)
        graphs = []
    seen = 0
    with Client(app(store, graphs, token=TOKEN), store, None) as client:
        for path, params in paths(client):
            answer = client.get(path, params=params)
            assert answer.status_code < 500, (path, params, answer.text)
            seen += answer.status_code == 200
            if params.get("text") != CANARY:  # which the client said itself
                assert not any(form in answer.text for form in FORMS), (path, params)
        assert client.read("/runs/graph/state")["values"]["topic"] == "x"
        assert "‹secret›" in client.get(f"{API}/runs/graph/state").text
    assert seen > 100


def test_what_is_a_secret_by_its_own_type_is_masked() -> None:
    """H19: pydantic's types, and a user's own that work as they do."""
    assert shown_value([SecretStr(CANARY), {"a": Sealed(CANARY)}]) == [MASK, {"a": MASK}]


def test_the_size_of_a_secret_is_not_told() -> None:
    """H19: a short password is guessed sooner."""
    store = MemoryStore()
    graphs = run_all(store)
    for known in (graphs, []):
        with Client(app(store, known, token=TOKEN), store, None) as client:
            sizes = client.read("/runs/graph/sizes")["sizes"]
            assert {sizes[key] for key in ("password", "tokens", "key", "code")} == {size_of(MASK)}


def keeping(store: Any, name: str, hint: Any) -> StateGraph:
    """A graph whose state has a password, which is secret by its type or isn't."""
    graph = StateGraph({"password": hint, "said": str}, name=name)
    graph.add_node("only", run=lambda state: emit(Login("ann", state["password"])))
    return graph.set_entry_point("only").set_finish_point("only").compile(store=store, preserve=True)


@pytest.mark.parametrize("knows_code", [True, False])
def test_two_runs_are_compared_without_the_secrets_of_either(knows_code: bool) -> None:
    """H19: also where only one of them says that the key is secret."""
    store = MemoryStore()
    graphs = [keeping(store, "marked", Annotated[str, secret]), keeping(store, "unmarked", str)]
    graphs[0].execute({"password": CANARY}, run_id="marked")
    graphs[1].execute({"password": "open", "said": "x"}, run_id="unmarked")
    with Client(app(store, graphs if knows_code else [], token=TOKEN), store, None) as client:
        for one, other in (("marked", "unmarked"), ("unmarked", "marked")):
            found = client.read(f"/runs/{one}/compare", **{"with": other})
            assert "said" in found["changes"]
            assert CANARY not in str(found)
            whole = client.read(f"/runs/{one}/compare", **{"with": other, "key": "password"})
            assert CANARY not in str(whole)


@pytest.mark.parametrize("knows_code", [True, False])
def test_a_secret_result_is_masked_under_the_name_that_a_graph_gets_it_by(knows_code: bool) -> None:
    """H19: a task that runs a graph has it as a key of that graph's state; and a reason may quote it."""
    store = MemoryStore()
    inner = StateGraph({"session": str, "n": int}, name="inner").add_node("use", lambda state: {"n": 1})
    inner.set_entry_point("use").set_finish_point("use")
    flow = Workflow("flow", store=store, preserve=True)
    flow.add_task("log_in", lambda: CANARY, secret=True)
    flow.add_task("inner", inner, depends_on={"session": "log_in"})
    flow.add_task("judge", lambda log_in, ctx: ctx.skip("late", reason=f"because {log_in}"), ["log_in"])
    flow.add_task("late", lambda: 1, ["judge"])
    flow.execute({}, run_id="r")
    with Client(app(store, [flow] if knows_code else [], token=TOKEN), store, flow) as client:
        rows = client.read("/runs/r/timeline")["rows"]
        paths = ["/state", "/tasks", "/events", "/history", *(f"/timeline/{row['id']}" for row in rows)]
        texts = [client.get(f"{API}/runs/r{path}").text for path in paths]
        texts += [client.get(f"{API}/runs/r/diff?a={step}&b={step + 1}").text for step in range(4)]
        branches = [client.get(f"{API}/runs/r/state?branch=inner&step={step}") for step in range(5)]
        assert any(each.status_code == 200 and "session" in each.json()["values"] for each in branches)
        assert not [text for text in [*texts, *(each.text for each in branches)] if CANARY in text]


def test_a_key_that_was_marked_later_is_secret_in_earlier_runs() -> None:
    """H19: the run doesn't know that, and the code does."""
    store = MemoryStore()
    keeping(store, "g", str).execute({"password": CANARY}, run_id="r")
    marked = keeping(store, "g", Annotated[str, secret])
    with Client(app(store, [marked], token=TOKEN), store, None) as client:
        assert client.read("/runs/r/export", 403)["code"] == "has-secrets"
        for path in ("state", "events", "output", "timeline/0", "timeline/1", "sizes"):
            assert not any(form in client.get(f"{API}/runs/r/{path}").text for form in FORMS), path
        for step in (0, 1):
            assert CANARY not in str(client.read("/runs/r/diff", a=step, b=1 - step))
        assert "said" not in client.read("/runs/r/state")["values"]


def test_what_a_step_removed_is_masked() -> None:
    """H19: in the difference of a later state from an earlier one."""
    store = MemoryStore()
    graph = StateGraph({"password": Annotated[str, secret]}, name="g")
    graph.add_node("only", run=lambda state: {"password": CANARY})
    graph.set_entry_point("only").set_finish_point("only").compile(store=store, preserve=True)
    graph.execute({}, run_id="r")
    with Client(app(store, [], token=TOKEN), store, None) as client:
        changes = client.read("/runs/r/diff", a=1, b=0)["changes"]
        assert changes == {"password": {"change": "removed", "before": MASK}}


def test_no_answer_to_a_change_has_a_secret() -> None:
    """H19: also not of what the client has just sent."""
    store = MemoryStore()
    graphs = run_all(store)
    with Client(app(store, graphs, token=TOKEN), store, None) as client:
        answers = [
            client.post(f"{API}/runs/graph/fork", json={"step": 1, "update": {"password": CANARY}}),
            client.post(f"{API}/runs/graph/retry", json={"update": {"password": CANARY}}),
            client.post(f"{API}/runs/graph/rollback", json={"step": 1}),
            client.post(f"{API}/runs/graph/answer", json={"value": CANARY}),
            client.post(f"{API}/runs/fork", json={"run_ids": ["flow"]}),
            client.post(f"{API}/runs/send", json={"run_ids": ["flow"], "name": "password", "value": CANARY}),
            client.post(
                f"{API}/graphs/secretive/runs", json={"input": {"password": CANARY, "tokens": CANARY}}
            ),
            client.post(f"{API}/graphs/secretive/runs", json={"input": {"password": [CANARY]}}),
            client.post(f"{API}/graphs/tasks/runs", json={"input": {"password": CANARY}}),
            client.post(
                f"{API}/schedules",
                json={"name": "s", "graph": "secretive", "every": "1h", "input": {"password": CANARY}},
            ),
            client.post(
                f"{API}/schedules",
                json={"name": "nightly", "graph": "secretive", "every": "1h", "input": {"password": "x"}},
            ),
        ]
        for answer in answers:
            assert answer.status_code < 500, answer.text
            assert not any(form in answer.text for form in FORMS), answer.text
        assert sum(answer.status_code == 200 for answer in answers) >= 5


@pytest.mark.parametrize("value", [MASK, {"key": MASK}, [1, [{"a": [MASK]}]]])
def test_a_mask_that_is_sent_back_replaces_no_secret(value: Any) -> None:
    """H19: it is refused wherever a value goes, at any depth."""
    with api() as client:
        client.run_until_it_stops("kelp", topic="kelp")
        before = client.read("/runs/kelp")
        for path, body in (
            ("/runs/kelp/fork", {"step": 1, "update": {"password": value}}),
            ("/runs/fork", {"run_ids": ["kelp"], "update": {"password": value}}),
            ("/runs/kelp/answer", {"value": value}),
            ("/runs/kelp/answer", {"answers": {"q": value}}),
            ("/runs/kelp/send", {"name": "note", "value": value}),
            ("/graphs/article/runs", {"input": {"topic": value}}),
            ("/schedules", {"name": "s", "graph": "article", "every": "1h", "input": {"topic": value}}),
        ):
            problem = client.act(path, 400, **body)
            assert (problem["code"], MASK in problem["detail"]) == ("usage", True), path
        assert client.read("/runs/kelp") == before
        assert len(client.read("/runs")["runs"]) == 1
        assert client.read("/schedules")["schedules"] == []


def test_a_run_with_secrets_is_not_exported_over_http() -> None:
    """H19: its file would have them, also those that only answered a question."""
    store = MemoryStore()
    graphs = run_all(store)
    door = StateGraph(name="door").add_node("ask", run=lambda state: {"long": len(pause("?", secret=True))})
    door.set_entry_point("ask").set_finish_point("ask").compile(store=store, preserve=True)
    with suppress(LimpetError):
        door.execute({}, run_id="asked")
    door.resume("asked", CANARY)
    with Client(app(store, [*graphs, door], token=TOKEN), store, None) as client:
        for run_id in ("graph", "flow", "queued", "asked"):
            refused = client.read(f"/runs/{run_id}/export", 403)
            assert refused["code"] == "has-secrets"
            assert "limpet runs export" in refused["advice"]


def test_a_run_with_a_secret_that_only_its_values_tell_is_not_exported_over_http() -> None:
    """H19: the result of a task that was added as it ran, a secret of pydantic's own kind, a message that waits."""
    store = MemoryStore()
    grown = Workflow("grown", store=store, preserve=True)
    grown.add_template("log_in", lambda: f"session {CANARY}", secret=True)
    grown.add_task("plan", lambda ctx: ctx.add_task("late", run="log_in") and None)
    grown.execute({}, run_id="grown")
    plain(lambda state: {}, {"pin": SecretStr}, "known")(
        MemoryStore()
    )  # from now on, such secrets can be stored
    filling = plain(lambda state: {"account": Account(name="ann")}, {"account": Any}, "filling")(store)
    filling.execute({}, run_id="filled")
    filling.execute({"account": Account(name="ann")}, run_id="begun")
    listening = plain(lambda state: {"got": receive("account")}, name="listening")(store)
    listening.start({}, run_id="posted")
    with Client(app(store, [grown, filling, listening], token=TOKEN), store, None) as client:
        assert client.get(f"{API}/runs/posted/export").status_code == 200
        listening.get("posted").send("account", Account(name="ann"))
        for run_id in ("grown", "filled", "begun", "posted"):
            assert client.read(f"/runs/{run_id}/export", 403)["code"] == "has-secrets", run_id
    with Client(app(store, [], token=TOKEN), store, None) as client:
        for run_id in ("grown", "filled", "begun", "posted"):
            assert client.read(f"/runs/{run_id}/export", 403)["code"] == "has-secrets", run_id


def test_live_streams_have_no_secret() -> None:
    """H19: neither events nor rows of the timeline."""
    store = MemoryStore()
    graphs = run_all(store)
    with served(store, graphs) as server:
        for path in ("/runs/graph/live", "/runs/flow/live", "/runs/graph/timeline/live"):
            events = Events(server, path)
            events.join(60)
            assert events.kinds[-1] == "end"
            assert len(events.messages) > 1
            assert not any(form in str(events.messages) for form in FORMS)


def talked(store: Any) -> StateGraph:
    """A graph that got a message and an answer that are secret only by the names of their fields."""
    graph = StateGraph({"password": Annotated[str, secret]}, name="talked")

    def listen(state: Any) -> None:
        receive("login")
        receive("password")

    def ask(state: Any) -> None:
        pause("Who?")

    graph.add_node("listen", listen).add_node("ask", ask)
    graph.set_entry_point("listen").add_edge("listen", "ask").add_edge("ask", END)
    graph.compile(store=store, preserve=True)
    graph.start({"password": "x"}, run_id="r")
    graph.get("r").send("login", Login("ann", CANARY))
    graph.get("r").send("password", CANARY)
    for answer in ((), (Login("bob", CANARY),)):
        with suppress(LimpetError):
            graph.resume("r", *answer)
    assert graph.get("r").status == "completed"
    return graph


@pytest.mark.parametrize("knows_code", [True, False])
def test_a_secret_field_of_a_message_or_an_answer_is_masked(
    knows_code: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H19: also inside of an instance of a class."""
    store = MemoryStore()
    graphs = [talked(store)]
    if not knows_code:
        monkeypatch.setattr(user_types.TYPES, "is_known", lambda name: False)
        graphs = []
    with Client(app(store, graphs, token=TOKEN), store, None) as client:
        events = client.read("/runs/r/events")["events"]
        assert {"message", "answer"} <= {event["type"] for event in events}
        assert CANARY not in str(events)
        details = [client.read(f"/runs/r/timeline/{row}") for row in range(2)]
        assert "bob" in str(details)
        assert CANARY not in str(details)


@pytest.mark.parametrize("knows_code", [True, False])
def test_a_cursor_that_was_made_up_shows_no_secret(knows_code: bool) -> None:
    """H19: it says that the run has no secrets, and where to read from."""
    store = MemoryStore()
    graphs = [talked(store)]
    with served(store, graphs if knows_code else []) as server, server.client() as client:
        records = store.head("r").sequence
        for record in range(records):
            forged = f"2:{record}.0.0.0.0.{record}.0.0:r"
            page = client.get(f"{API}/runs/r/events", params={"after": forged})
            assert page.status_code == 200
            live = Events(server, "/runs/r/live", **{"Last-Event-ID": forged})
            live.join(60)
            for shown in (page.json()["events"], live.messages):
                assert len(shown) > 0
                assert CANARY not in str(shown)


def test_the_default_of_a_secret_key_is_not_in_the_schema() -> None:
    """H19: a form needs its type alone."""
    store = MemoryStore()
    with Client(app(store, [secretive(store)], token=TOKEN), store, None) as client:
        schema = client.read("/graphs/secretive")["schema"]["properties"]
        assert schema["password"]["writeOnly"] is True
        assert "default" not in schema["password"]
        assert schema["topic"]["default"] == ""


class Credentials(BaseModel):
    """The type of a secret key, whose own fields aren't marked."""

    pin: str = CANARY
    kind: Literal["hunter2-canary"] = CANARY


class Defaults(BaseModel):
    """A state whose keys have secrets in their defaults and examples."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"password": CANARY}]})

    password: Annotated[str, secret] = ""
    login: Login = Login("ann", CANARY)
    logins: list[Login] = Field([], examples=[[{"password": CANARY}]])
    credentials: Annotated[Credentials | None, secret] = None
    default: dict[str, int] = {"shown": 1}


@pytest.mark.parametrize("has_pydantic", [True, False])
def test_no_schema_has_a_secret_in_a_default(has_pydantic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: neither inside of that of another key, nor in the type of a secret one."""
    store = MemoryStore()
    flow = Workflow("flow", secrets=["password"], store=store)
    flow.add_task("use", lambda password, login={"password": CANARY}, mode="fast": 1)
    graph = plain(lambda state: None, Defaults, "defaults")(store)
    if not has_pydantic:
        monkeypatch.setitem(sys.modules, "pydantic", None)
    with Client(app(store, [flow, graph], token=TOKEN), store, None) as client:
        for name, keys in (("flow", {"login", "mode"}), ("defaults", {"login", "credentials", "default"})):
            shown = client.read(f"/graphs/{name}")["schema"]
            assert keys <= shown["properties"].keys()
            assert CANARY not in str(shown)
        assert client.read("/graphs/flow")["schema"]["properties"]["mode"]["default"] == "fast"
        assert shown["properties"]["default"]["default"] == {"shown": 1}
