"""The asyncio driver: carries out what the loop asks without ever blocking the event loop.

Async nodes are awaited on the event loop; sync nodes and commits go to threads. The commits of all runs on an event
loop are queued while one is being written, and go to the store together.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary, ref

from limpet.engine.drivers.node_call import NodeInterrupt, loops_with_runs
from limpet.engine.drivers.node_tasks import NodeTasks, call_on_loop
from limpet.engine.drivers.sync_driver import slots_of
from limpet.engine.leases.group_commit import PendingCommit
from limpet.engine.leases.held_lease import StopRequest
from limpet.engine.leases.lease_client import LeaseClient
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
from limpet.journal.store import ENDED, Commit, PostsWaiting
from limpet.threads.awaiting import wait_until_done


async def drive(session: Session) -> AsyncGenerator[dict[str, Any] | Verdict, None]:
    """Run a session to its next stop, yielding events and, last, the verdict. Then the lease is released."""
    loop = session.loop()
    outer_task = CURRENT.get()
    node_tasks = NodeTasks(session)
    outcomes = CommitOutcomes.of_running_loop()
    interrupt = NodeInterrupt(session.stop)
    # Two queues: of what nodes emit, the oldest is dropped if the caller is too slow, but no report ever is.
    emitted: deque[dict[str, Any]] = deque() if session.live is None else session.live.events
    reports: list[dict[str, Any]] = []
    with session.driven():
        try:
            command: Command = next(loop)
            while True:
                answer: Any = None
                if type(command) is NodeContext:
                    if session.live is None:
                        answer = await call_on_loop(interrupt, command)
                    else:
                        answer = await node_tasks.call_apart(command)
                elif type(command) is Commit:
                    if session.stop.asked:
                        answer = session.refuse_if_stopping(command)
                    if answer is None:
                        answer = session.finish_commit(
                            command, await commit(session, command, node_tasks, outcomes)
                        )
                elif type(command) is Report:
                    reports.append(command.event)
                elif type(command) is Begin:
                    await node_tasks.start(command.tasks)
                elif type(command) is Gather:
                    answer = await gather(session, node_tasks, command.seconds)
                elif type(command) is Wait:
                    answer = await sleep(session, command.until, command.for_posts)
                else:
                    answer = await exchange_slots(session, node_tasks, command)
                for event in _due(emitted, reports):
                    # The caller that iterates the run isn't inside its node.
                    CURRENT.set(outer_task)
                    node_tasks.release_journal_lock()
                    yield event
                    # Another task may have asked for the next event.
                    interrupt.use_current_task()
                    await node_tasks.retake_journal_lock()
                if answer is not NOT_DONE:  # else the node still runs
                    command = loop.send(answer)
        except StopIteration as end:
            leave_run(session.progress, outer_task)
            yield end.value
        except BaseException as error:
            # The cancellation of this task stops the run in order.
            if not isinstance(error, asyncio.CancelledError):
                session.note_interrupt(error)
            raise
        finally:
            leave_run(session.progress, outer_task)
            interrupt.close()
            await node_tasks.close()
            if session.held is not None or session.slots is not None:
                await release(session)


def _due(emitted: deque[dict[str, Any]], reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the caller gets now: reports, and what was emitted so far, however fast a node emits more."""
    due = [emitted.popleft() for _ in range(len(emitted))] + reports
    reports.clear()
    return due


async def gather(
    session: Session, node_tasks: NodeTasks, seconds: float | None
) -> list[tuple[NodeContext | None, Any]]:
    """The outcomes of the nodes that are done. After a wait, make sure that the run is still this process's."""
    found = await node_tasks.gather(session.limit_wait(seconds))
    if seconds is not None and session.may_have_lost_lease:
        await asyncio.to_thread(session.renew_if_late)
    return found


async def exchange_slots(session: Session, node_tasks: NodeTasks, command: Command) -> Any:
    """Ask the store for slots, or release them, in a thread. If this task is cancelled meanwhile, that is done first.

    Nodes that run in parallel may save what they keep meanwhile: one may block the event loop until it can.
    """
    node_tasks.release_journal_lock()
    done = asyncio.get_running_loop().run_in_executor(None, slots_of(session).carry_out, command)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await wait_until_done(done)
        raise
    finally:
        await node_tasks.retake_journal_lock()


async def release(session: Session) -> None:
    """Release the lease in a thread. If this task is cancelled meanwhile, its caller gets that when it is done."""
    closing = asyncio.get_running_loop().run_in_executor(None, session.close)
    try:
        await asyncio.shield(closing)
    except asyncio.CancelledError:
        await wait_until_done(closing)
        raise


async def commit(
    session: Session, commit: Commit, node_tasks: NodeTasks, outcomes: CommitOutcomes
) -> Exception | None:
    """Write a commit in a thread, together with those of other runs; or here, if the store is in memory."""
    client = session.compiled.client
    assert client is not None
    if session.output is not None and session.has_output_for(commit):
        await asyncio.to_thread(session.output.flush)
    if client.store.abilities.level == "memory":
        return session.write(commit)
    if session.failed_saves is not None and (refusal := session.failed_saves.skip(commit)) is not None:
        return refusal
    refusal = None
    if commit.status in ENDED:
        refusal = await asyncio.to_thread(session.announce_end, commit)
    if refusal is None:
        refusal = await _write(session, client, commit, node_tasks, outcomes)
    if refusal is None:
        return None
    if session.compiled.on_save_error == "fail" and not isinstance(refusal, PostsWaiting):
        return refusal
    return await asyncio.to_thread(session.handle_refusal, commit, refusal)


async def _write(
    session: Session, client: LeaseClient, commit: Commit, node_tasks: NodeTasks, outcomes: CommitOutcomes
) -> Exception | None:
    # While nodes run in parallel, the thread that writes the commit releases the journal lock, not the event loop:
    # that may be blocked by a node that waits for the lock.
    nodes_run = node_tasks.busy
    stretch = session.stretch
    began = perf_counter()
    written: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def on_done(pending: PendingCommit) -> None:
        if stretch is not None:
            stretch.commit_ended(commit, began, pending.outcome)
        if pending.outcome is None:
            session.acknowledge(commit)
        if nodes_run:
            session.journal_lock.release()
        outcomes.put(written, pending.outcome)

    client.commit_later(commit, on_done)
    if not nodes_run:
        return await written
    try:
        return await asyncio.shield(written)
    finally:
        # If this run is cancelled meanwhile, the other thread must have released the lock before we acquire it.
        if not written.done():
            await wait_until_done(written)
        await node_tasks.retake_journal_lock()


class CommitOutcomes:
    """Outcomes of commits on their way from the thread that wrote them to an event loop.

    A batch may hold commits of hundreds of runs of one event loop. It is woken once for all of them: each wake-up
    writes to a pipe, which is slow.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        # Weak, because this object is the value under the loop in a dict with weak keys.
        self._loop = ref(loop)
        self._arrived: deque[tuple[asyncio.Future[Exception | None], Exception | None]] = deque()
        self._wake_up_scheduled = False

    @staticmethod
    def of_running_loop() -> CommitOutcomes:
        """Those for the running event loop."""
        loop = asyncio.get_running_loop()
        found = _commit_outcomes.get(loop)
        if found is None:
            found = CommitOutcomes(loop)
            _commit_outcomes[loop] = found
            loops_with_runs.add(loop)
        return found

    def put(self, written: asyncio.Future[Exception | None], outcome: Exception | None) -> None:
        """Have the event loop resolve this future. May be called by any thread."""
        self._arrived.append((written, outcome))
        loop = self._loop()
        if not self._wake_up_scheduled and loop is not None:
            self._wake_up_scheduled = True
            with suppress(RuntimeError):  # the loop is closed, so no run waits for the outcome
                loop.call_soon_threadsafe(self._resolve_all)

    def _resolve_all(self) -> None:
        # Before the first look at what has arrived: an outcome that is put later schedules another wake-up.
        self._wake_up_scheduled = False
        while self._arrived:
            written, outcome = self._arrived.popleft()
            if not written.done():
                written.set_result(outcome)


_commit_outcomes: WeakKeyDictionary[asyncio.AbstractEventLoop, CommitOutcomes] = WeakKeyDictionary()


async def sleep(session: Session, until: float, for_posts: bool = False) -> Cancelled | None:
    """Let time pass, unless the run is asked to stop. Then make sure that the run is still this process's.

    With `for_posts`, not longer than until posts have come.
    """
    stop = session.stop
    if session.clock_wait is None:
        await _sleep_by_timer(stop, session.seconds_until(until), for_posts)
    else:
        await _sleep_by_clock(session.clock_wait, stop, session.seconds_until(until), for_posts)
    if session.may_have_lost_lease:
        await asyncio.to_thread(session.renew_if_late)
    if stop.has_deadline:
        session.check_deadline()
    if stop.asked:
        return Cancelled()
    return None


async def _sleep_by_timer(stop: StopRequest, seconds: float, for_posts: bool) -> None:
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    stop.wake = lambda: loop.call_soon_threadsafe(woken.set)
    try:
        # `wake` is set first: a request that is made between the two lines is seen by one of them.
        if not (stop.asked or (for_posts and stop.has_posts)):
            async with asyncio.timeout(seconds):
                await woken.wait()
    except TimeoutError:
        pass
    finally:
        stop.wake = None


async def _sleep_by_clock(
    wait: Callable[[float, threading.Event], object], stop: StopRequest, seconds: float, for_posts: bool
) -> None:
    """The same for a store whose clock decides how time passes, such as a `FakeClock`; in a thread."""
    woken = threading.Event()
    stop.wake = woken.set
    try:
        if not (stop.asked or (for_posts and stop.has_posts)):
            await asyncio.to_thread(wait, seconds, woken)
    finally:
        # If this task was cancelled, the thread still waits.
        woken.set()
        stop.wake = None
