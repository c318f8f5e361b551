"""A resource that a factory makes: opened once in a process, or once on each event loop, and closed at the end.

What an async factory makes belongs to an event loop. One task, its keeper, opens it, waits, and closes it: when
`close()` asks for it, or when the loop is about to end and cancels its tasks.
"""

from __future__ import annotations

import atexit
import inspect
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import Context
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from weakref import WeakSet, WeakValueDictionary

from limpet.errors import ResourceFailed
from limpet.graphs.parameters import ABSENT
from limpet.graphs.resources.opening import (
    Opened,
    Resource,
    entered,
    finish,
    has_to_be_awaited,
    is_async_factory,
    is_derived,
    nothing,
)
from limpet.threads.event_loop import process_loop, taken_lock

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

CLOSE_TIMEOUT = 10.0
"""Seconds that are waited for a resource that is closed on the event loop of another thread."""


class LiveResource:
    """A resource that a factory makes: in this process, opened when it is first needed.

    `token` tells resources apart where functions that take them arrive in another process.
    """

    def __init__(self, name: str, made_by: Resource, token: str = "") -> None:
        self.name = name
        self._made_by = made_by
        self._token = token or uuid4().hex
        make = made_by.make
        if inspect.isasyncgenfunction(make):
            make = asynccontextmanager(make)
        elif inspect.isgeneratorfunction(make):
            make = contextmanager(make)
        self._factory: Callable[[], Any] = make
        self._is_async = is_async_factory(make)
        self.forget()
        _all.add(self)
        _by_token[self._token] = self

    def forget(self) -> None:
        """Nothing is open: at first, and in a forked child, which leaves what is open to its parent."""
        self._lock = RLock()
        self._opened: Opened | None = None
        self._keepers: dict[AbstractEventLoop, _Keeper] = {}

    def get(self) -> Any:
        """The object, for sync code. Opens it if it isn't open; raises `ResourceFailed`."""
        opened = self._opened
        if opened is not None:
            return opened.value
        made: Any = ABSENT
        if not self._is_async:
            made = self._open_in_process()
            opened = self._opened
            if opened is not None:
                return opened.value
        try:
            return process_loop.run(partial(self._get_from_keeper, made))
        except RuntimeError as error:
            raise self._failed("opened", error) from error

    async def get_on_loop(self) -> Any:
        """The object, for an async node. Opens it on this event loop if that has to be so."""
        made: Any = ABSENT
        if self._opened is None and not self._is_async:
            made = self._open_in_process()
        opened = self._opened
        if opened is not None:
            return opened.value
        return await self._get_from_keeper(made)

    def close(self) -> None:
        """Close it wherever it is open. The next node that needs it opens it again. Raises `ResourceFailed`."""
        try:
            result = self._take_opened().close()
            if inspect.isawaitable(result):
                finish(result)
            for keeper in self._take_keepers():
                keeper.close()
        except Exception as error:
            raise self._failed("closed", error) from error

    async def aclose(self) -> None:
        """The same without blocking this event loop."""
        import asyncio

        try:
            result = self._take_opened().close()
            if inspect.isawaitable(result):
                await result
            for keeper in self._take_keepers():
                if keeper.loop is asyncio.get_running_loop():
                    await keeper.aclose()
                else:
                    await asyncio.to_thread(keeper.close)
        except Exception as error:
            raise self._failed("closed", error) from error

    def _take_opened(self) -> Opened:
        open_resources.pop(self, None)
        with self._lock:
            opened = self._opened
            self._opened = None
        return opened or Opened(None, nothing)

    def _take_keepers(self) -> list[_Keeper]:
        return list(self._keepers.values())

    def _open_in_process(self) -> Any:
        """Call the factory and open what it made. What has to be awaited is returned."""
        # One thread calls the factory, and the others wait for it here.
        with self._lock:
            if self._opened is not None:
                return ABSENT
            try:
                # It outlives the node that needs it first, so it doesn't see that node's context.
                made = Context().run(self._factory)
                if has_to_be_awaited(made):
                    self._is_async = True
                    return made
                self._opened = Context().run(entered, made, self._made_by.close)
            except Exception as error:
                raise self._failed("opened", error) from error
            _note_open(self)
            return ABSENT

    async def _get_from_keeper(self, made: Any) -> Any:
        import asyncio

        loop = asyncio.get_running_loop()
        keeper = self._keepers.get(loop)
        if keeper is None or keeper.is_over:
            for ended in [each for each in self._keepers if each.is_closed()]:
                self._keepers.pop(ended, None)
            keeper = self._keepers[loop] = _Keeper(self, made)
            _note_open(self)
        try:
            # Shielded: a node that is cancelled doesn't cancel what others wait for.
            return await asyncio.shield(keeper.opened)
        except Exception as error:
            raise self._failed("opened", error) from error

    @asynccontextmanager
    async def open_on_loop(self, made: Any) -> AsyncIterator[Any]:
        """Open it, and close it in the same task: what is built on anyio needs that."""
        if made is ABSENT:
            made = self._factory()
        close = self._made_by.close
        if inspect.isawaitable(made):
            made = await made
        if close is None and is_derived(made, AbstractAsyncContextManager):
            async with made as value:
                yield value
            return
        opened = entered(made, close)
        try:
            yield opened.value
        finally:
            result = opened.close()
            if inspect.isawaitable(result):
                await result

    def _failed(self, what: str, error: BaseException) -> ResourceFailed:
        if isinstance(error, ResourceFailed):
            return error
        return ResourceFailed(self.name, f"couldn't be {what}: {type(error).__name__}: {error}")

    def __reduce__(self) -> Any:
        return _in_this_process, (self.name, self._made_by, self._token)


def _in_this_process(name: str, made_by: Resource, token: str) -> LiveResource:
    """A resource that has come from another process: one for all functions that take it."""
    known = _by_token.get(token)
    if known is None:
        known = LiveResource(name, made_by, token)
        _arrived.append(known)
    return known


class _Keeper:
    """Keeps a resource open on one event loop."""

    def __init__(self, resource: LiveResource, made: Any) -> None:
        import asyncio

        self.loop = asyncio.get_running_loop()
        self.opened: Future[Any] = self.loop.create_future()
        self.opened.add_done_callback(_retrieve)
        self.is_over = False
        self._problem: BaseException | None = None
        self._closing = asyncio.Event()
        self._task = self.loop.create_task(
            self._keep(resource, made), name=f"limpet resource {resource.name}", context=Context()
        )

    async def _keep(self, resource: LiveResource, made: Any) -> None:
        import asyncio

        try:
            async with resource.open_on_loop(made) as value:
                self.opened.set_result(value)
                try:
                    await self._closing.wait()
                except asyncio.CancelledError:
                    # The loop is about to end. What closes the resource may wait as in any other task.
                    self._task.uncancel()
        except Exception as error:
            self._note(resource, error)
        finally:
            self.is_over = True
            if not self.opened.done():
                self.opened.cancel()

    def _note(self, resource: LiveResource, error: Exception) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)
        elif self._closing.is_set():
            self._problem = error
        else:
            _log_unclosed(resource, error)

    async def aclose(self) -> None:
        """Close the resource, on its own event loop. Raises what that raises."""
        import asyncio

        self._closing.set()
        await asyncio.wait({self._task})
        if self._problem is not None:
            raise self._problem

    def close(self) -> None:
        """Close the resource from a thread that isn't that of its event loop."""
        import asyncio

        if self.is_over or self.loop.is_closed():
            return
        if not self.loop.is_running():
            # Its program runs the loop piece by piece, and has left it open.
            self.loop.run_until_complete(self.aclose())
            return
        if asyncio._get_running_loop() is self.loop:
            raise RuntimeError("it is open on this event loop, which can't wait for itself; await aclose()")
        done = taken_lock()

        def begin() -> None:
            self._closing.set()
            self._task.add_done_callback(lambda _: done.release())

        self.loop.call_soon_threadsafe(begin)
        if not done.acquire(True, CLOSE_TIMEOUT):
            raise TimeoutError(f"it isn't closed after {CLOSE_TIMEOUT:.0f} s")
        if self._problem is not None:
            raise self._problem


def _retrieve(opened: Future[Any]) -> None:
    """Look at the outcome, so that asyncio doesn't report an error that no node waits for any longer."""
    if not opened.cancelled():
        opened.exception()


_all: WeakSet[LiveResource] = WeakSet()
_by_token: WeakValueDictionary[str, LiveResource] = WeakValueDictionary()
_arrived: list[LiveResource] = []
"""Those of other processes that are made again here. Functions come and go with each call; these stay."""
open_resources: dict[LiveResource, None] = {}
"""Those that are open in this process, in the order in which they were opened."""


def _note_open(resource: LiveResource) -> None:
    open_resources.pop(resource, None)
    open_resources[resource] = None
    if "multiprocessing.util" in sys.modules:
        from multiprocessing import parent_process, util

        # A process of a pool ends without what `atexit` has.
        if parent_process() is not None:
            util.Finalize(None, _close_all, exitpriority=100)


def _close_all() -> None:
    """The process ends: close what is open, the newest first."""
    for resource in reversed(list(open_resources)):
        try:
            resource.close()
        except Exception as problem:
            _log_unclosed(resource, problem)


def _log_unclosed(resource: LiveResource, problem: BaseException) -> None:
    from logging import getLogger

    getLogger("limpet.graph").warning("resource %r couldn't be closed: %s", resource.name, problem)


def _after_fork_in_child() -> None:
    open_resources.clear()
    for resource in list(_all):
        resource.forget()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
