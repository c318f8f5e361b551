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
    condition, values = _condition(which)
    parts: list[str] = []
    parameters: list[Any] = []
    for status in dict.fromkeys(which.statuses) or [None]:
        conditions = condition if status is None else ["status = %s", *condition]
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        parts.append(f"({SQL['HEAD'].decode()} {where} {ORDER})")
        parameters += [*([] if status is None else [status]), *values, which.limit]
    query = " UNION ALL ".join(parts)
    if len(parts) > 1:
        query = f"{query} {ORDER}"
        parameters.append(which.limit)
    rows = ClientCursor(cursor.connection).execute(query.encode(), parameters).fetchall()
    return [head_of(row) for row in rows]


def _condition(which: RunFilter) -> tuple[list[str], list[Any]]:
    """The conditions beside the status, and their parameters."""
    conditions: list[str] = []
    values: list[Any] = []
    for condition, value in (
        ("graph = %s", which.graph),
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
    if which.has_error is not None:
        conditions.append("error <> ''" if which.has_error else "error = ''")
    if which.is_waiting is not None:
        conditions.append("waits_for <> ''" if which.is_waiting else "waits_for = ''")
    if which.is_due is not None:
        conditions.append("due <= (SELECT clock())" if which.is_due else "due > (SELECT clock())")
    if which.lease_states:
        conditions.append(f"({' OR '.join(_LEASE_STATES[state] for state in which.lease_states)})")
    return conditions


_LEASE_STATES = {
    LeaseState.FREE: "holder IS NULL",
    LeaseState.HELD: "lease_until > (SELECT clock())",
    LeaseState.EXPIRED: "holder IS NOT NULL AND lease_until <= (SELECT clock())",
}
