"""The asyncio driver: carries out what the loop asks without ever blocking the event loop.

Async nodes are awaited where they are; sync nodes and commits go to threads. Commits of all runs on an event
loop gather while one is being written, and go to the store together.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import nullcontext, suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from limpet.engine.drivers.call import (
    attempt,
    attempt_elsewhere,
    attempt_in_turn,
    attempt_within,
    awaited,
    in_threads,
    is_awaitable,
    timed_out,
)
from limpet.engine.leases.group_commit import PendingCommit
from limpet.engine.leases.lease_client import LeaseClient, StopRequest
from limpet.engine.loop.commands import Begin, Cancelled, Command, Failed, Gather, Report, Verdict, Wait
from limpet.engine.node_context.node_context import CURRENT, NodeContext
from limpet.engine.sessions.session import Session
from limpet.journal.store import Commit

if TYPE_CHECKING:
    from concurrent.futures import Executor

_AT_LEISURE = nullcontext()


async def drive(session: Session) -> AsyncGenerator[dict[str, Any] | Verdict, None]:
    """Run a session to its next stop, yielding events and, last, the verdict. Then the lease is given back."""
    loop, outer = session.loop(), CURRENT.get()
    crew = Crew(session)
    try:
        command: Command = next(loop)
        while True:
            answer: Any = None
            if type(command) is NodeContext:
                answer = await call(session.stop, command)
            elif type(command) is Commit:
                answer = session.stopped(command) if session.stop.asked else None
                if answer is None:
                    answer = session.settle(command, await commit(session, command, crew))
            elif type(command) is Report:
                CURRENT.set(outer)
                crew.let_others()
                yield command.event
                await crew.go_on()
            elif type(command) is Begin:
                await crew.begin(command.tasks)
            elif type(command) is Gather:
                answer = await crew.gather(session.at_most(command.seconds))
            else:
                assert type(command) is Wait
                answer = await sleep(session, command.seconds)
            command = loop.send(answer)
    except StopIteration as end:
        CURRENT.set(outer)
        yield end.value
    finally:
        CURRENT.set(outer)
        await crew.close()
        if session.held is not None:
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, session.close))


class Crew:
    """Nodes that run beside each other: async ones as tasks of the event loop, sync ones in threads."""

    def __init__(self, session: Session) -> None:
        self._session, self._guard, self._stop = session, session.guard, session.stop
        self._running: dict[asyncio.Task[Any], NodeContext] = {}
        self._done: list[tuple[NodeContext | None, Any]] = []
        self._some = asyncio.Event()
        self._own: Executor | None = None
        self.answers = Answers.here()

    @property
    def busy(self) -> bool:
        """Whether nodes are running. Then the guard is with the loop."""
        return bool(self._running)

    async def begin(self, tasks: Sequence[NodeContext]) -> None:
        """Have nodes called; what comes of each is there to be gathered."""
        if not self._running:
            await self._take()
            loop = asyncio.get_running_loop()
            self._stop.wake = lambda: loop.call_soon_threadsafe(self._wake)
        for task in tasks:
            call_of = asyncio.create_task(call(self._stop, task, self), name=f"limpet {task.node}")
            self._running[call_of] = task
            call_of.add_done_callback(self._ended)

    async def gather(self, seconds: float | None) -> list[tuple[NodeContext | None, Any]]:
        """Wait until a node is done, or for so many seconds; what came of all that are done."""
        self._guard.give()
        try:
            async with asyncio.timeout(seconds) if seconds is not None else _AT_LEISURE:
                await self._some.wait()
        except TimeoutError:
            pass
        finally:
            await self._take()
        self._some.clear()
        for each in [each for each in self._running if each.done()]:
            outcome = Failed(asyncio.CancelledError()) if each.cancelled() else each.result()
            self._done.append((self._running.pop(each), outcome))
        found, self._done = self._done, []
        if not self._running:
            self._rest()
        return found

    def let_others(self) -> None:
        """Let nodes that run keep what they want kept, while somebody else has the loop."""
        if self._running:
            self._guard.give()

    async def go_on(self) -> None:
        """The loop has its turn again."""
        if self._running:
            await self._take()

    async def close(self) -> None:
        """Let go of nodes that still run: tasks are cancelled, and of threads nobody hears any more."""
        if self._running:
            for each, task in self._running.items():
                each.remove_done_callback(self._ended)
                each.cancel()
                task.scope.task = None
            left = list(self._running)
            self._running.clear()
            self._rest()
            await asyncio.gather(*left, return_exceptions=True)
        if self._own is not None:
            self._own.shutdown(wait=False, cancel_futures=True)

    def in_thread(self, task: NodeContext) -> asyncio.Future[Any]:
        """A sync node in a thread: not in the event loop's own, which are few and others wait for."""
        given = self._session.compiled.executor
        if given is not None and in_threads(given):
            return self._in_turn(task, given)
        if self._own is None:
            from concurrent.futures import ThreadPoolExecutor

            self._own = ThreadPoolExecutor(self._session.compiled.max_concurrency, "limpet")
        if given is None:
            return self._in_turn(task, self._own)
        loop, context = asyncio.get_running_loop(), copy_context()
        return loop.run_in_executor(self._own, context.run, attempt_elsewhere, given, task, self._stop)

    def _in_turn(self, task: NodeContext, pool: Executor) -> asyncio.Future[Any]:
        loop, context = asyncio.get_running_loop(), copy_context()
        return loop.run_in_executor(pool, context.run, attempt_in_turn, task, self._stop, pool)

    async def _take(self) -> None:
        """Have the guard for the loop. Whoever has it writes to the store, which doesn't take long."""
        while not self._guard.try_take():
            await asyncio.sleep(0.001)

    def _rest(self) -> None:
        self._stop.wake = None
        if self._guard.with_loop:
            self._guard.give()

    def _ended(self, call_of: asyncio.Task[Any]) -> None:
        self._some.set()

    def _wake(self) -> None:
        self._done.append((None, Cancelled()))
        self._some.set()


class Answers:
    """What became of commits, on its way from the thread that wrote them to an event loop, woken once for all."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)
        self._come: deque[tuple[asyncio.Future[Exception | None], Exception | None]] = deque()
        self._called = False

    @staticmethod
    def here() -> Answers:
        """Those for the running event loop."""
        loop = asyncio.get_running_loop()
        found = _answers.get(loop)
        if found is None:
            found = _answers[loop] = Answers(loop)
        return found

    def put(self, written: asyncio.Future[Exception | None], outcome: Exception | None) -> None:
        """Have the event loop resolve this future. May be called by any thread."""
        self._come.append((written, outcome))
        loop = self._loop()
        if not self._called and loop is not None:
            self._called = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._give)

    def _give(self) -> None:
        self._called = False  # before looking, so that whoever comes later calls again
        while self._come:
            written, outcome = self._come.popleft()
            if not written.done():
                written.set_result(outcome)


_answers: WeakKeyDictionary[asyncio.AbstractEventLoop, Answers] = WeakKeyDictionary()


async def call(stop: StopRequest, task: NodeContext, crew: Crew | None = None) -> Any:
    """The outcome of a task; a sync one runs in a thread of the crew, where there is one."""
    if stop.asked:
        return Cancelled()
    function, timeout = task.plan_node.function, task.plan_node.timeout
    try:
        if function is None or function.is_async:
            outcome = attempt(task)
        else:
            try:
                working = _in_thread(task) if crew is None else crew.in_thread(task)
            except RuntimeError as error:  # the executor was shut down
                return Failed(error)
            outcome = await working
        if not is_awaitable(outcome):
            return outcome
        async with asyncio.timeout(timeout) if timeout is not None else _AT_LEISURE:
            return await awaited(task, outcome)
    except TimeoutError:
        return timed_out(task)


async def commit(session: Session, commit: Commit, crew: Crew) -> Exception | None:
    """Carry out a commit in a thread, together with those of other runs; here if it only goes to memory."""
    client = session.compiled.client
    assert client is not None
    if client.store.abilities.level == "memory":
        return session.write(commit)
    if (rest := session.resting(commit)) is not None:
        return rest
    refusal = await _carried_out(session, client, commit, crew)
    if refusal is not None and session.compiled.patient:
        return await asyncio.to_thread(session.persist, commit, refusal)
    if refusal is None or not session.compiled.tolerant:
        return refusal
    return await asyncio.to_thread(session.reconsidered, commit, refusal)


async def _carried_out(session: Session, client: LeaseClient, commit: Commit, crew: Crew) -> Exception | None:
    """While nodes run beside the loop, the thread that has written the commit lets them keep things again: the event
    loop may be busy with a node that waits for just that.
    """
    beside = crew.busy
    written: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def ready(slot: PendingCommit) -> None:
        if slot.outcome is None:
            session.written(commit)
        if beside:
            session.guard.give()
        crew.answers.put(written, slot.outcome)

    client.commit_later(commit, ready)
    if not beside:
        return await written
    try:
        return await asyncio.shield(written)
    finally:
        while not written.done():  # who gives the guard back has to be over with it, whatever happens here
            await asyncio.sleep(0.001)
        await crew.go_on()


async def sleep(session: Session, seconds: float) -> Cancelled | None:
    """Let time pass, unless the run is asked to stop."""
    loop, woken, stop = asyncio.get_running_loop(), asyncio.Event(), session.stop
    if session.wait is not None:
        return await _wait_by(session.wait, stop, seconds)
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


async def _wait_by(
    wait: Callable[[float, threading.Event], object], stop: StopRequest, seconds: float
) -> Cancelled | None:
    """The same by a clock that lets time pass in its own way, in a thread."""
    event = threading.Event()
    stop.wake = event.set
    try:
        if not stop.asked:
            await asyncio.to_thread(wait, seconds, event)
    finally:
        event.set()
        stop.wake = None
    return Cancelled() if stop.asked else None


def _in_thread(task: NodeContext) -> asyncio.Future[Any]:
    """A sync node in a thread, where its time begins when it does, however long it had to queue."""
    loop, context, timeout = asyncio.get_running_loop(), copy_context(), task.plan_node.timeout
    if timeout is None:
        return loop.run_in_executor(None, context.run, attempt, task)
    return loop.run_in_executor(None, context.run, attempt_within, timeout, task)
