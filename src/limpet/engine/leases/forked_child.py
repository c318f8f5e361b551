"""A child process that was forked while a run was executed, by a node above all: only its parent continues the run.

The child has a copy of its parent's sessions, with leases whose fence is the newest. So a store couldn't tell its
commits from those of the parent: the child itself has to refuse them.

A child that a node has forked may do what it likes inside the node. But it couldn't continue the run if it were
allowed to: of all threads, it has only the one that called `os.fork()`. The thread that waits for the node's outcome
and those of executors are gone. An event loop is even shared with the parent: what one of them unregisters from the
system's list of files to watch, the other isn't told of any more. So the child ends where it would leave the node,
without the cleanup of its parent.

This module is imported in such a child only, and no other process pays for it.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from limpet.engine.leases.group_commit import GroupCommit, PendingCommit
from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.node_context.node_context import NodeContext
from limpet.errors import Conflict
from limpet.journal.store import Commit

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


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
        return Conflict(commit.run_id, "the process that this one was forked from executes it")


def prepare_child(task: NodeContext | None, running_loops: Iterable[AbstractEventLoop]) -> None:
    """In a child that a node, or something on an event loop with runs, has just forked."""
    if task is not None:
        task.scope.services.journal_lock.forget_threads()
    for loop in running_loops:
        # At most one of them is run by this thread. It gets here as soon as the node awaits something.
        with suppress(RuntimeError):
            loop.call_soon(end_child)
        # Before any other task of the parent continues, where the loop is one of asyncio.
        ready = getattr(loop, "_ready", None)
        if isinstance(ready, deque):
            ready.rotate(1)


def end_child(error: BaseException | None = None) -> None:
    """End this process, which has left the node that forked it, by this exception or without one.

    `sys.exit(code)` in a node ends it with that code. All else is a mistake: it is logged, and the code is 1.
    """
    try:
        if isinstance(error, SystemExit) and isinstance(error.code, int | None):
            sys.stdout.flush()
            os._exit(error.code or 0)
        from logging import getLogger

        getLogger("limpet.run").error(
            "process %d was forked by a node and has left it; it ends here, and its parent continues the run; "
            "end such a process with os._exit()",
            os.getpid(),
            exc_info=error,
        )
    finally:
        os._exit(1)
