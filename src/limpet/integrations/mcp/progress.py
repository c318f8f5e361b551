"""Progress of a run, for clients that ask for it with a call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from time import monotonic
from typing import Any, Final, cast

from mcp.server.context import ServerRequestContext

from limpet.errors import LimpetError
from limpet.handle import RunHandle

INTERVAL: Final = 0.1
"""Seconds between two messages, at least."""

LONGEST_MESSAGE: Final = 500

log = logging.getLogger("limpet.mcp")


@asynccontextmanager
async def reporting(context: ServerRequestContext[Any, Any], handle: RunHandle[Any]) -> AsyncIterator[None]:
    """Tell the client what happens in a run, while the block waits for it. Nothing without a progress token."""
    if (context.meta or {}).get("progress_token") is None:  # 0 is one, too
        yield
        return
    reporter = asyncio.ensure_future(_report(context, handle))
    try:
        yield
    finally:
        reporter.cancel()
        with suppress(asyncio.CancelledError):
            await reporter


async def _report(context: ServerRequestContext[Any, Any], handle: RunHandle[Any]) -> None:
    number = 0
    last = 0.0
    try:
        # An async generator, which is closed before the next await of the caller.
        async with aclosing(cast(Any, handle.aevents())) as events:
            async for event in events:
                text = _said(event)
                if not text:
                    continue
                number += 1
                if monotonic() - last >= INTERVAL:
                    last = monotonic()
                    await context.session.report_progress(float(number), None, text[:LONGEST_MESSAGE])
    except LimpetError as problem:  # the call itself says what is wrong
        log.debug("no progress of run %s: %s", handle.run_id, problem)


def _said(event: dict[str, Any]) -> str:
    """What is said of an event: names of nodes, and what they say of their progress; never a value of a state."""
    place = event.get("task") or event.get("branch") or event.get("node") or ""
    match event["type"]:
        case "start":
            return f"run {event['run_id']} has begun"
        case "step":
            return f"{place or event.get('node')} has completed"
        case "progress":
            total = event.get("total")
            done = event.get("done")
            counted = "" if done is None else f" {done}" if total is None else f" {done} of {total}"
            message = event.get("message")
            return f"{place}{counted}{f': {message}' if message else ''}"
        case _:
            return ""
