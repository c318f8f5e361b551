"""The rows of a timeline, and a log that knows which of them changed since a version."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from sys import intern
from typing import Any, Final

LONGEST_NOTE: Final = 300
"""Characters of an error or a question that a row has. The events have all of it."""

MAX_KEPT_ROWS: Final = 150_000
"""Rows of one run that are kept: the newest. Each takes some 400 bytes."""

DROPPED_AT_ONCE: Final = 1000

MAX_SPANS: Final = 1000
"""Attempts, or waits, that a row has: the newest."""

STALE_CHANGES: Final = 1000
"""Changes of rows that have changed again, from which on the log may be tidied."""

RUNNING: Final = "running"
PAUSED: Final = "paused"
FAILED: Final = "failed"
DONE: Final = "done"
RETRYING: Final = "retrying"
SLEEPING: Final = "sleeping"
WAITING: Final = "waiting"
SKIPPED: Final = "skipped"
CANCELLED: Final = "cancelled"

STEP: Final = "step"
BRANCH: Final = "branch"
TASK: Final = "task"
MARK: Final = "mark"
"""The kinds of rows. A mark is something that happened between two steps."""

APPROVAL: Final = "approval"
"""What a row waits for whose run was interrupted: no question is asked."""

Span = list[Any]
"""An attempt that failed: when it began and ended, and its error. Or a wait: when it began, when it ended or will
end, if that is known, and what for."""


class Row:
    """One line of the timeline."""

    __slots__ = (
        "asked",
        "attempts",
        "branch",
        "call",
        "crashes",
        "end",
        "first_event",
        "has_completed",
        "id",
        "kind",
        "label",
        "last_event",
        "note",
        "output",
        "parent",
        "progress",
        "start",
        "status",
        "step",
        "version",
        "waits",
    )

    def __init__(self, kind: str, label: str, start: float, parent: Row | None, branch: str) -> None:
        self.id = 0
        self.kind = kind
        self.label = intern(label)
        self.start = start
        self.parent = None if parent is None else parent.id
        self.branch = branch
        self.step: int | None = None
        """The step that it completed; of one that hasn't, the newest step when it began."""
        self.has_completed = kind == MARK
        self.end: float | None = None
        self.status = RUNNING
        self.note = ""
        # Most rows have none of these, and there may be many rows.
        self.attempts: list[Span] | tuple[()] = ()
        self.waits: list[Span] | tuple[()] = ()
        self.output = 0
        self.crashes = 0
        """How often a process has crashed while it was under way, or just before."""
        self.progress: dict[str, Any] | None = None
        self.call: int | None = None
        """The step that its call will complete, as its output says."""
        self.asked: tuple[str, ...] = ()
        """The ids of its open questions."""
        self.version = 0
        self.first_event = 0
        """The number of the event with which it began."""
        self.last_event = 0

    @property
    def has_stopped(self) -> bool:
        """Whether an attempt has failed, or it has waited for something."""
        return bool(self.attempts or self.waits)

    def add_wait(self, start: float, end: float | None, kind: str) -> None:
        """It waits from now on."""
        self.waits = [*self.waits, [start, end, kind]][-MAX_SPANS:]

    def close_waits(self, at: float) -> None:
        """What it waits for has come."""
        for wait in self.waits:
            if wait[1] is None or wait[1] > at:
                wait[1] = max(at, wait[0])

    def fail(self, at: float, error: str) -> None:
        """The attempt under way has failed."""
        self.close_waits(at)
        ends = [wait[1] for wait in self.waits]
        ends += [attempt[1] for attempt in self.attempts]
        began = min(max([self.start, *ends]), at)
        self.attempts = [*self.attempts, [began, at, error]][-MAX_SPANS:]
        self.note = error

    def stop(self, at: float, status: str) -> None:
        """It has ended, or was stopped."""
        self.close_waits(at)
        self.end = max(at, self.start)
        self.status = status
        self.progress = None

    def move_start(self, at: float) -> None:
        """It began later than was known before: unless something happened in it since."""
        if self.start < at and not self.has_stopped:
            self.start = at

    def facts(self) -> dict[str, Any]:
        """The row as data, without what isn't known and what is empty."""
        facts: dict[str, Any] = {
            "id": self.id,
            "kind": self.kind,
            "label": self.label,
            "start": self.start,
            "status": self.status,
        }
        if self.step is not None:
            facts["step" if self.has_completed else "after"] = self.step
        for name in ("end", "parent"):
            value = getattr(self, name)
            if value is not None:
                facts[name] = value
        for name in ("branch", "note", "attempts", "waits", "output", "crashes", "progress"):
            value = getattr(self, name)
            if value:
                facts[name] = value
        return facts


class RowLog:
    """The rows of a run in the order in which they were added, and when each changed last.

    Each change has a number, the version. Only the newest rows are kept, if there are very many.
    """

    def __init__(self) -> None:
        self.version = 0
        self.event = 0
        """The number of the event that is being taken in."""
        self.dropped = 0
        """How many of the oldest rows are no longer kept."""
        self._rows: list[Row] = []
        # The versions of changes, and the rows that changed. A row that has changed again since has a newer version.
        self._versions = array("q")
        self._changed = array("q")

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: Row) -> Row:
        """Add a row, which gets its id."""
        row.id = self.dropped + len(self._rows)
        row.first_event = self.event
        self._rows.append(row)
        if len(self._rows) > MAX_KEPT_ROWS:
            del self._rows[:DROPPED_AT_ONCE]
            self.dropped += DROPPED_AT_ONCE
        self.touch(row)
        return row

    def touch(self, row: Row) -> None:
        """A row has changed."""
        self.version += 1
        row.version = self.version
        row.last_event = self.event
        self._versions.append(self.version)
        self._changed.append(row.id)
        if len(self._changed) > 2 * len(self._rows) + STALE_CHANGES:
            self._tidy()

    def find(self, id: int) -> Row | None:
        """The row with this id, if it is still kept."""
        index = id - self.dropped
        return self._rows[index] if 0 <= index < len(self._rows) else None

    def since(self, version: int) -> Iterator[Row]:
        """The rows that changed after a version, those that changed last at the end."""
        for place in range(bisect_right(self._versions, version), len(self._versions)):
            row = self._row_at(place)
            if row is not None:
                yield row

    def _row_at(self, place: int) -> Row | None:
        """The row that a change is about, if that is its last one and the row is still kept."""
        index = self._changed[place] - self.dropped
        if index < 0:
            return None
        row = self._rows[index]
        return row if row.version == self._versions[place] else None

    def _tidy(self) -> None:
        """Forget changes of rows that have changed again."""
        kept = [place for place in range(len(self._versions)) if self._row_at(place) is not None]
        self._changed = array("q", [self._changed[place] for place in kept])
        self._versions = array("q", [self._versions[place] for place in kept])


def short(text: Any) -> str:
    """An error or a reason in a line."""
    if isinstance(text, dict):
        text = ": ".join(str(text[name]) for name in ("type", "message") if text.get(name))
    return str(text or "")[:LONGEST_NOTE]
