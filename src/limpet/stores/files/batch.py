"""Commits to several runs in files, written together: all of them happen, or none does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from limpet.errors import TooLarge
from limpet.journal.store import RunHead
from limpet.stores.atomic_files import explain
from limpet.stores.files.locks import LockFile
from limpet.stores.files.run_files import RunFiles


class CommitBatch:
    """The commits of one call: all are written, then all are flushed; if either fails, none of them happened.

    A purge replaces a head, which can't be undone. So purges come last, and one that fails does so alone: `failed`
    has the failed ones by their numbers.
    """

    def __init__(self) -> None:
        self.failed: dict[int, Exception] = {}
        self._written: dict[str, _WrittenFrame] = {}
        self._purges: dict[str, _Purge] = {}

    def has(self, run_id: str) -> bool:
        """Whether a commit of this run is in the batch."""
        return run_id in self._written or run_id in self._purges

    def add_purge(self, number: int, lock: LockFile, run: RunFiles, head: RunHead) -> None:
        """Drop a run's journal and give it a new head, once all else has happened."""
        self._purges[run.head.run_id] = _Purge(number, lock, run, head)

    def write(self, lock: LockFile, run: RunFiles, records: Sequence[bytes], head: RunHead | None) -> None:
        """Write a commit's frame. Raises `TooLarge`, `OSError`."""
        if not records and head is None:
            return
        run_id = run.head.run_id
        lock.count_change(run.name)
        # Known before it is written, so that half a frame is undone as well.
        self._written[run_id] = _WrittenFrame(run, b"", 0, None)
        try:
            frame = run.write_frame([*records], head)
        except TooLarge:  # refuses its own commit, before anything is written
            del self._written[run_id]
            raise
        except BaseException:
            self.undo()
            raise
        self._written[run_id] = _WrittenFrame(run, frame, len(records), head)

    def complete(self) -> None:
        """Flush what was written and count it in; then carry out the purges."""
        try:
            for written in self._written.values():
                written.run.flush_journal()
        except BaseException:
            self.undo()
            raise
        for written in self._written.values():
            written.run.accept_frame(written.frame, written.record_count, written.head)
        self._written.clear()
        for purge in self._purges.values():
            purge.lock.count_change(purge.run.name)
            try:
                purge.run.purge(purge.head)
            except OSError as error:
                self.failed[purge.number] = explain(error, purge.run.head_path)
        self._purges.clear()

    def undo(self) -> None:
        """Remove what was written and not completed."""
        for written in self._written.values():
            written.run.undo()
        self._written.clear()
        self._purges.clear()


class _WrittenFrame(NamedTuple):
    """A frame of several records, and the head that it writes."""

    run: RunFiles
    frame: bytes
    record_count: int
    head: RunHead | None


class _Purge(NamedTuple):
    """The purge that is commit `number` of the call."""

    number: int
    lock: LockFile
    run: RunFiles
    head: RunHead
