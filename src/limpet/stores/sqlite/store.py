"""Runs in one SQLite file: nothing to set up, shared by the processes of one machine.

The journal only ever grows by `INSERT`, and the common commit (one record, nothing new for the head) is a single
statement that checks the fence, the sequence number and the posts, inserts, and is its own transaction: see
`APPEND` in `statements.sql`. It runs in the thread that calls `append`: waking a writer thread, and waiting for it,
would take longer than the statement. When commits of several runs come in one call (group commit), they share one
transaction, and so one fsync.

The row of a run, its head, is written only when the head changes: when the run is created, claimed, renewed,
released, posted to, or given a status, a note or a snapshot. Plain commits leave it alone, so they write one row
instead of two; the head's sequence number is that of the newest record, looked up when it is asked for. Each
change of the row renews its checksum.

SQLite allows one writer at a time. The write-ahead log (WAL) lets readers continue meanwhile; see `connections.py`.
"""

from __future__ import annotations

import builtins
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from limpet.defaults import LOCK_TIMEOUT
from limpet.durations import store_seconds
from limpet.errors import (
    DamagedDocument,
    DamagedRecord,
    RunNotFound,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import (
    DAMAGED,
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
from limpet.stores.lease_clock import own_lease_clock
from limpet.stores.problem_log import ProblemLog
from limpet.stores.sqlite.connections import Connections, checked_path
from limpet.stores.sqlite.documents import DocumentTable
from limpet.stores.sqlite.lanes import all_lanes, claim_listed, ready_heads
from limpet.stores.sqlite.lists import ChangeMark, listed_rows
from limpet.stores.sqlite.posts import add_output, add_post, has_key, read_output, take_posts, waiting_posts
from limpet.stores.sqlite.rows import (
    LARGEST,
    MAX_RECORDS,
    all_records,
    append_many,
    change_head,
    delete_records,
    delete_run,
    head_of,
    insert_records,
    insert_run,
    listed_head_of,
    placeholders,
    read_tail,
    record_id,
    rows_of,
    set_checksum,
    shared_lease_clock,
    sound_head_of,
    too_large,
    update_of,
)
from limpet.stores.statements import statements_of

MAX_CACHED_ROW_IDS = 10_000
"""Runs whose row ids are kept in memory. A row id is never used for another run, so it can't get stale."""

SQL = statements_of("sqlite")

APPEND = SQL["APPEND"]


class SQLiteStore:
    """Keeps runs in the SQLite file at `path`, which is created if it is missing.

    `level` is what an acknowledged save survives: "disk" a power failure (an fsync for each commit), "process" a
    kill of the process. `timeout` is how many seconds to wait while other processes keep the file locked. Threads
    may share a store, processes may share its file, and a fork may happen at any time. Raises `StoreUnavailable` if
    the file can't be opened and written.
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
            raise UsageError(f'a SQLite store has the level "disk" or "process", not {level!r}')
        timeout = store_seconds(timeout, "timeout")
        self.path = checked_path(path)
        self.abilities = Abilities(level=level, shared=True)
        self.clock = clock
        self._connections = Connections(self.path, flush=level == "disk", timeout=timeout)
        self._lease_clock = own_lease_clock(clock) or shared_lease_clock(self._connections, clock)
        self._timeout = timeout
        self._unflushed: Connections | None = None
        """For output, which needn't survive a power failure: a flush for each item would slow the nodes down."""
        self._row_ids: dict[str, int] = {}
        self._problems = ProblemLog("limpet.stores")
        self._documents = DocumentTable(self._connections, self._problems)
        self.change_mark = ChangeMark(self._connections)

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self.path)!r}, level={self.abilities.level!r})"

    def __str__(self) -> str:
        return f"sqlite:///{self.path}"

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._connections.closed

    def create(self, run: NewRun) -> Lease | None:
        def work(cursor: sqlite3.Cursor) -> tuple[int, Lease | None]:
            head, lease = heads.create(run, self.clock(), self._lease_clock())
            return insert_run(cursor, head, run.records), lease

        row_id, lease = self._connections.write(work)
        self._remember(run.run_id, row_id)
        return lease

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        if len(commits) == 1:
            values = self._plain_values(commits[0])
            if values is not None and self._connections.execute(APPEND, values) == 1:
                return [None]
        elif not commits:
            return []
        return self._connections.write(lambda cursor: self._apply_all(cursor, commits))

    def head(self, run_id: str) -> RunHead:
        return self._connections.read(lambda cursor: self._find(cursor, run_id))[1]

    def heads(self, run_ids: Sequence[str]) -> Sequence[RunHead | None]:
        rows = self._connections.read(lambda cursor: rows_of(cursor, run_ids))
        return [None if row is None else sound_head_of(row) for row in rows]

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        def work(cursor: sqlite3.Cursor) -> Tail:
            return read_tail(cursor, self._find_row(cursor, run_id), first, last)

        return self._connections.read(work)

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        def work(cursor: sqlite3.Cursor) -> Lease:
            row_id, head = self._find(cursor, run_id)
            claimed, lease = heads.claim(head, holder, ttl, self.clock(), instead_of, self._lease_clock())
            change_head(cursor, row_id, update_of(head, claimed))
            return lease

        return self._connections.write(work)

    def claim_ready(self, wanted: Sequence[RunHead], holder: str, ttl: float) -> builtins.list[Lease | None]:
        def work(cursor: sqlite3.Cursor) -> builtins.list[Lease | None]:
            return claim_listed(cursor, wanted, holder, ttl, (self.clock(), self._lease_clock()))

        return self._connections.write(work)

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[bool | None]:
        leases = list(leases)
        self._connections.check_file()

        def work(cursor: sqlite3.Cursor) -> list[bool | None]:
            return [self._renew(cursor, lease, ttl) for lease in leases]

        return self._connections.write(work)

    def are_valid(self, leases: Sequence[Lease]) -> builtins.list[bool]:
        now = self._lease_clock()
        found = self.heads([lease.run_id for lease in leases])
        return [heads.is_valid(lease, head, now) for lease, head in zip(leases, found, strict=True)]

    def release(self, lease: Lease) -> None:
        def work(cursor: sqlite3.Cursor) -> None:
            with suppress(RunNotFound):
                row_id, head = self._find(cursor, lease.run_id)
                released = heads.release(head, lease)
                if released is not None:
                    change_head(cursor, row_id, update_of(head, released))

        self._connections.write(work)

    def post(self, run_id: str, key: str, body: bytes) -> bool:
        def work(cursor: sqlite3.Cursor) -> bool:
            row_id, head = self._find(cursor, run_id)
            if has_key(cursor, row_id, key):
                return False
            posted = heads.post(head, self.clock())
            add_post(cursor, row_id, posted.posted, key, body)
            change_head(cursor, row_id, update_of(head, posted))
            return True

        return self._connections.write(work)

    def inbox(self, run_id: str) -> Sequence[Post]:
        def work(cursor: sqlite3.Cursor) -> Sequence[Post]:
            row_id, head = self._find(cursor, run_id)
            return waiting_posts(cursor, row_id, head)

        return self._connections.read(work)

    def add_output(self, run_id: str, fence: int, bodies: Sequence[bytes], keep: int) -> int:
        def work(cursor: sqlite3.Cursor) -> int:
            row_id, head = self._find(cursor, run_id)
            heads.refuse_old_fence(head, fence, self._lease_clock())
            return add_output(cursor, row_id, head, bodies, keep)

        return self._output_connections().write(work)

    def output(self, run_id: str, after: int = 0, limit: int | None = None) -> Sequence[Output]:
        def work(cursor: sqlite3.Cursor) -> Sequence[Output]:
            return read_output(cursor, self._find_row(cursor, run_id)[0], after, limit)

        return self._connections.read(work)

    def put_document(self, name: str, body: bytes, version: int, due: float | None = None) -> int | None:
        return self._documents.put(name, body, version, due)

    def get_document(self, name: str) -> Document | None:
        return self._documents.get(name)

    def list_documents(
        self, prefix: str = "", due: bool = False, limit: int | None = None
    ) -> Sequence[Document]:
        return self._documents.find(prefix, self.clock() if due else None, limit)

    def delete_document(self, name: str, version: int) -> bool:
        return self._documents.delete(name, version)

    def damaged_documents(self, prefix: str = "") -> Sequence[DamagedDocument]:
        """The documents whose checksums don't match."""
        return self._documents.damaged(prefix)

    def lanes(self) -> Sequence[Lane]:
        return self._connections.read(all_lanes)

    def ready(self, lanes: Sequence[Lane], limit: int) -> Heads:
        now = (self.clock(), self._lease_clock())
        wanted = dict.fromkeys(lanes)
        found = self._connections.read(
            lambda cursor: ready_heads(cursor, wanted, now, limit, self._undamaged)
        )
        return heads.most_urgent_first(found)[:limit]

    def list(self, which: RunFilter) -> list[RunHead]:
        wanted = heads.before_reading(which)
        now = self.clock()
        lease_now = self._lease_clock()
        rows = self._connections.read(lambda cursor: listed_rows(cursor, wanted, now, lease_now))
        return heads.after_reading([self._listed(row) for row in rows], which)

    def prune(self, run_id: str, before: int) -> int:
        def work(cursor: sqlite3.Cursor) -> int:
            row_id, head = self._find(cursor, run_id)
            last = min(max(before, 0), head.snapshot) - 1
            count = delete_records(cursor, row_id, last)
            if count:
                cursor.execute(SQL["SET_DROPPED"], (last, row_id))
                set_checksum(cursor, row_id)
            return count

        return self._connections.write(work)

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        def work(cursor: sqlite3.Cursor) -> int:
            now = self.clock()
            condition = f"status IN ({placeholders(statuses)}) AND updated <= ? AND {SQL['UNHELD']}"
            values = (*statuses, now - older_than, self._lease_clock())
            rows = cursor.execute(f"{SQL['HEAD']} WHERE {condition}", values).fetchall()
            count = 0
            for row in rows:
                if self._undamaged([row]):
                    delete_run(cursor, row[0])
                    count += 1
            return count

        return self._connections.write(work)

    def delete(self, run_id: str) -> None:
        def work(cursor: sqlite3.Cursor) -> None:
            try:
                row_id, head = self._find(cursor, run_id)
            except DamagedRecord:
                (row_id,) = cursor.execute("SELECT id FROM runs WHERE run_id = ?", (run_id,)).fetchone()
                return delete_run(cursor, row_id)
            heads.refuse_if_held(head, self._lease_clock())
            return delete_run(cursor, row_id)

        self._connections.write(work)
        self._row_ids.pop(run_id, None)

    def salvage(self, run_id: str) -> Mapping[int, bytes | DamagedRecord]:
        """The records of a run, whatever is the matter with its row."""
        return self._connections.read(lambda cursor: all_records(cursor, self._find_row(cursor, run_id)[0]))

    def faults(self) -> Sequence[str]:
        """What SQLite finds wrong with the file as a whole: it reads every page."""
        try:
            found = self._connections.read(
                lambda cursor: cursor.execute("PRAGMA integrity_check(20)").fetchall()
            )
        except StoreUnavailable as problem:
            return [str(problem)]
        return [f"{self.path}: {fault}" for (fault,) in found if fault != "ok"]

    def close(self) -> None:
        self._connections.close()
        if self._unflushed is not None:
            self._unflushed.close()

    def _output_connections(self) -> Connections:
        """The connections that write without a flush; those of a closed store refuse to."""
        if self.abilities.level == "process" or self.closed:
            return self._connections
        if self._unflushed is None:
            if not self.path.exists():  # it was deleted, and must not be made again
                return self._connections
            self._unflushed = Connections(self.path, flush=False, timeout=self._timeout)
        return self._unflushed

    def _plain_values(self, commit: Commit) -> tuple[Any, ...] | None:
        """The parameters of `APPEND`, if one more record is all that this commit changes."""
        records = commit.records
        # What `commit.only_adds_records` says, without one more call at each step.
        if (
            len(records) != 1
            or commit.snapshot
            or commit.status is not None
            or commit.note is not None
            or commit.purge
            or commit.takes
            or commit.labels is not None
            or len(records[0]) > LARGEST
            or not 0 < commit.expected < MAX_RECORDS
        ):
            return None
        row_id = self._row_ids.get(commit.run_id)
        if row_id is None:
            return None
        before = record_id(row_id, commit.expected)
        return before + 1, records[0], row_id, commit.fence, before

    def _apply_all(
        self, cursor: sqlite3.Cursor, commits: Sequence[Commit]
    ) -> builtins.list[Exception | None]:
        """Carry out the plain commits by one statement, if all of them can be, and the others one by one."""
        if len(commits) == 1:
            return [self._apply(cursor, commits[0])]
        values = [self._plain_values(commit) for commit in commits]
        plain = [each for each in values if each is not None]
        has_repeated_run = len({commit.run_id for commit in commits}) < len(commits)
        if has_repeated_run or len(plain) < 2 or not append_many(cursor, plain):
            return [self._apply(cursor, commit) for commit in commits]
        outcomes: list[Exception | None] = [None] * len(commits)
        for index, plain_values in enumerate(values):
            if plain_values is None:
                outcomes[index] = self._apply(cursor, commits[index])
        return outcomes

    def _apply(self, cursor: sqlite3.Cursor, commit: Commit) -> Exception | None:
        """Carry out one commit inside the caller's transaction; return why it is refused, or None."""
        values = self._plain_values(commit)
        if values is not None and cursor.execute(APPEND, values).rowcount == 1:
            return None
        try:
            row_id, head = self._find(cursor, commit.run_id)
        except StoreError as missing:
            return missing
        refused = heads.refusal(commit, head, self._lease_clock()) or too_large(commit)
        if refused is not None:
            return refused
        applied = heads.apply(head, commit, self.clock())
        if commit.purge:
            delete_records(cursor, row_id)
            cursor.execute(SQL["SET_DROPPED"], (applied.sequence, row_id))
        else:
            insert_records(cursor, row_id, commit.expected + 1, commit.records)
        if applied.taken != head.taken:
            take_posts(cursor, row_id, head, applied)
        change_head(cursor, row_id, update_of(head, applied, with_sequence=commit.purge))
        return None

    def _renew(self, cursor: sqlite3.Cursor, lease: Lease, ttl: float) -> bool | None:
        """Renew one lease; return whether posts wait, or None if the lease is no longer valid."""
        try:
            row_id, head = self._find(cursor, lease.run_id)
        except (RunNotFound, DamagedRecord):
            return None
        renewed = heads.renew(head, lease, ttl, self.clock(), self._lease_clock())
        if renewed is None:
            return None
        change_head(cursor, row_id, update_of(head, renewed))
        return head.posted > head.taken

    def _find(self, cursor: sqlite3.Cursor, run_id: str) -> tuple[int, RunHead]:
        """The row id and the head of a run. Raises `RunNotFound`, `DamagedRecord`."""
        row = self._find_row(cursor, run_id)
        return row[0], head_of(row)

    def _find_row(self, cursor: sqlite3.Cursor, run_id: str) -> Sequence[Any]:
        """The row of a run, as `HEAD` has it, unchecked. Raises `RunNotFound`, `DamagedRecord`."""
        row: Sequence[Any] | None = cursor.execute(SQL["FIND"], (run_id,)).fetchone()
        if row is None:
            raise RunNotFound(run_id)
        if row[1] != run_id:
            raise DamagedRecord(run_id, 0, f"the index of {self.path} leads to run {row[1]!r} instead")
        self._remember(run_id, row[0])
        return row

    def _remember(self, run_id: str, row_id: int) -> None:
        if len(self._row_ids) >= MAX_CACHED_ROW_IDS:
            self._row_ids.clear()
        self._row_ids[run_id] = row_id

    def _undamaged(self, rows: Iterable[Sequence[Any]]) -> builtins.list[RunHead]:
        """The heads in these rows. Damaged ones are skipped, with a warning in the log."""
        return [head for head in map(self._listed, rows) if head.status != DAMAGED]

    def _listed(self, row: Sequence[Any]) -> RunHead:
        """The head in a row, for a list; with a warning in the log if it is damaged."""
        head = listed_head_of(row)
        if head.status == DAMAGED:
            self._problems.warn(f"{self.path}: the head of run {head.run_id!r} is damaged")
        return head
