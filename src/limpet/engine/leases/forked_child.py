"""A child process that was forked while a run was executed, by a node above all: it may write nothing to that run.

The child has a copy of its parent's sessions, with leases whose fence is the newest. So a store couldn't tell its
commits from those of the parent: the child itself has to refuse them. This module is imported in such a child only,
and no other process pays for the check.
"""

from __future__ import annotations

from collections.abc import Callable

from limpet.engine.leases.group_commit import GroupCommit, PendingCommit
from limpet.engine.leases.lease_client import LeaseClient
from limpet.errors import Conflict
from limpet.journal.store import Commit


def start_over(client: LeaseClient) -> None:
    """Start over in a forked child. What it still has of its parent's runs writes nothing, and calls no node.

    `leases_of_parent` are the runs that the parent held at the fork, each with its fence. A child of the child has
    them, too.
    """
    for held in [held for ref in client.held.valuerefs() if (held := ref()) is not None]:
        client.leases_of_parent.add((held.lease.run_id, held.lease.fence))
        held.lost = True
        held.stop.asked = True  # not `ask()`, which wakes threads that the child doesn't have
    client.reset()
    commits = CommitsOfChild(client.group_commit, client.leases_of_parent)
    client.commit = commits.commit
    client.commit_later = commits.commit_later


class CommitsOfChild:
    """The commits of a forked child: those of its own runs are written, those of its parent's runs are refused."""

    def __init__(self, group_commit: GroupCommit, leases_of_parent: set[tuple[str, int]]) -> None:
        self._group_commit = group_commit
        self._leases_of_parent = leases_of_parent

    def commit(self, commit: Commit) -> Exception | None:
        """Write a commit, or return why it is refused."""
        return self._refusal(commit) or self._group_commit.commit(commit)

    def commit_later(self, commit: Commit, on_done: Callable[[PendingCommit], None]) -> None:
        """The same for an event loop."""
        refusal = self._refusal(commit)
        if refusal is None:
            self._group_commit.commit_later(commit, on_done)
            return
        pending = PendingCommit(commit, on_done)
        pending.outcome = refusal
        pending.done = True
        on_done(pending)

    def _refusal(self, commit: Commit) -> Conflict | None:
        if (commit.run_id, commit.fence) not in self._leases_of_parent:
            return None
        return Conflict(
            commit.run_id,
            "the process that this one was forked from executes it; a child that a node forks must end with "
            "os._exit() instead of returning",
        )
