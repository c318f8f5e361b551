"""Runs that a supervisor couldn't resume, or can't: each is left alone for a while, and the log says why."""

from __future__ import annotations

import threading
from time import monotonic
from typing import NamedTuple

from limpet.engine.supervisor.log import log

RETRY_INTERVAL = 60.0
"""Seconds until a run that couldn't be resumed is tried again."""


class SkippedRun(NamedTuple):
    """Why a run is skipped, and until when by the monotonic clock."""

    reason: str
    until: float


class SkippedRuns:
    """The skipped runs, by id. Threads may share it."""

    def __init__(self) -> None:
        self._runs: dict[str, SkippedRun] = {}
        self._lock = threading.Lock()

    def reasons(self) -> dict[str, str]:
        """Why each run is skipped, by run id."""
        with self._lock:
            return {run_id: skipped.reason for run_id, skipped in self._runs.items()}

    def run_ids(self) -> set[str]:
        """The ids of the runs that are skipped now."""
        now = monotonic()
        with self._lock:
            # A run is remembered for a while after its time is up: if it fails again for the same reason, that isn't
            # logged again.
            self._runs = {
                run_id: skipped
                for run_id, skipped in self._runs.items()
                if skipped.until > now - RETRY_INTERVAL
            }
            return {run_id for run_id, skipped in self._runs.items() if skipped.until > now}

    def skip(self, run_id: str, reason: str, seconds: float = RETRY_INTERVAL, is_logged: bool = True) -> None:
        """Skip a run for this many seconds, and log a reason that is new, unless the caller does."""
        with self._lock:
            before = self._runs.get(run_id)
            self._runs[run_id] = SkippedRun(reason, monotonic() + seconds)
        if is_logged and (before is None or before.reason != reason):
            log().warning("run %s is skipped: %s", run_id, reason)

    def forget(self, run_id: str) -> None:
        """A run that was skipped is resumed."""
        with self._lock:
            self._runs.pop(run_id, None)
