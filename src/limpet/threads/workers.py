"""Starting threads, and threads that do jobs in the background."""

from __future__ import annotations

import _thread
import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic, sleep
from typing import Any

WORKER_IDLE_LIMIT = 10.0
"""Seconds after which a worker that has nothing to do ends."""

MAX_IDLE_WORKERS = 4
"""Workers that wait for something to do, at most. The others end with their job."""

MAX_EXIT_DELAY = 10.0
"""Seconds that the end of the process waits for the jobs of workers."""

EXIT_CHECK_INTERVAL = 0.001


def start_thread(target: Callable[..., object], name: str, *args: Any) -> None:
    """Start a daemon thread.

    `Thread.start` waits for an `Event`: the new thread hangs for ever if the one that starts it is interrupted there.
    So the main thread has another thread start it.
    """
    thread = Thread(target=target, args=args, name=name, daemon=True)
    if threading.current_thread() is threading.main_thread():
        _thread.start_new_thread(thread.start, ())
    else:
        thread.start()


class Workers:
    """Threads that do jobs in the background: as many as there are jobs at a time, and hardly any that wait.

    A job that waits for a store, however long, delays no other.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start without threads: at first, and in a forked child."""
        self._jobs: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._idle: deque[None] = deque()
        """One item for each worker that waits: a deque is a counter that threads can share."""
        self._alive: deque[None] = deque()

    def do(self, job: Callable[[], object]) -> None:
        """Have a worker do this job now. The job handles its own errors."""
        self._jobs.put(job)
        if not self._idle:
            self._add_worker()

    def finish(self, seconds: float) -> None:
        """Wait until all jobs are done, for this many seconds at most."""
        deadline = monotonic() + seconds
        while len(self._alive) > len(self._idle) or not self._jobs.empty():
            if monotonic() >= deadline:
                return
            sleep(EXIT_CHECK_INTERVAL)

    def _add_worker(self) -> None:
        try:
            start_thread(self._work, "limpet-worker")
        except RuntimeError:  # the interpreter is shutting down and starts no more threads
            while not self._jobs.empty():
                self._jobs.get()()

    def _work(self) -> None:
        self._alive.append(None)
        try:
            while (job := self._next_job()) is not None:
                job()
        finally:
            self._alive.pop()

    def _next_job(self) -> Callable[[], object] | None:
        """The next job; None if this worker has to end, since there hasn't been one for a while."""
        patience = WORKER_IDLE_LIMIT
        if len(self._idle) >= MAX_IDLE_WORKERS:
            patience = 0.0
        self._idle.append(None)
        job: Callable[[], object] | None = None
        with suppress(Empty):
            job = self._jobs.get(timeout=patience)
        self._idle.pop()
        # Look again after this worker no longer counts as idle: a job may have been added because it did.
        if job is None:
            with suppress(Empty):
                job = self._jobs.get_nowait()
        if job is not None and not self._idle and not self._jobs.empty():
            self._add_worker()
        return job


workers = Workers()


def _at_exit() -> None:
    workers.finish(MAX_EXIT_DELAY)


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=workers.forget)
