"""Waiting, on an event loop, for a thread that can't be interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import Future


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
