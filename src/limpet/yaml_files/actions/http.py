"""The action `http.request`: send a request to a server and give its response. Only http and https are opened."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from limpet.errors import ActionFailed

URL_CHARACTERS = "%/:=&?~#+!$,;'@()*[]"
"""Characters with a meaning in a URL. Other characters that can't be in one are percent-encoded."""

PRIVATE_HEADERS = ("authorization", "cookie", "proxy-authorization")
"""Headers that aren't sent on when a redirect leads to another server."""

FOLLOWED_METHODS = ("GET", "HEAD")
"""The methods whose redirects are followed: repeating another request elsewhere might do something twice."""


def send_request(
    ctx: Any,
    url: str,
    method: str | None = None,
    query: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    json: Any = None,
    body: str | None = None,
    timeout: float = 30.0,
    check: bool = True,
    redirects: int = 5,
    idempotency_key: bool | str = False,
    max_bytes: int = 10_000_000,
) -> dict[str, Any]:
    """Send a request and give the `status`, `headers` and `body` of the response: data if it is JSON, else text.

    Raises `ActionFailed` if there is no response, if it is too long or, with `check`, if its status isn't 2xx.
    Redirects of a GET or HEAD are followed to http and https only, never from https to http.
    """
    from http.client import HTTPException
    from urllib.request import Request

    content = _content_to_send(json, body)
    used_method = (method or ("GET" if content is None else "POST")).upper()
    target = quote(_with_query(url, query), safe=URL_CHARACTERS)
    used_headers = {"User-Agent": "limpet"}
    if json is not None:
        used_headers["Content-Type"] = "application/json"
    used_headers |= dict(headers or {})
    if idempotency_key:
        header = "Idempotency-Key" if idempotency_key is True else idempotency_key
        used_headers[header] = quote(ctx.idempotency_key, safe="/:.-_")
    shown = _shown(used_method, target)
    try:
        request = Request(target, content, used_headers, method=used_method)
        opener = _opener(redirects if used_method in FOLLOWED_METHODS else 0)
        status, response_headers, data = _exchange(opener, request, timeout, max_bytes)
    except (OSError, HTTPException, ValueError) as problem:
        reason = getattr(problem, "reason", None) or type(problem).__name__
        raise ActionFailed("http.request", f"{shown}: no answer: {reason}") from problem
    if len(data) > max_bytes:
        raise ActionFailed(
            "http.request", f"{shown}: the answer is longer than {max_bytes} bytes (max_bytes)"
        )
    if check and not 200 <= status < 300:
        raise ActionFailed("http.request", f"{shown}: the server answered {status}")
    content_type = response_headers.get("content-type", "")
    return {"status": status, "headers": response_headers, "body": _decoded(data, content_type)}


def _exchange(opener: Any, request: Any, timeout: float, max_bytes: int) -> tuple[int, dict[str, str], bytes]:
    """Send a request; gives the status, the headers and the body of the response, up to a byte more than allowed."""
    from urllib.error import HTTPError

    try:
        response = opener.open(request, timeout=timeout)
    except HTTPError as refusal:
        response = refusal  # a response like any other; `check` decides whether it is a failure
    with response:
        data = response.read(max_bytes + 1)
        headers = {key.lower(): value for key, value in response.headers.items()}
        return response.status, headers, data


def _content_to_send(json: Any, body: str | None) -> bytes | None:
    if json is None:
        if body is None:
            return None
        return body.encode()
    try:
        return json_module.dumps(json, ensure_ascii=False).encode()
    except (TypeError, ValueError) as problem:
        raise ActionFailed("http.request", f"json can't be sent: {problem}") from problem


def _with_query(url: str, query: Mapping[str, Any] | None) -> str:
    added = urlencode(dict(query or {}))
    if not added:
        return url
    address, hash_sign, fragment = url.partition("#")
    separator = "&" if "?" in address else "?"
    return f"{address}{separator}{added}{hash_sign}{fragment}"


def _opener(max_redirects: int) -> Any:
    """An opener of http and https only, whatever a redirect says. urllib's own one would also open files and ftp."""
    from urllib import request

    class SafeRedirects(request.HTTPRedirectHandler):
        max_redirections = max_redirects

        def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
            before = urlsplit(req.full_url)
            after = urlsplit(newurl)
            is_safe = after.scheme == "https" or (after.scheme == "http" and before.scheme == "http")
            if not max_redirects or not is_safe or req.get_method() not in FOLLOWED_METHODS:
                return None
            redirected = super().redirect_request(req, fp, code, msg, headers, newurl)
            is_other_server = (before.scheme, before.netloc) != (after.scheme, after.netloc)
            if redirected is not None and is_other_server:
                redirected.headers = {
                    key: value
                    for key, value in redirected.headers.items()
                    if key.lower() not in PRIVATE_HEADERS
                }
            return redirected

    opener = request.OpenerDirector()
    opener.add_handler(request.ProxyHandler())
    opener.add_handler(request.HTTPHandler())
    opener.add_handler(request.HTTPSHandler())
    opener.add_handler(SafeRedirects())
    opener.add_handler(request.HTTPDefaultErrorHandler())
    opener.add_handler(request.HTTPErrorProcessor())
    opener.add_handler(request.UnknownHandler())
    return opener


def _decoded(data: bytes, content_type: str) -> Any:
    """The body as data if its type is JSON and it can be parsed, else as text."""
    text = data.decode("utf-8", "replace")
    if "json" not in content_type.lower():
        return text
    try:
        return json_module.loads(text)
    except ValueError:
        return text


def _shown(method: str, url: str) -> str:
    """A request as a message shows it: without user, password and query, which may be secret."""
    try:
        parts = urlsplit(url)
        return f"{method} {parts.scheme}://{parts.hostname or ''}{parts.path}"
    except ValueError:
        return method
