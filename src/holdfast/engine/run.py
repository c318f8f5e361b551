"""A run in your hands: iterate it for its events, or read what came of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Any

from holdfast.engine.core import Verdict
from holdfast.engine.session import Session
from holdfast.engine.threads import drive
from holdfast.errors import Conflict, HoldfastError, RunNotFound, RunPaused, UsageError
from holdfast.graphs.state import State
from holdfast.journal.progress import Question
from holdfast.journal.store import PAUSED, RUNNING

Open = Callable[[], Session]


class Handle:
    """What a sync and an async run have in common: the id, and how far it has come in this process."""

    def __init__(self, run_id: str, open_session: Open) -> None:
        self.id = run_id
        self._open = open_session
        self._session: Session | None = None
        self._verdict: Verdict | None = None
        self._began = False
        self._cancelled = False

    @property
    def error(self) -> HoldfastError | None:
        """Why the run failed or was cancelled, if it did."""
        return self._verdict.error if self._verdict is not None else None

    @property
    def questions(self) -> list[Question]:
        """What the paused run waits to be told."""
        return list(self._verdict.questions) if self._verdict is not None else []

    def cancel(self) -> None:
        """Stop the run before its next node, from any thread. What it saved can be resumed."""
        self._cancelled = True
        if self._session is not None:
            self._session.stop.ask()

    def _begin(self) -> Session:
        self._began = True
        session = self._open()
        self._session, self.id = session, session.progress.run_id
        if self._cancelled:
            session.stop.ask()
        return session

    def _end(self, verdict: Verdict) -> None:
        self._verdict = verdict
        if isinstance(verdict.error, (Conflict, RunNotFound)):
            raise verdict.error

    def _outcome(self) -> State:
        verdict, state = self._verdict, self._state()
        if verdict is None:
            raise UsageError(f"run {self.id!r} was left before it came to a stop")
        if verdict.error is not None:
            raise verdict.error
        if verdict.status == PAUSED:
            assert self._session is not None
            p = self._session.progress
            way_on = "answer" if verdict.questions else "update"
            raise RunPaused(
                self.id, f"{p.reason}. resume({self.id!r}, {way_on}) goes on", verdict.questions, p.node
            )
        return state

    def _status(self) -> str:
        return self._verdict.status if self._verdict is not None else RUNNING

    def _state(self) -> State:
        if self._session is None:
            raise UsageError(f"run {self.id!r} has not begun")
        return self._session.core.state

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self._status() if self._began else 'not begun'}>"


class Run(Handle):
    """A run that is driven by whoever iterates it.

    It begins with the first event that is asked for, or when `state` or `status` is read before that, which
    runs it to its next stop. Leaving the iteration early gives the run back: anybody can resume it.
    """

    def __init__(self, run_id: str, open_session: Open) -> None:
        super().__init__(run_id, open_session)
        self._events: Generator[dict[str, Any], None, None] | None = None

    @property
    def status(self) -> str:
        """`running`, `paused`, `completed`, `failed` or `cancelled`."""
        self._drain_unless_begun()
        return self._status()

    @property
    def state(self) -> State:
        """The state as it is now."""
        self._drain_unless_begun()
        return self._state()

    def wait(self) -> Run:
        """Run to the next stop, letting the events go."""
        for _ in self:
            pass
        return self

    def result(self) -> State:
        """Run to the end and return the final state. Raises the run's error, or `RunPaused`."""
        self.wait()
        return self._outcome()

    def close(self) -> None:
        """Leave the run where it is, so that anybody can resume it."""
        if self._events is not None:
            self._events.close()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self._events is None:
            self._events = self._drive()
        return self._events

    def __next__(self) -> dict[str, Any]:
        return next(iter(self))

    def _drive(self) -> Generator[dict[str, Any], None, None]:
        self._end((yield from drive(self._begin())))

    def _drain_unless_begun(self) -> None:
        if not self._began:
            self.wait()


class AsyncRun(Handle):
    """The same for `async for`; `await run.wait()` and `await run.result()` run it to its next stop."""

    def __init__(self, run_id: str, open_session: Open) -> None:
        super().__init__(run_id, open_session)
        self._events: AsyncGenerator[dict[str, Any], None] | None = None

    @property
    def status(self) -> str:
        """`running`, `paused`, `completed`, `failed` or `cancelled`."""
        return self._status()

    @property
    def state(self) -> State:
        """The state as it is now. Raises `UsageError` before the run has begun."""
        return self._state()

    async def wait(self) -> AsyncRun:
        """Run to the next stop, letting the events go."""
        async for _ in self:
            pass
        return self

    async def result(self) -> State:
        """Run to the end and return the final state. Raises the run's error, or `RunPaused`."""
        await self.wait()
        return self._outcome()

    async def aclose(self) -> None:
        """Leave the run where it is, so that anybody can resume it."""
        if self._events is not None:
            await self._events.aclose()

    def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        if self._events is None:
            self._events = self._drive()
        return self._events

    async def _drive(self) -> AsyncGenerator[dict[str, Any], None]:
        import asyncio
        from contextlib import aclosing

        from holdfast.engine.aio import drive

        session = await asyncio.to_thread(self._begin)
        async with aclosing(drive(session)) as events:
            async for event in events:
                if isinstance(event, Verdict):
                    self._end(event)
                else:
                    yield event
