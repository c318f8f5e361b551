"""Limits of whole runs: a supervisor claims a run only when it has slots of the limits of its graph and its queue.

A run that gets none stays in its queue, as it is. So it costs nothing, however many there are. Limits belong to
a graph and a queue, so one that is full concerns all runs of these: they aren't looked for until the next look, or
until a slot is released in this process. Those of other graphs and queues aren't held up.

In the line of the limit, such runs stand as the next run of their lane: one ticket for all of them. So runs of other
lanes, and calls of nodes, have their turns, too. When it is the turn of the lane, the most urgent run has the slot.

A supervisor also serves the lines, at its looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Final

from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.leases.limit_slots import SlotRequest, SlotWait, limits_of
from limpet.engine.leases.limits.document import lane_in, lane_text
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.sessions.session import Session
from limpet.engine.supervisor.catalog import GraphsOnStore
from limpet.errors import StoreError, StoreUnavailable, UsageError
from limpet.graphs.limits import Limit
from limpet.journal.store import Lane, Lease, RunHead
from limpet.journal.writer import has_begun
from limpet.stores.problem_log import ProblemLog

LOOKS_WITHOUT_LIMITS: Final = 6
"""In a store without limits, one look of this many asks for those that other processes have left behind."""

RETRY_INTERVAL: Final = 1.0
"""Seconds until slots are asked for again, for runs for which that failed."""

LOG_INTERVAL: Final = 60.0
"""Seconds after which the log says again why slots can't be asked for."""

SHORTEST_WAIT: Final = 0.02
"""Seconds, at least, until limits are looked at again."""


class LimitAdmission:
    """Asks for the slots of runs that were picked, and knows which limits are full."""

    def __init__(self, client: LeaseClient, graphs: GraphsOnStore) -> None:
        self._client = client
        self._limits = limits_of(client)
        self._graphs = graphs
        self._names: dict[tuple[str, str], tuple[str, ...]] = {}
        """The limits of the runs of a queue and a graph, as they were when such runs were last picked."""
        self._full: set[str] = set()
        self._full_by_rate: set[str] = set()
        """Limits that are full for runs that begin, and have room for those that have begun."""
        self._unasked: set[tuple[str, str]] = set()
        """Queues and graphs for whose runs slots couldn't be asked for, as the store failed or a limit is damaged."""
        self.passed_over: set[str] = set()
        """Runs that another worker is about to claim, or was when it crashed. Others of their lane aren't held up."""
        self._waits: dict[str, SlotWait] = {}
        """What lanes wait for, by their text."""
        self._admitted: dict[str, SlotRequest] = {}
        self._looks = 0
        self._problems = ProblemLog("limpet.supervisor", LOG_INTERVAL)
        self._queue_limits: dict[str, tuple[Limit, ...]] = {}
        """The limits of queues that graphs declare, by graph."""
        self.wake_up = inf
        """When a line has to be served, or a limit has room again, by `monotonic`: a look then does so at once."""

    def look(self) -> None:
        """Serve the lines, and try limits again that were full. Raises `StoreUnavailable`."""
        self._full = set()
        self._full_by_rate = set()
        self._unasked = set()
        self.passed_over = set()
        self.wake_up = inf
        self._looks += 1
        self._declare_limits_of_queues()
        if self._limits.has_limits or self._looks % LOOKS_WITHOUT_LIMITS == 1:
            self._wake_up_at(self._limits.serve_lines())

    def is_open(self, lane: Lane) -> bool:
        """Whether none of the limits for the runs in a lane is known to be full."""
        names = self._names.get((lane.queue, lane.graph), ())
        if (lane.queue, lane.graph) in self._unasked:
            return False
        return self._full.isdisjoint(names) and self._full_by_rate.isdisjoint(names)

    def may_admit(self, head: RunHead) -> bool:
        """Whether no limit is known to be full for a run. A rate concerns only those that haven't begun."""
        names = self._names.get((head.queue, head.graph), ())
        if (head.queue, head.graph) in self._unasked or head.run_id in self.passed_over:
            return False
        return self._full.isdisjoint(names) and (has_begun(head) or self._full_by_rate.isdisjoint(names))

    @property
    def lanes_in_line(self) -> list[Lane]:
        """The lanes that stand in line for their next run."""
        return [lane_in(text) for text in self._waits]

    def leave_lines(self, lanes: Iterable[Lane]) -> None:
        """Have lanes leave the lines of limits: they have no run, or none is claimed here for now."""
        for lane in lanes:
            wait = self._waits.pop(lane_text(lane), None)
            if wait is not None:
                self._limits.leave_line(*wait)

    def admit(self, picked: Sequence[RunHead]) -> list[RunHead]:
        """Ask for the slots that picked runs need, all at once; returns the runs that have them, or need none."""
        try:
            return self._admit(picked)
        except StoreUnavailable as problem:
            self._leave_unasked(picked, problem)
        except StoreError as problem:
            # One of the limits can't be read, say. That concerns only the runs that need it.
            groups: dict[tuple[str, str], list[RunHead]] = {}
            for head in picked:
                groups.setdefault((head.queue, head.graph), []).append(head)
            if len(groups) > 1:
                return [head for group in groups.values() for head in self.admit(group)]
            self._leave_unasked(picked, problem)
        return [head for head in picked if not self._limits_known_of(head)]

    def _admit(self, picked: Sequence[RunHead]) -> list[RunHead]:
        requests: dict[str, SlotRequest] = {}
        for head in picked:
            names = self._limits_of(head)
            if names:
                requests[head.run_id] = self._request(head, names)
        if not requests:
            return list(picked)
        answers = self._limits.acquire(list(requests.values()), stands_in_line=True)
        refused = set()
        for (run_id, request), wait in zip(requests.items(), answers, strict=True):
            if wait is None:
                self._admitted[run_id] = request
                self._waits.pop(request.lane, None)
                continue
            refused.add(run_id)
            self._refused(run_id, wait.limit)
            if wait.ticket:  # it stands in line for its lane
                self._waits[request.lane] = wait
        return [head for head in picked if head.run_id not in refused]

    def _leave_unasked(self, picked: Sequence[RunHead], problem: StoreError) -> None:
        """Leave runs alone until the next look, as slots of their limits can't be asked for."""
        self._problems.warn(f"couldn't ask for slots of limits: {problem}; will try again")
        self._unasked.update((head.queue, head.graph) for head in picked if self._limits_known_of(head))
        self._look_again_soon()

    def confirms(self, session: Session) -> bool:
        """Whether a run that was claimed still has its slots.

        It may have lost them, if the claim took too long, by the clock of whichever process looked at them.
        """
        admitted = self._admitted.get(session.id)
        if admitted is None or session.held is None:
            return True
        request = admitted._replace(
            lease=session.held.lease, is_claimed=True, counts=False, wait=None, lane=""
        )
        self._admitted[session.id] = request
        with suppress(StoreError):
            return self._limits.acquire([request], stands_in_line=False) == [None]
        return False

    def has_slots(self, run_id: str) -> bool:
        """Whether a run has slots to release."""
        return run_id in self._admitted

    def release(self, run_ids: Iterable[str], were_executed: bool = True) -> None:
        """Runs aren't executed here any more, or weren't after all: release their slots."""
        found = [self._admitted.pop(run_id, None) for run_id in run_ids]
        requests = [each for each in found if each is not None]
        if requests:
            self._limits.release(requests, were_executed)
            self._full = set()

    def _request(self, head: RunHead, names: tuple[str, ...]) -> SlotRequest:
        lane = lane_text(head.lane)
        claim = Lease(head.run_id, head.fence + 1, 0.0)
        # The rate counts a run once, when it is first executed.
        return SlotRequest(claim, "", names, False, not has_begun(head), self._waits.get(lane), lane)

    def _refused(self, run_id: str, limit: str) -> None:
        """A limit is full: for all runs, or only for those that would count for its rate.

        If it has room, only this run was refused: another worker is about to claim it, or was when it crashed.
        """
        has_room_at = self._limits.has_room_at(limit)
        if has_room_at is not None:
            self._full_by_rate.add(limit)
            self._wake_up_at(has_room_at)
        elif not self._limits.has_room(limit):
            self._full.add(limit)
        else:
            self.passed_over.add(run_id)
            self._look_again_soon()

    def _declare_limits_of_queues(self) -> None:
        """Store the limits of queues that graphs declare, as they hold for the runs of all other graphs, too.

        Limits of graphs and nodes are declared when a run needs them. Raises `StoreUnavailable`.
        """
        for name in self._graphs.catalog.names:
            if not self._graphs.catalog.is_imported(name) or self._graphs.plan_of(name) is None:
                continue  # it isn't at hand, or can't be had now
            limits = self._queue_limits[name] = self._graphs.compiled(name).queue_limits
            try:
                with suppress(UsageError):  # a store without limits: a run says so, when it is opened
                    self._limits.declare(limits)  # which does so once
            except StoreUnavailable:
                raise
            except StoreError as problem:
                self._problems.warn(f"couldn't declare the limits of graph {name}: {problem}; will try again")

    def _limits_of(self, head: RunHead) -> tuple[str, ...]:
        """The names of the limits that a run needs slots of. Raises `StoreError`."""
        names = set(self._limits.limits_for_queue(head.queue))
        declared = [limit for limits in self._queue_limits.values() for limit in limits]
        needed = {limit.name for limit in declared if head.queue in limit.queues}
        compiled: CompiledGraph | None = None
        # A graph that can't be had has no limits here: when its run is opened, that is reported.
        with suppress(Exception, SystemExit):
            compiled = self._graphs.compiled(head.graph)
        if compiled is not None:
            with suppress(UsageError):  # a store without limits: the run says so, when it is opened
                self._limits.declare((*compiled.limits, *compiled.plan.limits))
            needed.update(limit.name for limit in compiled.plan.limits)
            names.update(limit.name for limit in compiled.limits)
            # A limit of a queue that nodes of the graph have, too: they would wait for the slot of their own run.
            names.difference_update(limit.name for limit in compiled.plan.limits)
        try:
            # A damaged limit of a queue doesn't say any more which queue it is for, and a run that comes to a node
            # with a damaged limit fails. In its queue, the run waits for the repair.
            self._limits.check_readable(needed)
        except StoreError:
            self._names.pop((head.queue, head.graph), None)  # so that it isn't taken for one without limits
            raise
        found = self._names[head.queue, head.graph] = tuple(sorted(names))
        return found

    def _limits_known_of(self, head: RunHead) -> tuple[str, ...]:
        return self._names.get((head.queue, head.graph), ("unknown",))

    def _look_again_soon(self) -> None:
        # As long as runs end and others are found, the loop doesn't come to the look of when nothing happens.
        self.wake_up = min(self.wake_up, monotonic() + RETRY_INTERVAL)

    def _wake_up_at(self, time: float | None) -> None:
        """Have a look at this time, by the store's clock."""
        if time is not None:
            seconds = max(time - self._limits.now(), SHORTEST_WAIT)
            self.wake_up = min(self.wake_up, monotonic() + seconds)


def is_behind(head: RunHead, refused: Iterable[RunHead]) -> bool:
    """Whether a run is in the lane of one that was refused. One that has begun may pass new ones: see `may_admit`."""
    return any(each.lane == head.lane and (has_begun(each) or not has_begun(head)) for each in refused)
