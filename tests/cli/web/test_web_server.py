"""A web server with clients that are slow, broken or too many: nothing holds up the others. H19."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from support.waiting import SOON, until

pytest.importorskip("uvicorn", reason="the extra server isn't installed")

from limpet.cli.web import web_server
from limpet.cli.web.listening import Address, listen
from limpet.cli.web.web_server import WebServer

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /size HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\n"
REFUSED = POST.replace(b"/size", b"/refused")
CHUNKS = b"POST /size HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
LARGE = 64_000_000
"""Bytes of an answer: more than the system keeps for a client that doesn't read."""


class Pages:
    """An ASGI application with an answer of each kind. It counts the requests that are under way."""

    def __init__(self) -> None:
        self.requests = 0
        self.hold = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests += 1
        try:
            await getattr(self, scope["path"].strip("/") or "page")(receive, send)
        finally:
            self.requests -= 1

    async def page(self, receive: Any, send: Any) -> None:
        await answer(send, b"a page")

    async def size(self, receive: Any, send: Any) -> None:
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            size += len(message["body"])
            if not message["more_body"]:
                await answer(send, str(size).encode())
                return

    async def refused(self, receive: Any, send: Any) -> None:
        await answer(send, b"no", 413)

    async def large(self, receive: Any, send: Any) -> None:
        await answer(send, bytes(LARGE))

    async def live(self, receive: Any, send: Any) -> None:
        """A first event, and none after it."""
        await begin(send)
        await self._until_disconnected(receive)

    async def flood(self, receive: Any, send: Any) -> None:
        """Events, as fast as the client takes them."""
        await begin(send)
        left = asyncio.ensure_future(self._until_disconnected(receive))
        try:
            while not left.done():
                await send({"type": "http.response.body", "body": bytes(10_000), "more_body": True})
                await asyncio.sleep(0)
        finally:
            left.cancel()

    async def thread(self, receive: Any, send: Any) -> None:
        """What takes long, in a thread."""
        await asyncio.get_running_loop().run_in_executor(None, self.hold.wait, SOON)
        await answer(send, b"late")

    async def busy(self, receive: Any, send: Any) -> None:
        """What takes long, and nothing else happens meanwhile."""
        self.hold.wait(SOON)
        await answer(send, b"late")

    async def _until_disconnected(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


async def answer(send: Any, body: bytes, status: int = 200) -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def begin(send: Any) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"event: first\n\n", "more_body": True})


class Serving:
    """A server, and clients of it."""

    def __init__(self) -> None:
        self.pages = Pages()
        listening = listen(Address(port=0))
        self.base = f"http://127.0.0.1:{listening.port}"
        self._place = ("127.0.0.1", listening.port)
        self.server = WebServer(self.pages, listening.socket)
        self.server.start()
        self._clients: list[socket.socket] = []

    def connect(self, *parts: bytes, reads_little: bool = False) -> socket.socket:
        """A client that has sent this."""
        client = socket.socket()
        self._clients.append(client)
        client.settimeout(SOON)
        if reads_little:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 10_000)
        client.connect(self._place)
        for part in parts:
            client.sendall(part)
        return client

    def ask(self, path: str) -> socket.socket:
        """A client that has asked for a page, and has read the beginning of the answer."""
        client = self.connect(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), reads_little=True)
        assert client.recv(12) == b"HTTP/1.1 200"
        return client

    def page(self) -> bytes:
        """An ordinary request."""
        with urlopen(self.base, timeout=SOON) as answered:
            found: bytes = answered.read()
            return found

    @property
    def connections(self) -> int:
        return len(self.server._server._connections)

    @property
    def connection(self) -> Any:
        """The connection of the only client."""
        (connection,) = self.server._server._connections
        return connection

    def pass_a_second(self) -> None:
        """Have connections notice that a second has passed."""
        passed = threading.Event()

        def note() -> None:
            for each in self.server._server._connections:
                each.note_second()
            passed.set()

        for each in self.server._server._connections[:1]:
            each.loop.call_soon_threadsafe(note)
            assert passed.wait(SOON)

    def close(self) -> None:
        self.pages.hold.set()
        self.server.stop()
        for client in self._clients:
            client.close()


@pytest.fixture
def serve() -> Iterator[Callable[[], Serving]]:
    """Start servers; before that, tests change their limits."""
    started: list[Serving] = []

    def start() -> Serving:
        started.append(Serving())
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients have two seconds, which pass when a test says so."""
    monkeypatch.setattr(web_server, "PATIENCE", 2)
    monkeypatch.setattr(web_server, "SLOWEST_CLIENT", 1000)
    monkeypatch.setattr(web_server, "TICKS_IN_A_SECOND", 1_000_000)


def everything_from(client: socket.socket) -> bytes:
    """What a client gets until the server closes the connection, or cuts it off."""
    found = bytearray()
    with suppress(ConnectionError):
        while part := client.recv(1_000_000):
            found += part
    return bytes(found)


def test_requests_are_answered_while_many_clients_hang(serve: Callable[[], Serving]) -> None:
    """H19: with half a request, or an answer that they don't read."""
    serving = serve()
    for _ in range(50):
        serving.connect(HEAD)
        serving.connect(POST, bytes(10))
        serving.connect(b"GET /flood HTTP/1.1\r\nHost: x\r\n\r\n", reads_little=True)
        serving.connect()
    until(lambda: serving.connections == 200)
    assert serving.page() == b"a page"
    assert serving.connections >= 200


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (b"", b""),
        (HEAD, b""),
        (POST + bytes(10), b""),
        (CHUNKS + b"5\r\nabc", b""),
        (HEAD + b"\r\n" + HEAD, b"a page"),
        (REFUSED + bytes(10), b"no"),
    ],
    ids=["nothing", "head", "body", "chunks", "second", "unwanted"],
)
def test_a_client_that_sends_no_more_of_its_request_is_cut_off(
    serve: Callable[[], Serving], impatient: None, sent: bytes, answered: bytes
) -> None:
    """H19: wherever it stops."""
    serving = serve()
    client = serving.connect(sent)
    received = bytearray()
    while not received.endswith(answered):
        received += client.recv(10_000)
    if not answered:
        until(lambda: serving.connections == 1 and serving.connection._request.size == len(sent))
    for _ in range(2):
        serving.pass_a_second()
    assert not _is_closed(client)
    serving.pass_a_second()
    assert everything_from(client) == b""
    until(lambda: (serving.connections, serving.pages.requests) == (0, 0))


@pytest.mark.parametrize("path", ["/large", "/flood"])
def test_a_client_that_reads_no_more_is_cut_off(
    serve: Callable[[], Serving], impatient: None, path: str
) -> None:
    """H19: the answer isn't kept for it."""
    serving = serve()
    client = serving.ask(path)

    def is_gone() -> bool:
        serving.pass_a_second()
        return (serving.connections, serving.pages.requests) == (0, 0)

    until(is_gone)
    assert len(everything_from(client)) < LARGE


def test_a_slow_client_that_makes_progress_is_served(serve: Callable[[], Serving], impatient: None) -> None:
    """H19: while it sends, and while it reads, although the connection would have ended without a request."""
    serving = serve()
    client = serving.connect(POST)
    until(lambda: serving.connections)
    for number in range(1, 11):
        client.sendall(bytes(1000))
        until(lambda number=number: serving.connection._request.size in (len(POST) + 1000 * number, 0))
        serving.pass_a_second()
    received = b""
    while not received.endswith(b"\r\n\r\n10000"):
        received += client.recv(1000)
    client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    size = len(client.recv(1000))
    unsent = serving.connection.transport.get_write_buffer_size
    for _ in range(10):
        before = unsent()
        while unsent() == before:
            size += len(client.recv(1_000_000))
        serving.pass_a_second()
    assert size < LARGE
    assert size + len(everything_from(client)) > LARGE


def test_an_answer_that_takes_long_is_waited_for(serve: Callable[[], Serving], impatient: None) -> None:
    """H19: the client isn't slow; the server is."""
    serving = serve()
    client = serving.connect(b"GET /thread HTTP/1.1\r\nHost: x\r\n\r\n")
    until(lambda: serving.pages.requests == 1)
    for _ in range(10):
        serving.pass_a_second()
    serving.pages.hold.set()
    received = b""
    while not received.endswith(b"late"):
        received += client.recv(1000)


def test_events_are_sent_for_as_long_as_they_are_read(serve: Callable[[], Serving], impatient: None) -> None:
    """H19: however full the buffers are each time that the server looks."""
    serving = serve()
    client = serving.ask("/flood")
    for _ in range(10):
        size = 0
        while size < 1_000_000:
            size += len(client.recv(1_000_000))
        serving.pass_a_second()
    assert serving.connections == 1


@pytest.mark.parametrize(
    "sent", [b"", HEAD, POST + bytes(10), HEAD + b"\r\n"], ids=["nothing", "head", "body", "kept"]
)
def test_a_connection_that_waits_for_its_request_makes_room_for_another(
    serve: Callable[[], Serving], monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """H19: the process keeps files for its store, and every request is answered."""
    monkeypatch.setattr(web_server, "MAX_CONNECTIONS", 10)
    serving = serve()
    live = serving.ask("/live")
    for _ in range(40):
        serving.connect(sent)
    assert serving.page() == b"a page"
    until(lambda: serving.connections <= 10)
    assert live.recv(1_000).startswith(b" OK")
    assert not _is_closed(live)


def _is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        client.settimeout(SOON)


def test_where_all_connections_are_in_use_a_further_one_is_refused(
    serve: Callable[[], Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    """H19: at once, with a status that says why; none of the others is cut off."""
    monkeypatch.setattr(web_server, "MAX_CONNECTIONS", 5)
    serving = serve()
    for _ in range(5):
        serving.ask("/live")
    with pytest.raises(HTTPError) as refused:
        serving.page()
    with refused.value:
        assert refused.value.code == 503
    assert serving.pages.requests == 5


def test_few_connections_are_kept_where_few_files_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: the store and the nodes need files, too."""
    resource = pytest.importorskip("resource", reason="this system has no such limits")
    for files, most in ((256, 64), (1024, 256), (100_000, 500), (resource.RLIM_INFINITY, 500)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert web_server._max_connections() == most


@pytest.mark.parametrize("path", ["/live", "/flood"])
def test_events_end_for_a_client_that_vanishes(serve: Callable[[], Serving], path: str) -> None:
    """H19: nothing of it is left, and nothing is logged."""
    serving = serve()
    client = serving.ask(path)
    # Closed like this, a connection is reset: the client is gone without a word.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    until(lambda: (serving.connections, serving.pages.requests) == (0, 0))


def test_a_server_stops_whatever_its_clients_do(
    serve: Callable[[], Serving], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """H19: events end as whole answers do; the others get a moment; nothing is logged."""
    monkeypatch.setattr(web_server, "REQUEST_GRACE", 0.2)
    caplog.set_level(logging.WARNING)
    serving = serve()
    live = serving.ask("/live")
    serving.connect(HEAD)
    serving.connect(POST, bytes(10))
    serving.ask("/large")
    serving.ask("/flood")
    serving.connect(b"GET /thread HTTP/1.1\r\nHost: x\r\n\r\n")
    until(lambda: serving.pages.requests == 4)
    serving.pages.hold.set()
    serving.server.stop()
    assert (serving.server.has_ended(), serving.server.problem) == (True, None)
    assert everything_from(live).endswith(b"event: first\n\n\r\n0\r\n\r\n")
    assert serving.pages.requests == 0
    assert [record.getMessage() for record in caplog.records] == []
    with pytest.raises(ConnectionError):
        serving.connect()


@pytest.mark.parametrize("path", ["/thread", "/busy"])
def test_a_stop_does_not_wait_for_what_hangs(
    serve: Callable[[], Serving], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """H19: such as a store that doesn't answer."""
    monkeypatch.setattr(web_server, "REQUEST_GRACE", 0.1)
    monkeypatch.setattr(web_server, "STOP_LIMIT", 0.5)
    serving = serve()
    serving.connect(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    until(lambda: serving.pages.requests == 1)
    serving.server.stop()
    assert not serving.server.has_ended()
    serving.pages.hold.set()
    until(serving.server.has_ended)


def test_a_server_that_fails_says_why(serve: Callable[[], Serving], monkeypatch: pytest.MonkeyPatch) -> None:
    """H19: so that the command ends, too."""

    async def fail(*_: object) -> bool:
        raise OSError("no more files")

    monkeypatch.setattr(web_server._Server, "on_tick", fail)
    server = serve().server
    until(server.has_ended)
    assert str(server.problem) == "no more files"
