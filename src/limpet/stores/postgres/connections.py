"""The connections to one PostgreSQL server: a few, opened when needed, replaced when they break.

Everything about the driver that the store above should not have to know is here: how many connections,
how long to wait for one and for a server that is away, and forks.

Between us and the server there may be a pooler (PgBouncer) that hands each transaction to another session. What is
set or prepared in a session is then of no use, and may be in the way of others. So where a pooler answers, each piece
of work is one transaction that begins with its settings, and nothing is prepared by name.

A server that goes away in the middle of a call leaves open whether the call has happened. So the work is
done once more on another connection, and told that it is the second time (`again`): it then finds out
whether the first one arrived. A call that has certainly changed nothing is simply repeated.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, TypeVar
from weakref import WeakSet

import psycopg
from psycopg.pq import Format, TransactionStatus

from limpet.errors import StoreUnavailable
from limpet.stores.postgres.address import Address
from limpet.stores.postgres.errors import DRIVER_ERRORS, PASSING, explained, unreachable

Outcome = TypeVar("Outcome")

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two attempts to reach a server that is away."""

_AS_IT_IS = nullcontext()


class Cursor(psycopg.Cursor[tuple[Any, ...]]):
    """A connection as it is used here: through one cursor, with results in binary.

    `prepared` names the statements that were prepared on it by name. `pooled` says that it leads to a pooler.
    """

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        super().__init__(connection)
        self.format = Format.BINARY
        self.prepared: set[bytes] = set()
        self.pooled = False


class Connections:
    """Calls to the server at `address`, from any thread. Raises `StoreUnavailable`, never the driver's own.

    Each connection gets `settings`, prepares its statements and commits by itself. At most `limit` are open
    at a time. `timeout` is how many seconds to wait for one of them to be free, and for a server that is away
    to come back.
    """

    def __init__(self, address: Address, settings: Mapping[str, str], limit: int, timeout: float) -> None:
        self.address = address
        self.closed = False
        self._settings = dict(settings)
        self._limit = limit
        self._timeout = timeout
        self._idle: list[Cursor] = []
        self._start_afresh()
        _all.add(self)

    def __del__(self) -> None:
        if self._pid == os.getpid():
            self._close_idle()

    def begin(self, work: Callable[[Cursor], None]) -> None:
        """Run `work` on the first connection. A server that can't be reached is not waited for."""
        self._enter(time.monotonic() + self._timeout)
        cursor = None
        try:
            cursor = self._connect(0.0)
            with self._prepared(cursor):
                work(cursor)
        except DRIVER_ERRORS as error:
            raise explained(error, str(self.address)) from error
        finally:
            self._leave(cursor)

    def use(self, work: Callable[[Cursor, bool], Outcome]) -> Outcome:
        """Run `work(cursor, again)`; when the connection breaks, on another one, now with `again`."""
        again, deadline = False, 0.0
        while True:
            cursor = self._take(deadline)
            try:
                with self._prepared(cursor) if cursor.pooled else _AS_IT_IS:
                    return work(cursor, again)
            except DRIVER_ERRORS as error:
                broken = cursor.connection.closed
                deadline = deadline or time.monotonic() + self._timeout
                if not (broken or isinstance(error, PASSING)) or time.monotonic() >= deadline:
                    raise explained(error, str(self.address)) from error
                again = again or broken
            finally:
                self._leave(cursor)

    def close(self) -> None:
        """Close what is idle now and, as soon as it is given back, what is in use."""
        self.closed = True
        if self._pid != os.getpid():
            self._abandon()
        with self._free:
            self._close_idle()

    def _take(self, deadline: float) -> Cursor:
        """An idle connection, or a new one; waits until `deadline`, or for `timeout` if that is 0."""
        if self._pid != os.getpid():
            self._abandon()
        cursor = self._enter(deadline)
        if cursor is not None:
            return cursor
        try:
            cursor = self._connect(deadline or time.monotonic() + self._timeout)
        finally:
            if cursor is None:
                self._leave(None)
        return cursor

    def _enter(self, deadline: float) -> Cursor | None:
        with self._free:
            if self._busy >= self._limit:
                patience = deadline - time.monotonic() if deadline else self._timeout
                if not self._free.wait_for(lambda: self._busy < self._limit, max(patience, 0.0)):
                    raise StoreUnavailable(
                        f"all {self._limit} connections to {self.address} were busy for {self._timeout:g} s: "
                        "allow more with ?connections="
                    )
            if self.closed:
                raise StoreUnavailable(f"the store at {self.address} was closed; open it again")
            self._busy += 1
            return self._idle.pop() if self._idle else None

    def _leave(self, cursor: Cursor | None) -> None:
        if cursor is not None and cursor.connection.info.transaction_status != TransactionStatus.IDLE:
            with suppress(psycopg.Error):
                cursor.connection.rollback()
        with self._free:
            self._busy -= 1
            self._free.notify()
            if cursor is None:
                return
            if cursor.connection.closed:
                self._close_idle()  # the others are of no use either, most likely
            elif self.closed:
                cursor.connection.close()
            else:
                self._idle.append(cursor)

    def _connect(self, deadline: float) -> Cursor:
        pause = FIRST_PAUSE
        while True:
            try:
                return self.open()
            except psycopg.Error as error:
                meaning, passing = unreachable(error, self.address)
            if not passing or time.monotonic() >= deadline:
                raise meaning
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def open(self) -> Cursor:
        """A new connection, which is the caller's to close. Raises the driver's own errors."""
        connection = psycopg.connect(self.address.conninfo, autocommit=True, prepare_threshold=None)
        try:
            cursor = Cursor(connection)
            (session,) = cursor.execute(b"SELECT pg_backend_pid()").fetchone() or (0,)
            cursor.pooled = session != connection.info.backend_pid
            if not cursor.pooled:
                connection.prepare_threshold = 0
                self._set(cursor, lasting=True)
        except BaseException:
            connection.close()
            raise
        return cursor

    @contextmanager
    def _prepared(self, cursor: Cursor) -> Iterator[None]:
        """Behind a pooler: one transaction, with the settings that a session would have."""
        if not cursor.pooled:
            yield
            return
        with cursor.connection.transaction():
            self._set(cursor, lasting=False)
            yield

    def _set(self, cursor: Cursor, *, lasting: bool) -> None:
        calls = ", ".join([f"set_config(%s, %s, {not lasting})"] * len(self._settings))
        values = [each for pair in self._settings.items() for each in pair]
        cursor.execute(f"SELECT {calls}".encode(), values, prepare=False)

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().connection.close()

    def _abandon(self) -> None:
        """In a child that inherited connections: leave them open and unused, for they are the parent's."""
        _inherited.extend(self._idle)
        self._idle = []
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._pid = os.getpid()
        self._free = threading.Condition(threading.Lock())
        self._busy = 0


_all: WeakSet[Connections] = WeakSet()
_inherited: list[Cursor] = []


def _after_fork_in_child() -> None:
    for connections in list(_all):
        connections._abandon()


def _at_exit() -> None:
    for connections in list(_all):
        connections.close()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
