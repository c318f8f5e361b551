"""Live events of a run as server-sent events, resumed by the id of the last one that a client got."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from typing import Any, Final
from weakref import WeakKeyDictionary

from starlette.concurrency import run_in_threadpool

from limpet.errors import LimpetError
from limpet.frontends.problems import problem_details
from limpet.frontends.values import LARGE, may_be_large, shown_value, size_of, to_bytes, without_large

KEEP_ALIVE: Final = 15.0
"""Seconds after which a comment is sent, if nothing else is: proxies end connections that are silent."""

VALUES: Final = ("update", "appended", "merged", "replaced")
"""The fields of an event that have values of the state, by key."""

MASKED: Final = (*VALUES, "data", "value", "answers")
"""The fields in which keys may be secret. Those of an event itself may have the name of such a key."""

NOTHING_NEW: Final = b": nothing new\n\n"
"""A comment, which clients ignore."""

Event = dict[str, Any]

_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def event_stream(events: AsyncIterator[Event], secrets: Collection[str]) -> AsyncIterator[bytes]:
    """The events of a run, from where they begin until it ends."""
    waiting: asyncio.Task[Event] | None = None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait([waiting], timeout=KEEP_ALIVE)
            if not done:
                yield NOTHING_NEW
                continue
            event = waiting.result()
            waiting = None
            if may_be_large(event):
                async with _one_at_a_time():
                    sent = await run_in_threadpool(_event_message, event, secrets)
                yield sent
            else:
                yield _event_message(event, secrets)
    except StopAsyncIteration:
        yield message("end", {})
    except LimpetError as problem:
        yield message("problem", problem_details(problem))
    finally:
        # The client may have gone, so nothing is waited for here. Events that are waited for end with their task. If
        # they aren't, or one has just come that isn't sent any more, they are ended now, and not as garbage.
        if waiting is not None and not waiting.done():
            waiting.cancel()
        elif isinstance(events, AsyncGenerator):
            await events.aclose()


def _one_at_a_time() -> asyncio.Lock:
    """Has the large events of an event loop be made into messages one by one.

    A large one keeps Python busy. Many followers of a run get it at once, and would leave the loop no time.
    """
    return _locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())


def _event_message(event: Event, secrets: Collection[str]) -> bytes:
    return message("event", shown_event(event, secrets), event["cursor"])


def shown_event(event: Event, secrets: Collection[str] = (), whole: bool = False) -> Event:
    """An event as JSON can express it. Unless it is wanted whole, `large` has the sizes of large values instead.

    The events of a run have masks under secret keys already, but not inside of instances of classes.
    """
    shown: Event = {}
    for field, value in event.items():
        shown[field] = shown_value(value, secrets if field in MASKED else ())
    if whole:
        return shown
    fields = [field for field in VALUES if isinstance(shown.get(field), dict)]
    small, large = without_large(
        {(field, key): shown[field][key] for field in fields for key in shown[field]}
    )
    for field in fields:
        shown[field] = {key: value for (of, key), value in small.items() if of == field}
    sizes = {key: size for (_, key), size in large.items()}
    for field in ("data", "value", "answers"):
        if field in shown and size_of(shown[field]) > LARGE:
            sizes[field] = size_of(shown.pop(field))
    if sizes:
        shown["large"] = sizes
    return shown


def message(kind: str, data: dict[str, Any], cursor: str = "") -> bytes:
    """A server-sent event. A client that comes back names the cursor of the last one that it got."""
    identity = f"id: {cursor}\n" if cursor else ""
    return f"event: {kind}\n{identity}data: ".encode() + to_bytes(data) + b"\n\n"
