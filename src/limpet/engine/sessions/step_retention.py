"""What of the journal can be deleted: old steps of a run while it runs or when it completed, old runs of a graph."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from limpet.defaults import CLEANUP_INTERVAL
from limpet.errors import DamagedDocument, RunNotFound, StoreUnavailable
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.optional_calls import ReportsUndeleted, provides
from limpet.journal.reader import ViewedTail, read_records
from limpet.journal.record_shapes import read_summary
from limpet.journal.records import SNAPSHOT, STEP
from limpet.journal.run_filter import RunFilter, list_in_pages
from limpet.journal.store import COMPLETED, Document, Store, document_version
from limpet.observe.events import CHECKPOINT_FAIL
from limpet.threads.workers import JobQueue

if TYPE_CHECKING:
    from limpet.engine.leases.lease_client import LeaseClient
    from limpet.engine.loop.reporter import Reporter
    from limpet.journal.progress import Progress
    from limpet.journal.writer import JournalWriter
    from limpet.stores.retention import Retention

PRUNE_GRACE = 60.0
"""Seconds for which the earlier steps of a completed run stay, for processes that follow it."""

PRUNE_INTERVAL = 60.0
"""Seconds until old steps of completed runs are looked for again."""

PRUNED = "limpet/pruned"
"""The document that says up to when completed runs were pruned."""

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


class CompletedRuns:
    """Deletes the earlier steps of completed runs, up to the newest snapshot: their results stay.

    This happens in the background, some time after a run completed, so that a process that follows it can still read
    them. A process that completes a run looks for all that completed before, since the processes that executed them
    may have ended. How far that was done is kept in the store, as a document, so that no process looks at all runs
    again. Runs of which only the result is kept say so in their summaries.
    """

    __slots__ = ("_done_until", "_lock", "_next", "_store")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = Lock()
        self._next = 0.0
        self._done_until = 0.0
        """The runs that completed before this time were looked at, by this process or another one."""

    def prune_if_due(self, upkeep: JobQueue, store_time: float) -> None:
        """Have the earlier steps of completed runs deleted, unless that was done a short while ago."""
        with self._lock:
            now = monotonic()
            if now < self._next:
                return
            self._next = now + PRUNE_INTERVAL
        upkeep.do(lambda: self._prune_all(store_time))

    def _prune_all(self, store_time: float) -> None:
        try:
            self._prune_before(store_time - PRUNE_GRACE)
        except Exception:
            import logging

            logging.getLogger("limpet.upkeep").warning(
                "couldn't delete old steps of completed runs; will try again", exc_info=True
            )

    def _prune_before(self, until: float) -> None:
        since = self._done_until
        version = 0
        noted = self._note()
        if noted is not None:
            since = max(since, float(decode(noted.body)))
            version = noted.version
        newest = since
        which = RunFilter(statuses=(COMPLETED,), updated_since=since, updated_before=until)
        for head in list_in_pages(self._store, which):
            newest = max(newest, head.updated)
            if head.snapshot > 1 and _is_prunable(head.note):
                with suppress(RunNotFound):
                    self._store.prune(head.run_id, head.snapshot)
        self._done_until = newest
        if newest > since and self._store.abilities.takes_part:
            # If another process was quicker, its note is as good.
            self._store.put_document(PRUNED, encode(newest), version or document_version(self._store, PRUNED))

    def _note(self) -> Document | None:
        """What the store has of how far this was done, if it can be read."""
        if self._store.abilities.takes_part:
            with suppress(StoreUnavailable, DamagedDocument):
                return self._store.get_document(PRUNED)
        return None


_completed_runs: WeakKeyDictionary[LeaseClient, CompletedRuns] = WeakKeyDictionary()


def prune_completed(client: LeaseClient, store_time: float) -> None:
    """Have the earlier steps of completed runs deleted in the background: see `CompletedRuns`.

    `store_time` is the time by the store's clock, by which runs complete: this machine's may be far ahead.
    """
    runs = _completed_runs.get(client)
    if runs is None:
        runs = _completed_runs.setdefault(client, CompletedRuns(client.store))
    runs.prune_if_due(client.upkeep, store_time)


class StepRetention:
    """Knows which records of one run are no longer needed, if its newest `keep` checkpoints are to be kept.

    A checkpoint is rebuilt from the newest snapshot up to it and the records after that. So the records before a
    snapshot can be deleted once there are `keep` checkpoints from it on. Snapshots are written when they are worth
    it, not for this; therefore more than `keep` checkpoints may still exist.

    A session that has resumed the run knows the newest snapshot, `first`, and what happens from then on. Where that
    isn't enough, as in a conversation that pauses at every turn, `unneeded_before` finds it out from the journal.
    """

    __slots__ = ("_checkpoints", "_pruned", "_snapshots")

    def __init__(self, keep: int, first: int) -> None:
        self._checkpoints: deque[int] = deque(maxlen=keep)
        """The last records of the newest checkpoints."""
        self._snapshots = [first]
        self._pruned = first

    @property
    def is_full(self) -> bool:
        """Whether it knows all checkpoints that are kept."""
        return len(self._checkpoints) == self._checkpoints.maxlen

    def add_snapshot(self, sequence: int) -> None:
        """A snapshot is durable: it is this record, or begins it."""
        self._snapshots.append(sequence)

    def add_checkpoint(self, sequence: int) -> int:
        """A checkpoint ends with this record. Returns the record before which all can be deleted, or 0 for none."""
        checkpoints = self._checkpoints
        checkpoints.append(sequence)
        if not self.is_full:
            return 0
        while len(self._snapshots) > 1 and self._snapshots[1] <= checkpoints[0]:
            del self._snapshots[0]
        if self._snapshots[0] <= self._pruned:
            return 0
        self._pruned = self._snapshots[0]
        return self._pruned


class RunPruning:
    """Has old records of one run deleted, in the background, while a session executes it.

    `resumed_from` is the newest snapshot that the run had, if the session has resumed it.
    """

    __slots__ = ("_client", "_keep", "_resumed", "_retention", "_writer")

    def __init__(
        self, client: LeaseClient, writer: JournalWriter, keep: int, resumed_from: int | None
    ) -> None:
        self._client = client
        self._writer = writer
        self._keep = keep
        self._resumed = resumed_from is not None
        self._retention = StepRetention(keep, resumed_from or 1)

    def checkpoint_saved(self) -> None:
        """A checkpoint is durable, and the newest record is its last."""
        before = self._retention.add_checkpoint(self._writer.sequence)
        if before:
            self._client.upkeep.do(lambda: self._prune(before))

    def snapshot_saved(self, sequence: int) -> None:
        """A snapshot is durable: older checkpoints are looked for, if this session doesn't know them."""
        self._retention.add_snapshot(sequence)
        if self._resumed and not self._retention.is_full:
            self._client.upkeep.do(self._prune)

    def _prune(self, before: int | None = None) -> None:
        """Delete the records before this one. A failure does no harm: the next call deletes them too."""
        run_id = self._writer.run_id
        store = self._client.store
        try:
            if before is None:
                before = unneeded_before(store, run_id, self._keep)
            if before:
                store.prune(run_id, before)
        except RunNotFound:
            pass
        except Exception:
            import logging

            logging.getLogger("limpet.upkeep").warning(
                "run %s: couldn't delete old checkpoints; will try again with the next", run_id, exc_info=True
            )


def unneeded_before(store: Store, run_id: str, keep: int) -> int:
    """The record of a run before which all can be deleted, found by reading its journal; 0 for none."""
    tail = ViewedTail(*store.read(run_id, first=1))
    retention = StepRetention(keep, tail.first)
    before = 0
    newest = 0
    for sequence, record in read_records(tail):
        if record[0] == SNAPSHOT and sequence > tail.first:
            retention.add_snapshot(sequence)
        elif record[0] == STEP and sequence > newest:
            # The steps that are saved together are one record, and one checkpoint.
            newest = sequence
            before = retention.add_checkpoint(sequence) or before
    return before


def _is_prunable(note: bytes) -> bool:
    """Whether a head's note says that of its completed run only the result is kept. Earlier versions said nothing."""
    try:
        return bool(read_summary(note).get("prunable"))
    except ValueError:
        return False


def report_undeleted(store: Store, progress: Progress, reporter: Reporter) -> None:
    """Report that a store couldn't delete a run, if it couldn't. The run is complete all the same."""
    problem = store.undeleted(progress.run_id) if provides(store, ReportsUndeleted) else None
    if problem is not None:
        reporter.notify(
            CHECKPOINT_FAIL,
            node=progress.made_by,
            step=progress.step,
            error=f"the run is complete, and couldn't be deleted: {reporter.error_line(problem)}",
        )
