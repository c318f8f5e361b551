"""The head of a run as Redis has it: the fields of a hash, and how to read them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence

from limpet.defaults import QUEUE
from limpet.errors import DamagedRecord, StoreUnavailable
from limpet.journal.encoding.codec import encode
from limpet.journal.inbox import CANCEL
from limpet.journal.store import COMPLETED, RUNNING, RunHead

CHECKSUMMED_FIELDS: tuple[str, ...] = (
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
    "note",
    "crashes",
    "due",
    "priority",
    "posted",
    "waiting",
    "output",
    "node",
    "error",
    "waits_for",
    "plan",
    "queue",
)
"""The fields of a head that its checksum covers, in this order."""

FIELDS = (*CHECKSUMMED_FIELDS, "sum", "sequence", "last")

SIGNAL = "signal"
"""A field of earlier formats: a request to cancel. It is a post now."""

FOUND_FIELDS = (*FIELDS, SIGNAL)
"""What the scripts read of a head."""

_PLACE = CHECKSUMMED_FIELDS.index("note")
OLDER_FIELDS = (
    *CHECKSUMMED_FIELDS[:_PLACE],
    SIGNAL,
    *CHECKSUMMED_FIELDS[_PLACE : CHECKSUMMED_FIELDS.index("posted")],
)
"""The fields that the checksum of a head of format 2 covers."""

CHECKSUMMED_BEFORE = {b"1": len(OLDER_FIELDS) - 2, b"2": len(OLDER_FIELDS)}
"""How many of them the checksum covers in an earlier format. The first had neither due time nor priority."""

CHECKSUMMED_IN_FORMAT_3 = CHECKSUMMED_FIELDS.index("plan")
"""How many of the present fields the checksum covers in a format that had no queues."""

COVERED_BEFORE = {
    **{version: OLDER_FIELDS[:count] for version, count in CHECKSUMMED_BEFORE.items()},
    b"3": CHECKSUMMED_FIELDS[:CHECKSUMMED_IN_FORMAT_3],
}
"""The fields that the checksum covers, for each earlier format."""

MAX_DIGITS = 15
"""Of a number of records that can be right."""

FORMAT = b"4"

CANCEL_BODY = encode({"kind": CANCEL})
"""The body of the post that a waiting signal becomes."""


def head_of(run_id: str, found: Sequence[bytes | None], length: int) -> RunHead:
    """The head whose fields have the values `found`, of a run whose journal has `length` records left.

    Raises `DamagedRecord` if it isn't what was written, or if records are missing, and `StoreUnavailable` if a newer
    Limpet wrote it.
    """
    if found[0] in COVERED_BEFORE:
        found = _brought_up_to_date(run_id, found)
    values = [value for value in found[: len(FIELDS)] if value is not None]
    if len(values) != len(FIELDS):
        raise _damaged(run_id, "fields of it are missing")
    if checksum(values[: len(CHECKSUMMED_FIELDS)]) != values[-3]:
        raise _damaged(run_id, "its checksum doesn't match")
    if values[0] != FORMAT:
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


def _brought_up_to_date(run_id: str, found: Sequence[bytes | None]) -> list[bytes | None]:
    """The fields of a head of an earlier format as it has them now; `lua/head.lua` does the same."""
    fields = dict(zip(FOUND_FIELDS, found, strict=True))
    version = fields["v"] or b""
    covered = [fields[name] or b"" for name in COVERED_BEFORE[version]]
    if checksum(covered) != fields["sum"]:
        raise _damaged(run_id, "its checksum doesn't match")
    status = fields["status"]
    fields |= {"v": FORMAT, "plan": b"", "queue": QUEUE.encode()}
    if version in CHECKSUMMED_BEFORE:
        cancel_waits = fields[SIGNAL] != b"" and status != COMPLETED.encode()
        posts = b"1" if cancel_waits else b"0"
        fields |= {"posted": posts, "waiting": posts, "output": b"0"}
        fields |= {"node": b"", "error": b"", "waits_for": b""}
    if version == b"1":
        fields |= {"due": b"=0" if status == RUNNING.encode() else b"", "priority": b"0"}
    fields["sum"] = checksum([fields[name] or b"" for name in CHECKSUMMED_FIELDS])
    return list(fields.values())


def _parsed(values: Sequence[bytes]) -> tuple[RunHead, int]:
    _, run, graph, status, dropped, snapshot, fence, created, updated, *rest = values
    holder, until, tags, parent, note, crashes, due, priority, *rest = rest
    posted, waiting, output, node, error, waits_for, plan, queue, _, sequence, _ = rest
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
        note=note,
        crashes=int(crashes),
        due=_optional_time(due),
        priority=int(priority),
        posted=int(posted),
        taken=int(posted) - int(waiting),
        output=int(output),
        node=node.decode(),
        error=error.decode(),
        waits_for=waits_for.decode(),
        plan=plan.decode(),
        queue=queue.decode(),
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
