"""Calling nodes beside each other, for the synchronous driver.

Sync nodes run in threads: those of a thread pool that the user gave, or the crew's own, which are started as they
are needed and end with the run. An executor of another kind, such as a process pool, is handed functions and plain
data. Async nodes run on the event loop that the driver keeps for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextvars import copy_context
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from limpet.engine.drivers.call import (
    POOL,
    Interrupted,
    attempt,
    attempt_elsewhere,
    attempt_in_turn,
    in_threads,
    is_awaitable,
)
from limpet.engine.drivers.loop_thread import EventLoop
from limpet.engine.leases.lease_client import StopRequest
from limpet.engine.loop.commands import Cancelled, Failed
from limpet.engine.node_context.node_context import NodeContext
from limpet.engine.node_context.scope import Guard

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor
    from contextvars import Context

Outcomes = list[tuple[NodeContext | None, Any]]
"""What came of calls; of none, but the run is asked to stop, where the task is None."""


class Crew:
    """Nodes that run beside each other, and those who run them."""

    def __init__(
        self, executor: Executor | None, guard: Guard, stop: StopRequest, events: Callable[[], EventLoop]
    ) -> None:
        if executor is POOL.get():
            executor = None
        self._executor, self._guard, self._stop, self._events = executor, guard, stop, events
        self._pool = executor if executor is not None and in_threads(executor) else None
        self._todo: SimpleQueue[tuple[Context, NodeContext] | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[NodeContext | None, Any]] = SimpleQueue()
        self._threads = 0
        self._free: deque[None] = deque()  # one for each thread that waits for something to do
        self._running: set[NodeContext] = set()

    def begin(self, tasks: Sequence[NodeContext]) -> None:
        """Have nodes called; what comes of each is there to be gathered."""
        if not self._running:
            self._guard.take()
            self._stop.wake = self._wake
        self._running.update(tasks)
        for task in tasks:
            function = task.plan_node.function
            if self._stop.asked:
                self._done.put((task, Cancelled()))
            elif function is None or function.is_async:
                outcome = copy_context().run(attempt, task)
                if is_awaitable(outcome):
                    self._events().begin(task, outcome, self._done.put)
                else:
                    self._done.put((task, outcome))
            elif self._pool is not None:
                self._submit(task)
            else:
                self._todo.put((copy_context(), task))
                self._have_served()

    def gather(self, seconds: float | None) -> Outcomes:
        """Wait until a node is done, or for so many seconds; what came of all that are done."""
        self._guard.give()
        found: Outcomes = []
        try:
            found.append(self._done.get(timeout=seconds))
            while True:
                found.append(self._done.get_nowait())
        except Empty:
            pass
        finally:
            self._guard.take()
        gathered = [each for each in found if self._is_over(*each)]
        self._running.difference_update(task for task, _ in gathered if task is not None)
        if not self._running:
            self._rest()
        return gathered

    def let_others(self) -> None:
        """Let nodes that run keep what they want kept, while somebody else has the loop."""
        if self._running:
            self._guard.give()

    def go_on(self) -> None:
        """The loop has its turn again."""
        if self._running:
            self._guard.take()

    def close(self) -> None:
        """Let go of nodes that still run: nobody hears any more of what comes of them."""
        for _ in range(self._threads):
            self._todo.put(None)
        if self._running:
            for task in self._running:
                task.close()
            self._running.clear()
            self._rest()

    def _rest(self) -> None:
        self._stop.wake = None
        if self._guard.with_loop:
            self._guard.give()

    def _wake(self) -> None:
        self._done.put((None, Cancelled()))

    def _is_over(self, task: NodeContext | None, outcome: Any) -> bool:
        """Whether a call is over; what a sync function returned may still have to be awaited."""
        if isinstance(outcome, Interrupted):
            raise outcome.error
        if task is not None and type(outcome) is not dict and is_awaitable(outcome):
            self._events().begin(task, outcome, self._done.put)
            return False
        return True

    def _submit(self, task: NodeContext) -> None:
        assert self._pool is not None
        try:
            self._pool.submit(self._work, copy_context(), task)
        except Exception as error:  # it was shut down
            self._done.put((task, Failed(error)))

    def _have_served(self) -> None:
        """See to it that a thread takes what is to be done next: one that is free, or a new one."""
        try:
            self._free.pop()
        except IndexError:
            self._threads += 1
            Thread(target=self._serve, name=f"limpet-{self._threads}", daemon=True).start()

    def _serve(self) -> None:
        while (job := self._todo.get()) is not None:
            self._work(*job)
            self._free.append(None)

    def _work(self, context: Context, task: NodeContext) -> None:
        try:
            if self._executor is not self._pool:
                assert self._executor is not None
                outcome = context.run(attempt_elsewhere, self._executor, task, self._stop)
            else:
                outcome = context.run(attempt_in_turn, task, self._stop, self._pool)
        except BaseException as error:
            outcome = Interrupted(error)
        self._done.put((task, outcome))
