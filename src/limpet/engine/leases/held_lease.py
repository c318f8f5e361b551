"""The leases that this process holds, and when they are renewed: one thread watches the time for all stores.

It calls no store itself. Workers do, so that a store that doesn't answer delays no other; and one worker is enough
for any number of stores that do answer.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from threading import Lock, get_ident
from time import monotonic, sleep
from typing import Protocol
from weakref import ref

from limpet.journal.store import Lease
from limpet.threads.workers import Monitor, start_thread, workers

MAX_OPENING_TIME = 60.0
"""Seconds for which a lease is renewed before a driver runs the run: reading a long journal takes time."""

RENEWALS_PER_LEASE = 3
"""So that one renewal may fail and one be late before the lease expires."""

IDLE_LIMIT = 30.0
"""Seconds after which the thread ends when there is nothing to renew."""

DEADLINE_CHECK_INTERVAL = 30.0
"""Seconds, at most, between two looks at the clock while a run has a deadline."""

BACKLOG_CHECK_INTERVAL = 0.01
"""Seconds in which a worker has to get on with the renewals; else another one joins it."""


class StopRequest:
    """A request to stop a run before its next node. `wake` is called when it is made, from any thread.

    `leaving` means that the run is not cancelled, but released for another process to resume. Else `interrupts` are
    called, too: those of its async nodes. `has_posts` isn't a request to stop: posts wait for the run, which its
    driver is to know soon. `is_overdue` says that it was made because the run's deadline has passed; only a run that
    `has_deadline` can be so, and its sync nodes run where they can be abandoned.
    """

    __slots__ = ("asked", "has_deadline", "has_posts", "interrupts", "is_overdue", "leaving", "wake")

    def __init__(self) -> None:
        self.asked = False
        self.leaving = False
        self.has_posts = False
        self.has_deadline = False
        self.is_overdue = False
        self.wake: Callable[[], object] | None = None
        self.interrupts: set[Callable[[], object]] = set()

    @property
    def cancels(self) -> bool:
        """Whether the run was asked to stop for good, so that its nodes needn't finish."""
        return self.asked and not self.leaving

    def ask(self) -> None:
        """Ask the run to stop and be cancelled. It may be asked again: each node is interrupted once."""
        self.leaving = False
        self._request()
        for interrupt in list(self.interrupts):
            interrupt()

    def expire(self) -> None:
        """Ask the run to stop because its deadline has passed, unless it is being cancelled already."""
        if not self.cancels:
            self.is_overdue = True
            self.ask()

    def leave(self) -> None:
        """Ask the run to stop so that another process can resume it, unless it was already asked to stop."""
        if not self.asked:
            self.leaving = True
            self._request()

    def notice_posts(self) -> None:
        """Have the driver find out soon what was posted to the run, also while nodes run."""
        self.has_posts = True
        self._wake()

    def take_notice(self) -> bool:
        """Whether posts have come since this was last asked."""
        noticed = self.has_posts
        self.has_posts = False
        return noticed

    def _request(self) -> None:
        self.asked = True
        self._wake()

    def _wake(self) -> None:
        wake = self.wake
        if wake is not None:
            wake()


class HeldLease:
    """A lease that this process holds, and what the store has reported about it."""

    __slots__ = (
        "__weakref__",
        "_claimed_at",
        "_driven",
        "_was_driven",
        "claimed_by",
        "graph",
        "is_stranded",
        "known_posts",
        "lease",
        "lost",
        "now",
        "process",
        "renewed",
        "stop",
    )

    def __init__(self, lease: Lease, now: Callable[[], float]) -> None:
        self._claimed_at = monotonic()
        self.claimed_by = get_ident()
        self._driven = Lock()
        self._was_driven = False
        self.lease = lease
        self.process = os.getpid()
        self.lost = False
        self.graph: str | None = None
        """The graph whose run a session executes under this lease; None while there is no session."""
        self.is_stranded: Callable[[], bool] | None = None
        """Whether the driver can't go on any more: it runs on an event loop, and that was closed."""
        self.known_posts = 0
        """The number of the newest post that this process has looked at while the run was under way."""
        self.stop = StopRequest()
        self.now = now
        """The time by the store's clock, as far as it is known without asking the store again."""
        self.renewed = now()
        """When the lease was claimed or last renewed, by that clock."""

    def driven(self) -> Lock:
        """The lock that a driver holds while it runs the run, by `with`: so an interrupt always releases it."""
        self._was_driven = True
        return self._driven

    @property
    def is_in_use(self) -> bool:
        """Whether the run is being run, or opened.

        A run whose caller was interrupted isn't, even if a traceback still refers to all that it was opened with.
        """
        if self.is_stranded is not None and self.is_stranded():
            return False
        if self._was_driven:
            return self._driven.locked()
        return monotonic() - self._claimed_at < MAX_OPENING_TIME

    def is_unused_since(self, time: float) -> bool:
        """Whether this thread has claimed it since then, and no driver has run the run."""
        if self._was_driven or self.claimed_by != get_ident():
            return False
        return self._claimed_at >= time


class LeaseWork(Protocol):
    """What is done at intervals for as long as there are leases: renewing them, and looking at what was posted."""

    @property
    def interval(self) -> float:
        """Seconds until it is done again."""
        ...

    def has_leases(self) -> bool:
        """Whether there is anything to do."""
        ...

    def do_regularly(self) -> None:
        """Do it, unless the last time isn't over. It raises nothing: if it fails, the next time will do."""
        ...


class Renewals:
    """The times at which leases are renewed, and what was posted is looked at."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start with nothing to do: at first, and in a forked child."""
        self._changed = Monitor()
        self._due: dict[LeaseWork, float] = {}
        self._backlog: deque[LeaseWork] = deque()
        self._is_watching = False

    def watch(self, work: LeaseWork) -> None:
        """Have this done from now on, for as long as it has leases."""
        with self._changed.lock:
            if work not in self._due:
                self._due[work] = monotonic() + work.interval
                self._changed.notify()
            # The thread sets this itself, so it is never true without one. Of two that are started, one ends at once.
            if not self._is_watching:
                start_thread(self._watch, "limpet-leases")

    def _watch(self) -> None:
        with self._changed.lock:
            if self._is_watching:
                return
            self._is_watching = True
        try:
            self._watch_until_idle()
        except BaseException:
            self._is_watching = False  # so that the next lease has another thread watch
            raise

    def _watch_until_idle(self) -> None:
        idle_since = monotonic()
        while True:
            with self._changed.lock:
                now = monotonic()
                self._backlog.extend(self._due_now(now))
                if self._due or self._backlog:
                    idle_since = now
                elif now >= idle_since + IDLE_LIMIT:
                    self._is_watching = False
                    return
            self._work_off_backlog()
            self._wait_until(min(self._next_time(), idle_since + IDLE_LIMIT))

    def _wait_until(self, time: float) -> None:
        """Wait until this time, or until something is due earlier."""
        self._changed.wait_for(lambda: self._next_time() < time, time - monotonic())

    def _due_now(self, now: float) -> list[LeaseWork]:
        """What is to be done now. Its next time is set."""
        found = [work for work, time in list(self._due.items()) if time <= now]
        for work in found:
            if work.has_leases():
                self._due[work] = now + work.interval
            else:
                del self._due[work]
        return [work for work in found if work in self._due]

    def _next_time(self) -> float:
        return min(list(self._due.values()), default=float("inf"))

    def _work_off_backlog(self) -> None:
        """Have workers do what is due. If one waits for its store, another one takes the rest."""
        left = 0
        while self._backlog:
            if len(self._backlog) >= left:
                workers.do(self._do_next)
            left = len(self._backlog)
            sleep(BACKLOG_CHECK_INTERVAL)

    def _do_next(self) -> None:
        while self._backlog:
            try:
                work = self._backlog.popleft()
            except IndexError:  # another worker has taken the last one
                return
            work.do_regularly()


def log_failed_renewal(problem: Exception) -> None:
    """Log in one line why leases couldn't be renewed: while a store is away, that is every few seconds."""
    from logging import DEBUG, getLogger

    log = getLogger("limpet.leases")
    reason = " ".join(f"{type(problem).__name__}: {problem}".split())
    log.warning("couldn't renew leases; will try again: %s", reason, exc_info=log.isEnabledFor(DEBUG))


class TimedRun(Protocol):
    """A run with a deadline, as far as this module knows one."""

    stop: StopRequest

    def seconds_left(self) -> float:
        """In how many seconds its deadline passes."""
        ...

    def check_deadline(self) -> None:
        """Ask it to stop if its deadline has passed."""
        ...


class DeadlineWatch:
    """Has a run that is under way stop when its deadline passes: see `Renewals`."""

    def __init__(self, run: TimedRun, longest_interval: float) -> None:
        self._run = ref(run)
        self._longest_interval = longest_interval

    @property
    def interval(self) -> float:
        """Seconds until the clock is looked at again. The time may be set meanwhile, so that isn't long."""
        run = self._run()
        left = 0.0
        if run is not None:
            left = run.seconds_left()
        return min(max(left, BACKLOG_CHECK_INTERVAL), self._longest_interval)

    def has_leases(self) -> bool:
        """Whether the run still exists in this process, and its deadline hasn't passed."""
        run = self._run()
        return run is not None and not run.stop.is_overdue

    def do_regularly(self) -> None:
        """Look at the clock."""
        run = self._run()
        if run is not None:
            run.check_deadline()


renewals = Renewals()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renewals.forget)
