"""Lists of runs: which index has them in order, and the conditions of a filter.

A list is ordered by creation, and mostly only its beginning is wanted. So it is read from an index that has the runs
of one status, graph or tag in that order, and no more of it than is wanted. Where a filter names several statuses, or
a graph and no status, there is such a *range* of an index for each status, and what they give is merged.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any, NamedTuple
from weakref import ref

from limpet.defaults import QUEUE
from limpet.journal.run_filter import LeaseState, RunFilter
from limpet.stores.sqlite.connections import Connections
from limpet.stores.sqlite.rows import limit_of, placeholders
from limpet.stores.statements import statements_of

MAX_RANGES = 100
"""Ranges of an index that are read for one list. If there are more, all runs are searched, newest first."""

SQL = statements_of("sqlite")

_RUN_ID = 1
_CREATED = 7


class Range(NamedTuple):
    """Part of an index, which has its runs in the order of lists: those that meet a condition."""

    index_name: str
    condition: str
    values: tuple[Any, ...] = ()


ALL_RUNS = Range("runs_by_creation", "TRUE")


class ChangeMark:
    """Tells that runs have changed, as each connection to the file knows whether others have committed to it.

    It doesn't look at the files themselves: to close one of them would release what SQLite has locked in it, as such
    locks belong to the process, and another process could then write at the same time.

    Workers renew their documents all the time. If a document has changed, it may have been that alone, and the runs
    are looked at, which takes some ten milliseconds for 100,000 of them. They are also if the last look was through
    another connection.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._lock = Lock()
        self._seen: _Commits | None = None
        self._runs: object = None
        self._number = 0

    def __call__(self) -> object:
        with self._lock:
            seen, runs = self._connections.read(self._read)
            if seen != self._seen:
                # Where runs weren't looked at, one of the commits has changed something of them: they aren't known.
                if runs is None or runs != self._runs:
                    self._number += 1
                self._seen = seen
                self._runs = runs
            return self._number

    def _read(self, cursor: sqlite3.Cursor) -> tuple[_Commits, object]:
        """What shows that there were commits; and that runs have changed, if that has to be looked up."""
        (version,) = cursor.execute("PRAGMA data_version").fetchone()
        (documents,) = cursor.execute("SELECT max(version) FROM documents").fetchone()
        seen = _Commits(ref(cursor.connection), version, documents)
        before = self._seen
        if before is not None and seen.connection == before.connection and documents == before.documents:
            return seen, None
        return seen, cursor.execute(SQL["RUNS_AS_A_WHOLE"]).fetchone()


class _Commits(NamedTuple):
    """What a connection sees of the commits of others: a number that has no meaning for another connection."""

    connection: ref[sqlite3.Connection]
    version: int
    documents: int | None
    """The newest version of a document."""


def listed_rows(
    cursor: sqlite3.Cursor, which: RunFilter, now: float, lease_now: float
) -> list[Sequence[Any]]:
    """The rows of `HEAD` that a filter asks for, in order."""
    conditions, values = _conditions(which, now, lease_now)
    found: list[Sequence[Any]] = []
    ranges = _ranges(cursor, which)
    for each in ranges:
        source = _source(each)
        where = " AND ".join([each.condition, *conditions])
        query = f"{SQL['HEAD']} {source} WHERE {where} {_order(each)} LIMIT ?"
        found += cursor.execute(query, (*each.values, *values, limit_of(which.limit))).fetchall()
    if len(ranges) > 1:
        found.sort(key=_place, reverse=True)
    return found[: which.limit]


def _place(row: Sequence[Any]) -> tuple[float, str]:
    created = row[_CREATED]
    if type(created) is not float:  # it is damaged
        created = 0.0
    return created, str(row[_RUN_ID])


def _source(each: Range) -> str:
    if each.index_name == "tagged":
        return "JOIN tagged ON tagged.run = runs.id"
    return f"INDEXED BY {each.index_name}"


def _order(each: Range) -> str:
    if each.index_name == "tagged":
        return "ORDER BY since DESC, run_name DESC"
    return "ORDER BY created DESC, run_id DESC"


def _ranges(cursor: sqlite3.Cursor, which: RunFilter) -> list[Range]:
    """The ranges with the fewest runs beside those that are wanted, as far as that is known."""
    if which.parent is not None:
        return [Range("runs_by_parent", "parent = ?", (which.parent,))]
    if which.tags:
        return [_after_tag(which, Range("tagged", "tag = ?", (which.tags[0],)))]
    if which.error:
        return [Range("runs_by_error", "error <> '' AND error = ?", (which.error,))]
    if which.has_error:
        return _range_for_each(cursor, Range("runs_by_error", "error <> ''"), "error")
    if which.is_waiting:
        return _range_for_each(cursor, Range("runs_by_wait", "waits_for <> ''"), "waits_for")
    if which.lease_states and LeaseState.FREE not in which.lease_states:
        return [Range("runs_with_holder", "holder IS NOT NULL")]
    if which.is_due is not None:
        return [Range("runs_with_due", "due IS NOT NULL")]
    if which.node:
        by_node = Range("runs_by_node", "node <> '' AND node = ?", (which.node,))
        return _range_for_each(cursor, by_node, "status", which.statuses)
    if which.queue is not None and which.queue != QUEUE:
        by_queue = Range("runs_by_queue", f"queue <> '{QUEUE}' AND queue = ?", (which.queue,))
        return _range_for_each(cursor, by_queue, "status", which.statuses)
    if which.graph is not None:
        by_graph = Range("runs_by_graph", "graph = ?", (which.graph,))
        return _range_for_each(cursor, by_graph, "status", which.statuses)
    if which.statuses:
        return _range_for_each(cursor, Range("runs_by_status", "TRUE"), "status", which.statuses)
    return [ALL_RUNS]


def _after_tag(which: RunFilter, by_tag: Range) -> Range:
    """The range from the cursor on. The index of tags has the place in the list in columns of its own."""
    if which.after is None:
        return by_tag
    condition = f"{by_tag.condition} AND (since, run_name) < (?, ?)"
    return by_tag._replace(condition=condition, values=(*by_tag.values, *which.after))


def _range_for_each(
    cursor: sqlite3.Cursor, outer: Range, column: str, known: Sequence[str] = ()
) -> list[Range]:
    """A range for each value of the next column of an index: for those that are known, or all that there are."""
    values = list(dict.fromkeys(known)) or list(_values(cursor, outer, column))
    if len(values) > MAX_RANGES:
        return [ALL_RUNS]
    condition = f"{outer.condition} AND {column} = ?"
    return [Range(outer.index_name, condition, (*outer.values, value)) for value in values]


def _values(cursor: sqlite3.Cursor, outer: Range, column: str) -> Iterator[Any]:
    """The values of a column in a range, each found by one step in the index. Stops when there are too many."""
    condition = f"{outer.condition} AND {column} > ?"
    query = (
        f"SELECT {column} FROM runs INDEXED BY {outer.index_name} WHERE {condition} ORDER BY {column} LIMIT 1"
    )
    value: Any = ""
    for _ in range(MAX_RANGES + 1):
        row = cursor.execute(query, (*outer.values, value)).fetchone()
        if row is None:
            return
        (value,) = row
        yield value


def _conditions(which: RunFilter, now: float, lease_now: float) -> tuple[list[str], list[Any]]:
    """The conditions that keep the runs that a filter asks for, and their parameters."""
    conditions: list[str] = []
    values: list[Any] = []

    def restrict(condition: str, *parameters: Any) -> None:
        conditions.append(condition)
        values.extend(parameters)

    if which.statuses:
        restrict(f"status IN ({placeholders(which.statuses)})", *which.statuses)
    for condition, value in (
        ("graph = ?", which.graph),
        ("queue = ?", which.queue),
        ("plan = ?", which.plan),
        ("parent = ?", which.parent),
        ("node = ?", which.node),
        ("error = ?", which.error),
        ("created >= ?", which.created_since),
        ("created < ?", which.created_before),
        ("updated >= ?", which.updated_since),
        ("updated < ?", which.updated_before),
    ):
        if value is not None:
            restrict(condition, value)
    for tag in which.tags[1:]:
        restrict("EXISTS (SELECT 1 FROM tagged AS also WHERE also.tag = ? AND also.since = created", tag)
        conditions[-1] += " AND also.run_name = run_id)"
    if which.has_error is not None:
        restrict("(error <> '') = ?", which.has_error)
    if which.is_waiting is not None:
        restrict("(waits_for <> '') = ?", which.is_waiting)
    if which.is_due is not None:
        restrict(f"{SQL['IS_DUE']} = ?", now, which.is_due)
    if which.lease_states:
        states = [_LEASE_STATES[state] for state in which.lease_states]
        restrict(f"({' OR '.join(states)})", *[lease_now for state in states if "?" in state])
    if which.after is not None:
        restrict("(created, run_id) < (?, ?)", *which.after)
    return conditions, values


_LEASE_STATES = {
    LeaseState.FREE: "holder IS NULL",
    LeaseState.HELD: "lease_until > ?",
    LeaseState.EXPIRED: "holder IS NOT NULL AND (lease_until IS NULL OR lease_until <= ?)",
}
