"""What was posted to the runs that this process executes: reading it, and noticing it while nodes run.

A run takes posts in when it next saves. Until then, a node may run for an hour. So the process also looks by itself,
now and then, at all runs that are under way: a request to cancel stops a run, and an answer continues its branch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from time import sleep, time
from typing import TYPE_CHECKING
from weakref import ref

from limpet.engine.leases.held_lease import HeldLease
from limpet.engine.loop.driver_commands import PostsArrived
from limpet.engine.loop.run_context import Clocks
from limpet.engine.loop.taking_in import record_posts
from limpet.errors import DamagedRecord, LimpetError, StoreError, StoreUnavailable, UsageError
from limpet.journal.inbox import CANCEL, Posted, read_post
from limpet.journal.progress import Progress
from limpet.journal.store import Store
from limpet.journal.writer import JournalWriter

if TYPE_CHECKING:
    from limpet.engine.leases.lease_client import LeaseClient

CHECK_INTERVAL = 0.5
"""Seconds between two looks at what was posted to the runs that are under way."""

UNREADABLE = ""
"""The kind of a post that can't be read."""


def read_inbox(store: Store, run_id: str, *, known_only: bool = False) -> list[Posted]:
    """The posts that wait for a run. One that is damaged is taken in without effect, with an error in the log.

    Raises the error of a value whose class isn't registered here; with `known_only`, the posts before it are given.
    """
    found = []
    for post in store.inbox(run_id):
        try:
            found.append(read_post(run_id, post))
        except UsageError:
            if not known_only:
                raise
            break
        except DamagedRecord as damage:
            import logging

            logging.getLogger("limpet.run").error("run %s: %s", run_id, damage)
            found.append(Posted(post.number, UNREADABLE, {}))
    return found


def take_in_all(
    store: Store, progress: Progress, writer: JournalWriter, store_clock: Callable[[], float]
) -> None:
    """Record all that waits for a run that is at rest, for the next commit. Requests to cancel are withdrawn.

    What this process can't read, since it doesn't know a class, is left to one that executes the run.
    """
    clocks = Clocks(now=time, store=store_clock, random=float)
    posts = read_inbox(store, progress.run_id, known_only=True)
    writer.takes = record_posts(progress, writer, posts, clocks, stops=True).newest


def arrived_posts(store: Store, run_id: str, may_wait: Callable[[], bool]) -> Exception:
    """What the loop gets where posts wait: the posts; or why they can't be read.

    While it `may_wait`, a store that can't be reached is asked again.
    """
    while True:
        try:
            return PostsArrived(read_inbox(store, run_id))
        except LimpetError as problem:
            if not (isinstance(problem, StoreUnavailable) and may_wait()):
                return problem
            sleep(CHECK_INTERVAL)


def notice_posts(store: Store, held: HeldLease, newest: int | None = None) -> None:
    """Posts wait for a run that is under way here: cancel it if one asks for that, or have its driver look.

    `newest` is the number of the newest post, if it is known.
    """
    if held.graph is None:
        return  # the run isn't open yet: opening it takes the posts in
    if newest is None or newest > held.known_posts:
        posts = []
        with suppress(LimpetError):  # the next commit reports it
            posts = read_inbox(store, held.lease.run_id)
        held.known_posts = max((post.number for post in posts), default=0)
        if any(post.kind == CANCEL for post in posts):
            held.stop.ask()
            return
    held.stop.notice_posts()


class InboxChecks:
    """Looks now and then whether anything was posted to the runs that are under way here: see `Renewals`."""

    interval = CHECK_INTERVAL

    def __init__(self, client: LeaseClient) -> None:
        self._client = ref(client)
        self._lock = threading.Lock()

    def has_leases(self) -> bool:
        """Whether any run is under way."""
        client = self._client()
        return client is not None and client.has_leases()

    def do_regularly(self) -> None:
        """Look, unless the last look still waits for the store. If it fails, the next one will do."""
        client = self._client()
        if client is None or self._lock.locked():
            return
        with self._lock, suppress(StoreError):
            self._look(client.store, client.leases_in_use())

    def _look(self, store: Store, leases: list[HeldLease]) -> None:
        heads = store.heads([held.lease.run_id for held in leases])
        for held, head in zip(leases, heads, strict=True):
            if head is not None and head.posted > head.taken and head.fence == held.lease.fence:
                notice_posts(store, held, head.posted)
