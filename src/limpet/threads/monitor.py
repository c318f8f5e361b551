"""Waiting for a change that another thread makes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, RLock
from time import monotonic
from typing import Any

RECHECK_INTERVAL = 0.5
"""Seconds after which a waiting thread looks by itself whether it still has to wait."""


class Monitor:
    """A lock, and threads that wait until something under it has changed. It replaces `Condition` and `Event`."""

    __slots__ = ("_waiting", "lock")

    def __init__(self) -> None:
        self.lock = RLock()
        self._waiting: deque[Any] = deque()

    def notify(self) -> None:
        """Have all threads that wait look again. With or without the lock."""
        waiting = self._waiting
        while waiting:
            try:
                waiting.popleft().release()
            except IndexError:  # another thread notifies, too
                return

    def wait_for(self, is_over: Callable[[], object], seconds: float | None = None) -> bool:
        """Wait until `is_over()`, which is called under the lock; for this many seconds, or without a limit.

        Returns whether it is over. The caller doesn't hold the lock.
        """
        deadline = None if seconds is None else monotonic() + seconds
        # A lock of this thread alone: the thread waits for it, and `notify` releases it.
        wake_up = Lock()
        wake_up.acquire()
        # In the list before the first look, so that no change between the two is missed.
        self._waiting.append(wake_up)
        try:
            while True:
                with self.lock:
                    if is_over():
                        return True
                remaining = RECHECK_INTERVAL
                if deadline is not None:
                    remaining = min(deadline - monotonic(), RECHECK_INTERVAL)
                    if remaining <= 0:
                        return False
                if wake_up.acquire(True, remaining):
                    self._waiting.append(wake_up)  # `notify` took it out
        finally:
            with suppress(ValueError):
                self._waiting.remove(wake_up)
