"""Lists of runs: the query for a filter.

A list is ordered by creation, and mostly only its beginning is wanted. Which index gives that soonest depends on the
values: the newest runs of a status that all have, or of one that three have. So the values are written into the
query, where the planner of the server sees them and knows how common they are. With several statuses there is a query
for each, since no index has the runs of two statuses in one order.
"""

from __future__ import annotations

from typing import Any

from psycopg import ClientCursor

from limpet.journal.run_filter import LeaseState, RunFilter
from limpet.journal.store import RunHead
from limpet.stores.postgres.connections import Cursor
from limpet.stores.postgres.rows import SQL, head_of

ORDER = "ORDER BY created DESC, run_id DESC LIMIT %s"


def listed(cursor: Cursor, which: RunFilter) -> list[RunHead]:
    """The heads that a filter asks for, in order."""
    parts: list[str] = []
    parameters: list[Any] = []
    for status in dict.fromkeys(which.statuses) or [None]:
        conditions, values = _conditions(which, status)
        parts.append(f"({SQL['HEAD'].decode()} WHERE {' AND '.join(conditions)} {ORDER})")
        parameters += [*values, which.limit]
    query = " UNION ALL ".join(parts)
    if len(parts) > 1:
        query = f"{query} {ORDER}"
        parameters.append(which.limit)
    rows = ClientCursor(cursor.connection).execute(query.encode(), parameters).fetchall()
    return [head_of(row) for row in rows]


def _conditions(which: RunFilter, status: str | None) -> tuple[list[str], list[Any]]:
    """The conditions of a filter, with one of its statuses, and their parameters."""
    conditions = ["true"]
    values: list[Any] = []
    for condition, value in (
        ("status = %s", status),
        ("graph = %s", which.graph),
        ("queue = %s", which.queue),
        ("plan = %s", which.plan),
        ("parent = %s", which.parent),
        ("node = %s", which.node),
        ("error = %s", which.error),
        ("created >= %s", which.created_since),
        ("created < %s", which.created_before),
        ("updated >= %s", which.updated_since),
        ("updated < %s", which.updated_before),
        # No run is created after it was last updated, and creation has an index.
        ("created < %s", which.updated_before),
    ):
        if value is not None:
            conditions.append(condition)
            values.append(value)
    if which.tags:
        conditions.append("tags <> '{}' AND tags @> %s::text[]")
        values.append(list(which.tags))
    if which.after is not None:
        conditions.append("(created, run_id) < (%s, %s)")
        values += which.after
    conditions += _fixed_conditions(which)
    return conditions, values


def _fixed_conditions(which: RunFilter) -> list[str]:
    """Those that have no parameters."""
    conditions = []
    for wanted, choices in (
        (which.has_error, {True: "error <> ''", False: "error = ''"}),
        (which.is_waiting, {True: "waits_for <> ''", False: "waits_for = ''"}),
        (which.is_due, _IS_DUE),
    ):
        if wanted is not None:
            conditions.append(choices[wanted])
    if which.lease_states:
        conditions.append(f"({' OR '.join(_LEASE_STATES[state] for state in which.lease_states)})")
    return conditions


_IS_DUE = {
    True: "(due <= (SELECT clock()) OR due = created)",
    False: "due > (SELECT clock()) AND due <> created",
}
_LEASE_STATES = {
    LeaseState.FREE: "holder IS NULL",
    LeaseState.HELD: "lease_until > (SELECT clock())",
    LeaseState.EXPIRED: "holder IS NOT NULL AND lease_until <= (SELECT clock())",
}
