"""Moments and spans of time, in whichever form they are given."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import isfinite
from typing import Any

from limpet.errors import UsageError

Span = float | timedelta
"""How long: seconds, or a `timedelta`."""
Moment = Span | datetime
"""When: so many seconds from now, or a `datetime` that knows its zone."""


def seconds_of(span: Any, what: str) -> float:
    """A span in seconds. Raises `UsageError` that names `what` it is for."""
    if isinstance(span, timedelta):
        span = span.total_seconds()
    if isinstance(span, (int, float)) and type(span) is not bool and isfinite(span) and span >= 0:
        return float(span)
    raise UsageError(f"{what} is a number of seconds from 0 or a timedelta, not {span!r}")


def moment_of(given: Any, now: float, what: str) -> float:
    """A moment in seconds since the epoch. Raises `UsageError` that names `what` it is for."""
    if not isinstance(given, datetime):
        return now + seconds_of(given, what)
    if given.tzinfo is None:
        raise UsageError(f"{what}: {given!r} doesn't say its zone; write datetime(…, tzinfo=UTC)")
    return given.timestamp()
