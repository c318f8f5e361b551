"""`state.checkpoint(store)`: save a State by hand, as the newest checkpoint of its run."""

from __future__ import annotations

from time import time
from typing import Any

from limpet.engine.leases.interrupted_calls import releases_if_interrupted
from limpet.engine.leases.lease_client import LeaseClient, client_for
from limpet.engine.loop.run_lifecycle import ROLLBACK, next_status
from limpet.engine.sessions.start import check_id, new_run
from limpet.errors import RunExists
from limpet.journal.progress import Progress
from limpet.journal.reader import next_unused_step, read_progress
from limpet.journal.waits import give_back
from limpet.journal.writer import JournalWriter, summary
from limpet.stores.opening import open_store
from limpet.stores.user_stores.checkpoint_state import KEY
from limpet.stores.user_stores.state_store import is_state_store, saved_by_hand


def save_state(target: Any, state: Any) -> None:
    """Save a State to a store, in whatever form that is given.

    A run that exists is set to this state and paused there; a new one belongs to the graph that resumes it. Raises
    `UnstorableValue`, `UsageError`, `StoreUnavailable`, and `Conflict` while another process advances the run.
    """
    check_id(state.run_id)
    if is_state_store(target):
        target.save(_without_run(state))
        return
    client = client_for(open_store(target))
    progress = saved_by_hand(state)
    try:
        client.store.create(new_run(progress, (), None, client.ttl))
    except RunExists:
        _replace(client, progress)


def _without_run(state: Any) -> Any:
    """The State without the run that a user's store may have put into it: that is out of date by now."""
    if KEY not in state:
        return state
    plain = state._copy()
    del plain[KEY]
    return plain


@releases_if_interrupted
def _replace(client: LeaseClient, progress: Progress) -> None:
    """Set a stored run to this state, after its node."""
    with client.holding(progress.run_id) as held:
        tail = held.read()
        if tail.records:
            stored = read_progress(tail)
            progress.graph = stored.graph
            progress.fingerprint = stored.fingerprint
            progress.config = stored.config
            progress.meta = stored.meta
            progress.parent = stored.parent
            # What was sent to the run waits for it still, and so does what a node had received.
            give_back(stored)
            progress.mailbox = stored.mailbox
            progress.letters = stored.letters
            progress.child_of = stored.child_of
            progress.deadline = stored.deadline
        progress.crashes = held.crashes
        progress.at = time()
        # A number that no step has had: the history keeps those that came before.
        progress.step = next_unused_step(client.store.read(progress.run_id, first=1))
        progress.status = next_status(tail.head.status, ROLLBACK)
        writer = JournalWriter(progress.run_id, held.fence, tail.head.sequence)
        writer.add_snapshot(progress)
        held.commit(writer.commit(progress.status, summary(progress), ignores_posts=True))
