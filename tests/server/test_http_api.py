"""H19: the HTTP API over the runs in a store, as a client of any language sees it."""

import asyncio
import json
from contextlib import contextmanager
from time import sleep
from typing import Annotated

import jsonschema
import pytest
from starlette.testclient import TestClient

from limpet import END, MemoryStore, Schedules, StateGraph, UsageError, pause, secret
from limpet.server import app
from limpet.server.application import ENDPOINTS, PREFIX
from limpet.server.openapi import SCHEMAS

TOKEN = "a token of the tests"
HOST = {"host": "localhost:8000"}
ALLOWED = {**HOST, "authorization": f"Bearer {TOKEN}"}
SCRIPT = "<script>alert(1)</script>"


def article(store):
    """A graph that counts, fails if it is asked to, asks a question, and has a secret."""
    graph = StateGraph(
        {"topic": str, "count": int, "password": Annotated[str, secret], "review": str}, name="article"
    )

    def write(state):
        return {"count": (state.get("count") or 0) + 1, "password": "hunter2"}

    def rate(state):
        if state["topic"] == "broken":
            raise ValueError("no rating")
        return {"count": state["count"] + 1}

    def review(state):
        return {"review": pause("Publish?", choices=["yes", "no"])}

    for node in (write, rate, review):
        graph.add_node(node.__name__, node)
    graph.set_entry_point("write")
    graph.add_edge("write", "rate")
    graph.add_edge("rate", "review")
    graph.add_edge("review", END)
    return graph.compile(store=store, preserve=True)


def asking(store):
    graph = StateGraph(name="asking").add_node("ask", lambda state: {"said": pause("Publish?")})
    graph.set_entry_point("ask").set_finish_point("ask")
    return graph.compile(store=store)


@contextmanager
def server(graph_of=article, **options):
    store = MemoryStore()
    graph = graph_of(store)
    with TestClient(app(store, [graph], token=TOKEN, **options), base_url="http://localhost:8000") as client:
        client.headers["authorization"] = f"Bearer {TOKEN}"
        client.store = store
        client.graph = graph
        yield client


def get(client, path, expected=200, **params):
    answer = client.get(PREFIX + path, params=params)
    assert answer.status_code == expected, answer.text
    return answer.json()


def post(client, path, expected=200, **body):
    answer = client.post(PREFIX + path, json=body)
    assert answer.status_code == expected, answer.text
    return answer.json()


def run_to_stop(client, run_id, topic="kelp"):
    """Run as a worker in this process would, until the run pauses or fails."""
    list(client.graph.stream({"topic": topic}, run_id=run_id))


def filled(path):
    """A path of a route with values for what is in braces."""
    return path.format(run_id="none", graph="article", name="x", link="x.y", row="0")


WALKED = [
    *((each.method, PREFIX + filled(each.path)) for each in ENDPOINTS if not each.is_public),
    ("GET", f"{PREFIX}/openapi.json"),
    ("GET", "/metrics"),
]


@pytest.mark.parametrize(("method", "path"), WALKED)
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"cookie": "limpet_token_8000=wrong"}, 401),
        ({"authorization": f"Bearer {TOKEN}", "origin": "http://evil.example"}, 403),
        ({"authorization": f"Bearer {TOKEN}", "host": "evil.example:8000"}, 421),
    ],
)
def test_every_route_refuses_who_may_not_use_it_h19(method, path, headers, status):
    with server() as client:
        del client.headers["authorization"]
        answer = client.request(method, path, headers={**HOST, **headers})
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == status


def test_a_run_is_started_answered_and_inspected_h19():
    with server() as client:
        started = post(
            client, "/graphs/article/runs", input={"topic": "kelp"}, run_id="kelp/1", tags=["nightly"]
        )
        again = post(
            client, "/graphs/article/runs", input={"topic": "kelp"}, run_id="kelp/1", tags=["nightly"]
        )
        assert started["run_id"] == again["run_id"] == "kelp/1"
        list(client.graph.stream({"topic": "kelp"}, run_id="kelp/1"))
        shown = get(client, "/runs/kelp%2F1")
        assert shown["status"] == "paused"
        assert shown["questions"][0]["prompt"] == "Publish?"
        assert [each["run_id"] for each in get(client, "/runs", status="paused")["runs"]] == ["kelp/1"]
        assert get(client, "/questions")["total"] == 1
        assert get(client, "/counts")["counts"] == {"paused": 1}
        assert [each["node"] for each in get(client, "/runs/kelp%2F1/history")["steps"]] == [
            None,
            "write",
            "rate",
        ]
        assert get(client, "/runs/kelp%2F1/state", step=1)["values"]["count"] == 1
        changes = get(client, "/runs/kelp%2F1/diff", a=1, b=2)["changes"]
        assert changes == {"count": {"change": "changed", "before": 1, "after": 2}}
        post(client, "/runs/kelp%2F1/answer", value="yes", by="Ann")
        client.graph.resume("kelp/1")
        assert get(client, "/runs/kelp%2F1")["status"] == "completed"
        answers = get(client, "/runs/kelp%2F1/events", type="answer")["events"]
        assert list(answers[0]["by"].values()) == ["Ann"]


def test_errors_are_problem_details_with_stable_codes_h19():
    with server() as client:
        assert get(client, "/runs/none", 404)["code"] == "run-not-found"
        assert get(client, "/runs", 400, stauts="failed")["detail"].endswith("did you mean 'status'?")
        assert get(client, "/runs", 400, limit=0)["code"] == "usage"
        assert post(client, "/runs/none/cancel", 404)["code"] == "run-not-found"
        assert client.get("/nothing").json()["code"] == "no-route"
        for content, kind, status in [
            (b"x", "text/plain", 415),
            (b"{", "application/json", 400),
            (b"[]", "application/json", 400),
            (b" " * 1_000_001, "application/json", 413),
        ]:
            answer = client.post(f"{PREFIX}/runs/retry", content=content, headers={"content-type": kind})
            assert answer.status_code == status


def test_secrets_are_in_no_answer_h19():
    with server() as client:
        run_to_stop(client, "kelp")
        paths = [
            "",
            "/state",
            "/diff?a=0&b=1",
            "/events",
            "/timeline",
            "/history",
            "/sizes",
            "/compare?with=kelp",
        ]
        texts = [client.get(f"{PREFIX}/runs/kelp{path}").text for path in paths]
        assert not any("hunter2" in text for text in texts)
        assert "hunter2" not in client.get("/metrics").text


def test_the_openapi_document_is_that_of_the_routes_h19():
    with server() as client:
        document = get(client, "/openapi.json")
        routes = {
            (route.path, method.lower())
            for route in client.app.routes
            for method in route.methods
            if route.path.startswith(PREFIX) and method != "HEAD" and not route.path.endswith("openapi.json")
        }
        assert routes == {(path, method) for path, item in document["paths"].items() for method in item}
        run_to_stop(client, "kelp")
        Schedules(client.store).add("nightly", client.graph, every="1h", input={"topic": "moss"})
        for endpoint in ENDPOINTS:
            if endpoint.method != "GET" or endpoint.gives in ("File", "EventStream") or endpoint.is_public:
                continue
            path = endpoint.path.format(run_id="kelp", graph="article", name="nightly", row="0")
            needed = {"a": 0, "b": 1, "with": "kelp"}
            params = {each.name: needed[each.name] for each in endpoint.query if each.is_required}
            schema = {"$ref": f"#/components/schemas/{endpoint.gives}", "components": {"schemas": SCHEMAS}}
            jsonschema.validate(get(client, path, **params), schema)


def test_many_runs_are_changed_with_an_outcome_each_h19():
    with server() as client:
        for number in range(3):
            list(client.graph.stream({"topic": "broken"}, run_id=f"run-{number}"))
        run_to_stop(client, "kelp")
        planned = post(client, "/runs/retry", status=["failed"], dry_run=True)
        assert (planned["planned"], planned["done"]) == (3, 0)
        assert post(client, "/runs/retry", run_ids=["run-0", "kelp"])["skipped"] == 1
        assert post(client, "/runs/answer", status=["paused"], value="no")["done"] == 1
        forked = post(client, "/runs/fork", run_ids=["run-1"], update={"topic": "moss"})
        assert get(client, f"/runs/{forked['created']['run-1']}/state")["values"]["topic"] == "moss"
        assert post(client, "/runs/send", run_ids=["kelp"], name="note", value=1)["done"] == 1
        assert post(client, "/runs/rollback", run_ids=["run-2"], step=0)["done"] == 1
        assert post(client, "/runs/delete", run_ids=["run-2"])["done"] == 1
        assert post(client, "/runs/delete", 400)["code"] == "usage"


def test_a_link_answers_one_question_and_nothing_else_h19():
    with server() as client:
        run_to_stop(client, "kelp")
        link = post(client, "/runs/kelp/link", name="Bo", expires="1h")["path"].removeprefix("/answer/")
        late = post(client, "/runs/kelp/link", expires="0.01s")["path"].removeprefix("/answer/")
        del client.headers["authorization"]
        assert get(client, f"/questions/{link}")["question"]["choices"] == ["yes", "no"]
        sleep(0.05)
        assert get(client, f"/questions/{late}", 410)["code"] == "link-expired"
        assert get(client, f"/questions/{link[:-2]}xx", 404)["code"] == "no-such-link"
        assert post(client, f"/questions/{link}/answer", 422, value="maybe")["code"] == "answer-refused"
        assert post(client, f"/questions/{link}/answer", value="yes")["run_id"] == "kelp"
        assert post(client, f"/questions/{link}/answer", 409, value="yes")["code"] == "already-answered"
        get(client, "/runs/kelp", 401)
        client.headers["authorization"] = f"Bearer {TOKEN}"
        answered = get(client, "/runs/kelp/events", type="answer")["events"]
        assert list(answered[0]["by"].values()) == ["Bo"]


def test_a_read_only_server_changes_nothing_h19():
    with server(read_only=True) as client:
        run_to_stop(client, "kelp")
        assert post(client, "/runs/kelp/cancel", 403)["code"] == "read-only"
        assert client.delete(f"{PREFIX}/runs/kelp").status_code == 403
        assert get(client, "/runs/kelp")["status"] == "paused"


def test_a_run_is_exported_and_imported_as_a_file_h19():
    with server(asking) as client:
        list(client.graph.stream({}, run_id="kelp"))
        content = client.get(f"{PREFIX}/runs/kelp/export").content
        answer = client.post(f"{PREFIX}/runs/import", params={"run_id": "copy"}, content=content)
        assert answer.json()["questions"][0]["prompt"] == "Publish?"
        assert client.post(f"{PREFIX}/runs/import", content=b"nonsense").status_code >= 400
    with server() as client:
        run_to_stop(client, "kelp")
        assert get(client, "/runs/kelp/export", 403)["code"] == "has-secrets"


def test_live_events_continue_after_the_last_one_that_was_received_h19():
    with server() as client:
        run_to_stop(client, "kelp")
        client.graph.resume("kelp", "yes")
        with client.stream("GET", f"{PREFIX}/runs/kelp/live") as stream:
            lines = [line for line in stream.iter_lines() if line]
        ids = [line.removeprefix("id: ") for line in lines if line.startswith("id: ")]
        kinds = [json.loads(line[6:]).get("type") for line in lines if line.startswith("data: ")]
        assert kinds[0] == "start"
        assert kinds[-2] == "complete"
        with client.stream("GET", f"{PREFIX}/runs/kelp/live", headers={"last-event-id": ids[-2]}) as stream:
            rest = [line for line in stream.iter_lines() if line.startswith("id: ")]
        assert rest == [f"id: {ids[-1]}"]


def test_a_timeline_has_rows_for_steps_attempts_and_waits_h19():
    with server() as client:
        run_to_stop(client, "kelp")
        first = get(client, "/runs/kelp/timeline")
        assert [(row["label"], row["status"]) for row in first["rows"]] == [
            ("write", "done"),
            ("rate", "done"),
            ("review", "paused"),
        ]
        post(client, "/runs/kelp/answer", value="yes")
        client.graph.resume("kelp")
        later = get(client, "/runs/kelp/timeline", after=first["version"])
        assert [(row["id"], row["status"]) for row in later["rows"]] == [(2, "done")]
        assert not later["reset"]
        run_to_stop(client, "moss", "broken")
        failed = get(client, "/runs/moss/timeline")["rows"][-1]
        assert (failed["label"], failed["status"], failed["note"]) == (
            "rate",
            "failed",
            "ValueError: no rating",
        )


def test_large_values_are_sent_when_they_are_asked_for_h19():
    def large(store):
        graph = StateGraph(name="large")
        graph.add_node("make", lambda state: {"text": "x" * 100_000, "small": 1})
        graph.set_entry_point("make")
        graph.add_edge("make", END)
        return graph.compile(store=store)

    with server(large) as client:
        client.graph.execute({}, run_id="big")
        found = get(client, "/runs/big/state")
        assert found == {"values": {"small": 1}, "large": {"text": 100_000}, "not_json": {}}
        assert len(get(client, "/runs/big/state", key="text")["values"]["text"]) == 100_000
        changes = get(client, "/runs/big/diff", a=0, b=1)["changes"]
        assert changes["text"] == {"change": "added", "after_size": 100_000}


def test_stored_texts_are_never_html_h19():
    with server() as client:
        run_to_stop(client, SCRIPT.replace("/", "|"), SCRIPT)
        run_id = SCRIPT.replace("/", "|").replace("<", "%3C").replace(">", "%3E").replace("|", "%7C")
        for path in ("", "/state", "/events", "/timeline", "/history"):
            answer = client.get(f"{PREFIX}/runs/{run_id}{path}")
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "default-src 'self'" in answer.headers["content-security-policy"]


def test_it_is_mounted_under_a_path_with_the_hosts_own_check_h19():
    from starlette.applications import Starlette
    from starlette.routing import Mount

    async def check(headers):
        await asyncio.sleep(0)
        return "Cleo" if headers.get("x-user") == "cleo" else None

    store = MemoryStore()
    graph = article(store)
    host = Starlette(routes=[Mount("/limpet", app(store, [graph], authenticate=check, hosts=None))])
    with TestClient(host, headers={"x-user": "cleo"}) as client:
        list(graph.stream({"topic": "kelp"}, run_id="a/b"))
        assert client.get("/limpet/healthz").json() == {"status": "ok"}
        assert client.post("/limpet/api/v1/runs/a%2Fb/answer", json={"value": "yes"}).status_code == 200
        events = client.get("/limpet/api/v1/runs/a%2Fb/events", params={"type": "answer"}).json()["events"]
        assert list(events[0]["by"].values()) == ["Cleo"]
        assert "/limpet/api/v1/runs" in client.get("/limpet/api/v1/openapi.json").json()["paths"]
        assert client.get("/limpet/api/v1/runs", headers={"x-user": "mallory"}).status_code == 401


def test_metrics_count_runs_and_requests_h19():
    with server() as client:
        run_to_stop(client, "kelp")
        get(client, "/runs")
        text = client.get("/metrics").text
        assert 'limpet_runs{status="paused"} 1' in text
        assert 'limpet_http_requests_total{method="GET",status="200"} 1' in text


def test_schedules_and_workers_h19():
    with server() as client:
        Schedules(client.store).add("nightly", client.graph, every="1h", input={"topic": "moss"})
        assert get(client, "/schedules")["schedules"][0]["name"] == "nightly"
        assert len(get(client, "/schedules/nightly/next", count=3)["times"]) == 3
        assert post(client, "/schedules/nightly/pause")["status"] == "paused"
        assert post(client, "/schedules/nightly/resume")["status"] == "active"
        assert post(client, "/schedules/nightly/trigger")["run_id"].startswith("nightly:")
        assert get(client, "/workers") == {"workers": [], "unserved": []}
        assert client.delete(f"{PREFIX}/schedules/nightly").json() == {"deleted": "nightly"}
        assert get(client, "/schedules/nightly", 404)["code"] == "schedule-not-found"


def test_a_server_without_a_token_is_refused_h19():
    with pytest.raises(UsageError, match="token"):
        app(MemoryStore())
