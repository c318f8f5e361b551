"""Orphans: runs whose holder was a process of this host that has died."""

from __future__ import annotations

from collections.abc import Collection
from time import monotonic

from limpet.engine.leases.process_identity import is_dead, this_process
from limpet.journal.run_filter import LeaseState, RunFilter
from limpet.journal.store import RUNNING, RunHead, Store

LIST_INTERVAL = 5.0
"""Seconds after which the store is asked again which processes hold runs."""
MAX_LISTED = 1000
"""How many runs are listed at once."""


class OrphanFinder:
    """Finds orphans, so that no run waits for the lease of a dead process to expire.

    Checking whether a known holder is alive costs no query. So the store is asked for the holders only now and then,
    and as soon as a known holder is dead.
    """

    def __init__(self, store: Store, lease: float) -> None:
        self._store = store
        # Later than the length of a lease there is nothing to gain: the lease of a dead process has expired by then.
        self._interval = min(lease, LIST_INTERVAL)
        self._holders: set[str] = set()
        self._next_list = 0.0

    def remember_holder(self, holder: str) -> None:
        """Watch a process that was found to hold a run."""
        self._holders.add(holder)

    def find(self, graphs: Collection[str], excluding: Collection[str]) -> list[RunHead]:
        """The orphans, without the runs named in `excluding`. A dead holder is noticed at once if it has runs of
        these graphs."""
        if monotonic() < self._next_list and not any(map(is_dead, list(self._holders))):
            return []
        with_holder = (LeaseState.HELD, LeaseState.EXPIRED)
        found = self._store.list(RunFilter((RUNNING,), lease_states=with_holder, limit=MAX_LISTED))
        held = [head for head in found if head.run_id not in excluding]
        # Not of other graphs: their runs may stay with a dead holder, and the store would be asked again and again.
        of_graphs = [head for head in held if head.graph in graphs]
        self._holders = {head.holder for head in of_graphs if head.holder} - {this_process()}
        self._next_list = monotonic() + self._interval
        return [head for head in held if head.holder and is_dead(head.holder)]
