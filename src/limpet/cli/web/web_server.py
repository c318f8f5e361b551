"""`WebServer`: an ASGI application served over HTTP by a thread, which slow and broken clients don't hold up.

uvicorn bounds the size of a request's head, and the time that a connection may be silent after an answer. But it
waits for ever for a client that doesn't send the rest of its request, or that doesn't read its answer, and it keeps
any number of connections. Here a client that makes no progress is cut off, and connections whose request hasn't come
yet make room for new ones.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any, Final, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from limpet.cli.web.listening import WAITING_CONNECTIONS

MAX_CONNECTIONS = 500
"""Connections at the same time. Beyond that, the one that waits for its request longest makes room."""

FILES_FOR_EACH_CONNECTION: Final = 4
"""Of how many files that the process may open a connection takes one: the store needs files, too."""

ACCEPTED_AT_ONCE: Final = 10
"""Connections that are accepted before the server does anything else, such as to make room for them."""

PATIENCE = 20
"""Seconds that a client has to send a request, or to read an answer, besides those for its size."""

SLOWEST_CLIENT: Final = 1000
"""Bytes in a second, at least, of requests and answers that take longer."""

REQUEST_GRACE: Final = 2.0
"""Seconds that requests have to end when the server is stopped. Live events end at once."""

CUT_OFF_GRACE: Final = 0.5
"""Seconds that requests have to notice that their connection was cut off."""

STOP_LIMIT: Final = 5.0
"""Seconds that `stop` waits for the thread, which may be waiting for a store that doesn't answer."""

TICKS_IN_A_SECOND: Final = 10
"""How often uvicorn calls `on_tick` in a second."""


class WebServer:
    """An application, served on a socket that listens already, until it is stopped.

    With `has_lifespan`, the application gets the events of its beginning and its end.
    """

    def __init__(self, application: Any, listening: socket.socket, has_lifespan: bool = False) -> None:
        requests = _Requests(application)
        self._server = _Server(_config(requests, has_lifespan), requests)
        self._socket = listening
        # A daemon: the process can end although a request waits for a store that doesn't answer. The threads in which
        # requests are answered are daemons as well, since this one starts them.
        self._thread = Thread(target=self._run, name="limpet-serve", daemon=True)
        self.problem: BaseException | None = None
        """Why the thread has ended, if that wasn't asked of it."""

    def start(self) -> None:
        """Serve from now on, in a thread. Raises `RuntimeError` if no thread can be started."""
        self._thread.start()

    def has_ended(self) -> bool:
        """Whether nothing is served any more."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End live events, let other requests finish for a moment, and close all connections."""
        self._server.should_exit = True
        if not self.has_ended():
            self._thread.join(STOP_LIMIT)

    def _run(self) -> None:
        try:
            with self._socket:
                asyncio.run(self._server.serve(sockets=[self._socket]))
        except BaseException as problem:
            self.problem = problem


def _config(application: Any, has_lifespan: bool) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        http=_Connection,
        ws="none",
        lifespan="on" if has_lifespan else "off",
        workers=1,  # else WEB_CONCURRENCY counts
        access_log=False,  # the first URL has the token
        log_config=None,
        log_level="error",  # what is wrong with a request is said to the client
        server_header=False,
        backlog=ACCEPTED_AT_ONCE,
        limit_concurrency=_max_connections() + 1,
    )


def _max_connections() -> int:
    """Connections at the same time: fewer, if the process may open few files."""
    with suppress(ImportError):  # Windows has no such limit
        import resource

        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files != resource.RLIM_INFINITY:
            return min(MAX_CONNECTIONS, files // FILES_FOR_EACH_CONNECTION)
    return MAX_CONNECTIONS


class _Progress:
    """How long a request or an answer has been under way, and how much of it was sent: is its client too slow?"""

    def __init__(self) -> None:
        self.seconds = 0
        self.size = 0

    @property
    def delay(self) -> float:
        """Seconds more than the slowest client that isn't too slow needs for this size."""
        return self.seconds - self.size / SLOWEST_CLIENT


class _Connection(H11Protocol):
    """A connection that is cut off if its client is too slow.

    Time is counted by `note_second`, which the server calls. So a second in which the server itself was busy, or
    stopped by its system, isn't held against clients.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._request = _Progress()
        self._answer = _Progress()
        self._unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Make room for this connection, if there are too many."""
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            others = cast("set[_Connection]", self.connections) - {self}
            waiting = [each for each in others if each._awaits_request and not each.transport.is_closing()]
            if waiting:
                max(waiting, key=lambda each: each._request.delay).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take in a part of a request."""
        self._request.size += len(data)
        super().data_received(data)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._request = _Progress()
        super().on_response_complete()

    def resume_writing(self) -> None:
        """Send more of an answer: the client has read what was sent."""
        self._answer = _Progress()
        super().resume_writing()

    def note_second(self) -> None:
        """Count a second, and cut off a client that is too slow."""
        if self.flow.write_paused or self.transport.is_closing():
            self._note_reading()
        elif self._awaits_request:
            self._request.seconds += 1
        if max(self._request.delay, self._answer.delay) > PATIENCE:
            self.transport.abort()

    def _note_reading(self) -> None:
        """Count a second in which nothing more is sent until the client has read, so that what is unsent shrinks."""
        unsent = self.transport.get_write_buffer_size()
        if self._answer.seconds:
            self._answer.size += self._unsent - unsent
        self._answer.seconds += 1
        self._unsent = unsent

    @property
    def _awaits_request(self) -> bool:
        """Whether the client is to send something: the head of a request, or more of its body."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not self.flow.read_paused


class _Requests:
    """An application whose live events end when the server stops; else they would keep it from doing so.

    A browser comes back for them once a server is there again, after the last event that it got.
    """

    def __init__(self, application: Any) -> None:
        self._application = application
        self._streams: set[asyncio.Task[Any]] = set()
        self._is_ending = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        task = asyncio.current_task()
        assert task is not None

        async def noting(message: Any) -> None:
            await send(message)
            if message["type"] == "http.response.start" and _is_stream(message):
                self._streams.add(task)
                if self._is_ending:
                    task.cancel()

        try:
            await self._application(scope, receive, noting)
        except asyncio.CancelledError:
            if not self._is_ending:
                raise
            task.uncancel()
            if task in self._streams:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._streams.discard(task)

    def end_streams(self) -> None:
        """End all live events, now and later."""
        self._is_ending = True
        for task in self._streams:
            task.cancel()


def _is_stream(message: Any) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in message.get("headers", ())
    )


class _Server(uvicorn.Server):
    """A server that counts the time of its clients, leaves signals to the command, and stops without a wait."""

    def __init__(self, config: uvicorn.Config, requests: _Requests) -> None:
        super().__init__(config)
        self._requests = requests

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, and have the system keep those that aren't accepted yet."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(WAITING_CONNECTIONS)  # it was set to the number that is accepted at once

    async def on_tick(self, counter: int) -> bool:
        """Look after the connections, once a second."""
        if counter % TICKS_IN_A_SECOND == 0:
            for connection in self._connections:
                connection.note_second()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End live events, let other requests finish, and cut off clients that are still there."""
        self._requests.end_streams()
        with suppress(TimeoutError):
            await asyncio.wait_for(super().shutdown(sockets), REQUEST_GRACE)
        for connection in self._connections:
            connection.transport.abort()
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=CUT_OFF_GRACE)

    @property
    def _connections(self) -> list[_Connection]:
        return cast("list[_Connection]", list(self.server_state.connections))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: a command has its own use for them."""
        yield
