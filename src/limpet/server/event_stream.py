"""Live events of a run as server-sent events, resumed by the id of the last one that a client got."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from limpet.errors import LimpetError
from limpet.handle import RunHandle
from limpet.journal.encoding.json_values import to_json_value
from limpet.server.problems import problem_details
from limpet.server.values import LARGE, size_of, to_bytes, without_large

KEEP_ALIVE: Final = 15.0
"""Seconds after which a comment is sent, if nothing else is: proxies end connections that are silent."""

VALUES: Final = ("update", "appended", "merged", "replaced")
"""The fields of an event that have values of the state, by key."""


async def event_stream(handle: RunHandle[Any], after: str | None) -> AsyncIterator[bytes]:
    """The events of a run after a cursor, and from now on, until it ends."""
    events = handle.aevents(after)
    waiting: asyncio.Task[dict[str, Any]] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait([waiting], timeout=KEEP_ALIVE)
            if not done:
                yield b": nothing new\n\n"
                continue
            event = waiting.result()
            waiting = None
            yield message("event", shown_event(event), event["cursor"])
    except StopAsyncIteration:
        yield message("end", {})
    except LimpetError as problem:
        yield message("problem", problem_details(problem))
    finally:
        if waiting is not None:
            waiting.cancel()


def shown_event(event: dict[str, Any]) -> dict[str, Any]:
    """An event as JSON can express it. Large values are left out, and `large` has their sizes."""
    shown: dict[str, Any] = to_json_value(event)
    sizes: dict[str, int] = {}
    for field in VALUES:
        if isinstance(shown.get(field), dict):
            shown[field], large = without_large(shown[field])
            sizes |= large
    if sizes:
        shown["large"] = sizes
    if "data" in shown:
        size = size_of(shown["data"])
        if size > LARGE:
            del shown["data"]
            shown["large"] = {"data": size}
    return shown


def message(kind: str, data: dict[str, Any], cursor: str = "") -> bytes:
    """A server-sent event. A client that comes back names the cursor of the last one that it got."""
    identity = f"id: {cursor}\n" if cursor else ""
    return f"event: {kind}\n{identity}data: ".encode() + to_bytes(data) + b"\n\n"
