"""A supervisor in the list of workers: its own document, and what it knows of the others.

`engine/leases/workers.py` has what the documents say. A supervisor works without the list as well: a store that
fails while a document is read or written costs nothing but that.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from time import monotonic

from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.leases.process_identity import is_dead, this_process
from limpet.engine.leases.workers import RENEWAL_INTERVAL, WorkerInfo, read_worker, worker_document
from limpet.engine.supervisor.log import log
from limpet.graphs.names import WORKERS
from limpet.journal.store import Document, Lane, document_version
from limpet.threads.workers import Monitor, start_thread

CLEANUP_INTERVAL = 60.0
"""Seconds between two looks for workers that are long gone."""
GONE_KEPT = 3600.0
"""Seconds for which a worker that is gone stays in the list."""

_numbers = count(1)


class WorkerEntry:
    """The document of one supervisor, which a thread renews while the supervisor works.

    `describe` says what the document has: it gets the name of the worker, since when it works, and the time.
    """

    def __init__(self, client: LeaseClient, describe: Callable[[str, float, float], WorkerInfo]) -> None:
        self._client = client
        self._describe = describe
        self._number = next(_numbers)
        self._changed = Monitor()
        self._newest = 0
        """Which thread renews it. An earlier one ends."""
        self._is_kept = False
        self._version = 0
        self._since = 0.0
        self._next_cleanup = 0.0
        self._has_failed = False

    @property
    def name(self) -> str:
        """The name of this worker: its process, with a number for a process that has several."""
        return this_process() if self._number == 1 else f"{this_process()}/{self._number}"

    def keep(self) -> None:
        """Write the document, and renew it until `leave`. Does nothing for a store without documents."""
        if not self._client.store.abilities.takes_part:
            return
        with self._changed.lock:
            self._newest += 1
            self._is_kept = True
            self._since = 0.0
        start_thread(self._renew, "limpet-worker-list", self._newest)

    def leave(self, seconds: float) -> None:
        """Delete the document; wait for that for this many seconds at most, as the store may not answer."""
        with self._changed.lock:
            self._newest += 1
        self._changed.notify()
        self._changed.wait_for(lambda: not self._is_kept, seconds)

    def _renew(self, number: int) -> None:
        try:
            while number == self._newest:
                self._attempt(self._write, self._clean_up)
                self._changed.wait_for(lambda: number != self._newest, RENEWAL_INTERVAL)
            if number + 1 == self._newest:  # it has left, and hasn't begun again
                self._attempt(self._delete)
        finally:
            with self._changed.lock:
                if number + 1 >= self._newest:
                    self._is_kept = False
            self._changed.notify()

    def _attempt(self, *steps: Callable[[], None]) -> None:
        """Take these steps. What fails is tried again at the next renewal."""
        try:
            for step in steps:
                step()
            self._has_failed = False
        except Exception as problem:
            if not self._has_failed:
                log().warning("couldn't renew the entry in the list of workers: %s; will try again", problem)
            self._has_failed = True

    def _write(self) -> None:
        store = self._client.store
        name = WORKERS + self.name
        now = self._client.store_time()
        self._since = self._since or now
        body = worker_document(self._describe(self.name, self._since, now))
        version = store.put_document(name, body, self._version)
        if version is None:  # another worker has removed it, or an earlier process had this name
            version = store.put_document(name, body, document_version(store, name))
        self._version = version or 0

    def _delete(self) -> None:
        self._client.store.delete_document(WORKERS + self.name, self._version)
        self._version = 0

    def _clean_up(self) -> None:
        """Remove the documents of workers that are long gone, now and then."""
        if monotonic() < self._next_cleanup:
            return
        self._next_cleanup = monotonic() + CLEANUP_INTERVAL
        now = self._client.store_time()
        for document in self._client.store.list_documents(WORKERS):
            info = read_worker(document, now)
            if info is not None and not info.is_live and now - info.seen > GONE_KEPT:
                self._client.store.delete_document(document.name, document.version)


class OtherWorkers:
    """What a supervisor knows of the other workers of its store; the store is asked every few seconds at most."""

    def __init__(self, client: LeaseClient, own_name: Callable[[], str]) -> None:
        self._client = client
        self._own_name = own_name
        self._next_look = 0.0
        self._versions: dict[str, tuple[int, float]] = {}
        """The version of each document, and when it was first seen, by the monotonic clock."""
        self._by_plan: dict[tuple[str, str], list[WorkerInfo]] = {}
        """The live ones, by graph and plan."""

    def with_plan_of(self, lane: Lane) -> WorkerInfo | None:
        """A live worker that serves the queue of a lane, and has exactly its plan; None if there is none."""
        self._look()
        for worker in self._by_plan.get((lane.graph, lane.plan), ()):
            if worker.serves_queue(lane.queue):
                return worker
        return None

    def _look(self) -> None:
        if monotonic() < self._next_look or not self._client.store.abilities.takes_part:
            return
        self._next_look = monotonic() + RENEWAL_INTERVAL
        found = self._client.store.list_documents(WORKERS)
        by_plan: dict[tuple[str, str], list[WorkerInfo]] = {}
        for document in found:
            info = read_worker(document, self._client.now())
            if info is None or info.name == self._own_name() or not self._is_live(document, info):
                continue
            for graph, plan in info.graphs.items():
                if plan is not None:
                    by_plan.setdefault((graph, plan), []).append(info)
        self._by_plan = by_plan
        names = {document.name for document in found}
        self._versions = {name: seen for name, seen in self._versions.items() if name in names}

    def _is_live(self, document: Document, info: WorkerInfo) -> bool:
        """Whether a worker lives. One that renews its document does, even if its clock is wrong."""
        version, since = self._versions.get(document.name, (0, 0.0))
        if version != document.version:
            self._versions[document.name] = (document.version, monotonic())
            was_renewed = version != 0
        else:
            was_renewed = monotonic() - since <= info.patience
        return (info.is_live or was_renewed) and not is_dead(info.name.partition("/")[0])
