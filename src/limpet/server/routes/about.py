"""The route about the server itself: what it serves, and what it allows."""

from __future__ import annotations

from typing import Any, Final

from limpet.engine.leases.lease_client import client_for
from limpet.server.endpoint import ApiRequest, Endpoint
from limpet.version import VERSION


def about(request: ApiRequest) -> dict[str, Any]:
    """What the server serves. The name of the store has no password."""
    service = request.service
    return {
        "version": VERSION,
        "store": str(service.store),
        "graphs": sorted(service.graphs),
        "read_only": service.read_only,
        "now": client_for(service.store).now(),
        "user": request.user,
    }


ENDPOINTS: Final = (Endpoint("GET", "/about", about, "What the server serves, and what it allows", "About"),)
