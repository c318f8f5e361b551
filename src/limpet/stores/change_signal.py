"""A bell that is rung when something changes: whoever waits hears it, and so does whoever comes to wait later."""

from __future__ import annotations

import threading
from time import monotonic


class ChangeSignal:
    """Rings are counted, and each thread knows how many it has heard of. So none is lost to another's hearing it.

    A thread that asks for the first time begins to count there.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.Lock())
        self._rings = 0
        self._heard = threading.local()

    def ring(self) -> None:
        """Have all who wait hear it."""
        with self.changed:
            self._rings += 1
            self.changed.notify_all()

    def stir(self) -> None:
        """Have all who wait look around, though nothing has changed."""
        with self.changed:
            self.changed.notify_all()

    def heard(self) -> bool:
        """Whether it was rung since this thread asked last. The caller holds `changed`."""
        before = getattr(self._heard, "rings", None)
        self._heard.rings = self._rings
        return before is not None and before != self._rings

    def wait(self, timeout: float) -> bool:
        """Wait until it is rung, for so many seconds at most. True at once if it was since this thread asked last."""
        deadline = monotonic() + timeout
        with self.changed:
            while not self.heard():
                rest = deadline - monotonic()
                if rest <= 0:
                    return False
                self.changed.wait(rest)
            return True
