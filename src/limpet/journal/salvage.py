"""Getting out of a store what can be had of a run, where some of its records are damaged or gone."""

from __future__ import annotations

from collections.abc import Iterator

from limpet.errors import DamagedRecord
from limpet.journal.store import RunHead, Store, Tail

Found = dict[int, "bytes | DamagedRecord"]
"""Records by their numbers, or what the store said instead."""

MOST_MISSING = 1_000_000
"""Records that may be missing of a run. More than that weren't lost: it is their number that is damaged."""


def salvaged(store: Store, run_id: str) -> Tail:
    """All records from the first that there is, with an empty one for each that can't be had.

    An empty record is damaged to whoever opens it. Raises `DamagedRecord` if not even the head can be read.
    """
    head, found = gathered(store, run_id)
    first = min(found, default=head.sequence + 1)
    kept = (found.get(number) for number in range(first, head.sequence + 1))
    return Tail(head, first, [data if isinstance(data, bytes) else b"" for data in kept])


def gathered(store: Store, run_id: str) -> tuple[RunHead, Found]:
    """The head, and the records that are there by their numbers, as of one moment unless some are damaged.

    Raises `DamagedRecord` if the head, or what it says of the records, can't be believed.
    """
    try:
        tail = store.read(run_id, first=1)
    except DamagedRecord:
        head = store.head(run_id)
    else:
        head = tail.head
        if tail.first + len(tail.records) == head.sequence + 1:
            return head, dict(enumerate(tail.records, tail.first))
    found = dict(_sought(store, run_id, 1, head.sequence))
    if head.sequence - min(found, default=0) > len(found) + MOST_MISSING:
        reason = f"it is said to have records up to number {head.sequence}, and only {len(found)} are there"
        raise DamagedRecord(run_id, max(found, default=0), reason)
    return head, found


def _sought(store: Store, run_id: str, first: int, last: int) -> Iterator[tuple[int, bytes | DamagedRecord]]:
    """The same where a stretch can't be had whole: its halves, down to single records."""
    try:
        tail = store.read(run_id, first, last)
    except DamagedRecord as damage:
        if first == last:
            yield first, damage
            return
    else:
        if len(tail.records) in (0, last - first + 1):
            yield from enumerate(tail.records, first)
            return
    middle = (first + last) // 2
    yield from _sought(store, run_id, first, middle)
    yield from _sought(store, run_id, middle + 1, last)
