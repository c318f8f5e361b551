"""`Schedules`: runs that start by themselves, at planned times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from limpet.durations import Moment, Span
from limpet.engine.leases.lease_client import LeaseClient, client_for, nudge_supervisors
from limpet.engine.schedules.addition import Addition
from limpet.engine.schedules.firing import with_first_time_settled
from limpet.engine.schedules.prepared_runs import begin, discard
from limpet.engine.schedules.schedule import (
    CATCH_UPS,
    OVERLAPS,
    CatchUp,
    Overlap,
    Schedule,
    ScheduledStart,
    SchedulePlan,
    find_schedule,
    read_schedule,
    write_schedule,
)
from limpet.engine.schedules.schedule_info import ScheduleInfo, schedule_info, with_run_statuses
from limpet.engine.schedules.timetable import local_time, make_timetable, trigger_stamp
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.sessions.start import StartRequest, check_priority, queued_progress, tag_names
from limpet.engine.supervisor.catalog import Graph
from limpet.errors import (
    DamagedDocument,
    ScheduleNotFound,
    UnstorableValue,
    UnsupportedFormat,
    UsageError,
    did_you_mean,
)
from limpet.graphs.names import SCHEDULES, checked_name
from limpet.graphs.secrets import hide_secret_path
from limpet.journal.encoding.codec import encode
from limpet.journal.store import document_version
from limpet.stores.absent import is_absent, path_of, refuse_absent
from limpet.stores.opening import open_store
from limpet.stores.problem_log import ProblemLog
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
        self._problems = ProblemLog("limpet.schedules")

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

        The times are those of a `cron` expression (five fields, or `@hourly`, `@daily`, `@weekly`, `@monthly`,
        `@yearly`) in a `timezone` such as "Europe/Berlin", or they come `every` so often (a text such as "15m",
        whole seconds, or a `timedelta`): first one interval from now, or at `starts`. None is before `starts` or
        after `ends`: each is a `datetime`, how long from now, or a date and time as text, of the same time zone if it
        names none. The run of a time has the id `NAME:20261115T0230Z`, in UTC, and the tag `schedule:NAME`.

        `overlap` says what happens at a time when an earlier run of the schedule hasn't ended: `skip` the time,
        `queue` it until that run has ended, `allow` both, or `cancel_old`. `catch_up` says what happens with times
        that were missed because no worker was there: `none` skips those that are over a minute late, `last` fires the
        newest, and `all` fires each.

        Adding a schedule again with the same values changes nothing. Other values need `replace=True`. A schedule
        that is replaced stays paused if it was. If its times stay the same, so does its place among them; otherwise
        it continues with the first new time from now on, or from a `starts` in the past on. One that is damaged is
        replaced, too, with a warning in the log: it continues with the first time from now on.

        Raises `UsageError` for what can't be used, such as an input that the graph refuses or a schedule of this
        name with other values; `ScheduleEnded` if there is none of this name and its end is in the past;
        `DefinitionError` if the store would keep secrets of the graph in plain text; and `DamagedDocument`.
        """
        if isinstance(graph, (str, type)) or not callable(getattr(graph, "compiled", None)):
            wrong = UsageError(f"a schedule starts runs of a StateGraph or a Workflow, not {graph!r}")
            raise wrong.with_advice("give the graph itself")
        client = self._opened or self._open()
        compiled = graph.compiled().on_store(client.store)
        checked_name("schedule", name)
        _check_policies(overlap, catch_up, priority)
        if type(paused) is not bool:
            raise UsageError(f"paused is True or False, not {paused!r}")
        now = client.store_time()
        plan = SchedulePlan(
            _checked_start(compiled, input, config, tag_names(tags), queue, priority),
            make_timetable(cron, every, timezone, starts, ends, now),
            overlap,
            catch_up,
        )
        added = self._put(Addition(name, plan, paused, replace), client, now)
        nudge_supervisors(client.store, schedules_changed=True)
        return schedule_info(added, now)

    aadd = async_version(add, changes=True)

    def get(self, name: str) -> ScheduleInfo:
        """What is known of a schedule; its `recent` firings have the `status` of their runs.

        Raises `ScheduleNotFound`.
        """
        schedule, _ = self._find(name)
        return with_run_statuses(self._client, schedule_info(schedule, self._client.store_time()))

    aget = async_version(get)

    def list(self) -> ScheduleInfos:
        """All schedules, by name.

        One that can't be read here is left out, and the log says why: it is damaged, or a newer version wrote it.
        """
        now = self._client.store_time()
        found: ScheduleInfos = []
        for document in self._client.store.list_documents(SCHEDULES):
            name = document.name.removeprefix(SCHEDULES)
            try:
                found.append(schedule_info(read_schedule(document), now))
            except Exception as problem:  # what is damaged may be anything, and concerns no other schedule
                self._problems.warn(
                    f"schedule {name} is left out of the list: {type(problem).__name__}: {problem}"
                )
        return found

    alist = async_version(list)

    def next_times(self, name: str, count: int = 5) -> Times:
        """The next planned times of a schedule, in its time zone, whether it is paused or not.

        Raises `ScheduleNotFound`.
        """
        if type(count) is not int or not 0 <= count <= MAX_TIMES:
            raise UsageError(f"count must be a whole number from 0 to {MAX_TIMES}, not {count!r}")
        schedule, _ = self._find(name)
        timetable = schedule.plan.timetable
        planned = timetable.after(self._client.store_time())
        times: Times = []
        while planned is not None and len(times) < count:
            times.append(local_time(planned, timetable.timezone))
            planned = timetable.after(planned)
        return times

    anext_times = async_version(next_times)

    def pause(self, name: str) -> None:
        """Fire a schedule no more until it is resumed. Runs that it has started go on. Raises `ScheduleNotFound`.

        A time that a worker is about to fire at this moment may still be fired.
        """

        def paused(schedule: Schedule) -> Schedule:
            if schedule.place.is_paused:
                return schedule
            settled = with_first_time_settled(self._client, schedule, self._client.store_time())
            return settled._replace(place=settled.place._replace(is_paused=True))

        self._change(name, paused)

    apause = async_version(pause, changes=True)

    def resume(self, name: str) -> None:
        """Fire a paused schedule again. The times during the pause are left out. Raises `ScheduleNotFound`."""
        now = self._client.store_time()

        def resumed(schedule: Schedule) -> Schedule:
            if not schedule.place.is_paused:
                return schedule
            # A worker that was about to fire a time may have died just when the schedule was paused.
            settled = with_first_time_settled(self._client, schedule, now)
            following = settled.place.next
            if following is not None and following <= now:
                following = settled.plan.timetable.after(now)
            return settled._replace(place=settled.place._replace(is_paused=False, next=following))

        before, after = self._change(name, resumed)
        # A worker may have prepared a run just before the pause.
        _discard_undecided(self._client, before, after)
        nudge_supervisors(self._client.store, schedules_changed=True)

    aresume = async_version(resume, changes=True)

    def trigger(self, name: str) -> str:
        """Start a run of a schedule now, besides its planned times, and return the id that the run will have.

        A worker that knows the graph starts it, whatever the overlap policy is, and even if the schedule is paused.
        Raises `ScheduleNotFound`.
        """
        run_id = ""

        def triggered(schedule: Schedule) -> Schedule:
            nonlocal run_id
            at = datetime.fromtimestamp(self._client.store_time(), UTC)
            run_id = f"{name}:{trigger_stamp(at)}"
            while run_id in schedule.place.triggers or self._client.store.heads([run_id])[0] is not None:
                at += timedelta(microseconds=1)
                run_id = f"{name}:{trigger_stamp(at)}"
            place = schedule.place._replace(triggers=(*schedule.place.triggers, run_id))
            return schedule._replace(place=place)

        self._change(name, triggered)
        nudge_supervisors(self._client.store, schedules_changed=True)
        return run_id

    atrigger = async_version(trigger, changes=True)

    def delete(self, name: str) -> None:
        """Delete a schedule, also one that can't be read. Runs that it has started go on.

        Raises `ScheduleNotFound`.
        """
        client = self._client
        refused: int | None = None
        while True:
            schedule: Schedule | None = None
            try:
                schedule, version = self._find(name)
            except ScheduleNotFound:
                raise
            except (DamagedDocument, UnsupportedFormat):
                # Workers find out what it was about to start.
                version = document_version(client.store, SCHEDULES + name)
                if version == refused:
                    raise  # the store can't delete it
                refused = version
            if schedule is not None:
                # These count as started. If another process holds one, that is about to have it begin; should it have
                # crashed, a worker does so later: see `prepared_runs.settle`.
                for run_id in schedule.place.starting:
                    begin(client, run_id)
            if client.store.delete_document(SCHEDULES + name, version):
                if schedule is not None:
                    _discard_undecided(client, schedule, None)
                return

    adelete = async_version(delete, changes=True)

    def _put(self, addition: Addition, client: LeaseClient, now: float) -> Schedule:
        """Write a new schedule, or change the one that there is."""
        refused: int | None = None
        while True:
            try:
                found = find_schedule(client.store, addition.name)
            except DamagedDocument as damage:
                if damage.version == refused:
                    raise  # the store can't replace it
                new = addition.instead_of_damaged(damage, now)
                if write_schedule(client.store, new, damage.version) is not None:
                    self._problems.warn(
                        f"schedule {addition.name} was damaged, and is replaced: {damage.message}"
                    )
                    return new
                refused = damage.version
                continue
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
                    _discard_undecided(client, known, changed)
                return changed

    def _change(self, name: str, change: Callable[[Schedule], Schedule]) -> tuple[Schedule, Schedule]:
        """Change how far a schedule has come, whatever else happens to it; returns it as it was, and as it is."""
        while True:
            schedule, version = self._find(name)
            changed = change(schedule)
            if changed == schedule:
                return schedule, schedule
            if write_schedule(self._client.store, changed, version) is not None:
                return schedule, changed

    def _find(self, name: str) -> tuple[Schedule, int]:
        """A schedule, with its version. Raises `ScheduleNotFound` and `StoreError`."""
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
                refuse_absent(path_of(self._store), "the path, or add a schedule there", "schedules")
            return self._open()
        return self._opened

    def _open(self) -> LeaseClient:
        store = open_store(self._store)
        if not (store.abilities.takes_part and store.abilities.leases):
            raise UsageError(f"{store} can't keep schedules: use a store such as sqlite:///runs.db")
        self._opened = client_for(store)
        return self._opened


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
    check_priority(priority)


def _discard_undecided(client: LeaseClient, schedule: Schedule, changed: Schedule | None) -> None:
    """Delete runs that a process may have prepared for what is never decided now, as the schedule has changed.

    Whatever the clock says: it may have been set back since.
    """
    place = schedule.place
    run_ids = [*place.triggers, *map(schedule.run_id, place.waiting[:1])]
    if place.next is not None:
        run_ids.append(schedule.run_id(place.next))
    for run_id in run_ids:
        if changed is None or not changed.mentions(run_id):
            discard(client, run_id)
