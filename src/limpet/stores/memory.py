"""A store that ends with its process: for tests, and for runs that need not survive the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from limpet.errors import RunExists, RunNotFound, StoreUnavailable
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import (
    ENDED,
    Abilities,
    Commit,
    Document,
    Heads,
    Lane,
    Lease,
    NewRun,
    Output,
    Post,
    RunHead,
    Tail,
)
from limpet.stores import heads
from limpet.stores.claims import claim_one_by_one
from limpet.stores.indexes import DocumentIndex, RunIndex
from limpet.stores.lease_clock import own_lease_clock
from limpet.threads.workers import ChangeSignal


class MemoryStore:
    """Keeps runs in this process. Two stores share nothing."""

    abilities = Abilities(level="memory", shared=False, notifies=True, keeps_secrets=True)

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        ahead = time.time() - time.monotonic()
        self._lease_clock = own_lease_clock(clock) or (lambda: time.monotonic() + ahead)
        self._lock = threading.Lock()
        self._changes = ChangeSignal()
        self._runs: dict[str, _Run] | None = {}
        self._run_index = RunIndex()
        # In the order of the changes, of which most belong at the end of an index. Each is noted before it is made:
        # so an interrupt in between leaves the index behind, but not for good.
        self._unindexed_runs: dict[str, None] = {}
        self._documents: dict[str, Document] = {}
        self._document_index = DocumentIndex()
        self._unindexed_documents: dict[str, None] = {}
        self._newest_version = 0
        self._marked_changes = 0

    def __repr__(self) -> str:
        if self._runs is None:
            return "<MemoryStore closed>"
        return f"<MemoryStore of {len(self._runs)} runs>"

    def __str__(self) -> str:
        return "memory://"

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._runs is None

    def create(self, run: NewRun) -> Lease | None:
        with self._lock:
            runs = self._open()
            if run.run_id in runs:
                raise RunExists(run.run_id)
            head, lease = heads.create(run, self.clock(), self._lease_clock())
            self._unindexed_runs[run.run_id] = None
            self._marked_changes += 1
            runs[run.run_id] = _Run(head, 0, list(run.records))
            if lease is None:
                self._changes.notify()
            return lease

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        with self._lock:
            runs = self._open()
            self._marked_changes += 1
            return [self._apply(runs, commit) for commit in commits]

    def head(self, run_id: str) -> RunHead:
        with self._lock:
            return self._run(run_id).current_head()

    def heads(self, run_ids: Sequence[str]) -> Sequence[RunHead | None]:
        with self._lock:
            runs = self._open()
            return [None if (run := runs.get(run_id)) is None else run.current_head() for run_id in run_ids]

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        with self._lock:
            run = self._run(run_id)
            head = run.current_head()
            start, stop = heads.readable(head, run.dropped, first, last)
            records = run.records[start - run.dropped - 1 : max(stop - run.dropped, 0)]
            return heads.tail(head, start, records)

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        with self._lock:
            run = self._run(run_id)
            self._marked_changes += 1
            run.head, lease = heads.claim(
                run.head, holder, ttl, self.clock(), instead_of, self._lease_clock()
            )
            return lease

    def claim_ready(self, wanted: Sequence[RunHead], holder: str, ttl: float) -> list[Lease | None]:
        with self._lock:
            runs = self._open()
            self._marked_changes += 1
            return claim_one_by_one(
                wanted, lambda listed: self._claim_ready(runs.get(listed.run_id), listed, holder, ttl)
            )

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[bool | None]:
        leases = list(leases)
        with self._lock:
            runs = self._open()
            return [self._renew(runs.get(lease.run_id), lease, ttl) for lease in leases]

    def are_valid(self, leases: Sequence[Lease]) -> list[bool]:
        now = self._lease_clock()
        found = self.heads([lease.run_id for lease in leases])
        return [heads.is_valid(lease, head, now) for lease, head in zip(leases, found, strict=True)]

    def release(self, lease: Lease) -> None:
        with self._lock:
            run = self._open().get(lease.run_id)
            if run is None:
                return
            released = heads.release(run.head, lease)
            if released is not None:
                self._marked_changes += 1
                run.head = released
                self._changes.notify()

    def post(self, run_id: str, key: str, body: bytes) -> bool:
        with self._lock:
            run = self._run(run_id)
            if key in run.keys:
                return False
            head = heads.post(run.head, self.clock())
            self._marked_changes += 1
            posts = [*run.posts, Post(head.posted, key, body)]
            self._unindexed_runs[run_id] = None
            # No interrupt can come between these three: a key that is known without its post would lose the post.
            run.posts = posts
            run.head = head
            run.keys.add(key)
            self._changes.notify()
            return True

    def inbox(self, run_id: str) -> Sequence[Post]:
        with self._lock:
            run = self._run(run_id)
            return [post for post in run.posts if post.number > run.head.taken]

    def add_output(self, run_id: str, fence: int, bodies: Sequence[bytes], keep: int) -> int:
        with self._lock:
            run = self._run(run_id)
            heads.refuse_old_fence(run.head, fence, self._lease_clock())
            first = run.head.output + 1
            run.output.extend(Output(number, body) for number, body in enumerate(bodies, first))
            run.head = run.head._replace(output=run.head.output + len(bodies))
            del run.output[: max(len(run.output) - keep, 0)]
            return run.head.output

    def output(self, run_id: str, after: int = 0, limit: int | None = None) -> Sequence[Output]:
        with self._lock:
            items = self._run(run_id).output
            return [item for item in items if item.number > after][:limit]

    def put_document(self, name: str, body: bytes, version: int, due: float | None = None) -> int | None:
        with self._lock:
            self._open()
            found = self._documents.get(name)
            if version != (0 if found is None else found.version):
                return None
            self._newest_version += 1
            self._unindexed_documents[name] = None
            self._documents[name] = Document(name, self._newest_version, body, due)
            return self._newest_version

    def get_document(self, name: str) -> Document | None:
        with self._lock:
            self._open()
            return self._documents.get(name)

    def list_documents(
        self, prefix: str = "", due: bool = False, limit: int | None = None
    ) -> Sequence[Document]:
        with self._lock:
            self._open()
            due_by = self.clock() if due else None
            names = self._current_document_index().find(prefix, due_by, limit)
            return [self._documents[name] for name in names]

    def delete_document(self, name: str, version: int) -> bool:
        with self._lock:
            self._open()
            found = self._documents.get(name)
            if found is None or found.version != version:
                return False
            self._unindexed_documents[name] = None
            del self._documents[name]
            self._current_document_index()
            return True

    def lanes(self) -> Sequence[Lane]:
        with self._lock:
            return self._current_run_index().lanes()

    def ready(self, lanes: Sequence[Lane], limit: int) -> Heads:
        with self._lock:
            lease_now = self._lease_clock()
            runs = self._open()
            due = map(runs.__getitem__, self._current_run_index().due(lanes, self.clock()))
            free = (run.current_head() for run in due if not heads.is_held(run.head, lease_now))
            return list(islice(free, limit))

    def list(self, which: RunFilter) -> list[RunHead]:
        with self._lock:
            now = self.clock()
            lease_now = self._lease_clock()
            runs = self._open().values()
            found = [run.current_head() for run in runs if heads.matches(run.head, which, now, lease_now)]
        return heads.newest_first(found, which)

    def prune(self, run_id: str, before: int) -> int:
        with self._lock:
            run = self._run(run_id)
            count = heads.prunable(run.head, run.dropped, before)
            del run.records[:count]
            run.dropped += count
            return count

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        with self._lock:
            now = self.clock()
            lease_now = self._lease_clock()
            runs = self._open()
            expired = [
                run_id
                for run_id, run in runs.items()
                if heads.is_expired(run.head, older_than, statuses, now, lease_now)
            ]
            self._unindexed_runs.update(dict.fromkeys(expired))
            self._marked_changes += len(expired)
            for run_id in expired:
                del runs[run_id]
            if expired:
                self._changes.notify()
                self._current_run_index()
            return len(expired)

    def delete(self, run_id: str) -> None:
        with self._lock:
            run = self._run(run_id)
            heads.refuse_if_held(run.head, self._lease_clock())
            self._unindexed_runs[run_id] = None
            self._marked_changes += 1
            del self._open()[run_id]
            self._changes.notify()
            self._current_run_index()

    def wait_for_change(self, timeout: float) -> bool:
        self._open()
        changed = self._changes.wait(timeout)
        self._open()
        return changed

    def change_mark(self) -> object:
        """How many changes there were, and attempts at one."""
        self._open()
        return self._marked_changes

    def close(self) -> None:
        with self._lock:
            self._runs = None
            self._changes.notify()

    def _open(self) -> dict[str, _Run]:
        if self._runs is None:
            raise StoreUnavailable("this memory store was closed, and its runs are gone; open a new one")
        return self._runs

    def _run(self, run_id: str) -> _Run:
        run = self._open().get(run_id)
        if run is None:
            raise RunNotFound(run_id)
        return run

    def _current_run_index(self) -> RunIndex:
        """The index with all that has changed since it was last used."""
        runs = self._open()
        for run_id in self._unindexed_runs:
            run = runs.get(run_id)
            if run is None:
                self._run_index.remove(run_id)
            else:
                self._run_index.put(run_id, run.head)
        self._unindexed_runs.clear()
        return self._run_index

    def _current_document_index(self) -> DocumentIndex:
        for name in self._unindexed_documents:
            document = self._documents.get(name)
            if document is None:
                self._document_index.remove(name)
            else:
                self._document_index.put(name, document.due)
        self._unindexed_documents.clear()
        return self._document_index

    def _apply(self, runs: dict[str, _Run], commit: Commit) -> Exception | None:
        run = runs.get(commit.run_id)
        if run is None:
            return RunNotFound(commit.run_id)
        head = run.head
        now = self.clock()
        sequence = run.sequence
        refused = heads.refusal(commit, head, now, sequence)
        if refused is not None:
            return refused
        if heads.changes_more_than_sequence(head, commit):
            head = heads.apply(head, commit, now)
            self._unindexed_runs[commit.run_id] = None
        if commit.purge:
            sequence += len(commit.records)
        # From here to the last line of the change there is no call of a Python function, so no interrupt can come
        # between and leave, say, a status without its record.
        run.head = head
        if commit.takes:
            del run.posts[: max(len(run.posts) - (head.posted - head.taken), 0)]
        if commit.purge:
            run.dropped = sequence
            run.records = []
        else:
            run.records.extend(commit.records)
        if commit.status:
            self._changes.notify()
        return None

    def _claim_ready(self, run: _Run | None, listed: RunHead, holder: str, ttl: float) -> Lease | None:
        if run is None:
            return None
        claimed = heads.claim_ready(run.head, listed, holder, ttl, self.clock(), self._lease_clock())
        if claimed is None:
            return None
        run.head, lease = claimed
        return lease

    def _renew(self, run: _Run | None, lease: Lease, ttl: float) -> bool | None:
        if run is None:
            return None
        renewed = heads.renew(run.head, lease, ttl, self.clock(), self._lease_clock())
        if renewed is None:
            return None
        run.head = renewed
        return renewed.posted > renewed.taken


class _Run:
    """A head and the records after the first `dropped` ones.

    The head's own `sequence` is out of date: it follows from the records, and copying a head for each commit would
    cost more than the commit.
    """

    __slots__ = ("dropped", "head", "keys", "output", "posts", "records")

    def __init__(self, head: RunHead, dropped: int, records: list[bytes]) -> None:
        self.head = head
        self.dropped = dropped
        self.records = records
        self.posts: list[Post] = []
        """Those that no commit has taken in."""
        self.keys: set[str] = set()
        """The keys of all posts."""
        self.output: list[Output] = []

    @property
    def sequence(self) -> int:
        return self.dropped + len(self.records)

    def current_head(self) -> RunHead:
        return self.head._replace(sequence=self.sequence)
