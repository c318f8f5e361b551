"""The lanes in which runs wait for workers, the runs of a lane that are ready, and how these are claimed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from limpet.journal.store import Lane, Lease, RunHead
from limpet.stores import heads
from limpet.stores.claims import first_places
from limpet.stores.sqlite.rows import change_head, rows_of, sound_head_of, update_of
from limpet.stores.statements import statements_of

MAX_PRIORITIES = 32
"""How many priorities of a lane are searched one by one for runs that are ready."""

ABOVE_ALL_PRIORITIES = 1e19
"""More than a column holds."""

SQL = statements_of("sqlite")


def all_lanes(cursor: sqlite3.Cursor) -> list[Lane]:
    """The lanes of all runs that have a due time."""
    found = []
    first = (b"", b"", b"")
    while (names := cursor.execute(SQL["NEXT_LANE"], first).fetchone()) is not None:
        with suppress(UnicodeDecodeError):  # damage, which `list` shows
            found.append(Lane._make(name.decode() for name in names))
        queue, graph, plan = names
        # "Behind this lane" would have SQLite read all of its runs. This is the first name that can follow it.
        first = (queue, graph, plan + b"\0")
    return found


def ready_heads(
    cursor: sqlite3.Cursor,
    lanes: Iterable[Lane],
    now: tuple[float, float],
    limit: int,
    undamaged: Callable[[Sequence[Any]], list[RunHead]],
) -> list[RunHead]:
    """The heads of runs that are ready, of each lane the most urgent and at most `limit`.

    `now` is the time by which runs are due, and that by which leases expire. It goes from priority to priority, as
    only the runs of one priority are in the order of `due`. Most lanes have few priorities; where there are many,
    the rest is searched at once. `undamaged` gives the heads of rows but for the damaged ones.
    """
    found: list[RunHead] = []
    due_by, lease_now = now
    times = (due_by, due_by, lease_now)

    def take(statement: str, lane: Lane, priority: float, wanted: int) -> int:
        """Add what a statement finds, and return how many heads that were. Damaged rows are made up for by more."""
        count = 0
        offset = 0
        while count < wanted:
            asked = wanted - count
            rows = cursor.execute(SQL[statement], (*lane, priority, *times, asked, offset)).fetchall()
            sound = undamaged(rows)
            found.extend(sound)
            count += len(sound)
            offset += len(rows)
            if len(rows) < asked:
                break
        return count

    for lane in lanes:
        wanted = limit
        above = ABOVE_ALL_PRIORITIES
        for _ in range(MAX_PRIORITIES):
            next_priority = cursor.execute(SQL["NEXT_PRIORITY"], (*lane, above)).fetchone()
            if next_priority is None or wanted <= 0:
                break
            (above,) = next_priority
            wanted -= take("READY", lane, above, wanted)
        else:
            take("READY_BELOW", lane, above, wanted)
    return found


def claim_listed(
    cursor: sqlite3.Cursor, wanted: Sequence[RunHead], holder: str, ttl: float, now: tuple[float, float]
) -> list[Lease | None]:
    """Claim those of these runs that are still as they were listed, in the caller's transaction."""
    places = first_places(wanted)
    leases: list[Lease | None] = [None] * len(wanted)
    for row in rows_of(cursor, list(places)):
        head = None if row is None else sound_head_of(row)
        if row is None or head is None:
            continue
        place = places[head.run_id]
        claimed = heads.claim_ready(head, wanted[place], holder, ttl, *now)
        if claimed is not None:
            changed, leases[place] = claimed
            change_head(cursor, row[0], update_of(head, changed))
    return leases
