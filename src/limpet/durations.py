"""Points in time and spans of time, in the forms that users give them in, and what is wrong with others.

Every setting that is a length of time is checked here, so that none reaches a lock, a timer or a store that would
refuse it with an error of its own.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any, Final

from limpet.errors import UsageError

Span = float | timedelta
"""How long: seconds, or a `timedelta`."""

Moment = Span | datetime | str
"""When: seconds from now, a `timedelta`, a text such as "90s", "30m", "12h", "7d", "2w", a `datetime` with a time
zone, or such a date and time as ISO 8601 has it (in UTC, unless it names a zone)."""

PastMoment = datetime | timedelta | float | str
"""When, in the past: a `datetime` with a time zone, seconds since the epoch, a date and time as ISO 8601 has it (in
UTC, unless it names a zone), or how long ago: a `timedelta`, or a text such as "90s", "30m", "12h", "7d", "2w"."""

UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
"""The seconds of each unit in a text such as "7d"."""

UNIT_NAMES: Final = ("sec", "second", "min", "minute", "hour", "day", "week")
"""What may be written for a unit by mistake. "m" is a minute, so a month isn't among them."""

EARLIEST_TIMESTAMP: Final = 1e8
"""Seconds since the epoch, in 1973. A smaller number is taken for a mistake: it is a span of time, or a year."""

LATEST_TIMESTAMP: Final = 253402300800.0
"""Seconds since the epoch, at the end of the year 9999, up to which calendars go."""

LONGEST_SPAN: Final = 100 * 365 * 86400.0
"""Seconds that a span of time may have: a hundred years. No system can wait for more than 292."""


LONGEST_ANSWER: Final = 1e6
"""Seconds to wait at most for a server's answer. The calls of the system count milliseconds in 31 bits."""


def span_mistake(
    given: Any, *, positive: bool = False, takes_timedelta: bool = False, unlimited: bool = False
) -> str:
    """What is wrong with a span of time, as the rest of a sentence after its name; empty if it can be used.

    It is a number of seconds of at least 0: `positive`, above 0; with `takes_timedelta`, a `timedelta`, too; and with
    `unlimited` it may be infinite.
    """
    seconds = given.total_seconds() if takes_timedelta and isinstance(given, timedelta) else given
    if isinstance(seconds, (int, float)) and type(seconds) is not bool:
        if seconds > LONGEST_SPAN and not unlimited:
            return f"must be at most {LONGEST_SPAN:.0f} seconds, which are 100 years, not {given!r}"
        if seconds > 0 or (seconds == 0 and not positive):
            return ""
    wanted = "a number of seconds above 0" if positive else "a number of seconds (at least 0)"
    if takes_timedelta:
        wanted += " or a timedelta"
    return f"must be {wanted}, not {given!r}"


def seconds_of(span: Any, what: str) -> float:
    """A span in seconds. Raises `UsageError` that names the setting, `what`."""
    mistake = span_mistake(span, takes_timedelta=True)
    if mistake:
        raise UsageError(f"{what} {mistake}")
    return float(span.total_seconds() if isinstance(span, timedelta) else span)


def store_seconds(given: Any, what: str, *, positive: bool = False) -> float:
    """A span of time among the options of a store, in seconds. Raises `UsageError` that names the option, `what`."""
    mistake = span_mistake(given, positive=positive)
    if mistake:
        raise UsageError(f"{what} {mistake}")
    return float(given)


def patience_of(given: Any, what: str) -> float:
    """For how many seconds a caller waits for something. Raises `UsageError` that names the setting, `what`.

    None and infinity mean without limit, and a number below 0 not at all: it may be what is left of a longer wait.
    """
    if given is None:
        return LONGEST_SPAN
    if not isinstance(given, (int, float)) or type(given) is bool or given != given:
        raise UsageError(f"{what} must be a number of seconds, not {given!r}")
    return float(min(max(given, 0.0), LONGEST_SPAN))


def moment_of(given: Any, now: float, what: str, zone: tzinfo = UTC) -> float:
    """A point in time in seconds since the epoch. Raises `UsageError` that names the setting, `what`.

    A date in a text is of this time zone, unless it names one.
    """
    if isinstance(given, str):
        return _moment_in_text(given, now, what, zone)
    if not isinstance(given, datetime):
        return now + seconds_of(given, what)
    if given.tzinfo is None:
        raise UsageError(f"{what}: {given!r} has no time zone; write datetime(…, tzinfo=UTC)")
    return given.timestamp()


def _moment_in_text(text: str, now: float, what: str, zone: tzinfo) -> float:
    seconds = seconds_in_text(text)
    if seconds is not None:
        return now + seconds_of(seconds, what)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{what} is a time, not {text!r}: give how long from now ('90s', '30m', '12h', '7d'), or a date such as "
            f"'2026-05-01T12:00Z'{_moment_meant(text, 'tomorrow')}"
        ) from None
    return (at if at.tzinfo is not None else at.replace(tzinfo=zone)).timestamp()


def seconds_in_text(text: str) -> float | None:
    """The seconds in a text such as "90s", "30m", "12h", "7d" or "2w"; None if it isn't one."""
    import re  # late: a program that only runs graphs doesn't need it

    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", text)
    if found is None:
        return None
    return float(found[1]) * UNITS[found[2]]


def past_moment_of(given: Any, now: float, what: str) -> float:
    """A `PastMoment` in seconds since the epoch. Raises `UsageError` that names the setting, `what`."""
    if isinstance(given, datetime):
        return moment_of(given, now, what)
    if isinstance(given, timedelta):
        return now - seconds_of(given, what)
    if isinstance(given, str):
        seconds = seconds_in_text(given)
        if seconds is not None:
            return now - min(seconds, LONGEST_SPAN)
        try:
            at = datetime.fromisoformat(given)
        except ValueError:
            raise _no_past_moment(given, what) from None
        if at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        return at.timestamp()
    if type(given) in (int, float) and EARLIEST_TIMESTAMP <= given <= LATEST_TIMESTAMP:
        return float(given)
    raise _no_past_moment(given, what)


def _no_past_moment(given: Any, what: str) -> UsageError:
    meant = _moment_meant(given, "yesterday")
    mistake = UsageError(
        f"{what} is a time, not {given!r}: give how long ago ('90s', '30m', '12h', '7d'), or a date such as "
        f"'2026-05-01T12:00Z'{meant}"
    )
    if meant:
        return mistake
    return mistake.with_advice("a datetime with a time zone, and seconds since the epoch, are times as well")


def _moment_meant(given: Any, a_day_away: str) -> str:
    """The end of a message about what isn't a time: how to write what was meant, if that is clear."""
    meant = ""
    if isinstance(given, date):
        meant = given.isoformat()
    elif isinstance(given, str):
        number, _, unit = given.strip().lower().partition(" ")
        word = unit.strip().removesuffix("s")
        if word and seconds_in_text(f"{number}{word[0]}") is not None and word in UNIT_NAMES:
            meant = f"{number}{word[0]}"
        elif given.strip().lower() == a_day_away:
            meant = "1d"
    return f"; did you mean {meant!r}?" if meant else ""
