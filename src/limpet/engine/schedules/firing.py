"""Fire a schedule: decide about the planned times that have come, and start their runs. Each time is fired once.

A step of this changes the schedule's document once, if it still has the version that was read. To fire a time, its
run is prepared (see `prepared_runs.py`), then the time is decided, then the run begins. Whatever crashes or fails in
between, the next look continues from what is stored:

- A prepared run is only ever that of the first undecided time, or of the first trigger. So a look that finds it knows
  that the time was to be fired, whatever the policies say by now, and even if the schedule is paused by now.
- A worker that stood still may prepare the run of a time that others have skipped meanwhile. It removes that run. If
  it is killed before, other workers do so later (see `prepared_runs.settle`). It isn't in the way of other times.
- A decided time isn't looked at again, so it doesn't matter if its run is deleted later.
- A run that exists under the id of a planned time counts as fired, whichever process created it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.operations.cancel import cancel
from limpet.engine.schedules.decisions import Decision, take_due, without_head
from limpet.engine.schedules.prepared_runs import begin, discard, is_prepared, prepare
from limpet.engine.schedules.schedule import (
    FAILED,
    FIRED,
    SKIPPED,
    Firing,
    Place,
    Record,
    Schedule,
    find_schedule,
    write_schedule,
)
from limpet.engine.schedules.timetable import triggered_at
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.sessions.start import StartRequest, queue_for
from limpet.errors import Conflict, RunExists, RunNotFound, StoreError, TooLarge, UsageError
from limpet.graphs.secrets import mask_text, secret_values, text_forms
from limpet.journal.encoding.codec import decode
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import PAUSED, RUNNING, RunHead

MAX_STEPS: Final = 60
"""How many steps a look takes for one schedule, so that a long backlog of one doesn't keep the others waiting. A run
that is fired takes two: it is decided, and it begins."""

MAX_UNFINISHED: Final = 8
"""How many runs that haven't ended are asked for, at most, to know whether there is one."""

MISSED: Final = "missed: no worker looked in time"
NOT_ENDED: Final = "run {} hadn't ended"


class Firer:
    """Fires one schedule while it is of this graph, which is known here as `compiled`."""

    def __init__(self, name: str, graph: str, compiled: CompiledGraph) -> None:
        self._graph = graph
        self._compiled = compiled
        self._client: LeaseClient = compiled.need_client("a schedule")
        self._name = name
        self._created: str | None = None
        """The run that the present step has prepared."""
        self._version = 0
        """The version of the schedule that the present step is about."""

    def fire(self, due: float) -> Schedule | None:
        """Do what is due, and return the schedule as it is then; None if it was deleted.

        `due` is a time that has come by the store's clock. Raises `StoreError`: what is left to do is done later.
        """
        store = self._client.store
        now = max(self._client.store_time(), due)
        found = find_schedule(store, self._name)
        for _ in range(MAX_STEPS):
            if found is None:
                return None
            schedule, version = found
            self._created = None
            self._version = version
            changed = self._step(schedule, now)
            if changed is None:
                return schedule
            written = write_schedule(store, changed, version)
            if written is not None:
                found = changed, written
                continue
            found = find_schedule(store, self._name)
            if self._created is not None and (found is None or not found[0].mentions(self._created)):
                # The schedule was replaced or deleted meanwhile, so no process would let it begin.
                discard(self._client, self._created)
        return None if found is None else found[0]

    def _step(self, schedule: Schedule, now: float) -> Schedule | None:
        """The schedule after the next thing that it has to do; None if there is nothing to do now."""
        place = schedule.place
        if place.starting:
            return self._begin(schedule)
        if schedule.plan.start.graph != self._graph:
            # It was replaced since it was listed. The next look goes by its graph, which may not be known here.
            return None
        if place.triggers:
            run_id = place.triggers[0]
            left = place._replace(triggers=place.triggers[1:])
            return self._started(schedule, left, run_id, triggered_at(run_id) or now)
        head = place.head(now)
        if head is None:
            return None
        settled = with_first_time_settled(self._client, schedule, now)
        if settled is not schedule:
            return settled
        if place.is_paused:
            return None
        return self._decide(schedule, head, now)

    def _begin(self, schedule: Schedule) -> Schedule | None:
        left = tuple(each for each in schedule.place.starting if not begin(self._client, each))
        if left == schedule.place.starting:
            return None
        return schedule._replace(place=schedule.place._replace(starting=left))

    def _decide(self, schedule: Schedule, head: int, now: float) -> Schedule | None:
        """Fire the first planned time, or skip some, or let them wait, as the policies say."""
        plan = schedule.plan
        decision = take_due(plan, schedule.place, now)
        waiting = decision.place.waiting
        earlier: Sequence[RunHead] = ()
        if waiting and plan.overlap != "allow":
            found = self._unfinished(schedule, schedule.run_id(head))
            if found is None:
                return schedule  # it isn't written, as there is a newer version: that one is looked at next
            earlier = found
        if earlier and plan.overlap == "skip":
            return _skipped(schedule, decision, earlier[0].run_id)
        is_blocked = bool(earlier) and plan.overlap == "queue"
        if is_blocked or not waiting or waiting[0] != head:
            # Times before the one to fire are decided first: a prepared run is always that of the first time.
            if decision.place == schedule.place:
                return None
            return _with_missed(schedule, decision)
        for each in earlier:
            with suppress(RunNotFound, UsageError):  # it has ended meanwhile, or was deleted
                cancel(self._client, each.run_id)
        return self._started(schedule, without_head(plan, schedule.place), schedule.run_id(head), head)

    def _started(self, schedule: Schedule, left: Place, run_id: str, planned: float) -> Schedule:
        """The schedule once a run is prepared, or has failed to start for good."""
        start = schedule.plan.start
        try:
            tags = tuple(dict.fromkeys((*start.tags, schedule.tag)))
            queue = queue_for(self._compiled, start.queue)
            request = StartRequest(
                decode(start.input), decode(start.config), run_id, tags, named=True, queue=queue
            )
            prepare(self._compiled, request, start.priority, schedule.name)
            self._created = run_id
        except RunExists:
            pass
        except TooLarge as problem:
            return self._failed(schedule, left, planned, problem)
        except (StoreError, Conflict):
            raise
        except Exception as problem:  # the input may run code of the graph's schema
            return self._failed(schedule, left, planned, problem)
        return _fired(schedule, left, run_id, planned)

    def _failed(self, schedule: Schedule, left: Place, planned: float, problem: Exception) -> Schedule:
        from logging import getLogger

        reason = self._without_secrets(schedule, f"{type(problem).__name__}: {problem}")
        getLogger("limpet.schedules").error("schedule %s couldn't start a run: %s", schedule.name, reason)
        record = schedule.record.with_firing(Firing(planned, FAILED, None, reason))
        return schedule._replace(place=left, record=record)

    def _without_secrets(self, schedule: Schedule, text: str) -> str:
        names = self._compiled.plan.secrets.union(schedule.plan.start.secrets)
        given: Any = {}
        with suppress(Exception):  # a class that isn't known here
            given = decode(schedule.plan.start.input)
        if not names or not isinstance(given, dict):
            return text
        return mask_text(text, text_forms(secret_values(given, names)))

    def _unfinished(self, schedule: Schedule, run_id: str) -> Sequence[RunHead] | None:
        """The runs of the schedule that haven't ended, newest first: all, or some if these are enough to know.

        Not the run that is to be fired: another worker may have prepared it just now. Nor any other that was only
        prepared: all that were decided have begun by now, and a worker that crashed may have left one behind. None if
        the schedule has changed: then some of them may be those of later times, which this step must not cancel.
        """
        limit = None if schedule.plan.overlap == "cancel_old" else MAX_UNFINISHED
        found = self._client.store.list(RunFilter((RUNNING, PAUSED), tags=(schedule.tag,), limit=limit))
        earlier = [head for head in found if head.run_id != run_id and not is_prepared(head)]
        # After the list: what was in the store while the schedule had this version is of earlier times.
        return None if earlier and self._has_changed(schedule) else earlier

    def _has_changed(self, schedule: Schedule) -> bool:
        found = find_schedule(self._client.store, schedule.name)
        return found is None or found[1] != self._version


def with_first_time_settled(client: LeaseClient, schedule: Schedule, now: float) -> Schedule:
    """The schedule with its first time fired, if that has come and its run exists; else the same schedule."""
    head = schedule.place.head(now)
    if head is None:
        return schedule
    run_id = schedule.run_id(head)
    if client.store.heads([run_id])[0] is None:
        return schedule
    return _fired(schedule, without_head(schedule.plan, schedule.place), run_id, head)


def _fired(schedule: Schedule, left: Place, run_id: str, planned: float) -> Schedule:
    """The schedule once it is decided that a run begins."""
    record: Record = schedule.record.with_firing(Firing(planned, FIRED, run_id))
    return schedule._replace(place=left._replace(starting=(*left.starting, run_id)), record=record)


def _with_missed(schedule: Schedule, decision: Decision) -> Schedule:
    record = schedule.record
    if decision.missed is not None:
        record = record.with_firing(
            Firing(decision.missed, SKIPPED, None, _several(MISSED, decision.missed_count)),
            decision.missed_count,
        )
    return schedule._replace(place=decision.place, record=record)


def _skipped(schedule: Schedule, decision: Decision, earlier: str) -> Schedule:
    """The schedule once all times that have come are skipped, because of an earlier run."""
    changed = _with_missed(schedule, decision)
    waiting = decision.place.waiting
    detail = _several(NOT_ENDED.format(earlier), len(waiting))
    record = changed.record.with_firing(Firing(waiting[-1], SKIPPED, None, detail), len(waiting))
    return changed._replace(place=decision.place._replace(waiting=()), record=record)


def _several(detail: str, count: int) -> str:
    return f"{detail} ({count} times)" if count > 1 else detail
