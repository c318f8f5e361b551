"""The head of a run as Redis has it: the fields of a hash, and how to read them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence

from limpet.errors import DamagedRecord, StoreUnavailable
from limpet.journal.store import RUNNING, RunHead

CHECKSUMMED_FIELDS = (
    "v",
    "run",
    "graph",
    "status",
    "dropped",
    "snapshot",
    "fence",
    "created",
    "updated",
    "holder",
    "until",
    "tags",
    "parent",
    "signal",
    "note",
    "crashes",
    "due",
    "priority",
)
"""The fields of a head that its checksum covers, in this order."""

CHECKSUMMED_IN_FORMAT_1 = len(CHECKSUMMED_FIELDS) - 2
"""How many of them a head of format 1 has: it lacks the run's due time and priority."""

FIELDS = (*CHECKSUMMED_FIELDS, "sum", "sequence", "last")

MAX_DIGITS = 15
"""Of a number of records that can be right."""

FORMAT_1 = b"1"
FORMAT = b"2"


def head_of(run_id: str, found: Sequence[bytes | None], length: int) -> RunHead:
    """The head whose fields have the values `found`, of a run whose journal has `length` records left.

    Raises `DamagedRecord` if it isn't what was written, or if records are missing, and `StoreUnavailable` if a newer
    Limpet wrote it.
    """
    covered = len(CHECKSUMMED_FIELDS)
    if found and found[0] == FORMAT_1:
        covered = CHECKSUMMED_IN_FORMAT_1
        found = _completed(found)
    values = [value for value in found if value is not None]
    if len(values) != len(FIELDS):
        raise _damaged(run_id, "fields of it are missing")
    if checksum(values[:covered]) != values[-3]:
        raise _damaged(run_id, "its checksum doesn't match")
    if values[0] not in (FORMAT_1, FORMAT):
        raise StoreUnavailable(f"run {run_id!r} was written by a newer Limpet: upgrade limpet")
    try:
        head, dropped = _parsed(values)
    except ValueError as error:
        raise _damaged(run_id, "a field of it can't be read") from error
    if head.run_id != run_id:
        raise _damaged(run_id, "it belongs to another run")
    if dropped + length != head.sequence:
        raise DamagedRecord(
            run_id,
            min(dropped + length, head.sequence) + 1,
            f"the journal has {length} records in Redis and should have {head.sequence - dropped}; was it evicted, "
            "or changed by another program?",
        )
    return head


def likely_dropped(found: Sequence[bytes | None], length: int) -> int:
    """How many of the oldest records were deleted, as far as a damaged head tells; `length` is how many are left.

    If it tells it wrongly, the records get wrong numbers, and don't match their own checksums.
    """
    sequence = _count(found[FIELDS.index("sequence")])
    values = [value or b"" for value in found[: len(CHECKSUMMED_FIELDS)]]
    if checksum(values) != found[FIELDS.index("sum")] and sequence is not None and sequence >= length:
        return sequence - length
    return _count(found[FIELDS.index("dropped")]) or 0


def _count(value: bytes | None) -> int | None:
    if value is None or not value.isdigit() or len(value) > MAX_DIGITS:
        return None
    return int(value)


def checksum(values: Sequence[bytes]) -> bytes:
    """The value of `sum` for these values of the checksummed fields; `lua/head.lua` computes the same."""
    parts = b"".join(b"%d:%b" % (len(value), value) for value in values)
    return hashlib.sha1(parts, usedforsecurity=False).hexdigest().encode()


def _completed(found: Sequence[bytes | None]) -> list[bytes | None]:
    """The fields of a head of format 1 with those that were added later; `lua/head.lua` does the same."""
    is_running = found[CHECKSUMMED_FIELDS.index("status")] == RUNNING.encode()
    due = b"=0" if is_running else b""
    return [*found[:CHECKSUMMED_IN_FORMAT_1], due, b"0", *found[len(CHECKSUMMED_FIELDS) :]]


def _parsed(values: Sequence[bytes]) -> tuple[RunHead, int]:
    _, run, graph, status, dropped, snapshot, fence, created, updated, *rest = values
    holder, until, tags, parent, signal, note, crashes, due, priority, _, sequence, _ = rest
    head = RunHead(
        run_id=run.decode(),
        graph=graph.decode(),
        status=status.decode(),
        sequence=int(sequence),
        snapshot=int(snapshot),
        fence=int(fence),
        created=_time(created),
        updated=_time(updated),
        holder=_optional_text(holder),
        lease_until=_optional_time(until),
        tags=tuple(json.loads(tags)),
        parent=_optional_text(parent),
        signal=_optional_text(signal),
        note=note,
        crashes=int(crashes),
        due=_optional_time(due),
        priority=int(priority),
    )
    return head, int(dropped)


def _optional_text(value: bytes) -> str | None:
    return value[1:].decode() if value else None


def _optional_time(value: bytes) -> float | None:
    return _time(value[1:]) if value else None


def _time(value: bytes) -> float:
    number = float(value)
    if math.isnan(number):
        raise ValueError("a time that is not a number")
    return number


def _damaged(run_id: str, reason: str) -> DamagedRecord:
    return DamagedRecord(run_id, 0, f"its head in Redis isn't what was written: {reason}")
