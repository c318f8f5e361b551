"""H19: whatever is asked, the server doesn't fail, and answers with JSON that every client can read.

`FUZZED_REQUESTS=20000 .venv/bin/pytest --timeout 0 tests/server/test_any_request.py` tries more of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limpet import MemoryStore, Schedules, Workflow, emit, open_store, pause
from limpet.frontends.graph_on_store import GraphOnStore
from limpet.graphs.names import SCHEDULES
from limpet.server import app
from limpet.server.application import ENDPOINTS
from limpet.server.endpoint import Endpoint, Parameter
from support.http_api import Client, article, plain
from support.http_server import API, TOKEN

REQUESTS = int(os.environ.get("FUZZED_REQUESTS", "300"))

TEXTS = st.text(st.characters(), max_size=12)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
RUN_IDS = ["asks", "failed", "talks", "flow", "a/b", "none", ""]
KNOWN: dict[str, list[Any]] = {
    "run_id": RUN_IDS,
    "new_run_id": RUN_IDS,
    "with": RUN_IDS,
    "parent": RUN_IDS,
    "run_ids": [["asks"], ["failed", "flow"], [], RUN_IDS],
    "graph": ["article", "talk", "flow", "other", ""],
    "name": ["nightly", "note", "password", ""],
    "status": [["failed"], ["paused", "queued"], ["none"]],
    "step": [0, 1, 2, 99, -1],
    "a": [0, 1, -1],
    "b": [1, 2, 99],
    "with_step": [0, 1, 99],
    "key": ["count", "topic", "password", "none", ""],
    "task": ["count", "none"],
    "after": ["", "2:0.0.0.0.0.0.0.0:asks", "0x1p+3:asks", -1, 0, 5],
    "limit": [0, 1, 20, 2000, 10_001],
    "every": ["1h", "0s", "x"],
    "cron": ["* * * * *", "0 3 * * 1", "x"],
    "timezone": ["UTC", "Europe/Rome", "x"],
    "delay": ["0s", "5m", "-1s", "x"],
    "deadline": ["1h", "2001-01-01", "x"],
    "expires": ["1h", "0s", "2001-01-01", "x"],
    "since": ["1h", "2026-01-01", "x"],
    "starts": ["2026-01-01", "1h", "x"],
    "ends": ["2036-01-01", "x"],
    "type": ["step", "answer", "x"],
    "update": [{"count": 1}, {"topic": "moss"}, {"password": 1}, {}],
    "input": [{"topic": "kelp"}, {"count": "x"}, {}],
    "value": ["yes", "no", 1, None],
    "count": [0, 3, 10_001, -1],
    "row": ["0", "1", "99", "x"],
    "link": ["x.y", "", "."],
}
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "text": TEXTS,
    "texts": st.lists(TEXTS, max_size=3),
    "integer": st.integers(-(2**54), 2**54),
    "flag": st.booleans(),
    "object": st.dictionaries(TEXTS, JUNK, max_size=3),
    "anything": JUNK,
}


def value_of(parameter: Parameter) -> st.SearchStrategy[Any]:
    """A value that makes sense, one that fits, or any."""
    usual = st.sampled_from(KNOWN[parameter.name]) if parameter.name in KNOWN else KINDS[parameter.kind]
    return st.one_of(usual, usual, KINDS[parameter.kind], JUNK)


def values_of(parameters: Any) -> st.SearchStrategy[dict[str, Any]]:
    needed = {each.name: value_of(each) for each in parameters if each.is_required}
    other = {each.name: value_of(each) for each in parameters if not each.is_required}
    return st.fixed_dictionaries(needed, optional=other)


class Request(NamedTuple):
    """What is sent."""

    endpoint: Endpoint
    path: str
    query: dict[str, Any]
    body: Any


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """A route with values in its path, its query and its body."""
    endpoint = draw(st.sampled_from(QUICK))
    names = {name: draw(st.sampled_from(KNOWN[name]) | TEXTS) for name in PATH_NAMES}
    path = API + endpoint.path.format(**{name: quoted(each) for name, each in names.items()})
    query = draw(values_of(endpoint.query))
    body: Any = draw(values_of(endpoint.body))
    if endpoint.takes_file:
        body = draw(st.binary(max_size=40))
    return Request(endpoint, path, query, body)


PATH_NAMES = ("run_id", "graph", "name", "link", "row")
QUICK = [each for each in ENDPOINTS if not each.streams]
"""Routes whose answers end."""


def quoted(value: Any) -> str:
    """A value in a URL, also where it isn't a text that could be one."""
    text = value
    if not isinstance(value, str):
        text = json.dumps(value)
    return quote(text, safe="", errors="surrogatepass")


def in_query(values: dict[str, Any]) -> str:
    """Values as a query has them. Lists are repeated."""
    pairs = [
        f"{name}={quoted(each)}"
        for name, given in values.items()
        for each in (given if isinstance(given, list) else [given])
    ]
    return "&".join(pairs)


class World(NamedTuple):
    """A client, and the runs that there are at first, each with its graph and its input."""

    client: Client
    runs: dict[str, tuple[Any, dict[str, Any]]]

    def refill(self) -> None:
        """Have these runs again, as far as earlier requests have deleted them, and a schedule."""
        for run_id, head in zip(self.runs, self.client.store.heads(list(self.runs)), strict=True):
            if head is None:
                graph, input = self.runs[run_id]
                list(graph.stream(input, run_id=run_id))
        if self.client.store.get_document(f"{SCHEDULES}nightly") is None:
            graph, input = self.runs["asks"]
            Schedules(self.client.store).add("nightly", graph, every="1h", input=input, replace=True)


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Runs of all kinds in a store, which requests change."""
    store: Any = MemoryStore()
    if request.param == "sqlite":
        folder = tmp_path_factory.mktemp("any")
        store = open_store(f"sqlite:///{folder}/runs.db?level=process")

    def use_all(state: Any) -> dict[str, Any]:
        emit({"a": 1})
        return {"big": 2**70, "nan": float("nan"), "set": {1}, "bytes": b"x", "large": "x" * 30_000}

    graph = article(MemoryStore())
    talk = plain(use_all, name="talk")(MemoryStore())
    flow = Workflow("flow").add_task("count", lambda n=1: n).add_task("ask", lambda count: pause("?"))
    graphs = [GraphOnStore(each, store) for each in (graph, talk, flow)]
    on_store = {each.name: each for each in graphs}
    runs = {
        "asks": (on_store["article"], {"topic": "kelp"}),
        "failed": (on_store["article"], {"topic": "broken"}),
        "talks": (on_store["talk"], {}),
        "flow": (on_store["flow"], {"n": 2}),
        "a/b": (on_store["article"], {"topic": "moss"}),
    }
    with Client(app(store, [graph, talk, flow], token=TOKEN), store, graph) as client:
        yield World(client, runs)
    store.close()


@settings(max_examples=REQUESTS, deadline=None, suppress_health_check=list(HealthCheck))
@given(request_=requests())
def test_no_request_makes_the_server_fail(world: World, request_: Request) -> None:
    """H19: whatever is in its path, its query and its body."""
    world.refill()
    content = None
    headers = {}
    if request_.endpoint.takes_file:
        content = request_.body
    elif request_.endpoint.method == "POST":
        content = json.dumps(request_.body).encode()
        headers["content-type"] = "application/json"
    url = f"{request_.path}?{in_query(request_.query)}"
    answer = world.client.request(request_.endpoint.method, url, content=content, headers=headers)
    assert answer.status_code < 500, answer.text
    if answer.headers["content-type"].endswith("json"):
        json.loads(answer.content.decode("utf-8"), parse_constant=refuse)


def refuse(name: str) -> None:
    """`NaN` and the like aren't JSON."""
    raise AssertionError(name)
