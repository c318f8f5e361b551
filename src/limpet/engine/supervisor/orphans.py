"""Orphans: runs whose holder was a process of this host that has died."""

from __future__ import annotations

from collections.abc import Collection
from time import monotonic

from limpet.engine.leases.process_identity import is_dead, this_process
from limpet.engine.supervisor.lanes import ServedLanes
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

    def __init__(self, store: Store, served: ServedLanes, lease: float) -> None:
        self._store = store
        self._served = served
        # Later than the length of a lease there is nothing to gain: the lease of a dead process has expired by then.
        self._interval = min(lease, LIST_INTERVAL)
        self._holders: set[str] = set()
        self._next_list = 0.0

    def remember_holder(self, holder: str) -> None:
        """Watch a process that was found to hold a run."""
        self._holders.add(holder)

    def find(self, excluding: Collection[str]) -> list[RunHead]:
        """The orphans, without the runs named in `excluding`; those in lanes that aren't served are among them.

        A dead holder is noticed at once if it has runs in lanes that are.
        """
        if monotonic() < self._next_list and not any(map(is_dead, list(self._holders))):
            return []
        with_holder = (LeaseState.HELD, LeaseState.EXPIRED)
        found = self._store.list(RunFilter((RUNNING,), lease_states=with_holder, limit=MAX_LISTED))
        held = [head for head in found if head.run_id not in excluding]
        # Not of other lanes: their runs may stay with a dead holder, and the store would be asked again and again.
        served = [head for head in held if self._served.serves(head.lane)]
        self._holders = {head.holder for head in served if head.holder} - {this_process()}
        self._next_list = monotonic() + self._interval
        return [head for head in held if head.holder and is_dead(head.holder)]
