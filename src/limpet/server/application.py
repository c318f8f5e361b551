"""`app`: the ASGI application. It checks each request, has it answered in a thread, and sends what comes back."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Sequence,
)
from contextlib import suppress
from functools import partial
from math import isfinite
from time import monotonic
from typing import Any, Final, TypeVar
from urllib.parse import quote, unquote
from weakref import WeakKeyDictionary

from anyio import CancelScope, CapacityLimiter
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from limpet.errors import LimpetError, UsageError
from limpet.frontends.given_values import check_text
from limpet.frontends.graph_on_store import GraphOnStore
from limpet.frontends.problems import (
    MEDIA_TYPE,
    HttpProblem,
    internal_problem,
    problem_details,
    store_problems_hidden,
)
from limpet.frontends.security import HEADERS, LOOPBACK, Authenticate, Guard, by_name, host_names
from limpet.frontends.values import to_bytes
from limpet.graph_methods import GraphMethods
from limpet.runs import Runs
from limpet.schedules import Schedules
from limpet.server.endpoint import (
    ApiRequest,
    Endpoint,
    FileAnswer,
    FileOnDisk,
    Service,
    body_values,
    query_values,
)
from limpet.server.metrics import MEDIA_TYPE as METRICS_TYPE
from limpet.server.metrics import Metrics, StoreCheck
from limpet.server.openapi import openapi
from limpet.server.page_routes import page_routes
from limpet.server.routes import graphs as graph_routes
from limpet.server.routes import history as history_routes
from limpet.server.routes import questions as question_routes
from limpet.server.routes import rows as row_routes
from limpet.server.routes import run as run_routes
from limpet.server.routes import runs as runs_routes
from limpet.server.routes import schedules as schedule_routes
from limpet.server.routes import states as state_routes
from limpet.server.routes import streams as stream_routes
from limpet.server.run_changes import RunChanges
from limpet.server.run_counts import COUNTING_SHARE, RecentAnswers
from limpet.server.timeline import Timelines
from limpet.stores.opening import open_store

T = TypeVar("T")

PREFIX: Final = "/api/v1"

MAX_BODY: Final = 1_000_000
"""Bytes of a request, at most."""

MAX_STRANGERS_BODY: Final = 100_000
"""The same for one without the token: any number of clients could have the server hold as much at the same time."""

STRANGERS_AT_ONCE: Final = 4
"""Requests without the token that are answered at the same time, while the others have the other threads."""

COSTLY_AT_ONCE: Final = 4
"""The same for requests that look through many runs."""

MAX_FILE: Final = 256_000_000
"""Bytes of a run that is imported, at most."""

PART_OF_FILE: Final = 1_000_000
"""Bytes of a file that are sent at a time."""

ENDPOINTS: Final = (
    *graph_routes.ENDPOINTS,
    *runs_routes.ENDPOINTS,
    *schedule_routes.ENDPOINTS,
    *question_routes.ENDPOINTS,
    *stream_routes.ENDPOINTS,
    *row_routes.ENDPOINTS,
    *history_routes.ENDPOINTS,
    *state_routes.ENDPOINTS,
    *run_routes.ENDPOINTS,
)
"""All routes under `PREFIX`. The first that matches a path answers."""

log = logging.getLogger("limpet.server")

Handler = Callable[[Request], Awaitable[Response]]


def app(
    store: Any,
    graphs: Iterable[GraphMethods[Any]] = (),
    *,
    token: str | None = None,
    authenticate: Authenticate | None = None,
    hosts: Collection[str] | None = LOOPBACK,
    read_only: bool = False,
) -> Starlette:
    """The HTTP API and the page over the runs in a store, as an ASGI application to be mounted under any path.

    `store` is whatever `open_store` takes. `graphs` are those whose runs can be started, forked and drawn. Requests
    need the `token`, as `Authorization: Bearer …`; or `authenticate`, which gets the headers of a request and says
    whether it is allowed, with True or the name of who makes it; it may be async. `hosts` are the names under which
    the server is reached; None allows any, for an application that checks them itself. With `read_only`, nothing can
    be changed. Raises `UsageError` without a token and without `authenticate`, and for what can't be a host.
    """
    if not token and authenticate is None:
        raise UsageError("app() needs token=…, or authenticate=…: without one, every program could use it")
    opened = open_store(store)
    known = [GraphOnStore(graph, opened) for graph in graphs]
    by_name = {each.name: each for each in known}
    service = Service(
        opened,
        Runs(opened, known),
        Schedules(opened),
        by_name,
        Timelines(opened),
        RunChanges(opened),
        RecentAnswers(1 / COUNTING_SHARE),
        read_only,
    )
    guard = Guard(token or None, authenticate, hosts if hosts is None else host_names(hosts))
    answering = _Answering(service, guard)
    routes: list[Route] = [
        Route("/healthz", answering.health, methods=["GET"]),
        Route("/metrics", answering.metrics, methods=["GET"]),
        Route(f"{PREFIX}/openapi.json", answering.document, methods=["GET"]),
        *(Route(PREFIX + each.path, answering.endpoint(each), methods=[each.method]) for each in ENDPOINTS),
        *page_routes(guard, answering.reporting),
    ]
    middleware = [Middleware(_EncodedPath)]
    no_route = partial(answering.no_route, routes)
    application = Starlette(
        routes=routes, middleware=middleware, exception_handlers={HTTPException: no_route}
    )
    # It would send clients to whatever the `Host` of their request names, before that is checked.
    application.router.redirect_slashes = False
    return application


class _EncodedPath:
    """Has routes match the path as it was sent, so that an id may have a slash, which is sent as `%2F`.

    The path under which the application is mounted has to be as it was sent, too.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path")
        if scope["type"] == "http" and raw:
            path = raw.partition(b"?")[0].decode("latin-1")
            root = scope.get("root_path", "")
            as_sent = "/".join(path.split("/")[: root.count("/") + 1])
            if unquote(as_sent) == root:
                root = as_sent
            scope = {**scope, "path": path, "root_path": root}
        await self._app(scope, receive, send)


class _Answering:
    """Answers requests: checks them, calls the function of their route in a thread, and reports errors."""

    def __init__(self, service: Service, guard: Guard) -> None:
        self._service = service
        self._guard = guard
        self._metrics = Metrics(service)
        self._store_check = StoreCheck(lambda: service.runs.list(limit=1))
        self._room_for_strangers = _Room(STRANGERS_AT_ONCE)
        self._room_for_costly = _Room(COSTLY_AT_ONCE)

    def endpoint(self, endpoint: Endpoint) -> Handler:
        """What Starlette calls for a route."""

        async def answer(request: Request) -> Response:
            user = await self._check(request, endpoint)
            checked = await self._read(endpoint, request, user)
            if endpoint.streams:
                return await self._stream(endpoint, request, checked)
            room = None
            if user is None:
                room = self._room_for_strangers.here
            elif endpoint.is_costly:
                room = self._room_for_costly.here
            with store_problems_hidden(endpoint.is_public):
                # In the thread it becomes JSON, too: for a large value that takes long.
                return await _while_connected(
                    request, run_sync(lambda: _response(endpoint.answer(checked)), limiter=room)
                )

        return self.reporting(answer)

    async def health(self, request: Request) -> Response:
        """Whether the store answers. It needs no token, and tells nothing else."""
        return await self.reporting(self._health)(request)

    async def metrics(self, request: Request) -> Response:
        """Numbers for Prometheus."""
        return await self.reporting(self._show_metrics)(request)

    async def document(self, request: Request) -> Response:
        """The OpenAPI document."""
        return await self.reporting(self._show_document)(request)

    async def no_route(self, routes: Sequence[Route], request: Request, problem: Exception) -> Response:
        """A path that doesn't exist, or a method that it doesn't have."""
        status = getattr(problem, "status_code", 500)
        what = f"there is no {request.method} {request.url.path[:200]!r} here"
        response = _problem(problem_details(HttpProblem(status, "no-route", what)))
        if status == 405:
            # Several routes may share the path.
            matching = [each for each in routes if each.matches(request.scope)[0] is not Match.NONE]
            response.headers["Allow"] = ", ".join(
                sorted({name for each in matching for name in each.methods or ()})
            )
        self._metrics.note_request(request.method, status, 0.0)
        return response

    def reporting(self, answer: Handler) -> Handler:
        """The same, with errors reported as problem details, and counted."""

        async def reporting(request: Request) -> Response:
            began = monotonic()
            try:
                response = await answer(request)
            except LimpetError as problem:
                response = _problem(problem_details(problem))
            except ClientDisconnect:
                response = Response(status_code=400)
            except Exception:
                log.exception("a request failed: %s", request.method)
                response = _problem(internal_problem())
            self._metrics.note_request(request.method, response.status_code, monotonic() - began)
            return response

        return reporting

    async def _health(self, request: Request) -> Response:
        self._guard.check_host(by_name(request.headers.items()))
        with store_problems_hidden():
            await _while_connected(request, self._store_check.result())
        return _response({"status": "ok"})

    async def _show_metrics(self, request: Request) -> Response:
        await self._check(request, None)
        answer = run_sync(self._metrics.text, limiter=self._room_for_costly.here)
        text = await _while_connected(request, answer)
        return _response(FileAnswer(text.encode(), METRICS_TYPE))

    async def _show_document(self, request: Request) -> Response:
        await self._check(request, None)
        return _response(openapi(ENDPOINTS, request.scope.get("root_path", ""), PREFIX))

    async def _check(self, request: Request, endpoint: Endpoint | None) -> str | None:
        """Who makes a request; None for a stranger. Raises unless it may be answered."""
        headers = by_name(request.headers.items())
        self._guard.check_host(headers)
        self._guard.check_origin(request.method, headers)
        if endpoint is not None and endpoint.is_public:
            user = await self._guard.user_if_known(headers, request.cookies)
        else:
            user = await self._guard.user_of(headers, request.cookies)
            if user is None:
                raise self._guard.refusal
        if endpoint is not None and endpoint.changes and self._service.read_only:
            raise HttpProblem(403, "read-only", "the server is read-only")
        return user

    async def _read(self, endpoint: Endpoint, request: Request, user: str | None) -> ApiRequest:
        values = query_values(endpoint, request.query_params.multi_items())
        if endpoint.streams and "last-event-id" in request.headers:
            values["after"] = request.headers["last-event-id"]
        body = b""
        if endpoint.changes:
            most = MAX_FILE if endpoint.takes_file else MAX_BODY
            body = await _body(request, MAX_STRANGERS_BODY if user is None else most)
        if not endpoint.takes_file:
            values |= body_values(endpoint, _json(request, body))
        return ApiRequest(self._service, _path_values(request), values, body, user or "")

    async def _stream(self, endpoint: Endpoint, request: Request, checked: ApiRequest) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream", headers=HEADERS)
        messages: AsyncIterator[bytes] | None = await _while_connected(request, endpoint.answer(checked))
        if messages is None:  # a browser comes back for more until it gets this
            return Response(status_code=204, headers=HEADERS)
        headers = {**HEADERS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._counted(messages), media_type="text/event-stream", headers=headers)

    async def _counted(self, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self._metrics.note_stream(1)
        try:
            async for message in messages:
                yield message
        finally:
            self._metrics.note_stream(-1)
            if isinstance(messages, AsyncGenerator):
                await messages.aclose()  # not when it is garbage: until then, it would follow its run


class _Room:
    """How many requests of a kind each event loop answers at the same time: a limiter is of one loop."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, CapacityLimiter] = WeakKeyDictionary()

    @property
    def here(self) -> CapacityLimiter:
        """The limiter of the running loop."""
        return self._limiters.setdefault(asyncio.get_running_loop(), CapacityLimiter(self._at_once))


async def _while_connected(request: Request, answer: Coroutine[Any, Any, T]) -> T:
    """What is answered. Once the client has left, nothing is begun that still waits for a thread."""
    with CancelScope() as scope:  # what a thread does is shielded from it
        leaving = asyncio.ensure_future(_cancel_once_disconnected(request, scope))
        try:
            return await answer
        finally:
            leaving.cancel()
    raise ClientDisconnect


async def _cancel_once_disconnected(request: Request, scope: CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue
    scope.cancel()


def _path_values(request: Request) -> dict[str, str]:
    return {name: check_text(name, unquote(value)) for name, value in request.path_params.items()}


async def _body(request: Request, most: int) -> bytes:
    """The body of a request. Raises `HttpProblem` for one that is too large, as soon as that is known."""
    length = request.headers.get("content-length", "0")
    too_large = HttpProblem(413, "too-large", f"a request may have {most:,} bytes")
    if not length.isdecimal() or int(length[:20]) > most:
        raise too_large
    parts = bytearray()
    async for part in request.stream():
        parts += part
        if len(parts) > most:
            raise too_large
    return bytes(parts)


def _json(request: Request, body: bytes) -> Any:
    """The JSON in a body; an empty object where there is none. Raises for what isn't JSON."""
    if not body:
        return {}
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HttpProblem(415, "not-json", "send JSON, with Content-Type: application/json")
    with suppress(ValueError, RecursionError):
        return json.loads(body, parse_constant=_finite, parse_float=_finite)
    raise UsageError("the body of the request isn't valid JSON")


def _finite(text: str) -> float:
    """A number. `NaN` and `Infinity` aren't JSON, although Python reads them, and 1e999 as `Infinity`."""
    number = float(text)
    if not isfinite(number):
        raise ValueError(text)
    return number


def _response(answer: Any) -> Response:
    headers = {**HEADERS, "Cache-Control": "no-store"}
    if not isinstance(answer, FileAnswer | FileOnDisk):
        return Response(to_bytes(answer), media_type="application/json", headers=headers)
    if isinstance(answer, FileAnswer) and answer.policy:
        headers["Content-Security-Policy"] = answer.policy
    if answer.name:
        headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(answer.name, safe='')}"
    if isinstance(answer, FileOnDisk):
        return _FileResponse(answer, headers)
    return Response(answer.content, media_type=answer.media_type, headers=headers)


class _FileResponse(StreamingResponse):
    """Sends a file in parts, and deletes it, also when the client goes away in the middle."""

    def __init__(self, answer: FileOnDisk, headers: dict[str, str]) -> None:
        self._file = answer.path.open("rb")
        self._delete = answer.delete
        headers["Content-Length"] = str(answer.path.stat().st_size)
        parts = iterate_in_threadpool(iter(lambda: self._file.read(PART_OF_FILE), b""))
        super().__init__(parts, headers=headers, media_type=answer.media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()
            self._delete()


def _problem(details: dict[str, Any]) -> Response:
    headers = {**HEADERS, "Cache-Control": "no-store"}
    if details["status"] == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(to_bytes(details), details["status"], headers, MEDIA_TYPE)
