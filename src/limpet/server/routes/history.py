"""Routes about what happened in a run: its steps, events, output and open questions, page by page."""

from __future__ import annotations

from typing import Any, Final

from limpet.engine.following.cursor import EventCursor
from limpet.engine.following.event_feed import EventFeed
from limpet.engine.following.window import after as place_after
from limpet.engine.leases.lease_client import client_for
from limpet.engine.operations.run_info import info_at_last_stop
from limpet.engine.operations.stored_state import checkpoint_page
from limpet.errors import DamagedRecord, UsageError
from limpet.frontends.run_facts import step_facts
from limpet.journal.inbox import read_output
from limpet.journal.store import Output
from limpet.server.endpoint import FLAG, INTEGER, TEXT, ApiRequest, Endpoint, Parameter, limit_of
from limpet.server.event_stream import shown_event
from limpet.server.values import shown_value

MAX_STEPS: Final = 2000
MAX_EVENTS: Final = 2000
MAX_ITEMS: Final = 2000
"""Steps, events and items of output in one page, at most."""

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
    """A page of what has happened in a run so far."""
    service = request.service
    values = request.values
    whole = values.get("whole", False)
    limit = _limit(request, MAX_EVENTS)
    kind = values.get("type")
    # The feed gets them, too: a cursor says whether there are any, and a client can change its cursor.
    secrets = service.secrets(request.run_id)
    place = EventCursor.from_text(values.get("after"), request.run_id)
    feed = EventFeed(service.store, request.run_id, place, secrets)
    found: list[dict[str, Any]] = []
    next = values.get("after")
    scanned = 0
    while True:
        batch = feed.read()
        for entry in batch.entries:
            scanned += 1
            place = place_after(place, entry)
            next = place.to_text(request.run_id)
            if kind in (None, entry.event["type"]):
                found.append(shown_event({**entry.event, "cursor": next}, secrets, whole))
            if len(found) == limit or scanned == MAX_SCANNED:
                return {"events": found, "next": next, "more": True}
        if not batch.has_more:
            return {"events": found, "next": next, "more": False}


def output(request: ApiRequest) -> dict[str, Any]:
    """A page of what the nodes of a run emitted, oldest first."""
    service = request.service
    limit = _limit(request, MAX_ITEMS)
    after = max(request.values.get("after", 0), 0)
    items = service.store.output(request.run_id, after, limit + 1)
    secrets = service.secrets(request.run_id)
    # One without content stands for output that was deleted.
    shown = [
        _shown_item(request, item, secrets, request.values.get("whole", False))
        for item in items[:limit]
        if item.body
    ]
    return {"items": shown, "next": items[limit - 1].number if len(items) > limit else None}


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
