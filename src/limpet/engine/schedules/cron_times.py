"""The times of a cron expression in a time zone. The expression is read by CronSim, which follows Debian's cron.

A day on which clocks change is the hard part. An expression with a fixed hour and minute means a time of day. If that
doesn't exist, as clocks go forward over it, it is the first moment after the gap; and if it comes twice, the first.
An expression whose hour or minute begins with `*` means a rhythm: it matches each moment at which the clock on the
wall shows a matching time, so an hour that comes twice counts twice, and one that doesn't exist isn't there.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final

from limpet.errors import UsageError, did_you_mean

FIELDS: Final = 5
MAX_LENGTH: Final = 200
"""Characters that a cron expression may have."""

NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

FORM: Final = 'write "minute hour day month weekday", such as "30 2 * * *" for 02:30 every day, or @daily'
"""How an expression is written: the end of messages about wrong ones."""

DAY: Final = 86400
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class CronTimes:
    """The moments that a cron expression means in a time zone, in whole seconds since the epoch.

    Raises `UsageError` for an expression that can't be read, or that never comes true.
    """

    def __init__(self, expression: str, zone: tzinfo) -> None:
        self.expression = _checked(expression)
        self._zone = zone
        minute, hour, *_ = self.expression.split()
        self._is_rhythm = minute.startswith("*") or hour.startswith("*")

    def after(self, moment: float) -> int | None:
        """The first time after a moment; None if there is none in the next 50 years, or before the year 9999."""
        start = int(moment // 1)
        try:
            if self._is_rhythm:
                return self._next_of_rhythm(start)
            return self._next_time_of_day(start)
        except (OverflowError, StopIteration):
            return None

    def _next_time_of_day(self, after: int) -> int | None:
        # In the second of two equal hours, the first times that come are those of the first one.
        return next(found for each in self._matches(self._local(after)) if (found := _seconds(each)) > after)

    def _next_of_rhythm(self, after: int) -> int:
        # Between two changes of the clocks local time passes evenly, so it can be searched without a zone.
        start = after
        while True:
            offset = self._offset(start + 1)
            found = _seconds(next(self._matches(_wall_clock(start, offset))).replace(tzinfo=UTC)) - offset
            change = self._first_change(start + 1, found)
            if change is None:
                return found
            start = change - 1

    def _first_change(self, start: int, end: int) -> int | None:
        """The first moment after `start`, and up to `end`, from which on the clocks go otherwise."""
        offset = self._offset(start)
        before = start
        while before < end:
            later = min(before + DAY, end)
            if self._offset(later) != offset:
                while later - before > 1:
                    middle = (before + later) // 2
                    if self._offset(middle) == offset:
                        before = middle
                    else:
                        later = middle
                return later
            before = later
        return None

    def _matches(self, after: datetime) -> Iterator[datetime]:
        simulated: Iterator[datetime] = _cronsim().CronSim(self.expression, after)
        return simulated

    def _local(self, moment: int) -> datetime:
        return (EPOCH + timedelta(seconds=moment)).astimezone(self._zone)

    def _offset(self, moment: int) -> int:
        offset = self._local(moment).utcoffset()
        assert offset is not None
        return int(offset.total_seconds())


def _wall_clock(moment: int, offset: int) -> datetime:
    return (EPOCH + timedelta(seconds=moment + offset)).replace(tzinfo=None)


def _seconds(moment: datetime) -> int:
    return int((moment - EPOCH).total_seconds())


def _checked(given: Any) -> str:
    """An expression that can be read. Raises `UsageError`."""
    if not isinstance(given, str):
        raise UsageError(f"cron is a text, not {given!r}: {FORM}")
    if len(given) > MAX_LENGTH:
        raise UsageError(f"cron has {len(given)} characters, and may have {MAX_LENGTH}: {FORM}")
    expression = NICKNAMES.get(given.strip().lower(), given.strip())
    fields = expression.split()
    if len(fields) != FIELDS:
        raise UsageError(f"cron {given!r} {_wrong_fields(fields)}")
    cronsim = _cronsim()
    try:
        first = next(cronsim.CronSim(expression, datetime(2000, 1, 1)))
    except StopIteration:
        raise UsageError(f"cron {given!r} never comes true") from None
    except Exception as problem:  # of a library, for a text that may be anything
        said = ""
        if isinstance(problem, cronsim.CronSimError):
            said = f": {str(problem).replace('Bad', 'wrong').lower()}"
        raise UsageError(f"cron {given!r} can't be read{said}; {FORM}") from None
    assert isinstance(first, datetime)
    return " ".join(fields)


def _wrong_fields(fields: list[str]) -> str:
    """What is wrong with an expression that hasn't the right number of fields."""
    if len(fields) != 1:
        said = f"has {len(fields)} fields, not {FIELDS}: {FORM}"
        if len(fields) == FIELDS + 1:
            said += ". For seconds, give an interval (every) in place of cron"
        return said
    word = "@" + fields[0].lower().lstrip("@")
    meant = did_you_mean(word, NICKNAMES)
    if word in NICKNAMES:
        meant = f"; did you mean {word!r}?"
    if meant:
        return f"isn't a cron expression{meant}"
    return f"isn't a cron expression: {FORM}"


def _cronsim() -> Any:
    try:
        import cronsim
    except ImportError:
        missing = UsageError("schedules with cron need the package cronsim: pip install 'limpet[schedules]'")
        raise missing.with_advice("every='15m' works without it") from None
    return cronsim
