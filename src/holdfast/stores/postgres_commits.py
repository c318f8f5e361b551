"""Carrying out commits in PostgreSQL: one, or those of many runs together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.errors import RunNotFound, StoreUnavailable
from holdfast.journal.store import Commit
from holdfast.stores import postgres_queries as queries
from holdfast.stores.postgres_connections import Cursor
from holdfast.stores.refusals import refusal

LARGEST = 1_000_000_000
"""Bytes of the largest record: a little below PostgreSQL's limit for a value."""

LARGEST_TOGETHER = 16_000_000
"""Bytes of the records that go into one statement."""

MOST_RECORDS = 2**62


class Batch:
    """Commits of one call, sorted by how they are carried out: by number of their place in the call.

    `plain` ones are one statement together. `others` are a call each, in the same transaction. `later` ones
    are not for this transaction: too large, or a further commit of the same run.
    """

    def __init__(self, commits: Sequence[Commit], marks: Sequence[int]) -> None:
        self.commits, self.marks = commits, marks
        self.plain: dict[str, int] = {}
        self.others: dict[str, int] = {}
        self.later: list[int] = []
        room = LARGEST_TOGETHER
        for number, commit in enumerate(commits):
            size = sum(map(len, commit.records))
            if commit.run_id in self.plain or commit.run_id in self.others or size > room:
                self.later.append(number)
                continue
            room -= size
            kind = self.plain if is_plain(commit) else self.others
            kind[commit.run_id] = number

    def carry_out(self, cursor: Cursor, again: bool) -> dict[int, Exception | None]:
        """What became of the commits that could be decided together, in one transaction and one round trip."""
        if not self.others:
            if not self.plain:
                return {}
            return self._accepted(cursor.execute(queries.APPEND_ALL, self._plain()).fetchall())
        connection = cursor.connection
        with connection.pipeline(), connection.transaction():
            connection.execute(queries.LOCK, ([*self.plain, *self.others],))
            if self.plain:
                cursor.execute(queries.APPEND_ALL, self._plain())
            answers = [
                connection.cursor(binary=True).execute(
                    queries.APPEND_FULLY, queries.fully(self.commits[number], self.marks[number], again)
                )
                for number in self.others.values()
            ]
        outcomes = self._accepted(cursor.fetchall()) if self.plain else {}
        for number, answer in zip(self.others.values(), answers, strict=True):
            outcomes[number] = outcome(self.commits[number], answer.fetchone())
        return outcomes

    def _plain(self) -> tuple[Any, ...]:
        return queries.together([self.commits[number] for number in self.plain.values()])

    def _accepted(self, rows: Sequence[tuple[Any, ...]]) -> dict[int, Exception | None]:
        return {self.plain[run_id]: None for (run_id,) in rows}


def is_plain(commit: Commit) -> bool:
    """Whether adding one record is all there is to do for this commit."""
    return (
        len(commit.records) == 1
        and not commit.snapshot
        and commit.status is None
        and commit.note is None
        and not commit.purge
        and commit.heed is not False
        and len(commit.records[0]) <= LARGEST
        and 0 <= commit.expected < MOST_RECORDS
        and 0 < commit.fence < MOST_RECORDS
    )


def outcome(commit: Commit, row: Sequence[Any] | None) -> Exception | None:
    """Why a commit was refused, from the answer of `APPEND_FULLY`, or None."""
    if row is None:
        return RunNotFound(commit.run_id)
    accepted, present, *head = row
    return None if accepted else refusal(commit, queries.head_of(head), present)


def too_large(commit: Commit) -> StoreUnavailable | None:
    """The refusal of a commit whose records are more than the store can take."""
    size = sum(map(len, commit.records))
    if size <= LARGEST:
        return None
    what = f"{size:,} bytes in one commit are more than PostgreSQL can take ({LARGEST:,})"
    return StoreUnavailable(f"run {commit.run_id!r}: {what}")
