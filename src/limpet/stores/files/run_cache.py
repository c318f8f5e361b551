"""The runs of a directory as this process remembers them: read once, and again when another process may have written.

All of it happens under the lock of the run; the `LockFile` holds what is remembered under it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from limpet.errors import DamagedRecord, LimpetError, RunNotFound
from limpet.journal.store import Lane, RunHead
from limpet.stores import heads
from limpet.stores.atomic_files import flush_directory, read_whole
from limpet.stores.files.damaged_heads import listed_head, run_id_by_name
from limpet.stores.files.frames import JournalPlace
from limpet.stores.files.locks import LockFile, Locks
from limpet.stores.files.run_files import RunFiles
from limpet.stores.files.run_names import HEAD_SUFFIX, file_name_of, parse_head_file, remove_files
from limpet.stores.files.run_opening import open_further, open_run, read_unlocked
from limpet.stores.indexes import RunIndex

if TYPE_CHECKING:
    from logging import Logger

MAX_OPEN_JOURNALS = 8
"""How many journal files are kept open under one lock."""
MAX_REMEMBERED_RUNS = 8000
"""How many runs are remembered under one lock: more would take too much memory, and are read again for each list."""


class RunCache:
    """The runs in `directory`, under `locks`. `flush` says whether each write is flushed to the disk."""

    def __init__(self, directory: Path, locks: Locks, flush: bool) -> None:
        self.directory = directory
        self.flush = flush
        self._locks = locks

    def check(self, lock: LockFile) -> None:
        """Mark as out of date what other processes may have changed under this lock. Call it first."""
        changed = lock.changed_by_others()
        if changed is None:
            lock.knows_all_names = False
            lock.index_is_complete = False
            for run in lock.runs.values():
                run.is_current = False
        for name in changed or ():
            if lock.knows_all_names:
                lock.unread.add(name)
            if name in lock.runs:
                lock.runs[name].is_current = False
            if lock.index_is_complete:
                lock.unindexed.add(name)

    def find(self, lock: LockFile, run_id: str) -> RunFiles:
        """The run as it is now. Raises `RunNotFound`, `DamagedRecord`."""
        run = self.find_readable(lock, run_id)
        if run.damage is not None:
            raise run.damage
        return run

    def find_readable(self, lock: LockFile, run_id: str) -> RunFiles:
        """The same, also if the end of its journal is damaged: its `damage` then says where.

        Raises `RunNotFound`, and `DamagedRecord` for a damaged head file.
        """
        name = file_name_of(run_id)
        run: RunFiles | None = lock.runs.get(name)
        if run is None:
            run = open_run(self.directory, self.flush, run_id)
            self._add(lock, run)
        elif not run.is_current or not run.has_known_size():
            try:
                run.refresh()
            except LimpetError:
                self._forget(lock, name)
                if lock.knows_all_names:
                    lock.unread.add(name)
                raise
            self._index(lock, run)
        self._keep_open(lock, run)
        return run

    def add_created(self, lock: LockFile, run: RunFiles) -> None:
        """Remember a run that was created just now, and whose journal is open."""
        self._add(lock, run)
        self._keep_open(lock, run)

    def _add(self, lock: LockFile, run: RunFiles) -> None:
        if len(lock.runs) >= MAX_REMEMBERED_RUNS:
            lock.drop_runs()
        lock.runs[run.name] = run
        lock.damaged.pop(run.name, None)
        self._index(lock, run)

    def _index(self, lock: LockFile, run: RunFiles) -> None:
        """Give a run that was read just now its place in the index."""
        if not lock.index_is_complete:
            return
        if run.damage is None:
            lock.index.put(run.name, run.head)
        else:
            lock.index.remove(run.name)
        lock.unindexed.discard(run.name)

    def _keep_open(self, lock: LockFile, run: RunFiles) -> None:
        """Let a run's journal stay open. It goes to the end of the order: those used longest ago are closed first."""
        lock.open_runs.pop(run.name, None)
        lock.open_runs[run.name] = run
        if len(lock.open_runs) > MAX_OPEN_JOURNALS:
            oldest = next(iter(lock.open_runs))
            lock.open_runs.pop(oldest).close()

    def replace_head(self, lock: LockFile, run: RunFiles, head: RunHead) -> None:
        """Give a run another head."""
        lock.count_change(run.name)
        run.replace_head(head)

    def remove(self, lock: LockFile, run: RunFiles) -> None:
        """Remove a run and its files."""
        lock.count_change(run.name)
        self._forget(lock, run.name)
        run.remove()

    def remove_damaged(self, lock: LockFile, run_id: str) -> None:
        """Remove the files of a run that can't be read."""
        name = file_name_of(run_id)
        lock.count_change(name)
        self._forget(lock, name)
        (self.directory / f"{name}{HEAD_SUFFIX}").unlink()
        if self.flush:
            flush_directory(self.directory)
        remove_files(self.directory, name)

    def names_by_lock(self) -> dict[Path, set[str]]:
        """The names of all runs in the directory, by the paths of their locks."""
        names: dict[Path, set[str]] = {lock.path: set() for lock in self._locks.files}
        for entry in os.scandir(self.directory):
            name = entry.name.removesuffix(HEAD_SUFFIX)
            if name != entry.name:
                names[self._locks.lock_of(name).path].add(name)
        return names

    def learn_names(self, locks: Sequence[LockFile]) -> None:
        """Find out which runs there are under these locks, all of which are held. Their heads are read later."""
        names = self.names_by_lock()
        for lock in locks:
            found = names[lock.path]
            for name in lock.runs.keys() - found:
                self._forget(lock, name)
            lock.damaged.clear()
            lock.unread = {name for name in found if name not in lock.runs or not lock.runs[name].is_current}
            lock.knows_all_names = len(found) <= MAX_REMEMBERED_RUNS
            if not lock.index_is_complete:
                lock.index = RunIndex()
                lock.unindexed = found
                lock.index_is_complete = True

    def current_index(self, lock: LockFile) -> RunIndex:
        """The index of the runs under a lock. Only heads that may have changed are read.

        Files that changed without the lock, as when a user copies or deletes some, go unnoticed.
        """
        if not lock.index_is_complete:
            self.learn_names([lock])
        for name in list(lock.unindexed):
            run: RunFiles | None = lock.runs.get(name)
            if run is not None and run.is_current:
                self._index(lock, run)
            else:
                self._read_again(lock, name)
        lock.unindexed.clear()
        return lock.index

    def ready_under(
        self,
        lock: LockFile,
        lanes: Collection[Lane],
        now: tuple[float, float],
        limit: int,
        without: Collection[str],
    ) -> list[RunHead]:
        """The most urgent runs under a lock that are ready, at most `limit`.

        `now` is the time by the store's clock, and by that of leases.
        """
        due_by, lease_now = now
        found: list[RunHead] = []
        for name in self.current_index(lock).due(lanes, due_by):
            if len(found) >= limit:
                break
            if name not in lock.runs:
                self._read_again(lock, name)
            run: RunFiles | None = lock.runs.get(name)
            if run is not None and not heads.is_held(run.head, lease_now) and run.head.run_id not in without:
                found.append(run.head)
        return found

    def heads_under(self, lock: LockFile, wanted: Callable[[RunHead], bool], seen: set[str]) -> list[RunHead]:
        """The heads of the wanted runs under a lock. Only heads that may have changed are read.

        A run that is damaged is among them, and its head says so. `seen` are the names that are in the directory: by
        these, files that changed without the lock are noticed.
        """
        if not lock.knows_all_names:
            self.learn_names([lock])
        if lock.knows_all_names:
            lock.unread.update(name for name in seen if name not in lock.runs)
            lock.unread.update(name for name, run in lock.runs.items() if not run.has_known_size())
        while lock.knows_all_names and lock.unread:
            self._read_again(lock, lock.unread.pop())
        if not lock.knows_all_names:  # there are too many runs to remember them
            return [head for head in self._listed(lock, partial(self._closed_head, lock)) if wanted(head)]
        runs = lock.runs.values()
        found = [run.head if run.damage is None else heads.damaged(run.head) for run in runs]
        return [head for head in (*found, *lock.damaged.values()) if wanted(head)]

    def _read_again(self, lock: LockFile, name: str) -> None:
        """Read a run that isn't remembered, or that may have changed. If it is gone, it is forgotten."""
        path = self.directory / f"{name}{HEAD_SUFFIX}"
        lock.unread.discard(name)
        try:
            run: RunFiles | None = lock.runs.get(name)
            if run is None:
                content = read_whole(str(path))
                run = RunFiles(self.directory, self.flush, *_parse_head_file(path, content))
                open_further(run, content)
                self._add(lock, run)
            else:
                run.refresh()
                self._index(lock, run)
            if name not in lock.open_runs:
                run.close()
            if run.damage is not None:
                _log().warning("%s is listed as damaged: %s", path, run.damage)
        except (RunNotFound, FileNotFoundError):
            self._forget(lock, name)
        except DamagedRecord as damage:
            self._forget(lock, name)
            _log().warning("%s is listed as damaged: %s", path, damage)
            with suppress(FileNotFoundError):
                lock.damaged[name] = listed_head(path)

    def unlocked_heads_under(self, lock: LockFile) -> list[RunHead]:
        """The heads of all runs under a lock that another process doesn't release."""
        return self._listed(lock, lambda run_id: read_unlocked(self.directory, run_id, intact_head))

    def _closed_head(self, lock: LockFile, run_id: str) -> RunHead:
        run = self.find(lock, run_id)
        run.close()
        return run.head

    def _listed(self, lock: LockFile, read: Callable[[str], RunHead]) -> list[RunHead]:
        """The heads of the runs under a lock that have a head file, each as `read` gives it."""
        found = []
        for entry in os.scandir(self.directory):
            name = entry.name.removesuffix(HEAD_SUFFIX)
            if name != entry.name and self._locks.lock_of(name) is lock:
                head = self._read_head(Path(entry.path), read)
                if head is not None:
                    found.append(head)
        return found

    def _read_head(self, path: Path, read: Callable[[str], RunHead]) -> RunHead | None:
        """The head of the run with this head file; None if that is gone.

        For a run whose head file or newest commits are damaged, a head that says so. A warning names it.
        """
        stored = None
        try:
            stored, _ = _parse_head_file(path, path.read_bytes())
            return read(stored.run_id)
        except (RunNotFound, FileNotFoundError):
            return None
        except DamagedRecord as damage:
            _log().warning("%s is listed as damaged: %s", path, damage)
            if stored is not None:
                return heads.damaged(stored)
        with suppress(FileNotFoundError):
            return listed_head(path)
        return None

    def _forget(self, lock: LockFile, name: str) -> None:
        run: RunFiles | None = lock.runs.pop(name, None)
        if run is not None:
            run.close()
        lock.open_runs.pop(name, None)
        lock.damaged.pop(name, None)
        lock.index.remove(name)
        lock.unindexed.discard(name)


def _parse_head_file(path: Path, content: bytes) -> tuple[RunHead, JournalPlace]:
    """The head and the place in the head file with this name. Raises `DamagedRecord`."""
    try:
        head, place = parse_head_file(None, content)
    except DamagedRecord as damage:
        raise DamagedRecord(run_id_by_name(path, content), 0, damage.reason) from damage
    if file_name_of(head.run_id) != path.name.removesuffix(HEAD_SUFFIX):
        raise DamagedRecord(run_id_by_name(path, content), 0, f"its head file is that of run {head.run_id!r}")
    return head, place


def intact_head(run: RunFiles) -> RunHead:
    """The head of a run. Raises `DamagedRecord` if its newest commits are damaged."""
    if run.damage is not None:
        raise run.damage
    return run.head


def _log() -> Logger:
    from logging import getLogger  # late, as most programs never need it here

    return getLogger("limpet.stores")
