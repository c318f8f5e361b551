"""A clock that skips time, so that a test of a run that sleeps for a month takes no time."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta
from typing import Protocol
from weakref import WeakSet

from limpet.durations import Span, seconds_of
from limpet.errors import UsageError

A_GLANCE = 0.01
"""Seconds between two looks of somebody who waits for the clock, and may be told to stop."""


class Watches(Protocol):
    """Somebody who wants to know that time was skipped: a supervisor."""

    def nudge(self) -> None:
        """Look now."""
        ...


class FakeClock:
    """A clock that stands still until time is skipped. Hand it to a store: `MemoryStore(clock=clock)`.

    `skip(…)` lets time pass: sleeps end, deadlines pass, and supervisors of the store look at once at what is due.
    With `auto=True` it skips by itself when a run waits: `graph.execute()` of a node that calls `sleep(86400)` then
    returns at once, with the clock a day ahead. `now` is where it begins: a `datetime` that knows its zone, seconds
    since the epoch, or else the present. Threads may share it; it belongs to one process.

    Leases go by it too. A skip that is longer than a lease (10 s, unless it is said otherwise) lets it run out, as on
    a machine that was suspended: a supervisor then takes over what somebody else is at.
    """

    def __init__(self, now: float | datetime | None = None, *, auto: bool = False) -> None:
        if isinstance(now, datetime):
            if now.tzinfo is None:
                raise UsageError(f"FakeClock: {now!r} doesn't say its zone; write datetime(…, tzinfo=UTC)")
            now = now.timestamp()
        self._now = time.time() if now is None else float(now)
        self._change = threading.Condition()
        self._watching: WeakSet[Watches] = WeakSet()
        self.auto = auto

    def __call__(self) -> float:
        """The time, in seconds since the epoch."""
        return self._now

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
        """Let time pass: seconds or a `timedelta`, and whatever is named besides; returns the new time.

        Raises `UsageError` for a span below 0: time doesn't go back.
        """
        named = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()
        passed = seconds_of(span, "skip()") + seconds_of(named, "skip()")
        return self.skip_to(self._now + passed)

    def skip_to(self, moment: float | datetime) -> float:
        """Let time pass until a moment, unless that is over; returns the new time."""
        until = moment.timestamp() if isinstance(moment, datetime) else moment
        with self._change:
            if until > self._now:
                self._now = until
                self.moved()
            self._change.notify_all()
        for watcher in list(self._watching):
            watcher.nudge()
        return self._now

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass. The conformance suite of stores calls it."""
        self.skip(seconds)

    def moved(self) -> None:
        """Called when time was skipped. Does nothing; for clocks derived from this one."""

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Return when so many seconds have passed by this clock, or `stop` is set. Runs that sleep call it."""
        until = self._now + seconds
        if self.auto:
            self.skip_to(until)
            return
        with self._change:
            while self._now < until and not stop.is_set():
                self._change.wait(A_GLANCE)

    def watch(self, watcher: Watches) -> None:
        """Have somebody nudged whenever time is skipped, for as long as it is there. Supervisors call it."""
        self._watching.add(watcher)
