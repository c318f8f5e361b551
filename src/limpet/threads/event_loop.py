"""An event loop in a thread: one for each run that needs it, and one of the process, for what outlives a run.

It follows the rules of the package's docstring: no lock is left held by an interrupt, and all may be called again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from limpet.threads.workers import start_thread

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task

START_CHECK_INTERVAL = 0.1
"""Seconds after which a thread that waits for the event loop to start looks again."""

T = TypeVar("T")


class EventLoopThread:
    """A thread that runs an event loop. It starts with the first call, and is a daemon: it can be abandoned."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_started = False
        self._closing = False
        self._is_ended = False
        self._stopping: Task[None] | None = None
        self.loop: AbstractEventLoop | None = None
        # Locks of one thread that waits, which the thread of the event loop releases.
        self._ready = taken_lock()
        self._ended = taken_lock()

    def start(self) -> None:
        """Start the thread, unless it was started."""
        if not self._is_started:
            start_thread(self._serve, self._name)
            self._is_started = True

    def call_soon(self, call: Callable[[], object]) -> None:
        """Have the event loop call a function; nothing happens if it is closed."""
        # In a loop: an interrupt may have come right after another call here took the lock.
        while self.loop is None:
            self._ready.acquire(True, START_CHECK_INTERVAL)
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(call)

    def close(self, seconds: float) -> bool:
        """Cancel what still runs and end the thread. Says whether it has ended within this many seconds."""
        self._closing = True
        # If this thread was interrupted while it started the other one, that ends by itself, if it exists.
        if not self._is_started and self.loop is None:
            return True
        self.call_soon(self._stop_when_cancelled)
        # The mark is for a second call: the first one may have been interrupted right after it took the lock.
        return self._is_ended or self._ended.acquire(True, seconds) or self._is_ended

    def _serve(self) -> None:
        import asyncio

        loop = asyncio.new_event_loop()
        self.loop = loop
        self._ready.release()
        try:
            if not self._closing:
                loop.run_forever()
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
            self._is_ended = True
            self._ended.release()

    def _stop_when_cancelled(self) -> None:
        """Cancel all tasks, those that nodes have created too, and end the thread as soon as they have ended."""
        import asyncio

        assert self.loop is not None
        loop = self.loop
        running = asyncio.all_tasks(loop)
        for task in running:
            task.cancel()

        async def stop() -> None:
            await asyncio.gather(*running, return_exceptions=True)
            loop.stop()

        self._stopping = loop.create_task(stop())


class ProcessLoop:
    """The event loop of this process, in a thread that starts when it is first needed and ends with the process."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start without a thread: at first, and in a forked child."""
        self._lock = Lock()
        self._thread: EventLoopThread | None = None

    @property
    def loop(self) -> AbstractEventLoop | None:
        """The event loop, if it runs."""
        return None if self._thread is None else self._thread.loop

    def is_here(self) -> bool:
        """Whether this is the thread of the event loop, which can't wait for what it has to do itself."""
        from asyncio import _get_running_loop

        return self.loop is not None and _get_running_loop() is self.loop

    @property
    def thread(self) -> EventLoopThread:
        """The thread, started if it wasn't."""
        with self._lock:
            if self._thread is None:
                self._thread = EventLoopThread("limpet-process-loop")
            self._thread.start()
            return self._thread

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine there, and return what it returns or raise what it raises. Blocks this thread.

        Raises RuntimeError in the thread of the event loop itself, which can't wait for what it has to do.
        """
        from asyncio import create_task

        if self.is_here():
            raise RuntimeError(
                "the event loop of the process can't wait for itself; await it in an async node"
            )
        outcomes: list[Any] = []
        done = taken_lock()

        async def work() -> None:
            try:
                outcomes.append((True, await make()))
            except BaseException as error:
                outcomes.append((False, error))
            done.release()

        tasks: list[Task[None]] = []
        thread = self.thread
        # What outlives this call must not see the node that made it: hence the empty context.
        thread.call_soon(lambda: tasks.append(create_task(work(), context=Context())))
        done.acquire()
        is_result, outcome = outcomes[0]
        if is_result:
            found: T = outcome
            return found
        raise outcome


def taken_lock() -> Lock:
    """A lock that is held: another thread releases it."""
    lock = Lock()
    lock.acquire()
    return lock


process_loop = ProcessLoop()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=process_loop.forget)
