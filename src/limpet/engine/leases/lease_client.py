"""This process's link to one store: commits of many runs put together, leases kept alive, runs found by id.

All graphs that use the same store object share one link, and so one gate to the store, where their commits are
put together instead of queueing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic, sleep
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from limpet.defaults import LEASE
from limpet.engine.leases.group_commit import GroupCommit
from limpet.engine.leases.process_identity import describe_holder, is_dead, this_process
from limpet.errors import Conflict, RunNotFound
from limpet.journal.store import RUNNING, Commit, Lease, NewRun, Notifying, RunHead, Store, Tail

if TYPE_CHECKING:
    from concurrent.futures import Executor

FIRST_PAUSE, SHORT_PAUSE, LONGEST_PAUSE = 0.02, 0.1, 0.5
"""Seconds between two attempts to claim a run that somebody holds: the first, where changes are told, and at most."""

IDLE = 30.0
"""Seconds after which the renewing thread ends when there is nothing to renew."""


class StopRequest:
    """A request to stop a run before its next node. `wake` is called when it is made, from any thread.

    `leaving` says that the run isn't to be cancelled, but left for somebody else to go on with.
    """

    __slots__ = ("asked", "leaving", "wake")

    def __init__(self) -> None:
        self.asked = self.leaving = False
        self.wake: Callable[[], object] | None = None

    def ask(self) -> None:
        """Make the request."""
        self.leaving = False
        self._tell()

    def leave(self) -> None:
        """Make the request for somebody else to go on with the run, unless it is to stop for good."""
        if not self.asked:
            self.leaving = True
            self._tell()

    def _tell(self) -> None:
        self.asked = True
        if self.wake is not None:
            self.wake()


class HeldLease:
    """A lease that this process holds, and what it was told about it."""

    __slots__ = ("__weakref__", "lease", "lost", "now", "process", "stop")

    def __init__(self, lease: Lease, now: Callable[[], float]) -> None:
        self.lease = lease
        self.process = os.getpid()
        self.lost = False
        self.stop = StopRequest()
        self.now = now
        """The time by the store's clock, as far as can be told without asking it again."""


class HeldRun:
    """A run that this process holds while the `with` block of `LeaseClient.holding` lasts."""

    __slots__ = ("_client", "lease", "must_release")

    def __init__(self, client: LeaseClient, lease: HeldLease) -> None:
        self._client = client
        self.must_release = True
        self.lease = lease

    @property
    def fence(self) -> int:
        """The number that every write under this lease carries."""
        return self.lease.lease.fence

    @property
    def crashes(self) -> int:
        """How many holders of this run have crashed so far."""
        return self.lease.lease.crashes

    def now(self) -> float:
        """The time by the store's clock."""
        return self.lease.now()

    def read(self, first: int | None = None) -> Tail:
        """The run's records from its newest snapshot, or from record `first`."""
        return self._client.store.read(self.lease.lease.run_id, first)

    def commit(self, commit: Commit) -> None:
        """Write to the run's journal. Raises why the store refused it."""
        refusal = self._client.commit(commit)
        if refusal is not None:
            raise refusal
        if commit.status is not None and commit.status != RUNNING:
            # The store released the lease with this commit, so a call to release it would be for nothing.
            self.must_release = False
            self._client.let_go(self.lease)

    def keep(self) -> HeldLease:
        """Hold the run beyond the `with` block. The caller releases the lease from now on."""
        self.must_release = False
        return self.lease


class ChangeWaiter:
    """Waiting for a store to change, `seconds` in all: until it tells of a change, where it can, or for a while.

    Nobody tells that a lease has run out or that a holder died. So one looks again now and then in any case; and not
    at once after every change, since in a busy store most are of other runs.
    """

    def __init__(self, store: Store, seconds: float) -> None:
        self._deadline = monotonic() + seconds
        self._pause = FIRST_PAUSE
        self._notifying: Notifying | None = None
        if seconds > 0 and store.abilities.notifies and isinstance(store, Notifying):
            self._notifying = store
            store.wait_for_change(0.0)  # what changes from now on won't be missed

    def wait(self) -> bool:
        """Wait until it is worth looking again; False, at once, when the time is over."""
        began = monotonic()
        if began >= self._deadline:
            return False
        rest = self._deadline - began
        if self._notifying is None:
            sleep(min(self._pause, rest))
        elif self._notifying.wait_for_change(min(LONGEST_PAUSE, rest)):
            sleep(max(0.0, min(began + min(self._pause, SHORT_PAUSE), self._deadline) - monotonic()))
        self._pause = min(self._pause * 1.5, LONGEST_PAUSE)
        return True


class LeaseClient:
    """One store, as this process uses it. Get it with `client_for(store)`."""

    def __init__(self, store: Store, ttl: float = LEASE) -> None:
        self.store, self.ttl = store, ttl
        self._clock: Callable[[], float] | None = getattr(store, "clock", None)
        self.wait: Callable[[float, threading.Event], object] | None = getattr(self._clock, "wait", None)
        """How time is let pass, where the store's clock has a say in that: see `journal.store`."""
        self.begin()

    def begin(self) -> None:
        """Hold nothing and wait for nothing: at first, and in a child that was forked off."""
        self.held: WeakValueDictionary[str, HeldLease] = WeakValueDictionary()
        self.group_commit = GroupCommit(self.store)
        self.commit = self.group_commit.commit
        self.commit_later = self.group_commit.commit_later
        self._keeper_lock = threading.Lock()
        self._keeper: threading.Thread | None = None
        self._on_the_way: list[str] = []
        self._tidier: Executor | None = None

    @property
    def tidier(self) -> Executor:
        """The thread that drops what isn't needed any more. Nobody waits for it."""
        if self._tidier is None:
            from concurrent.futures import ThreadPoolExecutor

            self._tidier = ThreadPoolExecutor(1, "limpet-tidy")
        return self._tidier

    def create(self, run: NewRun) -> HeldLease:
        """Create a run and hold it."""
        with self._claiming(run.run_id):
            lease = self.store.create(run)
            assert lease is not None
            return self._hold(lease)

    def claim(self, run_id: str, wait: float | None = None, known: RunHead | None = None) -> HeldLease:
        """Take the lease, at once from a holder that is dead, else within `wait` seconds or not at all.

        `known` is what the store said of the run a moment ago. Raises `Conflict` naming the holder.
        """
        patience = ChangeWaiter(self.store, wait or 0.0)
        while True:
            try:
                with self._claiming(run_id):
                    return self._hold(self._claim_once(run_id, known))
            except Conflict:
                if not patience.wait():
                    raise

    def holding(
        self, run_id: str, wait: float | None = None, known: RunHead | None = None
    ) -> AbstractContextManager[HeldRun]:
        """Hold a run for the length of a `with` block, as `claim` would, and release it at the end.

        Raises what `claim` raises.
        """
        return self.releasing(self.claim(run_id, wait, known))

    @contextmanager
    def releasing(self, lease: HeldLease) -> Iterator[HeldRun]:
        """Release a lease at the end of a `with` block, however the block ends.

        Unless a commit in the block stopped the run, since the store released the lease with it, or the block
        decided to keep it.
        """
        held = HeldRun(self, lease)
        try:
            yield held
        finally:
            if held.must_release:
                self.release(lease)

    def head(self, run_id: str) -> RunHead:
        """What the store knows of a run. Raises `RunNotFound`, which says where it was looked for."""
        try:
            return self.store.head(run_id)
        except RunNotFound:
            raise RunNotFound(run_id, f"looked in {self.store!r}") from None

    def prune_later(self, run_id: str, before: int) -> None:
        """Drop records of a run that aren't needed any more, while it goes on. That this fails harms nobody."""

        def prune() -> None:
            try:
                self.store.prune(run_id, before)
            except RunNotFound:
                pass
            except Exception:
                import logging

                logging.getLogger("limpet.upkeep").warning(
                    "run %s: couldn't drop old checkpoints; will try again with the next",
                    run_id,
                    exc_info=True,
                )

        self.tidier.submit(prune)

    def release(self, held: HeldLease) -> None:
        """Give the lease back, unless the run's last commit has done so."""
        self.let_go(held)
        if not held.lost and held.process == os.getpid():
            self.store.release(held.lease)

    def let_go(self, held: HeldLease) -> None:
        """Stop renewing a lease that is given back or lost."""
        if self.held.get(held.lease.run_id) is held:
            del self.held[held.lease.run_id]

    def _claim_once(self, run_id: str, known: RunHead | None) -> Lease:
        try:
            head = known or self.store.head(run_id)
            dead = head.holder is not None and (is_dead(head.holder) or self._abandoned(head))
            return self.store.claim(run_id, this_process(), self.ttl, head.fence if dead else None)
        except Conflict as conflict:
            reason = f"{in_words(conflict).reason}; resume(…, wait=seconds) waits for it"
            raise Conflict(run_id, reason, conflict.holder, conflict.until) from None

    @contextmanager
    def _claiming(self, run_id: str) -> Iterator[None]:
        """While the store may know of our lease and `held` doesn't yet."""
        self._on_the_way.append(run_id)
        try:
            yield
        finally:
            self._on_the_way.remove(run_id)

    def _abandoned(self, head: RunHead) -> bool:
        """Whether this process has the lease but doesn't know of it: it couldn't be given back at the time."""
        links = list(_links.values())
        if head.holder != this_process() or sum(each._on_the_way.count(head.run_id) for each in links) > 1:
            return False
        known = [client.held.get(head.run_id) for client in links]
        return not any(held is not None and held.lease.fence == head.fence for held in known)

    def _hold(self, lease: Lease) -> HeldLease:
        held = HeldLease(lease, self._clock or _clock_since(lease.until - self.ttl))
        self.held[lease.run_id] = held
        with self._keeper_lock:
            if self._keeper is None or not self._keeper.is_alive():
                self._keeper = threading.Thread(target=_keep, args=(self,), name="limpet-leases", daemon=True)
                self._keeper.start()
        return held

    def keeper_may_end(self) -> bool:
        """Whether there is nothing to renew; then the thread that asks is the keeper no more."""
        with self._keeper_lock:
            if self.held:
                return False
            self._keeper = None
            return True

    def renew(self) -> None:
        """Prolong all leases that are held here; note the ones that are lost and the signals that wait."""
        mine = [held for ref in self.held.valuerefs() if (held := ref()) is not None]
        if not mine:
            return
        answers = self.store.renew([each.lease for each in mine], self.ttl)
        for held, answer in zip(mine, answers, strict=True):
            if answer is None:
                held.lost = True
                held.stop.ask()  # before the next node has an effect that isn't ours to have
                self.let_go(held)
            elif answer == "cancel":
                held.stop.ask()


_links: WeakValueDictionary[tuple[int, float], LeaseClient] = WeakValueDictionary()
_links_lock = threading.Lock()


def client_for(store: Store, ttl: float = LEASE) -> LeaseClient:
    """The link of this process to a store; the same one for the same store object and lease length."""
    with _links_lock:
        client = _links.get((id(store), ttl))
        if client is None:
            client = _links[id(store), ttl] = LeaseClient(store, ttl)
        return client


_watching: WeakKeyDictionary[Store, WeakSet[Supervises]] = WeakKeyDictionary()


class Supervises(Protocol):
    """Somebody who takes on what is queued in a store."""

    def nudge(self) -> None:
        """Look now."""
        ...


def watch(store: Store, supervisor: Supervises) -> None:
    """Have a supervisor of this process hear of what this process queues."""
    with _links_lock:
        _watching.setdefault(store, WeakSet()).add(supervisor)
    if (tell := getattr(getattr(store, "clock", None), "watch", None)) is not None:
        tell(supervisor)


def nudge(store: Store) -> None:
    """Something was queued: have those look who are near. Others find it when they next look."""
    for supervisor in list(_watching.get(store, ())):
        supervisor.nudge()


def _keep(client: LeaseClient) -> None:
    """Renew leases until there have been none for a while. A store that can't be reached is asked again."""
    idle = 0.0
    while idle < IDLE or not client.keeper_may_end():
        sleep(client.ttl / 3)
        idle = 0.0 if client.held else idle + client.ttl / 3
        try:
            client.renew()
        except Exception:
            import logging

            logging.getLogger("limpet.leases").warning("couldn't renew leases; will try again", exc_info=True)


def _clock_since(granted: float) -> Callable[[], float]:
    """A clock that shows this time now, and goes on from there whatever is done to this machine's."""
    since = monotonic()
    return lambda: granted + monotonic() - since


def in_words(conflict: Conflict) -> Conflict:
    """The same conflict, with its holder as a person would name it."""
    if not conflict.holder:
        return conflict
    reason = conflict.reason.replace(conflict.holder, describe_holder(conflict.holder))
    return Conflict(conflict.run_id, reason, conflict.holder, conflict.until)


def _begin_in_child() -> None:
    """Locks that other threads of the parent held would never be released here; its leases are its own."""
    global _links_lock
    _links_lock = threading.Lock()
    for client in list(_links.values()):
        client.begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)
