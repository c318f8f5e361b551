"""Calling a node: whatever it does comes back as an outcome, so that the drivers only have to wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar, copy_context
from threading import Thread
from time import sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from limpet.engine.leases.lease_client import StopRequest
from limpet.engine.loop.commands import Asked, Asleep, Cancelled, Failed
from limpet.engine.node_context.node_context import CURRENT, NodeContext
from limpet.engine.node_context.questions import CallAbandoned, Pause, Sleep
from limpet.errors import NodeTimeout, UnstorableValue, UsageError
from limpet.graphs.state import Notes, State, TrackedState
from limpet.journal.encoding.codec import encode

if TYPE_CHECKING:
    from concurrent.futures import Executor


POOL: ContextVar[Executor | None] = ContextVar("limpet.pool", default=None)
"""The executor whose thread this is: whoever runs a graph here can't wait for others of the same."""


class Interrupted(NamedTuple):
    """A call ended with something that is for the whole process, such as `SystemExit`."""

    error: BaseException


def attempt(task: NodeContext) -> Any:
    """Call the node here: what it returned, a `Failed`, `Asked` or `Asleep`, or something to be awaited.

    The task stays the current one of this context; the driver puts back what was before.
    """
    CURRENT.set(task)
    direct = task.plan_node.direct
    try:
        return task.call() if direct is None else direct(task.state)
    except Pause as asked:
        return Asked(asked.question, asked.note)
    except Sleep as asleep:
        return Asleep(asleep.timer, asleep.until)
    except CallAbandoned:
        return Cancelled()
    except Exception as error:
        return Failed(error)


def attempt_within(timeout: float, task: NodeContext) -> Any:
    """The same in a thread of its own, which is left behind if it takes more than so many seconds."""
    outcomes: list[Any] = []
    interrupts: list[BaseException] = []
    context = copy_context()

    def work() -> None:
        try:
            outcomes.append(context.run(attempt, task))
        except BaseException as interrupt:
            interrupts.append(interrupt)

    thread = Thread(target=work, name=f"limpet-{task.node}", daemon=True)
    thread.start()
    thread.join(timeout)
    if interrupts:
        raise interrupts[0]
    return outcomes[0] if outcomes else timed_out(task)


def attempt_in_turn(task: NodeContext, stop: StopRequest, pool: Executor | None) -> Any:
    """The same in a thread that had to come free first: if it is still wanted, and with its timeout."""
    if stop.asked or task.scope.task is not task:
        return Cancelled()
    POOL.set(pool)
    timeout = task.plan_node.timeout
    return attempt(task) if timeout is None else attempt_within(timeout, task)


def attempt_elsewhere(executor: Executor, task: NodeContext, stop: StopRequest) -> Any:
    """The same by an executor that may be another process: the function and plain data go there and come back."""
    from concurrent.futures import TimeoutError as TookTooLong

    function = task.plan_node.function
    assert function is not None
    takes = {thing: name for name, thing in function.takes}
    if "ctx" in takes or "graph" in takes:
        problem = f"node {task.node!r} takes ctx or graph, which can't go to {type(executor).__name__}"
        return Failed(UsageError(problem), again=False)
    own = task.plan_node.work is None
    place = None if function.plain else takes.get("state", "") if own else ""
    things = tuple(each for each in function.takes if not own or each[1] != "state")
    named = function._replace(takes=things).arguments(task.offer)
    if not own and "state" in takes:
        named[takes["state"]] = dict(named[takes["state"]])
    state, reducers = dict(dict.items(task.state)), list(task.state.notes.reducers)
    try:
        future = executor.submit(call_plainly, function.call, state, reducers, place, named)
        while not (future.running() or future.done()):  # its time begins when it does
            if (stop.asked or task.scope.task is not task) and future.cancel():
                return Cancelled()
            sleep(0.005)
        returned, changed, deleted = future.result(task.plan_node.timeout)
        for key, value in changed.items():
            task.state[key] = value
        for key in deleted:
            del task.state[key]
        return returned
    except TookTooLong:
        future.cancel()
        return timed_out(task)
    except Exception as error:
        return Failed(error)


def call_plainly(
    function: Callable[..., Any],
    given: dict[str, Any],
    reducers: list[str],
    place: str | None,
    named: dict[str, Any],
) -> tuple[Any, dict[str, Any], list[str]]:
    """Call a node's function with a copy of the state: what it returned, what it changed there and what it deleted.

    `place` is the name that it takes the state by: None if that is its only argument, empty if it takes none.
    """
    CURRENT.set(None)
    before: dict[str, bytes | None] = {}

    def watch(key: str, value: Any) -> Any:
        before[key] = _looks(value)
        return value

    state = TrackedState(given)
    state.notes = notes = Notes(State(), dict.fromkeys(reducers), watch)
    returned = function(state) if place is None else function(**named, **({place: state} if place else {}))
    changed = {key: dict.__getitem__(state, key) for key, there in notes.written.items() if there}
    for key, looked in before.items():
        if key not in notes.written and _looks(dict.get(state, key)) != looked:
            changed[key] = dict.__getitem__(state, key)
    return returned, changed, [key for key, there in notes.written.items() if not there]


def _looks(value: Any) -> bytes | None:
    try:
        return encode(value)
    except UnstorableValue:
        return None


async def awaited(task: NodeContext, result: Awaitable[Any]) -> Any:
    """Await what an async node returned, for the same outcomes."""
    CURRENT.set(task)
    try:
        return await result
    except Pause as asked:
        return Asked(asked.question, asked.note)
    except Sleep as asleep:
        return Asleep(asleep.timer, asleep.until)
    except CallAbandoned:
        return Cancelled()
    except Exception as error:
        return Failed(error)
    except BaseException as error:
        from asyncio import CancelledError, current_task

        driver = current_task()
        if not isinstance(error, CancelledError) or (driver is not None and driver.cancelling()):
            raise
        return Failed(error)


def is_awaitable(result: Any) -> bool:
    """Whether a node's result is still to be awaited."""
    return type(result) is not dict and hasattr(result, "__await__")


def timed_out(task: NodeContext) -> Failed:
    """The outcome of a node that took too long. A thread that still runs it can keep or ask nothing any more."""
    task.close()
    seconds = task.plan_node.timeout
    return Failed(NodeTimeout(f"node {task.node!r} took longer than its timeout of {seconds} s", task.run_id))


def in_threads(executor: Executor) -> bool:
    """Whether an executor runs what it is given in threads of this process."""
    from concurrent.futures import ThreadPoolExecutor

    return isinstance(executor, ThreadPoolExecutor)
