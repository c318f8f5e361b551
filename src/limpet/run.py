"""A run in your hands: iterate it for its events, or read what came of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from limpet.engine.drivers.sync_driver import drive
from limpet.engine.loop.commands import Verdict
from limpet.engine.loop.state_changes import detached
from limpet.engine.sessions.session import Session
from limpet.errors import Conflict, LimpetError, RunNotFound, RunPaused, UsageError
from limpet.graphs.state import State
from limpet.journal.store import COMPLETED, PAUSED, RUNNING
from limpet.journal.waits import Question

if TYPE_CHECKING:
    from limpet.drawing.run_marks import RunMarks

Open = Callable[[], Session]
S = TypeVar("S", bound=State)

DEGRADED = "degraded"
"""The status of a run that goes on, or has ended, although its last save failed."""


class Seen:
    """What has been seen of a run in this process. Shared by the handle and the generator that drives the run.

    The generator knows nothing else of the handle, so that both go, and the lease with them, as soon as
    nobody iterates any more.
    """

    __slots__ = ("_lock", "began", "cancelled", "left", "open", "run_id", "session", "verdict")

    def __init__(self, run_id: str, open_session: Open) -> None:
        self.run_id, self.open = run_id, open_session
        self.session: Session | None = None
        self.verdict: Verdict | None = None
        self.began = False
        self.cancelled = False
        self.left = False
        self._lock = Lock()

    def begin(self) -> Session:
        """Open the run. If nobody wants it any more by then, its lease is given back at once."""
        self.began = True
        session = self.open()
        with self._lock:
            self.session, self.run_id = session, session.id
            if self.left:
                session.close()
        if self.cancelled:
            session.stop.ask()
        return session

    def leave(self) -> None:
        """Nobody waits for the run to be opened any more, in whichever thread that happens."""
        with self._lock:
            self.left = True
            if self.session is not None:
                self.session.close()

    def end(self, verdict: Verdict) -> None:
        """The run came to a stop. Raises if it isn't this process's run any more."""
        self.verdict = verdict
        if isinstance(verdict.error, (Conflict, RunNotFound)):
            raise verdict.error

    def status(self) -> str:
        status = self.verdict.status if self.verdict is not None else RUNNING
        unsaved = self.session is not None and self.session.core.context.unsaved is not None
        return DEGRADED if unsaved and status in (RUNNING, COMPLETED) else status

    def state(self) -> State:
        if self.session is None:
            raise UsageError(f"run {self.run_id!r} has not begun")
        state = self.session.core.state
        return state._copy() if self.verdict is not None else detached(state)

    def standing(self) -> RunMarks | None:
        """How the run stands, for a picture: by its journal where it has one, else by what is known here."""
        from limpet.drawing.run_marks import standing_of, standing_so_far

        session = self.session
        if session is None:
            return None
        plan, client = session.compiled.plan, session.compiled.client
        if client is not None:
            tail = client.store.read(self.run_id, first=1)
            if tail.records:
                return standing_of(plan, tail)._replace(status=self.status())
        return standing_so_far(plan, session.progress, self.status())

    def outcome(self) -> State:
        """The final state, or the exception that says why there is none."""
        verdict = self.verdict
        if verdict is None or self.session is None:
            raise UsageError(f"run {self.run_id!r} was left before it came to a stop")
        if verdict.error is not None:
            raise verdict.error
        if verdict.status == PAUSED:
            p = self.session.progress
            way_on = "answer" if verdict.questions else "update"
            way_on = "{question id: answer, …}" if len(verdict.questions) > 1 else way_on
            reason = f"{p.reason} — resume({self.run_id!r}, {way_on}) goes on"
            raise RunPaused(self.run_id, reason, verdict.questions, p.place())
        return self.state()


class Handle:
    """What a sync and an async run have in common: the id, and how far it has come in this process."""

    def __init__(self, run_id: str, open_session: Open) -> None:
        self._seen = Seen(run_id, open_session)

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._seen.run_id

    @property
    def error(self) -> LimpetError | None:
        """Why the run failed or was cancelled, if it did."""
        return self._seen.verdict.error if self._seen.verdict is not None else None

    @property
    def questions(self) -> list[Question]:
        """What the paused run waits to be told."""
        return list(self._seen.verdict.questions) if self._seen.verdict is not None else []

    def cancel(self) -> None:
        """Stop the run before its next node, from any thread. What it saved can be resumed."""
        self._seen.cancelled = True
        if self._seen.session is not None:
            self._seen.session.stop.ask()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self._seen.status() if self._seen.began else 'not begun'}>"

    def _repr_html_(self) -> str | None:
        """What a notebook shows: the graph, coloured by how far the run has come. Begins nothing, never raises."""
        try:
            from limpet.drawing import notebook

            standing = self._seen.standing()
            if standing is None or self._seen.session is None:
                return notebook.words_as_html(repr(self))
            return notebook.run_as_html(self._seen.session.compiled.plan, standing, self.questions)
        except Exception:
            return None  # a notebook then shows the repr


class Run(Handle, Generic[S]):
    """A run that is driven by whoever iterates it.

    It begins with the first event that is asked for, or when `state` or `status` is read before that, which
    runs it to its next stop. `close()`, or letting go of the run, gives it back: anybody can resume it.
    """

    def __init__(self, run_id: str, open_session: Open) -> None:
        super().__init__(run_id, open_session)
        self._events = _driven(self._seen)

    @property
    def status(self) -> str:
        """`running`, `paused`, `completed`, `failed` or `cancelled`; `degraded` while what it did isn't saved."""
        self._drain_unless_begun()
        return self._seen.status()

    @property
    def state(self) -> S:
        """The state as it is now."""
        self._drain_unless_begun()
        return cast(S, self._seen.state())

    def wait(self) -> Run[S]:
        """Run to the next stop, letting the events go."""
        for _ in self._events:
            pass
        return self

    def result(self) -> S:
        """Run to the end and return the final state. Raises the run's error, or `RunPaused`."""
        self.wait()
        return cast(S, self._seen.outcome())

    def close(self) -> None:
        """Leave the run where it is, so that anybody can resume it."""
        self._events.close()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._events

    def __next__(self) -> dict[str, Any]:
        return next(self._events)

    def _drain_unless_begun(self) -> None:
        if not self._seen.began:
            self.wait()


class AsyncRun(Handle, Generic[S]):
    """The same for `async for`; `await run.wait()` and `await run.result()` run it to its next stop."""

    def __init__(self, run_id: str, open_session: Open) -> None:
        super().__init__(run_id, open_session)
        self._events = _driven_async(self._seen)

    @property
    def status(self) -> str:
        """`running`, `paused`, `completed`, `failed` or `cancelled`; `degraded` while what it did isn't saved."""
        return self._seen.status()

    @property
    def state(self) -> S:
        """The state as it is now. Raises `UsageError` before the run has begun."""
        return cast(S, self._seen.state())

    async def wait(self) -> AsyncRun[S]:
        """Run to the next stop, letting the events go."""
        async for _ in self._events:
            pass
        return self

    async def result(self) -> S:
        """Run to the end and return the final state. Raises the run's error, or `RunPaused`."""
        await self.wait()
        return cast(S, self._seen.outcome())

    async def aclose(self) -> None:
        """Leave the run where it is, so that anybody can resume it."""
        await self._events.aclose()

    def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        return self._events

    async def __anext__(self) -> dict[str, Any]:
        return await anext(self._events)


def _driven(seen: Seen) -> Generator[dict[str, Any], None, None]:
    seen.end((yield from drive(seen.begin())))


async def _driven_async(seen: Seen) -> AsyncGenerator[dict[str, Any], None]:
    import asyncio
    from contextlib import aclosing

    from limpet.engine.drivers import async_driver as aio

    opening = asyncio.ensure_future(asyncio.to_thread(seen.begin))
    try:
        session = await asyncio.shield(opening)
    except asyncio.CancelledError:
        seen.leave()
        raise
    async with aclosing(aio.drive(session)) as events:
        async for event in events:
            if isinstance(event, Verdict):
                seen.end(event)
            else:
                yield event
