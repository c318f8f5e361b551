"""H19: requests are checked before anything is done, and what is wrong with them is said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from limpet import pause
from limpet.frontends.given_values import MAX_DEPTH
from limpet.server.application import ENDPOINTS
from support.http_api import api, asking, filled, plain
from support.http_server import API

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("stauts=failed", "did you mean 'status'?"),
        ("limit=0", "limit must be from 1"),
        ("limit=501", "limit must be from 1 to 500"),
        ("limit=abc", "must be a whole number"),
        ("limit=1.5", "must be a whole number"),
        ("limit=%D9%A1", "must be a whole number"),
        ("limit=99999999999999999999999", "must be a whole number"),
        ("limit=9007199254740993", "must be a whole number"),
        ("limit=--1", "must be a whole number"),
        ("limit=" + "0" * 20 + "9" * 5000, "must be a whole number"),
        ("limit=1&limit=2", "was given twice"),
        ("unserved=yes", "must be true or false"),
        ("graph=", "non-empty"),
        ("graph=a%00b", "isn't valid in a text"),
        ("status=none", "none"),
        ("after=nonsense", "isn't a place in a list"),
        ("since=nonsense", "since"),
        ("&".join(["tag=x"] * 1001), "at most 1,000"),
        ("&".join(["x=1"] * 10_000), "at most 1,000"),
    ],
)
def test_a_query_that_does_not_fit_is_refused(query: str, reason: str) -> None:
    """H19: a filter that is misspelt doesn't mean all runs."""
    with api() as client:
        answer = client.get(f"{API}/runs?{query}")
        assert (answer.status_code, answer.json()["code"]) == (400, "usage")
        assert reason in answer.json()["detail"]
        assert len(answer.content) < 10_000


@pytest.mark.parametrize(
    ("content", "kind", "status", "code"),
    [
        (b"x", "text/plain", 415, "not-json"),
        (b"{}", "application/x-www-form-urlencoded", 415, "not-json"),
        (b"{", "application/json", 400, "usage"),
        (b"[]", "application/json", 400, "usage"),
        (b"\xff", "application/json", 400, "usage"),
        (b'{"limit": NaN}', "application/json", 400, "usage"),
        (b'{"limit": 1e400}', "application/json", 400, "usage"),
        (b'{"run_ids": ["kelp"], "update": {"count": 1e999}}', "application/json", 400, "usage"),
        (b'{"run_ids": ["kelp"], "update": {"count": -Infinity}}', "application/json", 400, "usage"),
        (b'{"limit": true}', "application/json", 400, "usage"),
        (b'{"limit": "1"}', "application/json", 400, "usage"),
        (b'{"run_ids": "kelp"}', "application/json", 400, "usage"),
        (b'{"run_ids": [1]}', "application/json", 400, "usage"),
        (b'{"run_ids": ["\\ud800"]}', "application/json", 400, "usage"),
        (b'{"run_ids": ["a\\u0000"]}', "application/json", 400, "usage"),
        (b'{"run_idz": []}', "application/json", 400, "usage"),
        (b'{"dry_run": 1}', "application/json", 400, "usage"),
        (b'{"limit": ' + b"9" * 5000 + b"}", "application/json", 400, "usage"),
        (b'{"update": ' + b'{"a":' * 200 + b"1" + b"}" * 201, "application/json", 400, "usage"),
        (b'{"update": ' + b"[" * 50_000, "application/json", 400, "usage"),
        (b" " * 1_000_001, "application/json", 413, "too-large"),
        (b"", "application/json", 400, "usage"),
        (b'{"limit": 1}', "application/json", 400, "usage"),
    ],
)
def test_a_body_that_does_not_fit_is_refused(content: bytes, kind: str, status: int, code: str) -> None:
    """H19: all runs are never meant by accident."""
    with api() as client:
        client.run_until_it_stops("kelp", topic="broken")
        answer = client.post(f"{API}/runs/retry", content=content, headers={"content-type": kind})
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert client.read("/runs/kelp")["status"] == "failed"


def test_a_body_that_is_nested_too_deeply_is_refused() -> None:
    """H19: a deeper one is refused as it comes, not where it would be stored."""

    def nested(levels: int) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = {"a": value}
        return value

    with api(plain(lambda state: {"said": pause("?")})) as client:
        client.run_until_it_stops("r")
        refused = client.act("/runs/r/answer", 400, value=nested(MAX_DEPTH))
        assert refused["detail"] == f"the body of the request is nested more than {MAX_DEPTH} levels deep"
        client.act("/runs/r/answer", value=nested(MAX_DEPTH - 2))


def test_a_body_may_come_in_parts_of_any_number() -> None:
    """H19: its length need not be known, and one that becomes too large is refused."""

    def parts(number: int) -> Any:
        for _ in range(number):
            yield b" " * 10_000
        yield b'{"run_ids": ["none"]}'

    with api() as client:
        headers = {"content-type": "application/json"}
        accepted = client.post(f"{API}/runs/cancel", content=parts(10), headers=headers)
        assert (accepted.status_code, accepted.json()["failed"]) == (200, 1)
        refused = client.post(f"{API}/runs/cancel", content=parts(200), headers=headers)
        assert refused.status_code == 413
        for length in ("-1", "x", "1" * 100):
            answer = client.post(
                f"{API}/runs/cancel", content=b"{}", headers={**headers, "content-length": length}
            )
            assert answer.status_code == 413


def test_a_field_may_be_null_where_it_may_be_left_out() -> None:
    """H19: as forms send it."""
    with api(asking) as client:
        client.run_until_it_stops("r")
        forked = client.act("/runs/r/fork", step=None, update=None, tags=None, begin=False)
        assert forked["forked_from"].startswith("r@")


def test_required_values_are_named() -> None:
    """H19: in the query and in the body."""
    with api() as client:
        client.run_until_it_stops("kelp", topic="x")
        assert "'a' is needed" in client.read("/runs/kelp/diff", 400)["detail"]
        assert "needs the field 'step'" in client.act("/runs/kelp/rollback", 400)["detail"]


def test_all_that_can_be_sent_is_in_the_routes() -> None:
    """H19: each route refuses a value that it doesn't take."""
    with api() as client:
        client.run_until_it_stops("kelp", topic="x")
        for endpoint in ENDPOINTS:
            path = filled(endpoint, run_id="kelp")
            answer = client.request(endpoint.method, path, params={"unheard-of": "1"})
            assert answer.status_code == 400, path
            if endpoint.method != "GET" and not endpoint.takes_file:
                refused = client.request(
                    endpoint.method, path, content=json.dumps({"unheard-of": 1}), headers=JSON
                )
                assert refused.status_code == 400, path
                assert "unheard-of" in refused.json()["detail"]
