"""Locks that processes and threads share, and by which each process learns whether another one has written.

Runs are spread over a fixed number of lock files. These are never removed: if one were, two processes could each lock
"the" file and hold two different ones. Each lock file contains a number that grows with every change to a run under
it. A process that finds the number which it left there itself knows that all it remembers of these runs is current.

Behind the number come the names of the runs that were changed last, each with the number that its change got. So a
process that has missed a few changes reads these runs again, and no others. A name that isn't there, because there
were too many changes or because an earlier version made one, leaves it unknown what has changed: all is read again.
Documents have a lock file of their own, with the names of theirs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any, TypeVar
from weakref import WeakSet
from zlib import crc32

from limpet.errors import LimpetError, StoreUnavailable
from limpet.journal.store import RunHead
from limpet.stores.indexes import RunIndex

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Outcome = TypeVar("Outcome")

LOCK_FILES = 16
"""How many lock files a directory has. It is part of the format: all processes must agree on it."""
HAS_FILE_LOCKS = fcntl is not None
"""Whether this system has locks that other processes respect."""

FIRST_RETRY_DELAY = 0.0002
LONGEST_RETRY_DELAY = 0.005
READING_TIMEOUT = 0.5
"""Seconds that a call that only reads waits for a lock. Then it reads without."""
BUSY_MEMORY = 5.0
"""Seconds for which such calls don't wait again for a lock that wasn't released."""

REMEMBERED_CHANGES = 256
"""How many of the last changes under a lock its file names."""

_NUMBER = Struct(">Q")
_CHANGE = Struct(">QI76s")
"""The number of a change, the CRC-32 of number and name, and the name of the run's files."""


class LockBusy(StoreUnavailable):
    """Another process holds a lock and doesn't release it: it is slow, or was stopped."""


class LockFile:
    """One lock file, and what this process remembers of the runs under it. Use all of it while holding the lock.

    `change_number` is the file's number when this process last read it, None before that. `runs` are the remembered
    runs by the names of their files, and `open_runs` those whose journal may be open, the one used last at the end.
    `damaged` are heads for those whose own can't be read, and `unread` the names of those that are to be read, or
    read again. `knows_all_names` says that these three have every run under this lock, so that listing them reads no
    directory. `index` has the runs with a due time, by name; `unindexed` are the names of those that may have changed
    since. `index_is_complete` says that these two have every such run, whether it is remembered or not.

    `in_doubt` is true while a call works with all this: if the next call finds it true, the last one was interrupted,
    and nothing is trusted. Until `busy_until`, by the monotonic clock, another process is taken to hold the lock and
    not to release it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor: int | None = None
        self.runs: dict[str, Any] = {}
        self.open_runs: dict[str, Any] = {}
        self.damaged: dict[str, RunHead] = {}
        self.unread: set[str] = set()
        self.unindexed: set[str] = set()
        self.reset()

    def reset(self) -> None:
        """Start without memory and without an open file: at first, and in a forked child."""
        self.forget_runs()
        self.in_doubt = False
        self.busy_until = 0.0
        self.thread_lock = threading.Lock()
        self.descriptor = None
        self.change_number: int | None = None

    def forget_runs(self) -> None:
        """Forget all runs and their index, and close their journals."""
        self.index_is_complete = False
        self.index = RunIndex()
        self.unindexed.clear()
        self.drop_runs()

    def drop_runs(self) -> None:
        """Forget all runs, but keep their index, which is small; and close their journals."""
        for run in list(self.runs.values()):
            run.close()
        self.runs.clear()
        self.open_runs.clear()
        self.damaged.clear()
        self.unread.clear()
        self.knows_all_names = False

    def open(self) -> int:
        """The descriptor of the lock file, which is opened if need be."""
        if self.descriptor is None:
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
            self.descriptor = os.open(self.path, flags, 0o600)
        return self.descriptor

    def close(self) -> None:
        """Close the lock file."""
        descriptor = self.descriptor
        self.descriptor = None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)

    __del__ = close

    def changed_by_others(self) -> list[str] | None:
        """The names of runs that others have changed since this process last held the lock; None if unknown."""
        before = self.change_number
        if not HAS_FILE_LOCKS:  # no other process can use the directory
            self.change_number = before or 0
            return None if before is None else []
        found = _decode_number(os.pread(self.open(), _NUMBER.size, 0))
        self.change_number = found
        if found == before:
            return []
        if before is None or not before < found <= before + REMEMBERED_CHANGES:
            return None
        return self._names_of(range(before + 1, found + 1))

    def has_missed_changes(self) -> bool:
        """Whether others seem to have made more changes than the file names, as seen without holding the lock."""
        if self.change_number is None or self.descriptor is None:
            return True
        if not HAS_FILE_LOCKS:  # there are no others
            return False
        try:
            found = _decode_number(os.pread(self.descriptor, _NUMBER.size, 0))
        except OSError:  # it is being closed
            return True
        return found > self.change_number + REMEMBERED_CHANGES

    def number_now(self) -> int:
        """The number in the file, or that this process knows if no other can use the directory."""
        if not HAS_FILE_LOCKS:
            return self.change_number or 0
        try:
            with self.path.open("rb") as file:
                return _decode_number(file.read(_NUMBER.size))
        except FileNotFoundError:  # no run was under this lock yet
            return 0

    def _names_of(self, numbers: range) -> list[str] | None:
        """The names of the runs that the changes with these numbers were made to; None if one isn't in the file."""
        size = REMEMBERED_CHANGES * _CHANGE.size
        content = os.pread(self.open(), size, _NUMBER.size).ljust(size, b"\0")
        names = []
        for number in numbers:
            stored, checksum, name = _CHANGE.unpack_from(content, number % REMEMBERED_CHANGES * _CHANGE.size)
            name = name.rstrip(b"\0")
            if stored != number or checksum != _checksum(number, name):
                return None
            names.append(name.decode())
        return names

    def count_change(self, name: str) -> None:
        """Let other processes know that the run with files of this name is about to change. Called before the change.

        If this process is killed in between, the others look at the files once more than they need to. The other way
        round, they would trust what they remember and miss the change.
        """
        number = (self.change_number or 0) + 1
        if self.index_is_complete:
            self.unindexed.add(name)
        if HAS_FILE_LOCKS:
            descriptor = self.open()
            encoded = name.encode()
            change = _CHANGE.pack(number, _checksum(number, encoded), encoded)
            # The name comes first: the number says that it is there. On a full disk that may fail, and a run must
            # still be deleted: which one has changed is unknown then.
            try:  # noqa: SIM105  # every commit comes here, and `suppress` would cost a fifth of it
                os.pwrite(descriptor, change, _NUMBER.size + number % REMEMBERED_CHANGES * _CHANGE.size)
            except OSError:
                pass
            os.pwrite(descriptor, _NUMBER.pack(number), 0)
        self.change_number = number


class Locks:
    """The locks of one directory. `timeout` is how many seconds to wait for a lock that another process holds."""

    def __init__(self, directory: Path, timeout: float) -> None:
        self.directory = directory
        self.timeout = timeout
        self.files = [LockFile(directory / f"{number:02}") for number in range(LOCK_FILES)]
        self.documents = LockFile(directory / "documents")
        _all_locks.add(self)

    def lock_of(self, name: str) -> LockFile:
        """The lock of the run whose files have this name."""
        return self.files[crc32(name.encode()) % LOCK_FILES]

    def holding(
        self, locks: Iterable[LockFile], work: Callable[[], Outcome], timeout: float | None = None
    ) -> Outcome:
        """Do `work` while these locks are held, against the other threads and the other processes.

        All callers lock in one order, so that no two wait for each other. Raises `StoreUnavailable` if another
        process holds one of them for too long; with a `timeout`, after as many seconds and as `LockBusy`.
        """
        unique = {id(lock): lock for lock in locks}.values()
        ordered = sorted(unique, key=lambda each: each.path)
        if timeout is not None:
            return self._holding_all(ordered, work, time.monotonic() + timeout)
        try:
            return self._holding_all(ordered, work, time.monotonic() + self.timeout)
        except LockBusy as busy:
            raise StoreUnavailable(str(busy)) from None

    def reading_timeout(self, lock: LockFile) -> float:
        """How many seconds a call that only reads waits for a lock, since it can do without."""
        return 0.0 if time.monotonic() < lock.busy_until else min(READING_TIMEOUT, self.timeout)

    def _holding_all(self, locks: list[LockFile], work: Callable[[], Outcome], deadline: float) -> Outcome:
        # Not a context manager: an interrupt could keep that from being left, and the lock from being released, for
        # other processes too. See `limpet/threads`.
        if not locks:
            return work()
        lock = locks[0]
        delay = FIRST_RETRY_DELAY
        # By polling, since a blocking flock has no timeout. Between two attempts, other threads get their turn: one
        # that only reads must not wait for as long as this one does.
        while True:
            with lock.thread_lock:
                descriptor = lock.open()
                try:
                    if _is_locked_now(descriptor):
                        if lock.in_doubt:
                            lock.forget_runs()
                        lock.in_doubt = True
                        outcome = self._holding_all(locks[1:], work, deadline)
                        lock.in_doubt = False
                        lock.busy_until = 0.0
                        return outcome
                except (LimpetError, OSError, ValueError):
                    lock.in_doubt = False
                    raise
                finally:
                    # To release what isn't locked does no harm. A forked child has closed the file.
                    if HAS_FILE_LOCKS and lock.descriptor is not None:
                        fcntl.flock(lock.descriptor, fcntl.LOCK_UN)
            now = time.monotonic()
            if now >= deadline:
                lock.busy_until = now + BUSY_MEMORY
                raise LockBusy(
                    f"{self.directory.parent} was locked by another process for {self.timeout:g} s: end the process "
                    "that holds it, or allow a longer timeout"
                )
            time.sleep(delay)
            delay = min(delay * 1.5, LONGEST_RETRY_DELAY)

    def close(self) -> None:
        """Close all files."""
        for lock in (*self.files, self.documents):
            with lock.thread_lock:
                lock.forget_runs()
                lock.close()


def _is_locked_now(descriptor: int) -> bool:
    """Lock a file if no other process has; whether this one has it now."""
    if not HAS_FILE_LOCKS:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _decode_number(content: bytes) -> int:
    if len(content) != _NUMBER.size:  # a new lock file is empty
        return 0
    return int(_NUMBER.unpack(content)[0])


def _checksum(number: int, name: bytes) -> int:
    return crc32(name, number & 0xFFFFFFFF)


_all_locks: WeakSet[Locks] = WeakSet()


def _reset_in_child() -> None:
    """A forked child shares its parent's open files, and a lock belongs to the open file: it opens its own."""
    for locks in list(_all_locks):
        for lock in (*locks.files, locks.documents):
            lock.close()
            lock.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
