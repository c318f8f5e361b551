"""What the errors of SQLite and its driver mean to a user.

They reach a user as `StoreUnavailable`, which names the file and what to do, and never as the driver's own. The first
question is always whether another process has the file locked: then the call is tried again.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from limpet.errors import StoreUnavailable, UsageError

DRIVER_ERRORS = (sqlite3.Error, OverflowError, UnicodeError)
"""What the driver may raise."""

_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)

_MEANINGS = {
    **dict.fromkeys(
        _BUSY,
        "was locked by another process for {timeout:g} s: end that process, or allow a longer timeout",
    ),
    sqlite3.SQLITE_FULL: "has no room to grow: free space on its disk; what was saved before is safe",
    sqlite3.SQLITE_IOERR: "can't be written to or read: check its disk; what was saved before is safe",
    sqlite3.SQLITE_READONLY: "can't be written to: let this user write the file and its directory",
    sqlite3.SQLITE_CANTOPEN: (
        "can't be opened: check that it exists, and let this user write the file and its directory"
    ),
    sqlite3.SQLITE_PERM: "can't be opened: let this user read and write the file and its directory",
    sqlite3.SQLITE_NOTADB: "is not a SQLite database: use another file, or move this one away",
    sqlite3.SQLITE_CORRUPT: (
        "is damaged: restore a copy, or save what can be read with the .recover command of sqlite3"
    ),
    sqlite3.SQLITE_TOOBIG: "can't hold a record of this size",
}


def is_busy(error: Exception) -> bool:
    """Whether another process has the file locked, so that the call may succeed later."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY


def explained(error: Exception, path: Path, timeout: float) -> StoreUnavailable | UsageError:
    """The error for a user. `timeout` is for how many seconds locks were waited for."""
    if isinstance(error, UnicodeEncodeError):
        return UsageError(f"{error.object!r} isn't text that SQLite can keep: {error.reason}")
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if isinstance(error, UnicodeDecodeError):  # SQLite's message quotes a damaged schema
        code = sqlite3.SQLITE_CORRUPT
    if code == sqlite3.SQLITE_IOERR and _is_full(path.parent):
        code = sqlite3.SQLITE_FULL
    meaning = _MEANINGS.get(code, "failed: {error}").format(timeout=timeout, error=error)
    return StoreUnavailable(f"{path} {meaning}")


def _is_full(directory: Path) -> bool:
    """Whether the disk is full: SQLite reports some failures for want of space as other errors."""
    from shutil import disk_usage

    try:
        return disk_usage(directory).free < 1 << 16
    except OSError:
        return False
