"""Waiting for what other threads do, starting threads, and threads that do jobs in the background.

The package's docstring has the rules that all of it follows.
"""

from __future__ import annotations

import _thread
import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from threading import Lock, RLock, Thread
from time import monotonic, sleep
from typing import Any

RECHECK_INTERVAL = 0.5
"""Seconds after which a waiting thread looks by itself whether it still has to wait."""

WORKER_IDLE_LIMIT = 10.0
"""Seconds after which a worker that has nothing to do ends."""

MAX_IDLE_WORKERS = 4
"""Workers that wait for something to do, at most, unless more are wanted. The others end with their job."""

MAX_EXIT_DELAY = 10.0
"""Seconds that the end of the process waits for the jobs of workers."""

EXIT_CHECK_INTERVAL = 0.001


class Monitor:
    """A lock, and threads that wait until something under it has changed. It replaces `Condition` and `Event`."""

    __slots__ = ("_waiting", "lock")

    def __init__(self) -> None:
        self.lock = RLock()
        self._waiting: deque[Any] = deque()

    def notify(self) -> None:
        """Have all threads that wait look again. With or without the lock."""
        waiting = self._waiting
        while waiting:
            try:
                waiting.popleft().release()
            except IndexError:  # another thread notifies, too
                return

    def wait_for(self, is_over: Callable[[], object], seconds: float | None = None) -> bool:
        """Wait until `is_over()`, which is called under the lock; for this many seconds, or without a limit.

        Returns whether it is over. The caller doesn't hold the lock.
        """
        deadline = None if seconds is None else monotonic() + seconds
        # A lock of this thread alone: the thread waits for it, and `notify` releases it.
        wake_up = Lock()
        wake_up.acquire()
        # In the list before the first look, so that no change between the two is missed.
        self._waiting.append(wake_up)
        try:
            while True:
                with self.lock:
                    if is_over():
                        return True
                remaining = RECHECK_INTERVAL
                if deadline is not None:
                    remaining = min(deadline - monotonic(), RECHECK_INTERVAL)
                    if remaining <= 0:
                        return False
                if wake_up.acquire(True, remaining):
                    self._waiting.append(wake_up)  # `notify` took it out
        finally:
            with suppress(ValueError):
                self._waiting.remove(wake_up)


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


def start_thread(target: Callable[..., object], name: str, *args: Any, daemon: bool = True) -> None:
    """Start a thread, by default a daemon.

    `Thread.start` waits for an `Event`: the new thread hangs for ever if the one that starts it is interrupted there.
    So the main thread has another thread start it.
    """
    start_threads([Thread(target=target, args=args, name=name, daemon=daemon)])


def start_threads(threads: Sequence[Thread]) -> None:
    """Start these threads. One other thread starts all of them, where that is needed."""

    def start_all() -> None:
        for thread in threads:
            try:
                thread.start()
            except RuntimeError as error:
                # From Python 3.12 on, a process that ends starts no threads. It would end those that it had.
                if "interpreter shutdown" not in str(error):
                    raise
                return

    if threading.get_ident() == threading.main_thread().ident:
        _thread.start_new_thread(start_all, ())
    else:
        start_all()


class Workers:
    """Threads that do jobs in the background: as many as there are jobs at a time, and few that wait for the next.

    A job that waits for a store, however long, delays no other. Each job has the context variables of a new thread.
    """

    def __init__(self, name: str = "limpet-worker", max_idle: int = MAX_IDLE_WORKERS) -> None:
        self._name = name
        self._max_idle = max_idle
        self.forget()

    def forget(self) -> None:
        """Start without threads: at first, and in a forked child."""
        self._process = os.getpid()
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        """None has a worker that waits look whether there is anything left to do."""
        self._may_wait = True
        self._idle: deque[None] = deque()
        """One item for each worker that waits: a deque is a counter that threads can share."""
        self._alive: deque[None] = deque()

    def do(self, job: Callable[[], object]) -> None:
        """Have a worker do this job now. The job handles its own errors."""
        if self._process != os.getpid():
            self.forget()
        self._may_wait = True
        self._jobs.put(job)
        if not self._idle:
            self._add_worker()

    def end_idle(self) -> None:
        """Have the workers end that have nothing to do, and the others as soon as they have: until the next job."""
        self._may_wait = False
        self._end_next()

    def finish(self, seconds: float) -> None:
        """Wait until all jobs are done, for this many seconds at most."""
        deadline = monotonic() + seconds
        while len(self._alive) > len(self._idle) or not self._jobs.empty():
            if monotonic() >= deadline:
                return
            sleep(EXIT_CHECK_INTERVAL)

    def _add_worker(self) -> None:
        try:
            start_thread(self._work, self._name)
        except RuntimeError:  # the interpreter is shutting down and starts no more threads
            while not self._jobs.empty():
                job = self._jobs.get()
                if job is not None:
                    job()

    def _work(self) -> None:
        self._alive.append(None)
        try:
            while (job := self._next_job()) is not None:
                copy_context().run(job)
        finally:
            self._alive.pop()

    def _next_job(self) -> Callable[[], object] | None:
        """The next job; None if this worker has to end, since there hasn't been one for a while."""
        # First, so that `end_idle` counts this worker, or this worker notices `end_idle`.
        self._idle.append(None)
        patience = WORKER_IDLE_LIMIT
        if len(self._idle) > self._max_idle or not self._may_wait:
            patience = 0.0
        job: Callable[[], object] | None = None
        with suppress(Empty):
            job = self._jobs.get(timeout=patience)
        self._idle.pop()
        # Look again after this worker no longer counts as idle: a job may have been added because it did.
        with suppress(Empty):
            while job is None:
                job = self._jobs.get_nowait()
        if job is None:
            self._end_next()
        elif not self._idle and not self._jobs.empty():
            self._add_worker()
        return job

    def _end_next(self) -> None:
        """Pass on to a worker that waits that it may not."""
        if self._idle and not self._may_wait:
            self._jobs.put(None)


workers = Workers()


class JobQueue:
    """Jobs that a worker does one after the other."""

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], object]] = deque()
        self._working = Lock()

    def do(self, job: Callable[[], object]) -> None:
        """Have a worker do this job after those that were added before. The job handles its own errors."""
        self._jobs.append(job)
        workers.do(self._work)

    def finish(self) -> None:
        """Do here what is left to do, after the job that is being done."""
        with self._working:
            while self._jobs:
                self._jobs.popleft()()

    def _work(self) -> None:
        # If another worker is at work, it looks once more when it has released the lock.
        while self._jobs and not self._working.locked():
            self.finish()


def _at_exit() -> None:
    workers.finish(MAX_EXIT_DELAY)


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=workers.forget)
