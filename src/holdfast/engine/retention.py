"""What may go of a run's journal while it runs, and what is too much of it."""

from __future__ import annotations

from collections import deque
from typing import Final

from holdfast.journal.store import Commit

LARGE: Final = 500_000
"""How many bytes one checkpoint may add to the journal before it is worth a warning."""


class Retention:
    """Keeps account of one run's checkpoints, by the numbers of their records: the newest `keep` are to stay.

    A checkpoint needs the newest whole record up to it and all that follows, so what is before that can go once there
    are `keep` newer ones. Whole records are written when they are worth it, not for this.
    """

    __slots__ = ("_bytes", "_marks", "_pruned", "_wholes")

    def __init__(self, keep: int | None, first: int) -> None:
        self._marks: deque[int] | None = None if keep is None else deque(maxlen=keep)
        self._wholes = [first]
        self._pruned = first
        self._bytes = 0

    def written(self, commit: Commit) -> None:
        """A commit is durable."""
        self._bytes += sum(map(len, commit.records))
        if commit.snapshot:
            self._wholes.append(commit.snapshot)

    def mark(self, sequence: int) -> tuple[int, int]:
        """A checkpoint ends with this record: what it added in bytes, and the record before which all may go (or
        0).
        """
        added, self._bytes = self._bytes, 0
        if self._marks is None:
            return added, 0
        self._marks.append(sequence)
        if len(self._marks) < (self._marks.maxlen or 0):
            return added, 0
        while len(self._wholes) > 1 and self._wholes[1] <= self._marks[0]:
            del self._wholes[0]
        if self._wholes[0] <= self._pruned:
            return added, 0
        self._pruned = self._wholes[0]
        return added, self._pruned
