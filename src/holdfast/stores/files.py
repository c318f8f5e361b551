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

from holdfast.errors import (
    DamagedRecord,
    HoldfastError,
    RunExists,
    RunNotFound,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from holdfast.journal.store import (
    ENDED,
    RUNNING,
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
from holdfast.stores.durable import TEMPORARY, explained, make_directory, put_new
from holdfast.stores.files_locks import SHARED, Locks, Stripe
from holdfast.stores.files_runs import HEAD, JOURNAL, RunFiles, begin, find, name_of, parsed
from holdfast.stores.refusals import fits, held, is_held, refusal, urgency, wants

FORMAT = b"holdfast files 1\n"
MARKER = "FORMAT"
MOST_OPEN = 8
"""Journal files that are kept open under one lock."""
MOST_REMEMBERED = 2000
"""Runs that are remembered under one lock."""


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
        self._clock, self._flush = clock, level == "disk"
        self._runs = self.path / "runs"
        with _explained(self.path):
            _prepare(self.path, self._flush)
            self._locks = Locks(self.path / "locks", timeout)
            _sweep(self._runs)

    def __repr__(self) -> str:
        return f"FileStore({str(self.path)!r}, level={self.abilities.level!r})"

    def create(self, run: NewRun) -> Lease | None:
        with self._holding(run.run_id) as (stripe,):
            with suppress(RunNotFound):
                self._find(stripe, run.run_id)
                raise RunExists(run.run_id)
            now = self._clock()
            until = None if run.holder is None else now + run.ttl
            head = RunHead(
                run_id=run.run_id, graph=run.graph, status=run.status, sequence=0,
                snapshot=1 if run.records else 0, fence=1, created=now, updated=now, holder=run.holder,
                lease_until=until, tags=tuple(run.tags), parent=run.parent, note=run.note, due=run.due,
                priority=run.priority,
            )  # fmt: skip
            stripe.changed()
            try:
                made = begin(self._runs, self._flush, head, list(run.records))
            except ValueError as problem:
                raise StoreUnavailable(f"run {run.run_id!r}: {problem}") from problem
            self._remember(stripe, made)
        return None if until is None else Lease(run.run_id, 1, until)

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        outcomes: list[Exception | None] = [None] * len(commits)
        batch = _Batch()
        with self._holding(*(commit.run_id for commit in commits)):
            for number, commit in enumerate(commits):
                outcomes[number] = self._prepare_commit(commit, batch, number)
            batch.land()
        for number, problem in batch.failed.items():
            outcomes[number] = problem
        return outcomes

    def head(self, run_id: str) -> RunHead:
        with self._holding(run_id) as (stripe,):
            return self._find(stripe, run_id).head

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        with self._holding(run_id) as (stripe,):
            run = self._find(stripe, run_id)
            head = run.head
            start = max(head.snapshot if first is None else first, run.place.dropped + 1)
            stop = head.sequence if last is None else min(last, head.sequence)
            records = run.records(start, stop)
            return Tail(head, start if records else head.sequence + 1, records)

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        with self._holding(run_id) as (stripe,):
            run = self._find(stripe, run_id)
            head, now = run.head, self._clock()
            if is_held(head, now) and instead_of != head.fence:
                raise held(head, now)
            lease = Lease(run_id, head.fence + 1, now + ttl, head.crashes + (head.holder is not None))
            self._replace(
                stripe, run,
                head._replace(
                    fence=lease.fence, crashes=lease.crashes, holder=holder, lease_until=lease.until, updated=now
                ),
            )  # fmt: skip
            return lease

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[str | None]:
        self._refuse_closed()
        return [self._renew(lease, ttl) for lease in leases]

    def release(self, lease: Lease) -> None:
        with suppress(RunNotFound), self._holding(lease.run_id) as (stripe,):
            run = self._find(stripe, lease.run_id)
            if run.head.fence == lease.fence and (run.head.holder, run.head.lease_until) != (None, None):
                self._replace(stripe, run, run.head._replace(holder=None, lease_until=None))

    def signal(self, run_id: str, signal: str) -> None:
        with self._holding(run_id) as (stripe,):
            run = self._find(stripe, run_id)
            self._replace(stripe, run, run.head._replace(signal=signal))

    def list(self, which: RunFilter) -> list[RunHead]:
        now = self._clock()
        heads = [head for head in self._heads() if fits(head, which, now)]
        heads.sort(key=lambda head: (head.created, head.run_id), reverse=True)
        return heads[which.offset :][: which.limit]

    def ready(self, graphs: Sequence[str], limit: int) -> Heads:
        now = self._clock()
        heads = self._heads(lambda head: wants(head, graphs, now))
        ready: Heads = []
        for head in sorted(heads, key=urgency):
            if len(ready) >= limit:
                break
            with suppress(RunNotFound, DamagedRecord):  # a damaged one is in nobody's way
                ready += [head for head in [self.head(head.run_id)] if wants(head, graphs, now)]
        return ready

    def prune(self, run_id: str, before: int) -> int:
        with self._holding(run_id) as (stripe,):
            run = self._find(stripe, run_id)
            stripe.changed()
            return run.drop(before)

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        count = 0
        self._sweep_journals()
        for found in self._heads():
            if found.status not in statuses:
                continue
            with self._holding(found.run_id) as (stripe,), suppress(RunNotFound, DamagedRecord):
                run = self._find(stripe, found.run_id)
                head, now = run.head, self._clock()
                old = head.status in statuses and head.updated <= now - older_than
                if old and not is_held(head, now):
                    self._remove(stripe, run)
                    count += 1
        return count

    def delete(self, run_id: str) -> None:
        with self._holding(run_id) as (stripe,):
            try:
                run = self._find(stripe, run_id)
            except DamagedRecord:
                self._remove_files(stripe, run_id)
                return
            now = self._clock()
            if is_held(run.head, now):
                raise held(run.head, now)
            self._remove(stripe, run)

    def close(self) -> None:
        self.closed = True
        self._locks.close()

    @contextmanager
    def _holding(self, *run_ids: str) -> Iterator[Sequence[Stripe]]:
        """The locks of these runs, held, in the runs' order."""
        self._refuse_closed()
        names = [name_of(run_id) for run_id in run_ids]
        with _explained(self.path), self._locks.holding(*names):
            self._refuse_closed()
            stripes = [self._locks.stripe_of(name) for name in names]
            for stripe in {id(each): each for each in stripes}.values():
                self._take_in(stripe)
            yield stripes

    def _refuse_closed(self) -> None:
        if self.closed:
            raise StoreUnavailable(f"this store on {self.path} was closed; open it again")

    def _take_in(self, stripe: Stripe) -> None:
        """If others have written under this lock, what is remembered is to be looked at again."""
        if not stripe.is_unchanged():
            stripe.all_known = False
            for run in stripe.runs.values():
                run.fresh = False

    def _find(self, stripe: Stripe, run_id: str) -> RunFiles:
        """The run as it is now. Raises `RunNotFound`, `DamagedRecord`."""
        run: RunFiles | None = stripe.runs.get(run_id)
        if run is None:
            run = find(self._runs, self._flush, run_id)
            self._remember(stripe, run)
        elif not run.fresh or not run.is_in_place():
            try:
                run.refresh()
            except HoldfastError:
                self._forget(stripe, run)
                raise
        stripe.opened.pop(run_id, None)
        stripe.opened[run_id] = run
        if len(stripe.opened) > MOST_OPEN:
            stripe.opened.pop(next(iter(stripe.opened))).close()
        return run

    def _remember(self, stripe: Stripe, run: RunFiles) -> None:
        if len(stripe.runs) >= MOST_REMEMBERED:
            stripe.forget()
        stripe.runs[run.head.run_id] = run

    def _forget(self, stripe: Stripe, run: RunFiles) -> None:
        run.close()
        stripe.runs.pop(run.head.run_id, None)
        stripe.opened.pop(run.head.run_id, None)

    def _replace(self, stripe: Stripe, run: RunFiles, head: RunHead) -> None:
        stripe.changed()
        run.replace_head(head)

    def _remove(self, stripe: Stripe, run: RunFiles) -> None:
        stripe.changed()
        self._forget(stripe, run)
        run.remove()

    def _remove_files(self, stripe: Stripe, run_id: str) -> None:
        """Remove a run that can't be read."""
        stripe.changed()
        name = name_of(run_id)
        (self._runs / f"{name}{HEAD}").unlink()
        for path in self._runs.glob(f"{name}.*{JOURNAL}"):
            path.unlink()

    def _renew(self, lease: Lease, ttl: float) -> str | None:
        with suppress(RunNotFound), self._holding(lease.run_id) as (stripe,):
            run = self._find(stripe, lease.run_id)
            head, now = run.head, self._clock()
            if head.fence != lease.fence or head.holder is None:
                return None
            self._replace(stripe, run, head._replace(lease_until=now + ttl, updated=now))
            return head.signal or ""
        return None

    def _prepare_commit(self, commit: Commit, batch: _Batch, number: int) -> Exception | None:
        """Write a commit, to land with the others of its call; or why it is refused."""
        stripe = self._locks.stripe_of(name_of(commit.run_id))
        if batch.has(commit.run_id):
            batch.land()
        try:
            run = self._find(stripe, commit.run_id)
        except StoreError as missing:
            return missing
        now = self._clock()
        refused = refusal(commit, run.head, now)
        if refused is not None:
            return refused
        head = _changed(run.head, commit, now)
        if commit.purge:
            assert head is not None
            batch.purge(number, stripe, run, head._replace(sequence=commit.expected + len(commit.records)))
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
        with _explained(self.path):
            for stripe in self._locks.stripes:
                with self._locks.held(stripe):
                    self._refuse_closed()
                    self._take_in(stripe)
                    found += self._heads_under(stripe, wanted)
        return found

    def _heads_under(self, stripe: Stripe, wanted: Callable[[RunHead], bool]) -> Heads:
        if stripe.all_known:
            known = [run_id for run_id, run in stripe.runs.items() if wanted(run.head)]
            with suppress(RunNotFound, DamagedRecord):  # somebody was at the files: look at all of them again
                return [self._find(stripe, run_id).head for run_id in known]
        heads, names = [], {name_of(run_id): run_id for run_id in stripe.runs}
        for entry in os.scandir(self._runs):
            name = entry.name.removesuffix(HEAD)
            if name == entry.name or self._locks.stripe_of(name) is not stripe:
                continue
            head = self._head_in(stripe, Path(entry.path), names.get(name))
            if head is not None:
                heads.append(head)
        stripe.all_known = len(heads) == len(stripe.runs)
        return [*filter(wanted, heads)]

    def _sweep_journals(self) -> None:
        """Remove journal files that killed writers left and that no head knows."""
        self._refuse_closed()
        with _explained(self.path):
            for path in self._runs.glob(f"*{JOURNAL}"):
                name, _, token = path.name.removesuffix(JOURNAL).rpartition(".")
                with self._locks.holding(name), suppress(FileNotFoundError, DamagedRecord):
                    head = self._runs / f"{name}{HEAD}"
                    if not head.exists() or parsed(None, head.read_bytes())[1].token != token:
                        path.unlink()

    def _head_in(self, stripe: Stripe, path: Path, run_id: str | None) -> RunHead | None:
        """The head of the run in a head file; of a damaged one, what its head file says, if that can be read."""
        try:
            stored = None if run_id is not None else parsed(None, path.read_bytes())[0]
            try:
                run = self._find(stripe, run_id if stored is None else stored.run_id)  # type: ignore[arg-type]
            except DamagedRecord:
                return stored or parsed(None, path.read_bytes())[0]
            run.close()
            return run.head
        except (RunNotFound, FileNotFoundError):
            return None
        except DamagedRecord as damage:
            import logging

            logging.getLogger("holdfast.stores").warning("%s is left out of the list: %s", path, damage)
            return None


class _Batch:
    """Commits of one call: all written, then all flushed; if either fails, none of them was.

    A purge replaces a head, which can't be taken back. So purges come last, and one that fails does so
    alone: `failed` has them by their numbers.
    """

    def __init__(self) -> None:
        self.failed: dict[int, Exception] = {}
        self._written: dict[str, tuple[Stripe, RunFiles, bytes, int, RunHead | None]] = {}
        self._purged: dict[str, tuple[int, Stripe, RunFiles, RunHead]] = {}

    def has(self, run_id: str) -> bool:
        """Whether a commit of this run is on its way."""
        return run_id in self._written or run_id in self._purged

    def purge(self, number: int, stripe: Stripe, run: RunFiles, head: RunHead) -> None:
        """Drop a run's journal and give it a new head, when all else has landed."""
        self._purged[run.head.run_id] = number, stripe, run, head

    def write(self, stripe: Stripe, run: RunFiles, records: Sequence[bytes], head: RunHead | None) -> None:
        """Write a commit's frame. Raises `ValueError` if it is too large, `OSError`."""
        if not records and head is None:
            return
        stripe.changed()
        try:
            self._written[run.head.run_id] = stripe, run, b"", 0, None
            made = run.write([*records], head)
        except ValueError:
            del self._written[run.head.run_id]
            raise
        except BaseException:
            self._undo()
            raise
        self._written[run.head.run_id] = stripe, run, made, len(records), head

    def land(self) -> None:
        """Flush what was written, and count it in."""
        try:
            for _, run, *_ in self._written.values():
                run.sync()
        except BaseException:
            self._undo()
            raise
        for _, run, made, count, head in self._written.values():
            run.accept(made, count, head)
        self._written.clear()
        for number, stripe, run, head in self._purged.values():
            stripe.changed()
            try:
                run.purge(head)
            except OSError as error:
                self.failed[number] = explained(error, run.head_path)
        self._purged.clear()

    def _undo(self) -> None:
        for _, run, *_ in self._written.values():
            run.undo()
        self._written.clear()
        self._purged.clear()


def _changed(head: RunHead, commit: Commit, now: float) -> RunHead | None:
    """The head after a commit; None if it stays as it is but for its sequence number."""
    freed = commit.status not in (None, RUNNING)
    changed = head._replace(
        snapshot=0 if commit.purge else commit.snapshot or head.snapshot,
        status=commit.status or head.status,
        note=head.note if commit.note is None else commit.note,
        updated=now if commit.status else head.updated,
        due=commit.due if commit.status else head.due,
        holder=None if freed else head.holder,
        lease_until=None if freed else head.lease_until,
        signal=None if commit.heed is False else head.signal,
    )
    return None if changed == head and not commit.purge else changed


def _prepare(path: Path, flush: bool) -> None:
    """Make the directory a store, unless it is one. Raises `StoreUnavailable` if it is something else."""
    make_directory(path, flush=flush)
    marker = path / MARKER
    if not marker.exists():
        others = [name for name in os.listdir(path) if not name.startswith(".") and name != MARKER]
        if others:
            raise StoreUnavailable(
                f"{path} has something else in it ({sorted(others)[0]!r}): give Holdfast a directory of its own"
            )
        with suppress(FileExistsError):
            put_new(marker, FORMAT, flush=flush)
    found = marker.read_bytes()
    if found != FORMAT:
        raise StoreUnavailable(
            f"{path} was written by a newer Holdfast, or isn't a store ({MARKER} says {found[:40]!r}): "
            "upgrade holdfast, or use another directory"
        )
    for name in ("locks", "runs"):
        make_directory(path / name, flush=flush)


def _sweep(runs: Path) -> None:
    """Remove temporary files that killed writers left long ago."""
    with suppress(OSError):
        for entry in os.scandir(runs):
            if entry.name.endswith(TEMPORARY) and entry.stat().st_mtime < time.time() - 3600:
                os.unlink(entry.path)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise explained(error, Path(error.filename) if error.filename else path, "used") from error
