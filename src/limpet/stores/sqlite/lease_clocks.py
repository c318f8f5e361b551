"""The lease time of all processes that use a SQLite file: see `stores/lease_clock.py`."""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING

from limpet.stores.lease_clock import SINCE_BOOT, Clock, ahead_now, is_plausible, this_boot
from limpet.stores.sqlite.rows import set_checksum
from limpet.stores.statements import statements_of

if TYPE_CHECKING:
    from limpet.stores.sqlite.connections import Connections

MAX_LEASE_AFTER_BOOT = 60.0
"""For how many seconds a lease from before the computer was started can keep a run from being claimed."""

SQL = statements_of("sqlite")


def shared_lease_clock(connections: Connections, clock: Clock) -> Clock:
    """The lease time of all processes that use the file. The first of them after a boot stores its constant."""
    boot = this_boot()
    if not boot:
        return clock

    def find(cursor: sqlite3.Cursor) -> float | None:
        row = cursor.execute(SQL["CLOCK"], (boot,)).fetchone()
        return row[0] if row is not None and is_plausible(row[0]) else None

    def find_or_add(cursor: sqlite3.Cursor) -> float:
        ahead = find(cursor)
        if ahead is None:
            ahead = ahead_now()
            add_clock(cursor, boot, ahead, clock())
        return ahead

    ahead = connections.read(find)
    if ahead is None:
        ahead = connections.write(find_or_add)
    return lambda: time.clock_gettime(SINCE_BOOT) + ahead


def add_clock(cursor: sqlite3.Cursor, boot: str, ahead: float, now: float) -> None:
    """Store the constant of the lease clock for this boot of the computer, and shorten leases from before it.

    Processes of an earlier boot have ended, but a lease of theirs may be long, or end in the future if the time of
    day was set back since. Boots of the same id are one: it has another clock in a container.
    """
    boots = [str(other) for (other,) in cursor.execute("SELECT boot FROM clocks")]
    cursor.execute(SQL["SET_CLOCK"], (boot, ahead))
    boot_id = boot.split()[0]
    if any(other.startswith(boot_id) for other in boots):
        return
    latest = now + MAX_LEASE_AFTER_BOOT
    for (row_id,) in cursor.execute(SQL["LONG_LEASES"], (latest,)).fetchall():
        cursor.execute(SQL["SHORTEN_LEASE"], (latest, row_id))
        set_checksum(cursor, row_id)
