"""Which runs are resumed next: no graph at the cost of another, of each graph the urgent ones first, never too many.

The graph with the fewest runs in progress comes first; among equals, the one that was picked least recently. So a
graph with a long queue, or with urgent runs, never starves another. Within a graph, runs of a higher priority come
first, and then those that have been ready for longer.

The picker reads no clock and asks no store: it gets the runs that are ready, and returns the runs to resume.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from limpet.errors import UsageError
from limpet.journal.store import RunHead

MAX_CONCURRENCY: Final = 10_000
"""How many runs a supervisor can execute at once, at most. Each may need a thread."""


class RunPicker:
    """Counts the runs in progress, in all and of each graph, and picks more up to the limits."""

    def __init__(self, limit: int, per_graph: int | Mapping[str, int] | None = None) -> None:
        limits: Mapping[str, int] = {}
        default_limit = limit
        if isinstance(per_graph, Mapping):
            limits = per_graph
        elif per_graph is not None:
            default_limit = per_graph
        for number in (limit, default_limit, *limits.values()):
            if type(number) is not int or not 1 <= number <= MAX_CONCURRENCY:
                raise UsageError(
                    f"concurrency and per_graph must be whole numbers from 1 to {MAX_CONCURRENCY:,}, not {number!r}"
                )
        self._limit = limit
        self._limits = limits
        self._default_limit = default_limit
        self._graph_of_run: dict[str, str] = {}
        self._picks = 0
        self._last_pick: dict[str, int] = {}
        """By graph, which pick in the order of all picks its last one was."""

    @property
    def room(self) -> int:
        """How many more runs may be in progress."""
        return self._limit - len(self._graph_of_run)

    @property
    def run_ids(self) -> list[str]:
        """The ids of the runs in progress."""
        return list(self._graph_of_run)

    def room_for(self, graph: str) -> int:
        """How many more runs of one graph may be in progress."""
        # As a list, which is made at once: another thread may end a run meanwhile.
        in_progress = list(self._graph_of_run.values()).count(graph)
        return min(self.room, self._limit_of(graph) - in_progress)

    def started(self, run_id: str, graph: str) -> None:
        """A run is in progress."""
        self._graph_of_run[run_id] = graph
        self._picks += 1
        self._last_pick[graph] = self._picks

    def ended(self, run_id: str) -> None:
        """A run is no longer in progress."""
        self._graph_of_run.pop(run_id, None)

    def pick(self, ready: Iterable[RunHead]) -> list[RunHead]:
        """The runs to resume now, of those that are ready, in order. They count as picked once they are `started`."""
        waiting = self._waiting_by_graph(ready)
        in_progress = Counter(self._graph_of_run.values())
        # The smallest comes first: a graph by its runs in progress, then by its last pick, then as listed.
        turns = [
            (in_progress[graph], self._last_pick.get(graph, 0), place, graph)
            for place, graph in enumerate(waiting)
            if in_progress[graph] < self._limit_of(graph)
        ]
        heapify(turns)
        picked: list[RunHead] = []
        while turns and len(picked) < self.room:
            count, _, place, graph = heappop(turns)
            picked.append(waiting[graph].pop())
            if waiting[graph] and count + 1 < self._limit_of(graph):
                heappush(turns, (count + 1, self._picks + len(picked), place, graph))
        return picked

    def _waiting_by_graph(self, ready: Iterable[RunHead]) -> dict[str, list[RunHead]]:
        """The runs that aren't in progress, by graph, the most urgent ones last."""
        # A run can be listed twice, as an orphan and as due: the dict keeps it once.
        candidates = {head.run_id: head for head in ready if head.run_id not in self._graph_of_run}
        waiting: dict[str, list[RunHead]] = {}
        for head in candidates.values():
            waiting.setdefault(head.graph, []).append(head)
        for heads in waiting.values():
            heads.sort(key=lambda head: -head.priority)  # which keeps the order of equally urgent ones
            heads.reverse()
        return waiting

    def _limit_of(self, graph: str) -> int:
        return self._limits.get(graph, self._default_limit)


def merge_ready(lists: Sequence[Sequence[RunHead]]) -> list[RunHead]:
    """The ready runs of several lists as one, each once, in the order in which a store would list them."""
    heads = {head.run_id: head for each in lists for head in each}
    return sorted(
        heads.values(), key=lambda head: (-head.priority, head.due or 0.0, head.created, head.run_id)
    )
