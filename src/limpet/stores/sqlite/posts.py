"""What others post to a run and what its nodes emit: rows beside its journal, in the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from zlib import crc32

from limpet.errors import DamagedRecord
from limpet.journal.encoding.codec import encode
from limpet.journal.store import Output, Post, RunHead
from limpet.stores.sqlite.rows import MAX_RECORDS, change_head, limit_of, record_id, update_of
from limpet.stores.statements import statements_of

SQL = statements_of("sqlite")


def has_key(cursor: sqlite3.Cursor, row_id: int, key: str) -> bool:
    """Whether the run was ever posted this key."""
    return cursor.execute(SQL["FIND_KEY"], (row_id, key)).fetchone() is not None


def add_post(cursor: sqlite3.Cursor, row_id: int, number: int, key: str, body: bytes) -> None:
    checksum = _checksum(number, key, body)
    cursor.execute(SQL["POST"], (row_id, number, key, body, checksum))


def waiting_posts(cursor: sqlite3.Cursor, row_id: int, head: RunHead) -> list[Post]:
    """The posts that no commit has taken in. Raises `DamagedRecord` if they aren't what was posted."""
    rows = cursor.execute(SQL["INBOX"], (row_id, head.taken)).fetchall()
    found = []
    for expected, (number, key, body, checksum) in enumerate(rows, head.taken + 1):
        if type(body) is not bytes or number != expected or checksum != _checksum(number, key, body):
            raise DamagedRecord(head.run_id, 0, f"its post {expected} isn't what was written")
        found.append(Post(number, key, body))
    if head.taken + len(found) != head.posted:
        raise DamagedRecord(head.run_id, 0, f"its post {head.taken + len(found) + 1} is missing")
    return found


def take_posts(cursor: sqlite3.Cursor, row_id: int, before: RunHead, after: RunHead) -> None:
    """Delete the bodies of the posts that a commit has taken in."""
    if after.taken > before.taken:
        cursor.execute(SQL["TAKE_POSTS"], (row_id, before.taken, after.taken))


def add_output(cursor: sqlite3.Cursor, row_id: int, head: RunHead, bodies: Sequence[bytes], keep: int) -> int:
    """Add items to a run's output, delete those before the newest `keep`, and return the newest number."""
    if not bodies:
        return head.output
    newest = head.output + len(bodies)
    cursor.executemany(SQL["ADD_OUTPUT"], enumerate(bodies, record_id(row_id, head.output + 1)))
    cursor.execute(SQL["DELETE_OUTPUT"], (record_id(row_id, 0), record_id(row_id, max(newest - keep, 0))))
    change_head(cursor, row_id, update_of(head, head._replace(output=newest)))
    return newest


def read_output(cursor: sqlite3.Cursor, row_id: int, after: int, limit: int | None) -> list[Output]:
    """The items that are numbered above `after`. What damage turned into text or a number is left out."""
    first = min(max(after, 0), MAX_RECORDS) + 1
    bounds = (record_id(row_id, first), record_id(row_id, MAX_RECORDS))
    rows = cursor.execute(SQL["READ_OUTPUT"], (*bounds, limit_of(limit)))
    return [Output(number, body) for number, body in rows if type(body) is bytes]


def _checksum(number: int, key: str, body: bytes) -> int:
    return crc32(encode([number, key, body]))
