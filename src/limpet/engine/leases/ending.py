"""End a run that no process executes: without its graph, by one commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import time
from typing import Any

from limpet.engine.leases.child_posts import announce_end, notice_end
from limpet.engine.leases.inbox_checks import take_in_all
from limpet.engine.leases.lease_client import HeldRun, LeaseClient
from limpet.journal.progress import Progress
from limpet.journal.store import RunHead
from limpet.journal.writer import JournalWriter, summary


def end_held_run(
    client: LeaseClient,
    held: HeldRun,
    head: RunHead,
    progress: Progress,
    changes_of: Callable[[Progress], Mapping[str, Any]],
) -> None:
    """Commit that a run has ended, as the process would that executes it. `changes_of` gives its status, and why.

    `head` and `progress` are as they were just read. First, what was posted to the run is taken in: a request to
    cancel it must not cancel it a second time, once it is resumed. Its parent gets to know that it has ended. Raises
    the store's refusal.
    """
    progress.crashes = held.crashes
    writer = JournalWriter(progress.run_id, held.fence, head.sequence)
    if head.posted > head.taken:
        take_in_all(client.store, progress, writer, held.now)
    changes = changes_of(progress)
    writer.add_move(progress, changes, time())
    commit = writer.commit(changes["status"], summary(progress), ignores_posts=True)
    if (problem := announce_end(client, progress, commit)) is not None:
        raise problem
    held.commit(commit)
    if progress.child_of is not None:
        notice_end(client, progress.child_of)
