"""Values read from what was typed, and times to be read."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from datetime import UTC, datetime
from typing import Any

from limpet.errors import UsageError

UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))
FAR_AWAY = 60 * 86400.0
"""Seconds from which on a time is shown by its date."""

LARGEST_PORT = 65535

MAX_DISTANCE = 1e10
"""Seconds from which on a time may have no date."""


def utc_time(seconds: float | None) -> str:
    """A time of the store's clock for people to read, in UTC."""
    if seconds is None:
        return ""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "after the year 9999"  # an imported run may say so


def relative_time(seconds: float | None, now: float) -> str:
    """The same as seen from now, in few characters: `5 min ago`, `in 2 h`; a date, if it is far away."""
    if seconds is None:
        return ""
    distance = abs(now - seconds)
    if distance >= FAR_AWAY:
        return utc_time(seconds).partition(" ")[0] if distance < MAX_DISTANCE else utc_time(seconds)
    for size, unit in UNITS:
        if distance >= size:
            amount = f"{distance // size:.0f} {unit}"
            return f"{amount} ago" if seconds <= now else f"in {amount}"
    return "now"


def read_value(text: str) -> Any:
    """What was typed: parsed as JSON if possible, otherwise taken as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def per_graph(text: str) -> tuple[str | None, int]:
    """How many runs at once, and of which graph; None for each. Raises `ArgumentTypeError`."""
    name, separator, number = text.rpartition("=")
    if not number.isdecimal() or int(number) < 1 or (separator and not name):
        raise ArgumentTypeError(f"takes a whole number of at least 1, or NAME=number, not {text!r}")
    return name or None, int(number)


def queue_list(text: str) -> list[str]:
    """The names of queues, separated by commas. Raises `ArgumentTypeError`."""
    from limpet.graphs.names import checked_name

    try:
        return [checked_name("queue", name.strip()) for name in text.split(",")]
    except UsageError as mistake:
        raise ArgumentTypeError(mistake.message) from None


def at_least_one(text: str) -> int:
    """A number of things that are wanted. Raises `ArgumentTypeError`."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise ArgumentTypeError(f"takes a whole number of at least 1, not {text!r}")
    return number


def port_number(text: str) -> int:
    """A port to listen on; 0 stands for any that is free. Raises `ArgumentTypeError`."""
    if not (text.isdecimal() and text.isascii() and len(text) <= 5 and int(text) <= LARGEST_PORT):
        raise ArgumentTypeError(f"takes a number from 0 to {LARGEST_PORT}, not {text!r}")
    return int(text)
