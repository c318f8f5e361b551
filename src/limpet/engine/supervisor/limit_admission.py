"""Limits of whole runs: a supervisor claims a run only when it has slots of the limits of its graph and its queue.

A run that gets none stays in its queue, as it is. So it costs nothing, however many there are. Limits belong to
a graph and a queue, so one that is full concerns all runs of these: they aren't looked for until the next look, or
until a slot is released in this process. Those of other graphs and queues aren't held up.

A supervisor also serves the lines in which calls of nodes stand, at its looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Final, NamedTuple

from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.leases.limit_slots import SlotRequest, limits_of
from limpet.engine.sessions.session import Session
from limpet.engine.supervisor.catalog import GraphsOnStore
from limpet.engine.supervisor.log import log
from limpet.errors import StoreError, UsageError
from limpet.journal.store import Lane, Lease, RunHead

SHORTEST_WAIT: Final = 0.02
"""Seconds, at least, until limits are looked at again."""


class Admitted(NamedTuple):
    """What a run got, and when, by `monotonic`."""

    request: SlotRequest
    at: float


class LimitAdmission:
    """Asks for the slots of runs that were picked, and knows which limits are full."""

    def __init__(self, client: LeaseClient, graphs: GraphsOnStore) -> None:
        self._client = client
        self._limits = limits_of(client)
        self._graphs = graphs
        self._names: dict[tuple[str, str], tuple[str, ...]] = {}
        """The limits of the runs of a queue and a graph, as they were when such runs were last picked."""
        self._full: set[str] = set()
        self._admitted: dict[str, Admitted] = {}
        self.wake_up = inf
        """When a line has to be served, or a limit has room again, by `monotonic`: a look then does so at once."""

    def look(self) -> None:
        """Serve the lines of calls, and try limits again that were full. Raises `StoreUnavailable`."""
        self._full = set()
        self.wake_up = inf
        self._wake_up_at(self._limits.serve_lines())

    def is_open(self, lane: Lane) -> bool:
        """Whether none of the limits for the runs in a lane is known to be full."""
        return self._full.isdisjoint(self._names.get((lane.queue, lane.graph), ()))

    def admit(self, picked: Sequence[RunHead]) -> list[RunHead]:
        """Ask for the slots that picked runs need, all at once; returns the runs that have them, or need none."""
        requests: dict[str, SlotRequest] = {}
        try:
            for head in picked:
                names = self._limits_of(head)
                if names:
                    # The rate counts a run once, when it is first executed.
                    claim = Lease(head.run_id, head.fence + 1, 0.0)
                    requests[head.run_id] = SlotRequest(claim, "", names, False, counts=head.fence == 1)
            if not requests:
                return list(picked)
            answers = self._limits.acquire(list(requests.values()), stands_in_line=False)
        except StoreError as problem:
            log().warning("couldn't ask for slots of limits: %s; will try again", problem)
            return [head for head in picked if not self._limits_known_of(head)]
        refused = set()
        for (run_id, request), wait in zip(requests.items(), answers, strict=True):
            if wait is None:
                self._admitted[run_id] = Admitted(request, monotonic())
            else:
                refused.add(run_id)
                self._full.add(wait.limit)
                self._wake_up_at(self._limits.has_room_at(wait.limit))
        return [head for head in picked if head.run_id not in refused]

    def confirms(self, session: Session) -> bool:
        """Whether a run that was claimed still has its slots. It may have lost them, if the claim took too long."""
        admitted = self._admitted.get(session.id)
        if admitted is None or session.held is None:
            return True
        lease = session.held.lease
        request = admitted.request._replace(lease=lease, is_claimed=True, counts=False)
        self._admitted[session.id] = admitted._replace(request=request)
        in_time = monotonic() - admitted.at < self._client.ttl / 2
        if in_time and lease.fence == admitted.request.lease.fence:
            return True
        with suppress(StoreError):
            return self._limits.acquire([request], stands_in_line=False) == [None]
        return False

    def has_slots(self, run_id: str) -> bool:
        """Whether a run has slots to release."""
        return run_id in self._admitted

    def release(self, run_ids: Iterable[str]) -> None:
        """Runs aren't executed here any more, or weren't claimed after all: release their slots."""
        found = [self._admitted.pop(run_id, None) for run_id in run_ids]
        requests = [each.request for each in found if each is not None]
        if requests:
            self._full = set()
            self._limits.release(requests)

    def _limits_of(self, head: RunHead) -> tuple[str, ...]:
        """The names of the limits that a run needs slots of. Raises `StoreError`."""
        names = set(self._limits.limits_for_queue(head.queue))
        # A graph that can't be had has no limits here: when its run is opened, that is reported.
        with suppress(Exception, SystemExit):
            compiled = self._graphs.compiled(head.graph)
            with suppress(UsageError):  # a store without limits: the run says so, when it is opened
                self._limits.declare((*compiled.limits, *compiled.plan.limits))
            names.update(limit.name for limit in compiled.limits)
            # A limit of a queue that nodes of the graph have, too: they would wait for the slot of their own run.
            names.difference_update(limit.name for limit in compiled.plan.limits)
        found = self._names[head.queue, head.graph] = tuple(sorted(names))
        return found

    def _limits_known_of(self, head: RunHead) -> tuple[str, ...]:
        return self._names.get((head.queue, head.graph), ("unknown",))

    def _wake_up_at(self, time: float | None) -> None:
        """Have a look at this time, by the store's clock."""
        if time is not None:
            seconds = max(time - self._limits.now(), SHORTEST_WAIT)
            self.wake_up = min(self.wake_up, monotonic() + seconds)
