"""H19: the OpenAPI document is that of the routes, and says what they answer."""

from __future__ import annotations

import re
from typing import Any

import jsonschema

from limpet import Schedules, Workflow
from limpet.server.application import ENDPOINTS
from limpet.server.endpoint import Endpoint
from limpet.server.openapi import SCHEMAS
from support.http_api import api, filled, required
from support.http_server import API


def test_the_document_has_all_routes_and_no_others() -> None:
    """H19."""
    with api() as client:
        document = client.read("/openapi.json")
        routes = {
            (route.path, method.lower())
            for route in client.app.routes  # type: ignore[attr-defined]  # of Starlette
            for method in route.methods
            if route.path.startswith((API, "/healthz", "/metrics"))
            and method != "HEAD"
            and not route.path.endswith("openapi.json")
        }
        assert routes == {(path, method) for path, item in document["paths"].items() for method in item}


def test_the_document_holds_together() -> None:
    """H19: names are used once, references lead somewhere, and paths have their parameters."""
    with api() as client:
        document = client.read("/openapi.json")
        assert document["openapi"] == "3.1.0"
        operations = [each for item in document["paths"].values() for each in item.values()]
        names = [each["operationId"] for each in operations]
        assert len(names) == len(set(names))
        for path, item in document["paths"].items():
            for operation in item.values():
                inside = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
                assert inside == set(re.findall(r"{(\w+)}", path))
                assert operation["summary"]
        for reference in set(references(document)):
            assert reference.startswith("#/components/schemas/")
            assert reference.rpartition("/")[2] in document["components"]["schemas"]
        used = {reference.rpartition("/")[2] for reference in references(document)}
        assert used | {"File", "Picture", "EventStream"} >= set(SCHEMAS)
        for schema in SCHEMAS.values():
            jsonschema.Draft202012Validator.check_schema(schema)


def test_the_document_says_which_routes_need_a_token() -> None:
    """H19: all but those of links do, and they answer so."""
    with api() as client:
        document = client.read("/openapi.json")
        assert document["security"] == [{"token": []}]
        client.forget_token()
        for endpoint in ENDPOINTS:
            operation = described(document, endpoint)
            assert operation.get("security", document["security"]) == (
                [] if endpoint.is_public else [{"token": []}]
            )
            answer = client.request(endpoint.method, filled(endpoint), params=required(endpoint))
            assert (answer.status_code == 401) is not endpoint.is_public


def test_the_document_says_which_bodies_are_needed() -> None:
    """H19: those with a field that is."""
    with api() as client:
        document = client.read("/openapi.json")
        for endpoint in ENDPOINTS:
            body = described(document, endpoint).get("requestBody")
            assert (body is not None) == (endpoint.takes_file or bool(endpoint.body))
            if body is None or endpoint.takes_file:
                continue
            names = [each.name for each in endpoint.body if each.is_required]
            assert body["required"] is bool(names)
            assert body["content"]["application/json"]["schema"]["required"] == names


def test_fields_that_are_not_needed_may_be_null() -> None:
    """H19: as if they were left out; those that are needed may not."""
    with api() as client:
        document = client.read("/openapi.json")
        client.run_until_it_stops("kelp", topic="kelp")
        for endpoint in ENDPOINTS:
            if not endpoint.body:
                continue
            content = described(document, endpoint)["requestBody"]["content"]["application/json"]
            for field in endpoint.body:
                kinds = content["schema"]["properties"][field.name].get("type")
                if kinds is not None:  # else anything is right
                    assert ("null" in kinds) is not field.is_required, (endpoint.path, field.name)
        assert client.act("/runs/kelp/answer", value="yes", answers=None, by=None)["status"] == "queued"
        assert client.act("/runs/send", 400, run_ids=["kelp"], name=None, value=1)["code"] == "usage"


def test_pictures_are_sent_as_the_document_says() -> None:
    """H19: as SVG."""
    with api() as client:
        (endpoint,) = [each for each in ENDPOINTS if each.gives == "Picture"]
        answers = described(client.read("/openapi.json"), endpoint)["responses"]
        answer = client.get(filled(endpoint))
        assert [*answers["200"]["content"]] == [answer.headers["content-type"].partition(";")[0]]
        assert answer.headers["content-type"].startswith("image/svg+xml")


def test_the_document_says_how_streams_are_resumed_and_end() -> None:
    """H19: by a header that browsers send, and with 204 where they wouldn't end by themselves."""
    with api() as client:
        client.run_until_it_stops("kelp", topic="kelp")
        client.act("/runs/kelp/cancel")
        document = client.read("/openapi.json")
        last = client.read("/runs/kelp/events")["next"]
        for endpoint in ENDPOINTS:
            operation = described(document, endpoint)
            names = [each["name"] for each in operation["parameters"]]
            assert ("Last-Event-ID" in names) is endpoint.streams
            assert ("204" in operation["responses"]) is endpoint.may_be_over
            if endpoint.streams and "{run_id}" in endpoint.path:
                answer = client.get(filled(endpoint, run_id="kelp"), headers={"last-event-id": last})
                assert answer.status_code == (204 if endpoint.may_be_over else 200)
                assert answer.text.endswith("event: end\ndata: {}\n\n") is not endpoint.may_be_over


def described(document: dict[str, Any], endpoint: Endpoint) -> Any:
    """What the document says of a route."""
    path = API + re.sub(r":\w+}", "}", endpoint.path)
    return document["paths"][path][endpoint.method.lower()]


def references(part: Any) -> list[str]:
    """All references in a document."""
    if isinstance(part, list):
        return [found for each in part for found in references(each)]
    if not isinstance(part, dict):
        return []
    own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
    return own + [found for each in part.values() for found in references(each)]


def test_answers_are_as_the_document_says() -> None:
    """H19: of each route that can be read, for runs of graphs and of workflows."""
    with api() as client:
        client.run_until_it_stops("kelp", topic="kelp")
        flow = Workflow("flow", store=client.store, preserve=True).add_task("count", lambda: 1)
        flow.execute({}, run_id="flow")
        Schedules(client.store).add("nightly", client.graph, every="1h", input={"topic": "moss"})
        for endpoint in ENDPOINTS:
            if (
                endpoint.method != "GET"
                or endpoint.gives in ("File", "Picture", "EventStream")
                or endpoint.is_public
            ):
                continue
            for run_id in ("kelp", "flow") if "{run_id}" in endpoint.path else ("none",):
                path = filled(endpoint, run_id=run_id, name="nightly")
                answer = client.get(path, params=required(endpoint))
                assert answer.status_code == 200, (path, answer.text)
                check(answer.json(), endpoint.gives)


def test_answers_to_changes_are_as_the_document_says() -> None:
    """H19: and so are problems."""
    with api() as client:
        client.run_until_it_stops("kelp", topic="kelp")
        client.run_until_it_stops("moss", topic="broken")
        bodies: dict[str, dict[str, Any]] = {
            "/graphs/{graph}/runs": {"input": {"topic": "x"}},
            "/schedules": {"name": "nightly", "graph": "article", "every": "1h"},
            "/runs/{run_id}/send": {"name": "note", "value": 1},
            "/runs/{run_id}/rollback": {"step": 1},
            "/runs/send": {"run_ids": ["kelp"], "name": "note", "value": 1},
            "/runs/rollback": {"run_ids": ["moss"], "step": 0},
        }
        for endpoint in ENDPOINTS:
            if endpoint.method == "GET" or endpoint.takes_file:
                continue
            usual = {"run_ids": ["kelp"]} if endpoint.gives == "Outcomes" else {}
            body = bodies.get(endpoint.path, usual)
            answer = client.request(
                endpoint.method, filled(endpoint, run_id="kelp", name="nightly"), json=body
            )
            assert answer.status_code < 500
            check(answer.json(), endpoint.gives if answer.status_code == 200 else "Problem")


def check(answer: Any, name: str) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": SCHEMAS}}
    jsonschema.validate(answer, schema)
