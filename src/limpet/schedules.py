"""`Schedules`: runs that start by themselves, at planned times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from limpet.durations import Moment, Span
from limpet.engine.leases.lease_client import LeaseClient, client_for, nudge_supervisors
from limpet.engine.schedules.prepared_runs import begin, discard
from limpet.engine.schedules.schedule import (
    CATCH_UPS,
    OVERLAPS,
    CatchUp,
    Overlap,
    Place,
    Schedule,
    ScheduledStart,
    SchedulePlan,
    find_schedule,
    read_schedule,
    write_schedule,
)
from limpet.engine.schedules.schedule_info import ScheduleInfo, schedule_info, with_run_statuses
from limpet.engine.schedules.timetable import Timetable, local_time, make_timetable
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.sessions.start import StartRequest, queued_progress, tag_names
from limpet.engine.supervisor.catalog import Graph
from limpet.errors import ScheduleNotFound, UnstorableValue, UsageError, did_you_mean
from limpet.graphs.names import SCHEDULES, checked_name
from limpet.graphs.secrets import hide_secret_path
from limpet.journal.encoding.codec import decode, encode
from limpet.stores.absent import is_absent, path_of, refuse_absent
from limpet.stores.opening import open_store
from limpet.threads.async_methods import async_version

Times = list[datetime]
ScheduleInfos = list[ScheduleInfo]

MAX_TIMES = 10_000
"""How many planned times can be asked for at once."""


class Schedules:
    """The schedules in a store: add them, look at them, pause, resume, trigger and delete them.

    `store` is whatever `open_store` takes. A schedule is kept in the store, and fired by any worker, or `supervise`,
    that knows its graph. Each planned time is fired once, or skipped as its policies say.

    Every method has an async version, whose name begins with an `a`, that doesn't block the event loop.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._opened: LeaseClient | None = None

    def add(
        self,
        name: str,
        graph: Graph,
        *,
        cron: str | None = None,
        every: Span | str | None = None,
        timezone: str = "UTC",
        input: Any = None,
        config: Mapping[str, Any] | None = None,
        tags: Iterable[str] = (),
        queue: str | None = None,
        priority: int = 0,
        overlap: Overlap = "skip",
        catch_up: CatchUp = "none",
        starts: Moment | None = None,
        ends: Moment | None = None,
        paused: bool = False,
        replace: bool = False,
    ) -> ScheduleInfo:
        """Have runs of `graph` start at planned times, with this input, config, tags, queue and priority.

        The times are those of a `cron` expression in a `timezone`, or they come `every` so often ("15m"): first one
        interval from now, or at `starts`. None is before `starts` or after `ends`. The run of a time has the id
        `NAME:20261115T0230Z`, in UTC, and the tag `schedule:NAME`.

        `overlap` says what happens at a time when an earlier run of the schedule hasn't ended: `skip` the time,
        `queue` it until that run has ended, `allow` both, or `cancel_old`. `catch_up` says what happens with times
        that were missed because no worker was there: `none` skips those that are over a minute late, `last` fires the
        newest, and `all` fires each.

        Adding a schedule again with the same values changes nothing. Other values need `replace=True`. A schedule
        that is replaced stays paused if it was. If its times stay the same, so does its place among them; otherwise
        it continues with the first new time from now on.

        Raises `UsageError` for what can't be used, such as an input that the graph refuses or a schedule of this
        name with other values, and `DefinitionError` if the store would keep secrets of the graph in plain text.
        """
        if isinstance(graph, (str, type)) or not callable(getattr(graph, "compiled", None)):
            wrong = UsageError(f"a schedule starts runs of a StateGraph or a Workflow, not {graph!r}")
            raise wrong.with_advice("give the graph itself")
        client = self._opened or self._open()
        compiled = graph.compiled().on_store(client.store)
        checked_name("schedule", name)
        _check_policies(overlap, catch_up, priority)
        now = client.now()
        plan = SchedulePlan(
            _checked_start(compiled, input, config, tag_names(tags), queue, priority),
            make_timetable(cron, every, timezone, starts, ends, now),
            overlap,
            catch_up,
        )
        if plan.timetable.after(_begins_after(plan.timetable, now)) is None:
            raise UsageError(f"schedule {name!r} has no time in the next 50 years")
        added = self._put(_Addition(name, plan, paused, replace), client, now)
        nudge_supervisors(client.store)
        return schedule_info(added, now)

    aadd = async_version(add, changes=True)

    def get(self, name: str) -> ScheduleInfo:
        """What is known of a schedule, with the statuses of its newest runs. Raises `ScheduleNotFound`."""
        schedule, _ = self._find(name)
        return with_run_statuses(self._client, schedule_info(schedule, self._client.now()))

    aget = async_version(get)

    def list(self) -> ScheduleInfos:
        """All schedules, by name."""
        now = self._client.now()
        documents = self._client.store.list_documents(SCHEDULES)
        return [schedule_info(read_schedule(document), now) for document in documents]

    alist = async_version(list)

    def next_times(self, name: str, count: int = 5) -> Times:
        """The next planned times of a schedule, in its time zone, whether it is paused or not.

        Raises `ScheduleNotFound`.
        """
        if type(count) is not int or not 0 <= count <= MAX_TIMES:
            raise UsageError(f"count must be a whole number from 0 to {MAX_TIMES}, not {count!r}")
        schedule, _ = self._find(name)
        timetable = schedule.plan.timetable
        planned = timetable.after(self._client.now())
        times: Times = []
        while planned is not None and len(times) < count:
            times.append(local_time(planned, timetable.timezone))
            planned = timetable.after(planned)
        return times

    anext_times = async_version(next_times)

    def pause(self, name: str) -> None:
        """Fire a schedule no more until it is resumed. Runs that it has started go on. Raises `ScheduleNotFound`."""
        self._change(name, lambda schedule: schedule.place._replace(is_paused=True))

    apause = async_version(pause, changes=True)

    def resume(self, name: str) -> None:
        """Fire a paused schedule again. The times during the pause are left out. Raises `ScheduleNotFound`."""
        now = self._client.now()

        def resumed(schedule: Schedule) -> Place:
            place = schedule.place
            if not place.is_paused:
                return place
            following = place.next
            if following is not None and following <= now:
                following = schedule.plan.timetable.after(now)
            return place._replace(is_paused=False, next=following)

        self._change(name, resumed)
        nudge_supervisors(self._client.store)

    aresume = async_version(resume, changes=True)

    def trigger(self, name: str) -> str:
        """Start a run of a schedule now, besides its planned times, and return the id that the run will have.

        A worker that knows the graph starts it, whatever the overlap policy is, and even if the schedule is paused.
        Raises `ScheduleNotFound`.
        """
        run_id = ""

        def triggered(schedule: Schedule) -> Place:
            nonlocal run_id
            at = datetime.fromtimestamp(self._client.now(), UTC)
            run_id = _manual_id(name, at)
            while run_id in schedule.place.triggers or self._client.store.heads([run_id])[0] is not None:
                at += timedelta(microseconds=1)
                run_id = _manual_id(name, at)
            return schedule.place._replace(triggers=(*schedule.place.triggers, run_id))

        self._change(name, triggered)
        nudge_supervisors(self._client.store)
        return run_id

    atrigger = async_version(trigger, changes=True)

    def delete(self, name: str) -> None:
        """Delete a schedule. Runs that it has started go on. Raises `ScheduleNotFound`."""
        client = self._client
        while True:
            schedule, version = self._find(name)
            for run_id in schedule.place.starting:  # these count as started
                begin(client, run_id, client.now())
            if client.store.delete_document(SCHEDULES + name, version):
                _discard_undecided(client, schedule)
                return

    adelete = async_version(delete, changes=True)

    def _put(self, addition: _Addition, client: LeaseClient, now: float) -> Schedule:
        """Write a new schedule, or change the one that there is."""
        while True:
            found = find_schedule(client.store, addition.name)
            if found is None:
                new = addition.as_new(now)
                if write_schedule(client.store, new, 0) is not None:
                    return new
                continue
            known, version = found
            changed = addition.instead_of(known, now)
            if changed == known:
                return known
            if write_schedule(client.store, changed, version) is not None:
                if changed.place.next != known.place.next:
                    _discard_undecided(client, known)
                return changed

    def _change(self, name: str, change: Callable[[Schedule], Place]) -> None:
        """Change the place of a schedule, whatever else happens to it meanwhile."""
        while True:
            schedule, version = self._find(name)
            place = change(schedule)
            if place == schedule.place:
                return
            if write_schedule(self._client.store, schedule._replace(place=place), version) is not None:
                return

    def _find(self, name: str) -> tuple[Schedule, int]:
        if not isinstance(name, str):
            raise UsageError(f"a schedule is named by a str, not {name!r}")
        found = find_schedule(self._client.store, name)
        if found is None:
            documents = self._client.store.list_documents(SCHEDULES)
            raise ScheduleNotFound(name, [each.name.removeprefix(SCHEDULES) for each in documents])
        return found

    @property
    def _client(self) -> LeaseClient:
        """The client of the store. Raises `StoreUnavailable` for a file or directory that isn't there yet."""
        if self._opened is None:
            if is_absent(path_of(self._store)):
                refuse_absent(path_of(self._store), "the path, or add a schedule there")
            return self._open()
        return self._opened

    def _open(self) -> LeaseClient:
        store = open_store(self._store)
        if not (store.abilities.takes_part and store.abilities.leases):
            unfit = UsageError(f"{store} can't keep schedules")
            raise unfit.with_advice("use a store such as sqlite:///runs.db")
        self._opened = client_for(store)
        return self._opened


class _Addition(NamedTuple):
    """A schedule that a user adds."""

    name: str
    plan: SchedulePlan
    is_paused: bool
    replaces: bool

    def as_new(self, now: float) -> Schedule:
        timetable = self.plan.timetable
        first = timetable.after(_begins_after(timetable, now))
        return Schedule(self.name, self.plan, Place(first, is_paused=self.is_paused))

    def instead_of(self, known: Schedule, now: float) -> Schedule:
        """The schedule with the new values; the same, if they are equal. Raises `UsageError` unless it replaces."""
        plan = self.plan
        old = known.plan.timetable
        if plan.timetable._replace(origin=old.origin) == old:
            # An interval is counted from when it was first added.
            plan = plan._replace(timetable=old)
        different = _differences(known.plan, plan)
        if different and not self.replaces:
            others = UsageError(f"schedule {self.name!r} exists with other values: {', '.join(different)}")
            raise others.with_advice("replace=True gives it the new ones")
        if not different:
            plan = known.plan
        place = known.place
        if self.replaces and self.is_paused:
            place = place._replace(is_paused=True)
        if plan.timetable != old:
            begins = max(_begins_after(plan.timetable, now), place.newest or 0)
            place = place._replace(next=plan.timetable.after(begins))
        return known._replace(plan=plan, place=place)


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


def _checked_start(
    compiled: CompiledGraph,
    input: Any,
    config: Mapping[str, Any] | None,
    tags: tuple[str, ...],
    queue: str | None,
    priority: int,
) -> ScheduledStart:
    """What runs start with, once it is certain that a run could start with it. Raises `UsageError`."""
    queued_progress(compiled, StartRequest(input, config, "schedule", tags))
    if queue is not None:
        checked_name("queue", queue)
    given = dict(input) if isinstance(input, Mapping) else input
    settings = None if config is None else dict(config)
    secrets = compiled.plan.secrets
    try:
        encoded = encode(given, "input")
    except UnstorableValue as problem:
        raise hide_secret_path(problem, secrets) from None
    name = compiled.plan.name
    return ScheduledStart(
        name, encoded, encode(settings, "config"), tags, queue, priority, tuple(sorted(secrets))
    )


def _check_policies(overlap: Any, catch_up: Any, priority: Any) -> None:
    for what, given, known in (("overlap", overlap, OVERLAPS), ("catch_up", catch_up, CATCH_UPS)):
        if given not in known:
            near = did_you_mean(given, known)
            raise UsageError(f"{what} is one of {', '.join(known)}, not {given!r}{near}")
    if type(priority) is not int or not -(2**63) <= priority < 2**63:
        raise UsageError(f"priority is a whole number of at most 64 bits, not {priority!r}")


def _discard_undecided(client: LeaseClient, schedule: Schedule) -> None:
    """Delete the run that a process may have prepared for a time that is never decided now."""
    head = schedule.place.head(client.now())
    if head is not None:
        discard(client, schedule.run_id(head))
    for run_id in schedule.place.triggers:
        discard(client, run_id)


def _manual_id(name: str, at: datetime) -> str:
    return f"{name}:{at.strftime('%Y%m%dT%H%M%S.%fZ')}-manual"
