"""Posts to a run, as another process would send them."""

from __future__ import annotations

from itertools import count

from limpet.journal.inbox import cancel_post
from limpet.journal.store import Store

_requests = count()


def post_cancel(store: Store, run_id: str) -> None:
    """A request to cancel a run."""
    request = cancel_post(run_id, str(next(_requests)))
    assert store.post(run_id, request.key, request.body)
