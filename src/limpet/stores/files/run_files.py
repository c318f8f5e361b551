"""One run in files: its head, its journal, and what this process knows of both.

The journal file only grows. A commit is one frame at its end, which also says how the head changes, if it does. So a
commit is whole when its frame is, and never needs two files to change together.

The head file is replaced whole. It has what changes without a commit (holder, posts, dropped records), and how much
of the journal it covers. To know the present head, read the head file and then the frames after the part it covers.

What is flushed before what, at the level "disk":

- A commit: the frame is written and flushed, then acknowledged. The head file isn't touched.
- What another process wrote: it may have been killed before it flushed. So its frames are flushed before a frame is
  written after them, and before a head says that the journal ends behind them; its names in the directory are flushed
  with the first commit. Reading flushes nothing.
- A new run: the journal is flushed, then the head file appears. A run exists when its head file does, so no process
  ever sees a run without its records. A journal without a head is removed by the next `expire`.
- A journal that is rewritten without its dropped records: the new journal file, under another name, is flushed
  first; then a head file that names it replaces the old one; then the old journal is removed. So the head file names
  a whole journal at every moment. A purge is the same with an empty journal, whose file comes with its first record.
- A post: the frame in the inbox file is written and flushed, then a head file that counts it replaces the old one.
- A deletion: the head file goes first, and with it the run; then its other files.

All of this happens under the run's lock.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from limpet.errors import DamagedRecord
from limpet.journal.store import RunHead
from limpet.stores.atomic_files import flush_directory, read_at, replace_file, write_at
from limpet.stores.files.frames import (
    MIXED,
    JournalPlace,
    UnfinishedFrame,
    checksum_seed,
    encode_frame,
    encode_head_file,
    encode_journal,
    first_record_in,
    head_in,
    records_in,
    scan_frames,
)
from limpet.stores.files.inbox_file import KnownPosts
from limpet.stores.files.output_file import KnownOutput, newest_output
from limpet.stores.files.run_names import (
    CUT_SUFFIX,
    HEAD_SUFFIX,
    JOURNAL_SUFFIX,
    file_name_of,
    new_token,
    parse_head_file,
    read_head_file,
    remove_files,
)
from limpet.stores.heads import prunable

MIN_REWRITE_SIZE = 64 * 1024
"""Bytes of dropped records from which on a journal is rewritten without them, if they are half of it."""


class RunFiles:
    """A run that this process knows. Get one with `open_run` or `create_run` of `run_opening.py`.

    `head` is the present head, and `end` the place in the journal file where the next frame goes. `flushed_end` is
    how much of the file is known to be on the disk, and `names_are_flushed` whether the names of the files are.
    `head_bytes` is the head file as it was last read or written. `is_current` is False once another process may have
    written, or a write has failed. `damage` says what is wrong with the end of the journal, if anything is: `head` is
    then that of the last commit before it. `posts` and `output` are what was last known of the files beside the
    journal: see `inbox_file.py` and `output_file.py`.
    """

    __slots__ = (
        "damage",
        "descriptor",
        "directory",
        "end",
        "flush",
        "flushed_end",
        "head",
        "head_bytes",
        "is_current",
        "name",
        "names_are_flushed",
        "output",
        "place",
        "posts",
        "seed",
    )

    def __init__(self, directory: Path, flush: bool, head: RunHead, place: JournalPlace) -> None:
        self.directory = directory
        self.flush = flush
        self.name = file_name_of(head.run_id)
        self.descriptor: int | None = None
        self.is_current = True
        self.damage: DamagedRecord | None = None
        self.names_are_flushed = False
        self.head_bytes = b""
        self.posts: KnownPosts | None = None
        self.output: KnownOutput | None = None
        self._set_head(head, place)

    def _set_head(self, head: RunHead, place: JournalPlace) -> None:
        self.head = head
        self.place = place
        self.end = place.end
        self.flushed_end = place.end
        self.seed = checksum_seed(head.run_id, place.token)

    @property
    def head_path(self) -> Path:
        return self.directory / f"{self.name}{HEAD_SUFFIX}"

    @property
    def journal_path(self) -> Path:
        return Path(self._journal_name)

    @property
    def _journal_name(self) -> str:
        """The same as text: a list looks at the journal of each run, and making a `Path` takes longer than that."""
        return f"{self.directory}{os.sep}{self.name}.{self.place.token}{JOURNAL_SUFFIX}"

    # Reading

    def refresh(self) -> None:
        """Read what other processes have written. Raises `RunNotFound`, `DamagedRecord` for the head file."""
        if self.descriptor is not None and os.fstat(self.descriptor).st_nlink == 0:
            self.close()  # the open journal was removed, and the run may have another one by now
        content = read_head_file(self.directory, self.head.run_id)
        if content != self.head_bytes:
            head, place = parse_head_file(self.head.run_id, content)
            if place.token != self.place.token:
                self.close()
            self.head_bytes = content
            self.names_are_flushed = False
            self._set_head(head, place)
        self.read_further()
        self.is_current = True

    def read_further(self, cut: bool = True) -> None:
        """Read what the head file doesn't cover: the newest frames of the journal, and how far the output goes."""
        self._read_new_frames(cut)
        if self.head.output:
            self.head = self.head._replace(output=newest_output(self))

    def _read_new_frames(self, cut: bool = True) -> None:
        """Read the frames after the known end, and cut off one that a killed writer left unfinished.

        Without `cut`, it is only left out: its writer may be alive.
        """
        size = self._size()
        self.damage = None
        if size == self.end:
            return
        if size < self.end:
            reason = f"its journal ends at byte {size:,} of {self.end:,}"
            self.damage = self._damaged(self._first_record_after(size), reason)
            return
        base = self.end
        data = self._bytes(base, size)
        try:
            for frame in scan_frames(data, base, self.head.sequence + 1, self.seed):
                head = None
                if frame.kind == MIXED:
                    head = head_in(frame.body(data, base), self.head.run_id)
                self._advance(frame.offset, frame.record_count, head, frame.end)
        except UnfinishedFrame as unfinished:
            if cut:
                self._cut_off(data[unfinished.offset - base :], unfinished.offset)
        except ValueError as problem:
            self.damage = self._damaged(self.head.sequence + 1, str(problem))

    def _first_record_after(self, size: int) -> int:
        """The number of the first record that isn't whole in the first `size` bytes of the journal."""
        base = self.place.oldest_frame
        data = self._bytes(base, size)
        number = self.place.dropped + 1
        with suppress(ValueError, UnfinishedFrame):
            for frame in scan_frames(data, base, first_record_in(data), self.seed):
                number = frame.first + frame.record_count
        return number

    def _cut_off(self, unfinished: bytes, offset: int) -> None:
        """Remove an unfinished frame. Its commit was never acknowledged, and the next frame must begin here.

        A copy of it stays, for a user who wants to know what the commit was.
        """
        import logging

        copy = self.journal_path.with_suffix(CUT_SUFFIX)
        kept = f"; they are in {copy.name}"
        try:
            replace_file(copy, unfinished, flush=False)
        except OSError as error:
            kept = f"; there is no copy of them: {error}"
        logging.getLogger("limpet.stores").warning(
            "run %s: cut off %d bytes that a writer left unfinished at the end of %s%s",
            self.head.run_id,
            len(unfinished),
            self.journal_path,
            kept,
        )
        os.ftruncate(self._open(), offset)
        if self.flush:
            os.fsync(self._open())

    def _advance(self, offset: int, count: int, head: RunHead | None, end: int) -> None:
        """Count in a frame of `count` records at `offset`, which ends at `end` and may bring a new head."""
        snapshot = self.head.snapshot
        sequence = self.head.sequence + count
        if head is None:
            head = self.head
        self.head = head._replace(sequence=sequence)
        if self.head.snapshot != snapshot:
            self.place = self.place._replace(snapshot_frame=offset)
        self.end = end

    def records(self, first: int, last: int) -> list[bytes]:
        """The records with these numbers. Raises `DamagedRecord`."""
        if first > last:
            return []
        # Most reads start at the newest whole record, so the older frames needn't be read at all.
        if self.head.snapshot and first >= self.head.snapshot:
            base = self.place.snapshot_frame
        else:
            base = self.place.oldest_frame
        data = self._bytes(base, self.end)
        found: list[bytes] = []
        number = None
        try:
            for frame in scan_frames(data, base, first_record_in(data), self.seed):
                number = frame.first
                if frame.first + frame.record_count <= first:
                    continue
                if frame.first > last:
                    break
                number = max(frame.first, first)
                records = records_in(frame.kind, frame.body(data, base))
                found += records[max(first - frame.first, 0) : last - frame.first + 1]
                number = frame.first + frame.record_count
                if number > last:
                    break
        except UnfinishedFrame as problem:  # this part of the journal was whole when it was counted in
            raise self._damaged(number or first, "it is cut off") from problem
        except ValueError as problem:
            raise self._damaged(number or first, str(problem)) from problem
        if len(found) != last - first + 1:
            raise self._damaged(first + len(found), "it is missing")
        return found

    def _frame_with(self, number: int) -> int:
        """Where the frame that holds a record begins."""
        base = self.place.oldest_frame
        data = self._bytes(base, self.end)
        try:
            for frame in scan_frames(data, base, first_record_in(data), self.seed):
                if frame.first <= number < frame.first + frame.record_count:
                    return frame.offset
        except (ValueError, UnfinishedFrame) as problem:
            raise self._damaged(number, str(problem)) from problem
        return self.end

    # Committing: `write_frame`, `flush_journal`, then `accept_frame` or `undo`

    def write_frame(self, records: list[bytes], head: RunHead | None) -> bytes:
        """Write a frame at the end, without flushing it or counting it in. Raises `TooLarge`, `OSError`."""
        frame = encode_frame(self.seed, self.head.sequence + 1, records, head)
        self._flush_frames_of_others()
        write_at(self._open(create=True), frame, self.end)
        return frame

    def flush_journal(self) -> None:
        """Have the written frame reach the disk, if that is this store's level."""
        if self.flush:
            os.fsync(self._open())
            if not self.names_are_flushed:
                flush_directory(self.directory)
                self.names_are_flushed = True

    def _flush_frames_of_others(self) -> None:
        """Flush what was read and not written here. A frame that is followed by another must be whole on the disk."""
        if self.flushed_end < self.end:
            if self.flush:
                os.fsync(self._open())
            self.flushed_end = self.end

    def accept_frame(self, frame: bytes, count: int, head: RunHead | None) -> None:
        """Count in the frame that was written and flushed."""
        self._advance(self.end, count, head, self.end + len(frame))
        self.flushed_end = self.end

    def undo(self) -> None:
        """Remove the frame that was written and not accepted.

        Where that fails, the commit was still not acknowledged. As the run isn't current any more, the next call
        reads the file again: half a frame is cut off then.
        """
        self.is_current = False
        if self.descriptor is not None:
            with suppress(OSError):
                os.ftruncate(self.descriptor, self.end)
                # Before the next frame takes this place: blocks of both would be neither.
                if self.flush:
                    os.fsync(self.descriptor)

    # Replacing the head

    def replace_head(self, head: RunHead, inbox: str | None = None) -> None:
        """Make this the head, whole or not at all; and `inbox` the token of the file with the run's posts."""
        if inbox is None:
            inbox = self.place.inbox
        self._store_head(head, self.place._replace(end=self.end, inbox=inbox))

    def _store_head(self, head: RunHead, place: JournalPlace) -> None:
        """Replace the head file. What it says of the journal is on the disk before it is."""
        if place.token == self.place.token:
            self._flush_frames_of_others()
        content = encode_head_file(head, place)
        # If it fails, the file may have the new head or the old one: the next call reads it.
        self.is_current = False
        self.names_are_flushed = False
        replace_file(self.head_path, content, flush=self.flush)
        self.is_current = True
        self.names_are_flushed = True
        self.head_bytes = content
        self._set_head(head, place)

    def purge(self, head: RunHead) -> None:
        """Drop the journal and make this the head, in one."""
        self._switch_journal(head, JournalPlace(new_token(), dropped=head.sequence, inbox=self.place.inbox))

    def prune(self, before: int) -> int:
        """Drop the records below a number; returns how many. They leave the file when that frees enough of it."""
        count = prunable(self.head, self.place.dropped, before)
        if count == 0:
            return 0
        dropped = self.place.dropped + count
        oldest_frame = self._frame_with(dropped + 1)
        if oldest_frame < MIN_REWRITE_SIZE or oldest_frame * 2 < self.end:
            place = self.place._replace(dropped=dropped, oldest_frame=oldest_frame, end=self.end)
            self._store_head(self.head, place)
        else:
            self._rewrite(dropped)
        return count

    def _rewrite(self, dropped: int) -> None:
        """Put the records that are left into a new journal file, and remove the old one."""
        records = self.records(dropped + 1, self.head.sequence)
        place = JournalPlace(new_token(), dropped=dropped, inbox=self.place.inbox)
        seed = checksum_seed(self.head.run_id, place.token)
        journal, snapshot_frame = encode_journal(seed, dropped + 1, records, self.head.snapshot)
        path = self.directory / f"{self.name}.{place.token}{JOURNAL_SUFFIX}"
        replace_file(path, journal, flush=self.flush)
        self._switch_journal(self.head, place._replace(end=len(journal), snapshot_frame=snapshot_frame))

    def _switch_journal(self, head: RunHead, place: JournalPlace) -> None:
        """Make another journal file the run's own: the head file decides which one counts."""
        old = self.journal_path
        self.close()
        self._store_head(head, place)
        with suppress(OSError):  # if it stays, no head names it, and `expire` removes it
            old.unlink()

    def remove(self) -> None:
        """Remove the run: its head first, since a run without one doesn't exist, and then its other files."""
        self.close()
        self.head_path.unlink()
        if self.flush:
            flush_directory(self.directory)
        remove_files(self.directory, self.name)

    # The journal file

    def has_known_size(self) -> bool:
        """Whether the journal file is still the one that is open here, and as long as is known."""
        if self.descriptor is None:
            return self._size() == self.end
        found = os.fstat(self.descriptor)
        return found.st_size == self.end and found.st_nlink > 0

    def close(self) -> None:
        """Close the journal file."""
        descriptor = self.descriptor
        self.descriptor = None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)

    __del__ = close

    def _open(self, create: bool = False) -> int:
        if self.descriptor is None:
            path = self.journal_path
            flags = os.O_RDWR | getattr(os, "O_BINARY", 0)
            try:
                self.descriptor = os.open(path, flags)
            except FileNotFoundError:
                if not create:
                    raise
                self.descriptor = os.open(path, flags | os.O_CREAT, 0o600)
                self.names_are_flushed = False
        return self.descriptor

    def _size(self) -> int:
        try:
            # Most journals are looked at without being read: those aren't opened.
            return os.stat(self._journal_name if self.descriptor is None else self.descriptor).st_size
        except FileNotFoundError:  # the file is created with the first record
            return 0

    def _bytes(self, start: int, stop: int) -> bytes:
        if start >= stop:
            return b""
        try:
            return read_at(self._open(), stop - start, start)
        except FileNotFoundError as error:
            raise self._damaged(
                self.head.sequence, f"its journal {self.journal_path} doesn't exist any more"
            ) from error

    def _damaged(self, sequence: int, reason: str) -> DamagedRecord:
        return DamagedRecord(self.head.run_id, sequence, reason)
