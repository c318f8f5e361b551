"""One watcher for a process and a store: it asks the store once for all runs that are followed or waited for.

A step notifies no process, so that following costs writers nothing. The watcher looks at the heads of all these
runs, and reads what is new in each into a `Window`, from which all its followers take the same events. It has a
thread as long as any run is followed. A follower that isn't as far as that window, since it has just come or is slow,
takes from another one until it is. So no follower holds up another.

While the store is unavailable, followers wait, as runs do that can't save: without a limit, unless a caller gave one.
The watcher asks less and less often, and wakes them when the store answers again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from threading import Lock
from time import monotonic, sleep
from typing import TYPE_CHECKING
from weakref import WeakSet, WeakValueDictionary

from limpet.engine.following.cursor import EventCursor
from limpet.engine.following.event_feed import EventFeed
from limpet.engine.following.window import Member, Window, is_behind
from limpet.errors import KeyMissing, StoreUnavailable, TooLarge
from limpet.journal.store import RunHead, Store
from limpet.threads.workers import RECHECK_INTERVAL, Monitor, start_thread

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

WATCH_INTERVAL = 0.05
"""Seconds between two looks at the runs that are followed."""

QUIET_INTERVAL = 0.1
QUIET_TIME = 5.0
"""The same, when nothing has happened in any of them for this many seconds: that halves what idle followers cost."""

LONGEST_PAUSE = 2.0
"""Seconds between two looks at most, while the store is unavailable."""

START_TIME = 0.2
"""Seconds that a thread takes to start, at most. If it hasn't by then, another is started."""

RunKey = tuple[str, frozenset[str]]
"""A run, and which of its keys are secret by the code of its graph: events are masked by both."""


class FollowedRun:
    """A run that this process follows, or waits for: its newest head, and the windows on its events."""

    def __init__(self, watcher: RunWatcher, run_id: str, secrets: frozenset[str]) -> None:
        self.run_id = run_id
        self.secrets = secrets
        self.head: RunHead | None = None
        """The head as the watcher saw it last."""
        self.problem: Exception | None = None
        """Why the run can't be watched any longer."""
        self.version = 0
        """Counts changes of all that is public here."""
        self.lock = Lock()
        self.members: WeakSet[Member] = WeakSet()
        """What follows the run or waits for it. Under the lock."""
        self.newest: Window | None = None
        """The window that is up to date, which the watcher reads further."""
        self._catching_up: WeakSet[Window] = WeakSet()
        """The windows of followers that aren't up to date."""
        self._watcher = watcher
        self._monitor = Monitor()
        self._sleepers: dict[Future[None], AbstractEventLoop] = {}

    def window_at(self, place: EventCursor) -> Window:
        """A window with the events after a place: one that others use, if there is one that begins before it."""
        with self.lock:
            for window in [self.newest, *self._catching_up]:
                if window is None or window.is_broken or is_behind(place, window.floor):
                    continue
                return window
            window = Window(EventFeed(self._watcher.store, self.run_id, place, self.secrets))
            self._catching_up.add(window)
            return window

    def keep_up_to_date(self, window: Window) -> None:
        """Have the watcher read this window further, if it has none. It is up to date."""
        with self.lock:
            if self.newest is None or self.newest.is_broken:
                self._catching_up.discard(window)
                self.newest = window

    def update(self, head: RunHead) -> None:
        """Take note of a head, and read what is new. The watcher calls this."""
        window = self.newest
        is_broken = window is not None and window.is_broken
        is_new = window is not None and head != window.head
        if head == self.head and not (is_new or is_broken):
            return
        self.head = head
        while window is not None and is_new and not window.is_broken:
            is_new = window.read(window.reads)
            self.notify()
        if is_broken:
            self.newest = None  # its followers find another one
        self.notify()

    def fail(self, problem: Exception) -> None:
        """The run can't be watched any longer: its followers raise this."""
        self.problem = problem
        self.notify()

    def endure(self, problem: StoreUnavailable) -> None:
        """The store couldn't be asked: all that wait for the run wait on. Raises what won't change by waiting."""
        self._watcher.outage.note(problem)

    def notify(self) -> None:
        """Wake all that wait for a change."""
        self.version += 1
        self._monitor.notify()
        for future, loop in list(self._sleepers.items()):
            try:
                loop.call_soon_threadsafe(_wake, future)
            except RuntimeError:  # its event loop was closed
                self._sleepers.pop(future, None)

    def wait(self, seen: int, seconds: float) -> None:
        """Wait until the version isn't `seen` any more, for this many seconds at most. Raises the problem."""
        deadline = monotonic() + seconds
        while self.version == seen and (remaining := deadline - monotonic()) > 0:
            self._watcher.ensure_thread()
            self._monitor.wait_for(lambda: self.version != seen, min(remaining, RECHECK_INTERVAL))
        self.raise_problem()

    async def await_change(self, seen: int, seconds: float) -> None:
        """The same without blocking the event loop, or a thread."""
        import asyncio

        deadline = monotonic() + seconds
        loop = asyncio.get_running_loop()
        while self.version == seen and (remaining := deadline - monotonic()) > 0:
            self._watcher.ensure_thread()
            future = loop.create_future()
            self._sleepers[future] = loop
            try:
                if self.version == seen:
                    await asyncio.wait([future], timeout=min(remaining, RECHECK_INTERVAL))
            finally:
                self._sleepers.pop(future, None)
        self.raise_problem()

    def raise_problem(self) -> None:
        """Raise why the run can't be watched any longer, if it can't."""
        if self.problem is not None:
            raise self.problem.with_traceback(None)


class Outage:
    """Whether a store is unavailable, by what its followers and its watcher have met. The log tells once."""

    def __init__(self, store: Store) -> None:
        self.pause = WATCH_INTERVAL
        """Seconds until the next look at the store."""
        self._store = store
        self._lock = Lock()
        self._is_known = False
        self._failures = 0
        """Since the last look that succeeded."""

    def note(self, problem: StoreUnavailable) -> None:
        """A call has failed. Raises the problem if it won't pass: the store was closed, or a key is missing."""
        if isinstance(problem, KeyMissing | TooLarge) or getattr(self._store, "closed", False):
            raise problem
        with self._lock:
            self._failures += 1
            is_new = not self._is_known
            self._is_known = True
        if is_new:
            log().warning("runs can't be followed: %s; will try again", problem)

    def after_look(self, has_succeeded: bool) -> bool:
        """Note how a look ended. Returns whether followers may have waited for it to succeed."""
        if not self._is_known:
            return False
        with self._lock:
            is_over = has_succeeded and not self._failures
            if is_over:
                self._is_known = False
            if has_succeeded:
                self._failures = 0
                self.pause = WATCH_INTERVAL
            else:
                self.pause = min(2 * self.pause, LONGEST_PAUSE)
        if is_over:
            log().info("runs are followed again: the store is available")
        return has_succeeded


class RunWatcher:
    """Watches runs of one store. Get it with `watcher_for(store)`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.outage = Outage(store)
        self._lock = Lock()
        self._working = Lock()
        """Held by the thread that watches."""
        self._started = 0.0
        """When that was started, for as long as it hasn't ended."""
        self._runs: dict[RunKey, FollowedRun] = {}
        self._changed = monotonic()
        """When something happened last in a run that is followed, or it began to be."""

    def join(self, run_id: str, secrets: frozenset[str], member: Member) -> FollowedRun:
        """Watch a run for a member, until it leaves or is dropped."""
        key = (run_id, secrets)
        with self._lock:
            run = self._runs.get(key)
            if run is None or run.problem is not None:
                run = self._runs[key] = FollowedRun(self, run_id, secrets)
            # Under this lock as well, so that the run isn't dropped meanwhile, because nothing follows it.
            with run.lock:
                run.members.add(member)
        self._changed = monotonic()
        self.ensure_thread()
        return run

    def leave(self, run: FollowedRun, member: Member) -> None:
        """The member doesn't need the run any longer."""
        with run.lock:
            run.members.discard(member)

    def ensure_thread(self) -> None:
        """Start the thread that watches, unless it is at work, or was started just now."""
        now = monotonic()
        if not self._working.locked() and now - self._started > START_TIME:
            self._started = now
            start_thread(self._work, "limpet-watcher")

    def _work(self) -> None:
        """Watch until no run is followed. Two threads may start at once: then one of them ends at once."""
        while self._runs and self._working.acquire(blocking=False):
            try:
                while self._look():
                    sleep(self._pause())
            finally:
                self._started = 0.0
                self._working.release()

    def _pause(self) -> float:
        """Seconds until the next look."""
        is_quiet = monotonic() - self._changed > QUIET_TIME
        return max(self.outage.pause, QUIET_INTERVAL if is_quiet else 0.0)

    def _look(self) -> bool:
        """Look at all runs that are followed, once. False if there are none."""
        with self._lock:
            self._runs = {key: run for key, run in self._runs.items() if run.members and not run.problem}
            runs = list(self._runs.values())
        if not runs:
            return False
        heads = self._heads(runs)
        versions = [run.version for run in runs]
        for run, head in zip(runs, heads, strict=False):
            try:
                run.update(self.store.head(run.run_id) if head is None else head)
            except Exception as problem:  # such as a run that was deleted or is damaged: the others continue
                self._note(problem, run)
        if self.outage.after_look(bool(heads)):
            for run in runs:
                run.notify()
        if versions != [run.version for run in runs]:
            self._changed = monotonic()
        return True

    def _heads(self, runs: Sequence[FollowedRun]) -> Sequence[RunHead | None]:
        """The heads of runs, None for those that are to be asked for alone; no heads if the store is unavailable."""
        try:
            return self.store.heads([run.run_id for run in runs])
        except StoreUnavailable as problem:
            for run in runs:
                self._note(problem, run)
            return []
        except Exception:  # one of the runs is to blame
            return [None] * len(runs)

    def _note(self, problem: Exception, run: FollowedRun) -> None:
        """Something went wrong with a run: its followers wait, or raise it."""
        try:
            if not isinstance(problem, StoreUnavailable):
                raise problem
            run.endure(problem)
        except Exception as lasting:
            run.fail(lasting)


def log() -> logging.Logger:
    """The log of what happens to stores."""
    return logging.getLogger("limpet.stores")


def _wake(future: Future[None]) -> None:
    if not future.done():
        future.set_result(None)


_watchers: WeakValueDictionary[int, RunWatcher] = WeakValueDictionary()
_watchers_lock = Lock()


def watcher_for(store: Store) -> RunWatcher:
    """This process's watcher of a store object."""
    with _watchers_lock:
        watcher = _watchers.get(id(store))
        if watcher is None:
            watcher = _watchers[id(store)] = RunWatcher(store)
        return watcher


def _start_over_in_child() -> None:
    """A forked child has no thread that watches, and locks that such a thread held stay locked."""
    global _watchers_lock
    _watchers_lock = Lock()
    _watchers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_over_in_child)
