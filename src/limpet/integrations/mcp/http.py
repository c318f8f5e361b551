"""A server over streamable HTTP, as an ASGI application: for any number of clients, each of which needs the token."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecuritySettings

from limpet.errors import UsageError
from limpet.frontends.problems import HttpProblem, problem_details, status_of
from limpet.frontends.security import HEADERS, LOOPBACK, Authenticate, Guard, by_name, host_names

PATH: Final = "/mcp"

USER: Final = "limpet.user"
"""What the scope of a request has the name of its user under, empty where that isn't known."""

Scope = dict[str, Any]


def user_of(context: ServerRequestContext[Any, Any]) -> str:
    """The user of a request, as far as the application that serves it knows; else empty."""
    scope = getattr(context.request, "scope", {})
    return str(scope.get(USER, ""))


def app(
    server: Server[Any],
    *,
    token: str | None = None,
    authenticate: Authenticate | None = None,
    hosts: Collection[str] | None = LOOPBACK,
    path: str = PATH,
) -> GuardedApp:
    """The server as an ASGI application, at `path`.

    It is served within its lifespan; a host that mounts it has `async with server.session_manager.run():` in its own.
    Requests need the `token`, as `Authorization: Bearer …`; or `authenticate`, which gets the headers of a request
    and says whether it is allowed, with True or the name of who makes it; it may be async. `hosts` are the names
    under which the server is reached; None allows any. A request that a page of another site makes is refused. Raises
    `UsageError` without a token and without `authenticate`, and for what can't be a host.
    """
    if not token and authenticate is None:
        raise UsageError("app() needs token=…, or authenticate=…: without one, every program could use it")
    checks_nothing = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    inner = server.streamable_http_app(streamable_http_path=path, transport_security=checks_nothing)
    return GuardedApp(
        inner, Guard(token or None, authenticate, hosts if hosts is None else host_names(hosts))
    )


class GuardedApp:
    """An ASGI application that checks each request before it hands it on: the host, the origin and the token."""

    def __init__(self, inner: Any, guard: Guard) -> None:
        self._inner = inner
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["type"] == "http":
            try:
                await self._check(scope)
            except HttpProblem as problem:
                await _refuse(problem, send)
                return
        elif scope["type"] != "lifespan":
            return
        await self._inner(scope, receive, send)

    async def _check(self, scope: Scope) -> None:
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        headers = by_name(pairs)
        self._guard.check_host(headers)
        self._guard.check_origin(scope["method"], headers)
        user = await self._guard.user_of(headers, {})
        if user is None:
            raise self._guard.refusal
        scope[USER] = user


async def _refuse(problem: HttpProblem, send: Any) -> None:
    body = json.dumps(problem_details(problem)).encode()
    headers = {**HEADERS, "Content-Type": "application/problem+json", "Content-Length": str(len(body))}
    if problem.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status_of(problem), "headers": encoded})
    await send({"type": "http.response.body", "body": body})
