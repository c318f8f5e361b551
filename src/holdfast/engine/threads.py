"""The synchronous driver: carries out what the loop asks, in the thread that called.

A sync node without a timeout is a plain call: no thread, no queue. A node with a timeout runs in a thread
of its own, since nothing else can be left behind; an async node runs on an event loop that the driver
starts when it meets the first one and keeps for the rest of the run.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Generator
from typing import Any

from holdfast.engine.calling import attempt, attempt_within, awaited, is_awaitable, timed_out
from holdfast.engine.commands import Cancelled, Command, Report, Verdict, Wait
from holdfast.engine.link import Stop
from holdfast.engine.session import Session
from holdfast.engine.task import CURRENT, Task
from holdfast.journal.store import Commit


def drive(session: Session) -> Generator[dict[str, Any], None, Verdict]:
    """Run a session to its next stop, yielding events; returns the verdict. The lease is given back at the end."""
    loop, stop, link = session.loop(), session.stop, session.compiled.link
    waiting, outer = Waiting(), CURRENT.get()
    try:
        command: Command = next(loop)
        while True:
            answer: Any = None
            if type(command) is Task:
                if stop.asked:
                    answer = Cancelled()
                elif (timeout := command.plan_node.timeout) is None:
                    answer = attempt(command)
                else:
                    answer = attempt_within(timeout, command)
                if type(answer) is not dict and is_awaitable(answer):
                    answer = waiting.result_of(command, answer)
            elif type(command) is Commit:
                assert link is not None
                answer = session.stopped(command) if stop.asked else None
                if answer is None:
                    answer = link.commit(command)
                    if answer is not None or command.status is not None:
                        answer = session.settle(command, answer)
            elif type(command) is Report:
                CURRENT.set(outer)
                yield command.event
            else:
                assert type(command) is Wait
                answer = waiting.sleep(stop, command.seconds)
            command = loop.send(answer)
    except StopIteration as end:
        verdict: Verdict = end.value
        return verdict
    finally:
        CURRENT.set(outer)
        try:
            waiting.close()
        finally:
            session.close()


class Waiting:
    """How the synchronous driver waits: for nodes that need more than a call, and for time to pass."""

    __slots__ = ("_events",)

    def __init__(self) -> None:
        self._events: EventLoop | None = None

    def result_of(self, task: Task, result: Awaitable[Any]) -> Any:
        """The outcome of a task whose node is async."""
        if self._events is None:
            self._events = EventLoop()
        return self._events.run(task, result)

    def sleep(self, stop: Stop, seconds: float) -> Cancelled | None:
        """Let time pass, unless the run is asked to stop."""
        event = threading.Event()
        stop.wake = event.set
        if not stop.asked:
            event.wait(seconds)
        stop.wake = None
        return Cancelled() if stop.asked else None

    def close(self) -> None:
        """End what was started."""
        if self._events is not None:
            self._events.close()


class EventLoop:
    """An event loop in a thread, for the async nodes of a synchronous run."""

    def __init__(self) -> None:
        import asyncio

        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-async", daemon=True)
        self._thread.start()

    def run(self, task: Task, result: Awaitable[Any]) -> Any:
        """Await a node's result there, for as long as the node may take, and return its outcome."""
        import asyncio

        future = asyncio.run_coroutine_threadsafe(awaited(task, result), self._loop)
        try:
            return future.result(task.plan_node.timeout)
        except TimeoutError:
            future.cancel()
            return timed_out(task)
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel what still runs and end the thread."""
        import asyncio

        async def wind_down() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for each in others:
                each.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._loop.shutdown_asyncgens()

        try:
            asyncio.run_coroutine_threadsafe(wind_down(), self._loop).result(5)
        except TimeoutError:
            from logging import getLogger

            getLogger("holdfast.run").warning("an async node blocks its event loop, which is left behind")
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()
