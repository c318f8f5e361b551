"""Values read from what was typed, and times to be read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any


def utc_time(seconds: float | None) -> str:
    """A time of the store's clock for people to read, in UTC."""
    if seconds is None:
        return ""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "after the year 9999"  # an imported run may say so


def read_value(text: str) -> Any:
    """What was typed: parsed as JSON if possible, otherwise taken as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
