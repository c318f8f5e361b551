"""Calling a node: whatever it does comes back as an outcome, so that the drivers only have to wait."""

from __future__ import annotations

from collections.abc import Awaitable
from contextvars import copy_context
from threading import Thread
from typing import Any

from holdfast.engine.commands import Asked, Failed
from holdfast.engine.questions import Pause
from holdfast.engine.task import CURRENT, Task
from holdfast.errors import NodeTimeout


def attempt(task: Task) -> Any:
    """Call the node here: what it returned, a `Failed`, an `Asked`, or something to be awaited.

    The task stays the current one of this context; the driver puts back what was before.
    """
    CURRENT.set(task)
    direct = task.plan_node.direct
    try:
        return task.call() if direct is None else direct(task.state)
    except Pause as asked:
        return Asked(asked.question, asked.note)
    except Exception as error:
        return Failed(error)


def attempt_within(timeout: float, task: Task) -> Any:
    """The same in a thread of its own, which is left behind if it takes more than so many seconds."""
    outcomes: list[Any] = []
    interrupts: list[BaseException] = []
    context = copy_context()

    def work() -> None:
        try:
            outcomes.append(context.run(attempt, task))
        except BaseException as interrupt:
            interrupts.append(interrupt)

    thread = Thread(target=work, name=f"holdfast-{task.node}", daemon=True)
    thread.start()
    thread.join(timeout)
    if interrupts:
        raise interrupts[0]
    return outcomes[0] if outcomes else timed_out(task)


async def awaited(task: Task, result: Awaitable[Any]) -> Any:
    """Await what an async node returned, for the same outcomes."""
    from asyncio import CancelledError, current_task

    CURRENT.set(task)
    try:
        return await result
    except Pause as asked:
        return Asked(asked.question, asked.note)
    except Exception as error:
        return Failed(error)
    except CancelledError as error:
        driver = current_task()
        if driver is not None and driver.cancelling():
            raise
        return Failed(error)


def is_awaitable(result: Any) -> bool:
    """Whether a node's result is still to be awaited."""
    return type(result) is not dict and hasattr(result, "__await__")


def timed_out(task: Task) -> Failed:
    """The outcome of a node that took too long. A thread that still runs it can keep or ask nothing any more."""
    task.close()
    seconds = task.plan_node.timeout
    return Failed(NodeTimeout(f"node {task.node!r} took longer than its timeout of {seconds} s", task.run_id))
