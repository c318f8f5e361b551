"""`Cleaner`: old runs leave a store by a policy, in the background."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from limpet.defaults import RETENTION_HOURS
from limpet.errors import Conflict, RunNotFound, UsageError
from limpet.journal.store import ENDED, STATUSES, RunFilter
from limpet.stores.opening import open_store
from limpet.stores.retention import Retention, bare, expired, let_go

if TYPE_CHECKING:
    from types import TracebackType


class Cleaner:
    """Deletes runs that ended long ago, at once and then `every` so many seconds, until it is stopped.

    A run goes if it has one of the `statuses`, nobody holds it, and it has not changed for `max_age_hours` (None: its
    age doesn't matter) or isn't among the `keep_runs` newest (None: their number doesn't). Those that are paused or
    running stay, unless you name these statuses as well. Instead of these, `retention` is a policy that tells
    statuses and graphs apart, for the runs of `graph` or of all. `store` is whatever `open_store` takes.

    Use it with `with`, or `start` and `stop` it. It works in a daemon thread, which ends with the process. What goes
    wrong is logged in `limpet.upkeep`, and tried again the next time. Raises `UsageError` for a senseless policy.
    """

    def __init__(
        self,
        store: Any,
        *,
        every: float = 3600.0,
        max_age_hours: float | None = RETENTION_HOURS,
        statuses: Iterable[str] = ENDED,
        keep_runs: int | None = None,
        retention: Retention | None = None,
        graph: str | None = None,
    ) -> None:
        self.retention, self.graph = retention, graph
        self.statuses = (statuses,) if isinstance(statuses, str) else tuple(statuses)
        self.every, self.max_age_hours, self.keep_runs = every, max_age_hours, keep_runs
        mistakes = list(self._mistakes())
        if mistakes:
            raise UsageError(f"a Cleaner can't work so: {'; '.join(mistakes)}")
        self.store = open_store(store)
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        """Whether it works in the background now."""
        return self._thread is not None and self._thread.is_alive()

    def clean(self) -> int:
        """Delete what is to go, here and now; returns how many runs went. Raises what the store does."""
        if self.retention is not None:
            return len(let_go(self.store, expired(self.store, self.retention, self.graph)))
        gone = 0
        if self.max_age_hours is not None:
            gone += self.store.expire(self.max_age_hours * 3600, self.statuses)
        if self.keep_runs is not None:
            gone += self._delete_beyond(self.keep_runs)
        return gone

    def start(self) -> Self:
        """Begin to work in the background. One that works already goes on."""
        with self._lock:
            if not self.running:
                self._stopped = threading.Event()
                self._thread = threading.Thread(
                    target=self._work, args=(self._stopped,), name="limpet-cleaner", daemon=True
                )
                self._thread.start()
        return self

    def stop(self, timeout: float | None = 10.0) -> None:
        """End the work in the background. Waits so many seconds for a call to the store that is under way."""
        with self._lock:
            self._stopped.set()
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _work(self, stopped: threading.Event) -> None:
        log = logging.getLogger("limpet.upkeep")
        while not stopped.is_set():
            try:
                gone = self.clean()
                if gone:
                    log.info("cleaned up: %d runs went from %r", gone, self.store)
            except Exception:
                log.warning("couldn't clean up %r; will try again", self.store, exc_info=True)
            stopped.wait(self.every)

    def _delete_beyond(self, newest: int) -> int:
        gone = 0
        store = bare(self.store)
        for head in store.list(RunFilter(statuses=self.statuses, unclaimed=True, offset=newest)):
            try:
                if store.head(head.run_id).updated == head.updated:
                    store.delete(head.run_id)
                    gone += 1
            except (RunNotFound, Conflict):
                pass  # somebody else has deleted it, or goes on with it
        return gone

    def _mistakes(self) -> Iterable[str]:
        unknown = [status for status in self.statuses if status not in STATUSES]
        if unknown or not self.statuses:
            yield f"statuses are some of {', '.join(STATUSES)}, not {list(self.statuses)!r}"
        if not _is_number(self.every) or not 0 < self.every <= threading.TIMEOUT_MAX:
            yield f"every is a number of seconds above 0, not {self.every!r}"
        if self.max_age_hours is not None and not (
            _is_number(self.max_age_hours) and self.max_age_hours >= 0
        ):
            yield f"max_age_hours is a number from 0, or None, not {self.max_age_hours!r}"
        if self.keep_runs is not None and (type(self.keep_runs) is not int or self.keep_runs < 0):
            yield f"keep_runs is a whole number from 0, or None, not {self.keep_runs!r}"
        if self.retention is not None:
            if (self.max_age_hours, self.statuses, self.keep_runs) != (24.0, ENDED, None):
                yield "give retention, or max_age_hours, statuses and keep_runs"
            if not isinstance(self.retention, Retention):
                yield f"retention is a Retention, such as Retention(completed='7d'), not {self.retention!r}"
        elif self.graph is not None:
            yield "graph goes with retention"
        if self.max_age_hours is None and self.keep_runs is None:
            yield "give max_age_hours or keep_runs, else nothing would ever go"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
