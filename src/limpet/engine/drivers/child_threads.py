"""Executing the child runs that a run waits for, in threads of the same process.

Where a worker executes a run, workers execute its children. But a run that a caller executes, with `execute()` and
the like, may have no worker at all. Its process then executes the children that it waits for, too.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from functools import partial
from threading import Lock
from time import sleep
from typing import TYPE_CHECKING

from limpet.defaults import MAX_RUNS_AT_ONCE
from limpet.engine.leases.change_waiter import ChangeWaiter
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.sessions.session import Session, log
from limpet.errors import AlreadyCompleted, Conflict, RunNotFound
from limpet.journal.store import ENDED
from limpet.threads.workers import start_thread

if TYPE_CHECKING:
    from limpet.engine.leases.held_lease import StopRequest

DUE_CHECK_INTERVAL = 0.5
"""Seconds, at most, between two looks at the clock while a child isn't due."""

LOOK_INTERVAL = 60.0
"""Seconds for which one wait for a child lasts that another process executes."""


class ChildThreads:
    """The children of one run that this process executes, each in a thread, a limited number at once."""

    def __init__(self, session: Session) -> None:
        self._parent: StopRequest = session.stop
        self._waiting: deque[tuple[str, CompiledGraph]] = deque()
        self._running: dict[str, Session | None] = {}
        self._left = False
        self._lock = Lock()

    @property
    def busy(self) -> bool:
        """Whether children are executed, or are to be."""
        return bool(self._running or self._waiting)

    def execute(self, child: str, compiled: CompiledGraph) -> None:
        """Execute a child, as soon as there is room."""
        with self._lock:
            self._waiting.append((child, compiled))
        self._begin_next()

    def leave(self) -> None:
        """Begin no more children, and have those under way stop before their next node."""
        with self._lock:
            self._left = True
            self._waiting.clear()
            sessions = [each for each in self._running.values() if each is not None]
        for session in sessions:
            session.stop.leave()

    def _begin_next(self) -> None:
        with self._lock:
            if self._left or not self._waiting or len(self._running) >= MAX_RUNS_AT_ONCE:
                return
            child, compiled = self._waiting.popleft()
            self._running[child] = None
        start_thread(partial(self._execute, child, compiled), f"limpet-child-{child[:8]}")

    def _execute(self, child: str, compiled: CompiledGraph) -> None:
        try:
            while not self._left and self._drive(child, compiled):
                pass
        except Exception as problem:
            log().warning("child run %s isn't executed here: %s", child, problem)
        finally:
            with self._lock:
                self._running.pop(child, None)
            self._begin_next()
            # The parent takes in what the child has posted; or it finds that it waits for nothing that happens here.
            self._parent.notice_posts()

    def _drive(self, child: str, compiled: CompiledGraph) -> bool:
        """Run a child to its next stop. Returns whether it has to be looked at again."""
        from limpet.engine.drivers.sync_driver import drive_to_stop
        from limpet.engine.sessions.resume import resume

        client = compiled.need_client("start")
        head = client.head(child)
        if head.status in ENDED or head.due is None:
            return False  # it has ended, or waits for an answer or a message
        if not head.is_due(client.now()):
            sleep(min(head.due - client.now(), DUE_CHECK_INTERVAL))
            return True
        try:
            session = resume(compiled, child, ResumeInput(timed=True), known=head)
        except (AlreadyCompleted, RunNotFound):
            return False
        except Conflict:
            self._wait_for_change(compiled, child)
            return True
        with self._lock:
            self._running[child] = session
            if self._left:
                session.stop.leave()
        return isinstance(drive_to_stop(session).error, Conflict)

    def _wait_for_change(self, compiled: CompiledGraph, child: str) -> None:
        """Another process executes the child: wait until it has stopped there."""
        client = compiled.need_client("start")
        waiter = ChangeWaiter(client.store, LOOK_INTERVAL)
        with suppress(RunNotFound):
            while not self._left and client.head(child).holder is not None and waiter.wait():
                pass
