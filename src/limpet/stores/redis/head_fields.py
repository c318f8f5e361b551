"""The ways between a head as Redis has it and as the journal knows it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence

from limpet.errors import DamagedRecord, StoreUnavailable
from limpet.journal.store import RUNNING, Commit, OnSignal, RunHead
from limpet.stores.redis.scripts import FIELDS, MOST_AT_ONCE, SEALED, SEALED_BEFORE

BEFORE, FORMAT = b"1", b"2"


def head_of(run_id: str, found: Sequence[bytes | None], length: int) -> RunHead:
    """The head whose fields were `found`, of a run whose journal has `length` records left.

    Raises `DamagedRecord` where it isn't what was written, or where records are missing.
    """
    sealed = len(SEALED)
    if found and found[0] == BEFORE:
        sealed, found = SEALED_BEFORE, _completed(found)
    values = [value for value in found if value is not None]
    if len(values) != len(FIELDS):
        raise _damaged(run_id, "fields of it are missing")
    if checksum(values[:sealed]) != values[-3]:
        raise _damaged(run_id, "its checksum doesn't match")
    if values[0] not in (BEFORE, FORMAT):
        raise StoreUnavailable(f"run {run_id!r} was written by a newer Limpet: upgrade limpet")
    try:
        head, dropped = _parsed(values)
    except ValueError as error:
        raise _damaged(run_id, "its fields make no sense") from error
    if head.run_id != run_id:
        raise _damaged(run_id, "it is that of another run")
    if dropped + length != head.sequence:
        raise DamagedRecord(
            run_id,
            min(dropped + length, head.sequence) + 1,
            f"the journal has {length} records in Redis and should have {head.sequence - dropped}; was it evicted, "
            "or changed by another program?",
        )
    return head


def checksum(values: Sequence[bytes]) -> bytes:
    """What `sum` is for these values of the sealed fields; the scripts make the same."""
    parts = b"".join(b"%d:%b" % (len(value), value) for value in values)
    return hashlib.sha1(parts, usedforsecurity=False).hexdigest().encode()


def changes_of(commit: Commit, lasting: bytes) -> list[bytes]:
    """What the script `APPEND` is told besides the commit's place: that nothing changes but the records, or what."""
    if (
        commit.snapshot == 0
        and commit.status is None
        and commit.note is None
        and not commit.purge
        and commit.on_signal is not OnSignal.CLEAR
        and 0 < len(commit.records) <= MOST_AT_ONCE
    ):
        return [b""]
    return [
        b"whole",
        b"%d" % commit.snapshot,
        maybe(commit.status),
        b"" if commit.note is None else b"=" + commit.note,
        b"1" if commit.purge else b"0",
        lasting,
        time_of(commit.due),
    ]


def maybe(text: str | None) -> bytes:
    """A text that may be missing, as the scripts take it."""
    return b"" if text is None else b"=" + text.encode()


def time_of(moment: float | None) -> bytes:
    """A time that may be missing, as the scripts take it."""
    return b"" if moment is None else b"=%r" % float(moment)


def _completed(found: Sequence[bytes | None]) -> list[bytes | None]:
    """The fields of a head of format 1, with those that came later as they are for it; the scripts do the same."""
    due = b"=0" if found[SEALED.index("status")] == RUNNING.encode() else b""
    return [*found[:SEALED_BEFORE], due, b"0", *found[len(SEALED) :]]


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
        holder=_maybe(holder),
        lease_until=_time(until[1:]) if until else None,
        tags=tuple(json.loads(tags)),
        parent=_maybe(parent),
        signal=_maybe(signal),
        note=note,
        crashes=int(crashes),
        due=_time(due[1:]) if due else None,
        priority=int(priority),
    )
    return head, int(dropped)


def _maybe(value: bytes) -> str | None:
    return value[1:].decode() if value else None


def _time(value: bytes) -> float:
    number = float(value)
    if math.isnan(number):
        raise ValueError("no time")
    return number


def _damaged(run_id: str, reason: str) -> DamagedRecord:
    return DamagedRecord(run_id, 0, f"its head in Redis isn't what was written: {reason}")
