"""`Retention`: how long runs are kept once they have stopped, by status, age and number; and what that lets go.

A fork has all of its own, so a policy may take the run that it was made from.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from time import time
from typing import NamedTuple

from limpet.errors import Conflict, RunNotFound, UsageError
from limpet.journal.store import ENDED, STATUSES, RunFilter, RunHead, Store

Duration = float | timedelta | str
"""Seconds, a timedelta, or a text such as "90s", "30m", "12h", "7d", "2w"."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True, slots=True)
class Retention:
    """How long runs stay that nobody advances: for each status, the time since the run last changed.

    None, the default, keeps runs of that status for good, however old; so what waits or runs is only let go if you
    say so. `newest` is how many ended runs of each graph are kept at most, whatever their age. A run that somebody
    holds always stays. Times are seconds, timedeltas, or texts such as "7d", and are seconds when you read them.
    Raises `UsageError` for what makes no sense, and for a policy that would never let go of anything.
    """

    completed: Duration | None = None
    failed: Duration | None = None
    cancelled: Duration | None = None
    paused: Duration | None = None
    running: Duration | None = None
    newest: int | None = None

    def __post_init__(self) -> None:
        for status in STATUSES:
            object.__setattr__(self, status, _seconds(status, getattr(self, status)))
        if self.newest is not None and (type(self.newest) is not int or self.newest < 0):
            raise UsageError(f"Retention: newest is a whole number from 0, or None, not {self.newest!r}")
        if not self.statuses:
            raise UsageError("Retention: give a time for a status, or newest; else nothing would ever go")

    @property
    def statuses(self) -> tuple[str, ...]:
        """The statuses of runs that it may let go."""
        counted = ENDED if self.newest is not None else ()
        return tuple(status for status in STATUSES if status in counted or self.age(status) is not None)

    def age(self, status: str) -> float | None:
        """For how many seconds a run of this status is kept; None is for good."""
        found: float | None = getattr(self, status)
        return found


class Expired(NamedTuple):
    """A run that a policy lets go, and why. `updated` is when it last changed, in seconds since the epoch."""

    run_id: str
    graph: str
    status: str
    updated: float
    reason: str


def expired(
    store: Store, policy: Retention, graph: str | None = None, clock: Callable[[], float] = time
) -> list[Expired]:
    """The runs that a policy lets go now, of this graph or of all; nothing is changed.

    Ages are told by `clock`, this machine's unless you say so.
    """
    found: list[Expired] = []
    counted: Counter[str] = Counter()
    now = clock()
    for head in bare(store).list(RunFilter(statuses=policy.statuses, graph=graph)):
        if head.status in ENDED:
            counted[head.graph] += 1
        held = head.lease_until is not None and head.lease_until > now
        reason = "" if held else _reason(head, policy, now, counted[head.graph])
        if reason:
            found.append(Expired(head.run_id, head.graph, head.status, head.updated, reason))
    return found


def let_go(store: Store, which: Iterable[Expired]) -> list[Expired]:
    """Delete these runs, except those that have changed since they were found; returns those that went."""
    inner, gone = bare(store), []
    for each in which:
        try:
            head = inner.head(each.run_id)
            if (head.status, head.updated) == (each.status, each.updated):
                inner.delete(each.run_id)
                gone.append(each)
        except (RunNotFound, Conflict):
            pass  # somebody else has deleted it, or goes on with it
    return gone


def bare(store: Store) -> Store:
    """What is inside of an encrypted store: what a run holds doesn't matter here, so no key has to be there."""
    inner: Store = getattr(store, "inner", store)
    return inner


def _reason(head: RunHead, policy: Retention, now: float, number: int) -> str:
    """Why a run goes, or an empty str. `number` is its place among the ended runs of its graph, from the newest."""
    kept, age = policy.age(head.status), now - head.updated
    if kept is not None and age >= kept:
        return f"{head.status}, and unchanged for {in_words(age)}; kept for {in_words(kept)}"
    if policy.newest is not None and head.status in ENDED and number > policy.newest:
        return f"not among the {policy.newest} newest ended runs of {head.graph!r}"
    return ""


def in_words(seconds: float) -> str:
    """So many seconds, in the largest unit that fits."""
    unit = next((unit for unit in "dhm" if seconds >= _UNITS[unit]), "s")
    return f"{seconds / _UNITS[unit]:.1f}".removesuffix(".0") + f" {unit}"


def _seconds(status: str, given: object) -> float | None:
    if given is None:
        return None
    seconds: object = given
    if isinstance(given, timedelta):
        seconds = given.total_seconds()
    elif isinstance(given, str) and (found := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", given)):
        seconds = float(found[1]) * _UNITS[found[2]]
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not math.isfinite(seconds) or seconds < 0:  # type: ignore[arg-type, operator]  # it is one
        raise UsageError(
            f"Retention: {status} is a number of seconds from 0, a timedelta, a text such as '12h' or '7d', or None; "
            f"not {given!r}"
        )
    return float(seconds)  # type: ignore[arg-type]  # it is a number
