"""The connections to one SQLite file: one that writes, and one that reads for each thread that reads at the moment.

Everything about SQLite that the store above should not have to know is here: locks and how long to wait for them,
transactions, and forks. What its errors mean to a user is in `errors.py`.

A fork is the delicate one. SQLite keeps what it knows of a file's locks in the memory of the process. A child
that inherits an open connection believes in locks that only its parent has, even on its own connections. Once the
parent has closed the file, other processes remove the write-ahead log while the child still writes to it, and
what the child writes is lost. So everything is closed before a fork, and opened again when it is next needed.
"""

from __future__ import annotations

import atexit
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from limpet.errors import LimpetError, StoreUnavailable, UsageError
from limpet.stores.sqlite.errors import DRIVER_ERRORS, explained, is_busy
from limpet.stores.sqlite.schema import is_current, migrate

Outcome = TypeVar("Outcome")
Item = TypeVar("Item")

EXIT_PATIENCE = 1.0
"""Seconds, at most, that the end of a process waits for a thread that writes."""

LOCK_RETRY_DELAY = 0.001
"""Seconds between two attempts to get a lock. SQLite itself would wait up to 100 times as long, and longer the longer
it has waited: of several processes that write all the time, one then hardly gets a turn."""

MAX_FORK_DELAY = 5.0
"""Seconds that a fork waits for the calls of other threads to end."""

MAX_IDLE_READERS = 8

FILE_CHECK_INTERVAL = 0.01
"""Seconds between two checks that the file still exists, where a save takes hardly longer than a check."""


def checked_path(path: str | os.PathLike[str]) -> Path:
    """The absolute path of a database file. Raises `UsageError`, and `StoreUnavailable` if it can't be one."""
    text = os.fspath(path)
    if not text or Path(text).name == ":memory:":
        raise UsageError(f'{text!r} is not a file: for a store in memory use "memory" (or MemoryStore())')
    found = Path(text).resolve()
    try:
        if not found.parent.is_dir():
            raise StoreUnavailable(f"can't open {found}: create the directory {found.parent} first")
        if found.is_dir():
            raise StoreUnavailable(f"can't open {found}: it is a directory; name a file in it")
    except OSError as problem:  # a directory that this user may not search, or a name that is too long
        reason = f"{problem.strerror}; let this user read and write in its directory, or use another path"
        raise StoreUnavailable(f"can't open {found}: {reason}") from problem
    return found


class Connections:
    """Transactions on the file at `path`, from any thread. Raises `StoreUnavailable`, never sqlite3's own."""

    def __init__(self, path: Path, *, flush: bool, timeout: float) -> None:
        self.path = path
        self.closed = False
        self._flush = flush
        self._timeout = timeout
        self._writer: sqlite3.Cursor | None = None
        self._idle: list[Reader] = []
        self._reset()
        self._writer = self._until_unlocked(self._create)
        self._file = self._identity()
        self._checked_at = time.monotonic()
        _all.add(self)

    def __del__(self) -> None:
        if self._pid == os.getpid():
            self._close_idle_and_writer()

    def execute(self, statement: str, parameters: Sequence[Any]) -> int:
        """Carry out one statement that is a transaction by itself; return how many rows it changed.

        The first attempt is written out, without a closure or a deadline: every step waits for this.
        """
        if self._pid != os.getpid():
            self._abandon()
        self._check_file_before_write()
        with self._writing:
            if not self._forking:
                cursor = self._writer or self._reopen_writer()
                try:
                    return cursor.execute(statement, parameters).rowcount
                except DRIVER_ERRORS as error:
                    if not is_busy(error):
                        raise explained(error, self.path, self._timeout) from error
                return self._until_unlocked(lambda: cursor.execute(statement, parameters).rowcount)
        self._wait_for_fork()
        return self.execute(statement, parameters)

    def write(self, work: Callable[[sqlite3.Cursor], Outcome]) -> Outcome:
        """Run `work` in a transaction that has the write lock; keep all it does, or nothing if it raises."""
        if self._pid != os.getpid():
            self._abandon()
        self._check_file_before_write()
        with self._writing:
            if not self._forking:
                cursor = self._writer or self._reopen_writer()
                return self._until_unlocked(lambda: self._transact(cursor, work))
        self._wait_for_fork()
        return self.write(work)

    def read(self, work: Callable[[sqlite3.Cursor], Outcome]) -> Outcome:
        """Run `work`, which only reads, on the state of the file at one moment; no writer waits for it."""
        if self._pid != os.getpid():
            self._abandon()
        reader = self._idle_reader()
        with reader.lock:
            if not self._forking:
                return self._read_with(reader, work)
        self._wait_for_fork()
        return self.read(work)

    def check_file(self) -> None:
        """Check that the file is still the one that was opened. If not, close it; the next call opens it again.

        The system keeps accepting writes to a file that was deleted, and no process will ever read them. So a call
        that finds the file missing has to fail.
        """
        found = self._identity()
        if found != self._file:
            with self._writing:
                self._close_idle_and_writer()
                self._file = found

    def _check_file_before_write(self) -> None:
        """Check the file before every write that goes to the disk, else once in `FILE_CHECK_INTERVAL`."""
        now = time.monotonic()
        if self._flush or now - self._checked_at > FILE_CHECK_INTERVAL:
            self._checked_at = now
            self.check_file()

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def close(self, patience: float = -1.0) -> None:
        """Close the idle connections now, and those in use as soon as their calls end.

        A call may wait for another process that has the file locked. With `patience`, that is waited for up to this
        many seconds; then the connections stay open.
        """
        if self._pid != os.getpid():
            self._abandon()
        self.closed = True
        if self._writing.acquire(timeout=patience):
            try:
                self._close_idle_and_writer()
            finally:
                self._writing.release()

    def _reopen_writer(self) -> sqlite3.Cursor:
        self._writer = self._open()
        return self._writer

    def _idle_reader(self) -> Reader:
        """A connection that reads, which is this call's now. It may be still to be opened."""
        try:
            return self._idle.pop()
        except IndexError:
            reader = Reader()
            self._readers.add(reader)
            return reader

    def _read_with(self, reader: Reader, work: Callable[[sqlite3.Cursor], Outcome]) -> Outcome:
        """Run `work` with a reader, and keep that for the next call. One that was interrupted is dropped."""
        if reader.cursor is None:
            reader.closings = self._closings
            reader.cursor = self._open()
        cursor = reader.cursor
        try:
            outcome = self._until_unlocked(lambda: _read_at_one_moment(cursor, work))
        except LimpetError:
            self._keep(reader)
            raise
        self._keep(reader)
        return outcome

    def _keep(self, reader: Reader) -> None:
        # The store may have been closed meanwhile, and the file have been found to be another one.
        if self.closed or reader.closings != self._closings or len(self._idle) >= MAX_IDLE_READERS:
            reader.close()
        else:
            self._idle.append(reader)

    def _create(self) -> sqlite3.Cursor:
        path = str(self.path)
        # SQLite would let every user read a file that it creates, and gives its log the mode of the file. One that
        # exists keeps its mode. What is wrong with the place, opening it says.
        with suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        cursor = self._connect()
        try:
            # At one moment: another process may be creating the file just now, and what it has done so far would
            # look like another program's database.
            if not _read_at_one_moment(cursor, lambda cursor: is_current(cursor, path)):
                self._transact(cursor, lambda cursor: migrate(cursor, path))
            # With a write-ahead log readers don't wait for the writer, and a commit needs one fsync instead of two.
            (mode,) = cursor.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise StoreUnavailable(
                    f"{path} can't have a write-ahead log (is it on a network drive?): use a local disk"
                )
        except BaseException:
            cursor.connection.close()
            raise
        return cursor

    def _open(self) -> sqlite3.Cursor:
        if self.closed:
            raise StoreUnavailable(f"the store at {self.path} was closed; open it again")
        return self._until_unlocked(lambda: self._connect())

    def _connect(self) -> sqlite3.Cursor:
        # No timeout and no isolation level: waiting for locks and transactions are done here, not by the driver.
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode=rw",
            uri=True,
            timeout=0.0,
            isolation_level=None,
            check_same_thread=False,
            factory=Connection,
        )
        connection.text_factory = _decoded_text
        try:
            cursor = connection.cursor()
            if self._flush:
                cursor.execute("PRAGMA synchronous = FULL")
                # macOS: fsync alone leaves the data in the drive's cache. Elsewhere this does nothing.
                cursor.execute("PRAGMA fullfsync = ON")
            else:
                # The log is not flushed with each commit, which survives a kill of the process anyway.
                cursor.execute("PRAGMA synchronous = NORMAL")
                cursor.execute("PRAGMA fullfsync = OFF")
        except BaseException:
            connection.close()
            raise
        return cursor

    def _until_unlocked(self, attempt: Callable[[], Outcome]) -> Outcome:
        """Try until no other process has the file locked, for `timeout` seconds at most."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return attempt()
            except DRIVER_ERRORS as error:
                if not is_busy(error) or time.monotonic() >= deadline:
                    raise explained(error, self.path, self._timeout) from error
            time.sleep(LOCK_RETRY_DELAY)

    def _transact(self, cursor: sqlite3.Cursor, work: Callable[[sqlite3.Cursor], Outcome]) -> Outcome:
        connection = cursor.connection
        try:
            # This commits or rolls back. It isn't Python code, so no interrupt can keep it from that.
            with connection:
                # IMMEDIATE takes the write lock first. A transaction that reads before it has the lock can be refused
                # it for good, if another process writes in between.
                cursor.execute("BEGIN IMMEDIATE")
                return work(cursor)
        finally:
            if connection.in_transaction:  # it couldn't be rolled back
                self._writer = None
                connection.close()

    def _close_idle_and_writer(self) -> None:
        self._closings += 1
        # Other threads may take readers meanwhile. They see that everything was to be closed when they are done.
        with suppress(IndexError):
            while self._idle:
                self._idle.pop().close()
        writer = self._writer
        self._writer = None
        if writer is not None:
            writer.connection.close()

    def _before_fork(self) -> None:
        """Keep new calls out, wait for running ones, and close everything. Calls wait until `_after_fork`."""
        self._nothing_open = False
        self._fork_lock.acquire()
        # A call takes its lock and then looks at this. So once a lock was seen free, no call under it is running.
        self._forking = True
        deadline = time.monotonic() + MAX_FORK_DELAY
        readers = _listed(self._readers)
        locks = [self._writing, *(reader.lock for reader in readers)]
        if all(_is_released(lock, deadline) for lock in locks):
            self._close_idle_and_writer()
            # Not only the idle ones: a call may have taken one that is open, and not have locked it yet.
            for reader in readers:
                reader.close()
            self._nothing_open = True

    def _after_fork(self) -> None:
        """Allow calls again, in the parent and in the child."""
        if self._nothing_open:
            self._pid = os.getpid()
        self._forking = False
        _release(self._fork_lock)

    def _wait_for_fork(self) -> None:
        with self._fork_lock:
            pass

    def _abandon(self) -> None:
        """In a child that inherited connections after all: leave them open and unused, and start without any.

        To close them would have SQLite act on locks that only the parent holds.
        """
        _inherited.extend(self._readers)
        if self._writer is not None:
            _inherited.append(self._writer)
        self._writer = None
        self._idle = []
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._writing: threading.Lock = threading.Lock()
        # Reentrant, because such a lock knows its thread: another one can't release it by mistake.
        self._fork_lock = threading.RLock()
        self._readers: WeakSet[Reader] = WeakSet()
        self._closings = 0
        self._forking = False
        self._nothing_open = False


class Connection(sqlite3.Connection):
    """A connection that is closed when it is dropped, as after an interrupt. Of others, Python 3.13 warns."""

    # Not a name of the module, which may be gone before the connection is.
    _never_opened = suppress(sqlite3.Error)

    def __del__(self) -> None:
        with self._never_opened:
            self.close()


class Reader:
    """A connection that reads. A call holds its lock while it uses it.

    It is opened after so many `closings` of its store: after the next one it has to be closed.
    """

    __slots__ = ("__weakref__", "closings", "cursor", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.cursor: sqlite3.Cursor | None = None
        self.closings = 0

    def close(self) -> None:
        """Close the connection."""
        cursor = self.cursor
        self.cursor = None
        if cursor is not None:
            cursor.connection.close()

    __del__ = close


def _read_at_one_moment(cursor: sqlite3.Cursor, work: Callable[[sqlite3.Cursor], Outcome]) -> Outcome:
    with cursor.connection:  # ends the transaction
        cursor.execute("BEGIN")
        return work(cursor)


def _decoded_text(data: bytes) -> str:
    """Text as it is stored. What damage has made unreadable is left for the checksums to report."""
    return data.decode("utf-8", "replace")


_all: WeakSet[Connections] = WeakSet()
_paused: list[Connections] = []
_fork_lock = threading.RLock()
_inherited: list[sqlite3.Cursor | Reader] = []
"""Connections of the parent, kept so that they are never collected, and so never closed."""


def _before_fork() -> None:
    _fork_lock.acquire()
    _paused.extend(_listed(_all))
    for connections in _paused:
        connections._before_fork()


def _after_fork() -> None:
    for connections in _paused:
        connections._after_fork()
    _paused.clear()
    _release(_fork_lock)


def _listed(items: WeakSet[Item]) -> list[Item]:
    """What is in a set that other threads add to meanwhile."""
    while True:
        with suppress(RuntimeError):  # it changed while it was read
            return list(items)


def _release(lock: threading.RLock) -> None:
    """Release a lock if this thread has it. It may have been interrupted before it was acquired."""
    with suppress(RuntimeError):
        lock.release()


def _is_released(lock: threading.Lock, deadline: float) -> bool:
    """Wait until a lock was seen free; False at the deadline."""
    while lock.locked():
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOCK_RETRY_DELAY)
    return True


def _at_exit() -> None:
    """Close all connections, so that SQLite moves the log into the file and deletes it.

    A thread may wait for a lock of another process: the process ends without it. The next one that opens the file
    reads the log.
    """
    for connections in list(_all):
        connections.close(EXIT_PATIENCE)


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
