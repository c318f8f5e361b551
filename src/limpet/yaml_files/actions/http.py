"""The action `http.request`: ask a server, and give what it answered. http and https, nothing else."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from limpet.errors import ActionFailed

RESERVED = "%/:=&?~#+!$,;'@()*[]"
"""Characters of a URL that mean something there; others that can't be in one are put in a form that can."""

PRIVATE = ("authorization", "cookie", "proxy-authorization")
"""Headers that don't go along when a redirect leads to another server."""


def request(
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
    """Send a request and give the answer's `status`, `headers` and `body`: data if it is JSON, else text.

    Raises `ActionFailed` if there is no answer, if it is too long or, with `check`, if it isn't a good one. Redirects
    of a GET or HEAD are followed to http and https only, never from https to http.
    """
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import Request

    sent = _body(json, body)
    asked = (method or ("GET" if sent is None else "POST")).upper()
    target = quote(_with_query(url, query), safe=RESERVED)
    named = {"User-Agent": "limpet", **({"Content-Type": "application/json"} if json is not None else {})}
    named |= dict(headers or {})
    if idempotency_key:
        header = "Idempotency-Key" if idempotency_key is True else idempotency_key
        named[header] = quote(ctx.idempotency_key, safe="/:.-_")
    where = _shown(asked, target)
    try:
        opener = _opener(redirects if asked in ("GET", "HEAD") else 0)
        try:
            response = opener.open(Request(target, sent, named, method=asked), timeout=timeout)
        except HTTPError as answered:
            response = answered
        with response:
            data = response.read(max_bytes + 1)
            status, found = response.status, {key.lower(): value for key, value in response.headers.items()}
    except (URLError, OSError, HTTPException, ValueError) as problem:
        reason = getattr(problem, "reason", None) or type(problem).__name__
        raise ActionFailed("http.request", f"{where}: no answer: {reason}") from problem
    if len(data) > max_bytes:
        raise ActionFailed(
            "http.request", f"{where}: the answer is longer than {max_bytes} bytes (max_bytes)"
        )
    if check and not 200 <= status < 300:
        raise ActionFailed("http.request", f"{where}: the server answered {status}")
    return {"status": status, "headers": found, "body": _content(data, found.get("content-type", ""))}


def _body(json: Any, body: str | None) -> bytes | None:
    if json is None:
        return None if body is None else body.encode()
    try:
        return jsonlib.dumps(json, ensure_ascii=False).encode()
    except (TypeError, ValueError) as problem:
        raise ActionFailed("http.request", f"json can't be sent: {problem}") from problem


def _with_query(url: str, query: Mapping[str, Any] | None) -> str:
    more = urlencode(dict(query or {}))
    head, mark, fragment = url.partition("#")
    return f"{head}{'&' if '?' in head else '?'}{more}{mark}{fragment}" if more else url


def _opener(redirects: int) -> Any:
    """What opens http and https, and nothing else, whatever a redirect says."""
    from urllib import request

    class Redirects(request.HTTPRedirectHandler):
        max_redirections = redirects

        def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
            before, after = urlsplit(req.full_url), urlsplit(newurl)
            safe = after.scheme == "https" or (after.scheme == "http" and before.scheme == "http")
            if not redirects or not safe or req.get_method() not in ("GET", "HEAD"):
                return None
            made = super().redirect_request(req, fp, code, msg, headers, newurl)
            if made is not None and (before.scheme, before.netloc) != (after.scheme, after.netloc):
                made.headers = {
                    key: value for key, value in made.headers.items() if key.lower() not in PRIVATE
                }
            return made

    made = request.OpenerDirector()
    for handler in (
        request.ProxyHandler(), request.HTTPHandler(), request.HTTPSHandler(), Redirects(),
        request.HTTPDefaultErrorHandler(), request.HTTPErrorProcessor(), request.UnknownHandler(),
    ):  # fmt: skip
        made.add_handler(handler)
    return made


def _content(data: bytes, kind: str) -> Any:
    """The body as data if it says that it is JSON, and is; else as text."""
    text = data.decode("utf-8", "replace")
    if "json" in kind.lower():
        try:
            return jsonlib.loads(text)
        except ValueError:
            return text
    return text


def _shown(method: str, url: str) -> str:
    """A request as a message shows it: without user, password and query, which may be secret."""
    try:
        parts = urlsplit(url)
        return f"{method} {parts.scheme}://{parts.hostname or ''}{parts.path}"
    except ValueError:
        return method
