"""H19: the application under a path of a host, with the host's own check of requests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.routing import Mount
from starlette.testclient import TestClient

import limpet
from limpet import MemoryStore
from limpet.frontends.security import Allowed
from limpet.server import app
from support.http_api import article, asking
from support.http_server import TOKEN, Events, Served

Host = Callable[[Any], Any]


def in_starlette(inner: Any) -> Any:
    return Starlette(routes=[Mount("/limpet", inner)])


def in_fastapi(inner: Any) -> Any:
    host = FastAPI()
    host.mount("/limpet", inner)
    return host


def behind_middleware(inner: Any) -> Any:
    class PassesOn(BaseHTTPMiddleware):
        async def dispatch(self, request: Any, call_next: Any) -> Any:
            return await call_next(request)

    return Starlette(routes=[Mount("/limpet", inner)], middleware=[Middleware(PassesOn)])


async def check_later(headers: Mapping[str, str]) -> Allowed:
    await asyncio.sleep(0)
    return "Cleo" if headers.get("x-user") == "cleo" else None


def check_at_once(headers: Mapping[str, str]) -> Allowed:
    assert threading.current_thread() is not threading.main_thread()  # it may ask a database
    return "Cleo" if headers.get("x-user") == "cleo" else None


class Checks:
    """A check that is an object."""

    async def __call__(self, headers: Mapping[str, str]) -> Allowed:
        return await check_later(headers)


@pytest.mark.parametrize("host", [in_starlette, in_fastapi, behind_middleware])
@pytest.mark.parametrize("check", [check_later, check_at_once, Checks()])
def test_the_host_says_who_asks(host: Host, check: Any) -> None:
    """H19: in sync and async code; the name is who has answered. Ids may have slashes under a path, too."""
    store = MemoryStore()
    graph = article(store)
    mounted = host(app(store, [graph], authenticate=check, hosts=None))
    with TestClient(mounted, headers={"x-user": "cleo"}) as client:
        list(graph.stream({"topic": "kelp"}, run_id="a/b"))
        assert client.get("/limpet/healthz").json() == {"status": "ok"}
        assert client.get("/limpet/api/v1/about").json()["user"] == "Cleo"
        assert client.post("/limpet/api/v1/runs/a%2Fb/answer", json={"value": "yes"}).status_code == 200
        (event,) = client.get("/limpet/api/v1/runs/a%2Fb/events", params={"type": "answer"}).json()["events"]
        assert list(event["by"].values()) == ["Cleo"]
        assert "/limpet/api/v1/runs" in client.get("/limpet/api/v1/openapi.json").json()["paths"]
        for headers in ({"x-user": "mallory"}, {"x-user": ""}):
            answer = client.get("/limpet/api/v1/runs", headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (401, "not-allowed")
        assert client.get("/api/v1/runs").status_code == 404


@pytest.mark.parametrize(
    ("path", "sent"),
    [("/our runs", "/our%20runs"), ("/läufe", "/l%C3%A4ufe"), ("/of/{team}", "/of/K%C3%B6ln")],
)
def test_it_can_be_mounted_under_a_path_that_urls_escape(path: str, sent: str) -> None:
    """H19: also the page, whose cookie is for the path as it is sent."""
    store = MemoryStore()
    graph = article(store)
    list(graph.stream({"topic": "kelp"}, run_id="a/b"))
    mounted = Starlette(routes=[Mount(path, app(store, [graph], token=TOKEN, hosts=None))])
    with TestClient(mounted, headers={"authorization": f"Bearer {TOKEN}"}) as client:
        assert client.get(f"{sent}/api/v1/runs/a%2Fb").json()["run_id"] == "a/b"
        assert f"{sent}/api/v1/runs" in client.get(f"{sent}/api/v1/openapi.json").json()["paths"]
        opened = client.get(f"{sent}/runs", params={"token": TOKEN}, follow_redirects=False)
        assert opened.headers["location"] == f"{sent}/runs"
        assert f"Path={sent};" in opened.headers["set-cookie"]
        assert f'data-root="{sent}"' in client.get(f"{sent}/").text


@pytest.mark.parametrize(
    ("gives", "status"),
    [(True, 200), ("Ann", 200), (None, 401), (False, 401), ("", 401), (1, 401), ({}, 401)],
)
def test_a_check_allows_with_true_or_a_name(gives: Any, status: int) -> None:
    """H19: anything else allows nothing."""
    with TestClient(app(MemoryStore(), authenticate=lambda headers: gives, hosts=None)) as client:
        assert client.get("/api/v1/runs").status_code == status


def test_a_check_that_fails_allows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """H19: the log says why, and the client doesn't learn it."""

    def fail(headers: Mapping[str, str]) -> Allowed:
        raise RuntimeError("the database of users is gone")

    with TestClient(app(MemoryStore(), authenticate=fail, hosts=None)) as client:
        answer = client.get("/api/v1/runs")
        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        assert "users" not in answer.text
    assert "the database of users is gone" in caplog.text


@pytest.mark.parametrize("status", [401, 403])
def test_a_check_may_refuse_with_an_error_of_its_framework(status: int) -> None:
    """H19: as FastAPI's own dependencies do."""

    async def refuse(headers: Mapping[str, str]) -> Allowed:
        raise HTTPException(status)

    with TestClient(app(MemoryStore(), authenticate=refuse, hosts=None)) as client:
        answer = client.get("/api/v1/runs")
        assert (answer.status_code, answer.json()["code"]) == (401, "not-allowed")


@pytest.mark.parametrize("problem", [HTTPException(401), HTTPException(503), RuntimeError("no database")])
def test_what_needs_no_token_is_answered_whether_the_check_works_or_not(problem: Exception) -> None:
    """H19: the link of a question, and the page, which asks for the token."""

    def check(headers: Mapping[str, str]) -> Allowed:
        if headers.get("x-user") != "cleo":
            raise problem
        return True

    store = MemoryStore()
    graph = asking(store)
    list(graph.stream({}, run_id="r"))
    with TestClient(app(store, [graph], authenticate=check, hosts=None)) as client:
        made = client.post("/api/v1/runs/r/link", json={}, headers={"x-user": "cleo"}).json()
        route = made["path"].replace("/answer/", "/api/v1/questions/")
        assert client.get(route).json()["is_open"] is True
        assert client.post(f"{route}/answer", json={"value": "yes"}).status_code == 200
        assert client.get("/runs").status_code == 401
        assert "<!doctype html>" in client.get("/runs").text.lower()


class User(StrEnum):
    ANN = "Ann"


def test_who_answers_may_be_of_an_enum_of_names() -> None:
    """H19: its name is stored, and no instance of a class of the application."""
    store = MemoryStore()
    graph = asking(store)
    list(graph.stream({}, run_id="r"))
    with TestClient(app(store, [graph], authenticate=lambda headers: User.ANN, hosts=None)) as client:
        assert client.get("/api/v1/about").json()["user"] == "Ann"
        assert client.post("/api/v1/runs/r/answer", json={"value": "yes"}).status_code == 200
        (event,) = client.get("/api/v1/runs/r/events", params={"type": "answer"}).json()["events"]
        assert list(event["by"].values()) == ["Ann"]


def test_a_token_and_a_check_may_be_given_both() -> None:
    """H19: either of them lets a request in; programs have the token, and people the host's session."""
    inner = app(MemoryStore(), token=TOKEN, authenticate=check_later, hosts=None)
    with TestClient(inner) as client:
        assert client.get("/api/v1/runs", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert client.get("/api/v1/runs", headers={"x-user": "cleo"}).status_code == 200
        assert client.get("/api/v1/runs").status_code == 401


@pytest.mark.parametrize("host", [in_starlette, in_fastapi, behind_middleware])
def test_streams_work_under_a_path(host: Host) -> None:
    """H19: as a server without a lifespan serves them."""
    store = MemoryStore()
    graph = asking(store)
    list(graph.stream({}, run_id="r"))
    graph.resume("r", "yes")
    mounted = host(app(store, [graph], token=TOKEN))
    with Served(mounted) as server:
        server.root = "/limpet"
        events = Events(server, "/runs/r/live")
        events.join(60)
        assert events.kinds[-1] == "end"


def test_a_server_without_its_package_says_what_to_install() -> None:
    """H19: to a program that mounts it."""
    script = (
        "import sys; sys.modules['starlette'] = None\n"
        "from limpet import UsageError\n"
        "try:\n    import limpet.server\nexcept UsageError as error:\n    print(error)"
    )
    path = {**os.environ, "PYTHONPATH": str(Path(limpet.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=path, check=True
    )
    assert done.stdout == "the server needs the package starlette: pip install 'limpet[server]'\n"


def test_two_applications_of_one_process_share_nothing() -> None:
    """H19: each has its own store, and its own token."""
    first = app(MemoryStore(), token="one")
    second = app(MemoryStore(), token="two")
    host = Starlette(routes=[Mount("/first", first), Mount("/second", second)])
    with TestClient(host, base_url="http://localhost") as client:
        for path, token, status in [
            ("/first", "one", 200),
            ("/second", "one", 401),
            ("/second", "two", 200),
        ]:
            headers = {"authorization": f"Bearer {token}"}
            assert client.get(f"{path}/api/v1/runs", headers=headers).status_code == status
