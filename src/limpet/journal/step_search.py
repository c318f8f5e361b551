"""Finding a step in a long journal without reading all of it.

Later records are of later steps. So the last record of a step is found by halving, and the snapshot that it needs is
looked for from there backwards: snapshots are written at least as often as reading from the one before would cost.
Where the journal isn't in this order, because checkpoints were deleted or records are damaged, a caller that doesn't
find its step in the result reads the whole journal.
"""

from __future__ import annotations

from typing import Final

from limpet.errors import DamagedRecord
from limpet.journal.reader import StoredTail, read_records
from limpet.journal.records import SNAPSHOT
from limpet.journal.store import RunHead, Store, Tail

LONG_JOURNAL: Final = 1000
"""Records from which on searching is quicker than reading all of them."""

FIRST_PART: Final = 128
"""Records that are read at once while a snapshot is looked for. Each further part is twice as large."""


def tail_around(store: Store, run_id: str, step: int, following: int = 0) -> Tail | None:
    """The records from a snapshot up to the end of a step, and then some more: `following` ones, if there are.

    Step -1 is before the first. None for a short journal, and for one in which the step can't be found in this way.
    Raises `RunNotFound`, and what keeps the store from being read.
    """
    try:
        head = store.head(run_id)
        if head.sequence < LONG_JOURNAL or type(step) is not int:
            return None
        last = _last_record(store, head, step)
        if last == 0:
            found = store.read(run_id, 1, following)
        else:
            first = _snapshot_before(store, head, last)
            found = store.read(run_id, first, min(last + following, head.sequence))
    except DamagedRecord:
        return None
    if not found.records:
        return None
    return found


def _last_record(store: Store, head: RunHead, step: int) -> int:
    """The number of the last record of a step or of those before it; 0 if all are of later steps."""
    low = 0
    high = head.sequence
    while low < high:
        middle = (low + high + 1) // 2
        if _is_later(store, head, middle, step):
            high = middle - 1
        else:
            low = middle
    return low


def _is_later(store: Store, head: RunHead, number: int, step: int) -> bool:
    """Whether a record is of a later step. Those that were deleted were of earlier ones."""
    tail = store.read(head.run_id, number, number)
    steps: list[int] = [record[1] for _, record in read_records(StoredTail(*tail))]
    return bool(steps) and steps[0] > step


def _snapshot_before(store: Store, head: RunHead, last: int) -> int:
    """The number of the newest snapshot up to a record; 1 if there is none."""
    size = FIRST_PART
    while last > 0:
        first = max(last - size + 1, 1)
        tail = store.read(head.run_id, first, last)
        # Values aren't restored, as only the kinds of records matter.
        numbers = [number for number, record in read_records(StoredTail(*tail)) if record[0] == SNAPSHOT]
        if numbers:
            return numbers[-1]
        last = first - 1
        size *= 2
    return 1
