"""The timeline of a run as server-sent events: what changed since a version, and what the store knows of the run.

The events of the run only wake it: however many there are, a client gets a few messages a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final

from starlette.concurrency import run_in_threadpool

from limpet.engine.following.cursor import EventCursor
from limpet.errors import LimpetError
from limpet.handle import RunHandle
from limpet.server.event_stream import KEEP_ALIVE, message
from limpet.server.problems import problem_details

GATHERED: Final = 0.25
"""Seconds between two messages, at least."""

LOOKED_AGAIN: Final = 3.0
"""Seconds after which the run is looked at again without an event: a lease that is claimed or lost makes none."""

Changes = Callable[[str], dict[str, Any]]
"""Gives what changed in the timeline since a version."""


async def timeline_stream(
    handle: RunHandle[Any], newest: EventCursor, changes: Changes, version: str
) -> AsyncIterator[bytes]:
    """What changes in a timeline after a version, until the run ends. `newest` is where new events begin."""
    wake = asyncio.Event()
    follower = asyncio.create_task(_follow(handle, newest, wake))
    known_run: dict[str, Any] = {}
    silence = 0.0
    try:
        while True:
            wake.clear()
            has_ended = follower.done()
            found = await run_in_threadpool(changes, version)
            if found["rows"] or found["reset"] or found["run"] != known_run:
                version = found["version"]
                known_run = found["run"]
                silence = 0.0
                yield message("timeline", found, version)
            if found["more"]:
                continue
            if has_ended:
                break
            await asyncio.sleep(GATHERED)
            with suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), LOOKED_AGAIN)
                continue
            silence += LOOKED_AGAIN
            if silence >= KEEP_ALIVE:
                silence = 0.0
                yield b": nothing new\n\n"
        follower.result()
        yield message("end", {})
    except LimpetError as problem:
        yield message("problem", problem_details(problem))
    finally:
        follower.cancel()


async def _follow(handle: RunHandle[Any], newest: EventCursor, wake: asyncio.Event) -> None:
    """Wake the stream for each event, and when the run ends."""
    try:
        async for _ in handle.aevents(newest.to_text(handle.run_id)):
            wake.set()
    finally:
        wake.set()
