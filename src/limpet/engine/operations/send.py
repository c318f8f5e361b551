"""Send a message to a run, whichever process executes it."""

from __future__ import annotations

from typing import Any

from limpet.engine.leases.lease_client import LeaseClient, held_in_this_process, nudge_supervisors
from limpet.engine.node_context.messages import check_name
from limpet.engine.operations.run_info import run_info, way_on
from limpet.engine.sessions.compiled_graph import check_own
from limpet.errors import UsageError
from limpet.graphs.plan import Plan
from limpet.graphs.state import new_id
from limpet.journal.inbox import letter_post
from limpet.journal.store import COMPLETED, ENDED, RunHead
from limpet.journal.threads.kinds import refuse_thread
from limpet.journal.waits import MESSAGE


def send(
    client: LeaseClient, run_id: str, name: str, value: Any, key: str | None = None, plan: Plan | None = None
) -> bool:
    """Send a message to a run: one of this plan's graph, if one is given. False if its key was sent before.

    That is so for a completed run, too: a webhook may be delivered again, and a node called again, after the end.
    It waits for the run durably when this returns. If a node waits for it, the process that executes the run, or a
    supervisor of the store, continues the run. Raises `RunNotFound`, `WrongGraph`, `UnstorableValue`, and
    `AlreadyCompleted` or `UsageError` for a run that has ended, or for a store that takes no messages.
    """
    check_name(name, "send")
    if key is not None and (not isinstance(key, str) or not key):
        raise UsageError(f"send(key={key!r}): a key is a str that isn't empty")
    if not client.store.abilities.takes_part:
        raise UsageError(f"nothing can be sent to runs in {client.store}").with_advice(
            "keep them in one of Limpet's own stores: SQLite, PostgreSQL, Redis, files or memory"
        )
    head = client.head(run_id)
    refuse_thread(head)
    if plan is not None:
        check_own(plan, run_id, head.graph)
    _refuse_stopped(head)
    unique = f".{new_id()}" if key is None else f"={key}"
    message = letter_post(run_id, MESSAGE, name, value, client.now(), unique)
    is_new = client.store.post(run_id, message.key, message.body)
    held_here = held_in_this_process(client.store, run_id)
    if held_here is not None:
        held_here.stop.notice_posts()
    nudge_supervisors(client.store)
    return is_new


def _refuse_stopped(head: RunHead) -> None:
    """Raise `UsageError` if the run failed or was cancelled. Stores refuse what is new to a completed run."""
    if head.status in ENDED and head.status != COMPLETED:
        info = run_info(head)
        stopped = UsageError(
            f"run {head.run_id!r} is {info.shown_status}, and receives no messages until it runs"
        )
        raise stopped.with_advice(*way_on(info))
