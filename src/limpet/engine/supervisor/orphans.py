"""Others who hold runs of a store: those of this host whose process has died left theirs behind."""

from __future__ import annotations

from collections.abc import Collection
from time import monotonic

from limpet.engine.leases.process_identity import is_dead, this_process
from limpet.journal.store import RUNNING, RunFilter, RunHead, Store

NOW_AND_THEN = 5.0
"""Seconds between two looks at who holds runs."""
MOST_LISTED = 1000


class OrphanFinder:
    """Who is known to hold runs.

    Whether a process is alive costs no query. So the store is asked who holds runs now and then, as often as leases
    run out at most, and besides when one of those who did is dead.
    """

    def __init__(self, store: Store, lease: float) -> None:
        self._store, self._pause = store, min(lease, NOW_AND_THEN)
        self._holders: set[str] = set()
        self._look_at = 0.0

    def met(self, holder: str) -> None:
        """Somebody was seen to hold a run."""
        self._holders.add(holder)

    def orphans(self, graphs: Collection[str], but: Collection[str]) -> list[RunHead]:
        """Runs of these graphs, but for those named, whose holder has died: nobody need wait for their leases."""
        if monotonic() < self._look_at and not any(map(is_dead, list(self._holders))):
            return []
        found = self._store.list(RunFilter(statuses=(RUNNING,), limit=MOST_LISTED))
        held = [head for head in found if head.holder and head.graph in graphs and head.run_id not in but]
        self._holders = {head.holder for head in held if head.holder} - {this_process()}
        self._look_at = monotonic() + self._pause
        return [head for head in held if head.holder and is_dead(head.holder)]
