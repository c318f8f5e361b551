"""Waiting for changes in a PostgreSQL database: a connection that listens, opened when a thread first waits.

The server notifies with the transaction that changes something; see
`stores/postgres/migrations/0005_posts_output_and_documents.sql`. Of the threads that wait, one listens for all, and
when it leaves, another takes its place: so any number of them need one connection. While the connection was broken
anything may have happened, so a broken one counts as a change, and so does a new one. A connection from which nothing
was heard for a while is asked for a sign of life, as it may lead nowhere by now. Where notifications don't arrive at
all (a pooler that gives each transaction another session), threads that wait have to poll.
"""

from __future__ import annotations

import atexit
import os
import selectors
from collections.abc import Callable
from contextlib import suppress
from threading import RLock
from time import monotonic, sleep
from weakref import WeakSet

import psycopg

from limpet.errors import StoreUnavailable
from limpet.stores.postgres.connections import Cursor
from limpet.stores.postgres.errors import DRIVER_ERRORS
from limpet.threads.workers import ChangeSignal

CLOSE_CHECK_INTERVAL = 0.2
"""Seconds after which the listening thread checks whether the store was closed."""

LONGEST_SILENCE = 15.0
"""Seconds without a notification after which the server is asked for a sign of life."""

CONNECT_LIMIT = 2.0
"""Seconds that the listening thread may take to open a connection: it has to return to its caller."""


class Listener:
    """Waits for changes of the runs in one database, which is called `place` in messages."""

    def __init__(self, open_connection: Callable[[float], Cursor], place: str) -> None:
        self._open = open_connection
        self._place = place
        self._cursor: Cursor | None = None
        self._heard = 0.0
        self._closed = False
        self.reset()
        _all.add(self)

    def __del__(self) -> None:
        if self._pid == os.getpid():
            self._disconnect()

    def reset(self) -> None:
        """Start without a connection: at first, and in a forked child, where it belongs to the parent."""
        if self._cursor is not None:
            _inherited.append(self._cursor)
        self._pid = os.getpid()
        self._cursor = None
        self._signal = ChangeSignal()
        # Reentrant only because such a lock knows its thread.
        self._listening = RLock()

    def wait(self, timeout: float) -> bool:
        """Whether something may have changed since this thread asked last; waits `timeout` seconds at most."""
        if self._pid != os.getpid():
            self.reset()
        signal = self._signal
        deadline = monotonic() + timeout
        while True:
            self._refuse_closed()
            with signal.monitor.lock:
                if signal.has_changed():
                    return True
            is_changed = self._listen_for_all(deadline)
            if is_changed is None:
                # When the thread that listens leaves, the first one to look again takes its place.
                remaining = max(0.0, deadline - monotonic())
                if signal.wait(min(remaining, CLOSE_CHECK_INTERVAL)):
                    return True
                is_changed = remaining > 0
            if not is_changed:
                return False

    def close(self) -> None:
        """Stop listening. A thread that listens at the moment closes the connection at its next check."""
        self._closed = True
        if self._pid == os.getpid():
            with suppress(StoreUnavailable):
                self._listen_for_all(0.0)

    def _listen_for_all(self, deadline: float) -> bool | None:
        """`_listen`, and let the other threads know of a change; None if another thread listens."""
        # An interrupt may cost a notification that was read already: that counts as a change.
        is_changed: bool | None = True
        try:
            # Inside of `try`: see `limpet/threads`. To release a lock that another thread has does no harm.
            if self._listening.acquire(False):
                is_changed = self._listen(deadline)
            else:
                is_changed = None
        finally:
            try:  # noqa: SIM105  # `suppress` could be interrupted before it comes to the release
                self._listening.release()
            except RuntimeError:
                pass
            if is_changed:
                self._signal.notify()
        return is_changed

    def _listen(self, deadline: float) -> bool:
        """Whether a notification arrived, or may have been missed, before `deadline`."""
        try:
            while not self._closed:
                if self._cursor is None:
                    self._cursor = self._subscribed()
                    self._heard = monotonic()
                    return True
                remaining = deadline - monotonic()
                if _notified(self._cursor.connection, max(0.0, min(remaining, CLOSE_CHECK_INTERVAL))):
                    self._heard = monotonic()
                    return True
                if monotonic() - self._heard > LONGEST_SILENCE:
                    self._cursor.execute("SELECT 1")
                    self._heard = monotonic()
                    return True  # notifications may have come with the answer
                if remaining <= 0:
                    return False
        except DRIVER_ERRORS:
            self._disconnect()
            sleep(max(0.0, min(deadline - monotonic(), CLOSE_CHECK_INTERVAL)))
            return True
        self._disconnect()
        self._refuse_closed()
        return False

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoreUnavailable(f"the store at {self._place} was closed; open it again")

    def _subscribed(self) -> Cursor:
        cursor = self._open(CONNECT_LIMIT)
        try:
            row = cursor.execute("SELECT 'runs'::regclass::oid::bigint").fetchone()
            assert row is not None
            cursor.execute(f"LISTEN limpet_{row[0]:d}".encode())
        except BaseException:
            cursor.connection.close()
            raise
        return cursor

    def _disconnect(self) -> None:
        cursor = self._cursor
        self._cursor = None
        if cursor is not None:
            with suppress(psycopg.Error):
                cursor.connection.close()


def _notified(connection: psycopg.Connection[tuple[object, ...]], timeout: float) -> bool:
    """Whether a notification arrives within `timeout` seconds."""
    server = connection.pgconn
    with selectors.DefaultSelector() as selector:
        selector.register(server.socket, selectors.EVENT_READ)
        if not selector.select(timeout):
            return False
    server.consume_input()
    found = False
    while server.notifies() is not None:
        found = True
    return found


_all: WeakSet[Listener] = WeakSet()
_inherited: list[Cursor] = []
"""Connections of the parent, kept so that they are never collected, and so never closed."""


def _after_fork_in_child() -> None:
    for listener in list(_all):
        listener.reset()


def _at_exit() -> None:
    for listener in list(_all):
        listener.close()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
