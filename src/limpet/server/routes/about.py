"""The route about the server itself: what it serves, and what it allows."""

from __future__ import annotations

from typing import Any, Final

from limpet.engine.leases.lease_client import client_for
from limpet.engine.operations.run_info import SHOWN_STATUSES
from limpet.journal.store import CANCELLED, COMPLETED, DAMAGED, FAILED, PAUSED, RUNNING
from limpet.server.endpoint import ApiRequest, Endpoint
from limpet.server.routes.runs import FILTERS
from limpet.version import VERSION

STATUSES: Final = {
    FAILED: "an error has stopped it",
    PAUSED: "it waits for an answer or an approval",
    RUNNING: "a process executes it",
    **{each.name: each.when for each in SHOWN_STATUSES},
    COMPLETED: "it has a result",
    CANCELLED: "it was stopped",
    DAMAGED: "it can't be read",
}
"""What the statuses mean, in the order in which people look for them."""


def about(request: ApiRequest) -> dict[str, Any]:
    """What the server serves. The name of the store has no password."""
    service = request.service
    return {
        "version": VERSION,
        "store": str(service.store),
        "graphs": sorted(service.graphs),
        "read_only": service.read_only,
        "filters": {each.name: each.about for each in FILTERS},
        "statuses": STATUSES,
        "now": client_for(service.store).now(),
        "user": request.user,
    }


ENDPOINTS: Final = (Endpoint("GET", "/about", about, "What the server serves, and what it allows", "About"),)
