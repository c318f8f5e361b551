"""`Limit`: how many calls or runs may be under way at once, and how many may begin in a time, over all processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Self

from limpet.durations import LONGEST_SPAN
from limpet.errors import UsageError
from limpet.graphs.names import checked_name

UNITS: Final = {
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
}
"""The seconds of each unit in a rate such as "60/min"."""

MOST: Final = 1_000_000
"""What a limit may allow at most. One that allows more is a mistake, or needs no limit."""


class Rate(NamedTuple):
    """At most `number` in any `seconds` seconds."""

    number: int
    seconds: float

    def __str__(self) -> str:
        for unit in ("day", "hour", "min", "s"):
            periods = self.seconds / UNITS[unit]
            if periods >= 1 and periods == int(periods):
                return f"{self.number}/{unit}" if periods == 1 else f"{self.number}/{int(periods)}{unit}"
        return f"{self.number}/{self.seconds:g}s"


class _Fields(NamedTuple):
    name: str
    concurrency: int | None
    rate: Rate | None
    queues: tuple[str, ...]


class Limit(_Fields):
    """A limit over all processes that share a store.

    `concurrency` is how many may be under way at once. `rate` is how many may begin in any period: "60/min", "5/s",
    "1000/hour", "10/2min". Nodes and graphs name the limit, by this object or by its name. With `queues`, it is that
    of all runs in these queues, whatever their graph, and `compile(limits=…)` of any graph declares it. Without any
    values it refers to a limit that is declared elsewhere.

    `limpet limits set` and `Limits(store).set` change the values while programs run, and win over those given here.
    Raises `UsageError`.
    """

    __slots__ = ()

    def __new__(
        cls,
        name: str,
        concurrency: int | None = None,
        rate: str | None = None,
        queues: Iterable[str] = (),
    ) -> Self:
        checked_name("limit", name)
        return super().__new__(
            cls, name, checked_concurrency(concurrency), checked_rate(rate), checked_queues(queues)
        )

    @property
    def has_values(self) -> bool:
        """Whether it says anything besides its name."""
        return self.concurrency is not None or self.rate is not None or bool(self.queues)


def checked_concurrency(given: Any) -> int | None:
    """How many may be under way at once; None for any number. Raises `UsageError`."""
    if given is None:
        return None
    if type(given) is not int or not 1 <= given <= MOST:
        raise UsageError(
            f"concurrency is how many may be under way at once, a whole number from 1 to {MOST:,}, not {given!r}"
        )
    return given


def checked_rate(given: Any) -> Rate | None:
    """How many may begin in a time; None for any number. Raises `UsageError`."""
    if given is None or isinstance(given, Rate):
        return given
    if isinstance(given, str):
        rate = _rate_in(given)
        if rate is not None:
            return rate
    raise UsageError(
        "a rate says how many may begin in a number of s, min, hours or days, such as '60/min', '5/s', '1000/hour' "
        f"or '10/2min', not {given!r}"
    )


def checked_queues(given: Any) -> tuple[str, ...]:
    """The names of queues, sorted. Raises `UsageError`."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f"queues is a list of names, not {given!r}")
    return tuple(sorted({checked_name("queue", each) for each in given}))


def _rate_in(text: str) -> Rate | None:
    import re  # late: a program without limits doesn't need it

    found = re.fullmatch(r"\s*(\d{1,7})\s*/\s*(\d{1,9}(?:\.\d{1,9})?)?\s*([a-z]+)\s*", text.lower())
    if found is None:
        return None
    unit = found[3]
    if unit not in UNITS and len(unit) > 2:  # "ms" isn't the plural of "m"
        unit = unit.removesuffix("s")
    count = int(found[1])
    seconds = float(found[2] or 1) * UNITS.get(unit, 0.0)
    if not 1 <= count <= MOST or not 0.001 <= seconds <= LONGEST_SPAN:
        return None
    return Rate(count, seconds)
