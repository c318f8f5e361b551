"""`EventCursor`: a place in the events of a run, which a follower can continue from, in any process."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from limpet.errors import UsageError
from limpet.journal.store import RunHead

FORMAT = "2"
"""What a cursor of this format begins with. Those of the first format had no run."""

ALL_EVENTS = 2**31
"""More events than a step has."""

MAX_DIGITS = 19
"""Digits that a number in a cursor may have."""


class EventCursor(NamedTuple):
    """A place between two events of a run.

    All events of records up to `record` were given, and the first `part` ones of the next record. `step` is the
    newest step that was given, plus one, and `given` how many events of that step were. `output` is the number of the
    newest item of output that was given. After record `base` no branch was open and nothing was asked, so reading
    from there on tells what events need to know. `has_secrets` is 1 if some keys of the run are secret, `after_gap`
    if records before the next one were deleted, which the follower was given.
    """

    record: int = 0
    part: int = 0
    step: int = 0
    given: int = 0
    output: int = 0
    base: int = 0
    has_secrets: int = 0
    after_gap: int = 0

    def check(self, head: RunHead) -> None:
        """Raise `UsageError` if the run with this head hasn't come so far: the cursor is of an earlier one."""
        if self.record > head.sequence or self.output > head.output:
            raise UsageError(
                f"the cursor is of an earlier run {head.run_id!r}: it is further than this one has come"
            )

    def to_text(self, run_id: str) -> str:
        """The cursor as events of the run have it. It fits into a header or a line, whatever the id is made of."""
        return f"{FORMAT}:{'.'.join(map(str, self))}:{quote(run_id, safe='')}"

    @classmethod
    def newest(cls, head: RunHead, step: int) -> EventCursor:
        """The place after all that has happened in a run by now, at this step."""
        return cls(
            record=head.sequence,
            step=step + 1,
            given=ALL_EVENTS,
            output=head.output,
            base=max(0, head.snapshot - 1),
            has_secrets=1,
        )

    @classmethod
    def from_text(cls, text: Any, run_id: str) -> EventCursor:
        """The cursor that an event of the run had; None is the beginning. Raises `UsageError` for anything else."""
        if text is None:
            return cls()
        format, numbers, of_run = _parts(text)
        if format != FORMAT:
            unknown = UsageError(f"the cursor {text!r} is from another version of Limpet")
            raise unknown.with_advice("follow the run from its beginning: events(after=None)")
        cursor = cls(*numbers)
        if cursor.base > cursor.record:
            raise _no_cursor(text)
        if of_run != run_id:
            raise UsageError(f"{text!r} is a cursor of run {of_run!r}, and this is run {run_id!r}")
        return cursor


def _parts(text: Any) -> tuple[str, list[int], str]:
    """The format, the numbers and the run of a cursor. Raises `UsageError` if it never was one."""
    if not isinstance(text, str):
        raise _no_cursor(text)
    parts = text.split(":")
    if len(parts) == 1:
        parts = ["1", text, ""]
    format, numbers, of_run = parts if len(parts) == 3 else ("", "", "")
    texts = numbers.split(".")
    are_numbers = all(_is_number(each) for each in (format, *texts))
    if not are_numbers or (format in ("1", FORMAT) and len(texts) != len(EventCursor._fields)):
        raise _no_cursor(text)
    return format, [int(each) for each in texts], unquote(of_run)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < MAX_DIGITS


def _no_cursor(text: Any) -> UsageError:
    wrong = UsageError(f"{text!r:.200} isn't the cursor of an event")
    return wrong.with_advice("give the `cursor` of an event of the run, or None for all events")
