"""Running nodes for the asyncio driver: async nodes as tasks of the event loop, sync nodes in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from limpet.engine.drivers.node_call import (
    Interrupted,
    NodeInterrupt,
    await_node,
    call_node,
    call_queued_node,
    call_where_abandonable,
    is_awaitable,
    timed_out,
    uses_threads,
)
from limpet.engine.drivers.sync_driver import make_children
from limpet.engine.leases.held_lease import StopRequest
from limpet.engine.loop.driver_commands import NOT_DONE, Cancelled, Failed
from limpet.engine.node_context.node_context import NodeContext
from limpet.engine.sessions.session import Session

if TYPE_CHECKING:
    from concurrent.futures import Executor

LOCK_CHECK_INTERVAL = 0.001
"""Seconds between two tries to acquire the journal lock. A node holds it for as long as it writes to the store."""

_NO_TIMEOUT = nullcontext()


class NodeTasks:
    """Nodes that run in parallel on an event loop.

    While nodes run, the loop owns the journal lock, except while it waits: then nodes
    can save what they keep with `once`.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        session.make_children = make_children
        self._journal_lock = session.journal_lock
        self._stop = session.stop
        self._live = session.live
        self._running: dict[asyncio.Task[Any], NodeContext] = {}
        self._stop_requests: list[tuple[NodeContext | None, Any]] = []
        self._something_done = asyncio.Event()
        self._own_threads: Executor | None = None

    @property
    def busy(self) -> bool:
        """Whether nodes are running. Then the loop owns the journal lock."""
        return bool(self._running)

    async def start(self, tasks: Sequence[NodeContext], apart: bool = False) -> None:
        """Start to call nodes; `gather` returns their outcomes. One that runs `apart` doesn't use the executor."""
        if not self._running:
            await self._take_journal_lock()
            loop = asyncio.get_running_loop()
            self._stop.wake = lambda: loop.call_soon_threadsafe(self._wake)
            if self._live is not None:
                self._live.wake = lambda: loop.call_soon_threadsafe(self._something_done.set)
        for task in tasks:
            call = asyncio.create_task(self._call(task, apart), name=f"limpet {task.node}")
            self._running[call] = task
            call.add_done_callback(self._on_done)

    async def gather(self, seconds: float | None) -> list[tuple[NodeContext | None, Any]]:
        """Wait until a node is done, or for this many seconds; returns the outcomes of all nodes that are done."""
        self._journal_lock.release()
        try:
            async with asyncio.timeout(seconds) if seconds is not None else _NO_TIMEOUT:
                await self._something_done.wait()
        except TimeoutError:
            pass
        finally:
            await self._take_journal_lock()
        self._something_done.clear()
        found = self._stop_requests
        self._stop_requests = []
        for call in [call for call in self._running if call.done()]:
            if call.cancelled():
                outcome: Any = Failed(asyncio.CancelledError())
            else:
                outcome = call.result()
            if isinstance(outcome, Interrupted):
                raise outcome.error
            found.append((self._running.pop(call), outcome))
        if not self._running:
            self._all_ended()
        return found

    def release_journal_lock(self) -> None:
        """Let running nodes save what they keep, while the caller of the run has control."""
        if self._running:
            self._journal_lock.release()

    async def retake_journal_lock(self) -> None:
        """The loop has control again."""
        if self._running:
            await self._take_journal_lock()

    async def close(self) -> None:
        """Abandon nodes that still run: tasks are cancelled, and the outcomes of threads are ignored."""
        self._session.leave_children()
        if self._running:
            for call, task in self._running.items():
                call.remove_done_callback(self._on_done)
                call.cancel()
                task.scope.current_call = None
            cancelled = list(self._running)
            self._running.clear()
            self._all_ended()
            await asyncio.gather(*cancelled, return_exceptions=True)
        if self._own_threads is not None:
            self._own_threads.shutdown(wait=False, cancel_futures=True)

    def call_in_thread(self, task: NodeContext) -> asyncio.Future[Any]:
        """Call a sync node in a thread of the user's executor, or of this run."""
        given = self._session.compiled.executor
        if given is not None and uses_threads(given):
            return self._call_queued(task, given)
        if self._own_threads is None:
            from concurrent.futures import ThreadPoolExecutor

            # Not the default threads of the event loop: they are few, and commits and other code wait for them.
            self._own_threads = ThreadPoolExecutor(self._session.compiled.max_concurrency, "limpet")
        if given is None:
            return self._call_queued(task, self._own_threads)
        from limpet.engine.drivers.executor_call import call_in_executor

        loop = asyncio.get_running_loop()
        context = copy_context()
        return loop.run_in_executor(self._own_threads, context.run, call_in_executor, given, task, self._stop)

    def _call_queued(self, task: NodeContext, executor: Executor) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        context = copy_context()
        return loop.run_in_executor(executor, context.run, call_queued_node, task, self._stop, executor)

    async def call_apart(self, task: NodeContext) -> Any:
        """Call a node as a task of its own, or wait on for one that was begun before.

        Returns its outcome, or `NOT_DONE` if it has emitted something, or the run is asked to stop.
        """
        if not self._running:
            await self.start([task], apart=True)
        for done, outcome in await self.gather(None):
            if done is task:
                return outcome
        return NOT_DONE

    async def _call(self, task: NodeContext, apart: bool) -> Any:
        """The outcome of a node. What is to end the process is for the task of the run, which raises it again."""
        interrupt = NodeInterrupt(self._stop)
        try:
            return await call_on_loop(interrupt, task, None if apart else self)
        except (KeyboardInterrupt, SystemExit) as error:
            # Out of this task, it would stop the event loop before any other task could release its run.
            return Interrupted(error)
        finally:
            interrupt.close()

    async def _take_journal_lock(self) -> None:
        """Take the journal lock for the loop. It is polled, because waiting for a lock would block the event loop."""
        while not self._journal_lock.try_acquire():
            await asyncio.sleep(LOCK_CHECK_INTERVAL)

    def _all_ended(self) -> None:
        self._stop.wake = None
        if self._live is not None:
            self._live.wake = None
        if self._journal_lock.held_by_loop:
            self._journal_lock.release()

    def _on_done(self, call: asyncio.Task[Any]) -> None:
        self._something_done.set()

    def _wake(self) -> None:
        self._stop_requests.append((None, Cancelled()))
        self._something_done.set()


async def call_on_loop(
    interrupt: NodeInterrupt, task: NodeContext, node_tasks: NodeTasks | None = None
) -> Any:
    """The outcome of a node. A sync one runs in a thread of `node_tasks`, or else of the event loop."""
    stop = interrupt.stop
    if stop.asked:
        return Cancelled()
    function = task.plan_node.function
    timeout = task.plan_node.timeout
    try:
        if function is None or function.is_async:
            outcome = call_node(task)
        else:
            try:
                if node_tasks is None:
                    call = _call_in_default_thread(task, stop)
                else:
                    call = node_tasks.call_in_thread(task)
            except RuntimeError as error:  # the user has shut the executor down
                return Failed(error)
            outcome = await call
        if not is_awaitable(outcome):
            return outcome
        async with asyncio.timeout(timeout) if timeout is not None else _NO_TIMEOUT:
            return await await_node(task, outcome, interrupt)
    except TimeoutError:
        return timed_out(task, stop.cancels)


def _call_in_default_thread(task: NodeContext, stop: StopRequest) -> asyncio.Future[Any]:
    """Call a sync node in a default thread; its timeout begins with the call, however long it had to queue."""
    loop = asyncio.get_running_loop()
    context = copy_context()
    if task.plan_node.timeout is None and not stop.has_deadline:
        return loop.run_in_executor(None, context.run, call_node, task)
    return loop.run_in_executor(None, context.run, call_where_abandonable, task, stop)
