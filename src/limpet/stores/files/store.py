"""Runs in plain files: nothing but a directory, shared by the processes of one machine.

Each run has a journal file that only grows and a small head file that is replaced; see `run_files.py`. The usual
commit is one frame, written and flushed. Locks are those of the operating system, which releases them when a process
is killed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from limpet.defaults import LOCK_TIMEOUT
from limpet.durations import store_seconds
from limpet.errors import (
    DamagedDocument,
    DamagedRecord,
    RunExists,
    RunNotFound,
    StoreError,
    StoreUnavailable,
    TooLarge,
    UsageError,
)
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import (
    ENDED,
    Abilities,
    Commit,
    Document,
    Heads,
    Lane,
    Lease,
    Level,
    NewRun,
    Output,
    Post,
    RunHead,
    Tail,
)
from limpet.stores import heads
from limpet.stores.atomic_files import explaining
from limpet.stores.claims import claim_one_by_one
from limpet.stores.files.batch import CommitBatch
from limpet.stores.files.damaged_heads import salvaged_records
from limpet.stores.files.directory import (
    DOCUMENTS,
    prepare_directory,
    remove_stale_files,
    remove_stray_files,
)
from limpet.stores.files.documents import LOCK_NAME, DocumentFiles
from limpet.stores.files.inbox_file import add_post, has_key, waiting_posts
from limpet.stores.files.locks import HAS_FILE_LOCKS, LockBusy, LockFile, Locks
from limpet.stores.files.output_file import add_output, read_output
from limpet.stores.files.run_cache import RunCache, intact_head
from limpet.stores.files.run_files import RunFiles
from limpet.stores.files.run_names import file_name_of
from limpet.stores.files.run_opening import create_run, read_unlocked
from limpet.stores.files.run_search import RunSearch
from limpet.stores.lease_clock import clock_in_directory, own_lease_clock

Outcome = TypeVar("Outcome")


class FileStore:
    """Keeps runs in the directory at `path`, which is made if it is missing.

    `level` is what an acknowledged save survives: "disk" a power loss (an fsync for each commit), "process" a kill of
    the process. `timeout` is how many seconds to wait for another process that is writing. Threads may share a store,
    and where the system has file locks, processes may share its directory. A process may fork at any time. Raises
    `StoreUnavailable` where the directory can't be used.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        level: Level = "disk",
        clock: Callable[[], float] = time.time,
        timeout: float = LOCK_TIMEOUT,
    ) -> None:
        if level not in ("disk", "process"):
            raise UsageError(f'a file store has the level "disk" or "process", not {level!r}')
        timeout = store_seconds(timeout, "timeout")
        if not os.fspath(path):
            raise UsageError("a file store needs the path of a directory")
        self.path = Path(path).resolve()
        self.abilities = Abilities(level=level, shared=HAS_FILE_LOCKS)
        self.closed = False
        self.clock = clock
        self._flush = level == "disk"
        self._runs = self.path / "runs"
        with explaining(self.path):
            prepare_directory(self.path, self._flush)
            self._locks = Locks(self.path / "locks", timeout)
            self._cache = RunCache(self._runs, self._locks, self._flush)
            self._search = RunSearch(self._locks, self._cache, self._holding_locks)
            remove_stale_files(self._runs)
            self._documents = DocumentFiles(self.path / DOCUMENTS, self._flush, self._locks.documents)
            self._lease_clock = own_lease_clock(clock) or clock_in_directory(
                self.path / "clocks", clock, flush=self._flush
            )

    def __repr__(self) -> str:
        return f"FileStore({str(self.path)!r}, level={self.abilities.level!r})"

    def __str__(self) -> str:
        return f"file://{self.path}"

    def create(self, run: NewRun) -> Lease | None:
        def create(lock: LockFile) -> Lease | None:
            with suppress(RunNotFound):
                self._cache.find(lock, run.run_id)
                raise RunExists(run.run_id)
            head, lease = heads.create(run, self.clock(), self._lease_clock())
            lock.count_change(file_name_of(run.run_id))
            created = create_run(self._runs, self._flush, head, list(run.records))
            self._cache.add_created(lock, created)
            return lease

        return self._holding(create, run.run_id)

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        outcomes: list[Exception | None] = [None] * len(commits)
        batch = CommitBatch()

        def write(*_: LockFile) -> None:
            try:
                for number, commit in enumerate(commits):
                    outcomes[number] = self._prepare_commit(commit, batch, number)
            except BaseException:
                batch.undo()
                raise
            batch.complete()

        self._holding(write, *(commit.run_id for commit in commits))
        for number, problem in batch.failed.items():
            outcomes[number] = problem
        return outcomes

    def head(self, run_id: str) -> RunHead:
        return self._reading(run_id, intact_head)

    def heads(self, run_ids: Sequence[str]) -> Sequence[RunHead | None]:
        return [self._head_or_none(run_id) for run_id in run_ids]

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        def read(run: RunFiles) -> Tail:
            if run.damage is not None and (last is None or last >= run.damage.sequence):
                raise run.damage
            head = run.head
            start, stop = heads.readable(head, run.place.dropped, first, last)
            records = run.records(start, stop)
            return heads.tail(head, start, records)

        return self._reading(run_id, read)

    def salvage(self, run_id: str) -> Mapping[int, bytes | DamagedRecord]:
        """The records in the run's journal file, read without its head file and without its lock."""
        self._refuse_closed()
        with explaining(self.path):
            return salvaged_records(self._runs, run_id)

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        def claim(lock: LockFile) -> Lease:
            run = self._cache.find(lock, run_id)
            head, lease = heads.claim(run.head, holder, ttl, self.clock(), instead_of, self._lease_clock())
            self._cache.replace_head(lock, run, head)
            return lease

        return self._holding(claim, run_id)

    def claim_ready(self, wanted: Sequence[RunHead], holder: str, ttl: float) -> list[Lease | None]:
        self._refuse_closed()
        return claim_one_by_one(wanted, lambda listed: self._claim_ready(listed, holder, ttl))

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[bool | None]:
        self._refuse_closed()
        return [self._renew(lease, ttl) for lease in leases]

    def are_valid(self, leases: Sequence[Lease]) -> list[bool]:
        now = self._lease_clock()
        found = self.heads([lease.run_id for lease in leases])
        return [heads.is_valid(lease, head, now) for lease, head in zip(leases, found, strict=True)]

    def release(self, lease: Lease) -> None:
        def release(lock: LockFile) -> None:
            run = self._cache.find(lock, lease.run_id)
            head = heads.release(run.head, lease)
            if head is not None and head != run.head:
                self._cache.replace_head(lock, run, head)

        with suppress(RunNotFound):
            self._holding(release, lease.run_id)

    def post(self, run_id: str, key: str, body: bytes) -> bool:
        def post(lock: LockFile) -> bool:
            run = self._cache.find(lock, run_id)
            if has_key(run, key):
                return False
            head = heads.post(run.head, self.clock())
            lock.count_change(run.name)
            add_post(run, head, key, body)
            return True

        return self._holding(post, run_id)

    def inbox(self, run_id: str) -> Sequence[Post]:
        return self._reading(run_id, waiting_posts)

    def add_output(self, run_id: str, fence: int, bodies: Sequence[bytes], keep: int) -> int:
        def add(lock: LockFile) -> int:
            run = self._cache.find(lock, run_id)
            heads.refuse_old_fence(run.head, fence, self._lease_clock())
            lock.count_change(run.name)
            return add_output(run, bodies, keep)

        return self._holding(add, run_id)

    def output(self, run_id: str, after: int = 0, limit: int | None = None) -> Sequence[Output]:
        return self._reading(run_id, lambda run: read_output(run, after, limit))

    def put_document(self, name: str, body: bytes, version: int, due: float | None = None) -> int | None:
        return self._holding_documents(lambda: self._documents.put(name, body, version, due))

    def get_document(self, name: str) -> Document | None:
        self._refuse_closed()
        with explaining(self.path):
            return self._documents.get(name)

    def list_documents(
        self, prefix: str = "", due: bool = False, limit: int | None = None
    ) -> Sequence[Document]:
        self._refuse_closed()
        due_by = self.clock() if due else None
        lock = self._locks.documents
        try:
            return self._holding_locks(
                [lock],
                lambda: self._documents.find(prefix, due_by, limit),
                self._locks.reading_timeout(lock),
            )
        except LockBusy:
            with explaining(self.path):
                found = self._documents.all_unlocked()
            named = [document for document in found if document.name.startswith(prefix)]
            return heads.selected_documents(named, due_by)[:limit]

    def delete_document(self, name: str, version: int) -> bool:
        return self._holding_documents(lambda: self._documents.delete(name, version))

    def damaged_documents(self, prefix: str = "") -> Sequence[DamagedDocument]:
        """The documents whose files aren't what was written."""
        self._refuse_closed()
        with explaining(self.path):
            return self._documents.damaged(prefix)

    def list(self, which: RunFilter) -> list[RunHead]:
        now = self.clock()
        lease_now = self._lease_clock()
        self._refuse_closed()
        with explaining(self.path):
            found = self._search.heads(lambda head: heads.matches(head, which, now, lease_now))
        return heads.newest_first(found, which)

    def lanes(self) -> Sequence[Lane]:
        self._refuse_closed()
        with explaining(self.path):
            return self._search.lanes()

    def ready(self, lanes: Sequence[Lane], limit: int) -> Heads:
        self._refuse_closed()
        wanted = frozenset(lanes)
        now = (self.clock(), self._lease_clock())
        refused: set[str] = set()
        while True:
            with explaining(self.path):
                found = self._search.ready(wanted, now, limit, refused)
            chosen = [head.run_id for head in heads.most_urgent_first(found)[:limit]]
            ready = [head for head in self.heads(chosen) if head and heads.is_ready(head, wanted, *now)]
            # A run that is damaged, or isn't ready any more, must not hide another one.
            refused.update(set(chosen) - {head.run_id for head in ready})
            if len(ready) == len(chosen):
                return ready

    def prune(self, run_id: str, before: int) -> int:
        def prune(lock: LockFile) -> int:
            run = self._cache.find(lock, run_id)
            lock.count_change(run.name)
            return run.prune(before)

        return self._holding(prune, run_id)

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        def remove_expired(lock: LockFile) -> bool:
            run = self._cache.find(lock, found.run_id)
            is_expired = heads.is_expired(run.head, older_than, statuses, self.clock(), self._lease_clock())
            if is_expired:
                self._cache.remove(lock, run)
            return is_expired

        count = 0
        self._refuse_closed()
        with explaining(self.path):
            remove_stray_files(self._runs, self._locks, self._flush)
            listed = self._search.heads(only_changeable=True)
        for found in listed:
            if found.status not in statuses:
                continue
            with suppress(RunNotFound, DamagedRecord):
                count += self._holding(remove_expired, found.run_id)
        return count

    def delete(self, run_id: str) -> None:
        def delete(lock: LockFile) -> None:
            try:
                run = self._cache.find(lock, run_id)
            except DamagedRecord:
                self._cache.remove_damaged(lock, run_id)
                return
            heads.refuse_if_held(run.head, self._lease_clock())
            self._cache.remove(lock, run)

        self._holding(delete, run_id)

    def change_mark(self) -> object:
        """The numbers in the lock files, which grow with each change to a run."""
        self._refuse_closed()
        with explaining(self.path):
            return [lock.number_now() for lock in self._locks.files]

    def close(self) -> None:
        self.closed = True
        self._locks.close()

    def _holding(self, work: Callable[..., Outcome], *run_ids: str) -> Outcome:
        """Do `work` while the locks of these runs are held. It gets them, in the runs' order."""
        self._refuse_closed()
        locks = [self._locks.lock_of(file_name_of(run_id)) for run_id in run_ids]
        return self._holding_locks(locks, lambda: work(*locks))

    def _holding_documents(self, work: Callable[[], Outcome]) -> Outcome:
        self._refuse_closed()
        return self._holding_locks([self._locks.lock_of(LOCK_NAME), self._locks.documents], work)

    def _reading(self, run_id: str, use: Callable[[RunFiles], Outcome]) -> Outcome:
        """What `use` gives for a run: under its lock, or without if another process doesn't release that."""
        self._refuse_closed()
        lock = self._locks.lock_of(file_name_of(run_id))
        try:
            return self._holding_locks(
                [lock],
                lambda: use(self._cache.find_readable(lock, run_id)),
                self._locks.reading_timeout(lock),
            )
        except LockBusy:
            with explaining(self.path):
                return read_unlocked(self._runs, run_id, use)

    def _holding_locks(
        self, locks: Sequence[LockFile], work: Callable[[], Outcome], timeout: float | None = None
    ) -> Outcome:
        def checked() -> Outcome:
            self._refuse_closed()  # again: another thread may have closed the store while this one waited
            for lock in locks:
                self._cache.check(lock)
            return work()

        with explaining(self.path):
            return self._locks.holding(locks, checked, timeout)

    def _refuse_closed(self) -> None:
        if self.closed:
            raise StoreUnavailable(f"this store on {self.path} was closed; open it again")

    def _head_or_none(self, run_id: str) -> RunHead | None:
        with suppress(RunNotFound, DamagedRecord):
            return self.head(run_id)
        return None

    def _claim_ready(self, listed: RunHead, holder: str, ttl: float) -> Lease | None:
        def claim(lock: LockFile) -> Lease | None:
            run = self._cache.find(lock, listed.run_id)
            claimed = heads.claim_ready(run.head, listed, holder, ttl, self.clock(), self._lease_clock())
            if claimed is None:
                return None
            head, lease = claimed
            self._cache.replace_head(lock, run, head)
            return lease

        return self._holding(claim, listed.run_id)

    def _renew(self, lease: Lease, ttl: float) -> bool | None:
        def renew(lock: LockFile) -> bool | None:
            run = self._cache.find(lock, lease.run_id)
            head = heads.renew(run.head, lease, ttl, self.clock(), self._lease_clock())
            if head is None:
                return None
            self._cache.replace_head(lock, run, head)
            return head.posted > head.taken

        with suppress(RunNotFound):
            return self._holding(renew, lease.run_id)
        return None

    def _prepare_commit(self, commit: Commit, batch: CommitBatch, number: int) -> Exception | None:
        """Add a commit to the batch; returns why it is refused, if it is."""
        lock = self._locks.lock_of(file_name_of(commit.run_id))
        if batch.has(commit.run_id):  # a second commit of one run builds on the first
            batch.complete()
        try:
            run = self._cache.find(lock, commit.run_id)
        except StoreError as missing:
            return missing
        # The time is only part of the message, so it isn't asked for with every commit.
        if heads.refusal(commit, run.head, 0.0) is not None:
            return heads.refusal(commit, run.head, self._lease_clock())
        head = None
        if heads.changes_more_than_sequence(run.head, commit):
            head = heads.apply(run.head, commit, self.clock())
        if commit.purge:
            assert head is not None
            batch.add_purge(number, lock, run, head)
            return None
        try:
            batch.write(lock, run, commit.records, head)
        except TooLarge as problem:
            return problem
        return None
