"""The synchronous driver: carries out what the loop asks, in the thread that called.

A sync node without a timeout is a plain call: no thread, no queue. A node with a timeout runs in a thread
of its own, since nothing else can be left behind; an async node runs on an event loop that the driver
starts when it meets the first one and keeps for the rest of the run. Nodes of branches are left to a crew.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Any

from limpet.engine.drivers.call import attempt, attempt_within, is_awaitable
from limpet.engine.loop.commands import Begin, Cancelled, Command, Gather, Report, Verdict, Wait
from limpet.engine.node_context.node_context import CURRENT, NodeContext
from limpet.engine.sessions.session import Session
from limpet.journal.store import Commit

if TYPE_CHECKING:
    from limpet.engine.drivers.loop_thread import EventLoop
    from limpet.engine.drivers.node_threads import Crew


def drive(session: Session) -> Generator[dict[str, Any], None, Verdict]:
    """Run a session to its next stop, yielding events; returns the verdict. The lease is given back at the end."""
    loop, stop, outer = session.loop(), session.stop, CURRENT.get()
    waiting = Waiting(session)
    try:
        command: Command = next(loop)
        while True:
            answer: Any = None
            if type(command) is NodeContext:
                if stop.asked:
                    answer = Cancelled()
                elif (timeout := command.plan_node.timeout) is None:
                    answer = attempt(command)
                else:
                    answer = attempt_within(timeout, command)
                if type(answer) is not dict and is_awaitable(answer):
                    answer = waiting.result_of(command, answer)
            elif type(command) is Commit:
                answer = session.stopped(command) if stop.asked else None
                if answer is None:
                    answer = session.write(command)
                    if answer is not None or command.status is not None:
                        answer = session.settle(command, answer)
            elif type(command) is Report:
                CURRENT.set(outer)
                waiting.let_others()
                yield command.event
                waiting.go_on()
            elif type(command) is Begin:
                waiting.crew.begin(command.tasks)
            elif type(command) is Gather:
                answer = waiting.crew.gather(session.at_most(command.seconds))
            else:
                assert type(command) is Wait
                answer = waiting.sleep(command.seconds)
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

    __slots__ = ("_crew", "_events", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session
        self._events: EventLoop | None = None
        self._crew: Crew | None = None

    @property
    def crew(self) -> Crew:
        """Who runs nodes beside each other."""
        if self._crew is None:
            from limpet.engine.drivers.node_threads import Crew

            session = self._session
            self._crew = Crew(session.compiled.executor, session.guard, session.stop, self.events)
        return self._crew

    def events(self) -> EventLoop:
        """The event loop for async nodes."""
        if self._events is None:
            from limpet.engine.drivers.loop_thread import EventLoop

            self._events = EventLoop()
        return self._events

    def result_of(self, task: NodeContext, result: Awaitable[Any]) -> Any:
        """The outcome of a task whose node is async."""
        return self.events().run(task, result)

    def sleep(self, seconds: float) -> Cancelled | None:
        """Let time pass, unless the run is asked to stop."""
        event, stop, wait = threading.Event(), self._session.stop, self._session.wait
        stop.wake = event.set
        if not stop.asked:
            _ = event.wait(seconds) if wait is None else wait(seconds, event)
        stop.wake = None
        return Cancelled() if stop.asked else None

    def let_others(self) -> None:
        """Somebody else has the loop for a while."""
        if self._crew is not None:
            self._crew.let_others()

    def go_on(self) -> None:
        """The loop has its turn again."""
        if self._crew is not None:
            self._crew.go_on()

    def close(self) -> None:
        """End what was started."""
        if self._crew is not None:
            self._crew.close()
        if self._events is not None:
            self._events.close()
