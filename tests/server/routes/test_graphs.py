"""H19: the graphs whose code a server knows: their schemas and pictures, and runs of them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import jsonschema
import pytest
from pydantic import BaseModel, Field

from limpet import MemoryStore, StateGraph, Workflow, append, secret
from limpet.frontends.graph_inputs import input_schema
from limpet.server.routes import graphs
from support.graphs import chain
from support.http_api import api, plain
from support.http_server import API


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Place:
    x: int
    y: float = 0.5


class Part(TypedDict):
    name: str
    size: NotRequired[int]


@dataclass
class Described:
    topic: str
    mode: Literal["fast", "slow"] = "fast"
    color: Color = Color.RED
    notes: Annotated[list[str], append] = field(default_factory=list)
    place: Place | None = None
    parts: list[Part] = field(default_factory=list)
    table: dict[str, int] = field(default_factory=dict)
    token: Annotated[str, secret] = "a canary"


class Checked(BaseModel):
    topic: str = Field(description="what it is about", min_length=2)
    count: int = Field(3, gt=0)
    place: Place | None = None
    again: Checked | None = None


def schema_of(kind: Any) -> dict[str, Any]:
    graph = plain(lambda state: None, schema=kind)(MemoryStore())
    return input_schema(graph.compiled().plan)


@pytest.mark.parametrize("has_pydantic", [True, False])
def test_the_schema_of_a_state_describes_a_form(has_pydantic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: types, choices, defaults, optional and nested values; with pydantic and without."""
    if not has_pydantic:
        monkeypatch.setitem(sys.modules, "pydantic", None)
    schema = schema_of(Described)
    keys = schema["properties"]
    assert keys["topic"]["type"] == "string"
    assert (keys["mode"]["enum"], keys["mode"]["default"]) == (["fast", "slow"], "fast")
    assert keys["color"]["enum"] == ["red", "blue"]
    assert keys["notes"] == {"type": "array", "items": {"type": "string"}, "default": []}
    assert {"type": "null"} in keys["place"]["anyOf"]
    assert keys["table"]["additionalProperties"] == {"type": "integer"}
    assert keys["token"] == {"type": "string", "writeOnly": True}
    valid = {"topic": "x", "place": {"x": 1}, "parts": [{"name": "a"}], "mode": "slow", "color": "blue"}
    jsonschema.validate(valid, schema)
    for wrong in ({"topic": 1}, {"mode": "other"}, {"place": {}}, {"parts": [{}]}, {"table": {"a": "b"}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_the_schema_of_a_model_is_its_own() -> None:
    """H19: with constraints, descriptions, what it needs, and a reference to itself."""
    schema = schema_of(Checked)
    assert schema["required"] == ["topic"]
    assert schema["properties"]["topic"]["description"] == "what it is about"
    jsonschema.validate({"topic": "kelp", "again": {"topic": "moss"}}, schema)
    for wrong in ({}, {"topic": "k"}, {"topic": "kelp", "count": 0}, {"topic": "kelp", "again": {}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


@pytest.mark.parametrize(
    ("kind", "properties"),
    [
        (None, {}),
        ({"a": int, "b": Any, "c": object()}, {"a": {"type": "integer"}, "b": {}, "c": {}}),
        (Part, {"name": {"type": "string"}, "size": {"type": "integer"}}),
        ({"a": [int], "b": list[[str]], "c": {}}, {"a": {}, "b": {"type": "array", "items": {}}, "c": {}}),
    ],
)
def test_what_is_not_described_takes_anything(kind: Any, properties: dict[str, Any]) -> None:
    """H19: a schema that only describes needs nothing."""
    schema = schema_of(kind)
    assert schema["properties"] == properties
    assert "required" not in schema


def test_the_inputs_of_a_workflow_are_those_that_its_tasks_take() -> None:
    """H19: with types and defaults of their parameters."""

    def fetch(city: str, days: int = 3, password: str = "a canary") -> int:
        return days

    flow = Workflow("flow", store=MemoryStore(), secrets=["password"]).add_task("fetch", fetch)
    flow.add_task("show", lambda fetch, tone, ctx: fetch, ["fetch"])
    assert input_schema(flow.compiled().plan) == {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "default": 3},
            "password": {"type": "string", "writeOnly": True},
            "tone": {},
        },
        "required": ["city", "tone"],
    }


def test_graphs_are_listed_and_shown() -> None:
    """H19: with nodes and keys; of one that isn't known, the name that was meant."""
    with api() as client:
        (listed,) = client.read("/graphs")["graphs"]
        assert listed == client.read("/graphs/article")
        assert listed["nodes"] == ["write", "rate", "review"]
        assert (listed["kind"], listed["keys"]["password"]["secret"]) == ("graph", True)
        unknown = client.read("/graphs/artikle", 404)
        assert unknown["code"] == "graph-not-found"
        assert unknown["detail"].endswith("did you mean 'article'?")
        assert client.act("/graphs/other/runs", 404)["code"] == "graph-not-found"


def test_the_picture_of_a_graph_shows_how_far_a_run_has_come() -> None:
    """H19: as SVG, which a browser takes for nothing else."""
    with api() as client:
        client.run_until_it_stops("r", topic="kelp")
        bare = client.get(f"{API}/graphs/article/picture")
        marked = client.get(f"{API}/graphs/article/picture", params={"run_id": "r"})
        assert bare.headers["content-type"].startswith("image/svg+xml")
        assert bare.text.startswith("<svg")
        assert bare.text != marked.text
        assert client.read("/graphs/article/picture", 404, run_id="none")["code"] == "run-not-found"


def test_a_graph_with_very_many_nodes_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: it would keep the server busy for long."""
    monkeypatch.setattr(graphs, "MOST_NODES", 2)
    with api(lambda store: chain(*[lambda: None] * 3).compile(store=store)) as client:
        (name,) = (each["name"] for each in client.read("/graphs")["graphs"])
        refused = client.read(f"/graphs/{name}/picture", 422)
        assert refused["code"] == "graph-too-large"
        assert "3 nodes" in refused["detail"]


def test_a_run_starts_with_all_that_it_can_be_given() -> None:
    """H19: tags, queue, priority, delay and deadline."""
    with api() as client:
        run = client.act(
            "/graphs/article/runs",
            input={"topic": "kelp"},
            config={"a": 1},
            tags=["t"],
            priority=7,
            delay="1h",
            deadline="2h",
            queue="slow",
        )
        assert (run["status"], run["tags"], run["priority"], run["queue"]) == ("sleeping", ["t"], 7, "slow")
        assert run["deadline"] > run["due"] > run["created"]


@pytest.mark.parametrize(
    "body",
    [
        {"run_id": ""},
        {"run_id": "a\nb"},
        {"run_id": "x" * 300},
        {"delay": "soon"},
        {"deadline": "never"},
        {"queue": "a/b"},
        {"tags": [""]},
        {"priority": 2**60},
    ],
)
def test_a_start_that_makes_no_sense_is_refused(body: dict[str, Any]) -> None:
    """H19: nothing is stored."""
    with api() as client:
        assert client.act("/graphs/article/runs", 400, **body)["code"] == "usage"
        assert client.read("/runs")["runs"] == []


def test_an_input_that_does_not_fit_its_model_is_refused() -> None:
    """H19: with the field and the reason."""

    def make(store: Any) -> StateGraph:
        return plain(lambda state: None, schema=Checked)(store)

    with api(make) as client:
        refused = client.act("/graphs/plain/runs", 422, input={"topic": "k"})
        assert refused["code"] == "invalid-value"
        assert "topic" in refused["detail"]
