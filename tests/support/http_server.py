"""A server for tests: the application in a thread of its own, on a port of its own, and clients of it."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from types import TracebackType
from typing import Any, Self

import httpx
import uvicorn

from limpet.server import app
from support.waiting import SOON, until

TOKEN = "the token of these tests"
API = "/api/v1"


class Served:
    """A server that is reached by real connections, for what a client in the same process can't show."""

    def __init__(self, application: Any) -> None:
        # Not even errors: a server that ends while it streams logs that.
        config = uvicorn.Config(
            application,
            port=0,
            log_level=logging.CRITICAL,
            lifespan="off",
            ws="none",
            log_config=None,
            timeout_graceful_shutdown=1,  # from Python 3.12 on, it waits for streams otherwise
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self.root = ""
        """The path under which the application is mounted."""

    def __enter__(self) -> Self:
        self._thread.start()
        until(lambda: self._server.started, "the start of the server")
        self.host: tuple[str, int] = self._server.servers[0].sockets[0].getsockname()
        self.address = f"http://127.0.0.1:{self.host[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.force_exit = True
        self._server.should_exit = True
        self._thread.join(SOON)

    def client(self) -> httpx.Client:
        """A client that has the token."""
        headers = {"authorization": f"Bearer {TOKEN}"}
        return httpx.Client(base_url=self.address, headers=headers, timeout=SOON)


@contextmanager
def served(store: Any, graphs: Iterable[Any] = (), **options: Any) -> Iterator[Served]:
    """The API over a store, served."""
    with Served(app(store, graphs, token=TOKEN, **options)) as server:
        yield server


class Events(threading.Thread):
    """A client that reads server-sent events, in a thread of its own, until the stream ends or it leaves."""

    def __init__(self, server: Served, path: str, **headers: str) -> None:
        super().__init__(daemon=True)
        self.messages: list[dict[str, Any]] = []
        self.last_id = ""
        self.status = 0
        host = server.address.removeprefix("http://")
        self._connection = HTTPConnection(host, timeout=SOON)
        self._connection.connect()
        self._socket = self._connection.sock
        headers = {"authorization": f"Bearer {TOKEN}", **headers}
        self._connection.request("GET", server.root + API + path, headers=headers)
        self.start()

    def run(self) -> None:
        # Such errors come when it has left, or the server has ended.
        with (
            closing(self._connection),
            suppress(OSError, HTTPException),
            self._connection.getresponse() as response,
        ):
            self.status = response.status
            self._read(line.decode().rstrip("\n") for line in response)

    def _read(self, lines: Iterator[str]) -> None:
        fields: dict[str, str] = {}
        for line in lines:
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
                continue
            if "data" in fields:
                kind = fields.get("event", "message")
                self.messages.append(
                    {"kind": kind, "id": fields.get("id", ""), "data": json.loads(fields["data"])}
                )
            if "id" in fields:
                self.last_id = fields["id"]  # last, as it says that the message is there
            fields = {}

    @property
    def kinds(self) -> list[str]:
        """The kinds of the messages so far."""
        return [each["kind"] for each in self.messages]

    def leave(self) -> None:
        """Go away in the middle, as a browser does that is closed."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.join(SOON)
