"""Threads of other libraries: runs whose records are another library's checkpoints, which Limpet only keeps.

A thread has a head and a journal like any run: its records are in our envelopes, and a store knows no difference.
What tells it apart is the plan in its head, which is the format of its records: `langgraph:1`. It has no lease and no
due time, and its status is `paused`. So no worker takes it, and nothing expires it unless paused runs are to expire.

Each record begins like all others, with its kind, a step, a time and a number of crashes (0). After those:

    format    as in the head, so that a thread is recognised by its journal alone
    what      CHECKPOINT, WRITES or RESTART. What is before a RESTART counts no longer
    name      the id of the checkpoint
    label     how it was made, in the other library's words
    changes   by key, what the checkpoint changed
    rest      anything else. Only the integration for the library understands it, and the changes
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from limpet.errors import DamagedRecord, LimpetError
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.encoding.envelope import Envelope
from limpet.journal.reader import Checkpoint, check_complete
from limpet.journal.record_shapes import is_count, is_time
from limpet.journal.records import BUNDLE, THREAD
from limpet.journal.store import PAUSED, NewRun, RunHead, Tail
from limpet.journal.threads.kinds import kind_of

CHECKPOINT: Final = "checkpoint"
WRITES: Final = "writes"
RESTART: Final = "restart"
_KINDS: Final = (CHECKPOINT, WRITES, RESTART)


class ThreadRecord(NamedTuple):
    """One thing that happened in a thread: see the module. `step` is of no meaning but for a checkpoint."""

    step: int
    at: float
    format: str
    what: str
    name: str
    label: str
    changes: Mapping[str, Any]
    rest: list[Any]


def encode_thread_record(record: ThreadRecord) -> bytes:
    """A record as bytes, to be stored alone or in a bundle."""
    return encode([THREAD, record.step, record.at, 0, *record[2:]])


def read_thread(tail: Tail) -> Iterator[tuple[int, ThreadRecord]]:
    """The records of a thread with their sequence numbers. Raises `DamagedRecord`."""
    envelope = Envelope(tail.head.run_id)
    for number, data in enumerate(tail.records, tail.first):
        for record in _read_stored(envelope, number, data):
            yield number, record


def _read_stored(envelope: Envelope, number: int, data: bytes) -> list[ThreadRecord]:
    body = envelope.open(number, data)
    try:
        return _decoded(body)
    except LimpetError:
        raise
    except ValueError as problem:
        raise DamagedRecord(envelope.run_id, number, str(problem)) from problem


def _decoded(body: bytes) -> list[ThreadRecord]:
    found = decode(body)
    records = [found]
    if type(found) is list and found[:1] == [BUNDLE]:
        records = found[1:]
    if not records or not all(map(_has_shape, records)):
        raise ValueError("it isn't the record of a thread")
    return [ThreadRecord(*record[1:3], *record[4:]) for record in records]


def _has_shape(record: Any) -> bool:
    """Whether a record is one of a thread, as far as that can be known without its library."""
    if type(record) is not list or len(record) != 10 or record[0] != THREAD:
        return False
    _, step, at, crashes, *parts, changes, rest = record
    return (
        is_count(step)
        and is_time(at)
        and crashes == 0
        and all(type(part) is str for part in parts)
        and bool(kind_of(parts[0]))
        and parts[1] in _KINDS
        and type(changes) is dict
        and all(type(key) is str for key in changes)
        and type(rest) is list
    )


def thread_checkpoints(tail: Tail) -> list[Checkpoint]:
    """The checkpoints of a thread, in the order in which they were saved. Raises `DamagedRecord`."""
    found: dict[str, Checkpoint] = {}
    for _, record in read_thread(tail):
        if record.what == RESTART:
            found.clear()
        elif record.what == CHECKPOINT:
            found.pop(record.name, None)
            found[record.name] = _checkpoint(tail.head.run_id, record)
    check_complete(tail)
    return list(found.values())


def _checkpoint(run_id: str, record: ThreadRecord) -> Checkpoint:
    return Checkpoint(
        run_id=run_id,
        step=record.step,
        node=record.label,
        timestamp=record.at,
        next="",
        phase="",
        status=PAUSED,
        reason=None,
        keys=tuple(record.changes),
        metadata={"checkpoint_id": record.name},
    )


def bodies_of_thread(tail: Tail) -> list[bytes]:
    """The bodies of a thread's records. Raises `DamagedRecord`."""
    thread_checkpoints(tail)
    envelope = Envelope(tail.head.run_id)
    return [envelope.open(number, data) for number, data in enumerate(tail.records, tail.first)]


def read_new_thread(run: NewRun) -> None:
    """Check a thread that is to be created with these records. Raises `DamagedRecord` for what isn't a thread's."""
    if run.status != PAUSED or not run.records:
        raise DamagedRecord(run.run_id, 0, f"a thread is {PAUSED} and has records")
    head = RunHead(run.run_id, run.graph, run.status, len(run.records), 1, 1, 0.0, 0.0, plan=run.labels.plan)
    for number, record in read_thread(Tail(head, 1, list(run.records))):
        if record.format != run.labels.plan:
            raise DamagedRecord(run.run_id, number, "it has another format than its run")


def format_of_journal(run_id: str, records: Iterable[tuple[int, Any]]) -> str:
    """The format of a thread, by the first of its records that can be read; "" if these are no thread's."""
    envelope = Envelope(run_id)
    for number, data in records:
        try:
            return _read_stored(envelope, number, data)[0].format
        except (LimpetError, TypeError):
            continue
    return ""
