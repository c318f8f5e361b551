"""What of the journal can be deleted: old checkpoints of one run while it runs, and old runs of one graph."""

from __future__ import annotations

from collections import deque
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

from limpet.defaults import CLEANUP_INTERVAL
from limpet.journal.store import Commit

if TYPE_CHECKING:
    from limpet.engine.leases.lease_client import LeaseClient
    from limpet.stores.retention import Retention

SHORTEST_CLEANUP_INTERVAL = 60.0
"""Seconds, at least, until old runs of a graph are looked for again. At most it is `CLEANUP_INTERVAL`."""


class BackgroundCleanup:
    """Deletes expired runs of one graph by its policy, in the background: now and then, when a run stops.

    `files` are the checkpoint files of the graph, if it writes any: they expire by the same policy.
    """

    __slots__ = ("_interval", "_lock", "_next", "files", "graph", "policy")

    def __init__(self, policy: Retention, graph: str, files: Any = None) -> None:
        self.policy = policy
        self.graph = graph
        self.files = files
        ages = [age for status in policy.statuses if (age := policy.age(status)) is not None]
        # A tenth of the shortest age, so that no run is kept much longer than the policy says.
        wanted = min(ages, default=0.0) / 10
        self._interval = min(CLEANUP_INTERVAL, max(SHORTEST_CLEANUP_INTERVAL, wanted))
        self._next = 0.0
        self._lock = Lock()

    def start_if_due(self, client: LeaseClient) -> None:
        """Have expired runs deleted in the background, unless that was done a short while ago."""
        with self._lock:
            now = monotonic()
            if now < self._next:
                return
            self._next = now + self._interval
        client.upkeep.do(lambda: self._delete_expired(client))

    def _delete_expired(self, client: LeaseClient) -> None:
        import logging

        from limpet.stores.retention import delete_expired, delete_files, expired_files, find_expired

        log = logging.getLogger("limpet.upkeep")
        try:
            deleted = delete_expired(client.store, find_expired(client.store, self.policy, self.graph))
            if deleted:
                log.info("graph %s: deleted %d expired runs", self.graph, len(deleted))
            if self.files is not None:
                deleted = delete_files(expired_files(self.files, self.policy, self.graph))
                if deleted:
                    log.info("graph %s: deleted %d expired checkpoint files", self.graph, len(deleted))
        except Exception:
            log.warning("graph %s: couldn't delete expired runs; will try again", self.graph, exc_info=True)


class StepRetention:
    """Knows which records of one run are no longer needed, if its newest `keep` checkpoints are to be kept.

    A checkpoint is rebuilt from the newest snapshot up to it and the records after that. So the records before a
    snapshot can be deleted once there are `keep` checkpoints from it on. Snapshots are written when they are worth
    it, not for this; therefore more than `keep` checkpoints may still exist.
    """

    __slots__ = ("_checkpoints", "_pruned", "_snapshots")

    def __init__(self, keep: int, first: int) -> None:
        self._checkpoints: deque[int] = deque(maxlen=keep)
        """The last records of the newest checkpoints."""
        self._snapshots = [first]
        self._pruned = first

    def add_commit(self, commit: Commit) -> None:
        """A commit is durable."""
        if commit.snapshot:
            self._snapshots.append(commit.snapshot)

    def add_checkpoint(self, sequence: int) -> int:
        """A checkpoint ends with this record. Returns the record before which all can be deleted, or 0 for none."""
        checkpoints = self._checkpoints
        checkpoints.append(sequence)
        if len(checkpoints) < (checkpoints.maxlen or 0):
            return 0
        while len(self._snapshots) > 1 and self._snapshots[1] <= checkpoints[0]:
            del self._snapshots[0]
        if self._snapshots[0] <= self._pruned:
            return 0
        self._pruned = self._snapshots[0]
        return self._pruned
