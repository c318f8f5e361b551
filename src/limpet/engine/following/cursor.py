"""`EventCursor`: a place in the events of a run, which a follower can continue from, in any process."""

from __future__ import annotations

from typing import NamedTuple

from limpet.errors import UsageError

MAX_DIGITS = 19
"""Digits that a number in a cursor may have."""


class EventCursor(NamedTuple):
    """A place between two events of a run.

    All events of records up to `record` were given, and the first `part` ones of the next record. `step` is the
    newest step that was given, plus one, and `told` how many events of that step were. `output` is the number of the
    newest item of output that was given. After record `base` no branch was open and nothing was asked, so reading
    from there on tells what events need to know. `has_secrets` is 1 if some keys of the run are secret, `after_gap`
    if records before the next one were deleted, which the follower was given.
    """

    record: int = 0
    part: int = 0
    step: int = 0
    told: int = 0
    output: int = 0
    base: int = 0
    has_secrets: int = 0
    after_gap: int = 0

    def to_text(self) -> str:
        """The cursor as events have it."""
        return ".".join(map(str, self))

    @classmethod
    def from_text(cls, text: str | None) -> EventCursor:
        """The cursor that an event had; None is the beginning. Raises `UsageError` for another text."""
        if text is None:
            return cls()
        parts = text.split(".") if isinstance(text, str) else []
        are_numbers = all(part.isascii() and part.isdecimal() and len(part) < MAX_DIGITS for part in parts)
        if len(parts) != len(cls._fields) or not are_numbers:
            raise UsageError(f"{text!r} isn't the cursor of an event")
        cursor = cls(*map(int, parts))
        if cursor.base > cursor.record:
            raise UsageError(f"{text!r} isn't the cursor of an event")
        return cursor
