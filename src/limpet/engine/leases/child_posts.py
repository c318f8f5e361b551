"""What passes between parents and children by posts: that a child ends, and that it is to be cancelled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from limpet.engine.leases.lease_client import LeaseClient, held_in_this_process, nudge_supervisors
from limpet.errors import AlreadyCompleted, RunNotFound, StoreError
from limpet.journal.inbox import cancel_post, child_end_post
from limpet.journal.progress import Progress
from limpet.journal.record_shapes import read_summary
from limpet.journal.run_filter import RunFilter, list_in_pages
from limpet.journal.store import CANCELLED, ENDED, PAUSED, RUNNING, Commit, RunHead


def announce_end(client: LeaseClient, progress: Progress, commit: Commit) -> Exception | None:
    """Before a commit that ends a run: post to its parent that it ends, and to its children if it is cancelled.

    In this order no crash loses a post. Returns why it can't be posted; None if it was, or if there is none to post.
    """
    if commit.status not in ENDED:
        return None
    try:
        # A former holder, which stops because it has lost its lease, cancels nothing: its commit will be refused.
        if commit.status == CANCELLED and client.store.head(commit.run_id).fence == commit.fence:
            cancel_children(client, commit.run_id)
        if progress.child_of is not None:
            post_end(client, progress.child_of, commit.run_id, f"{commit.fence}.{commit.expected}")
    except StoreError as problem:
        return problem
    return None


def post_end(client: LeaseClient, parent: str, child: str, mark: str) -> None:
    """Post to a parent that a child is about to end. `mark` is the same if that is repeated before it has ended.

    A parent that is complete, or was deleted, needs no post. Raises `StoreError`.
    """
    if client.store.abilities.takes_part:
        post = child_end_post(parent, child, mark)
        with suppress(RunNotFound, AlreadyCompleted):
            client.store.post(parent, post.key, post.body)


def notice_end(client: LeaseClient, parent: str) -> None:
    """A child has ended: have its parent go on, if this process executes it, or can."""
    held_here = held_in_this_process(client.store, parent)
    if held_here is not None:
        held_here.stop.notice_posts()
    else:
        nudge_supervisors(client.store)


def cancel_children(client: LeaseClient, run_id: str) -> None:
    """Ask all children of a run to stop that haven't ended, before the run itself is cancelled. Raises `StoreError`.

    The process that executes a child carries that out, or the next that claims it, which cancels the child's own.
    """
    store = client.store
    if not store.abilities.takes_part:
        return
    for head in unfinished_children(client, run_id):
        # A child is cancelled once for each of its claims, however often this is repeated.
        request = cancel_post(head.run_id, f"parent.{head.fence}")
        with suppress(RunNotFound, AlreadyCompleted):
            store.post(head.run_id, request.key, request.body)
        held_here = held_in_this_process(store, head.run_id)
        if held_here is not None:
            held_here.stop.ask()
    nudge_supervisors(store)


def unfinished_children(client: LeaseClient, run_id: str) -> Iterator[RunHead]:
    """The children of a run that haven't ended."""
    for head in list_in_pages(client.store, RunFilter(statuses=(RUNNING, PAUSED), parent=run_id)):
        # A run that was forked from a checkpoint file of this one is found by the same filter.
        with suppress(ValueError):
            if "child_of" in read_summary(head.note):
                yield head
