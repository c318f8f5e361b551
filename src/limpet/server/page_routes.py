"""The routes of the page: its document under every path that a user may open, its files, and the cookie for a token.

The document has no data: its modules ask the API, as any client does. So it is the same for everyone, and a link to
a page that was opened from elsewhere works, although browsers send no cookie with the request for the document.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import time
from typing import Final
from urllib.parse import unquote_plus

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from limpet.frontends.problems import HttpProblem
from limpet.frontends.security import (
    HEADERS,
    Guard,
    by_name,
    cookie_name,
    is_browser_code,
    same,
    session_value,
)
from limpet.server.page_files import PageFiles

PAGES: Final = (
    "/",
    "/runs",
    "/runs/{run_id}",
    "/compare",
    "/graphs",
    "/graphs/{graph}",
    "/schedules",
    "/workers",
)
"""The paths of pages."""

ANSWER_PAGE: Final = "/answer/{link}"
"""The page of a link to one question, which needs no token."""

STATIC: Final = "/static/{hash}/{path:path}"

TOKEN: Final = "token"
"""The name in a query under which a browser brings the token, or a code for it."""

FOR_EVER: Final = "public, max-age=31536000, immutable"

Handler = Callable[[Request], Awaitable[Response]]


def page_routes(guard: Guard, reporting: Callable[[Handler], Handler]) -> list[Route]:
    """The routes. `reporting` has errors reported as those of the API are."""
    pages = _Pages(guard)
    return [
        *(Route(path, reporting(pages.show), methods=["GET"]) for path in PAGES),
        Route(ANSWER_PAGE, reporting(pages.show_public), methods=["GET"]),
        Route("/session", reporting(pages.log_in), methods=["POST"]),
        Route(STATIC, reporting(pages.file), methods=["GET"]),
    ]


class _Pages:
    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._files = PageFiles()
        self._used_codes: set[str] = set()

    async def show(self, request: Request) -> Response:
        """The document. With the token, or a code for it, in its query, a cookie, and the same page without it."""
        headers = by_name(request.headers.items())
        self._guard.check_host(headers)
        if self._opens(request.query_params.get(TOKEN, "")):
            return self._with_cookie(request, RedirectResponse(_path_without_token(request), 303))
        user = await self._guard.user_if_known(headers, request.cookies)
        return self._document(request, 401 if user is None else 200)

    async def show_public(self, request: Request) -> Response:
        """The document, for a page whose link has a token of its own."""
        self._guard.check_host(by_name(request.headers.items()))
        return self._document(request, 200)

    async def log_in(self, request: Request) -> Response:
        """Give a browser the cookie for a token that a user has typed, sent as any client sends it."""
        headers = by_name(request.headers.items())
        self._guard.check_host(headers)
        self._guard.check_origin(request.method, headers)
        if not self._guard.has_token(headers, {}):
            raise HttpProblem(401, "no-token", "this isn't the token of the server")
        return self._with_cookie(request, Response(status_code=204))

    async def file(self, request: Request) -> Response:
        """One of the files, which browsers keep for ever."""
        self._guard.check_host(by_name(request.headers.items()))
        found = self._files.find(request.path_params["hash"], request.path_params["path"])
        if found is None:
            raise HttpProblem(404, "no-route", "the page has no such file; load it again")
        headers = {**HEADERS, "Cache-Control": FOR_EVER, "Vary": "Accept-Encoding"}
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(found.content, media_type=found.media_type, headers=headers)
        headers["Content-Encoding"] = "gzip"
        return Response(found.compressed, media_type=found.media_type, headers=headers)

    def _opens(self, given: str) -> bool:
        """Whether what is given opens the page: the token, or a code for it, which does so once."""
        token = self._guard.token
        if token is None:
            return False
        if same(given, token):
            return True
        if given in self._used_codes or not is_browser_code(given, token, time()):
            return False
        self._used_codes.add(given)
        return True

    def _document(self, request: Request, status: int) -> Response:
        content = self._files.shell(_root(request))
        headers = {**HEADERS, "Cache-Control": "no-store"}
        return Response(content, status, headers, "text/html")

    def _with_cookie(self, request: Request, response: Response) -> Response:
        token = self._guard.token
        assert token is not None
        response.headers.update({**HEADERS, "Cache-Control": "no-store"})
        response.set_cookie(
            cookie_name(by_name(request.headers.items())),
            session_value(token),
            path=_root(request) or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return response


def _root(request: Request) -> str:
    root: str = request.scope.get("root_path", "")
    return root.rstrip("/")


def _path_without_token(request: Request) -> str:
    """The path that was asked for, as it was sent, with what else is in its query."""
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    path = "/" + raw.partition(b"?")[0].decode("latin-1").lstrip("/")
    parts = request.url.query.split("&")
    rest = [part for part in parts if part and unquote_plus(part.partition("=")[0]) != TOKEN]
    if not rest:
        return path
    return f"{path}?{'&'.join(rest)}"
