"""The connections to one Redis server, and what its errors mean to a person.

A call is a list of commands that go out together and whose answers come back together. It takes a
connection that nobody uses, or a new one, so threads never wait for each other. A call that was cut off is
made again, until `timeout` has passed: all that the store sends can be repeated without harm.

A child that was forked off begins with no connections: two processes that read answers from one socket would
get each other's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from hashlib import sha1
from typing import Any
from weakref import WeakSet

from limpet.errors import StoreUnavailable, UsageError

IDLE = 16
"""Connections that are kept for the next call."""

CONNECT_PATIENCE = 5.0

Script = tuple[str, bytes]
"""A script's text, and the name by which the server knows it."""


def script(text: str) -> Script:
    """A script to be named in calls."""
    return text, sha1(text.encode(), usedforsecurity=False).hexdigest().encode()


class Connections:
    """Calls to the server at `url`, from any thread. Raises `StoreUnavailable`, never the driver's own.

    `name` is the URL without user and password, for messages.
    """

    def __init__(
        self, url: str, *, timeout: float, scripts: Sequence[Script], options: dict[str, Any]
    ) -> None:
        self._driver = _driver()
        self._scripts = scripts
        self._timeout = timeout
        self._pool = self._prepared(url, options)
        self.name = _name(self._pool.connection_kwargs, url)
        self.closed = False
        self.begin()
        _all.add(self)

    def begin(self) -> None:
        """Have no connections: at first, and in a child that was forked off."""
        self._idle: list[Any] = []

    def ask(self, *commands: tuple[Any, ...]) -> list[Any]:
        """The answers to these commands; where the server refused one, its error. One attempt."""
        try:
            return self._exchange(commands)
        except self._cut_off as error:
            raise self.explained(error) from error

    def load(self) -> None:
        """Make the scripts known to the server."""
        for outcome in self.ask(*((b"SCRIPT", b"LOAD", text) for text, _ in self._scripts)):
            if isinstance(outcome, Exception):
                raise self.explained(outcome) from outcome

    def call(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The answers to these `EVALSHA` commands; what the server refused is in its place as an error.

        What stops all of them (no connection, a server that is still loading) is tried again, then raised.
        """
        deadline, pause = time.monotonic() + self._timeout, 0.005
        while True:
            try:
                replies = self._exchange(commands)
                trouble = next((reply for reply in replies if isinstance(reply, self._passing)), None)
                if trouble is None:
                    return self._with_scripts(commands, replies)
            except self._cut_off as error:
                trouble = error
            if time.monotonic() + pause >= deadline or not isinstance(trouble, self._cut_off + self._passing):
                raise self.explained(trouble) from trouble
            time.sleep(pause)
            pause = min(pause * 2, 0.25)

    def close(self) -> None:
        """Close what is idle now and, as soon as it is given back, what is in use."""
        self.closed = True
        while self._idle:
            self._idle.pop().disconnect()

    def explained(self, error: Exception) -> StoreUnavailable:
        """What to do about an error of the driver or the server."""
        kind, text = type(error).__name__, str(error)
        for sign, meaning in _MEANINGS.items():
            if sign in text or sign == kind:
                return StoreUnavailable(f"{self.name} {meaning.format(timeout=self._timeout)}")
        return StoreUnavailable(f"{self.name} failed: {text}")

    def _with_scripts(self, commands: Sequence[tuple[Any, ...]], replies: list[Any]) -> list[Any]:
        """The same answers; a command whose script the server had forgotten is repeated with the script."""
        unknown = [n for n, reply in enumerate(replies) if isinstance(reply, self._driver.NoScriptError)]
        if unknown:
            self.load()
            for number, reply in zip(unknown, self.call([commands[n] for n in unknown]), strict=True):
                replies[number] = reply
        return replies

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
            connection.disconnect()
            raise
        if self.closed or len(self._idle) >= IDLE or _is_read_only(replies):
            connection.disconnect()
        else:
            self._idle.append(connection)
        return replies

    def _reply(self, connection: Any) -> Any:
        try:
            return connection.read_response()
        except self._driver.ResponseError as error:
            return error
        except self._passing as error:
            return error

    def _connect(self) -> Any:
        connection = self._pool.make_connection()
        try:
            connection.connect()
        except self._driver.ResponseError as error:  # of the database's number, for instance
            raise self.explained(error) from error
        return connection

    def _prepared(self, url: str, options: dict[str, Any]) -> Any:
        """A pool, which knows how to make connections; it is used for nothing else."""
        errors = self._driver
        self._passing = (errors.BusyLoadingError,)
        self._cut_off = (errors.ConnectionError, errors.TimeoutError, OSError)
        from redis.backoff import NoBackoff
        from redis.connection import ConnectionPool
        from redis.retry import Retry

        options = {
            "protocol": 2,
            "socket_timeout": self._timeout,
            "socket_connect_timeout": min(self._timeout, CONNECT_PATIENCE),
            "retry": Retry(NoBackoff(), 0),
            **options,
        }
        try:
            _check_database(url)
            return ConnectionPool.from_url(url, **options)
        except (ValueError, TypeError):
            raise UsageError(
                "the URL of the Redis store can't be read: write redis://user:password@host:6379/0, and "
                "what is odd in the password as %XX"
            ) from None


def _driver() -> Any:
    try:
        import redis.exceptions
    except ImportError as error:
        raise StoreUnavailable(
            "a Redis store needs the package redis: pip install 'limpet[redis]'"
        ) from error
    return redis.exceptions


def _check_database(url: str) -> None:
    """Raises `ValueError` for a database that is no number: the driver would take the first one instead."""
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
    """Whether the server has become a replica: the next call may find another in its place."""
    return any(isinstance(reply, Exception) and str(reply).startswith("READONLY") for reply in replies)


_MEANINGS = {
    "NOAUTH": "wants a password: write redis://:password@host",
    "Authentication required": "wants a password: write redis://:password@host",
    "AuthenticationError": "refused the user name or password: check them in the URL",
    "WRONGPASS": "refused the user name or password: check them in the URL",
    **dict.fromkeys(
        ("NOPERM", "NoPermissionError"),
        "doesn't let this user do what a store does: allow it EVALSHA, SCRIPT LOAD and the store's keys",
    ),
    "READONLY": "is a read-only replica: name the primary",
    "ReadOnlyError": "is a read-only replica: name the primary",
    "OutOfMemoryError": "is out of memory: raise its maxmemory, or delete old runs; what was saved before is safe",
    "OOM ": "is out of memory: raise its maxmemory, or delete old runs; what was saved before is safe",
    "MISCONF": "can't write to its disk, and so takes nothing: mend that; its log says what is wrong",
    "NOREPLICAS": "has too few replicas to take anything (min-replicas-to-write): start them",
    "BusyLoadingError": "is still loading its data: wait, and try again",
    "BUSY ": "is busy with a script of another program: end that with SCRIPT KILL",
    "DB index": "has no database of this number: write another after the last slash of the URL",
    "Invalid Database": "has no database of this number: write another after the last slash of the URL",
    "max number of clients": "has no connection left for us: raise its maxclients",
    "TimeoutError": "didn't answer within {timeout:g} s: see what keeps it busy, or allow a longer timeout",
    "ConnectionError": "can't be reached: start it, or check host and port",
    "ConnectionRefusedError": "can't be reached: start it, or check host and port",
}

_all: WeakSet[Connections] = WeakSet()


def _begin_in_child() -> None:
    for connections in list(_all):
        connections.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
