"""The connections to one Redis server, and what its errors mean to a user.

A call is a list of commands that are sent together and whose answers come back together. It takes an idle
connection, or opens a new one, so threads never wait for each other. A call whose connection breaks is made
again, until `timeout` has passed: all that the store sends can be repeated without harm, because each script
recognizes its own token.

A connection that goes silent is a broken one: networks fail without telling either side. A call gives up on it well
before its own time is over, so that there is time left to find out on another connection what has happened.

A forked child starts without connections: two processes that read answers from one socket would get each
other's.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from limpet.errors import StoreUnavailable, UsageError
from limpet.stores.redis.scripts import ALL as ALL_SCRIPTS
from limpet.stores.sockets import reset_when_closed

MAX_IDLE_CONNECTIONS = 16
"""Connections that are kept for the next call."""

MAX_CONNECT_SECONDS = 5.0

ATTEMPTS = 3
"""On how many connections in turn a call may wait for an answer, each for its share of the time."""

KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2, "TCP_USER_TIMEOUT": 20_000}
"""How the system notices within 20 seconds that an idle connection is dead, by names of the module `socket`."""

FIRST_RETRY_DELAY = 0.005
MAX_RETRY_DELAY = 0.25
"""Seconds between two attempts to reach an unavailable server."""


class Connections:
    """Calls to the server at `url`, from any thread. Raises `StoreUnavailable`, never the driver's own.

    `name` is the URL without user and password, for messages. `options` are those of the driver's connections.
    """

    def __init__(self, url: str, *, timeout: float, options: dict[str, Any]) -> None:
        self._driver = _driver()
        self._still_loading = self._driver.BusyLoadingError
        self._broken = (self._driver.ConnectionError, self._driver.TimeoutError, OSError)
        self._timeout = timeout
        self._pool = self._make_pool(url, options)
        self.name = _name(self._pool.connection_kwargs, url)
        self.closed = False
        self.forget_connections()
        _all.add(self)

    def forget_connections(self) -> None:
        """Start without connections: at first, and in a forked child, where they belong to the parent."""
        self._idle: list[Any] = []

    def ask(self, *commands: tuple[Any, ...]) -> list[Any]:
        """The answers to these commands, each possibly the server's error.

        Does not wait for a server that can't be reached, but for one that doesn't answer.
        """
        deadline = time.monotonic() + self._timeout
        return self._until(deadline, commands, repeat_after=self._driver.TimeoutError)

    def load_scripts(self) -> None:
        """Make the scripts known to the server."""
        self._load_scripts(time.monotonic() + self._timeout, self._driver.TimeoutError)

    def call(
        self, commands: Sequence[tuple[Any, ...]], on_repeat: Callable[[], object] | None = None
    ) -> list[Any]:
        """The answers to these `EVALSHA` commands, each possibly the server's error.

        What stops all of them (no connection, no answer, a server that is still loading) is tried again until
        `timeout` has passed, then raised. `on_repeat` is called before commands are sent again that may have been
        carried out already.
        """
        deadline = time.monotonic() + self._timeout
        replies = self._until(deadline, commands, self._broken, on_repeat)
        return self._with_scripts(deadline, commands, replies, on_repeat)

    def close(self) -> None:
        """Close the idle connections now, and those in use as soon as their calls end."""
        self.closed = True
        self._disconnect_idle()

    def explained(self, error: Exception) -> StoreUnavailable:
        """The `LimpetError` for one of the driver or the server. Its message says what to do."""
        kind = type(error).__name__
        text = str(error)
        for sign, meaning in _MEANINGS.items():
            if sign in text or sign == kind:
                return StoreUnavailable(f"{self.name} {meaning.format(timeout=self._timeout)}")
        return StoreUnavailable(f"{self.name} failed: {text}")

    def _until(
        self,
        deadline: float,
        commands: Sequence[tuple[Any, ...]],
        repeat_after: Any,
        on_repeat: Callable[[], object] | None = None,
    ) -> list[Any]:
        """The answers to these commands. Those errors of the driver are tried again until `deadline`, then raised."""
        delay = FIRST_RETRY_DELAY
        while True:
            problem: Exception | None
            try:
                replies = self._exchange(commands)
                problem = next((reply for reply in replies if isinstance(reply, self._still_loading)), None)
            except self._broken as error:
                problem = error
                # The network forgets all connections of a machine, or none; and a stopped server closes them all.
                self._disconnect_idle()
            if problem is None:
                return replies
            may_repeat = isinstance(problem, (repeat_after, self._still_loading))
            if not may_repeat or time.monotonic() + delay >= deadline:
                raise self.explained(problem) from problem
            if on_repeat is not None:
                on_repeat()
            time.sleep(delay)
            delay = min(delay * 2, MAX_RETRY_DELAY)

    def _with_scripts(
        self,
        deadline: float,
        commands: Sequence[tuple[Any, ...]],
        replies: list[Any],
        on_repeat: Callable[[], object] | None,
    ) -> list[Any]:
        """The same answers, after the commands whose script the server doesn't know were repeated with it.

        A server that was restarted, or whose scripts were flushed, has none.
        """
        while True:
            unknown = [i for i, reply in enumerate(replies) if isinstance(reply, self._driver.NoScriptError)]
            if not unknown or time.monotonic() >= deadline:
                return replies
            self._load_scripts(deadline, self._broken)
            repeated = self._until(deadline, [commands[i] for i in unknown], self._broken, on_repeat)
            for i, reply in zip(unknown, repeated, strict=True):
                replies[i] = reply

    def _load_scripts(self, deadline: float, repeat_after: Any) -> None:
        commands = [(b"SCRIPT", b"LOAD", script.text) for script in ALL_SCRIPTS]
        for reply in self._until(deadline, commands, repeat_after):
            if isinstance(reply, Exception):
                raise self.explained(reply) from reply

    def _exchange(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        if self.closed:
            raise StoreUnavailable(f"the store at {self.name} was closed; open it again")
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            connection.send_packed_command(connection.pack_commands(commands), check_health=False)
            replies = [self._reply(connection) for _ in commands]
        except BaseException:
            # Answers may still be under way: the next call on this connection would read them as its own.
            _abandon(connection)
            raise
        if self.closed or len(self._idle) >= MAX_IDLE_CONNECTIONS or _is_read_only(replies):
            connection.disconnect()
        else:
            self._idle.append(connection)
        return replies

    def _reply(self, connection: Any) -> Any:
        try:
            return connection.read_response()
        except (self._driver.ResponseError, self._still_loading) as error:
            return error

    def _connect(self) -> Any:
        connection = self._pool.make_connection()
        try:
            connection.connect()
        except self._driver.ResponseError as error:  # the number of the database doesn't exist, for instance
            raise self.explained(error) from error
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def _disconnect_idle(self) -> None:
        idle = self._idle
        with suppress(IndexError):  # other threads take connections meanwhile
            while True:
                idle.pop().disconnect()

    def _make_pool(self, url: str, options: dict[str, Any]) -> Any:
        """A pool of the driver. It only makes connections: keeping them, and trying again, is done here."""
        from redis.backoff import NoBackoff
        from redis.connection import ConnectionPool
        from redis.retry import Retry

        limit = self._timeout / ATTEMPTS
        options = {
            "protocol": 2,
            "socket_timeout": limit,
            "socket_connect_timeout": min(limit, MAX_CONNECT_SECONDS),
            "retry": Retry(NoBackoff(), 0),
            # It would count connections that were closed long ago, and refuse to make more after 100 of them.
            "max_connections": sys.maxsize,
            **({} if url.startswith("unix") else _keepalive()),
            **options,
        }
        try:
            _check_database(url)
            return ConnectionPool.from_url(url, **options)
        except (ValueError, TypeError):
            raise UsageError(
                "the URL of the Redis store can't be read: write redis://user:password@host:6379/0, with "
                "special characters of the password as %XX"
            ) from None


def _driver() -> Any:
    try:
        import redis.exceptions
    except ImportError as error:
        raise StoreUnavailable(
            "a Redis store needs the package redis: pip install 'limpet[redis]'"
        ) from error
    return redis.exceptions


def _keepalive() -> dict[str, Any]:
    """The options of the driver for `KEEPALIVE`, as far as this system knows them."""
    known = {getattr(socket, name): value for name, value in KEEPALIVE.items() if hasattr(socket, name)}
    return {"socket_keepalive": True, "socket_keepalive_options": known}


def _abandon(connection: Any) -> None:
    """Close a connection now, without delivering what the system has not sent yet."""
    line = getattr(connection, "_sock", None)
    if line is not None:
        reset_when_closed(line)
    connection.disconnect()


def _check_database(url: str) -> None:
    """Raises `ValueError` if the database isn't a number: the driver would use database 0 silently."""
    from urllib.parse import urlsplit

    scheme, _, rest = url.partition("://")
    database = urlsplit("//" + rest).path.strip("/")
    if "unix" not in scheme.lower() and database and not database.isdecimal():
        raise ValueError(database)


def _name(options: dict[str, Any], url: str) -> str:
    database = options.get("db") or 0
    if "path" in options:
        return f"redis+unix://{options['path']} (database {database})"
    scheme = "rediss" if url.lower().startswith("rediss") else "redis"
    return f"{scheme}://{options.get('host', 'localhost')}:{options.get('port', 6379)}/{database}"


def _is_read_only(replies: Sequence[Any]) -> bool:
    """Whether the server has become a replica: a new connection may lead to the new primary."""
    return any(isinstance(reply, Exception) and str(reply).startswith("READONLY") for reply in replies)


_MEANINGS = {
    "NOAUTH": "requires a password: write redis://:password@host",
    "Authentication required": "requires a password: write redis://:password@host",
    "AuthenticationError": "refused the user name or password: check them in the URL",
    "WRONGPASS": "refused the user name or password: check them in the URL",
    **dict.fromkeys(
        ("NOPERM", "NoPermissionError"),
        "doesn't allow this user what a store needs: allow it EVALSHA, SCRIPT LOAD and the store's keys",
    ),
    "READONLY": "is a read-only replica: name the primary",
    "ReadOnlyError": "is a read-only replica: name the primary",
    "OutOfMemoryError": "is out of memory: raise its maxmemory, or delete old runs; what was saved before is safe",
    "OOM ": "is out of memory: raise its maxmemory, or delete old runs; what was saved before is safe",
    "MISCONF": "can't write to its disk, and so refuses writes: repair that; the server's log has the reason",
    "NOREPLICAS": "has too few replicas to accept writes (min-replicas-to-write): start them",
    "BusyLoadingError": "is still loading its data: wait, and try again",
    "BUSY ": "is busy with a script of another program: end that with SCRIPT KILL",
    "DB index": "has no database of this number: write another after the last slash of the URL",
    "Invalid Database": "has no database of this number: write another after the last slash of the URL",
    "max number of clients": "accepts no more connections: raise its maxclients",
    "TimeoutError": "didn't answer within {timeout:g} s: find out what keeps it busy, or allow a longer timeout",
    "ConnectionError": "can't be reached: start it, or check host and port",
    "ConnectionRefusedError": "can't be reached: start it, or check host and port",
}

_all: WeakSet[Connections] = WeakSet()


def _after_fork_in_child() -> None:
    for connections in list(_all):
        connections.forget_connections()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
