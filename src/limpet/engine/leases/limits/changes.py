"""What a thread wants of a limit, and what one change of the limit's document is to be: for `LimitSteps`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from limpet.engine.leases.limits import rules
from limpet.engine.leases.limits.document import LimitDocument, LineEntry
from limpet.engine.leases.limits.rules import Ask
from limpet.engine.leases.limits.stored_limit import StoredLimit

MOST_SERVED: Final = 50
"""How many in line are served by one change."""

TAKE: Final = "take"
RELEASE: Final = "release"
UNDO: Final = "undo"
KEEP: Final = "keep"
UNCOUNT: Final = "uncount"


class Step:
    """What a thread wants of a limit, and the outcome.

    A TAKE has the `old_ticket` that its call stood in line with, if it did, and gets the `ticket` that it stands
    in line with. An UNDO, an UNCOUNT and a KEEP have the time of the grant, and a KEEP its place in another line as
    `mark`.
    """

    def __init__(self, kind: str, ask: Ask) -> None:
        self.kind = kind
        self.ask = ask
        self.old_ticket = ""
        self.ticket = ""
        self.stands_in_line = False
        self.is_standing = False
        """Whether it has a place in line that it got by this ask, so that its run has had no post about that."""
        self.is_granted = False
        self.granted_at = 0.0
        self.is_counted = False
        """Whether the grant was counted for the rate, as of `granted_at`."""
        self.counted_at: float | None = None
        """As of when it counts by what is written, if that is too long ago."""
        self.mark = ""

    def given_back(self, document: LimitDocument, now: float) -> LimitDocument:
        """The document once what this step gives back is given back; the same for one that takes a slot."""
        if self.kind == RELEASE:
            return rules.release(document, self.ask)
        if self.kind == UNDO:
            return rules.undo(document, self.ask, self.granted_at)
        if self.kind == UNCOUNT:
            return rules.uncount(document, self.ask, self.granted_at)
        if self.kind == KEEP:
            return rules.keep(document, self.ask, self.granted_at, self.mark, now)
        return document

    def entry(self, round: str) -> LineEntry:
        """Its place in the line."""
        return LineEntry(self.ticket, *self.ask.place, self.ask.counts, round)


class Change:
    """What one change of a limit's document is to be, and what has to happen after it is written."""

    def __init__(self, document: LimitDocument) -> None:
        self.document = document
        self.standing: list[LineEntry] = []
        """Calls that get a place in the line."""
        self.told: list[LineEntry] = []
        """Calls in the line whose turn it is."""
        self.leaving: list[LineEntry] = []
        """Calls that leave the line."""
        self.is_line_served = False
        """Whether all that stand in line have a slot, or one that is reserved for them."""

    @property
    def has_more_to_serve(self) -> bool:
        """Whether others in line may be served."""
        if not rules.is_limiting(self.document):
            return bool(self.told)
        return len(self.told) >= MOST_SERVED

    def only_confirms(self, before: LimitDocument, steps: Sequence[Step]) -> bool:
        """Whether steps are granted by slots that they have, and nothing changes."""
        is_granted = any(step.is_granted for step in steps)
        return self.document == before and rules.is_limiting(before) and is_granted

    def follow_up(self, stored: StoredLimit) -> None:
        """Do what has to happen after it is written."""
        for entry in self.standing:
            stored.stand(entry)
        for entry in self.told:
            stored.tell(entry)
        for entry in self.leaving:
            stored.leave(entry)


class Pending:
    """The steps of one thread, and why they failed."""

    __slots__ = ("error", "is_done", "steps")

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.is_done = False
        self.error: BaseException | None = None
