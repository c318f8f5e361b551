"""One run in files: its head, its journal, and what this process knows of both.

The journal file only grows. A commit is one frame at its end, which also says how the head changes, if it does: so a
commit is whole when its frame is, and there is nothing to be done in two places. The head file, which is replaced
whole, has what changes without a commit (who holds the run, a signal, what was dropped), and how far into the journal
it knows; whoever reads it goes on from there. All of this happens under the run's lock.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from limpet.errors import DamagedRecord, RunNotFound
from limpet.journal.store import RunHead
from limpet.stores.atomic_files import flush_directory, replace_file, write_all
from limpet.stores.files.frames import (
    HEADER,
    MIXED,
    Place,
    Torn,
    frame,
    frames,
    head_file,
    head_of,
    read_head,
    records_of,
    seed_of,
)
from limpet.stores.heads import prunable

HEAD, JOURNAL = ".head", ".log"
WORTH_REWRITING = 64 * 1024
"""Bytes of dropped records from which on a journal is rewritten without them, if they are half of it."""


@lru_cache(4096)
def name_of(run_id: str) -> str:
    """What the files of a run are called: readable, safe, and no other's, whatever the id and the file system."""
    from hashlib import sha256

    told = re.sub(r"[^A-Za-z0-9_-]", "_", run_id)[:40]
    return f"{told}.{sha256(run_id.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


class RunFiles:
    """A run that is known here. `head` is as it is now; `end` is where the next frame goes.

    Find one with `find`; begin one with `begin`. `fresh` is False once somebody else may have written.
    """

    __slots__ = (
        "descriptor",
        "directory",
        "end",
        "flush",
        "fresh",
        "head",
        "place",
        "seed",
        "stored",
        "told",
    )

    def __init__(self, directory: Path, flush: bool, head: RunHead, place: Place) -> None:
        self.directory, self.flush = directory, flush
        self.told = name_of(head.run_id)
        self.descriptor: int | None = None
        self.fresh = True
        self.stored = b""
        self._stand(head, place)

    def _stand(self, head: RunHead, place: Place) -> None:
        self.head, self.place, self.end = head, place, place.end
        self.seed = seed_of(head.run_id, place.token)

    @property
    def head_path(self) -> Path:
        return self.directory / f"{self.told}{HEAD}"

    @property
    def journal_path(self) -> Path:
        return self.directory / f"{self.told}.{self.place.token}{JOURNAL}"

    def refresh(self) -> None:
        """Take in what others have written. Raises `RunNotFound`, `DamagedRecord`."""
        if self.descriptor is not None and os.fstat(self.descriptor).st_nlink == 0:
            self.close()
        stored = stored_head(self.directory, self.head.run_id)
        if stored != self.stored:
            head, place = parsed(self.head.run_id, stored)
            if place.token != self.place.token:
                self.close()
            self.stored = stored
            self._stand(head, place)
        self._catch_up()
        self.fresh = True

    def _catch_up(self) -> None:
        """Read the frames that are newer than what is known, and cut off what a killed writer left."""
        size = self._size()
        if size == self.end:
            return
        if size < self.end:
            raise self._damaged(self.head.sequence, f"its journal ends at byte {size:,} of {self.end:,}")
        data, base = self._bytes(self.end, size), self.end
        try:
            for each in frames(data, base, self.head.sequence + 1, self.seed):
                head = head_of(each.body(data, base), self.head.run_id) if each.kind == MIXED else None
                self._advance(each.start - HEADER, each.records, head, each.end)
        except Torn as torn:
            self._cut(torn.offset, size)
        except ValueError as problem:
            raise self._damaged(self.head.sequence + 1, str(problem)) from problem

    def _cut(self, offset: int, size: int) -> None:
        import logging

        logging.getLogger("limpet.stores").warning(
            "run %s: cut off %d bytes that a writer left unfinished at the end of %s",
            self.head.run_id, size - offset, self.journal_path,
        )  # fmt: skip
        os.ftruncate(self._opened(), offset)
        if self.flush:
            os.fsync(self._opened())

    def _advance(self, offset: int, count: int, head: RunHead | None, end: int) -> None:
        """A frame of so many records, at this offset, is part of the journal."""
        sequence, before = self.head.sequence + count, self.head.snapshot
        self.head = (self.head if head is None else head)._replace(sequence=sequence)
        if self.head.snapshot != before:
            self.place = self.place._replace(whole=offset)
        self.end = end

    def write(self, records: list[bytes], head: RunHead | None) -> bytes:
        """Write a frame at the end, without flushing it or counting it in. Raises `ValueError`, `OSError`."""
        made = frame(self.seed, self.head.sequence + 1, records, head)
        _write_at(self._opened(create=True), made, self.end)
        return made

    def accept(self, made: bytes, count: int, head: RunHead | None) -> None:
        """The frame that was written is to stay."""
        self._advance(self.end, count, head, self.end + len(made))

    def undo(self) -> None:
        """Take back what was written and not accepted. What can't be is cut off when it is next seen."""
        self.fresh = False
        if self.descriptor is not None:
            with suppress(OSError):
                os.ftruncate(self.descriptor, self.end)

    def sync(self) -> None:
        """Have what was written reach the disk, if that is this store's level."""
        if self.flush:
            os.fsync(self._opened())

    def replace_head(self, head: RunHead) -> None:
        """Make this the head, whole or not at all."""
        self._put(head, self.place._replace(end=self.end))

    def _put(self, head: RunHead, place: Place) -> None:
        content = head_file(head, place)
        replace_file(self.head_path, content, flush=self.flush)
        self.stored = content
        self._stand(head, place)

    def purge(self, head: RunHead) -> None:
        """Drop the journal and make this the head, in one."""
        self._move_to(head, Place(_token(), dropped=head.sequence))

    def drop(self, before: int) -> int:
        """Drop the records below a number; returns how many. They leave the file when it is worth it."""
        gone = prunable(self.head, self.place.dropped, before)
        if gone == 0:
            return 0
        dropped = self.place.dropped + gone
        begin = self._offset_of(dropped + 1)
        if begin < WORTH_REWRITING or begin * 2 < self.end:
            self._put(self.head, self.place._replace(dropped=dropped, begin=begin, end=self.end))
        else:
            self._rewrite(dropped)
        return gone

    def _rewrite(self, dropped: int) -> None:
        """Put what is left of the journal into a file of its own, and let go of the old one."""
        records = self.records(dropped + 1, self.head.sequence)
        place = Place(_token(), dropped=dropped)
        seed = seed_of(self.head.run_id, place.token)
        made, whole, at = [], 0, 0
        for number, record in enumerate(records, dropped + 1):
            whole = at if number == self.head.snapshot else whole
            made.append(frame(seed, number, [record], None))
            at += len(made[-1])
        path = self.directory / f"{self.told}.{place.token}{JOURNAL}"
        replace_file(path, b"".join(made), flush=self.flush)
        self._move_to(self.head, place._replace(end=at, whole=whole))

    def _move_to(self, head: RunHead, place: Place) -> None:
        old = self.journal_path
        self.close()
        self._put(head, place)
        with suppress(OSError):
            old.unlink()

    def records(self, first: int, last: int) -> list[bytes]:
        """These records. Raises `DamagedRecord`."""
        if first > last:
            return []
        place = self.place
        early = first < self.head.snapshot or not self.head.snapshot
        base = place.begin if early else place.whole
        data = self._bytes(base, self.end)
        found: list[bytes] = []
        number = None
        try:
            for each in frames(data, base, self._first_at(data, base), self.seed):
                number = each.first
                if each.first + each.records <= first:
                    continue
                if each.first > last:
                    break
                number = max(each.first, first)
                records = records_of(each.kind, each.body(data, base))
                found += records[max(first - each.first, 0) : last - each.first + 1]
                number = each.first + each.records
                if number > last:
                    break
        except (ValueError, Torn) as problem:
            reason = "it is cut off" if isinstance(problem, Torn) else str(problem)
            raise self._damaged(number or first, reason) from problem
        if len(found) != last - first + 1:
            raise self._damaged(first + len(found), "it isn't there")
        return found

    def _first_at(self, data: bytes, base: int) -> int:
        """The number of the first record of the frame at `base`: as the frame says, if it is one."""
        return int.from_bytes(data[8:16], "big")

    def _offset_of(self, number: int) -> int:
        """Where the frame begins that holds a record."""
        base = self.place.begin
        data = self._bytes(base, self.end)
        try:
            for each in frames(data, base, self._first_at(data, base), self.seed):
                if each.first <= number < each.first + each.records:
                    return each.start - HEADER
        except (ValueError, Torn) as problem:
            raise self._damaged(number, str(problem)) from problem
        return self.end

    def remove(self) -> None:
        """Remove the run, at once, and then its journal."""
        self.close()
        self.head_path.unlink()
        if self.flush:
            flush_directory(self.directory)
        for path in self.directory.glob(f"{self.told}.*{JOURNAL}"):
            with suppress(OSError):
                path.unlink()

    def is_in_place(self) -> bool:
        """Whether the journal file is still the one by that name, and as long as is known here."""
        if self.descriptor is None:
            return self._size() == self.end
        found = os.fstat(self.descriptor)
        return found.st_size == self.end and found.st_nlink > 0

    def close(self) -> None:
        """Let go of the journal file."""
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)

    __del__ = close

    def _opened(self, create: bool = False) -> int:
        if self.descriptor is None:
            path, binary = self.journal_path, getattr(os, "O_BINARY", 0)
            try:
                self.descriptor = os.open(path, os.O_RDWR | binary)
            except FileNotFoundError:
                if not create:
                    raise
                self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | binary, 0o600)
                if self.flush:
                    flush_directory(self.directory)
        return self.descriptor

    def _size(self) -> int:
        try:
            return os.fstat(self._opened()).st_size
        except FileNotFoundError:  # it comes with the first record
            return 0

    def _bytes(self, start: int, stop: int) -> bytes:
        if start >= stop:
            return b""
        try:
            return _read_at(self._opened(), stop - start, start)
        except FileNotFoundError as error:
            raise self._damaged(self.head.sequence, f"its journal {self.journal_path} is gone") from error

    def _damaged(self, sequence: int, reason: str) -> DamagedRecord:
        return DamagedRecord(self.head.run_id, sequence, reason)


def find(directory: Path, flush: bool, run_id: str) -> RunFiles:
    """A run, as it is now. Raises `RunNotFound`, `DamagedRecord`."""
    stored = stored_head(directory, run_id)
    found = RunFiles(directory, flush, *parsed(run_id, stored))
    found.stored = stored
    try:
        found._catch_up()
    except BaseException:
        found.close()
        raise
    return found


def begin(directory: Path, flush: bool, head: RunHead, records: list[bytes]) -> RunFiles:
    """A new run with its first records. It is there when its head is."""
    run = RunFiles(directory, flush, head._replace(sequence=0), Place(_token()))
    try:
        if records:
            made = run.write(records, None)
            run.sync()
            run._advance(0, len(records), None, len(made))
        run.replace_head(head._replace(sequence=len(records)))
    except BaseException:
        run.close()
        with suppress(OSError):
            run.journal_path.unlink()
        raise
    return run


def stored_head(directory: Path, run_id: str) -> bytes:
    """The bytes of a run's head file. Raises `RunNotFound`."""
    try:
        return (directory / f"{name_of(run_id)}{HEAD}").read_bytes()
    except FileNotFoundError:
        raise RunNotFound(run_id) from None


def parsed(run_id: str | None, stored: bytes) -> tuple[RunHead, Place]:
    """What a head file says, of this run if it is given. Raises `DamagedRecord`."""
    try:
        head, place = read_head(stored)
        if run_id is not None and head.run_id != run_id:
            raise ValueError(f"its head file is that of run {head.run_id!r}")
    except (ValueError, TypeError, IndexError) as problem:
        raise DamagedRecord(run_id or "?", 0, str(problem)) from problem
    return head, place


def _token() -> str:
    return os.urandom(6).hex()


def _write_at(descriptor: int, data: bytes, offset: int) -> None:
    os.lseek(descriptor, offset, os.SEEK_SET)
    write_all(descriptor, data)


def _read_at(descriptor: int, size: int, offset: int) -> bytes:
    os.lseek(descriptor, offset, os.SEEK_SET)
    parts = []
    while size > 0 and (part := os.read(descriptor, size)):
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
