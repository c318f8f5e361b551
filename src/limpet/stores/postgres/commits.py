"""Carrying out commits in PostgreSQL: one, or those of many runs together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from limpet.errors import RunNotFound, TooLarge
from limpet.journal.store import Commit, OnSignal
from limpet.stores.heads import refusal
from limpet.stores.postgres import queries
from limpet.stores.postgres.connections import Cursor
from limpet.stores.postgres.statements import append_all

LARGEST = 1_000_000_000
"""Bytes of the largest record: a little below PostgreSQL's limit for a value."""

LARGEST_TOGETHER = 16_000_000
"""Bytes of the records that go into one statement."""

MOST_RECORDS = 2**62


class Batch:
    """Commits of one call, sorted by how they are carried out; each known by its place in the call.

    `plain` ones are one statement together, and so are the `others`. Those in neither (too large, or a further
    commit of the same run) take their turn afterwards.
    """

    def __init__(self, commits: Sequence[Commit], marks: Sequence[int]) -> None:
        self.commits, self.marks = commits, marks
        self.plain: dict[str, int] = {}
        self.others: dict[str, int] = {}
        room = LARGEST_TOGETHER
        for number, commit in enumerate(commits):
            room -= sum(map(len, commit.records))
            if room >= 0 and commit.run_id not in self.plain and commit.run_id not in self.others:
                (self.plain if is_plain(commit) else self.others)[commit.run_id] = number
        self.plain, self.others = dict(sorted(self.plain.items())), dict(sorted(self.others.items()))

    def carry_out_plain(self, cursor: Cursor, again: bool) -> dict[int, Exception | None]:
        """None for each of the plain ones that was accepted."""
        accepted = append_all(cursor, [self.commits[number] for number in self.plain.values()])
        return {self.plain[run_id]: None for run_id in accepted}

    def carry_out_others(self, cursor: Cursor, again: bool) -> dict[int, Exception | None]:
        """What became of each of the others whose run there is."""
        numbers = list(self.others.values())
        values = queries.all_fully(
            [self.commits[number] for number in numbers], [self.marks[number] for number in numbers], again
        )
        answers = cursor.execute(queries.APPEND_ALL_FULLY, values).fetchall()
        return {
            numbers[place - 1]: outcome(self.commits[numbers[place - 1]], answer)
            for place, *answer in answers
        }


def is_plain(commit: Commit) -> bool:
    """Whether adding one record is all there is to do for this commit."""
    return (
        len(commit.records) == 1
        and not commit.snapshot
        and commit.status is None
        and commit.note is None
        and not commit.purge
        and commit.on_signal is not OnSignal.CLEAR
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


def too_large(commit: Commit) -> TooLarge | None:
    """The refusal of a commit whose records are more than the store can take."""
    size = sum(map(len, commit.records))
    if size <= LARGEST:
        return None
    what = f"{size:,} bytes in one commit are more than PostgreSQL can take ({LARGEST:,})"
    return TooLarge(f"run {commit.run_id!r}: {what}")
