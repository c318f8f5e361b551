"""The runs of a directory as this process remembers them: read once, and again when another process may have written.

All of it happens under the lock of the run; the `LockFile` holds what is remembered under it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from limpet.errors import DamagedRecord, LimpetError, RunNotFound
from limpet.journal.store import RunHead
from limpet.stores import heads
from limpet.stores.atomic_files import flush_directory
from limpet.stores.files.damaged_heads import listed_head
from limpet.stores.files.locks import LockFile, Locks
from limpet.stores.files.run_files import RunFiles, open_run
from limpet.stores.files.run_names import HEAD_SUFFIX, file_name_of, parse_head_file, remove_journals
from limpet.stores.files.unlocked_reads import read_unlocked

if TYPE_CHECKING:
    from logging import Logger

MAX_OPEN_JOURNALS = 8
"""How many journal files are kept open under one lock."""
MAX_REMEMBERED_RUNS = 2000
"""How many runs are remembered under one lock."""


class RunCache:
    """The runs in `directory`, under `locks`. `flush` says whether each write is flushed to the disk."""

    def __init__(self, directory: Path, locks: Locks, flush: bool) -> None:
        self.directory = directory
        self.flush = flush
        self._locks = locks

    def check(self, lock: LockFile) -> None:
        """Mark what is remembered as out of date if another process has written under this lock. Call it first."""
        if not lock.is_unchanged():
            lock.knows_all_runs = False
            for run in lock.runs.values():
                run.is_current = False

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
        run: RunFiles | None = lock.runs.get(run_id)
        if run is None:
            run = open_run(self.directory, self.flush, run_id)
            self.add(lock, run)
        elif not run.is_current or not run.has_known_size():
            try:
                run.refresh()
            except LimpetError:
                self._forget(lock, run)
                raise
        # To the end of the order, so that the journals used longest ago are closed first.
        lock.open_runs.pop(run_id, None)
        lock.open_runs[run_id] = run
        if len(lock.open_runs) > MAX_OPEN_JOURNALS:
            oldest = next(iter(lock.open_runs))
            lock.open_runs.pop(oldest).close()
        return run

    def add(self, lock: LockFile, run: RunFiles) -> None:
        """Remember a run that was opened or created."""
        if len(lock.runs) >= MAX_REMEMBERED_RUNS:
            lock.forget_runs()
        lock.runs[run.head.run_id] = run

    def replace_head(self, lock: LockFile, run: RunFiles, head: RunHead) -> None:
        """Give a run another head."""
        lock.count_change()
        run.replace_head(head)

    def remove(self, lock: LockFile, run: RunFiles) -> None:
        """Remove a run and its files."""
        lock.count_change()
        self._forget(lock, run)
        run.remove()

    def remove_damaged(self, lock: LockFile, run_id: str) -> None:
        """Remove the files of a run that can't be read."""
        lock.count_change()
        if run_id in lock.runs:
            self._forget(lock, lock.runs[run_id])
        name = file_name_of(run_id)
        (self.directory / f"{name}{HEAD_SUFFIX}").unlink()
        if self.flush:
            flush_directory(self.directory)
        remove_journals(self.directory, name)

    def heads_under(
        self, lock: LockFile, wanted: Callable[[RunHead], bool], *, as_remembered: bool = False
    ) -> list[RunHead]:
        """The heads of the wanted runs under a lock. A run that can't be read at all is left out, with a warning.

        With `as_remembered`, files that changed without the lock go unnoticed: for a caller that looks at the runs
        that it chooses once more. It saves a look at the files of all others.
        """
        if lock.knows_all_runs and as_remembered:
            return [run.head for run in lock.runs.values() if wanted(run.head)]
        if lock.knows_all_runs:
            remembered = [run_id for run_id, run in lock.runs.items() if wanted(run.head)]
            # If files changed without the lock, as when a user deletes some, the directory is read again.
            with suppress(RunNotFound, DamagedRecord):
                return [self.find(lock, run_id).head for run_id in remembered]
        found = self._listed(lock, lambda run_id: self._closed_head(lock, run_id))
        lock.knows_all_runs = len(found) == len(lock.runs)
        return [head for head in found if wanted(head)]

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
            found = parse_head_file(None, path.read_bytes())[0]
            if file_name_of(found.run_id) != path.name.removesuffix(HEAD_SUFFIX):
                raise DamagedRecord("?", 0, f"its head file is that of run {found.run_id!r}")
            stored = found
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

    def _forget(self, lock: LockFile, run: RunFiles) -> None:
        run.close()
        lock.runs.pop(run.head.run_id, None)
        lock.open_runs.pop(run.head.run_id, None)


def intact_head(run: RunFiles) -> RunHead:
    """The head of a run. Raises `DamagedRecord` if its newest commits are damaged."""
    if run.damage is not None:
        raise run.damage
    return run.head


def _log() -> Logger:
    from logging import getLogger  # late, as most programs never need it here

    return getLogger("limpet.stores")
