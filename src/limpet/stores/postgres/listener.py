"""Hearing of changes in a PostgreSQL database: a connection that listens, opened when somebody first waits.

The server notifies with the transaction that changes something; see
`stores/postgres/migrations/0002_due_and_priority.sql`. Of the threads that wait one listens for all, and
when it leaves another takes its place. While the connection was away anything may have happened, so a broken one
counts as a change, and so does a new one. Where notifications don't come through at all (a pooler that gives each
transaction another session) nobody hears of anything: those who wait must look for themselves now and then.
"""

from __future__ import annotations

import atexit
import os
import selectors
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from weakref import WeakSet

import psycopg

from limpet.errors import StoreUnavailable
from limpet.stores.change_signal import ChangeSignal
from limpet.stores.postgres.connections import Cursor
from limpet.stores.postgres.errors import DRIVER_ERRORS

A_MOMENT = 0.2
"""Seconds after which whoever listens looks whether the store was closed."""


class Listener:
    """Waits for changes of the runs in the database that `open_connection` leads to; `place` is what to call it."""

    def __init__(self, open_connection: Callable[[], Cursor], place: str) -> None:
        self._open, self._place = open_connection, place
        self._cursor: Cursor | None = None
        self._closed = False
        self.begin()
        _all.add(self)

    def __del__(self) -> None:
        if self._pid == os.getpid():
            self._hang_up()

    def begin(self) -> None:
        """Listen to nothing yet: at first, and in a child that was forked off, whose parent's connection it isn't."""
        if self._cursor is not None:
            _inherited.append(self._cursor)
        self._pid = os.getpid()
        self._cursor = None
        self._bell = ChangeSignal()
        self._listening = False

    def wait(self, timeout: float) -> bool:
        """Whether something may have changed since this thread asked last, at the latest after so many seconds."""
        if self._pid != os.getpid():
            self.begin()
        bell, deadline = self._bell, monotonic() + timeout
        while True:
            with bell.condition:
                if bell.has_changed():
                    return True
                if self._listening:
                    if not bell.condition.wait(deadline - monotonic()):
                        return bell.has_changed()
                    continue
                self._listening = True
            rang = False
            try:
                rang = self._listen(deadline)
            finally:
                self._listening = False
                bell.notify() if rang else bell.wake()
            if not rang:
                return False

    def close(self) -> None:
        """Listen no more. Whoever does just now closes the connection a moment later."""
        self._closed = True
        if self._pid == os.getpid():
            with self._bell.condition:
                if not self._listening:
                    self._hang_up()

    def _listen(self, deadline: float) -> bool:
        """Whether a notification came, or might have, until then."""
        try:
            while not self._closed:
                if self._cursor is None:
                    self._cursor = self._subscribed()
                    return True
                rest = deadline - monotonic()
                if _notified(self._cursor.connection, max(0.0, min(rest, A_MOMENT))):
                    return True
                if rest <= 0:
                    return False
        except DRIVER_ERRORS:
            self._hang_up()
            sleep(max(0.0, min(deadline - monotonic(), A_MOMENT)))
            return True
        self._hang_up()
        raise StoreUnavailable(f"the store at {self._place} was closed; open it again")

    def _subscribed(self) -> Cursor:
        cursor = self._open()
        try:
            row = cursor.execute("SELECT 'runs'::regclass::oid::bigint").fetchone()
            assert row is not None
            cursor.execute(f"LISTEN limpet_{row[0]:d}".encode())
        except BaseException:
            cursor.connection.close()
            raise
        return cursor

    def _hang_up(self) -> None:
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            with suppress(psycopg.Error):
                cursor.connection.close()


def _notified(connection: psycopg.Connection[tuple[object, ...]], timeout: float) -> bool:
    """Wait for the server to say something; whether it did."""
    server = connection.pgconn
    with selectors.DefaultSelector() as selector:
        selector.register(server.socket, selectors.EVENT_READ)
        if not selector.select(timeout):
            return False
    server.consume_input()
    rang = False
    while server.notifies() is not None:
        rang = True
    return rang


_all: WeakSet[Listener] = WeakSet()
_inherited: list[Cursor] = []


def _after_fork_in_child() -> None:
    for listener in list(_all):
        listener.begin()


def _at_exit() -> None:
    for listener in list(_all):
        listener.close()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
