"""Waiting, on an event loop, for a thread that can't be interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


async def wait_until_done(working: Future[Any]) -> None:
    """Wait until a thread is done, however often the task that waits is cancelled meanwhile.

    For a task that has been cancelled, and raises that afterwards: its caller gets the cancellation only when nothing
    changes any more. What the thread raised is dropped, and asyncio doesn't log it.
    """
    import asyncio

    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError:
            continue
    if not working.cancelled():
        working.exception()


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a thread. If the task is cancelled meanwhile, it gets that only when the call is over."""
    import asyncio

    working = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await wait_until_done(working)
        raise
