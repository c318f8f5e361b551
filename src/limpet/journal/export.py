"""A run as one file, to be moved from any store to any other.

    bytes 0-11    "limpet-run"
    byte 12       format version
    bytes 13-20   how many bytes the contents have, big-endian
    bytes 21-52   SHA-256 over bytes 0-20 and the contents
    bytes 53-     the contents

These 53 bytes mean the same in every version. The contents are one encoded dict: `run_id`, `graph`, `status`, `tags`,
`parent`, `note`, when the run was `created` and `updated`, the version of `limpet` that wrote the file, `records`,
and `priority`, which older files don't have. A thread of another library has its `plan`, too. When the run was due
isn't among them: an imported run waits until a caller resumes it. The records are as in a store, in envelopes for the
run's id and numbered from 1; the first is a snapshot. So each has its own format version and checksum, and code that
reads old records reads old files.
"""

from __future__ import annotations

from hashlib import sha256
from struct import Struct
from typing import NamedTuple, Self

from limpet.defaults import MAX_IMPORT_RATIO, MAX_IMPORTED, QUEUE
from limpet.errors import DamagedRecord, LimpetError, StoreError, UnsupportedFormat
from limpet.journal.encoding.codec import decode, decode_as_stored, encode
from limpet.journal.encoding.envelope import Envelope, max_unpacked
from limpet.journal.progress import Progress
from limpet.journal.reader import StoredTail, ViewedTail, history, read_progress, read_records
from limpet.journal.record_shapes import decode_records
from limpet.journal.records import SNAPSHOT, bundle
from limpet.journal.store import COMPLETED, STATUSES, Labels, NewRun, RunHead, Tail
from limpet.journal.threads.kinds import kind_of
from limpet.journal.threads.records import bodies_of_thread, read_new_thread
from limpet.journal.verify import head_damage
from limpet.version import VERSION as LIMPET

VERSION = 1
"""The format that files are written in."""


class ExportedRun(NamedTuple):
    """A run outside of any store: its head, and its records in envelopes for `run_id`, numbered from 1."""

    run_id: str
    graph: str
    status: str
    tags: list[str]
    parent: str | None
    note: bytes
    created: float
    updated: float
    limpet: str
    records: list[bytes]
    priority: int = 0
    queue: str = QUEUE
    plan: str = ""
    """Of a thread of another library, the format of its records."""

    @classmethod
    def from_tail(cls, tail: Tail) -> Self:
        """All that a store has of a run. Raises `DamagedRecord`: a damaged run isn't exported.

        The classes of its values needn't be known here: they are copied as they are stored.
        """
        head = tail.head
        bodies = []
        if head.kind:
            bodies = bodies_of_thread(tail)
        elif head.snapshot:
            bodies = _bodies_from_snapshot(tail)
        envelope = Envelope(head.run_id)
        return cls(
            run_id=head.run_id,
            graph=head.graph,
            status=head.status,
            tags=list(head.tags),
            parent=head.parent,
            note=head.note,
            created=head.created,
            updated=head.updated,
            limpet=LIMPET,
            records=[envelope.close(number, body) for number, body in enumerate(bodies, 1)],
            priority=head.priority,
            queue=head.queue,
            plan=head.plan if head.kind else "",
        )

    @classmethod
    def from_bytes(cls, data: bytes, source: str) -> Self:
        """The run in a file; `source` names the file in errors.

        Raises `StoreError` if the file isn't what was written, `UnsupportedFormat` if a newer Limpet wrote it.
        """
        if not data.startswith(_MAGIC):
            unknown = StoreError(f"{source} is not an exported run")
            raise unknown.with_advice("Runs(store).export() writes such files", "export")
        if len(data) < _SIZE:
            raise _damaged(source, f"it has {len(data)} bytes and at least {_SIZE} were written")
        _, version, length = _START.unpack_from(data)
        contents = data[_SIZE:]
        if len(contents) != length:
            raise _damaged(source, f"it has {len(data)} bytes and {length + _SIZE} were written")
        if sha256(data[: _START.size] + contents).digest() != data[_START.size : _SIZE]:
            raise _damaged(source, "its checksum doesn't match its contents")
        if version != VERSION:
            raise UnsupportedFormat(
                f"{source} has format version {version}: a newer Limpet wrote it; upgrade to read it"
            )
        try:
            values = decode(contents)
            exported = cls(**{name: values[name] for name in cls._fields if name in values})
            exported._check_types()
        except LimpetError:
            raise
        except (LookupError, TypeError, ValueError, RecursionError) as problem:
            raise _damaged(source, f"its contents are invalid: {problem}") from problem
        return exported

    def head(self) -> RunHead:
        """The head of the run, as far as the file has it."""
        count = len(self.records)
        return RunHead(
            self.run_id,
            self.graph,
            self.status,
            count,
            min(count, 1),
            1,
            0.0,
            0.0,
            note=self.note,
            plan=self.plan,
        )

    def with_record(self, body: bytes) -> Self:
        """The same with one more record."""
        closed = Envelope(self.run_id).close(len(self.records) + 1, body)
        return self._replace(records=[*self.records, closed])

    def to_bytes(self) -> bytes:
        """The file."""
        contents = encode(self._asdict())
        start = _START.pack(_MAGIC, VERSION, len(contents))
        return start + sha256(start + contents).digest() + contents

    def to_new_run(self, run_id: str) -> NewRun:
        """The run to create in another store, under this id.

        Raises `DamagedRecord` if it couldn't be read there, and `UnsupportedFormat` if its records unpack to more
        than is good for this process: a file may come from anywhere.
        """
        old_envelope = Envelope(self.run_id)
        new_envelope = Envelope(run_id)
        stored = sum(map(len, self.records))
        left = max_unpacked(max(MAX_IMPORTED, MAX_IMPORT_RATIO * stored))
        records = []
        for number, data in enumerate(self.records, 1):
            body = old_envelope.open(number, data, left)
            left -= max(len(body) - len(data), 0)
            if run_id != self.run_id and not kind_of(self.plan):
                body = _with_run_id(self.run_id, number, body, run_id)
            records.append(new_envelope.close(number, body))
        return NewRun(
            run_id,
            self.graph,
            records,
            self.status,
            tags=tuple(self.tags),
            parent=self.parent,
            note=self.note,
            priority=self.priority,
            labels=Labels(plan=self.plan),
            queue=self.queue,
        )

    def _check_types(self) -> None:
        texts = [self.run_id, self.graph, self.limpet, self.plan, *self.tags]
        if self.parent is not None:
            texts.append(self.parent)
        if type(self.tags) is not list or not all(type(text) is str for text in texts):
            raise ValueError("a field that is a str holds something else")
        if type(self.status) is not str or self.status not in STATUSES:
            raise ValueError(f"its status is {self.status!r}")
        if type(self.records) is not list or not all(
            type(data) is bytes for data in (self.note, *self.records)
        ):
            raise ValueError("its records aren't bytes")
        if type(self.priority) is not int or not -(2**63) <= self.priority < 2**63:
            raise ValueError("its priority isn't a number of at most 64 bits")
        if not isinstance(self.queue, str) or not self.queue:
            raise ValueError("its queue has no name")
        if self.plan and not kind_of(self.plan):
            raise ValueError("its plan isn't the format of a thread")


def read_new_run(run: NewRun) -> Progress | None:
    """How far a run to be created has come, by all of its records; None for one without records, and for a thread.

    Raises `DamagedRecord` for anything that would be damage in a store: nothing that reads runs may meet it later.
    Values of classes that aren't known here are `UnknownValue`s.
    """
    if kind_of(run.labels.plan):
        read_new_thread(run)
        _check_head(RunHead(run.run_id, run.graph, run.status, 0, 0, 1, 0.0, 0.0, note=run.note), None)
        return None
    count = len(run.records)
    head = RunHead(run.run_id, run.graph, run.status, count, min(count, 1), 1, 0.0, 0.0, note=run.note)
    progress = None
    if not count and run.status != COMPLETED:
        raise DamagedRecord(run.run_id, 1, f"it is missing, as all records are, and the run is {run.status}")
    if count:
        tail = ViewedTail(head, 1, list(run.records))
        history(tail)
        progress = read_progress(tail)
        if progress.run_id != run.run_id:
            raise DamagedRecord(run.run_id, 1, "it is that of another run")
        if progress.graph != run.graph:
            raise DamagedRecord(run.run_id, 1, "it is that of a run of another graph")
    _check_head(head, progress)
    return progress


def _check_head(head: RunHead, progress: Progress | None) -> None:
    for damage in head_damage(head, progress):
        raise DamagedRecord(head.run_id, 0, damage.reason)


def _bodies_from_snapshot(tail: Tail) -> list[bytes]:
    """The bodies of the records from the first snapshot on."""
    snapshots = (number for number, record in read_records(StoredTail(*tail)) if record[0] == SNAPSHOT)
    first = next(snapshots, tail.first)
    records = tail.records[first - tail.first :]
    read_progress(StoredTail(tail.head, first, records))  # raises if the run couldn't be resumed from them
    envelope = Envelope(tail.head.run_id)
    return [envelope.open(number, data) for number, data in enumerate(records, first)]


def _with_run_id(old_id: str, number: int, body: bytes, run_id: str) -> bytes:
    """The same record for a run of another id. Only snapshots hold the id of their run."""
    try:
        records = decode_records(body, decode_as_stored)
    except LimpetError:
        raise
    except ValueError as problem:
        raise DamagedRecord(old_id, number, str(problem)) from problem
    for record in records:
        if record[0] == SNAPSHOT:
            record[4]["run_id"] = run_id
    return bundle([encode(record) for record in records])


def _damaged(source: str, reason: str) -> StoreError:
    return StoreError(f"{source} is damaged: {reason}. Nothing was imported; export the run again")


_MAGIC = b"limpet-run"
_START = Struct(">12sBQ")
_SIZE = _START.size + 32
