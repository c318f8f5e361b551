"""An event loop in a thread, for the async nodes of a synchronous run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any

from limpet.engine.drivers.node_call import (
    Interrupted,
    NodeInterrupt,
    await_node,
    loops_with_runs,
    timed_out,
)
from limpet.engine.leases.held_lease import StopRequest
from limpet.engine.loop.driver_commands import Failed
from limpet.engine.node_context.node_context import NodeContext
from limpet.threads.workers import start_thread

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task

START_CHECK_INTERVAL = 0.1
"""Seconds after which a thread that waits for the event loop to start looks again."""

CLOSE_TIMEOUT = 5.0
"""Seconds that nodes have to end after they were cancelled. The thread is a daemon: it can be abandoned."""


class LoopThread:
    """A thread that runs an event loop. It starts with the first async node of a run and ends with the run."""

    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop
        self._is_started = False
        self._closing = False
        self._is_ended = False
        self._loop: AbstractEventLoop | None = None
        self._tasks: set[Task[None]] = set()
        # Locks of one thread that waits, which the thread of the event loop releases.
        self._ready = _taken_lock()
        self._ended = _taken_lock()

    def run(self, task: NodeContext, result: Awaitable[Any]) -> Any:
        """Await a node's result on the event loop, within its timeout, and return its outcome."""
        outcomes: list[Any] = []
        done = _taken_lock()

        async def work() -> None:
            interrupt = NodeInterrupt(self._stop)
            try:
                outcomes.append(await await_node(task, result, interrupt))
            except BaseException as error:
                # It must not end the thread of the event loop. The thread of the run raises it again below.
                outcomes.append(Interrupted(error))
            interrupt.close()
            done.release()

        begun: list[Task[None]] = []
        self._begin(work, begun)
        timeout = task.plan_node.timeout
        # An interrupt here ends the run, and so the thread, which cancels what runs there.
        if not done.acquire(True, -1 if timeout is None else timeout):
            self._call_soon(lambda: begun[0].cancel())
            return timed_out(task, self._stop.cancels)
        outcome = outcomes[0]
        if isinstance(outcome, Interrupted):
            raise outcome.error
        return outcome

    def start(
        self, task: NodeContext, result: Awaitable[Any], on_done: Callable[[tuple[NodeContext, Any]], None]
    ) -> None:
        """Await a node's result concurrently with others; `on_done` gets its outcome, in the thread of the loop."""
        import asyncio

        async def work() -> None:
            interrupt = NodeInterrupt(self._stop)
            try:
                async with asyncio.timeout(task.plan_node.timeout):
                    outcome = await await_node(task, result, interrupt)
            except TimeoutError:
                outcome = timed_out(task, self._stop.cancels)
            except asyncio.CancelledError as error:
                if self._closing:
                    raise
                outcome = Failed(error)
            except BaseException as error:
                outcome = Interrupted(error)
            finally:
                interrupt.close()
            on_done((task, outcome))

        self._begin(work, [])

    def close(self) -> None:
        """Cancel what still runs and end the thread. It may be called again."""
        self._closing = True
        # If this thread was interrupted while it started the other one, that ends by itself, if it exists.
        if not self._is_started and self._loop is None:
            return
        self._call_soon(self._stop_when_cancelled)
        # The mark is for a second call: the first one may have been interrupted right after it took the lock.
        if self._is_ended or self._ended.acquire(True, CLOSE_TIMEOUT):
            return
        if not self._is_ended:
            from logging import getLogger

            getLogger("limpet.run").warning("an async node blocks its event loop; its thread is abandoned")

    def _begin(self, work: Callable[[], Coroutine[Any, Any, None]], begun: list[Task[None]]) -> None:
        """Have the event loop run a coroutine as a task, which is then added to `begun`."""
        if not self._is_started:
            start_thread(self._serve, "limpet-async")
            self._is_started = True

        def create_task() -> None:
            assert self._loop is not None
            task = self._loop.create_task(work())
            begun.append(task)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self._call_soon(create_task)

    def _call_soon(self, call: Callable[[], object]) -> None:
        """Have the event loop call a function."""
        # In a loop: an interrupt may have come right after another call here took the lock.
        while self._loop is None:
            self._ready.acquire(True, START_CHECK_INTERVAL)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call)

    def _serve(self) -> None:
        import asyncio

        loop = asyncio.new_event_loop()
        loops_with_runs.add(loop)
        self._loop = loop
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

        assert self._loop is not None
        loop = self._loop
        running = asyncio.all_tasks(loop)
        for task in running:
            task.cancel()

        async def stop() -> None:
            await asyncio.gather(*running, return_exceptions=True)
            loop.stop()

        self._tasks.add(loop.create_task(stop()))


def _taken_lock() -> Lock:
    lock = Lock()
    lock.acquire()
    return lock
