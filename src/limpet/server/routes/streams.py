"""Routes that stream: what happens in a run, and what changes in its timeline, as server-sent events.

Their functions return what is sent, message by message. They run on the event loop, and must not block it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.concurrency import run_in_threadpool

from limpet.engine.following.cursor import EventCursor
from limpet.engine.following.follow import afollow
from limpet.engine.leases.lease_client import client_for
from limpet.journal.store import ENDED
from limpet.server.endpoint import TEXT, ApiRequest, Endpoint, Parameter
from limpet.server.event_stream import event_stream
from limpet.server.routes.run import timeline
from limpet.server.timeline_stream import timeline_stream


async def run_events(request: ApiRequest) -> AsyncIterator[bytes] | None:
    """What happened in a run after a cursor, and what happens from now on; None if there won't be more."""
    service = request.service
    client = client_for(service.store)
    after = request.values.get("after")

    def is_over() -> bool:
        head = client.head(request.run_id)
        cursor = EventCursor.from_text(after, request.run_id)
        cursor.check(head)
        return head.status in ENDED and cursor.record >= head.sequence and cursor.output >= head.output

    if await run_in_threadpool(is_over):
        return None
    # The events get them, too: a cursor says whether there are any, and a client can change its cursor.
    secrets = await run_in_threadpool(service.secrets, request.run_id)
    return event_stream(afollow(client, request.run_id, after, secrets), secrets)


async def timeline_changes(request: ApiRequest) -> AsyncIterator[bytes]:
    """What changes in the timeline of a run after a version."""
    client = client_for(request.service.store)
    # Raises for a run that doesn't exist, while that can still be the answer.
    await run_in_threadpool(client.head, request.run_id)

    def changes(version: str) -> dict[str, Any]:
        return timeline(request._replace(values={"after": version}))

    after = request.values.get("after") or ""
    return timeline_stream(request.service.timelines, client, request.run_id, changes, after)


async def run_changes(request: ApiRequest) -> AsyncIterator[bytes]:
    """That runs of the store have changed, from now on or after a cursor."""
    # A client that loads its list when the answer begins misses no change.
    return await request.service.changes.begin(request.values.get("after"))


ENDPOINTS: Final = (
    Endpoint(
        "GET",
        "/live",
        run_changes,
        "Says when runs of the store have changed, once a second at most; Last-Event-ID resumes it",
        "EventStream",
        query=(Parameter("after", TEXT, "the id of the last message that the client got"),),
    ),
    Endpoint(
        "GET",
        "/runs/{run_id}/live",
        run_events,
        "What happened in a run, and what happens from now on; Last-Event-ID resumes it",
        "EventStream",
        query=(Parameter("after", TEXT, "the cursor of the last event that the client got"),),
        may_be_over=True,
    ),
    Endpoint(
        "GET",
        "/runs/{run_id}/timeline/live",
        timeline_changes,
        "What changes in the timeline of a run; Last-Event-ID resumes it",
        "EventStream",
        query=(Parameter("after", TEXT, "the version of the timeline that the client has"),),
    ),
)
