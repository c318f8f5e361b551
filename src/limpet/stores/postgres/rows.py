"""The rows of a PostgreSQL database: heads from rows, and the parameters of statements from runs and commits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from limpet.journal.store import Commit, Lane, NewRun, RunHead
from limpet.stores.statements import statements_of

SQL = {name: statement.encode() for name, statement in statements_of("postgres").items()}

LARGEST_NUMBER = 2**62
"""Fences and sequence numbers beyond this are never given out; a `bigint` holds them, and what is added to them."""

UNCHANGED_LABELS = (None, None, None, None)

_TAGS = RunHead._fields.index("tags")


def head_of(row: Sequence[Any]) -> RunHead:
    """The head in a row of `COLUMNS`, which are the fields of a head in their order."""
    values = [*row]
    values[_TAGS] = tuple(values[_TAGS])
    return RunHead(*values)


def create_values(run: NewRun, mark: int) -> tuple[Any, ...]:
    """The parameters of `CREATE`."""
    return (
        run.run_id,
        run.graph,
        run.status,
        1 if run.records else 0,
        run.ttl,
        list(run.tags),
        run.parent,
        run.note,
        run.priority,
        *run.labels,
        run.queue,
        mark,
        run.holder,
        run.due,
        list(run.records),
    )


def commit_values(commit: Commit, mark: int, again: bool) -> tuple[Any, ...]:
    """The parameters of `APPLY_COMMIT`."""
    return (
        commit.run_id,
        within_bigint(commit.fence),
        within_bigint(commit.expected),
        list(commit.records),
        *_changes_of(commit),
        mark,
        again,
    )


def commits_values(commits: Sequence[Commit], marks: Sequence[int], again: bool) -> tuple[Any, ...]:
    """The parameters of `APPLY_COMMITS`: a list for each column, then the records of all commits, and `again`."""
    records: list[bytes] = []
    rows: list[tuple[Any, ...]] = []
    for commit, mark in zip(commits, marks, strict=True):
        low = len(records) + 1
        records += commit.records
        rows.append(
            (
                commit.run_id,
                within_bigint(commit.fence),
                within_bigint(commit.expected),
                low,
                len(records),
                *_changes_of(commit),
                mark,
            )
        )
    columns = map(list, zip(*rows, strict=True))
    return (*columns, records, again)


def _changes_of(commit: Commit) -> tuple[Any, ...]:
    """What a commit changes beside its records."""
    return (
        commit.snapshot,
        commit.status,
        commit.note,
        commit.purge,
        within_bigint(commit.takes),
        commit.ignores_posts,
        *(commit.labels or UNCHANGED_LABELS),
        commit.due,
    )


def lanes_values(lanes: Sequence[Lane]) -> dict[str, Any]:
    """The parameters of `READY` that name lanes: a list for each column."""
    return {
        "queues": [lane.queue for lane in lanes],
        "graphs": [lane.graph for lane in lanes],
        "plans": [lane.plan for lane in lanes],
    }


def within_bigint(number: int) -> int:
    """The number, or the nearest one that a column can hold."""
    return max(-LARGEST_NUMBER, min(number, LARGEST_NUMBER))
