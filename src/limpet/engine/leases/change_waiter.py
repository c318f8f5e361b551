"""Waiting until it is worth reading a store again."""

from __future__ import annotations

from time import monotonic, sleep

from limpet.journal.optional_calls import Notifying, provides
from limpet.journal.store import Store

FIRST_RECHECK = 0.02
"""Seconds until a store is read again the first time, while waiting for a change in it."""

CHANGE_RECHECK = 0.1
"""Seconds, at most, between two reads of a store that reports its changes."""

LONGEST_RECHECK = 0.5
"""Seconds, at most, between two reads of a store while waiting for a change in it."""


class ChangeWaiter:
    """Waits until it is worth reading a store again, for `seconds` in all.

    A store that reports its changes wakes the waiter. But no store reports that a lease expired or that its holder
    died, so the waiter also returns at intervals. And it doesn't return right after every change: in a busy
    store most changes are of other runs.
    """

    def __init__(self, store: Store, seconds: float) -> None:
        self._deadline = monotonic() + seconds
        self._pause = FIRST_RECHECK
        self._notifying: Notifying | None = None
        if seconds > 0 and store.abilities.notifies and provides(store, Notifying):
            self._notifying = store
            # From here on the store remembers changes for this thread, so that none is missed before `wait`.
            store.wait_for_change(0.0)

    def wait(self) -> bool:
        """Wait until it is worth reading again; False, at once, when the time is over."""
        began = monotonic()
        if began >= self._deadline:
            return False
        remaining = self._deadline - began
        if self._notifying is None:
            sleep(min(self._pause, remaining))
        elif self._notifying.wait_for_change(min(LONGEST_RECHECK, remaining)):
            earliest = began + min(self._pause, CHANGE_RECHECK)
            sleep(max(0.0, min(earliest, self._deadline) - monotonic()))
        self._pause = min(self._pause * 1.5, LONGEST_RECHECK)
        return True
