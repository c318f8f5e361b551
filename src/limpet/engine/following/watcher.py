"""One watcher for a process and a store: it asks the store once for all runs that are followed or waited for.

A step notifies nobody, so that following costs writers nothing. The watcher looks at the heads of all these runs,
reads what is new in each once, and has it in a *window*, from which all followers of the run take the same events.
It has a thread as long as any run is followed. A follower that isn't as far as the window, since it has just come or
is slow, reads by itself until it is. So no follower holds up another, and the window stays small.
"""

from __future__ import annotations

import os
from collections import deque
from threading import Lock
from time import monotonic, sleep
from typing import TYPE_CHECKING
from weakref import WeakSet, WeakValueDictionary

from limpet.engine.following.cursor import EventCursor
from limpet.engine.following.event_feed import Entry, EventFeed
from limpet.journal.store import RunHead, Store
from limpet.threads.workers import RECHECK_INTERVAL, Monitor, start_thread

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

WATCH_INTERVAL = 0.05
"""Seconds between two looks at the runs that are followed."""

MAX_WINDOW = 4096
MAX_WINDOW_BYTES = 4_000_000
"""How many events of a run are kept for followers that haven't taken them yet."""

RunKey = tuple[str, frozenset[str]]
"""A run, and which of its keys are secret by the code of its graph: events are masked by both."""


class FollowedRun:
    """A run that this process follows, or waits for: its newest head, and the window of its newest events."""

    def __init__(self, watcher: RunWatcher, run_id: str, secrets: frozenset[str]) -> None:
        self.run_id = run_id
        self.secrets = secrets
        self.store = watcher.store
        self.head: RunHead | None = None
        """The head as the watcher saw it last."""
        self.problem: Exception | None = None
        """Why the run can't be watched any longer."""
        self.version = 0
        """Counts changes of all that is public here."""
        self.lock = Lock()
        self.feed: EventFeed | None = None
        """What the watcher reads with. Only the watcher uses it."""
        self.fed_head: RunHead | None = None
        """The head as of the end of the window."""
        self.floor = EventCursor()
        """The place before the window."""
        self.window: deque[Entry] = deque()
        self.first = 0
        """The number of the first entry of the window."""
        self.members: WeakSet[Member] = WeakSet()
        self._watcher = watcher
        self._monitor = Monitor()
        self._sleepers: dict[Future[None], AbstractEventLoop] = {}

    @property
    def end(self) -> int:
        """The number that the next entry of the window will get."""
        return self.first + len(self.window)

    def adopt(self, feed: EventFeed, head: RunHead) -> None:
        """Have the watcher read on with a feed that is up to date, if it has none. Under the lock."""
        if self.feed is None:
            self.floor = feed.place
            self.fed_head = head
            self.feed = feed

    def update(self, head: RunHead) -> None:
        """Take note of a head, and read what is new. The watcher calls this."""
        if head == self.head and (self.feed is None or head == self.fed_head):
            return
        self.head = head
        feed = self.feed
        is_new = feed is not None and head != self.fed_head
        while feed is not None and is_new:
            batch = feed.read()
            with self.lock:
                self.window.extend(batch.entries)
                self.fed_head = batch.head
                self._trim()
            is_new = batch.has_more
            self.notify()
        self.notify()

    def fail(self, problem: Exception) -> None:
        """The run can't be watched any longer: its followers raise this."""
        self.problem = problem
        self.notify()

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
            self._watcher.ensure_thread(self)
            self._monitor.wait_for(lambda: self.version != seen, min(remaining, RECHECK_INTERVAL))
        self.raise_problem()

    async def await_change(self, seen: int, seconds: float) -> None:
        """The same without blocking the event loop, or a thread."""
        import asyncio

        deadline = monotonic() + seconds
        loop = asyncio.get_running_loop()
        while self.version == seen and (remaining := deadline - monotonic()) > 0:
            self._watcher.ensure_thread(self)
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

    def _trim(self) -> None:
        """Drop entries that all followers have taken, and the oldest if they are too many. Under the lock."""
        needed = min((member.taken for member in list(self.members) if member.taken >= 0), default=self.end)
        size = sum(entry.size for entry in self.window)
        while self.window and (
            self.first < needed or len(self.window) > MAX_WINDOW or size > MAX_WINDOW_BYTES
        ):
            entry = self.window.popleft()
            size -= entry.size
            self.first += 1
            self.floor = after(self.floor, entry)


class Member:
    """Something that follows a run or waits for it. The run is watched as long as it has members.

    `taken` is the number of the next entry of the window that it takes; below 0 if it takes none from there.
    """

    __slots__ = ("__weakref__", "taken")

    def __init__(self) -> None:
        self.taken = -1


class RunWatcher:
    """Watches runs of one store. Get it with `watcher_for(store)`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = Lock()
        self._working = Lock()
        """Held by the thread that watches."""
        self._runs: dict[RunKey, FollowedRun] = {}

    def join(self, run_id: str, secrets: frozenset[str], member: Member) -> FollowedRun:
        """Watch a run for a member, until it leaves or is dropped."""
        key = (run_id, secrets)
        with self._lock:
            run = self._runs.get(key)
            if run is None or run.problem is not None:
                run = self._runs[key] = FollowedRun(self, run_id, secrets)
        with run.lock:
            run.members.add(member)
        self.ensure_thread(run)
        return run

    def leave(self, run: FollowedRun, member: Member) -> None:
        """The member doesn't need the run any longer."""
        with run.lock:
            run.members.discard(member)

    def ensure_thread(self, run: FollowedRun) -> None:
        """Start the thread that watches, unless it is at work."""
        with self._lock:
            if run.problem is None and run.members:
                self._runs.setdefault((run.run_id, run.secrets), run)
        if not self._working.locked():
            start_thread(self._work, "limpet-watcher")

    def _work(self) -> None:
        """Watch until no run is followed. Two threads may start at once: then one of them ends at once."""
        while self._runs and self._working.acquire(blocking=False):
            try:
                while self._look():
                    sleep(WATCH_INTERVAL)
            finally:
                self._working.release()

    def _look(self) -> bool:
        """Look at all runs that are followed, once. False if there are none."""
        with self._lock:
            self._runs = {key: run for key, run in self._runs.items() if run.members and not run.problem}
            runs = list(self._runs.values())
        if not runs:
            return False
        try:
            heads = self.store.heads([run.run_id for run in runs])
        except Exception as problem:  # such as a store that can't be reached, or was closed
            for run in runs:
                run.fail(problem)
            return True
        for run, head in zip(runs, heads, strict=True):
            try:
                run.update(self.store.head(run.run_id) if head is None else head)
            except Exception as problem:  # the run was deleted or is damaged
                run.fail(problem)
        return True


def after(place: EventCursor, entry: Entry) -> EventCursor:
    """The place after an entry, for a follower that was at `place`."""
    if entry.is_output:
        return place._replace(output=entry.place.output)
    return entry.place._replace(output=place.output)


def is_behind(place: EventCursor, other: EventCursor) -> bool:
    """Whether a follower at `place` misses events that one at `other` has had."""
    return (place.record, place.part) < (other.record, other.part) or place.output < other.output


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
