"""Adding a schedule: where there is none of its name, and instead of the one that there is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from limpet.engine.schedules.schedule import Place, Schedule, SchedulePlan
from limpet.engine.schedules.timetable import Timetable
from limpet.errors import DamagedDocument, ScheduleEnded, UsageError
from limpet.journal.encoding.codec import decode


class Addition(NamedTuple):
    """A schedule that a user adds."""

    name: str
    plan: SchedulePlan
    is_paused: bool
    replaces: bool

    def as_new(self, now: float) -> Schedule:
        """The schedule, where there is none of its name. Raises `UsageError` if it has no time, `ScheduleEnded`."""
        self._check_has_time(now)
        timetable = self.plan.timetable
        first = timetable.after(_begins_after(timetable, now))
        return Schedule(self.name, self.plan, Place(first, is_paused=self.is_paused))

    def instead_of_damaged(self, damage: DamagedDocument, now: float) -> Schedule:
        """The schedule instead of one that can't be read. Raises that error unless it replaces.

        It isn't known how far that one had come, or whether it was paused. This one has the times from now on, so
        that none is fired twice.
        """
        if not self.replaces:
            raise damage
        new = self.as_new(now)
        return new._replace(place=new.place._replace(next=self.plan.timetable.after(now)))

    def instead_of(self, known: Schedule, now: float) -> Schedule:
        """The schedule with the new values; the same, if they are equal. Raises `UsageError` unless it replaces.

        Only new times are checked: a program adds its schedules whenever it starts, also when one has ended. A new
        end in the past ends the schedule.
        """
        plan = self.plan
        old = known.plan.timetable
        if plan.timetable._replace(origin=old.origin) == old:
            # An interval is counted from when it was first added.
            plan = plan._replace(timetable=old)
        different = _differences(known.plan, plan)
        if different and not self.replaces:
            others = UsageError(f"schedule {self.name!r} exists with other values: {', '.join(different)}")
            raise others.with_advice("replace=True gives it the new ones", "replace")
        if not different:
            plan = known.plan
        place = known.place
        if self.replaces and self.is_paused:
            place = place._replace(is_paused=True)
        if plan.timetable != old:
            with suppress(ScheduleEnded):
                self._check_has_time(now)
            begins = max(_begins_after(plan.timetable, now), place.newest or 0)
            place = place._replace(next=plan.timetable.after(begins))
        return known._replace(plan=plan, place=place)

    def _check_has_time(self, now: float) -> None:
        timetable = self.plan.timetable
        if timetable.after(_begins_after(timetable, now)) is not None:
            return
        if timetable.ends is None:
            raise UsageError(f"schedule {self.name!r} has no time in the next 50 years")
        if timetable.ends <= now:
            raise ScheduleEnded(self.name)
        raise UsageError(f"schedule {self.name!r} has no time before its end")


def _differences(known: SchedulePlan, plan: SchedulePlan) -> list[str]:
    """What is different between two plans, by the names that `add` gives it."""
    pairs: Mapping[str, tuple[Any, Any]] = {
        "graph": (known.start.graph, plan.start.graph),
        "input": (_value(known.start.input), _value(plan.start.input)),
        "config": (_value(known.start.config), _value(plan.start.config)),
        "tags": (known.start.tags, plan.start.tags),
        "queue": (known.start.queue, plan.start.queue),
        "priority": (known.start.priority, plan.start.priority),
        "cron": (known.timetable.cron, plan.timetable.cron),
        "every": (known.timetable.every, plan.timetable.every),
        "timezone": (known.timetable.timezone, plan.timetable.timezone),
        "starts": (known.timetable.starts, plan.timetable.starts),
        "ends": (known.timetable.ends, plan.timetable.ends),
        "overlap": (known.overlap, plan.overlap),
        "catch_up": (known.catch_up, plan.catch_up),
    }
    return [name for name, (before, after) in pairs.items() if before != after]


def _value(encoded: bytes) -> Any:
    try:
        return decode(encoded)
    except ValueError:  # a class that isn't known any more
        return encoded


def _begins_after(timetable: Timetable, now: float) -> float:
    """After which moment the first time of a new timetable is: one that starts in the past has times to catch up."""
    if timetable.starts is None:
        return now
    return min(now, timetable.starts - 1)
