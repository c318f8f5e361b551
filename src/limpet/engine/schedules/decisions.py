"""Which planned times are fired and which are skipped, by the catch-up policy. It reads no clock and no store."""

from __future__ import annotations

from itertools import islice
from typing import Final, NamedTuple

from limpet.engine.schedules.schedule import Place, SchedulePlan

GRACE: Final = 60.0
"""Seconds by which a planned time may be late and still isn't missed, unless the next one has come."""

MAX_WAITING: Final = 1000
"""How many planned times wait for earlier runs at most. Later ones are decided when there is room."""

MAX_COUNTED: Final = 10_000
"""How many missed times in a row are counted. There may be millions, of an interval of a second."""


class Decision(NamedTuple):
    """The place after a look at the timetable, and the times that were missed: the newest, and how many."""

    place: Place
    missed: int | None = None
    missed_count: int = 0


def take_due(plan: SchedulePlan, place: Place, now: float) -> Decision:
    """Decide about all planned times up to now: those that are to be fired wait in the place, the others are missed.

    `all` takes each; `last` the newest; `none` the newest, if it isn't late.
    """
    room = MAX_WAITING - len(place.waiting)
    if place.next is None or place.next > now or room <= 0:
        return Decision(place)
    timetable = plan.timetable
    if plan.catch_up == "all":
        taken = tuple(islice(timetable.times_from(place.next, now), room))
        return Decision(_moved(plan, place, taken, taken[-1]))
    due = list(islice(timetable.times_from(place.next, now), MAX_COUNTED))
    newest = due[-1]
    if len(due) == MAX_COUNTED:
        newest = timetable.newest(newest, now)
    if plan.catch_up == "last" or now - newest <= GRACE:
        missed = [each for each in due if each != newest]
        return Decision(_moved(plan, place, (newest,), newest), missed[-1] if missed else None, len(missed))
    return Decision(_moved(plan, place, (), newest), newest, len(due))


def without_head(plan: SchedulePlan, place: Place) -> Place:
    """The place once the first of its times is decided."""
    if place.waiting:
        return place._replace(waiting=place.waiting[1:])
    assert place.next is not None
    return _moved(plan, place, (), place.next)


def _moved(plan: SchedulePlan, place: Place, taken: tuple[int, ...], newest: int) -> Place:
    following = plan.timetable.after(newest)
    return place._replace(next=following, waiting=(*place.waiting, *taken), newest=newest)
