"""The lanes that a supervisor serves, and the runs that are ready in them.

A supervisor takes runs of its queues, of graphs that it knows, and whose plan is its own. Of another plan, it leaves
them to a live worker that has exactly that plan. If there is none, it continues those that it can: so a roll-out
needs no order, and no run waits for a version that is gone.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from threading import Lock
from time import monotonic
from typing import NamedTuple

from limpet.engine.leases.workers import LeftLane, short_plan
from limpet.engine.supervisor.catalog import GraphsOnStore
from limpet.engine.supervisor.log import log
from limpet.engine.supervisor.run_picker import merge_ready
from limpet.engine.supervisor.skipped_runs import RETRY_INTERVAL
from limpet.engine.supervisor.worker_list import OtherWorkers
from limpet.journal.store import Lane, RunHead, Store

MAX_ASKED_APART = 16
"""How many graphs one look asks for apart, at most. The next look asks for others."""
MAX_UNFIT = 20
"""Runs of a lane that don't fit the plan here, from which on the whole lane is left alone for a while."""
LONGEST_REST = 86400.0
"""Seconds for which a run that doesn't fit is left alone, at most. When it was tried is known for as long after that:
a busy worker may come back to it late."""
MAX_NAMED = 50
"""How many runs of a lane that don't fit are named in the list of workers, at most."""


class UnfitRun(NamedTuple):
    """When a run that doesn't fit was tried, and until when it is left alone, by the monotonic clock."""

    tried: float
    until: float


class ServedLanes:
    """Which lanes a supervisor serves by now, and which it leaves alone for their plan. Threads may share it."""

    def __init__(
        self, graphs: GraphsOnStore, queues: tuple[str, ...] | None, others: OtherWorkers | None = None
    ) -> None:
        self._graphs = graphs
        self._queues = None if queues is None else frozenset(queues)
        self._others = others
        self._unfit: dict[Lane, dict[str, UnfitRun]] = {}
        """Runs of other plans that can't be continued here."""
        self._tries: dict[Lane, deque[float]] = {}
        """When the last ones of each lane were tried."""
        self._reasons: dict[Lane, str] = {}
        """Why runs of a lane are left alone; each was logged."""
        self._left_to: set[Lane] = set()
        """The lanes that are left to other workers; each was logged."""
        self._lock = Lock()

    @property
    def graphs(self) -> list[str]:
        """The names of the graphs that are known."""
        return self._graphs.catalog.names

    def serves_queue(self, queue: str) -> bool:
        """Whether runs of this queue are taken, if their graph is known."""
        return self._queues is None or queue in self._queues

    def serves(self, lane: Lane) -> bool:
        """Whether runs of this lane are taken. Raises what the store raises, which may be asked for other workers."""
        if not self.serves_queue(lane.queue) or lane.graph not in self._graphs.catalog:
            return False
        return not lane.plan or self._has_plan(lane) or not (self._is_left(lane) or self._is_unfit(lane))

    def among(self, lanes: Iterable[Lane]) -> list[Lane]:
        """Those of these lanes that are served."""
        return [lane for lane in lanes if self.serves(lane)]

    def note_unfit(self, head: RunHead, reason: str) -> float:
        """A run of another plan can't be continued here. That is logged once for its lane.

        Returns for how many seconds it is to be left alone: if there are many in its lane, for twice as long as since
        it was last tried. Otherwise the most urgent ones would be tried first whenever the lane is looked at again,
        and those behind them, which may fit, never.
        """
        lane = head.lane
        now = monotonic()
        with self._lock:
            is_new = lane not in self._reasons
            self._reasons[lane] = reason
            self._forget_old(now)
            runs = self._unfit.setdefault(lane, {})
            known = runs.get(head.run_id)
            rest = RETRY_INTERVAL
            if known is not None and len(runs) >= MAX_UNFIT:
                rest = max(rest, min(2 * (now - known.tried), LONGEST_REST))
            runs[head.run_id] = UnfitRun(now, now + rest)
            self._tries.setdefault(lane, deque(maxlen=MAX_UNFIT)).append(now)
        if is_new:
            log().warning(
                "runs of graph %s with plan %s in queue %s are left alone where they can't be continued here: %s",
                lane.graph,
                short_plan(lane.plan),
                lane.queue,
                reason,
            )
        return rest

    def left(self) -> list[LeftLane]:
        """The lanes of which runs can't be continued here."""
        now = monotonic()
        found = []
        with self._lock:
            self._forget_old(now)
            for lane, runs in self._unfit.items():
                # A run that is tried again now and then is still among them meanwhile.
                left = [run_id for run_id, run in runs.items() if run.until > now - RETRY_INTERVAL]
                if left:
                    named = tuple(islice(left, MAX_NAMED))
                    found.append(LeftLane(lane, self._reasons[lane], named, len(left) >= MAX_UNFIT))
        return found

    def _forget_old(self, now: float) -> None:
        """Forget runs that weren't tried again for long: they have ended, or others have them."""
        self._unfit = {
            lane: kept
            for lane, runs in self._unfit.items()
            if (kept := {run_id: run for run_id, run in runs.items() if run.until > now - LONGEST_REST})
        }

    def _has_plan(self, lane: Lane) -> bool:
        """Whether the plan of a lane is that of the graph here, as far as the graph is at hand."""
        is_imported = self._graphs.catalog.is_imported(lane.graph)
        return is_imported and self._graphs.plan_of(lane.graph) == lane.plan

    def _is_left(self, lane: Lane) -> bool:
        """Whether another worker has exactly the plan of a lane, and this one hasn't."""
        worker = None if self._others is None else self._others.with_plan_of(lane)
        # Only now import a graph that isn't at hand: without such a worker, that has time until a run is resumed.
        if worker is None or self._graphs.plan_of(lane.graph) in (None, lane.plan):
            self._left_to.discard(lane)
            return False
        if lane not in self._left_to:
            self._left_to.add(lane)
            log().info(
                "runs of graph %s with plan %s in queue %s are left to %s, which has this plan",
                lane.graph,
                short_plan(lane.plan),
                lane.queue,
                worker.process,
            )
        return True

    def _is_unfit(self, lane: Lane) -> bool:
        """Whether too many runs of a lane were tried that can't be continued here: it is left alone for a while."""
        with self._lock:
            tries = self._tries.get(lane)
            return tries is not None and len(tries) == MAX_UNFIT and tries[0] > monotonic() - RETRY_INTERVAL


class Found(NamedTuple):
    """Runs that are ready, the most urgent first, and whether there may be more in the store.

    `lanes` are those that runs wait in, and `asked` those in which runs were looked for.
    """

    heads: list[RunHead]
    has_more: bool
    lanes: Sequence[Lane]
    asked: Sequence[Lane]


class ReadyRuns:
    """Asks a store for ready runs, by few queries, so that no graph with many of them hides those of another."""

    def __init__(self, store: Store, served: ServedLanes) -> None:
        self._store = store
        self._served = served
        self._looks = 0
        self._last_asked: dict[str, int] = {}
        """In which look each graph was last asked for apart."""

    def find(self, limit: int, is_open: Callable[[Lane], bool] = lambda lane: True) -> Found:
        """The most urgent ones, at most `limit` of all graphs together; if there are more, as many of each graph.

        Lanes that aren't open are left out.
        """
        present = self._store.lanes()
        lanes = [lane for lane in self._served.among(present) if is_open(lane)]
        if not lanes:
            return Found([], False, present, lanes)
        found = self._store.ready(lanes, limit)
        if len(found) < limit:
            return Found(found, False, present, lanes)
        lists = [found]
        for graph in self._hidden_graphs(found, lanes):
            of_graph = [lane for lane in lanes if lane.graph == graph]
            lists.append(self._store.ready(of_graph, limit))
        return Found(merge_ready(lists), True, present, lanes)

    def without_runs(self, lanes: Sequence[Lane], found: Found) -> list[Lane]:
        """Those of these lanes that have no run which is ready, as was found. Not those that weren't asked for."""
        asked_in_vain = {*found.asked} - {head.lane for head in found.heads}
        if found.has_more:
            asked_in_vain = {
                lane for lane in asked_in_vain.intersection(lanes) if not self._store.ready([lane], 1)
            }
        return [lane for lane in lanes if lane in asked_in_vain or lane not in found.lanes]

    def _hidden_graphs(self, found: list[RunHead], lanes: list[Lane]) -> list[str]:
        """The graphs that have less than their share in a full list, as others may have filled it.

        Of many, those that were asked for the longest ago.
        """
        self._looks += 1
        graphs = dict.fromkeys(lane.graph for lane in lanes)
        if len(graphs) == 1:
            return []
        listed = Counter(head.graph for head in found)
        share = -(-len(found) // len(graphs))
        hidden = [graph for graph in graphs if listed[graph] < share]
        hidden.sort(key=lambda graph: self._last_asked.get(graph, 0))
        for graph in hidden[:MAX_ASKED_APART]:
            self._last_asked[graph] = self._looks
        return hidden[:MAX_ASKED_APART]
