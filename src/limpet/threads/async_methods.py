"""Async versions of methods that wait for a store: the same call, in a thread, doesn't block the event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from threading import Lock
from typing import Any, Concatenate, ParamSpec, TypeVar

from limpet.threads.awaiting import wait_until_done

P = ParamSpec("P")
R = TypeVar("R")
Owner = TypeVar("Owner")


def async_version(
    method: Callable[Concatenate[Owner, P], R], *, changes: bool = False
) -> Callable[Concatenate[Owner, P], Coroutine[Any, Any, R]]:
    """The async version of a method, to be defined next to it in its class. It takes, returns and raises the same.

    A call that has begun is finished, even if the caller that awaits it is cancelled. If the method `changes` what
    is stored, the caller gets the cancellation only then: nothing changes after it.
    """
    name = method.__name__

    async def call_in_thread(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> R:
        from asyncio import to_thread

        # Looked up by name, because a subclass may override the method.
        current: Callable[P, R] = getattr(self, name)
        if changes:
            return await change_in_thread(current, *args, **kwargs)
        return await to_thread(current, *args, **kwargs)

    call_in_thread.__name__ = f"a{name}"
    call_in_thread.__qualname__ = method.__qualname__.removesuffix(name) + call_in_thread.__name__
    call_in_thread.__doc__ = f"`{name}` without blocking the event loop."
    call_in_thread.__wrapped__ = method  # type: ignore[attr-defined]  # help() and signature() read it
    return call_in_thread


async def change_in_thread(change: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What `change` returns, in a thread. When the caller gets a cancellation, it is over, or it never begins."""
    import asyncio

    lock = Lock()
    has_begun = False
    is_cancelled = False

    def begin() -> R:
        nonlocal has_begun
        with lock:
            if is_cancelled:
                raise asyncio.CancelledError
            has_begun = True
        return change(*args, **kwargs)

    working = asyncio.ensure_future(asyncio.to_thread(begin))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        with lock:
            is_cancelled = True
        if not has_begun:
            working.cancel()
        await wait_until_done(working)
        raise
