"""Routes about what happened in a run: its steps, events, output and open questions, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from limpet.engine.following.cursor import EventCursor
from limpet.engine.following.event_feed import EventFeed
from limpet.engine.following.run_events import Event
from limpet.engine.following.window import after as place_after
from limpet.engine.leases.lease_client import client_for
from limpet.engine.operations.run_info import info_at_last_stop
from limpet.engine.operations.stored_state import checkpoint_page
from limpet.errors import DamagedRecord, UsageError
from limpet.frontends.run_facts import step_facts
from limpet.frontends.values import check_size, shown_value, size_of
from limpet.journal.inbox import read_output
from limpet.journal.store import Output
from limpet.server.endpoint import FLAG, INTEGER, TEXT, ApiRequest, Endpoint, Parameter, limit_of
from limpet.server.event_stream import shown_event

MAX_STEPS: Final = 2000
MAX_EVENTS: Final = 2000
MAX_ITEMS: Final = 2000
"""Steps, events and items of output in one page, at most."""

PAGE_BYTES: Final = 4_000_000
"""Bytes of JSON of a page of events or items, at most, unless one alone has more."""

MAX_WHOLE: Final = 20
"""Events or items in a page with large values, at most."""

USUAL: Final = 200
"""How many are in a page, if that isn't said."""

MAX_SCANNED: Final = 20_000
"""Events that are looked through for those of one type, at most. The next page begins there."""


def history(request: ApiRequest) -> dict[str, Any]:
    """A page of the steps of a run, oldest first."""
    after = max(request.values.get("after", -1), -1)
    limit = limit_of(request, MAX_STEPS, USUAL)
    page, has_more = checkpoint_page(client_for(request.service.store), request.run_id, after, limit)
    return {
        "steps": [{**step_facts(each), "keys": list(each.keys), "reason": each.reason} for each in page],
        "next": page[-1].step if page and has_more else None,
    }


def events(request: ApiRequest) -> dict[str, Any]:
    """A page of what has happened in a run so far. Before a damaged record it ends, and says so."""
    service = request.service
    values = request.values
    page = _Page(_limit(request, MAX_EVENTS), values.get("whole", False))
    kind = values.get("type")
    # The feed gets them, too: a cursor says whether there are any, and a client can change its cursor.
    secrets = service.secrets(request.run_id)
    place = EventCursor.from_text(values.get("after"), request.run_id)
    feed = EventFeed(service.store, request.run_id, place, secrets)
    next = values.get("after")
    has_more = False
    problem = None
    try:
        for scanned, (event, cursor) in enumerate(_events_after(feed, place, request.run_id)):
            has_more = page.is_full or scanned == MAX_SCANNED
            if not has_more and kind in (None, event["type"]):
                has_more = not page.add(shown_event({**event, "cursor": cursor}, secrets, page.is_whole))
            if has_more:
                break
            next = cursor
    except DamagedRecord as damage:
        if next is None:
            raise
        problem = damage.message
    return {"events": page.items, "next": next, "more": has_more, "problem": problem}


def _events_after(feed: EventFeed, place: EventCursor, run_id: str) -> Iterator[tuple[Event, str]]:
    """The events that a feed reads after a place, each with its cursor."""
    has_more = True
    while has_more:
        batch = feed.read()
        for entry in batch.entries:
            place = place_after(place, entry)
            yield entry.event, place.to_text(run_id)
        has_more = batch.has_more


def output(request: ApiRequest) -> dict[str, Any]:
    """A page of what the nodes of a run emitted, oldest first."""
    service = request.service
    limit = _limit(request, MAX_ITEMS)
    page = _Page(limit, request.values.get("whole", False))
    next = max(request.values.get("after", 0), 0)
    items = service.store.output(request.run_id, next, limit + 1)
    secrets = service.secrets(request.run_id)
    has_more = len(items) > limit
    for item in items[:limit]:
        has_content = bool(item.body)  # else it stands for output that was deleted
        if page.is_full or (has_content and not page.add(_shown_item(request, item, secrets, page.is_whole))):
            has_more = True
            break
        next = item.number
    return {"items": page.items, "next": next if has_more else None}


class _Page:
    """Gathers what fits into one answer. If it is `whole`, it has large values, too."""

    def __init__(self, limit: int, is_whole: bool) -> None:
        self.items: list[dict[str, Any]] = []
        self.is_whole = is_whole
        self._limit = limit
        self._size = 0

    @property
    def is_full(self) -> bool:
        """Whether it has as many as were asked for."""
        return len(self.items) == self._limit

    def add(self, item: dict[str, Any]) -> bool:
        """Add an item; False if it has to be on the next page. Raises `HttpProblem` if it is too large for any."""
        size = size_of(item)
        if self.items and self._size + size > PAGE_BYTES:
            return False
        if self.is_whole:
            check_size(size)
        self.items.append(item)
        self._size += size
        return True


def _shown_item(request: ApiRequest, item: Output, secrets: frozenset[str], whole: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"number": item.number}
    try:
        emitted = read_output(request.run_id, item.body)
    except (DamagedRecord, ValueError, TypeError) as problem:
        return {**facts, "type": "output", "at": 0.0, "problem": str(problem)}
    facts |= {"type": emitted.kind, "at": emitted.at, "node": emitted.node, **emitted.place}
    if emitted.kind == "progress":
        return shown_event({**facts, **emitted.data})
    return shown_event({**facts, "data": emitted.data}, secrets, whole)


def questions(request: ApiRequest) -> dict[str, Any]:
    """What a run asks at the moment."""
    info = info_at_last_stop(client_for(request.service.store), request.run_id)
    return {"questions": [shown_value(each._asdict()) for each in info.questions]}


def _limit(request: ApiRequest, most: int) -> int:
    """How many are in a page. Raises `UsageError` for many with large values."""
    if not request.values.get("whole"):
        return limit_of(request, most, USUAL)
    limit = limit_of(request, most, MAX_WHOLE)
    if limit > MAX_WHOLE:
        raise UsageError(f"with whole=true, limit must be at most {MAX_WHOLE}")
    return limit


_RUN: Final = "/runs/{run_id}"
_WHOLE: Final = Parameter("whole", FLAG, f"with large values, too; at most {MAX_WHOLE} in a page")

ENDPOINTS: Final = (
    Endpoint(
        "GET",
        f"{_RUN}/history",
        history,
        "The steps of a run, oldest first",
        "StepPage",
        query=(
            Parameter("after", INTEGER, "`next` of the page before, or any step"),
            Parameter("limit", INTEGER, f"steps in the page ({USUAL}), at most {MAX_STEPS}"),
        ),
    ),
    Endpoint(
        "GET",
        f"{_RUN}/events",
        events,
        "What has happened in a run so far, oldest first; with a type, such as answer, only that",
        "EventPage",
        query=(
            Parameter("after", TEXT, "`next` of the page before, or the cursor of any event"),
            Parameter("type", TEXT, "only events of this type"),
            Parameter("limit", INTEGER, f"events in the page ({USUAL}), at most {MAX_EVENTS}"),
            _WHOLE,
        ),
    ),
    Endpoint(
        "GET",
        f"{_RUN}/output",
        output,
        "What the nodes of a run emitted, oldest first",
        "OutputPage",
        query=(
            Parameter("after", INTEGER, "`next` of the page before, or the number of any item"),
            Parameter("limit", INTEGER, f"items in the page ({USUAL}), at most {MAX_ITEMS}"),
            _WHOLE,
        ),
    ),
    Endpoint("GET", f"{_RUN}/questions", questions, "What a run asks at the moment", "QuestionList"),
)
