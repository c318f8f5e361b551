"""`Run` and `AsyncRun`: a run that the caller drives. Iterate it for its events, or read its state and result."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast

from limpet.engine.loop.driver_commands import Verdict
from limpet.engine.loop.run_context import WAITING
from limpet.engine.loop.stop_errors import error_of_paused, error_of_waiting
from limpet.engine.sessions.session import Session
from limpet.engine.sessions.start import HeldElsewhere
from limpet.errors import Conflict, LimpetError, RunNotFound, UsageError
from limpet.graphs.state import State, detached
from limpet.journal.store import COMPLETED, PAUSED, RUNNING
from limpet.journal.waits import Question

if TYPE_CHECKING:
    from limpet.engine.following.elsewhere import Elsewhere
    from limpet.engine.views.run_view import OpenRun

OpenSession = Callable[[bool], Session]
"""Opens a run. Its argument says whether the caller has waited for another process that executed the run."""
S = TypeVar("S", bound=State)

DEGRADED = "degraded"
"""The status of a run that is running or completed although its last save failed."""


class OpenedRun(Generic[S]):
    """What `Run` and `AsyncRun` share: the run's id, and how far it has come in this process."""

    _described = "a Run"
    _execute = "execute()"
    _is_async = False

    _is_shown = False
    """Whether the cell of a notebook that is executed shows it already: `live` does."""

    def __init__(self, run_id: str, open_session: OpenSession) -> None:
        self._slot = SessionSlot(run_id, open_session)

    def _allow_drop(self) -> Self:
        """The same run, without a warning if it is dropped before it began."""
        self._slot.warns = False
        return self

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._slot.run_id

    @property
    def id(self) -> str:
        """`run_id`, for short."""
        return self._slot.run_id

    @property
    def error(self) -> LimpetError | None:
        """Why the run failed or was cancelled, if it was."""
        verdict = self._slot.verdict
        return None if verdict is None else verdict.error

    @property
    def questions(self) -> list[Question]:
        """The open questions of a paused run."""
        verdict = self._slot.verdict
        return [] if verdict is None else list(verdict.questions)

    def cancel(self) -> None:
        """Stop the run, from any thread: async nodes are interrupted, and sync ones finish or stop at `ctx.check()`.

        It can be resumed from what it saved.
        """
        self._slot.cancel()

    def __getitem__(self, key: object) -> Any:
        self._allow_drop()  # one problem is enough
        called = UsageError(f"{self._described} is a run to iterate, not its state, so it has no {key!r}")
        raise called.with_advice(
            f"{self._execute} returns the final state; {self._described} has it as .state"
        )

    def __del__(self) -> None:
        # Not for one whose constructor failed.
        slot = getattr(self, "_slot", None)
        if slot is not None and slot.warns and not slot.began:
            import warnings

            with suppress(Exception):  # the interpreter may be ending
                warnings.warn(
                    f"run {slot.run_id!r} was never iterated, so it didn't run: iterate {self._described}, or call "
                    f"{self._execute}",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def __repr__(self) -> str:
        status = self._status() if self._slot.began else "not begun"
        return f"<{type(self).__name__} {self.id} {status}>"

    def _repr_html_(self) -> str | None:
        """What a notebook shows: its status, graph, questions and state. Starts nothing, never raises."""
        if self._is_shown:
            return None
        from limpet.engine.views.run_view import html_of_open

        return html_of_open(self._opened(), repr(self))

    def _opened(self) -> OpenRun:
        """The run as far as it has come, to be shown."""
        from limpet.engine.views.run_view import OpenRun

        slot = self._slot
        return OpenRun(slot.run_id, self._status(), slot.session, slot.verdict, self._is_async)

    def _status(self) -> str:
        session = self._slot.session
        verdict = self._slot.verdict
        status = RUNNING if verdict is None else verdict.status
        if session is not None and session.degraded and status in (RUNNING, COMPLETED):
            return DEGRADED
        return status

    def _state(self) -> S:
        session = self._slot.session
        if session is None:
            raise UsageError(f"run {self.id!r} has not begun")
        return cast(S, detached(session.lifecycle.state))

    def _result(self) -> S:
        """The final state. Raises the error of a run that has none."""
        verdict = self._slot.verdict
        session = self._slot.session
        if verdict is None or session is None:
            raise UsageError(f"run {self.id!r} was closed before it stopped")
        if verdict.error is not None:
            raise verdict.error
        if verdict.status == PAUSED:
            raise error_of_paused(session.progress, verdict.questions)
        if verdict.status == WAITING:
            raise error_of_waiting(session.progress)
        # The run is over, so the caller gets its values as they are, as with the last event.
        return cast(S, session.lifecycle.state._copy())


class Run(OpenedRun[S]):
    """A run that is driven by the caller that iterates it.

    It begins with the first event that is asked for, or when `state` or `status` is read before that, which runs it
    to its next stop. `close()`, or dropping the last reference to the run, releases it: any process can resume it.
    """

    def __init__(self, run_id: str, open_session: OpenSession, raise_errors: bool = False) -> None:
        super().__init__(run_id, open_session)
        self._events = _drive_sync(self._slot)
        self._shown_events = _raising(self._events) if raise_errors else self._events

    @property
    def status(self) -> str:
        """`running`, `paused`, `waiting` (for a message), `completed`, `failed` or `cancelled`.

        `degraded` while its last step isn't saved.
        """
        self._begin()
        return self._status()

    @property
    def state(self) -> S:
        """A copy of the state as it is now."""
        self._begin()
        return self._state()

    def wait(self) -> Run[S]:
        """Run to the next stop and ignore the events."""
        for _ in self._events:
            pass
        return self

    def result(self) -> S:
        """Run to the end and return the final state. Raises the run's error, `RunPaused` or `RunWaiting`."""
        self.wait()
        return self._result()

    def close(self) -> None:
        """Leave the run where it is and release it, so that any process can resume it."""
        self._events.close()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._allow_drop()  # a `for` loop keeps the iterator alone
        return self._shown_events

    def __next__(self) -> dict[str, Any]:
        return next(self._shown_events)

    def _begin(self) -> None:
        if not self._slot.began:
            self.wait()


class AsyncRun(OpenedRun[S]):
    """The same for `async for`; `await run.wait()` and `await run.result()` run it to its next stop."""

    _described = "an AsyncRun"
    _execute = "aexecute()"
    _is_async = True

    def __init__(self, run_id: str, open_session: OpenSession, raise_errors: bool = False) -> None:
        super().__init__(run_id, open_session)
        self._events = _drive_async(self._slot)
        self._shown_events = _raising_async(self._events) if raise_errors else self._events

    @property
    def status(self) -> str:
        """`running`, `paused`, `waiting` (for a message), `completed`, `failed` or `cancelled`.

        `degraded` while its last step isn't saved.
        """
        return self._status()

    @property
    def state(self) -> S:
        """A copy of the state as it is now. Raises `UsageError` before the run has begun."""
        return self._state()

    async def wait(self) -> AsyncRun[S]:
        """Run to the next stop and ignore the events."""
        async for _ in self._events:
            pass
        return self

    async def result(self) -> S:
        """Run to the end and return the final state. Raises the run's error, `RunPaused` or `RunWaiting`."""
        await self.wait()
        return self._result()

    async def aclose(self) -> None:
        """Leave the run where it is and release it, so that any process can resume it."""
        await self._events.aclose()

    def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        self._allow_drop()  # a `for` loop keeps the iterator alone
        return self._shown_events

    async def __anext__(self) -> dict[str, Any]:
        return await anext(self._shown_events)


class SessionSlot:
    """The session of a run once it is opened, and its verdict once it stops.

    The generator that drives the run writes it, and the `Run` reads it. The generator refers to nothing else of the
    `Run`. With a reference to the `Run` itself the two would form a cycle, and the lease of a run that the caller has
    dropped would be held until the garbage collector finds it.
    """

    __slots__ = (
        "_lock",
        "_open_session",
        "abandoned",
        "began",
        "cancelled",
        "has_waited",
        "is_stranded",
        "run_id",
        "session",
        "takes_output",
        "verdict",
        "warns",
    )

    def __init__(self, run_id: str, open_session: OpenSession) -> None:
        self.run_id = run_id
        self.session: Session | None = None
        self.verdict: Verdict | None = None
        self.began = False
        self.has_waited = False
        """Whether another process executed the run, and the caller waited for it."""
        self.cancelled = False
        self.abandoned = False
        self.is_stranded: Callable[[], bool] | None = None
        """Whether the generator can't go on any more; None if it always can."""
        self.takes_output = False
        """Whether the caller gets what nodes emit, although it didn't ask for the events of steps."""
        self.warns = True
        """Whether to warn if the run is dropped before it began."""
        self._open_session = open_session
        self._lock = Lock()

    def begin(self) -> Session:
        """Open the run. If its caller has gone meanwhile, the lease is released at once.

        If it had gone before, the run isn't opened. Raises `UsageError` then.
        """
        with self._lock:
            if self.abandoned:
                raise UsageError(f"run {self.run_id!r} was cancelled before it began")
            self.began = True
        session = self._open_session(self.has_waited)
        if self.takes_output and session.live is None:
            session.pass_on_output()
        if session.held is not None:
            session.held.is_stranded = self.is_stranded
        with self._lock:
            self.session = session
            self.run_id = session.id
            if self.abandoned:
                session.close()
        if self.cancelled:
            session.stop.ask()
        return session

    def has_gone(self) -> bool:
        """Whether the caller no longer waits for the run to be opened."""
        return self.abandoned or self.cancelled

    def refuse_if_gone(self) -> None:
        """Raise `UsageError` if the caller no longer waits for the run to be opened."""
        if self.has_gone():
            raise UsageError(
                f"run {self.run_id!r} is no longer waited for; the process that executes it continues"
            )

    def elsewhere(self) -> Elsewhere:
        """What follows the run while another process executes it."""
        from limpet.engine.following.elsewhere import Elsewhere

        self.has_waited = True
        return Elsewhere(self.has_gone)

    def abandon(self) -> bool:
        """The caller no longer waits for the run to be opened. Returns whether another thread has begun with it."""
        with self._lock:
            self.abandoned = True
            if self.session is not None:
                self.session.close()
            return self.began

    def release(self, since: float) -> None:
        """Release the run if its lease is still held: the thread was interrupted while it opened or closed it."""
        from limpet.engine.leases.interrupted_calls import release_unused

        if self.session is not None:
            self.session.close()
        release_unused(since)

    def cancel(self) -> None:
        """Stop the run before its next node, or before its first if it isn't open yet."""
        self.cancelled = True
        if self.session is not None:
            self.session.stop.ask()

    def finish(self, verdict: Verdict) -> None:
        """The run has stopped. Raises if it is no longer the run of this process."""
        self.verdict = verdict
        if isinstance(verdict.error, (Conflict, RunNotFound)):
            raise verdict.error


def _drive_sync(slot: SessionSlot) -> Generator[dict[str, Any], None, None]:
    from limpet.engine.drivers.sync_driver import drive

    began = monotonic()
    try:
        session = yield from _open_sync(slot)
        slot.finish((yield from drive(session)))
    except BaseException:
        slot.release(began)
        raise


def _open_sync(slot: SessionSlot) -> Generator[dict[str, Any], None, Session]:
    """Open the run. While another process executes it, what happens there is reported."""
    elsewhere: Elsewhere | None = None
    while True:
        try:
            return slot.begin()
        except HeldElsewhere as held:
            elsewhere = elsewhere or slot.elsewhere()
            for event in elsewhere.events(held):
                if held.stream or slot.takes_output:
                    yield event
            slot.refuse_if_gone()


async def _drive_async(slot: SessionSlot) -> AsyncGenerator[dict[str, Any], None]:
    import asyncio
    from contextlib import aclosing

    from limpet.engine.drivers import async_driver
    from limpet.threads.awaiting import wait_until_done

    # The event loop may be closed while this waits, after an interrupt, say. Then others can resume the run.
    slot.is_stranded = asyncio.get_running_loop().is_closed
    # Opening waits for the store, so a thread does it. That thread can't be interrupted: if the caller is cancelled
    # while it works, the run that it opens has to be released when it is done. The caller gets the cancellation only
    # then, so that no run is created after it. If the thread hasn't begun, it never does.
    elsewhere: Elsewhere | None = None
    session: Session | None = None
    try:
        while session is None:
            opening = asyncio.ensure_future(asyncio.to_thread(slot.begin))
            try:
                session = await asyncio.shield(opening)
            except asyncio.CancelledError:
                if not slot.abandon():
                    opening.cancel()
                await wait_until_done(opening)
                raise
            except HeldElsewhere as held:
                elsewhere = elsewhere or slot.elsewhere()
                async for event in elsewhere.aevents(held):
                    if held.stream or slot.takes_output:
                        yield event
                slot.refuse_if_gone()
        async with aclosing(async_driver.drive(session)) as events:
            async for reported in events:
                if isinstance(reported, Verdict):
                    slot.finish(reported)
                else:
                    yield reported
    except BaseException:
        # An interrupt, or the caller has closed the run. A driver that had begun has released it by now.
        slot.abandon()
        raise


def _raising(events: Generator[dict[str, Any], None, None]) -> Generator[dict[str, Any], None, None]:
    """The events of a run whose error is raised, once it is over; those of branches elsewhere have no exception."""
    for event in events:
        if event["type"] == "error" and "exception" in event:
            for _ in events:
                pass
            raise event["exception"]
        yield event


async def _raising_async(
    events: AsyncGenerator[dict[str, Any], None],
) -> AsyncGenerator[dict[str, Any], None]:
    async for event in events:
        if event["type"] == "error" and "exception" in event:
            async for _ in events:
                pass
            raise event["exception"]
        yield event
