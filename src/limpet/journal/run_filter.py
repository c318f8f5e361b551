"""Which runs to list: `RunFilter`, `Cursor`, a place in such a list, and how to list any number of them."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from limpet.journal.store import RunHead, Store

PAGE_SIZE = 1000
"""Runs that a store is asked for at once, where all that match are wanted."""


class Cursor(NamedTuple):
    """A place in a list of runs: that of the run that was created then, and has this id."""

    created: float
    run_id: str


class LeaseState(Enum):
    """How a run is held."""

    FREE = "free"
    """It has no holder."""
    HELD = "held"
    """Its holder has a valid lease."""
    EXPIRED = "expired"
    """It has a holder, whose lease has expired: the holder has crashed, or is cut off from the store."""


UNHELD = (LeaseState.FREE, LeaseState.EXPIRED)
"""How a run can be claimed: no holder has a valid lease."""


class RunFilter(NamedTuple):
    """Which runs to list, newest first, from `after` on and at most `limit`. What is None or empty doesn't restrict.

    A run has one of `statuses`, all of `tags`, and one of `lease_states`. `created_since`, `updated_before` and the
    like are times by the store's clock; "since" includes the time, "before" doesn't. `node`, `error` and
    `plan` are those of its labels. `is_due` selects runs that are due by now, or aren't due before later; a run
    without a due time is neither. `has_error` and `is_waiting` say whether the labels name an error, or something to
    wait for.
    """

    statuses: tuple[str, ...] = ()
    graph: str | None = None
    queue: str | None = None
    plan: str | None = None
    tags: tuple[str, ...] = ()
    parent: str | None = None
    node: str | None = None
    error: str | None = None
    created_since: float | None = None
    created_before: float | None = None
    updated_since: float | None = None
    updated_before: float | None = None
    lease_states: tuple[LeaseState, ...] = ()
    is_due: bool | None = None
    has_error: bool | None = None
    is_waiting: bool | None = None
    after: Cursor | None = None
    limit: int | None = None


def list_in_pages(store: Store, which: RunFilter) -> Iterator[RunHead]:
    """All runs that match, newest first, asked for in parts: a store may have any number of them."""
    after: Cursor | None = None
    while page := store.list(which._replace(after=after, limit=PAGE_SIZE)):
        yield from page
        after = page[-1].cursor
