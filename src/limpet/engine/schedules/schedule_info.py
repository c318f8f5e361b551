"""What is known of a schedule, for lists and for a look at one: `ScheduleInfo`."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any, Final, NamedTuple

from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.operations.run_info import info_by_head
from limpet.engine.schedules.decisions import GRACE
from limpet.engine.schedules.schedule import Firing, Schedule
from limpet.engine.schedules.timetable import local_time
from limpet.errors import LimpetError
from limpet.graphs.secrets import masked
from limpet.journal.encoding.codec import decode_for_viewing

ACTIVE: Final = "active"
PAUSED: Final = "paused"
WAITING: Final = "waiting"
OVERDUE: Final = "overdue"
ENDED: Final = "ended"


class ScheduleInfo(NamedTuple):
    """What is known of a schedule. Times are in its time zone.

    `status` is `active`, `paused`, `waiting` (an earlier run has to end first), `overdue` (its time has come, and no
    worker has fired or skipped it: none knows its graph, or the log of one says why) or `ended` (no time is left).
    `next_time` is the next planned time that isn't decided; while it is paused, the one with which it would continue
    now. `last_time` is the newest one that is, or when a run was triggered, if that was later. `last_outcome` is
    whether it was `fired`, `skipped` or `failed`, and `last_run` the newest run. `fired`, `skipped` and `failed`
    count, triggered runs included, and `recent` has the newest firings, the newest last. `triggers` are the ids of
    triggered runs that no worker has started yet. `input` and `config` mask the secret keys.
    """

    name: str
    graph: str
    status: str
    when: str
    timezone: str
    next_time: datetime | None
    last_time: datetime | None
    last_outcome: str | None
    last_run: str | None
    fired: int
    skipped: int
    failed: int
    last_error: str
    overlap: str
    catch_up: str
    waiting: int
    triggers: tuple[str, ...]
    input: Any
    config: Any
    tags: tuple[str, ...]
    queue: str | None
    priority: int
    starts: datetime | None
    ends: datetime | None
    recent: tuple[Firing, ...]

    @property
    def paused(self) -> bool:
        """Whether it is paused."""
        return self.status == PAUSED


def schedule_info(schedule: Schedule, now: float) -> ScheduleInfo:
    """What is known of a schedule, by the store's clock."""
    plan, place, record = schedule.plan, schedule.place, schedule.record
    zone = plan.timetable.timezone
    newest = record.recent[-1] if record.recent else None
    runs = [firing.run_id for firing in record.recent if firing.run_id is not None]
    return ScheduleInfo(
        name=schedule.name,
        graph=plan.start.graph,
        status=_status(schedule, now),
        when=plan.timetable.text,
        timezone=zone,
        next_time=_local(_next_time(schedule, now), zone),
        last_time=_local(newest and newest.planned, zone),
        last_outcome=newest and newest.outcome,
        last_run=runs[-1] if runs else None,
        fired=record.fired,
        skipped=record.skipped,
        failed=record.failed,
        last_error=record.last_error,
        overlap=plan.overlap,
        catch_up=plan.catch_up,
        waiting=len(place.waiting),
        triggers=place.triggers,
        input=masked(decode_for_viewing(plan.start.input), plan.start.secrets),
        config=masked(decode_for_viewing(plan.start.config), plan.start.secrets),
        tags=plan.start.tags,
        queue=plan.start.queue,
        priority=plan.start.priority,
        starts=_local(plan.timetable.starts, zone),
        ends=_local(plan.timetable.ends, zone),
        recent=record.recent,
    )


def with_run_statuses(client: LeaseClient, info: ScheduleInfo) -> ScheduleInfo:
    """The same with the status of each run now; one that was deleted has none."""
    fired = [firing.run_id for firing in info.recent if firing.run_id is not None]
    heads = dict(zip(fired, client.store.heads(fired), strict=True))
    recent = []
    for firing in info.recent:
        head = heads.get(firing.run_id) if firing.run_id is not None else None
        if head is not None:
            with suppress(LimpetError):
                firing = firing._replace(status=info_by_head(client, head).shown_status)
        recent.append(firing)
    return info._replace(recent=tuple(recent))


def _status(schedule: Schedule, now: float) -> str:
    place = schedule.place
    if place.is_paused:
        return PAUSED
    due = place.due()
    if due is None:
        return ENDED
    if place.next is not None and place.next < now - GRACE:
        return OVERDUE
    return WAITING if place.waiting else ACTIVE


def _next_time(schedule: Schedule, now: float) -> float | None:
    planned = schedule.place.next
    if schedule.place.is_paused and planned is not None and planned <= now:
        return schedule.plan.timetable.after(now)
    return planned


def _local(moment: float | None, zone: str) -> datetime | None:
    if moment is None:
        return None
    return local_time(moment, zone)
