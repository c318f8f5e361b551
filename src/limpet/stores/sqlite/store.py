"""Runs in one SQLite file: nothing to set up, shared by the processes of one machine.

The journal only ever grows by `INSERT`, and the common commit (one record, nothing new for the head) is
a single statement that checks the fence, the sequence number and the signal, inserts, and is its own
transaction. The head is a row that such commits leave alone; its sequence number is that of the newest
record, looked up when asked for.
"""

from __future__ import annotations

import builtins
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from limpet.errors import (
    DamagedRecord,
    RunExists,
    RunNotFound,
    StoreError,
    StoreUnavailable,
    TooLarge,
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
    OnSignal,
    RunFilter,
    RunHead,
    Tail,
)
from limpet.stores.heads import held_conflict, is_held, refusal
from limpet.stores.sqlite import queries
from limpet.stores.sqlite.connections import Connections

MOST_REMEMBERED = 10_000
"""Runs whose row ids are kept in memory."""

LARGEST = 999_999_000
"""Bytes of the largest record: SQLite's limit for a row, less what the row's other columns may need."""


class SQLiteStore:
    """Keeps runs in the SQLite file at `path`, which is created if it is missing.

    `level` is what an acknowledged save survives: "disk" a power loss (an fsync for each commit), "process"
    a kill of the process. `timeout` is how many seconds to wait while other processes keep the file
    locked. Threads may share a store, processes may share its file, and a fork may happen at any time.
    Raises `StoreUnavailable` where the file can't be opened and written.
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
            raise UsageError(f'a SQLite store has the level "disk" or "process", not {level!r}')
        if not 0 <= timeout <= 1e9:
            raise UsageError(f"timeout is a number of seconds, not {timeout!r}")
        self.path = _usable(path)
        self.abilities = Abilities(level=level, shared=True)
        self.clock = clock
        self._connections = Connections(self.path, flush=level == "disk", timeout=timeout)
        self._rows: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self.path)!r}, level={self.abilities.level!r})"

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._connections.closed

    def create(self, run: NewRun) -> Lease | None:
        def work(cursor: sqlite3.Cursor) -> tuple[int, float | None]:
            now = self.clock()
            until = None if run.holder is None else now + run.ttl
            if cursor.execute(queries.CREATE, queries.row_of(run, now, until)).rowcount == 0:
                raise RunExists(run.run_id)
            row = cursor.lastrowid or 0
            queries.insert(cursor, row, 1, run.records)
            queries.seal(cursor, row)
            return row, until

        row, until = self._connections.write(work)
        self._remember(run.run_id, row)
        return None if until is None else Lease(run.run_id, 1, until)

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        if len(commits) == 1:
            alone = self._as_statement(commits[0])
            if alone is not None and self._connections.execute(queries.APPEND, alone) == 1:
                return [None]
        elif not commits:
            return []
        return self._connections.write(lambda cursor: self._apply_all(cursor, commits))

    def head(self, run_id: str) -> RunHead:
        return self._connections.read(lambda cursor: self._find(cursor, run_id))[1]

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        def work(cursor: sqlite3.Cursor) -> Tail:
            row, head = self._find(cursor, run_id)
            start = head.snapshot if first is None else max(first, 0)
            stop = head.sequence if last is None else max(last, 0)
            bounds = min(start, head.sequence + 1), min(stop, head.sequence)
            found = cursor.execute(queries.READ, [queries.record_id(row, each) for each in bounds]).fetchall()
            records = [data if type(data) is bytes else b"" for _, data in found]
            return Tail(head, found[0][0] if found else head.sequence + 1, records)

        return self._connections.read(work)

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        def work(cursor: sqlite3.Cursor) -> Lease:
            row, head = self._find(cursor, run_id)
            now = self.clock()
            if is_held(head, now) and instead_of != head.fence:
                raise held_conflict(head, now)
            lease = Lease(run_id, head.fence + 1, now + ttl, head.crashes + (head.holder is not None))
            cursor.execute(queries.CLAIM, (lease.fence, lease.crashes, holder, lease.until, now, row))
            queries.seal(cursor, row)
            return lease

        return self._connections.write(work)

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[str | None]:
        leases = list(leases)
        self._connections.check_file()

        def work(cursor: sqlite3.Cursor) -> list[str | None]:
            now = self.clock()
            return [self._renew(cursor, lease, now, now + ttl) for lease in leases]

        return self._connections.write(work)

    def release(self, lease: Lease) -> None:
        def work(cursor: sqlite3.Cursor) -> None:
            with suppress(RunNotFound):
                row, head = self._find(cursor, lease.run_id)
                if head.fence == lease.fence:
                    cursor.execute(queries.RELEASE, (row,))
                    queries.seal(cursor, row)

        self._connections.write(work)

    def signal(self, run_id: str, signal: str) -> None:
        def work(cursor: sqlite3.Cursor) -> None:
            row, _ = self._find(cursor, run_id)
            cursor.execute(queries.SIGNAL, (signal, row))
            queries.seal(cursor, row)

        self._connections.write(work)

    def ready(self, graphs: Sequence[str], limit: int) -> Heads:
        now = self.clock()
        values = (now, now, json.dumps(list(graphs)), limit)
        rows = self._connections.read(lambda cursor: cursor.execute(queries.READY, values).fetchall())
        return [head for head in map(self._sound, rows) if head is not None]

    def list(self, which: RunFilter) -> list[RunHead]:
        conditions, values = queries.where(which, self.clock())
        query = f"{queries.HEAD} {conditions} ORDER BY created DESC, run_id DESC LIMIT ? OFFSET ?"
        values += (-1 if which.limit is None else which.limit), which.offset
        rows = self._connections.read(lambda cursor: cursor.execute(query, values).fetchall())
        return [head for head in map(self._sound, rows) if head is not None]

    def prune(self, run_id: str, before: int) -> int:
        def work(cursor: sqlite3.Cursor) -> int:
            row, head = self._find(cursor, run_id)
            last = min(max(before, 0), head.snapshot) - 1
            return self._drop(cursor, row, last)

        return self._connections.write(work)

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        def work(cursor: sqlite3.Cursor) -> int:
            now = self.clock()
            old = f"WHERE status IN ({queries.marks(statuses)}) AND updated <= ? AND {queries.FREE}"
            values = (*statuses, now - older_than, now)
            found = cursor.execute(f"{queries.HEAD} {old}", values).fetchall()
            gone = [row[0] for row in found if self._sound(row) is not None]
            for row in gone:
                self._remove(cursor, row)
            return len(gone)

        return self._connections.write(work)

    def delete(self, run_id: str) -> None:
        def work(cursor: sqlite3.Cursor) -> None:
            try:
                row, head = self._find(cursor, run_id)
            except DamagedRecord:
                (row,) = cursor.execute("SELECT id FROM runs WHERE run_id = ?", (run_id,)).fetchone()
                return self._remove(cursor, row)
            now = self.clock()
            if is_held(head, now):
                raise held_conflict(head, now)
            return self._remove(cursor, row)

        self._connections.write(work)
        self._rows.pop(run_id, None)

    def faults(self) -> Sequence[str]:
        """What SQLite finds wrong with the file, as a whole: each page of it is read."""
        try:
            found = self._connections.read(
                lambda cursor: cursor.execute("PRAGMA integrity_check(20)").fetchall()
            )
        except StoreUnavailable as problem:
            return [str(problem)]
        return [f"{self.path}: {fault}" for (fault,) in found if fault != "ok"]

    def close(self) -> None:
        self._connections.close()

    def _as_statement(self, commit: Commit) -> tuple[Any, ...] | None:
        """The parameters of `APPEND`, if that is all there is to do for this commit."""
        records = commit.records
        if (
            len(records) != 1
            or commit.snapshot
            or commit.status is not None
            or commit.note is not None
            or commit.purge
            or commit.on_signal is OnSignal.CLEAR
            or len(records[0]) > LARGEST
            or not 0 < commit.expected < queries.MOST_RECORDS
        ):
            return None
        row = self._rows.get(commit.run_id)
        if row is None:
            return None
        before = queries.record_id(row, commit.expected)
        return before + 1, records[0], row, commit.fence, before

    def _apply_all(
        self, cursor: sqlite3.Cursor, commits: Sequence[Commit]
    ) -> builtins.list[Exception | None]:
        """Carry out what is plain by one statement, if all of it can be, and the rest one by one."""
        plain = [self._as_statement(commit) for commit in commits]
        together = [each for each in plain if each is not None]
        if len({commit.run_id for commit in commits}) < len(commits):
            together = []
        if len(together) < 2 or not queries.append_all(cursor, together):
            return [self._apply(cursor, commit) for commit in commits]
        pairs = zip(commits, plain, strict=True)
        return [self._apply(cursor, commit) if alone is None else None for commit, alone in pairs]

    def _apply(self, cursor: sqlite3.Cursor, commit: Commit) -> Exception | None:
        alone = self._as_statement(commit)
        if alone is not None and cursor.execute(queries.APPEND, alone).rowcount == 1:
            return None
        try:
            row, head = self._find(cursor, commit.run_id)
        except StoreError as missing:
            return missing
        now = self.clock()
        refused = refusal(commit, head, now) or _too_large(commit)
        if refused is None:
            if commit.purge:
                self._drop(cursor, row)
            else:
                queries.insert(cursor, row, commit.expected + 1, commit.records)
            if queries.change_head(cursor, row, commit, now):
                queries.seal(cursor, row)
        return refused

    def _renew(self, cursor: sqlite3.Cursor, lease: Lease, now: float, until: float) -> str | None:
        """Prolong one lease; return "", the waiting signal, or None if the lease is lost."""
        try:
            row, head = self._find(cursor, lease.run_id)
        except (RunNotFound, DamagedRecord):
            return None
        if head.fence != lease.fence or head.holder is None:
            return None
        cursor.execute(queries.RENEW, (until, now, row))
        queries.seal(cursor, row)
        return head.signal or ""

    def _find(self, cursor: sqlite3.Cursor, run_id: str) -> tuple[int, RunHead]:
        row = cursor.execute(queries.FIND, (run_id,)).fetchone()
        if row is None:
            raise RunNotFound(run_id)
        if row[1] != run_id:
            raise DamagedRecord(run_id, 0, f"{self.path} leads to run {row[1]!r} in its place")
        self._remember(run_id, row[0])
        return row[0], queries.head_of(row)

    def _remember(self, run_id: str, row: int) -> None:
        if len(self._rows) >= MOST_REMEMBERED:
            self._rows.clear()
        self._rows[run_id] = row

    def _sound(self, row: Sequence[Any]) -> RunHead | None:
        """The head in a row, or None, with a warning, if it is damaged."""
        try:
            return queries.head_of(row)
        except DamagedRecord as damage:
            from logging import getLogger

            getLogger("limpet.stores").warning("%s: a run is passed over: %s", self.path, damage)
            return None

    def _remove(self, cursor: sqlite3.Cursor, row: int) -> None:
        self._drop(cursor, row)
        cursor.execute("DELETE FROM runs WHERE id = ?", (row,))

    def _drop(self, cursor: sqlite3.Cursor, row: int, last: int = queries.MOST_RECORDS) -> int:
        """Remove the records of a run up to number `last`; returns how many there were."""
        bounds = queries.record_id(row, 0), queries.record_id(row, last)
        return cursor.execute(queries.DROP, bounds).rowcount


def _usable(path: str | os.PathLike[str]) -> Path:
    text = os.fspath(path)
    if not text or Path(text).name == ":memory:":
        raise UsageError(f'{text!r} is no file: for a store in memory use "memory" (or MemoryStore())')
    found = Path(text).resolve()
    if not found.parent.is_dir():
        raise StoreUnavailable(f"can't open {found}: create the directory {found.parent} first")
    if found.is_dir():
        raise StoreUnavailable(f"can't open {found}: it is a directory; name a file in it")
    return found


def _too_large(commit: Commit) -> TooLarge | None:
    size = max(map(len, commit.records), default=0)
    if size > LARGEST:
        what = f"a record of {size:,} bytes is more than SQLite can hold ({LARGEST:,})"
    elif commit.expected + len(commit.records) > queries.MOST_RECORDS:
        what = f"its journal is as long as it can be here ({queries.MOST_RECORDS:,} records)"
    else:
        return None
    return TooLarge(f"run {commit.run_id!r}: {what}")
