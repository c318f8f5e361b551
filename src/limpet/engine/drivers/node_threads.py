"""Running nodes in parallel, for the synchronous driver.

Sync nodes run in threads: those of a thread pool that the user gave, or threads that are started as needed and end
with the run. An executor of another kind, such as a process pool, gets functions and plain data. Async nodes run on
the event loop that the driver keeps for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextvars import copy_context
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from limpet.engine.drivers.loop_thread import LoopThread
from limpet.engine.drivers.node_call import (
    CURRENT_EXECUTOR,
    Interrupted,
    call_node,
    call_queued_node,
    is_awaitable,
    uses_threads,
)
from limpet.engine.leases.held_lease import StopRequest
from limpet.engine.loop.driver_commands import Cancelled, Failed
from limpet.engine.node_context.call_scope import JournalLock
from limpet.engine.node_context.node_context import NodeContext
from limpet.threads.workers import start_threads

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor
    from contextvars import Context

    from limpet.engine.leases.run_output import LiveEvents

Outcomes = list[tuple[NodeContext | None, Any]]
"""Calls and their outcomes. Without a call, `Cancelled` says that the run is asked to stop, and None that a node has
emitted something."""


class NodeThreads:
    """Nodes that run in parallel, and the threads that run them.

    While nodes run, the loop owns the journal lock, except while it waits: then nodes
    can save what they keep with `once`.
    """

    def __init__(
        self,
        executor: Executor | None,
        journal_lock: JournalLock,
        stop: StopRequest,
        loop_thread: Callable[[], LoopThread],
        live: LiveEvents | None,
    ) -> None:
        # A graph inside a node of the same executor: its threads may all wait for this run, so it uses its own.
        if executor is CURRENT_EXECUTOR.get():
            executor = None
        self._executor = executor
        self._thread_pool: Executor | None = None
        if executor is not None and uses_threads(executor):
            self._thread_pool = executor
        self._journal_lock = journal_lock
        self._stop = stop
        self._loop_thread = loop_thread
        self._live = live
        self._todo: SimpleQueue[tuple[Context, NodeContext] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[NodeContext | None, Any]] = SimpleQueue()
        self._threads = 0
        self._idle_threads: deque[None] = deque()
        """One item for each own thread that waits for work: a deque is a counter that threads can share."""
        self._running: set[NodeContext] = set()

    @property
    def busy(self) -> bool:
        """Whether nodes are running. Then the loop owns the journal lock."""
        return bool(self._running)

    def start(self, tasks: Sequence[NodeContext]) -> None:
        """Start to call nodes; `gather` returns their outcomes."""
        if not self._running:
            self._journal_lock.acquire()
            self._stop.wake = self._wake
            if self._live is not None:
                self._live.wake = self._wake_for_event
        self._running.update(tasks)
        new_threads: list[Thread] = []
        for task in tasks:
            function = task.plan_node.function
            if self._stop.asked:
                self._done.put((task, Cancelled()))
            elif function is None or function.is_async:
                # Calling an async function only makes its coroutine, so it needs no thread.
                outcome = copy_context().run(call_node, task)
                if is_awaitable(outcome):
                    self._loop_thread().start(task, outcome, self._done.put)
                else:
                    self._done.put((task, outcome))
            elif self._thread_pool is not None:
                self._submit(self._thread_pool, task)
            else:
                self._todo.put((copy_context(), task))
                self._ensure_thread(new_threads)
        if new_threads:
            start_threads(new_threads)

    def gather(self, seconds: float | None) -> Outcomes:
        """Wait until a node is done, or for this many seconds; returns the outcomes of all nodes that are done."""
        self._journal_lock.release()
        found: Outcomes = []
        try:
            found.append(self._done.get(timeout=seconds))
            while True:
                found.append(self._done.get_nowait())
        except Empty:
            pass
        finally:
            self._journal_lock.acquire()
        gathered: Outcomes = []
        for task, outcome in found:
            if isinstance(outcome, Interrupted):
                raise outcome.error
            if task is None and outcome is None:
                continue  # a node has emitted something
            if task is not None:
                if is_awaitable(outcome):
                    # A sync function returned it, so the call isn't over.
                    self._loop_thread().start(task, outcome, self._done.put)
                    continue
                self._running.discard(task)
            gathered.append((task, outcome))
        if not self._running:
            self._all_ended()
        return gathered

    def release_journal_lock(self) -> None:
        """Let running nodes save what they keep, while the caller of the run has control."""
        if self._running:
            self._journal_lock.release()

    def retake_journal_lock(self) -> None:
        """The loop has control again."""
        if self._running:
            self._journal_lock.acquire()

    def close(self) -> None:
        """Abandon nodes that still run: their outcomes are ignored. Own threads end when their node does."""
        for _ in range(self._threads):
            self._todo.put(None)
        if self._running:
            for task in self._running:
                task.close()
            self._running.clear()
            self._all_ended()

    def _all_ended(self) -> None:
        self._stop.wake = None
        if self._live is not None:
            self._live.wake = None
        if self._journal_lock.held_by_loop:
            self._journal_lock.release()

    def _wake(self) -> None:
        self._done.put((None, Cancelled()))

    def _wake_for_event(self) -> None:
        self._done.put((None, None))

    def _submit(self, thread_pool: Executor, task: NodeContext) -> None:
        try:
            thread_pool.submit(self._call, copy_context(), task)
        except Exception as error:  # the user has shut it down
            self._done.put((task, Failed(error)))

    def _ensure_thread(self, new_threads: list[Thread]) -> None:
        """Make sure that a thread takes the call that was queued: an idle one, or a new one, still to be started."""
        try:
            self._idle_threads.pop()
        except IndexError:
            self._threads += 1
            new_threads.append(Thread(target=self._serve, name=f"limpet-{self._threads}", daemon=True))

    def _serve(self) -> None:
        while (job := self._todo.get()) is not None:
            self._call(*job)
            self._idle_threads.append(None)

    def _call(self, context: Context, task: NodeContext) -> None:
        try:
            if self._executor is not self._thread_pool:
                from limpet.engine.drivers.executor_call import call_in_executor

                assert self._executor is not None
                outcome = context.run(call_in_executor, self._executor, task, self._stop)
            else:
                outcome = context.run(call_queued_node, task, self._stop, self._thread_pool)
        except BaseException as error:
            # It is for the thread of the run, which raises it again when it gathers.
            outcome = Interrupted(error)
        self._done.put((task, outcome))
