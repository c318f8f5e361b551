"""Locks that processes and threads share, and by which each learns whether others have written meanwhile.

Runs are spread over a fixed number of lock files, which are never removed: a lock file that can go away is no lock.
Each holds a number that grows with every change under it. Who finds the number that it left there itself knows that
all it remembers is still so.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import Any
from weakref import WeakSet
from zlib import crc32

from limpet.errors import StoreUnavailable

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

STRIPES = 16
SHARED = fcntl is not None
"""Whether this system has locks that other processes heed."""


class Stripe:
    """One lock file. `changes` is its number when this process last looked; `None` when it has yet to look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor: int | None = None
        self.runs: dict[str, Any] = {}
        """What is remembered of the runs under this lock, for whoever holds it."""
        self.opened: dict[str, Any] = {}
        """Those of them whose journal may be open, the one that was used last at the end."""
        self.begin()

    def begin(self) -> None:
        """Remember nothing: at first, and in a child that was forked off."""
        self.forget()
        self.thread = threading.Lock()
        self.descriptor = None
        self.changes: int | None = None

    def forget(self) -> None:
        """Let go of all that is remembered."""
        for run in [*self.runs.values()]:
            run.close()
        self.runs.clear()
        self.opened.clear()
        self.all_known = False

    def open(self) -> int:
        """The open lock file."""
        if self.descriptor is None:
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
            self.descriptor = os.open(self.path, flags, 0o600)
        return self.descriptor

    def close(self) -> None:
        """Let go of the file."""
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)

    __del__ = close

    def is_unchanged(self) -> bool:
        """Whether nobody else has changed anything since this process last held the lock."""
        found = _number(os.pread(self.open(), _NUMBER.size, 0)) if SHARED else self.changes or 0
        same = found == self.changes
        self.changes = found
        return same

    def changed(self) -> None:
        """Say that something was changed, to those who will look."""
        self.changes = (self.changes or 0) + 1
        if SHARED:
            os.pwrite(self.open(), _NUMBER.pack(self.changes), 0)


class Locks:
    """The locks of one directory. `timeout` is how many seconds to wait for a lock that another process holds."""

    def __init__(self, directory: Path, timeout: float) -> None:
        self.directory, self.timeout = directory, timeout
        self.stripes = [Stripe(directory / f"{number:02}") for number in range(STRIPES)]
        _all.add(self)

    def stripe_of(self, name: str) -> Stripe:
        """The lock that a run is under."""
        return self.stripes[crc32(name.encode()) % STRIPES]

    @contextmanager
    def holding(self, *names: str) -> Iterator[None]:
        """Hold the locks of these runs. In one order for all, so that nobody waits for each other."""
        stripes = {id(stripe): stripe for stripe in map(self.stripe_of, names)}
        with ExitStack() as held:
            for stripe in sorted(stripes.values(), key=lambda each: each.path):
                held.enter_context(self.held(stripe))
            yield

    @contextmanager
    def held(self, stripe: Stripe) -> Iterator[None]:
        """Hold one lock."""
        with stripe.thread:
            descriptor = stripe.open()
            self._lock(descriptor)
            try:
                yield
            finally:
                if SHARED and stripe.descriptor is not None:
                    fcntl.flock(descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of all files."""
        for stripe in self.stripes:
            with stripe.thread:
                stripe.forget()
                stripe.close()

    def _lock(self, descriptor: int) -> None:
        if not SHARED:
            return
        deadline, pause = time.monotonic() + self.timeout, 0.0002
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise StoreUnavailable(
                        f"{self.directory.parent} was locked by another process for {self.timeout:g} s: end "
                        "whatever holds it, or allow a longer timeout"
                    ) from None
            else:
                return
            time.sleep(pause)
            pause = min(pause * 1.5, 0.005)


def _number(content: bytes) -> int:
    return int(_NUMBER.unpack(content)[0]) if len(content) == _NUMBER.size else 0


_NUMBER = Struct(">Q")
_all: WeakSet[Locks] = WeakSet()


def _begin_in_child() -> None:
    """A child shares its parent's open files, and with them its locks: it opens its own."""
    for locks in list(_all):
        for stripe in locks.stripes:
            stripe.close()
            stripe.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
