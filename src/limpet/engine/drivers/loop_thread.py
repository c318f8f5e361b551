"""The event loop, in a thread, on which the async nodes of a synchronous run are awaited."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
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
from limpet.threads.event_loop import EventLoopThread, process_loop, taken_lock

if TYPE_CHECKING:
    from asyncio import Task

CLOSE_TIMEOUT = 5.0
"""Seconds that nodes have to end after they were cancelled. The thread is a daemon: it can be abandoned."""

_RUN: ContextVar[LoopThread | None] = ContextVar("limpet.loop_thread", default=None)
"""The run that a task of the event loop belongs to. The tasks that a node creates inherit it."""


class LoopThread:
    """The event loop of one run. Its thread starts with the first async node.

    It is a thread of the run's own, which ends with the run; or, if it is `shared`, that of the process. Resources
    stay open from one run to the next, and a client for asyncio works only on the event loop that it was first used
    on: so async nodes that take resources are all awaited on the same one.
    """

    def __init__(self, stop: StopRequest, shared: bool = False) -> None:
        self._stop = stop
        # A node on the loop of the process that runs this graph blocks that loop until the run is over.
        self._shared = shared and not process_loop.is_here()
        self._closing = False
        self._is_ended = False
        self._thread: EventLoopThread | None = None
        self._tasks: set[Task[None]] = set()
        self._ended = taken_lock()

    def run(self, task: NodeContext, result: Awaitable[Any]) -> Any:
        """Await a node's result on the event loop, within its timeout, and return its outcome."""
        outcomes: list[Any] = []
        done = taken_lock()

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
            assert self._thread is not None
            self._thread.call_soon(lambda: begun[0].cancel())
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
        """Cancel what still runs, and end the thread if it is the run's own. It may be called again."""
        self._closing = True
        if self._thread is None:
            return
        if not self._shared:
            ended = self._thread.close(CLOSE_TIMEOUT)
        else:
            self._thread.call_soon(self._cancel_tasks)
            # The mark is for a second call: the first one may have been interrupted right after it took the lock.
            ended = self._is_ended or self._ended.acquire(True, CLOSE_TIMEOUT) or self._is_ended
        if not ended:
            from logging import getLogger

            getLogger("limpet.run").warning("an async node blocks its event loop; its thread is abandoned")

    def _begin(self, work: Callable[[], Coroutine[Any, Any, None]], begun: list[Task[None]]) -> None:
        """Have the event loop run a coroutine as a task, which is then added to `begun`."""
        if self._thread is None:
            self._thread = process_loop.thread if self._shared else EventLoopThread("limpet-async")
        thread = self._thread
        thread.start()

        def create_task() -> None:
            assert thread.loop is not None
            loops_with_runs.add(thread.loop)
            _RUN.set(self)
            task = thread.loop.create_task(work())
            begun.append(task)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        thread.call_soon(create_task)

    def _cancel_tasks(self) -> None:
        """Cancel the tasks of this run, on a loop that others use, too."""
        import asyncio

        assert self._thread is not None
        loop = self._thread.loop
        assert loop is not None
        running = self._tasks | {task for task in asyncio.all_tasks(loop) if _owner(task) is self}
        for task in running:
            task.cancel()

        async def wait() -> None:
            await asyncio.gather(*running, return_exceptions=True)
            self._is_ended = True
            self._ended.release()

        self._tasks = {loop.create_task(wait())}


def _owner(task: Task[Any]) -> LoopThread | None:
    """The run that a task belongs to, where Python tells: from 3.12 on."""
    context = getattr(task, "get_context", None)
    return None if context is None else context().get(_RUN)
