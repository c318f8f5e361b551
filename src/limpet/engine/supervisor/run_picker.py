"""Which runs are resumed next: the urgent ones first, no graph at the cost of another, and never too many.

The picker reads no clock and asks no store: it gets the runs that are ready, and returns the runs to resume.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from limpet.errors import UsageError
from limpet.journal.store import RunHead


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
            if type(number) is not int or number < 1:
                raise UsageError(
                    f"concurrency and per_graph must be whole numbers of at least 1, not {number!r}"
                )
        self._limit = limit
        self._limits = limits
        self._default_limit = default_limit
        self._graph_of_run: dict[str, str] = {}

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
        in_progress = sum(each == graph for each in self._graph_of_run.values())
        return min(self.room, self._limits.get(graph, self._default_limit) - in_progress)

    def started(self, run_id: str, graph: str) -> None:
        """A run is in progress."""
        self._graph_of_run[run_id] = graph

    def ended(self, run_id: str) -> None:
        """A run is no longer in progress."""
        self._graph_of_run.pop(run_id, None)

    def pick(self, ready: Iterable[RunHead]) -> list[RunHead]:
        """The runs to resume now, of those that are ready, in order.

        Urgent runs come first. Among equally urgent ones, the graph with the fewest runs in progress comes first.
        """
        # A run can be listed twice, as an orphan and as due: the dict keeps it once.
        candidates = {head.run_id: head for head in ready if head.run_id not in self._graph_of_run}
        # Each candidate counts as one more run of its graph, so that the graphs take turns.
        runs_of_graph = Counter(self._graph_of_run.values())
        ranked: list[tuple[int, int, int, RunHead]] = []
        for place, head in enumerate(candidates.values()):
            ranked.append((-head.priority, runs_of_graph[head.graph], place, head))
            runs_of_graph[head.graph] += 1
        ranked.sort(key=lambda each: each[:3])
        rooms = {head.graph: self.room_for(head.graph) for *_, head in ranked}
        picked: list[RunHead] = []
        for *_, head in ranked:
            if rooms[head.graph] > 0 and len(picked) < self.room:
                rooms[head.graph] -= 1
                picked.append(head)
        return picked


def merge_ready(lists: Sequence[Sequence[RunHead]]) -> list[RunHead]:
    """The ready runs of several graphs as one list, in the order in which a store would list them."""
    heads = [head for each in lists for head in each]
    return sorted(heads, key=lambda head: (-head.priority, head.due or 0.0, head.created, head.run_id))
