"""The synchronous driver: carries out what the loop asks, in the thread of the caller.

A sync node without a timeout is a plain call: no thread, no queue. A node with a timeout, and every node of a run
with a deadline, runs in a thread of its own, because only a thread can be abandoned. So does a node that emits, while
the run is streamed: see `emitting_nodes.py`. An async node runs on an event loop in a thread, which starts with the
first such node and stays for the rest of the run. Nodes of parallel branches run in `NodeThreads`.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from limpet.engine.drivers.node_call import call_node, call_where_abandonable, is_awaitable
from limpet.engine.leases.held_lease import StopRequest
from limpet.engine.loop.driver_commands import (
    NOT_DONE,
    Begin,
    Cancelled,
    Command,
    Gather,
    Report,
    Verdict,
    Wait,
)
from limpet.engine.node_context.call_scope import CURRENT, leave_run
from limpet.engine.node_context.node_context import NodeContext
from limpet.engine.sessions.session import Session
from limpet.journal.store import Commit

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from limpet.engine.drivers.child_runs import SessionChildren
    from limpet.engine.drivers.emitting_nodes import EmittingNodes
    from limpet.engine.drivers.loop_thread import LoopThread
    from limpet.engine.drivers.node_slots import NodeSlots
    from limpet.engine.drivers.node_threads import NodeThreads, Outcomes
    from limpet.engine.leases.run_output import LiveEvents


def drive(session: Session) -> Generator[dict[str, Any], None, Verdict]:
    """Run a session to its next stop, yielding events; returns the verdict. The lease is released at the end."""
    outer_task = CURRENT.get()
    threads = DriverThreads(session)
    with session.driven():
        try:
            return (yield from _drive(session, threads, outer_task))
        except BaseException as error:
            session.note_interrupt(error)
            raise
        finally:
            try:
                leave_run(session.progress, outer_task)
                threads.close()
                session.close()
            except BaseException:
                # Interrupted, most likely. All of it can be done again, and has to be done in any case.
                leave_run(session.progress, outer_task)
                threads.close()
                session.close()
                raise


def drive_to_stop(session: Session) -> Verdict:
    """Run a session to its next stop; its events are for observers only."""
    events = drive(session)
    while True:
        try:
            next(events)
        except StopIteration as end:
            verdict: Verdict = end.value
            return verdict


def _drive(
    session: Session, threads: DriverThreads, outer_task: NodeContext | None
) -> Generator[dict[str, Any], None, Verdict]:
    loop = session.loop()
    stop = session.stop
    live = session.live
    emitting_nodes = None if live is None else threads.emitting_nodes
    # Each step passes here several times, so the commands are distinguished by type, the most frequent first: `is`
    # costs a fraction of `isinstance` or `match`.
    try:
        command: Command = next(loop)
        while True:
            answer: Any = None
            if type(command) is NodeContext:
                if emitting_nodes is not None and command in emitting_nodes:
                    answer = threads.call_apart(command)
                elif stop.asked:
                    answer = Cancelled()
                elif command.plan_node.timeout is None and not stop.has_deadline:
                    answer = call_node(command)
                else:
                    answer = call_where_abandonable(command, stop)
                # The same check as in `is_awaitable`, which spares nearly every node that call.
                if type(answer) is not dict and is_awaitable(answer):
                    answer = threads.await_node(command, answer)
            elif type(command) is Commit:
                if stop.asked:
                    answer = session.refuse_if_stopping(command)
                if answer is None:
                    if session.output is not None and session.has_output_for(command):
                        session.output.flush()
                    answer = session.write(command)
                    # A plain commit that was accepted needs nothing more.
                    if answer is not None or command.status is not None:
                        answer = session.finish_commit(command, answer)
            elif type(command) is Report:
                # The caller that iterates the run isn't inside its node.
                CURRENT.set(outer_task)
                if threads.are_used:
                    threads.release_journal_lock()
                yield command.event
                if threads.are_used:
                    threads.retake_journal_lock()
            elif type(command) is Begin:
                threads.node_threads.start(command.tasks)
            elif type(command) is Gather:
                answer = threads.gather(command.seconds)
            elif type(command) is Wait:
                answer = sleep(session, command.until, command.for_posts)
            else:
                answer = slots_of(session).carry_out(command)
            if live is not None:
                if live.events:
                    yield from threads.live_events(live, command, outer_task)
                if answer is NOT_DONE:
                    continue  # the node still runs
            command = loop.send(answer)
    except StopIteration as end:
        verdict: Verdict = end.value
        return verdict


class DriverThreads:
    """The threads of one synchronous run, each started when it is first needed: most runs need none."""

    __slots__ = ("_apart", "_emitting_nodes", "_loop_thread", "_node_threads", "_session", "are_used")

    def __init__(self, session: Session) -> None:
        self._session = session
        session.make_children = make_children
        self.are_used = False
        """Whether nodes have run in some of them."""
        self._loop_thread: LoopThread | None = None
        self._node_threads: NodeThreads | None = None
        self._apart: NodeThreads | None = None
        self._emitting_nodes: EmittingNodes | None = None

    @property
    def node_threads(self) -> NodeThreads:
        """The threads that run nodes in parallel."""
        if self._node_threads is None:
            self._node_threads = self._new_threads(self._session.compiled.executor)
        return self._node_threads

    @property
    def emitting_nodes(self) -> EmittingNodes:
        """The nodes that get a thread of their own while the run is streamed."""
        if self._emitting_nodes is None:
            from limpet.engine.drivers.emitting_nodes import EmittingNodes

            self._emitting_nodes = EmittingNodes()
        return self._emitting_nodes

    def gather(self, seconds: float | None) -> Outcomes:
        """The outcomes of the nodes that are done. After a wait, make sure that the run is still this process's."""
        found = self.node_threads.gather(self._session.limit_wait(seconds))
        if seconds is not None:
            self._session.renew_if_late()
        return found

    def call_apart(self, task: NodeContext) -> Any:
        """Call a node in a thread of its own, or wait on for one that was begun before.

        Returns its outcome, or `NOT_DONE` if it has emitted something, or the run is asked to stop.
        """
        if self._apart is None:
            # No executor of the user's: that is for nodes that run in parallel, and may be in other processes.
            self._apart = self._new_threads(None)
        if not self._apart.busy:
            self._apart.start([task])
        for done, outcome in self._apart.gather(None):
            if done is task:
                return outcome
        return NOT_DONE

    def live_events(
        self, live: LiveEvents, command: Command, outer_task: NodeContext | None
    ) -> Generator[dict[str, Any], None, None]:
        """What nodes have emitted, for the caller. One that emitted in the driver's own thread gets another one."""
        if type(command) is NodeContext:
            self.emitting_nodes.add(command)
        CURRENT.set(outer_task)
        # Only what was emitted so far: a node that emits all the time doesn't hold up the run.
        for _ in range(len(live.events)):
            self.release_journal_lock()
            yield live.events.popleft()
            self.retake_journal_lock()

    def _new_threads(self, executor: Executor | None) -> NodeThreads:
        from limpet.engine.drivers.node_threads import NodeThreads

        self.are_used = True
        session = self._session
        return NodeThreads(executor, session.journal_lock, session.stop, self.loop_thread, session.live)

    def loop_thread(self) -> LoopThread:
        """The thread with the event loop for async nodes."""
        if self._loop_thread is None:
            from limpet.engine.drivers.loop_thread import LoopThread

            self._loop_thread = LoopThread(self._session.stop, self._session.compiled.shares_loop)
        return self._loop_thread

    def await_node(self, task: NodeContext, result: Awaitable[Any]) -> Any:
        """The outcome of an async node."""
        return self.loop_thread().run(task, result)

    def release_journal_lock(self) -> None:
        """Let nodes that run in parallel save what they keep, while the caller of the run has control."""
        for threads in (self._node_threads, self._apart):
            if threads is not None:
                threads.release_journal_lock()

    def retake_journal_lock(self) -> None:
        """The loop has control again."""
        for threads in (self._node_threads, self._apart):
            if threads is not None:
                threads.retake_journal_lock()

    def close(self) -> None:
        """End the threads that were started."""
        self._session.leave_children()
        for threads in (self._node_threads, self._apart):
            if threads is not None:
                threads.close()
        if self._loop_thread is not None:
            self._loop_thread.close()


def make_children(session: Session) -> SessionChildren:
    """The child runs of a session, once a node asks for them. If no supervisor has resumed it, it executes them."""
    from limpet.engine.drivers.child_runs import SessionChildren
    from limpet.engine.drivers.child_threads import ChildThreads

    executor = None
    if not session.is_supervised:
        executor = ChildThreads(session)
    return SessionChildren(session, executor)


def slots_of(session: Session) -> NodeSlots:
    """The slots that calls of a session have, made when its first node with limits is called."""
    if session.slots is None:
        from limpet.engine.drivers.node_slots import NodeSlots

        session.slots = NodeSlots(session)
    return session.slots


def sleep(session: Session, until: float, for_posts: bool = False) -> Cancelled | None:
    """Let time pass, unless the run is asked to stop. Then make sure that the run is still this process's.

    With `for_posts`, not longer than until posts have come.
    """
    stop = session.stop
    seconds = session.seconds_until(until)
    try:
        if session.clock_wait is None:
            _sleep_until_woken(stop, seconds, for_posts)
        else:
            woken = threading.Event()
            stop.wake = woken.set
            if not (stop.asked or (for_posts and stop.has_posts)):
                session.clock_wait(seconds, woken)
    finally:
        stop.wake = None
    session.renew_if_late()
    if stop.has_deadline:
        session.check_deadline()
    if stop.asked:
        return Cancelled()
    return None


def _sleep_until_woken(stop: StopRequest, seconds: float, for_posts: bool) -> None:
    # A plain lock: the one in an `Event` could be left held by an interrupt, and `wake` is called by the thread
    # that renews leases.
    woken = threading.Lock()
    woken.acquire()

    def wake() -> None:
        with suppress(RuntimeError):  # it was called before
            woken.release()

    # `wake` is set first: a request that is made between the two lines is seen by one of them.
    stop.wake = wake
    if not (stop.asked or (for_posts and stop.has_posts)):
        woken.acquire(True, seconds)
