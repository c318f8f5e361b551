"""What a client hands back with its answers: which run it is about. It is sealed, expires, and counts once.

The SDK seals it with a key that the store keeps, so that another server of the store can open it, and binds it to the
tool and the arguments of the call. Here it is seen to that it counts once: the first reply leaves a mark in the
store, and a later one changes nothing.
"""

from __future__ import annotations

import hmac
import json
import secrets
from typing import Final, NamedTuple

from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity

from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.operations.run_info import RunInfo
from limpet.frontends.server_key import server_key
from limpet.graphs.names import MCP_REPLIES
from limpet.integrations.mcp.http import user_of
from limpet.journal.store import Store

STATE_LASTS: Final = 7 * 24 * 3600.0
"""Seconds in which a person may answer. Later the client calls the tool again."""

CLEANED_AT_ONCE: Final = 50
"""Marks of replies, whose time is over, that are deleted when another is made."""

PURPOSE: Final = b"limpet mcp request state"
"""What distinguishes this use of the store's key from others."""


class RequestState(NamedTuple):
    """What is handed back: the run, when it was created, a number that counts once, and what was declined."""

    run_id: str
    created: float
    nonce: str
    declined: tuple[str, ...] = ()


def boundary(store: Store, lasts: float = STATE_LASTS) -> RequestStateBoundary:
    """What seals and opens all states of a server. One for a user is of no use to another.

    Raises `UsageError` for a store that keeps no documents.
    """
    key = hmac.digest(server_key(store), PURPOSE, "sha256")
    security = RequestStateSecurity(
        keys=[key], ttl=lasts, bind_principal=lambda context: user_of(context) or None
    )
    return RequestStateBoundary(security, default_audience="limpet")


def state_for(run: RunInfo, declined: tuple[str, ...] = ()) -> str:
    """A new state about a run, in plain text: the boundary seals it."""
    return json.dumps(RequestState(run.run_id, run.created, secrets.token_hex(16), declined))


def read_state(text: str) -> RequestState:
    """The state in a text that the boundary has opened."""
    run_id, created, nonce, declined = json.loads(text)
    return RequestState(run_id, created, nonce, tuple(declined))


def is_first_use(client: LeaseClient, state: RequestState, lasts: float) -> bool:
    """Whether this state, which counts for this many seconds, wasn't handed back before. From now on, it was."""
    store = client.store
    now = client.now()
    marked = store.put_document(MCP_REPLIES + state.nonce, b"{}", 0, due=now + lasts)
    for old in store.list_documents(MCP_REPLIES, due=True, limit=CLEANED_AT_ONCE):
        if old.due is not None and old.due <= now:
            store.delete_document(old.name, old.version)
    return marked is not None
