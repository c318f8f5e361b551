"""The connections to one PostgreSQL server: a few, opened when needed, replaced when they break.

Everything about the driver that the store above should not have to know is here: how many connections, how long
to wait for one and for an unavailable server, and forks.

Between the store and the server there may be a pooler (PgBouncer) that gives each transaction another session.
What is set or prepared in a session then doesn't help, and may disturb other clients. So through a pooler each
piece of work is one transaction that begins with its settings, and nothing is prepared by name.

When the connection breaks in the middle of a call, it is unknown whether the call was carried out. So the work is
done once more on another connection, with `again`: it then finds out whether the first attempt arrived. A call
that has certainly changed nothing is simply repeated.

A connection that goes silent in the middle of a call is a broken one (see `patience.py`). A call gives up on it well
before its own time is over, so that there is time left to find out on another connection what has happened.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakSet

import psycopg
from psycopg.pq import Format, TransactionStatus

from limpet.errors import LimpetError, StoreUnavailable
from limpet.stores.postgres.address import Address
from limpet.stores.postgres.errors import DRIVER_ERRORS, TEMPORARY, explained, unanswered, unreachable
from limpet.stores.postgres.patience import PatientConnection, Silence
from limpet.threads.workers import Monitor

Outcome = TypeVar("Outcome")

FIRST_RETRY_DELAY = 0.02
MAX_RETRY_DELAY = 0.5
"""Seconds between two attempts to reach an unavailable server."""

ATTEMPTS = 3
"""On how many connections in turn a call may wait for an answer, each for its share of the time."""

SHORTEST_LIMIT = 0.5
"""Seconds that a server has at least for an answer, however short `timeout` is or how little of it is left."""

SHORTEST_CONNECT = 2
"""Seconds that the driver takes at least before it gives up a new connection."""

_NO_TRANSACTION = nullcontext()


class Cursor(psycopg.Cursor[tuple[Any, ...]]):
    """A connection as it is used here: through one cursor, with results in binary.

    `prepared` are the names of the statements that were prepared on it. `pooled`: it leads to a pooler.
    """

    connection: PatientConnection

    def __init__(self, connection: PatientConnection) -> None:
        super().__init__(connection)
        self.format = Format.BINARY
        self.prepared: set[bytes] = set()
        self.pooled = False


class Connections:
    """Calls to the server at `address`, from any thread. Raises `StoreUnavailable`, never the driver's own.

    Each connection gets `settings`, prepares its statements and commits each of them. At most `limit` are open
    at a time. `timeout` is how many seconds to wait for one of them to be free, and then for a server that is
    unavailable or doesn't answer.
    """

    def __init__(self, address: Address, settings: Mapping[str, str], limit: int, timeout: float) -> None:
        self.address = address
        self.closed = False
        self._settings = dict(settings)
        self._limit = limit
        self._timeout = timeout
        self._idle: list[Cursor] = []
        self._reset()
        _all.add(self)

    def __del__(self) -> None:
        if self._pid == os.getpid():
            self._close_idle()

    def connect_first(self, work: Callable[[Cursor], None]) -> None:
        """Run `work` on the first connection. Does not wait for a server that can't be reached."""
        with self._free_permit(0.0):
            try:
                self._call(self._connect(0.0), lambda cursor, again: work(cursor), False)
            except DRIVER_ERRORS as error:
                raise self._explained(error) from error
        self._permits.notify()

    def use(self, work: Callable[[Cursor, bool], Outcome], attempts: int = ATTEMPTS) -> Outcome:
        """Run `work(cursor, again)`; when the connection breaks, on another one, now with `again`.

        A connection that is silent for `timeout / attempts` seconds counts as broken.
        """
        again = False
        deadline = 0.0
        limit = self._timeout / attempts
        if self._pid != os.getpid():
            self._abandon()
        while True:
            permit = self._free_permit(deadline)
            began = time.monotonic()
            try:
                # An interrupt releases the permit, and drops the connection that it was used with: see
                # `limpet/threads`.
                with permit:
                    cursor = self._idle_cursor() or self._connect(deadline or began + self._timeout)
                    cursor.connection.limit = max(limit, SHORTEST_LIMIT)
                    return self._call(cursor, work, again)
            except DRIVER_ERRORS as error:
                is_broken = cursor.connection.closed
                deadline = deadline or began + self._timeout
                is_worth_repeating = is_broken or isinstance(error, TEMPORARY)
                if not is_worth_repeating or time.monotonic() >= deadline:
                    raise self._explained(error) from error
                limit = min(limit, deadline - time.monotonic())
                again = again or is_broken
            finally:
                self._permits.notify()

    def close(self) -> None:
        """Close the idle connections now, and those in use as soon as their calls end."""
        self.closed = True
        if self._pid != os.getpid():
            self._abandon()
        self._close_idle()

    def _free_permit(self, deadline: float) -> Lock:
        """A permit that no thread has, and so the right to use a connection once this thread has taken it.

        Waits until `deadline`, or for `timeout` if that is 0. Another thread may take the permit first: then this one
        waits for that call to end.
        """
        if self.closed:
            raise StoreUnavailable(f"the store at {self.address} was closed; open it again")
        found = self._permits.free()
        if found is not None:
            return found
        remaining = self._timeout
        if deadline:
            remaining = max(deadline - time.monotonic(), 0.0)
        found = self._permits.wait_for_free(remaining)
        if found is None:
            raise StoreUnavailable(
                f"all {self._limit} connections to {self.address} were busy for {self._timeout:g} s: "
                "allow more with ?connections="
            )
        return found

    def _idle_cursor(self) -> Cursor | None:
        """An idle connection, which is this call's now."""
        if self.closed:
            raise StoreUnavailable(f"the store at {self.address} was closed; open it again")
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _call(self, cursor: Cursor, work: Callable[[Cursor, bool], Outcome], again: bool) -> Outcome:
        """Run `work`, and keep the connection for the next call, unless it broke or the call was interrupted."""
        is_known = False
        try:
            # Every step comes through here: only a pooler pays for a transaction.
            with self._transaction(cursor) if cursor.pooled else _NO_TRANSACTION:
                outcome = work(cursor, again)
            is_known = True
            return outcome
        except (LimpetError, *DRIVER_ERRORS):
            is_known = True
            raise
        finally:
            if is_known:
                self._give_back(cursor)
            else:
                # The driver may have been stopped anywhere: what it remembers of the connection may be wrong.
                cursor.connection.abandon()

    def _give_back(self, cursor: Cursor) -> None:
        connection = cursor.connection
        if connection.info.transaction_status != TransactionStatus.IDLE:
            _end_transaction(connection)
        if connection.closed:
            # Most likely the server stopped, so the other connections are broken, too.
            self._close_idle()
        else:
            self._idle.append(cursor)
            if self.closed:
                self._close_idle()

    def _connect(self, deadline: float) -> Cursor:
        """A new connection; tries again until `deadline` if the server is unavailable."""
        delay = FIRST_RETRY_DELAY
        while True:
            remaining = deadline - time.monotonic()
            try:
                return self.open(self._timeout if deadline == 0.0 else remaining)
            except psycopg.Error as error:
                problem, is_temporary = unreachable(error, self.address, self._timeout)
            remaining = deadline - time.monotonic()
            if not is_temporary or remaining <= 0:
                raise problem
            time.sleep(min(delay, remaining))
            delay = min(delay * 2, MAX_RETRY_DELAY)

    def open(self, within: float | None = None) -> Cursor:
        """A new connection, which the caller has to close. Raises the driver's errors.

        `within` is how many seconds it may take, by default `timeout`. The driver has its own least time for each
        address of the server, `SHORTEST_CONNECT`.
        """
        within = self._timeout if within is None else within
        longest = min(max(int(within), SHORTEST_CONNECT), self.address.connect_timeout)
        connection = PatientConnection.connect(
            self.address.conninfo, connect_timeout=longest, autocommit=True, prepare_threshold=None
        )
        try:
            connection.limit = max(min(within, self._timeout / ATTEMPTS), SHORTEST_LIMIT)
            cursor = Cursor(connection)
            # A pooler greets with a number that it made up; the session behind it has another.
            (session,) = cursor.execute(b"SELECT pg_backend_pid()").fetchone() or (0,)
            cursor.pooled = session != connection.info.backend_pid
            if not cursor.pooled:
                connection.prepare_threshold = 0
                self._apply_settings(cursor, for_transaction=False)
        except BaseException:
            connection.close()
            raise
        return cursor

    @contextmanager
    def _transaction(self, cursor: Cursor) -> Iterator[None]:
        """Through a pooler: one transaction, with the settings that a session would have. Otherwise nothing."""
        if not cursor.pooled:
            yield
            return
        with cursor.connection.transaction():
            self._apply_settings(cursor, for_transaction=True)
            yield

    def _explained(self, error: Exception) -> LimpetError:
        if isinstance(error, Silence):
            return unanswered(self.address, self._timeout)
        return explained(error, str(self.address))

    def _apply_settings(self, cursor: Cursor, *, for_transaction: bool) -> None:
        calls = ", ".join([f"set_config(%s, %s, {for_transaction})"] * len(self._settings))
        values = [value for setting in self._settings.items() for value in setting]
        cursor.execute(f"SELECT {calls}".encode(), values, prepare=False)

    def _close_idle(self) -> None:
        # Other threads may take them meanwhile.
        with suppress(IndexError):
            while True:
                self._idle.pop().connection.close()

    def _abandon(self) -> None:
        """In a child that inherited connections: leave them open and unused, as they belong to the parent."""
        _inherited.extend(self._idle)
        self._idle = []
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._permits = Permits(self._limit)


class Permits:
    """Locks of which a thread has to hold one to use a connection."""

    def __init__(self, count: int) -> None:
        self._all = [Lock() for _ in range(count)]
        self._released = Monitor()
        self.notify = self._released.notify

    def free(self) -> Lock | None:
        """One that no thread holds."""
        for permit in self._all:
            if not permit.locked():
                return permit
        return None

    def wait_for_free(self, seconds: float) -> Lock | None:
        """The same; waits for one for this many seconds."""
        self._released.wait_for(self.free, seconds)
        return self.free()


def _end_transaction(connection: PatientConnection) -> None:
    """Leave the connection as one that can be used for another call, or closed."""
    if connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        with suppress(psycopg.Error):
            connection.rollback()
    if connection.info.transaction_status != TransactionStatus.IDLE:
        # An interrupt came after a call was sent: its answer would be read as that to the next call.
        connection.abandon()


_all: WeakSet[Connections] = WeakSet()
_inherited: list[Cursor] = []
"""Connections of the parent, kept so that they are never collected, and so never closed."""


def _after_fork_in_child() -> None:
    for connections in list(_all):
        connections._abandon()


def _at_exit() -> None:
    for connections in list(_all):
        connections.close()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
