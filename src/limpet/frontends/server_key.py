"""The key that a store keeps for its servers: what one of them seals, all of them can open, also after a restart."""

from __future__ import annotations

import json
import secrets
from typing import Final

from limpet.graphs.names import SERVER_KEY
from limpet.journal.store import Store

KEY_BYTES: Final = 32


def server_key(store: Store) -> bytes:
    """The key of the servers of this store, which is made now if there is none.

    Raises `UsageError` for a store that keeps no documents.
    """
    while True:
        key = known_server_key(store)
        if key is not None:
            return key
        # Another server may make one at the same moment: then it is that one.
        store.put_document(SERVER_KEY, json.dumps({"key": secrets.token_hex(KEY_BYTES)}).encode(), 0)


def known_server_key(store: Store) -> bytes | None:
    """The same; None before a server has needed it."""
    document = store.get_document(SERVER_KEY)
    if document is None:
        return None
    return bytes.fromhex(json.loads(document.body)["key"])
