"""What PostgreSQL's errors mean to a user, and which of them are temporary."""

from __future__ import annotations

import psycopg
from psycopg import errors

from limpet.errors import StoreUnavailable, UsageError
from limpet.stores.postgres.address import Address
from limpet.stores.postgres.patience import Silence

DRIVER_ERRORS = (psycopg.Error, UnicodeEncodeError)

TEMPORARY = (
    errors.DeadlockDetected,
    errors.SerializationFailure,
    errors.TooManyConnections,
    errors.CannotConnectNow,
)
"""A call that failed with one of these has changed nothing and is repeated."""


def explained(error: Exception, place: str) -> StoreUnavailable | UsageError:
    """The `LimpetError` for a failed statement. Its message says what to do."""
    if isinstance(error, UnicodeEncodeError):
        return UsageError(f"{error.object!r} isn't text that PostgreSQL can keep: {error.reason}")
    if isinstance(error, psycopg.DataError):
        return UsageError(f"PostgreSQL can't keep this: {_first_line(error)}")
    for kind, meaning in _MEANINGS:
        if isinstance(error, kind):
            return StoreUnavailable(f"{place} {meaning} ({_first_line(error)})")
    return StoreUnavailable(f"{place} failed: {_first_line(error)}")


def unanswered(address: Address, timeout: float) -> StoreUnavailable:
    """The `LimpetError` for a server from which nothing was heard for this many seconds."""
    return StoreUnavailable(
        f"{address} didn't answer within {timeout:g} s: check the network and what keeps the server busy, or allow "
        "more time with ?timeout="
    )


def unreachable(error: Exception, address: Address, timeout: float) -> tuple[StoreUnavailable, bool]:
    """The `LimpetError` for a failed connection, and whether it is temporary.

    Before a session begins the server's errors have no code, so they are recognised by their words; one in another
    language is shown as it is.
    """
    text = address.clean(str(error))
    if isinstance(error, Silence | errors.ConnectionTimeout):
        return unanswered(address, timeout), True
    reason = text.strip().partition("\n")[0].removeprefix("connection failed: ")
    for words, meaning, is_temporary in _CONNECTING_MEANINGS:
        if any(word in text for word in words):
            about = meaning.format(user=address.user, database=address.database)
            return StoreUnavailable(f"{address} {about} ({reason})"), is_temporary
    return StoreUnavailable(f"{address} can't be reached: {reason}"), True


def _first_line(error: Exception) -> str:
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return (primary or str(error)).strip().partition("\n")[0]


_MEANINGS: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
    (errors.DiskFull, "has no room to grow: free space on the server's disk; what was saved before is safe"),
    (
        errors.ReadOnlySqlTransaction,
        "can't be written to: it is read-only, a standby perhaps; name the primary server, or a user who may write",
    ),
    (
        errors.InsufficientPrivilege,
        "doesn't let this user do that: grant it USAGE on the schema, SELECT, INSERT, UPDATE and DELETE on its "
        "tables and, for the first start and after upgrades, CREATE on the database",
    ),
    (
        (errors.UndefinedTable, errors.UndefinedFunction, errors.UndefinedColumn, errors.InvalidSchemaName),
        "doesn't have Limpet's tables any more: restore the schema, or open the store again to create them",
    ),
    (
        (errors.DuplicateTable, errors.DuplicateFunction, errors.DuplicateObject),
        "has another program's tables in the schema: choose another one with ?schema=",
    ),
    (errors.ProgramLimitExceeded, "can't hold a record of this size"),
    (
        (errors.QueryCanceled, errors.LockNotAvailable),
        "cancelled the call: allow a longer statement_timeout or lock_timeout",
    ),
)

_CONNECTING_MEANINGS = (
    (
        ("password authentication failed", "no password supplied", "authentication failed"),
        "refused the password of user {user!r}: check user and password",
        False,
    ),
    (
        ("no pg_hba.conf entry", "pg_hba.conf rejects"),
        "doesn't admit user {user!r} from here: allow it in the server's pg_hba.conf",
        False,
    ),
    (("role ",), "doesn't know user {user!r}: create the user, or name another", False),
    (("permission denied for database",), "doesn't let user {user!r} connect: grant CONNECT", False),
    (
        ('database "',),
        "has no database {database!r}: create it (createdb {database}), or name another",
        False,
    ),
    (("starting up", "shutting down", "recovery"), "isn't ready: wait until it has started", True),
    (
        ("too many clients", "connection slots", "too many connections"),
        "has no connection left: raise max_connections, or give fewer connections to each process",
        True,
    ),
    (
        ("refused", "No such file", "host name", "resolve host", "timeout", "unreachable", "No route"),
        "can't be reached: start the server, or check host and port",
        True,
    ),
)
