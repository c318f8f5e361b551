"""Points in time and spans of time, in the forms that users give them in."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import isfinite
from typing import Any

from limpet.errors import UsageError

Span = float | timedelta
"""How long: seconds, or a `timedelta`."""

Moment = Span | datetime
"""When: seconds from now, or a `datetime` with a time zone."""


def seconds_of(span: Any, what: str) -> float:
    """A span in seconds. Raises `UsageError` that names the setting, `what`."""
    if isinstance(span, timedelta):
        span = span.total_seconds()
    if isinstance(span, (int, float)) and type(span) is not bool and isfinite(span) and span >= 0:
        return float(span)
    raise UsageError(f"{what} must be a number of seconds (at least 0) or a timedelta, not {span!r}")


def moment_of(given: Any, now: float, what: str) -> float:
    """A point in time in seconds since the epoch. Raises `UsageError` that names the setting, `what`."""
    if not isinstance(given, datetime):
        return now + seconds_of(given, what)
    if given.tzinfo is None:
        raise UsageError(f"{what}: {given!r} has no time zone; write datetime(…, tzinfo=UTC)")
    return given.timestamp()
