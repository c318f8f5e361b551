"""H19: who may ask, and what every answer has."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from time import time
from typing import Any
from urllib.parse import quote

import pytest
from starlette.routing import Route

from limpet import MemoryStore, StoreUnavailable, UsageError
from limpet.frontends.security import CODE_LASTS, Guard, browser_code, is_address, session_value, split_host
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import RunHead
from limpet.server import app, application, metrics
from limpet.server.application import ENDPOINTS, STRANGERS_AT_ONCE
from limpet.server.page_files import PageFiles
from limpet.server.page_routes import PAGES
from support.http_api import CANARY, HOST, api, article, asking, filled, required
from support.http_server import API, TOKEN, served
from support.waiting import until

VALUES = {"link": "x.y", "row": "0", "hash": PageFiles().hash, "path": "main.js"}
"""What is put into the paths of routes, where it isn't the name of a thing that doesn't exist."""


def route_paths() -> Iterator[tuple[str, str]]:
    """All routes of the application: their methods, and paths of them."""
    for route in app(MemoryStore(), token=TOKEN).routes:
        assert isinstance(route, Route)
        path = re.sub(r"{(\w+)(:\w+)?}", lambda part: VALUES.get(part[1], "none"), route.path)
        yield from ((method, path) for method in route.methods or () if method != "HEAD")


ROUTES = sorted(route_paths())
FOR_STRANGERS = {
    *((each.method, filled(each)) for each in ENDPOINTS if each.is_public),
    *(("GET", re.sub(r"{\w+}", "none", path)) for path in PAGES),
    ("GET", "/healthz"),
    ("GET", "/answer/x.y"),
    ("GET", f"/static/{VALUES['hash']}/main.js"),
}
"""Routes that answer without the token: pages, whose document has no data, and what has a token of its own."""

WITH_TOKEN = [each for each in ROUTES if each not in FOR_STRANGERS]
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "no-token"),
        ({"authorization": "Bearer wrong"}, 401, "no-token"),
        ({"authorization": f"Bearer {TOKEN}x"}, 401, "no-token"),
        ({"authorization": f"Basic {TOKEN}"}, 401, "no-token"),
        ({"authorization": f"Bearer {session_value(TOKEN)}"}, 401, "no-token"),
        ({"authorization": "Bearer \udcff".encode("utf-8", "surrogateescape")}, 401, "no-token"),
        ({"cookie": "limpet_token_8000=wrong"}, 401, "no-token"),
        ({"cookie": f'limpet_token_8000="{TOKEN}"'}, 401, "no-token"),
        ({**BEARER, "origin": "http://evil.example"}, 403, "other-origin"),
        ({**BEARER, "origin": "null"}, 403, "other-origin"),
        ({**BEARER, "origin": "http://localhost:9000"}, 403, "other-origin"),
        ({**BEARER, "host": "evil.example:8000"}, 421, "wrong-host"),
        ({**BEARER, "host": "localhost.evil.example"}, 421, "wrong-host"),
        ({**BEARER, "host": ""}, 421, "wrong-host"),
    ],
)
def test_every_route_with_data_refuses_requests_that_may_not_be_made(
    headers: dict[str, str], status: int, code: str
) -> None:
    """H19: without the token, with a wrong one, of a page elsewhere, or under a name that was rebound."""
    with api() as client:
        client.forget_token()
        for method, path in WITH_TOKEN:
            answer = client.request(method, path, headers={"host": HOST, **headers})
            assert (answer.status_code, answer.json()["code"]) == (status, code), path
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["status"] == status


def test_every_route_is_one_that_needs_the_token_or_is_known_not_to() -> None:
    """H19: also those that come later."""
    assert set(ROUTES) >= FOR_STRANGERS
    assert len(WITH_TOKEN) > 40
    assert ("POST", "/session") in WITH_TOKEN


@pytest.mark.parametrize("headers", [{}, BEARER])
@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:8000", "[::2]", "192.0.2.1"])
def test_no_route_answers_under_a_name_that_was_rebound(host: str, headers: dict[str, str]) -> None:
    """H19: neither pages nor their files, nor what needs no token."""
    with api() as client:
        client.forget_token()
        for method, path in ROUTES:
            answer = client.request(method, path, headers={**headers, "host": host})
            assert (answer.status_code, answer.json()["code"]) == (421, "wrong-host"), path
            assert "set-cookie" not in answer.headers


def test_no_route_lets_a_page_of_another_site_change_anything() -> None:
    """H19: also what needs no token, and the login."""
    with api() as client:
        changing = [each for each in ROUTES if each[0] != "GET"]
        assert len(changing) > 20
        for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
            for method, path in changing:
                answer = client.request(method, path, headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (403, "other-origin"), path


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_browser_gets_a_cookie_for_the_token_and_no_other(scheme: str) -> None:
    """H20: by a form, or in the address. Over TLS it is sent over TLS only."""
    with api() as client:
        client.base_url = client.base_url.copy_with(scheme=scheme)
        by_form = client.post("/session")
        by_address = client.get("/", params={"token": TOKEN}, follow_redirects=False)
        client.forget_token()
        for answer, status in ((by_form, 204), (by_address, 303)):
            assert answer.status_code == status
            name, _, rest = answer.headers["set-cookie"].partition("=")
            value, *attributes = rest.split("; ")
            expected = {"HttpOnly", "Path=/", "SameSite=strict", *(["Secure"] * (scheme == "https"))}
            assert (name, set(attributes)) == ("limpet_token_8000", expected)
            assert TOKEN not in value
            client.cookies.clear()
            assert client.get(f"{API}/runs").status_code == 401
            assert client.get(f"{API}/runs", headers={"cookie": f"{name}={value}"}).status_code == 200
            again = client.post("/session", headers={"cookie": f"{name}={value}"})
            assert (again.status_code, "set-cookie" in again.headers) == (401, False)


def test_only_pages_of_the_server_change_anything() -> None:
    """H19: a browser says which site a request is from, also where it sends no origin."""
    with api() as client:
        for site, status in [
            ("cross-site", 403),
            ("same-site", 403),
            ("same-origin", 404),
            ("none", 404),
        ]:
            answer = client.post(f"{API}/runs/none/cancel", headers={"sec-fetch-site": site})
            assert answer.status_code == status
        assert client.get(f"{API}/runs", headers={"sec-fetch-site": "cross-site"}).status_code == 200
        own = {"origin": f"http://{HOST}"}
        assert client.post(f"{API}/runs/none/cancel", headers=own).status_code == 404


def test_no_request_is_sent_to_where_it_says_that_it_comes_from() -> None:
    """H19: a path with one slash too many isn't found, and doesn't lead to the host that the request names."""
    with api() as client:
        client.forget_token()
        for method, path in WITH_TOKEN:
            answer = client.request(
                method, f"{path}/", headers={"host": "evil.example"}, follow_redirects=False
            )
            assert (answer.status_code, answer.json()["code"]) == (404, "no-route"), path
            assert "location" not in answer.headers


def test_public_routes_need_no_token_and_tell_nothing() -> None:
    """H19: whether the store answers, and what a link has a token of its own for."""
    with api() as client:
        client.forget_token()
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/healthz", headers={"host": "evil.example"}).status_code == 421
        for endpoint in ENDPOINTS:
            if endpoint.is_public:
                assert client.request(endpoint.method, filled(endpoint)).status_code in (400, 404)


def test_public_routes_say_nothing_of_a_store_that_fails() -> None:
    """H19: neither where it is nor why; those with the token learn it."""
    store = Broken()
    with api(store=store) as client:
        client.run_until_it_stops("r", topic="kelp")
        link = client.act("/runs/r/link")["path"].removeprefix("/answer/")
        store.is_broken = True
        assert "a-secret-host" in client.read("/runs/r", 503)["detail"]
        client.forget_token()
        for path in ("/healthz", f"{API}/questions/{link}"):
            answer = client.get(path)
            assert (answer.status_code, answer.json()["code"]) == (503, "store-unavailable")
            assert "a-secret-host" not in answer.text


def test_strangers_hold_up_no_client_while_the_store_hangs() -> None:
    """H19: those who ask whether it answers share one look, and leave nothing behind when they go."""
    store = Hanging()
    with served(store, [article(store)]) as server, server.client() as client:
        link = stored_link(store)
        store.may_answer.clear()
        try:
            for path in ("/healthz", f"{API}/questions/{link}"):
                for _ in range(100):
                    with socket.create_connection(server.host) as stranger:
                        stranger.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert client.get(f"{API}/about").status_code == 200
            assert client.get(f"{API}/graphs").status_code == 200
            assert store.asked <= 1 + STRANGERS_AT_ONCE
        finally:
            store.may_answer.set()
        until(lambda: client.get("/healthz").status_code == 200, "the store")


def test_costly_requests_hold_up_no_others_while_the_store_hangs() -> None:
    """H19: those that look through many runs, by a client with the token."""
    store = Hanging()
    with served(store, [article(store)]) as server, server.client() as client, ExitStack() as stack:
        store.may_answer.clear()
        try:
            for number in range(100):
                asking = stack.enter_context(socket.create_connection(server.host))
                asking.sendall(
                    f"GET {API}/counts?tag=t{number} HTTP/1.1\r\nHost: localhost\r\n"
                    f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
                )
            until(lambda: store.asked, "the first look")
            assert client.get(f"{API}/about").status_code == 200
            assert client.get(f"{API}/graphs").status_code == 200
        finally:
            store.may_answer.set()


def test_each_event_loop_has_room_of_its_own() -> None:
    """H19: one application may be served by several, and what a loop waits for doesn't wake another one."""
    room = application._Room(2)

    async def twice() -> tuple[Any, Any]:
        return room.here, room.here

    with ThreadPoolExecutor(2) as threads:
        (one, same), (other, _) = threads.map(lambda _: asyncio.run(twice()), range(2))
    assert one is same
    assert one is not other


def stored_link(store: Any) -> str:
    """The link of a question that a run asks."""
    with api(store=store) as client:
        client.run_until_it_stops("r", topic="kelp")
        path: str = client.act("/runs/r/link")["path"]
        return path.removeprefix("/answer/")


class Hanging(MemoryStore):
    """A store that doesn't answer until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked = 0

    def list(self, which: RunFilter) -> list[RunHead]:
        self._wait()
        return super().list(which)

    def head(self, run_id: str) -> RunHead:
        self._wait()
        return super().head(run_id)

    def _wait(self) -> None:
        if not self.may_answer.is_set():
            self.asked += 1
            assert self.may_answer.wait(60)


def test_one_look_at_the_store_serves_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: for a moment; then it is looked at again, also after it has failed."""
    store = Broken()
    with api(store=store) as client:
        assert client.get("/healthz").status_code == 200
        store.is_broken = True
        assert client.get("/healthz").status_code == 200
        monkeypatch.setattr(metrics, "CHECK_LASTS", 0.0)
        until(lambda: client.get("/healthz").status_code == 503, "the next look")
        store.is_broken = False
        assert client.get("/healthz").status_code == 200


class Broken(MemoryStore):
    """A store that fails once it is to."""

    is_broken = False

    def list(self, which: RunFilter) -> list[RunHead]:
        self._fail()
        return super().list(which)

    def head(self, run_id: str) -> RunHead:
        self._fail()
        return super().head(run_id)

    def _fail(self) -> None:
        if self.is_broken:
            raise StoreUnavailable("a-secret-host can't be reached")


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "PUT", "PATCH", "CONNECT"])
def test_odd_methods_do_nothing(method: str) -> None:
    """H19: HEAD is answered like GET, the others aren't; none needs less."""
    with api() as client:
        client.run_until_it_stops("kelp", topic="kelp")
        for endpoint in ENDPOINTS:
            path = filled(endpoint, run_id="kelp")
            answer = client.request(method, path)
            if method == "HEAD":
                assert answer.content == b""
                assert answer.status_code in (200, 400, 403, 404, 405), path
            else:
                assert answer.status_code == 405, path
                # Also those of other routes with this path.
                assert endpoint.method in answer.headers["allow"].split(", ")
                assert answer.json()["code"] == "no-route"
            assert "access-control-allow-origin" not in answer.headers
        assert client.read("/runs/kelp")["status"] == "paused"
        client.forget_token()
        assert client.head(f"{API}/runs/kelp").status_code == 401


def test_a_code_for_a_browser_opens_the_page_once_and_soon() -> None:
    """H20: it is on a command line, which other users of the machine can read."""
    now = time()
    code = browser_code(TOKEN, now)
    expires, _, seal = browser_code(TOKEN, now - CODE_LASTS - 1).partition(".")
    with api() as client:
        client.forget_token()

        def opens(given: str) -> bool:
            client.cookies.clear()
            answer = client.get("/runs", params={"token": given, "q": "x"}, follow_redirects=False)
            if answer.status_code == 401:
                return False
            assert (answer.status_code, answer.headers["location"]) == (303, "/runs?q=x")
            return client.get(f"{API}/runs").status_code == 200

        assert opens(code)
        assert not opens(code)
        assert opens(browser_code(TOKEN, now + 1))
        later = str(int(expires) + 10**6)
        wrong = (
            browser_code("another token", now),
            f"{expires}.{seal}",
            f"{later}.{seal}",
            seal,
            ".",
            "",
            "é.é",
        )
        assert not any(map(opens, wrong))
        assert client.get(f"{API}/runs", headers={"authorization": f"Bearer {code}"}).status_code == 401


def test_the_token_is_dropped_from_the_address_however_it_is_spelt() -> None:
    """H20: else the page would lead to itself for ever."""
    with api() as client:
        client.forget_token()
        for name in ("token", "%74oken", "%74%6F%6B%65%6E"):
            query = f"a=1&{name}={quote(TOKEN)}&tokens=2"
            answer = client.get(f"/runs?{query}", follow_redirects=False)
            assert (answer.status_code, answer.headers["location"]) == (303, "/runs?a=1&tokens=2")


def test_every_answer_forbids_browsers_to_run_or_embed_it() -> None:
    """H19: answers, problems, files and routes that don't exist."""
    with api() as client:
        client.run_until_it_stops("kelp", topic="kelp")
        for path in (f"{API}/runs/kelp", f"{API}/runs/none", "/nothing", "/metrics", "/healthz"):
            headers = client.get(path).headers
            assert "default-src 'self'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cache-control"] == "no-store"


def test_stored_texts_are_never_html() -> None:
    """H19: neither ids nor values; what they are in isn't a type that browsers render."""
    script = "<script>alert(1)</script>"
    with api() as client:
        client.run_until_it_stops(script, topic=script)
        run_id = "%3Cscript%3Ealert(1)%3C%2Fscript%3E"
        for path in ("", "/state", "/events", "/timeline", "/history"):
            answer = client.get(f"{API}/runs/{run_id}{path}")
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "application/json"
        picture = client.get(f"{API}/graphs/article/picture", params={"run_id": script})
        assert picture.headers["content-type"].startswith("image/svg+xml")
        assert script not in picture.text


@pytest.mark.parametrize(
    "run_id",
    [
        "%00",
        "a%0Ab",
        "a%0D%0Aset-cookie:%20x=y",
        "..%2f..%2fetc%2fpasswd",
        "%2e%2e",
        "%ED%A0%80",
        "%FF%FE",
        "x" * 5000,
        "%F0%9F%90%9A",
        "%22%3E%3Cimg%3E",
    ],
)
def test_hostile_ids_are_runs_that_do_not_exist(run_id: str) -> None:
    """H19: no header, file or query is made of them."""
    with api() as client:
        for endpoint in ENDPOINTS:
            if "{run_id}" not in endpoint.path:
                continue
            path = filled(endpoint, run_id=run_id)
            answer = client.request(endpoint.method, path, params=required(endpoint), json={})
            assert answer.status_code in (200, 400, 404), (path[:100], answer.text)
            assert "set-cookie" not in answer.headers


def test_the_name_of_an_exported_file_makes_no_other_header() -> None:
    """H19: quotes, line breaks and slashes of an id are escaped."""
    run_id = 'a"b\\c/é; filename=x'
    with api(asking) as client:
        client.run_until_it_stops(run_id)
        answer = client.get(f"{API}/runs/{'a%22b%5Cc%2F%C3%A9%3B%20filename%3Dx'}/export")
        assert answer.status_code == 200, answer.text
        disposition = answer.headers["content-disposition"]
        assert disposition == "attachment; filename*=UTF-8''a%22b%5Cc%2F%C3%A9%3B%20filename%3Dx.run"


def test_a_read_only_server_changes_nothing() -> None:
    """H19: every route that would is refused, whatever is asked of it."""
    with api(read_only=True) as client:
        client.run_until_it_stops("kelp", topic="kelp")
        for endpoint in ENDPOINTS:
            if endpoint.method != "GET":
                answer = client.request(endpoint.method, filled(endpoint, run_id="kelp"), json={})
                assert (answer.status_code, answer.json()["code"]) == (403, "read-only"), endpoint.path
        assert client.read("/runs/kelp")["status"] == "paused"
        assert client.read("/about")["read_only"] is True


def test_a_server_without_a_token_is_refused() -> None:
    """H19: it would serve every program that can reach it."""
    for options in ({}, {"token": ""}):
        with pytest.raises(UsageError, match="token"):
            app(MemoryStore(), **options)


@pytest.mark.parametrize("hosts", [["Runs.Example", "::1"], {"RUNS.example", "[0:0::1]"}])
def test_the_hosts_of_an_application_may_have_any_spelling(hosts: Collection[str]) -> None:
    """H19: requests name them in one."""
    with api(hosts=hosts) as client:
        for host, status in (("runs.example", 200), ("[::1]:8000", 200), ("localhost", 421)):
            assert client.get("/healthz", headers={"host": host}).status_code == status


@pytest.mark.parametrize("hosts", ["runs.example", ["https://runs.example"], ["runs.example:8000"], [""]])
def test_what_cannot_be_a_host_is_refused(hosts: Any) -> None:
    """H19: a text has characters, of which each would be one, and a part of it, too."""
    with pytest.raises(UsageError):
        app(MemoryStore(), token=TOKEN, hosts=hosts)


@pytest.mark.parametrize(
    ("host", "name", "port"),
    [
        ("localhost:8000", "localhost", "8000"),
        ("localhost", "localhost", ""),
        ("[::1]:8000", "[::1]", "8000"),
        ("[::1]", "[::1]", ""),
        ("", "", ""),
        (":80", ":80", ""),
    ],
)
def test_a_host_has_a_name_and_maybe_a_port(host: str, name: str, port: str) -> None:
    """H19."""
    assert split_host(host) == (name, port)


@pytest.mark.parametrize(
    ("allowed", "host", "is_allowed"),
    [
        (("localhost",), "LOCALHOST:1", True),
        (("localhost",), "localhost.:1", False),
        (("0.0.0.0",), "192.168.1.2:1", True),
        (("0.0.0.0",), "rebound.example:1", False),
        (("[::]",), "[fe80::1]:1", True),
        (("runs.example",), "runs.example", True),
        (None, "anything.example", True),
    ],
)
def test_a_server_is_reached_under_the_names_that_were_allowed(
    allowed: tuple[str, ...] | None, host: str, is_allowed: bool
) -> None:
    """H19: a server for all addresses of a machine is reached by any address, and by no name."""
    guard = Guard("token", hosts=allowed)
    if is_allowed:
        guard.check_host({"host": host})
        return
    with pytest.raises(Exception, match="isn't reached"):
        guard.check_host({"host": host})


def test_an_address_is_not_a_name() -> None:
    """H19."""
    assert is_address("127.0.0.1")
    assert is_address("[::1]")
    assert not is_address("localhost")
    assert not is_address("127.0.0.1.example")


def test_the_canary_of_these_tests_is_in_the_state() -> None:
    """H19: tests that look for it would pass without it, too."""
    store = MemoryStore()
    graph = article(store)
    list(graph.stream({"topic": "kelp"}, run_id="kelp"))
    assert graph.get("kelp").state["password"] == CANARY
