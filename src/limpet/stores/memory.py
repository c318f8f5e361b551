"""A store that lives and ends with the process: for tests, and for runs that need not survive it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from limpet.errors import RunExists, RunNotFound, StoreUnavailable
from limpet.journal.store import (
    ENDED,
    RUNNING,
    Abilities,
    Commit,
    Heads,
    Lease,
    NewRun,
    OnSignal,
    RunFilter,
    RunHead,
    Tail,
)
from limpet.stores.change_signal import ChangeSignal
from limpet.stores.heads import fits, held, is_held, refusal, urgency, wants


class MemoryStore:
    """Keeps runs in this process. Each store is its own world; nothing is shared between two of them."""

    abilities = Abilities(level="memory", shared=False, notifies=True)

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        self._bell = ChangeSignal()
        self._runs: dict[str, _Run] | None = {}

    def __repr__(self) -> str:
        return f"<MemoryStore {'closed' if self.closed else f'of {len(self._open())} runs'}>"

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._runs is None

    def create(self, run: NewRun) -> Lease | None:
        with self._lock:
            runs, now = self._open(), self.clock()
            if run.run_id in runs:
                raise RunExists(run.run_id)
            until = None if run.holder is None else now + run.ttl
            head = RunHead(
                run_id=run.run_id,
                graph=run.graph,
                status=run.status,
                sequence=0,
                snapshot=1 if run.records else 0,
                fence=1,
                created=now,
                updated=now,
                holder=run.holder,
                lease_until=until,
                tags=tuple(run.tags),
                parent=run.parent,
                note=run.note,
                due=run.due,
                priority=run.priority,
            )
            runs[run.run_id] = _Run(head, 0, list(run.records))
            if run.holder is None:
                self._bell.ring()
            return None if until is None else Lease(run.run_id, 1, until)

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        with self._lock:
            runs = self._open()
            return [self._apply(runs, commit) for commit in commits]

    def head(self, run_id: str) -> RunHead:
        with self._lock:
            return self._run(run_id).whole_head()

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        with self._lock:
            run = self._run(run_id)
            head = run.whole_head()
            start = max(head.snapshot if first is None else first, run.dropped + 1)
            stop = head.sequence if last is None else last
            records = run.records[start - run.dropped - 1 : max(stop - run.dropped, 0)]
            return Tail(head, start if records else head.sequence + 1, records)

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        with self._lock:
            run, now = self._run(run_id), self.clock()
            if is_held(run.head, now) and instead_of != run.head.fence:
                raise held(run.head, now)
            lease = Lease(
                run_id, run.head.fence + 1, now + ttl, run.head.crashes + (run.head.holder is not None)
            )
            run.head = run.head._replace(
                fence=lease.fence, crashes=lease.crashes, holder=holder, lease_until=lease.until, updated=now
            )
            return lease

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[str | None]:
        leases = list(leases)
        with self._lock:
            runs, now = self._open(), self.clock()
            return [self._renew(runs.get(lease.run_id), lease, now, ttl) for lease in leases]

    def release(self, lease: Lease) -> None:
        with self._lock:
            run = self._open().get(lease.run_id)
            if run is not None and run.head.fence == lease.fence:
                run.head = run.head._replace(holder=None, lease_until=None)
                self._bell.ring()

    def signal(self, run_id: str, signal: str) -> None:
        with self._lock:
            run = self._run(run_id)
            run.head = run.head._replace(signal=signal)
            self._bell.ring()

    def ready(self, graphs: Sequence[str], limit: int) -> Heads:
        with self._lock:
            now = self.clock()
            heads = [run.whole_head() for run in self._open().values() if wants(run.head, graphs, now)]
        return sorted(heads, key=urgency)[:limit]

    def list(self, which: RunFilter) -> list[RunHead]:
        with self._lock:
            now = self.clock()
            heads = [run.whole_head() for run in self._open().values() if fits(run.head, which, now)]
        heads.sort(key=lambda head: (head.created, head.run_id), reverse=True)
        return heads[which.offset :][: which.limit]

    def prune(self, run_id: str, before: int) -> int:
        with self._lock:
            run = self._run(run_id)
            gone = max(min(before, run.head.snapshot) - 1 - run.dropped, 0)
            del run.records[:gone]
            run.dropped += gone
            return gone

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        with self._lock:
            runs, now = self._open(), self.clock()
            limit = now - older_than
            old = [
                run_id
                for run_id, run in runs.items()
                if run.head.status in statuses and run.head.updated <= limit and not is_held(run.head, now)
            ]
            for run_id in old:
                del runs[run_id]
            if old:
                self._bell.ring()
            return len(old)

    def delete(self, run_id: str) -> None:
        with self._lock:
            run, now = self._run(run_id), self.clock()
            if is_held(run.head, now):
                raise held(run.head, now)
            del self._open()[run_id]
            self._bell.ring()

    def wait_for_change(self, timeout: float) -> bool:
        self._open()
        changed = self._bell.wait(timeout)
        self._open()
        return changed

    def close(self) -> None:
        with self._lock:
            self._runs = None
            self._bell.ring()

    def _open(self) -> dict[str, _Run]:
        if self._runs is None:
            raise StoreUnavailable("this memory store was closed, and what it kept is gone; open a new one")
        return self._runs

    def _run(self, run_id: str) -> _Run:
        run = self._open().get(run_id)
        if run is None:
            raise RunNotFound(run_id)
        return run

    def _apply(self, runs: dict[str, _Run], commit: Commit) -> Exception | None:
        run = runs.get(commit.run_id)
        if run is None:
            return RunNotFound(commit.run_id)
        head = run.head
        fits = commit.fence == head.fence and commit.expected == run.sequence
        if not fits or (commit.on_signal is OnSignal.REFUSE and head.signal is not None):
            return refusal(commit, run.whole_head(), self.clock())
        if commit.purge:
            run.dropped, run.records = run.sequence + len(commit.records), []
        else:
            run.records.extend(commit.records)
        if (
            commit.snapshot
            or commit.status
            or commit.note is not None
            or commit.purge
            or commit.on_signal is OnSignal.CLEAR
        ):
            run.head = self._changed(head, commit)
            if commit.status:
                self._bell.ring()
        return None

    def _changed(self, head: RunHead, commit: Commit) -> RunHead:
        freed = commit.status not in (None, RUNNING)
        return head._replace(
            snapshot=0 if commit.purge else commit.snapshot or head.snapshot,
            status=commit.status or head.status,
            note=head.note if commit.note is None else commit.note,
            updated=self.clock() if commit.status else head.updated,
            due=commit.due if commit.status else head.due,
            holder=None if freed else head.holder,
            lease_until=None if freed else head.lease_until,
            signal=None if commit.on_signal is OnSignal.CLEAR else head.signal,
        )

    def _renew(self, run: _Run | None, lease: Lease, now: float, ttl: float) -> str | None:
        if run is None or run.head.fence != lease.fence or run.head.holder is None:
            return None
        run.head = run.head._replace(lease_until=now + ttl, updated=now)
        return run.head.signal or ""


@dataclass(slots=True, eq=False, repr=False)
class _Run:
    """A head whose `sequence` is not kept up, and the records after the first `dropped` ones."""

    head: RunHead
    dropped: int
    records: list[bytes]

    @property
    def sequence(self) -> int:
        return self.dropped + len(self.records)

    def whole_head(self) -> RunHead:
        return self.head._replace(sequence=self.sequence)
