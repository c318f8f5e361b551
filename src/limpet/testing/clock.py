"""A clock that skips time, so that a test of a run that sleeps for a month takes no time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from math import inf
from typing import Protocol
from weakref import WeakSet

from limpet.durations import Span, seconds_of
from limpet.errors import UsageError

RECHECK_INTERVAL = 0.01
"""Seconds after which a run that waits for the clock looks at it again, and whether it is asked to stop."""


class ClockWatcher(Protocol):
    """An object to notify when time was skipped: a supervisor."""

    def nudge(self) -> None:
        """Look at the store now."""
        ...


class FakeClock:
    """A clock that stands still until time is skipped. Pass it to a store: `MemoryStore(clock=clock)`.

    `skip(…)` lets time pass: sleeps end, deadlines pass, and supervisors of the store resume at once the runs that
    are due. With `auto=True` it skips by itself when a run waits: `graph.execute()` of a node that calls
    `sleep(86400)` then returns at once, with the clock a day ahead. `now` is its first time: a `datetime` with a
    time zone, seconds since the epoch, or by default the present. Threads may share it; it belongs to one process.

    Leases use it too. A skip that is longer than a lease (10 s by default) lets it expire, as on a machine that was
    suspended: a supervisor then claims the run from its holder.
    """

    def __init__(self, now: float | datetime | None = None, *, auto: bool = False) -> None:
        if isinstance(now, datetime):
            if now.tzinfo is None:
                raise UsageError(f"FakeClock: {now!r} has no time zone; write datetime(…, tzinfo=UTC)")
            now = now.timestamp()
        if now is None:
            now = time.time()
        self._now = float(now)
        self._set_by = 0.0
        self._change = threading.Condition()
        self._watchers: WeakSet[ClockWatcher] = WeakSet()
        self.auto = auto
        self.on_skip: Callable[[], None] | None = None
        """Called when time was skipped, before any run sees the new time."""

    def __call__(self) -> float:
        """The time, in seconds since the epoch."""
        return self._now

    def monotonic(self) -> float:
        """The time that has passed, whatever the clock was set to. Stores measure leases by it."""
        return self._now - self._set_by

    def set_by(self, seconds: float) -> None:
        """Set the time of day forward, or back by a number below 0. No time passes, so leases don't change.

        Sleeps and deadlines end by the time of day: they come nearer, or move further away.
        """
        with self._change:
            self._now += seconds
            self._set_by += seconds
            self._change.notify_all()
        for watcher in list(self._watchers):
            watcher.nudge()

    def __repr__(self) -> str:
        return f"<FakeClock {datetime.fromtimestamp(self._now).astimezone().isoformat(' ', 'milliseconds')}>"

    def skip(
        self,
        span: Span = 0.0,
        *,
        days: float = 0.0,
        hours: float = 0.0,
        minutes: float = 0.0,
        seconds: float = 0.0,
    ) -> float:
        """Let time pass: seconds or a `timedelta`, plus the named units; returns the new time.

        Raises `UsageError` for a span below 0: time doesn't go back.
        """
        named = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
        passed = seconds_of(span, "skip()") + seconds_of(named, "skip()")
        return self.skip_to(self._now + passed)

    def skip_to(self, moment: float | datetime) -> float:
        """Let time pass until a moment, unless that has passed; returns the new time."""
        if isinstance(moment, datetime):
            moment = moment.timestamp()
        with self._change:
            if moment > self._now:
                self._now = moment
                if self.on_skip is not None:
                    self.on_skip()
            self._change.notify_all()
        for watcher in list(self._watchers):
            watcher.nudge()
        return self._now

    def advance(self, seconds: float) -> None:
        """Let this many seconds pass. The conformance suite of stores calls it."""
        self.skip(seconds)

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Return when this many seconds have passed by this clock, `stop` is set, or it is worth looking again.

        Runs that sleep call it until they are due. Time may have been skipped between the moment at which a run
        found how long it still has to sleep and this call, so `seconds` may be out of date already.
        """
        if self.auto and seconds < inf:
            self.skip_to(self._now + seconds)
            return
        if self.auto:
            # Something else has to happen first, such as the end of a child run.
            stop.wait(RECHECK_INTERVAL)
            return
        with self._change:
            if seconds > 0 and not stop.is_set():
                self._change.wait(RECHECK_INTERVAL)

    def watch(self, watcher: ClockWatcher) -> None:
        """Nudge a watcher whenever time is skipped; it is referenced weakly. Supervisors call it."""
        self._watchers.add(watcher)
