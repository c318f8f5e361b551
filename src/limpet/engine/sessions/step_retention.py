"""What may go of a run's journal while it runs, and what is too much of it."""

from __future__ import annotations

from collections import deque
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Final

from limpet.journal.store import Commit

if TYPE_CHECKING:
    from limpet.engine.leases.lease_client import LeaseClient
    from limpet.stores.retention import Retention

LARGE: Final = 500_000
"""How many bytes one checkpoint may add to the journal before it is worth a warning."""

SELDOM, OFTEN = 3600.0, 60.0
"""How many seconds pass before old runs of a graph are looked for again, at most and at least."""


class Upkeep:
    """Has old runs of one graph go by its policy: when a run stops, now and then, while nobody waits for it."""

    __slots__ = ("_lock", "_next", "every", "graph", "policy")

    def __init__(self, policy: Retention, graph: str) -> None:
        self.policy, self.graph = policy, graph
        ages = [age for status in policy.statuses if (age := policy.age(status)) is not None]
        self.every = min(SELDOM, max(OFTEN, min(ages, default=0.0) / 10))
        self._next = 0.0
        self._lock = Lock()

    def consider(self, client: LeaseClient) -> None:
        """Look for old runs, unless that was done a short while ago."""
        with self._lock:
            now = monotonic()
            if now < self._next:
                return
            self._next = now + self.every
        client.cleanup_thread.submit(self._clean, client)

    def _clean(self, client: LeaseClient) -> None:
        import logging

        from limpet.stores.retention import expired, let_go

        log = logging.getLogger("limpet.upkeep")
        try:
            gone = let_go(client.store, expired(client.store, self.policy, self.graph))
            if gone:
                log.info("graph %s: %d old runs went", self.graph, len(gone))
        except Exception:
            log.warning("graph %s: couldn't let old runs go; will try again", self.graph, exc_info=True)


class StepRetention:
    """Keeps account of one run's checkpoints, by the numbers of their records: the newest `keep` are to stay.

    A checkpoint needs the newest whole record up to it and all that follows, so what is before that can go once there
    are `keep` newer ones. Whole records are written when they are worth it, not for this.
    """

    __slots__ = ("_bytes", "_marks", "_pruned", "_wholes")

    def __init__(self, keep: int | None, first: int) -> None:
        self._marks: deque[int] | None = None if keep is None else deque(maxlen=keep)
        self._wholes = [first]
        self._pruned = first
        self._bytes = 0

    def written(self, commit: Commit) -> None:
        """A commit is durable."""
        self._bytes += sum(map(len, commit.records))
        if commit.snapshot:
            self._wholes.append(commit.snapshot)

    def mark(self, sequence: int) -> tuple[int, int]:
        """A checkpoint ends with this record: what it added in bytes, and the record before which all may go (or
        0).
        """
        added, self._bytes = self._bytes, 0
        if self._marks is None:
            return added, 0
        self._marks.append(sequence)
        if len(self._marks) < (self._marks.maxlen or 0):
            return added, 0
        while len(self._wholes) > 1 and self._wholes[1] <= self._marks[0]:
            del self._wholes[0]
        if self._wholes[0] <= self._pruned:
            return added, 0
        self._pruned = self._wholes[0]
        return added, self._pruned
