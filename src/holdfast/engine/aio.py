"""The asyncio driver: carries out what the loop asks without ever blocking the event loop.

Async nodes are awaited where they are; sync nodes and commits go to threads. Commits of all runs on an event
loop gather while one is being written, and go to the store together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import nullcontext, suppress
from contextvars import copy_context
from typing import Any

from holdfast.engine.calling import attempt, attempt_within, awaited, is_awaitable, timed_out
from holdfast.engine.commands import Cancelled, Command, Report, Verdict, Wait
from holdfast.engine.link import Link, Slot, Stop
from holdfast.engine.session import Session
from holdfast.engine.task import CURRENT, Task
from holdfast.journal.store import Commit

_AT_LEISURE = nullcontext()


async def drive(session: Session) -> AsyncGenerator[dict[str, Any] | Verdict, None]:
    """Run a session to its next stop, yielding events and, last, the verdict. Then the lease is given back."""
    loop, link, outer = session.loop(), session.compiled.link, CURRENT.get()
    try:
        command: Command = next(loop)
        while True:
            answer: Any = None
            if type(command) is Task:
                answer = await call(session.stop, command)
            elif type(command) is Commit:
                assert link is not None
                answer = session.stopped(command) if session.stop.asked else None
                if answer is None:
                    answer = session.settle(command, await commit(link, command))
            elif type(command) is Report:
                CURRENT.set(outer)
                yield command.event
            else:
                assert type(command) is Wait
                answer = await sleep(session.stop, command.seconds)
            command = loop.send(answer)
    except StopIteration as end:
        CURRENT.set(outer)
        yield end.value
    finally:
        CURRENT.set(outer)
        if session.held is not None:
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, session.close))


async def call(stop: Stop, task: Task) -> Any:
    """The outcome of a task."""
    if stop.asked:
        return Cancelled()
    function, timeout = task.plan_node.function, task.plan_node.timeout
    try:
        if function is None or function.is_async:
            outcome = attempt(task)
        else:
            outcome = await _in_thread(task, timeout)
        if not is_awaitable(outcome):
            return outcome
        async with asyncio.timeout(timeout) if timeout is not None else _AT_LEISURE:
            return await awaited(task, outcome)
    except TimeoutError:
        return timed_out(task)


async def commit(link: Link, commit: Commit) -> Exception | None:
    """Carry out a commit in a thread, together with those of other runs; here if it only goes to memory."""
    if link.store.abilities.level == "memory":
        return link.commit(commit)
    loop = asyncio.get_running_loop()
    written: asyncio.Future[Exception | None] = loop.create_future()

    def ready(slot: Slot) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, written, slot.outcome)

    if link.commit_later(commit, ready):
        loop.run_in_executor(None, link.flush)
    return await written


async def sleep(stop: Stop, seconds: float) -> Cancelled | None:
    """Let time pass, unless the run is asked to stop."""
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    stop.wake = lambda: loop.call_soon_threadsafe(woken.set)
    try:
        if not stop.asked:
            async with asyncio.timeout(seconds):
                await woken.wait()
    except TimeoutError:
        pass
    finally:
        stop.wake = None
    return Cancelled() if stop.asked else None


def _in_thread(task: Task, timeout: float | None) -> asyncio.Future[Any]:
    """A sync node in a thread, where its time begins when it does, however long it had to queue."""
    loop, context = asyncio.get_running_loop(), copy_context()
    if timeout is None:
        return loop.run_in_executor(None, context.run, attempt, task)
    return loop.run_in_executor(None, context.run, attempt_within, timeout, task)


def _resolve(written: asyncio.Future[Exception | None], outcome: Exception | None) -> None:
    if not written.done():
        written.set_result(outcome)
