"""The times of cron expressions, on all days and in all zones, against a plain reading of them. H17."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limpet import UsageError
from limpet.engine.schedules.cron_times import CronTimes

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/Sao_Paulo",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Pacific/Apia",
    "Africa/Casablanca",
)

DAYS = 3
MANY = 40
"""How many times in a row are compared."""
FEW = settings(max_examples=40, deadline=None)


def local_times(cron: str, zone: str, start: str, count: int) -> list[str]:
    """The next times as the clocks there show them, with the offset from UTC."""
    place = ZoneInfo(zone)
    times = CronTimes(cron, place)
    moment: float | None = datetime.fromisoformat(start).replace(tzinfo=place).timestamp()
    found = []
    for _ in range(count):
        assert moment is not None
        moment = times.after(moment)
        assert moment is not None
        found.append(datetime.fromtimestamp(moment, place).strftime("%Y-%m-%d %H:%M %z"))
    return found


def test_a_time_that_does_not_exist_is_the_first_moment_after_the_gap() -> None:
    """H17: clocks that go forward over a planned time of day don't lose it."""
    assert local_times("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", 2) == [
        "2026-03-29 03:00 +0200",
        "2026-03-30 02:30 +0200",
    ]


def test_a_time_that_comes_twice_is_the_first_of_them() -> None:
    """H17: clocks that go back don't repeat a planned time of day."""
    assert local_times("30 2 * * *", "Europe/Berlin", "2026-10-25T00:00", 2) == [
        "2026-10-25 02:30 +0200",
        "2026-10-26 02:30 +0100",
    ]


def test_in_the_hour_that_comes_again_only_later_times_follow() -> None:
    """H17: a look between the two 02:45 finds the time of the next day, and not one that has passed."""
    second = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    found = CronTimes("45 2 * * *", ZoneInfo("Europe/Berlin")).after(second.timestamp())
    assert found == datetime(2026, 10, 26, 1, 45, tzinfo=UTC).timestamp()


def test_a_rhythm_continues_through_both_of_two_equal_hours() -> None:
    """H17: every half hour is every half hour, whatever the clocks show."""
    assert local_times("*/30 * * * *", "Europe/Berlin", "2026-10-25T01:30", 5) == [
        "2026-10-25 02:00 +0200",
        "2026-10-25 02:30 +0200",
        "2026-10-25 02:00 +0100",
        "2026-10-25 02:30 +0100",
        "2026-10-25 03:00 +0100",
    ]


def test_clocks_that_go_by_half_an_hour() -> None:
    """H17: on Lord Howe, 02:00 becomes 02:30 in spring, and 01:30 in autumn."""
    zone = "Australia/Lord_Howe"
    assert local_times("15 2 * * *", zone, "2026-10-03T12:00", 2) == [
        "2026-10-04 02:30 +1100",
        "2026-10-05 02:15 +1100",
    ]
    assert local_times("*/15 3 * * *", zone, "2026-10-04T00:00", 1) == ["2026-10-04 03:00 +1100"]
    assert local_times("0 * * * *", zone, "2026-04-05T00:30", 2) == [
        "2026-04-05 01:00 +1100",
        "2026-04-05 02:00 +1030",
    ]


def test_a_day_that_does_not_exist() -> None:
    """H17: Samoa went from the 29th to the 31st of December 2011."""
    assert local_times("30 2 * * *", "Pacific/Apia", "2011-12-29T01:00", 4) == [
        "2011-12-29 02:30 -1000",
        "2011-12-31 00:00 +1400",
        "2011-12-31 02:30 +1400",
        "2012-01-01 02:30 +1400",
    ]


def test_leap_days_and_the_ends_of_years() -> None:
    """H17: the 29th of February comes every four years, but not in 2100."""
    assert local_times("0 0 29 2 *", "UTC", "2096-02-28T00:00", 2) == [
        "2096-02-29 00:00 +0000",
        "2104-02-29 00:00 +0000",
    ]
    assert local_times("59 23 31 12 *", "Asia/Kathmandu", "2026-12-31T23:58", 2) == [
        "2026-12-31 23:59 +0545",
        "2027-12-31 23:59 +0545",
    ]
    assert local_times("@yearly", "America/Sao_Paulo", "2026-12-31T23:59", 1) == ["2027-01-01 00:00 -0300"]


@pytest.mark.parametrize(
    ("cron", "said"),
    [
        ("61 * * * *", "wrong minute"),
        ("* 24 * * *", "wrong hour"),
        ("0 0 30 2 *", "wrong day-of-month"),
        ("0 0 * * 1#6", "wrong day-of-week"),
        ("61 * * * *", 'write "minute hour day month weekday", such as'),
        ("0 0 1 * * *", "has 6 fields, not 5: .* For seconds, give an interval"),
        ("daily", "isn't a cron expression; did you mean '@daily'?"),
        ("@dayly", "isn't a cron expression; did you mean '@daily'?"),
        ("@soon", "isn't a cron expression: .*, or @daily"),
        ("", "has 0 fields"),
        ("0 0 29 2 1#5-", "can't be read"),
        ("1" * 5000 + " * * * *", "5008 characters"),
        (5, "is a text, not 5"),
    ],
)
def test_an_expression_that_cannot_be_read_is_refused(cron: str, said: str) -> None:
    """H17: with the field that is wrong."""
    with pytest.raises(UsageError, match=said.replace("[", r"\[")):
        CronTimes(cron, ZoneInfo("UTC"))


@FEW
@given(st.text(alphabet="0123456789*/-,#LW MONabc@?", max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    """H17: and no other error comes out of it."""
    try:
        times = CronTimes(text, ZoneInfo("Europe/Berlin"))
    except UsageError:
        return
    found = times.after(1.8e9)
    assert found is None or found > 1.8e9


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """H17: cron needs an extra."""
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(UsageError, match=r"pip install 'limpet\[schedules\]'; every='15m' works without it"):
        CronTimes("* * * * *", ZoneInfo("UTC"))


class Field(NamedTuple):
    """A field of an expression, and the numbers that it means."""

    text: str
    numbers: frozenset[int]


def fields(least: int, most: int) -> st.SearchStrategy[Field]:
    def term(first: int, last: int, step: int, form: str) -> Field:
        first, last = min(first, last), max(first, last)
        match form:
            case "*":
                return Field("*", frozenset(range(least, most + 1)))
            case "*/":
                return Field(f"*/{step}", frozenset(range(least, most + 1, step)))
            case "-":
                return Field(f"{first}-{last}", frozenset(range(first, last + 1)))
            case "-/" if first < last:
                return Field(f"{first}-{last}/{step}", frozenset(range(first, last + 1, step)))
            case _:
                return Field(str(first), frozenset([first]))

    numbers = st.integers(least, most)
    terms = st.builds(term, numbers, numbers, st.integers(1, 20), st.sampled_from(["*", "*/", "-", "-/", ""]))
    return st.lists(terms, min_size=1, max_size=2).map(
        lambda found: Field(
            ",".join(each.text for each in found), frozenset().union(*(e.numbers for e in found))
        )
    )


class Expression(NamedTuple):
    """A cron expression, read in the plainest way: which minutes on the wall does it mean?"""

    minute: Field
    hour: Field
    day: Field
    month: Field
    weekday: Field

    @property
    def text(self) -> str:
        return " ".join(field.text for field in self)

    def means(self, wall: datetime) -> bool:
        is_day = wall.day in self.day.numbers
        is_weekday = wall.isoweekday() % 7 in {each % 7 for each in self.weekday.numbers}
        if self.day.text.startswith("*") or self.weekday.text.startswith("*"):
            fits = is_day and is_weekday
        else:
            fits = is_day or is_weekday
        return (
            fits
            and wall.minute in self.minute.numbers
            and wall.hour in self.hour.numbers
            and wall.month in self.month.numbers
        )


EXPRESSIONS = st.builds(Expression, fields(0, 59), fields(0, 23), fields(1, 31), fields(1, 12), fields(0, 7))


def times_in_window(cron: str, zone: str, start: datetime) -> list[datetime]:
    end = (start + timedelta(days=DAYS)).timestamp()
    times = CronTimes(cron, ZoneInfo(zone))
    found: list[datetime] = []
    moment = times.after(start.timestamp() - 1)
    while moment is not None and moment < end and len(found) < MANY:
        found.append(datetime.fromtimestamp(moment, UTC))
        moment = times.after(moment)
    return found


def plain_times(expression: Expression, zone: str, start: datetime) -> list[datetime]:
    place = ZoneInfo(zone)
    found: list[datetime] = []
    for number in range(DAYS * 24 * 60):
        at = start + timedelta(minutes=number)
        if len(found) < MANY and expression.means(at.astimezone(place)):
            found.append(at)
    return found


@FEW
@given(EXPRESSIONS, st.datetimes(datetime(2019, 1, 1), datetime(2032, 1, 1)))
def test_in_utc_the_times_are_those_of_a_plain_reading(expression: Expression, start: datetime) -> None:
    """H17: minute by minute, through ends of months and years and leap days."""
    begin = start.replace(second=0, microsecond=0, tzinfo=UTC)
    assert times_in_window(expression.text, "UTC", begin) == plain_times(expression, "UTC", begin)


@FEW
@given(
    EXPRESSIONS.filter(lambda each: each.minute.text.startswith("*") or each.hour.text.startswith("*")),
    st.sampled_from(ZONES),
    st.sampled_from(
        [
            "2026-03-27T12:00",
            "2026-10-24T00:00",
            "2026-10-02T20:00",
            "2026-04-03T20:00",
            "2011-12-28T12:00",
            "2018-11-02T12:00",
            "2018-02-16T12:00",
            "2026-02-13T12:00",
        ]
    ),
)
def test_a_rhythm_is_every_minute_at_which_the_clocks_show_it(
    expression: Expression, zone: str, start: str
) -> None:
    """H17: in any zone, through changes of an hour, half an hour and a day."""
    begin = datetime.fromisoformat(start).replace(tzinfo=UTC)
    assert times_in_window(expression.text, zone, begin) == plain_times(expression, zone, begin)


@FEW
@given(EXPRESSIONS, st.sampled_from(ZONES), st.floats(1.2e9, 2.2e9))
def test_times_only_increase(expression: Expression, zone: str, start: float) -> None:
    """H17: each planned time is after the one before it, and found from any moment between."""
    times = CronTimes(expression.text, ZoneInfo(zone))
    found = [start]
    while len(found) < 6 and (following := times.after(found[-1])) is not None:
        found.append(following)
    for earlier, later in pairwise(found):
        assert earlier < later
        assert times.after((earlier + later) / 2) == later
        assert times.after(later - 1) == later
