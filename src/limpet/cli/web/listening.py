"""Where a server listens: on this machine only, unless a token was chosen; and under which names it is reached."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import secrets
import socket
from argparse import Namespace
from collections.abc import Sequence
from time import time
from typing import Final, NamedTuple
from urllib.parse import quote

from limpet.errors import UsageError
from limpet.frontends.security import LOOPBACK, WILDCARDS, browser_code, host_name

TOKEN_VARIABLE: Final = "LIMPET_TOKEN"

HOST: Final = "127.0.0.1"
PORT = 8765

TOKEN_BYTES: Final = 24
"""Random bytes of a token that is generated."""

SHORTEST_TOKEN: Final = 16
"""Characters of a token, at least, if other machines can reach the server."""

TOKEN_CHARACTERS: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""What can be in a header, in a cookie and, quoted, in a URL."""

WAITING_CONNECTIONS: Final = 100
"""Connections that the system keeps until the server accepts them."""

UNREAD_BYTES: Final = 128 * 1024
"""Bytes that the system keeps of what a client hasn't read. With more, slow clients take memory, and it is noticed
late that they read."""

NOT_FREE: Final = (errno.EADDRINUSE, errno.EACCES)
"""Errors for a port that another program listens on or, on Windows, that the system reserves."""


class Address(NamedTuple):
    """Where a server is to listen, what requests need, and under which other names it is reached."""

    host: str = HOST
    port: int | None = None
    """None for `PORT`, or any other if that one is taken."""
    token: str = ""
    """What the user chose; empty for one that is generated."""
    names: Sequence[str] = ()


class Listening(NamedTuple):
    """A socket that listens, and its address."""

    socket: socket.socket
    address: Address
    token: str

    @property
    def port(self) -> int:
        """The port, also where any free one was asked for."""
        port: int = self.socket.getsockname()[1]
        return port

    @property
    def hosts(self) -> list[str]:
        """The names and addresses that requests may name as their host."""
        bound = self.socket.getsockname()[0]
        names = map(host_name, (self.address.host, bound, *self.address.names))
        return list(dict.fromkeys([*LOOPBACK, *names]))

    def url(self, path: str = "/", with_token: bool = True) -> str:
        """The URL of a page for a browser on this machine."""
        return self._url(path, self.token if with_token else "")

    def url_to_open(self, path: str) -> str:
        """The same for a command line: it has a code that works once and soon, as other users can read it."""
        return self._url(path, browser_code(self.token, time()))

    def _url(self, path: str, token: str) -> str:
        host = host_name(self.address.host)
        bound = host_name(self.socket.getsockname()[0])
        if bound in WILDCARDS:
            host = {"0.0.0.0": HOST, "[::]": "[::1]"}[bound]
        query = ""
        if token:
            query = f"?token={quote(token, safe='')}"
        return f"http://{host}:{self.port}{path}{query}"


def address_of(args: Namespace) -> Address:
    """The address that a command line names; the token may be in the environment. Raises `UsageError`."""
    token = args.token
    if token is None:
        token = os.environ.get(TOKEN_VARIABLE, "")
    elif not token:
        raise UsageError(f"--token is empty: leave it out to have one generated, or set {TOKEN_VARIABLE}")
    return checked_address(args.host, args.port, token, args.allow_host)


def checked_address(host: str, port: int | None, token: str, names: Sequence[str]) -> Address:
    """The address that a user names. Raises `UsageError`."""
    if token and not TOKEN_CHARACTERS.fullmatch(token):
        raise UsageError("a token may have letters, digits and - . _ ~ + / = only")
    if not _is_loopback(host_name(host)):
        reachable = f"{host} can be reached from other machines"
        if not token:
            raise UsageError(f"{reachable}, so choose a token: set LIMPET_TOKEN, or give --token")
        if len(token) < SHORTEST_TOKEN:
            raise UsageError(
                f"{reachable}, so the token needs {SHORTEST_TOKEN} characters or more, not {len(token)}"
            )
    return Address(host, port, token, [host_name(name) for name in names])


def _is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def listen(address: Address) -> Listening:
    """Listen, so that browsers may connect from now on. Raises `OSError`."""
    token = address.token or secrets.token_urlsafe(TOKEN_BYTES)
    if address.port is not None:
        return Listening(_bound(address.host, address.port), address, token)
    try:
        return Listening(_bound(address.host, PORT), address, token)
    except OSError as problem:
        if problem.errno not in NOT_FREE:
            raise
        return Listening(_bound(address.host, 0), address, token)


def _bound(host: str, port: int) -> socket.socket:
    found = socket.getaddrinfo(host.strip().strip("[]"), port, type=socket.SOCK_STREAM)
    # A name such as localhost has addresses of both kinds. Programs that know only one know IPv4.
    family, _, _, _, place = min(found, key=lambda each: each[0] != socket.AF_INET)
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    bound = socket.create_server(place, family=family, backlog=WAITING_CONNECTIONS, dualstack_ipv6=both)
    # Connections inherit both. Without the second, the body of a small answer waits until the client has acknowledged
    # its head, which takes 40 ms.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_BYTES)
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound


def why_not(problem: OSError, address: Address) -> str:
    """Why nothing can listen there, and what to do."""
    port = PORT if address.port is None else address.port
    if problem.errno == errno.EADDRINUSE:
        return f"port {port} of {address.host} is in use: give another --port, or 0 for any that is free"
    reason = problem.strerror or str(problem)
    if problem.errno is not None and problem.errno in errno.errorcode:  # else it is one of looking up a name
        reason = os.strerror(problem.errno)
    return f"can't listen on port {port} of {address.host}: {reason}"
