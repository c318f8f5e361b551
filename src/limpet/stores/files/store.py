"""Runs in plain files: nothing but a directory, shared by the processes of one machine.

Each run has a journal file that only grows and a small head file that is replaced; see `files_runs.py`. The common
commit is one frame, written and flushed. Locks are the operating system's: a process that is killed holds none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from limpet.errors import (
    DamagedRecord,
    RunExists,
    RunNotFound,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from limpet.journal.store import (
    ENDED,
    Abilities,
    Commit,
    Heads,
    Lease,
    Level,
    NewRun,
    RunFilter,
    RunHead,
    Tail,
)
from limpet.stores import heads
from limpet.stores.files.batch import Batch
from limpet.stores.files.directory import explaining, prepare, sweep
from limpet.stores.files.locks import SHARED, Locks, Stripe
from limpet.stores.files.run_cache import RunCache
from limpet.stores.files.run_files import HEAD, JOURNAL, begin, name_of, parsed


class FileStore:
    """Keeps runs in the directory at `path`, which is made if it is missing.

    `level` is what an acknowledged save survives: "disk" a power loss (an fsync for each commit), "process" a kill of
    the process. `timeout` is how many seconds to wait for another process that is writing. Threads may share a store,
    and where the system has file locks, processes may share its directory; a fork may happen at any time. Raises
    `StoreUnavailable` where the directory can't be used.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        level: Level = "disk",
        clock: Callable[[], float] = time.time,
        timeout: float = 60.0,
    ) -> None:
        if level not in ("disk", "process"):
            raise UsageError(f'a file store has the level "disk" or "process", not {level!r}')
        if not 0 <= timeout <= 1e9:
            raise UsageError(f"timeout is a number of seconds, not {timeout!r}")
        if not os.fspath(path):
            raise UsageError("a file store needs the path of a directory")
        self.path = Path(path).resolve()
        self.abilities = Abilities(level=level, shared=SHARED)
        self.closed = False
        self.clock, self._flush = clock, level == "disk"
        self._runs = self.path / "runs"
        with explaining(self.path):
            prepare(self.path, self._flush)
            self._locks = Locks(self.path / "locks", timeout)
            self._shelf = RunCache(self._runs, self._locks, self._flush)
            sweep(self._runs)

    def __repr__(self) -> str:
        return f"FileStore({str(self.path)!r}, level={self.abilities.level!r})"

    def create(self, run: NewRun) -> Lease | None:
        with self._holding(run.run_id) as (stripe,):
            with suppress(RunNotFound):
                self._shelf.find(stripe, run.run_id)
                raise RunExists(run.run_id)
            head, lease = heads.create(run, self.clock())
            stripe.changed()
            try:
                made = begin(self._runs, self._flush, head, list(run.records))
            except ValueError as problem:
                raise StoreUnavailable(f"run {run.run_id!r}: {problem}") from problem
            self._shelf.remember(stripe, made)
        return lease

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        outcomes: list[Exception | None] = [None] * len(commits)
        batch = Batch()
        with self._holding(*(commit.run_id for commit in commits)):
            for number, commit in enumerate(commits):
                outcomes[number] = self._prepare_commit(commit, batch, number)
            batch.land()
        for number, problem in batch.failed.items():
            outcomes[number] = problem
        return outcomes

    def head(self, run_id: str) -> RunHead:
        with self._holding(run_id) as (stripe,):
            return self._shelf.find(stripe, run_id).head

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        with self._holding(run_id) as (stripe,):
            run = self._shelf.find(stripe, run_id)
            head = run.head
            start, stop = heads.readable(head, run.place.dropped, first, last)
            records = run.records(start, stop)
            return Tail(head, start if records else head.sequence + 1, records)

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        with self._holding(run_id) as (stripe,):
            run = self._shelf.find(stripe, run_id)
            head, lease = heads.claim(run.head, holder, ttl, self.clock(), instead_of)
            self._shelf.replace(stripe, run, head)
            return lease

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[str | None]:
        self._refuse_closed()
        return [self._renew(lease, ttl) for lease in leases]

    def release(self, lease: Lease) -> None:
        with suppress(RunNotFound), self._holding(lease.run_id) as (stripe,):
            run = self._shelf.find(stripe, lease.run_id)
            head = heads.release(run.head, lease)
            if head is not None and head != run.head:
                self._shelf.replace(stripe, run, head)

    def signal(self, run_id: str, signal: str) -> None:
        with self._holding(run_id) as (stripe,):
            run = self._shelf.find(stripe, run_id)
            self._shelf.replace(stripe, run, heads.signal(run.head, signal))

    def list(self, which: RunFilter) -> list[RunHead]:
        now = self.clock()
        found = [head for head in self._heads() if heads.matches(head, which, now)]
        return heads.newest_first(found, which)

    def ready(self, graphs: Sequence[str], limit: int) -> Heads:
        now = self.clock()
        found = self._heads(lambda head: heads.is_ready(head, graphs, now))
        ready: Heads = []
        for listed in heads.most_urgent_first(found):
            if len(ready) >= limit:
                break
            with suppress(RunNotFound, DamagedRecord):  # a damaged run must not hide the others
                head = self.head(listed.run_id)
                if heads.is_ready(head, graphs, now):
                    ready.append(head)
        return ready

    def prune(self, run_id: str, before: int) -> int:
        with self._holding(run_id) as (stripe,):
            run = self._shelf.find(stripe, run_id)
            stripe.changed()
            return run.drop(before)

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        count = 0
        self._sweep_journals()
        for found in self._heads():
            if found.status not in statuses:
                continue
            with self._holding(found.run_id) as (stripe,), suppress(RunNotFound, DamagedRecord):
                run = self._shelf.find(stripe, found.run_id)
                if heads.is_expired(run.head, older_than, statuses, self.clock()):
                    self._shelf.remove(stripe, run)
                    count += 1
        return count

    def delete(self, run_id: str) -> None:
        with self._holding(run_id) as (stripe,):
            try:
                run = self._shelf.find(stripe, run_id)
            except DamagedRecord:
                self._shelf.remove_files(stripe, run_id)
                return
            heads.refuse_if_held(run.head, self.clock())
            self._shelf.remove(stripe, run)

    def close(self) -> None:
        self.closed = True
        self._locks.close()

    @contextmanager
    def _holding(self, *run_ids: str) -> Iterator[Sequence[Stripe]]:
        """The locks of these runs, held, in the runs' order."""
        self._refuse_closed()
        names = [name_of(run_id) for run_id in run_ids]
        with explaining(self.path), self._locks.holding(*names):
            self._refuse_closed()
            stripes = [self._locks.stripe_of(name) for name in names]
            for stripe in {id(each): each for each in stripes}.values():
                self._shelf.take_in(stripe)
            yield stripes

    def _refuse_closed(self) -> None:
        if self.closed:
            raise StoreUnavailable(f"this store on {self.path} was closed; open it again")

    def _renew(self, lease: Lease, ttl: float) -> str | None:
        with suppress(RunNotFound), self._holding(lease.run_id) as (stripe,):
            run = self._shelf.find(stripe, lease.run_id)
            head = heads.renew(run.head, lease, ttl, self.clock())
            if head is None:
                return None
            self._shelf.replace(stripe, run, head)
            return head.signal or ""
        return None

    def _prepare_commit(self, commit: Commit, batch: Batch, number: int) -> Exception | None:
        """Write a commit, to land with the others of its call; or why it is refused."""
        stripe = self._locks.stripe_of(name_of(commit.run_id))
        if batch.has(commit.run_id):
            batch.land()
        try:
            run = self._shelf.find(stripe, commit.run_id)
        except StoreError as missing:
            return missing
        now = self.clock()
        refused = heads.refusal(commit, run.head, now)
        if refused is not None:
            return refused
        head = None
        if heads.changes_more_than_sequence(run.head, commit):
            head = heads.apply(run.head, commit, now)
        if commit.purge:
            assert head is not None
            batch.purge(number, stripe, run, head)
            return None
        try:
            batch.write(stripe, run, commit.records, head)
        except ValueError as problem:
            return StoreUnavailable(f"run {commit.run_id!r}: {problem}")
        return None

    def _heads(self, wanted: Callable[[RunHead], bool] = lambda head: True) -> Heads:
        """The heads of all runs, lock by lock, or of those that are wanted."""
        self._refuse_closed()
        found: Heads = []
        with explaining(self.path):
            for stripe in self._locks.stripes:
                with self._locks.held(stripe):
                    self._refuse_closed()
                    self._shelf.take_in(stripe)
                    found += self._shelf.heads_under(stripe, wanted)
        return found

    def _sweep_journals(self) -> None:
        """Remove journal files that killed writers left and that no head knows."""
        self._refuse_closed()
        with explaining(self.path):
            for path in self._runs.glob(f"*{JOURNAL}"):
                name, _, token = path.name.removesuffix(JOURNAL).rpartition(".")
                with self._locks.holding(name), suppress(FileNotFoundError, DamagedRecord):
                    head = self._runs / f"{name}{HEAD}"
                    if not head.exists() or parsed(None, head.read_bytes())[1].token != token:
                        path.unlink()
