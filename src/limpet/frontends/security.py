"""Who may ask: the token, the names under which the server is reached, and the origins that requests come from.

A page of another site can have a browser send requests to a server on this machine. So a request needs the token, in
a header or in a cookie that other sites' requests don't carry; it must name a host that the server is meant to be
reached under (a name that was rebound to this machine isn't one); and a page that makes it must be of this server.
"""

from __future__ import annotations

import asyncio
import hmac
import inspect
import ipaddress
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from limpet.errors import UsageError
from limpet.frontends.problems import HttpProblem

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
"""The names under which a server on this machine is reached."""

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""What every answer has: a browser runs nothing that isn't a file of the server, and no page embeds it."""

CODE_LASTS: Final = 60.0
"""Seconds in which a browser that is started with a code has to use it."""

LONGEST_HOST: Final = 253
HOST_NAME: Final = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")

SAFE_METHODS: Final = ("GET", "HEAD")

REFUSED: Final = (401, 403)
"""With an error of such a status, as FastAPI's `HTTPException` has one, a host's own check refuses a request."""

log = logging.getLogger("limpet.server")

Allowed = bool | str | None
"""Whether a request is allowed; if so, it may be the name of who makes it."""

Authenticate = Callable[[Mapping[str, str]], Allowed | Awaitable[Allowed]]
"""A host's own check of a request: it gets the headers, by their names in small letters."""

WILDCARDS: Final = ("0.0.0.0", "[::]")
"""Hosts that stand for all addresses of a machine. A name can be rebound, and an address can't."""


class Guard(NamedTuple):
    """What a request has to have. `hosts` is None where any name will do, as the host application checks it."""

    token: str | None
    authenticate: Authenticate | None = None
    hosts: Collection[str] | None = LOOPBACK

    @property
    def refusal(self) -> HttpProblem:
        """What is said to a client that isn't known."""
        if self.token is None:
            return HttpProblem(401, "not-allowed", "the application of which this is a part doesn't allow it")
        return HttpProblem(401, "no-token", "give the token of the server: Authorization: Bearer …")

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Raise for a request under a name that the server isn't meant to be reached under."""
        if self.hosts is None:
            return
        host = headers.get("host", "")
        name, _ = split_host(host)
        takes_addresses = any(each in self.hosts for each in WILDCARDS)
        if name.lower() not in self.hosts and not (takes_addresses and is_address(name)):
            raise HttpProblem(
                421,
                "wrong-host",
                f"the server isn't reached as {host!r}; allow it with --allow-host or hosts=[…]",
            )

    def check_origin(self, method: str, headers: Mapping[str, str]) -> None:
        """Raise for a request that a page of another site has made."""
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host", ""):
            raise HttpProblem(403, "other-origin", f"a page of {origin!r} may not use this server")
        site = headers.get("sec-fetch-site", "none")
        if method not in SAFE_METHODS and site not in ("none", "same-origin"):
            raise HttpProblem(403, "other-origin", "a page of another site may not use this server")

    def has_token(self, headers: Mapping[str, str], cookies: Mapping[str, str]) -> bool:
        """Whether a request has the token, in a header or in the cookie."""
        if self.token is None:
            return False
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return same(given.strip(), self.token)
        return same(cookies.get(cookie_name(headers), ""), session_value(self.token))

    async def user_of(self, headers: Mapping[str, str], cookies: Mapping[str, str]) -> str | None:
        """Who makes a request: a name, or an empty one; None if it isn't allowed.

        Raises what the host's own check raises, except an error of 401 or 403, by which it refuses the request.
        """
        if self.has_token(headers, cookies):
            return ""
        try:
            allowed = await self._allowed(headers)
        except Exception as problem:
            if getattr(problem, "status_code", None) in REFUSED:
                return None
            raise
        if isinstance(allowed, str) and allowed:
            return str.__str__(allowed)  # of an enum of names, the name alone
        return "" if allowed is True else None

    async def user_if_known(self, headers: Mapping[str, str], cookies: Mapping[str, str]) -> str | None:
        """The same for what strangers may see, too: None also if the host's own check fails."""
        try:
            return await self.user_of(headers, cookies)
        except Exception:
            log.exception("authenticate failed for a request that needs no token")
            return None

    async def _allowed(self, headers: Mapping[str, str]) -> Any:
        if self.authenticate is None:
            return None
        if inspect.iscoroutinefunction(self.authenticate):
            return await self.authenticate(headers)
        # In a thread, as it may ask a database. What it gives may be awaitable all the same.
        allowed = await asyncio.to_thread(self.authenticate, headers)
        return await allowed if inspect.isawaitable(allowed) else allowed


def by_name(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The headers of a request by their names in small letters."""
    return {name.lower(): value for name, value in headers}


def cookie_name(headers: Mapping[str, str]) -> str:
    """The name of the cookie with the token. Servers on other ports of a host share its cookies."""
    _, port = split_host(headers.get("host", ""))
    return f"limpet_token_{port or 'default'}"


def session_value(token: str) -> str:
    """What the cookie of a browser that gave the token has: not the token itself, which may be used elsewhere."""
    return hmac.digest(token.encode(), b"limpet session", "sha256").hex()


def browser_code(token: str, now: float) -> str:
    """What opens the page in place of the token, once and soon: for a command line, which other users can read."""
    expires = str(int((now + CODE_LASTS) * 1000))
    return f"{expires}.{_code_seal(token, expires)}"


def is_browser_code(code: str, token: str, now: float) -> bool:
    """Whether a text is such a code for this token, and its time isn't over."""
    expires, _, seal = code.partition(".")
    return same(seal, _code_seal(token, expires)) and int(expires) >= now * 1000


def _code_seal(token: str, expires: str) -> str:
    content = f"limpet browser {expires}".encode("utf-8", "replace")
    return hmac.digest(token.encode(), content, "sha256").hex()


def host_names(hosts: Collection[str]) -> list[str]:
    """Hosts as requests name them. Raises `UsageError`."""
    if isinstance(hosts, str):
        raise UsageError(f"hosts=… takes a list of names, not {hosts!r}")
    return [host_name(each) for each in hosts]


def host_name(text: str) -> str:
    """A host as requests name it: in small letters, and an IPv6 address in brackets. Raises `UsageError`."""
    name = text.strip().lower()
    bare = name
    if name.startswith("[") and name.endswith("]"):
        bare = name[1:-1]
    try:
        address = ipaddress.ip_address(bare.partition("%")[0])
    except ValueError:
        if len(name) > LONGEST_HOST or not HOST_NAME.fullmatch(name):
            raise UsageError(f"{text!r} isn't the name or the address of a host, without a port") from None
        return name
    if address.version == 6:
        return f"[{address.compressed}]"
    return address.compressed


def split_host(host: str) -> tuple[str, str]:
    """The name and the port of a `Host` header."""
    name, _, port = host.rpartition(":")
    if name and port.isdecimal():
        return name, port
    return host, ""


def is_address(name: str) -> bool:
    """Whether a host is an address, not a name."""
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def same(given: str, expected: str) -> bool:
    """Whether two texts are the same, in a time that doesn't tell where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
