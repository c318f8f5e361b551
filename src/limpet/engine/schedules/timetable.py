"""A timetable: the planned times of a schedule, by a cron expression or an interval, each after the one before it.

All times are whole seconds since the epoch. A planned time depends on the timetable alone, and not on when a process
looks at it: that is why workers that know nothing of each other plan the same times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from math import ceil, floor, isfinite
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from limpet.durations import Moment, moment_of, seconds_in_text, span_mistake
from limpet.engine.schedules.cron_times import CronTimes
from limpet.errors import UsageError, did_you_mean

UTC_NAME: Final = "UTC"
SHORTEST_INTERVAL: Final = 1.0
EARLIEST: Final = 0
LATEST: Final = 253_370_764_800
"""The first and the last moment of a timetable: the years 1970 to 9998 exist on the clocks of every time zone."""
TRIGGER_STAMP: Final = "%Y%m%dT%H%M%S.%fZ-manual"
FIRST_LOOK_BACK: Final = 3600
"""Seconds before a moment in which the newest planned time is looked for first."""


class Timetable(NamedTuple):
    """When a schedule fires. It has a cron expression, or else an interval of seconds, counted from `origin`.

    No time is before `starts` or after `ends`, where they are given.
    """

    cron: str | None
    every: int | None
    timezone: str
    origin: int
    starts: int | None = None
    ends: int | None = None

    @property
    def text(self) -> str:
        """The cron expression, or the interval, to be read."""
        if self.every is None:
            return self.cron or ""
        return f"every {_span_text(self.every)}"

    def after(self, moment: float) -> int | None:
        """The first planned time after a moment; None if there is none."""
        if self.starts is not None:
            moment = max(moment, self.starts - 1)
        found: int | None
        if self.every is not None:
            steps = max((moment - self.origin) // self.every + 1, 0)
            found = self.origin + int(steps) * self.every
        else:
            found = cron_times(self.cron or "", self.timezone).after(moment)
        last = LATEST if self.ends is None else self.ends
        return found if found is not None and found <= last else None

    def times_from(self, first: float | None, until: float) -> Iterator[int]:
        """The planned times from `first`, which is one of them, up to a moment."""
        planned = None if first is None else int(first)
        while planned is not None and planned <= until:
            yield planned
            planned = self.after(planned)

    def newest(self, first: float, until: float) -> int:
        """The newest planned time from `first`, which is one of them, up to a moment that isn't before it.

        Found from its end, so that it doesn't matter how many there are.
        """
        back = FIRST_LOOK_BACK
        while until - back > first:
            found = self.after(until - back)
            if found is not None and found <= until:
                return _last(self.times_from(found, until))
            back *= 8
        return _last(self.times_from(first, until))


def make_timetable(
    cron: Any, every: Any, timezone: Any, starts: Moment | None, ends: Moment | None, now: float
) -> Timetable:
    """The timetable that a user describes. Raises `UsageError`."""
    if (cron is None) == (every is None):
        raise UsageError('a schedule has either cron="30 2 * * *" or every="15m"')
    zone = checked_zone(timezone)
    first = None if starts is None else ceil(checked_bound(starts, now, "starts", zone))
    last = None if ends is None else floor(checked_bound(ends, now, "ends", zone))
    if first is not None and last is not None and last < first:
        raise UsageError(f"ends ({ends!r}) is before starts ({starts!r}), so there is no time between them")
    if every is not None:
        interval = checked_interval(every)
        origin = int(now) + interval if first is None else first
        return Timetable(None, interval, zone, origin, first, last)
    return Timetable(CronTimes(cron, _zone(zone)).expression, None, zone, 0, first, last)


def checked_bound(given: Any, now: float, what: str, zone: str) -> float:
    """When a schedule starts or ends, in seconds since the epoch. Raises `UsageError`.

    A date that names no time zone is of that of the schedule, as its cron expression is.
    """
    moment = moment_of(given, now, what, _zone(zone))
    if not EARLIEST <= moment <= LATEST:
        raise UsageError(f"{what} must be in the years 1970 to 9998, not {given!r}")
    return moment


def checked_zone(name: Any) -> str:
    """The name of a time zone that this system knows. Raises `UsageError`."""
    if isinstance(name, str) and name:
        try:
            _zone(name)
        except (KeyError, ValueError, OSError):
            pass
        else:
            return name
    from zoneinfo import available_timezones

    known = available_timezones()
    if not known:
        way_out = "; this system has no time zones: pip install 'limpet[schedules]'"
    else:
        way_out = did_you_mean(str(name), known) or ': give a name such as "UTC" or "Europe/Berlin"'
    raise UsageError(f"there is no time zone {name!r}{way_out}")


@lru_cache(maxsize=1024)
def cron_times(cron: str, timezone: str) -> CronTimes:
    """The times of a cron expression, which is read once. Raises `UsageError`."""
    return CronTimes(cron, _zone(timezone))


def local_time(moment: float, timezone: str) -> datetime:
    """A moment as the clocks of a time zone show it."""
    return datetime.fromtimestamp(moment, _zone(timezone))


def stamp(planned: float) -> str:
    """A planned time as run ids have it: 20261115T0230Z, in UTC, with the seconds if there are some."""
    at = datetime.fromtimestamp(int(planned), UTC)
    return at.strftime("%Y%m%dT%H%M%SZ" if at.second else "%Y%m%dT%H%MZ")


def trigger_stamp(at: datetime) -> str:
    """When a run was triggered, as its id has it: 20261115T013000.000000Z-manual, in UTC."""
    return at.strftime(TRIGGER_STAMP)


def triggered_at(run_id: str) -> float | None:
    """When a run was triggered, by its id; None if it is the id of another run."""
    try:
        at = datetime.strptime(run_id.rpartition(":")[2], TRIGGER_STAMP)
    except ValueError:
        return None
    return at.replace(tzinfo=UTC).timestamp()


def _zone(name: str) -> tzinfo:
    """A time zone. UTC is known on a system without time zones, too."""
    if name == UTC_NAME:
        return UTC
    return ZoneInfo(name)


def checked_interval(given: Any) -> int:
    """How many seconds there are between two times. Raises `UsageError`."""
    seconds = given
    if isinstance(given, str):
        seconds = seconds_in_text(given)
        if seconds is None:
            raise UsageError(f"every is how long between two runs ('30s', '15m', '12h', '7d'), not {given!r}")
    mistake = span_mistake(seconds, positive=True, takes_timedelta=True)
    if mistake and not isinstance(given, str):
        raise UsageError(f"every {mistake}")
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    if not isfinite(seconds) or seconds < SHORTEST_INTERVAL or seconds != int(seconds):
        raise UsageError(f"every must be a whole number of seconds of at least 1, not {given!r}")
    return int(seconds)


def _span_text(seconds: int) -> str:
    for size, unit in ((604800, "w"), (86400, "d"), (3600, "h"), (60, "m")):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _last(times: Iterator[int]) -> int:
    return deque(times, maxlen=1)[0]
