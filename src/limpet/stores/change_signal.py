"""How threads wait until a store changes, without missing a change between two calls."""

from __future__ import annotations

import threading

from limpet.threads.monitor import Monitor


class ChangeSignal:
    """Counts changes; each thread remembers the count that it saw last, so no thread misses a change.

    A thread that asks for the first time starts with the count as it is then.
    """

    def __init__(self) -> None:
        self.monitor = Monitor()
        self._changes = 0
        self._seen = threading.local()

    def notify(self) -> None:
        """Count a change, and wake all threads that wait."""
        with self.monitor.lock:
            self._changes += 1
        self.monitor.notify()

    def has_changed(self) -> bool:
        """Whether there was a change since this thread asked last. The caller holds the lock of the monitor."""
        seen = getattr(self._seen, "changes", None)
        self._seen.changes = self._changes
        return seen is not None and seen != self._changes

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for a change. True at once if there was one since this thread asked last."""
        return self.monitor.wait_for(self.has_changed, timeout)
