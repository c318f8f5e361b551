"""Calling a node: whatever it does comes back as an outcome, so that the drivers only have to wait."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar, copy_context
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from limpet.engine.leases.held_lease import StopRequest
from limpet.engine.loop.driver_commands import Asked, Cancelled, Failed, Sleeping, Waiting
from limpet.engine.node_context.call_scope import CURRENT
from limpet.engine.node_context.node_context import NodeContext
from limpet.engine.node_context.questions import CallAbandoned, Pause, PostAwaited, Sleep
from limpet.errors import NodeTimeout
from limpet.threads.workers import start_thread

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task
    from concurrent.futures import Executor

    from limpet.observe.opentelemetry.spans import StepSpan, Stretch

CURRENT_EXECUTOR: ContextVar[Executor | None] = ContextVar("limpet.pool", default=None)
"""The user's executor that this thread belongs to. A graph that runs here must not wait for a thread of the same
executor: all of them may be waiting too."""

loops_with_runs: WeakSet[AbstractEventLoop] = WeakSet()
"""The event loops that execute runs or call nodes. A forked child must not return to one: see `forked_child.py`."""

_forked_in: NodeContext | None = None
"""In a child process that a node has forked: the call of that node, after which only its parent continues."""


class Interrupted(NamedTuple):
    """A call ended with an exception that is for the whole process, such as `SystemExit`."""

    error: BaseException


def call_node(task: NodeContext, in_span: bool = False) -> Any:
    """Call the node here: what it returned, a `Failed`, `Asked` or `Sleeping`, or something to be awaited.

    The task stays the current one of this context; the driver restores the one before. If the run is traced, the
    span of the call is the current one meanwhile; `in_span` says that it is already.
    """
    if task.scope.stretch is not None and not in_span:
        span = _span_of(task)
        entered = span.enter()
        try:
            return call_node(task, True)
        finally:
            span.leave(entered)
    CURRENT.set(task)
    direct = task.plan_node.direct
    try:
        if direct is None:
            returned = task.call()
        else:
            returned = direct(task.state)
    except BaseException as error:
        return _outcome_of(task, error, is_failure)
    if task is _forked_in:
        _end_child()
    return returned


def _span_of(task: NodeContext) -> StepSpan | Stretch:
    """The span of a call in a run that is traced: that of the run, for a condition or a planner."""
    stretch = task.scope.stretch
    assert stretch is not None
    return getattr(task, "step_span", stretch)


def _outcome_of(
    task: NodeContext, error: BaseException, is_failure: Callable[[BaseException], bool]
) -> Asked | Sleeping | Waiting | Cancelled | Failed:
    """The outcome of a node that raised this. What isn't an `Exception` is raised again, unless it `is_failure`."""
    if task is _forked_in:
        _end_child(error)
    match error:
        case Pause():
            return Asked(error.question, error.note)
        case Sleep():
            return Sleeping(error.timer, error.until)
        case PostAwaited():
            return Waiting(error.wait)
        case CallAbandoned():
            return Cancelled()
        case Exception():
            return Failed(error)
    if not is_failure(error):
        raise error
    return Failed(error)


def is_failure(error: BaseException) -> bool:
    """Whether what a sync node raised is its failure, although it isn't an `Exception`.

    `KeyboardInterrupt`, `SystemExit` and the like are for the caller of the run: they pass through, and the run stays
    where it is. But no caller cancels or closes a function that isn't a coroutine, so the node did that itself.
    """
    from asyncio import CancelledError

    return isinstance(error, (CancelledError, GeneratorExit))


def call_where_abandonable(task: NodeContext, stop: StopRequest) -> Any:
    """`call_node` in a new thread. A call that exceeds its timeout, or the run's deadline, is abandoned there."""
    outcomes: list[Any] = []
    context = copy_context()
    ended = CallEnd(stop)

    def work() -> None:
        try:
            outcomes.append(context.run(call_node, task))
        except BaseException as error:
            outcomes.append(Interrupted(error))
        ended.set()

    # A daemon: nothing can end a Python thread, and one that never returns must not keep the process alive.
    start_thread(work, f"limpet-{task.node}")
    ended.wait(task.plan_node.timeout)
    if not outcomes:
        return timed_out(task, stop.is_overdue)
    if isinstance(outcomes[0], Interrupted):
        raise outcomes[0].error
    return outcomes[0]


class CallEnd:
    """The end of a call in another thread, for which one thread waits: not longer than until the run's deadline."""

    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop
        self._unended = Lock()
        self._unended.acquire()

    def set(self) -> None:
        """The call has ended, or is no longer waited for."""
        with suppress(RuntimeError):  # it was called before
            self._unended.release()

    def wait(self, timeout: float | None) -> None:
        """Wait for the end, for this many seconds at most."""
        stop = self._stop
        # A deadline that passes between the two lines is seen by one of them.
        stop.interrupts.add(self._give_up)
        try:
            if not stop.is_overdue:
                self._unended.acquire(True, -1 if timeout is None else timeout)
        finally:
            stop.interrupts.discard(self._give_up)

    def _give_up(self) -> None:
        if self._stop.is_overdue:
            self.set()


def call_queued_node(task: NodeContext, stop: StopRequest, executor: Executor | None) -> Any:
    """`call_node` in a thread for which the task had to queue: its timeout begins now, and it may be obsolete."""
    if stop.asked or task.scope.current_call is not task:
        return Cancelled()
    CURRENT_EXECUTOR.set(executor)
    if task.plan_node.timeout is None and not stop.has_deadline:
        return call_node(task)
    return call_where_abandonable(task, stop)


async def await_node(task: NodeContext, result: Awaitable[Any], interrupt: NodeInterrupt) -> Any:
    """Await what an async node returned, for the same outcomes. If the run is cancelled, the node is interrupted.

    Whatever it raises from then on isn't a failure: it may be the consequence.
    """
    CURRENT.set(task)
    # Assignments, not a call: this is for each async node, and very few are interrupted.
    interrupt.cancelled_before = interrupt.driver.cancelling()
    interrupt.is_armed = True
    stop = interrupt.stop
    # A request that is made between the two lines is seen by one of them.
    if stop.asked and not stop.leaving:
        interrupt.request()
    span = None if task.scope.stretch is None else _span_of(task)
    entered = None if span is None else span.enter()
    try:
        returned = await result
    except BaseException as error:
        is_only_interrupted = interrupt.end()
        if stop.cancels and is_only_interrupted and task is not _forked_in and _may_come_of_cancel(error):
            return Cancelled()
        return _outcome_of(task, error, _cancelled_itself)
    finally:
        if span is not None:
            span.leave(entered)
    if interrupt.is_made:
        interrupt.end()
    interrupt.is_armed = False
    if task is _forked_in:
        _end_child()
    return returned


class NodeInterrupt:
    """Interrupts the async node that a driver awaits when its run is cancelled: the node sees `CancelledError`.

    That happens once, so that the node can clean up, however often the run is asked to stop. As `asyncio.timeout`
    does, it cancels the task that awaits the node, and takes that back when the node has ended.
    """

    __slots__ = ("_loop", "cancelled_before", "driver", "is_armed", "is_made", "stop")

    driver: Task[Any]
    """The task that awaits the node."""

    def __init__(self, stop: StopRequest) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self.stop = stop
        self.cancelled_before = 0
        """How often that task had been cancelled before it awaited the node."""
        self.is_armed = False  # whether a node is awaited
        self.is_made = False  # whether it was interrupted
        self.use_current_task()
        stop.interrupts.add(self.request)

    def use_current_task(self) -> None:
        """The current task awaits the nodes from now on."""
        from asyncio import current_task

        task = current_task()
        assert task is not None
        self.driver = task

    def request(self) -> None:
        """Interrupt the node, if one is awaited. May be called by any thread."""
        with suppress(RuntimeError):  # the loop is closed, so no node runs any longer
            self._loop.call_soon_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        if self.is_armed and not self.is_made:
            self.is_made = True
            self.driver.cancel()

    def end(self) -> bool:
        """The node has ended. Says whether nothing else has cancelled the task meanwhile."""
        self.is_armed = False
        if self.is_made:
            self.is_made = False
            self.driver.uncancel()
        return self.driver.cancelling() <= self.cancelled_before

    def close(self) -> None:
        """No more node is awaited."""
        self.is_armed = False
        self.stop.interrupts.discard(self.request)


def _may_come_of_cancel(error: BaseException) -> bool:
    """Whether what a node raised after its run was cancelled doesn't matter. It is logged if it isn't the usual."""
    from asyncio import CancelledError

    if isinstance(error, (Pause, Sleep, PostAwaited, KeyboardInterrupt, SystemExit, GeneratorExit)):
        return False
    if not isinstance(error, (CancelledError, CallAbandoned)):
        from logging import getLogger

        getLogger("limpet.run").info("a node raised %s when its run was cancelled", type(error).__name__)
    return True


def _cancelled_itself(error: BaseException) -> bool:
    """Whether an async node raised `CancelledError` itself, which is its failure. Else its task is cancelled."""
    from asyncio import CancelledError, current_task

    driver = current_task()
    return isinstance(error, CancelledError) and (driver is None or not driver.cancelling())


def is_awaitable(result: Any) -> bool:
    """Whether a node's result has to be awaited. Most are dicts, which the first test sorts out fast."""
    return type(result) is not dict and hasattr(result, "__await__")


def timed_out(task: NodeContext, is_stopped: bool = False) -> Failed | Cancelled:
    """The outcome of a node that took too long. A thread that still runs it can't save or ask anything any more.

    `is_stopped` says that the node hasn't failed: its run was stopped, and it isn't waited for any longer.
    """
    task.close()
    if is_stopped:
        return Cancelled()
    seconds = task.plan_node.timeout
    return Failed(NodeTimeout(f"node {task.node!r} took longer than its timeout of {seconds} s", task.run_id))


def uses_threads(executor: Executor) -> bool:
    """Whether an executor runs calls in threads of this process."""
    from concurrent.futures import ThreadPoolExecutor

    return isinstance(executor, ThreadPoolExecutor)


def _end_child(error: BaseException | None = None) -> None:
    from limpet.engine.leases.forked_child import end_child

    end_child(error)


def _after_fork_in_child() -> None:
    global _forked_in
    _forked_in = CURRENT.get()
    running = [loop for loop in loops_with_runs if loop.is_running()]
    if _forked_in is not None or running:
        from limpet.engine.leases.forked_child import prepare_child

        prepare_child(_forked_in, running)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
