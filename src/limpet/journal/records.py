"""Every kind of record in a journal: its number, what it holds, how it is encoded, and what applying it changes.

This is the file to open for a new kind of record: give it a number and a line in the table, a function that encodes
it, and a case in `apply_record`. A record that a newer version might not understand needs a new format version, too
(`encoding/envelope.py`). `docs/reference/record-format.md` has the table for readers of journals.

A record is an encoded list. The first four items are the same in all kinds but the last: kind, step, time, and how
many holders of the run had crashed. After those:

    STEP       node, next node or None, delta    A node completed. None: the next node isn't chosen yet.
    SNAPSHOT   fields, state                     All of the progress, so that no earlier record is needed.
    MOVE       fields[, delta]                   Anything else: a pause, an answer, a failed attempt, the end.
    MEMO       key, value                        The result of a `once()` in a node that hasn't completed.
    OPEN       opening                           Branches begin, or a graph inside of a node (see `OpenSection`).
    NESTED     path, record                      A record of the branch at `path`. Its time is when the branch began.
    BUNDLE     records …                         Not the first four, but records that were committed together: one
                                                 record to the store.
    THREAD     format, what, name, label,        A thread of another library. Nothing here applies it: see
               changes, rest                     `journal/threads/records.py`.

A delta is encoded by itself before its record, so that a value that can't be stored is refused with its path in the
state. `append_encoded` then puts it at the end of the record without encoding it twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from limpet.journal.delta import read_delta
from limpet.journal.encoding.codec import encode
from limpet.journal.open_parallel_section import Key
from limpet.journal.progress import Progress
from limpet.journal.snapshots import REPEATED, restore_snapshot, snapshot_fields

STEP = 1
SNAPSHOT = 2
MOVE = 3
MEMO = 4
OPEN = 5
NESTED = 6
BUNDLE = 7
THREAD = 8

NO_CHANGE = encode({})
"""The delta of a step that changes nothing: a node failed and another handles it, or a layer is folded."""

KINDS = (STEP, SNAPSHOT, MOVE, MEMO, OPEN, NESTED)
"""The kinds that can be applied. A bundle is taken apart first: see `unbundle`."""


def step_record(progress: Progress, delta: bytes, following: str | None) -> bytes:
    """A node completed; `progress` is already past it."""
    items = [STEP, progress.step, progress.at, progress.crashes, progress.made_by, following]
    return append_encoded(encode(items), delta)


def move_record(
    progress: Progress, changes: Mapping[str, Any], at: float, delta: bytes | None = None
) -> bytes:
    """Fields changed; `delta` is how the state changed with them."""
    record = encode([MOVE, progress.step, at, progress.crashes, changes])
    return record if delta is None else append_encoded(record, delta)


def memo_record(progress: Progress, key: str, value: Any, at: float) -> bytes:
    """A node wants a result kept before it completes. Raises `UnstorableValue`."""
    return encode([MEMO, progress.step, at, progress.crashes, key, value])


def open_record(progress: Progress, opening: bytes, at: float) -> bytes:
    """Branches begin, as described by the encoded opening."""
    return append_encoded(encode([OPEN, progress.step, at, progress.crashes]), opening)


def nested_record(root: Progress, path: Sequence[Key], began: float, record: bytes) -> bytes:
    """Something happened in a branch, as its own `record` has it. `began` is when the branch began."""
    return append_encoded(encode([NESTED, root.step, began, root.crashes, list(path)]), record)


def snapshot_record(progress: Progress, repeated: int = 0) -> bytes:
    """All of a progress, and `repeated` as its field `REPEATED`.

    Raises `UnstorableValue` with the path from the state's key on.
    """
    fields = snapshot_fields(progress)
    if repeated:
        fields[REPEATED] = repeated
    items = [SNAPSHOT, progress.step, progress.at, progress.crashes, fields]
    return append_encoded(encode(items), encode(dict(progress.state)))


def bundle(records: list[bytes]) -> bytes:
    """Records that are committed together, as one record to store."""
    return records[0] if len(records) == 1 else join_many_encoded(_BUNDLE_KIND, records)


def unbundle(body: Any) -> list[list[Any]]:
    """The decoded records of a decoded body. Raises ValueError if it holds something else."""
    records = [body]
    if type(body) is list and body[:1] == [BUNDLE]:
        records = body[1:]
    for record in records:
        if type(record) is not list or len(record) < 5 or record[0] not in KINDS:
            raise ValueError("its kind of record is unknown")
    return records


def apply_record(progress: Progress, record: list[Any]) -> None:
    """Advance a progress by one decoded record.

    Raises LookupError, TypeError, ValueError or AttributeError for a record that doesn't fit the ones before it.
    """
    kind, step, at, crashes = record[:4]
    if crashes != progress.crashes:
        progress.count_crashes(crashes)
    if kind == STEP:
        _apply_step(progress, at, record)
    elif kind == NESTED:
        _apply_nested(progress, record[4], at, record[5])
    elif kind == MOVE:
        progress.move(record[4])
        if len(record) > 5:
            progress.change_state(record[5])
    elif kind == MEMO:
        progress.memos[record[4]] = record[5]
    elif kind == OPEN:
        progress.open_section(record[4])
    else:
        restore_snapshot(progress, record[4], record[5])
    progress.step = step


def _apply_step(progress: Progress, at: float, record: list[Any]) -> None:
    if progress.section is not None:
        progress.fold_layer()
    _, _, _, _, node, following, delta = record
    if type(delta) is dict and progress.base is None:
        # Most deltas only set keys. Restoring a long journal is mostly this line.
        dict.update(progress.state, delta)
    else:
        progress.apply_delta(read_delta(delta))
    progress.complete(node, at, following)


def _apply_nested(root: Progress, path: list[Key], began: float, record: list[Any]) -> None:
    branch = root.branch_at(path)
    branch.begin_branch()
    if record[0] == STEP:
        branch.began = branch.began or began
        root.at = record[2]
    # A crash is counted in the run's own record. That of the branch only repeats the number.
    branch.crashes = record[3]
    apply_record(branch, record)
    if branch.done:
        branch.end_branch()


_BUNDLE_KIND = encode(BUNDLE)


# A delta is encoded before its record, so that a refusal names the path within the state.
# These functions put such parts into a record without decoding and encoding them again: a MessagePack array is
# a head with the number of items, and then the items.

_SHORT_HEADS = [bytes((head,)) for head in range(0x90, 0xA0)]
"""How lists of 0 to 15 items begin."""


def join_many_encoded(first: bytes, others: Sequence[bytes]) -> bytes:
    """The encoding of a list of any length, from the encodings of its first and its other items."""
    count = len(others) + 1
    return b"".join([b"\xdd", count.to_bytes(4, "big"), first, *others])


def append_encoded(array: bytes, item: bytes) -> bytes:
    """The encoding of a list of fewer than 15 items with one more item at its end."""
    assert 0x90 <= array[0] < 0x9F
    return _SHORT_HEADS[array[0] - 0x8F] + array[1:] + item
