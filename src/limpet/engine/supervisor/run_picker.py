"""Which runs are taken on next: the urgent ones first, no graph at the cost of another, and never too many.

It reads no clock and asks no store: it is told what there is, and says what to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from limpet.errors import UsageError
from limpet.journal.store import RunHead


class RunPicker:
    """How many runs are under way, of each graph, and how many more may be."""

    def __init__(self, limit: int, per_graph: int | Mapping[str, int] | None = None) -> None:
        limits = per_graph if isinstance(per_graph, Mapping) else {}
        for number in (limit, *limits.values(), *([per_graph] if isinstance(per_graph, int) else [])):
            if type(number) is not int or number < 1:
                raise UsageError(f"a limit of runs at once is a whole number from 1, not {number!r}")
        self._limit, self._limits = limit, limits
        self._each = per_graph if isinstance(per_graph, int) else limit
        self._under_way: dict[str, str] = {}

    @property
    def room(self) -> int:
        """How many more runs may be begun."""
        return self._limit - len(self._under_way)

    @property
    def runs(self) -> list[str]:
        """The runs that are under way."""
        return list(self._under_way)

    def room_for(self, graph: str) -> int:
        """How many more runs of one graph may be begun."""
        of_it = sum(each == graph for each in self._under_way.values())
        return min(self.room, self._limits.get(graph, self._each) - of_it)

    def began(self, run_id: str, graph: str) -> None:
        """A run is under way."""
        self._under_way[run_id] = graph

    def ended(self, run_id: str) -> None:
        """A run isn't any more."""
        self._under_way.pop(run_id, None)

    def choose(self, ready: Iterable[RunHead]) -> list[RunHead]:
        """Those of the runs that are ready which are to be begun now, in order.

        Urgent ones come first. Of those that are as urgent, the graph has its turn that has the fewest under way.
        A run that is named twice, as one that was lost and is due as well, is begun once.
        """
        shares = Counter(self._under_way.values())
        ranked: list[tuple[int, int, int, RunHead]] = []
        once = {head.run_id: head for head in ready if head.run_id not in self._under_way}
        for place, head in enumerate(once.values()):
            ranked.append((-head.priority, shares[head.graph], place, head))
            shares[head.graph] += 1
        rooms = {head.graph: self.room_for(head.graph) for *_, head in ranked}
        chosen: list[RunHead] = []
        for *_, head in sorted(ranked, key=lambda each: each[:3]):
            if rooms[head.graph] > 0 and len(chosen) < self.room:
                rooms[head.graph] -= 1
                chosen.append(head)
        return chosen


def together(lists: Sequence[Sequence[RunHead]]) -> list[RunHead]:
    """What several graphs have ready, as one list in the order of a store."""
    heads = [head for each in lists for head in each]
    return sorted(heads, key=lambda head: (-head.priority, head.due or 0.0, head.created, head.run_id))
