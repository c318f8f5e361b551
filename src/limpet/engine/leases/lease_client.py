"""How this process uses one store: it claims runs, renews their leases in the background, and commits to them.

All graphs of a process that use the same store object share one `LeaseClient`, so that their commits are grouped into
few writes (see `group_commit.py`) and one thread renews all their leases.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from time import monotonic, time
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from limpet.defaults import LEASE
from limpet.engine.leases.change_waiter import ChangeWaiter
from limpet.engine.leases.group_commit import GroupCommit
from limpet.engine.leases.held_lease import RENEWALS_PER_LEASE, HeldLease, log_failed_renewal, renewals
from limpet.engine.leases.inbox_checks import InboxChecks, notice_posts
from limpet.engine.leases.process_identity import is_dead, this_process, with_holder_described
from limpet.errors import Conflict, LimpetError, RunNotFound
from limpet.journal.optional_calls import TellsTime, provides
from limpet.journal.store import ENDED, RUNNING, Commit, Lease, NewRun, RunHead, Store, Tail, checked_id
from limpet.journal.threads.kinds import refuse_thread
from limpet.threads.workers import JobQueue

if TYPE_CHECKING:
    from limpet.engine.leases.limit_slots import LimitClient


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
        """Write to the run's journal. Raises the store's refusal."""
        refusal = self._client.commit(commit)
        if isinstance(refusal, Conflict):
            raise with_holder_described(refusal)
        if refusal is not None:
            raise refusal
        if commit.status is not None and commit.status != RUNNING:
            # The store released the lease with this commit, so there is nothing left to release.
            self.must_release = False
            self._client.stop_renewing(self.lease)

    def keep(self) -> HeldLease:
        """Hold the run beyond the `with` block. The caller releases the lease from now on."""
        self.must_release = False
        return self.lease


class LeaseClient:
    """One store, as this process uses it. Get it with `client_for(store)`."""

    def __init__(self, store: Store, ttl: float = LEASE) -> None:
        self.store = store
        self.ttl = ttl
        self.interval = ttl / RENEWALS_PER_LEASE
        self.clock: Callable[[], float] | None = getattr(store, "clock", None)
        self._asked_time = (float("-inf"), 0.0)
        """When the store was last asked for its time, by `monotonic`, and what its clock is ahead of that."""
        self.clock_wait: Callable[[float, threading.Event], object] | None = getattr(self.clock, "wait", None)
        """How to let time pass, if the store's clock is one that tests turn: see `journal.store`."""
        self.leases_of_parent: set[tuple[str, int]] = set()  # of a forked child: see `forked_child.py`
        self.renews_by_itself = True
        """Not in a simulation, which renews leases by itself."""
        self.reset()

    def reset(self) -> None:
        """Start without leases and pending commits: at first, and in a forked child."""
        self.held: WeakValueDictionary[str, HeldLease] = WeakValueDictionary()
        """The leases that this client renews, by run. Weak, so that a run which is dropped unfinished expires."""
        self.group_commit = GroupCommit(self.store)
        self.commit = self.group_commit.commit
        self.commit_later = self.group_commit.commit_later
        self.upkeep = JobQueue()
        """Jobs that delete what is no longer needed. No run waits for them."""
        self.limits: LimitClient | None = None
        """Made when a limit is first needed: see `limit_slots.limits_of`."""
        self._renewal_lock = threading.Lock()
        self._inbox_checks = InboxChecks(self)
        self._claims: deque[_Claim] = deque()

    def create(self, run: NewRun) -> HeldLease:
        """Create a run and hold it. Raises `RunExists`."""
        claim = _Claim((run.run_id,))
        with claim.lock:
            self._note(claim)
            lease = self.store.create(run)
            assert lease is not None
            return self._hold(lease)

    def claim(self, run_id: str, wait: float | None = None, known: RunHead | None = None) -> HeldLease:
        """Claim a run: at once from a holder that is dead, else within `wait` seconds or not at all.

        `known` is the run's head, if the caller has just read it. Raises `RunNotFound`, and `Conflict` naming the
        holder.
        """
        waiter: ChangeWaiter | None = None
        if wait:
            waiter = ChangeWaiter(self.store, wait)
        while True:
            claim = _Claim((run_id,))
            try:
                with claim.lock:
                    self._note(claim)
                    return self._hold(self._claim_once(run_id, known))
            except Conflict:
                if waiter is None or not waiter.wait():
                    raise
                known = None  # it may have changed meanwhile

    def claim_ready(self, wanted: Sequence[RunHead]) -> list[HeldLease | None]:
        """Claim runs that the store has listed as ready, together; for each its lease, or None if it isn't ours.

        The caller releases the leases, or has others do so who hold the runs.
        """
        claim = _Claim({listed.run_id for listed in wanted})
        with claim.lock:
            self._note(claim)
            leases = self.store.claim_ready(wanted, this_process(), self.ttl)
            return [None if lease is None else self._hold(lease) for lease in leases]

    def break_lease(self, head: RunHead) -> bool:
        """Break the lease of a run if it has expired, or its holder is dead. False if it is valid.

        The holder can't renew it any more. The run is claimed and released, so it is ready for any worker.
        """
        run_id = head.run_id
        fence = None
        if head.holder is not None and is_dead(head.holder):
            fence = head.fence
        claim = _Claim((run_id,))
        with claim.lock:
            self._note(claim)
            try:
                lease = self.store.claim(run_id, this_process(), self.ttl, fence)
            except Conflict:
                return False
            except RunNotFound:
                return True
            self.store.release(lease)
            return True

    def holding(
        self,
        run_id: str,
        wait: float | None = None,
        known: RunHead | None = None,
        lease: HeldLease | None = None,
    ) -> AbstractContextManager[HeldRun]:
        """Hold a run for the length of a `with` block: `claim` it, and release it at the end.

        The run is claimed by this call, before the block is entered; `lease` is its lease if it was claimed before.
        Raises what `claim` raises.
        """
        if lease is None:
            lease = self.claim(run_id, wait, known)
        lease.claimed_by = threading.get_ident()
        return self.releasing(lease)

    @contextmanager
    def releasing(self, lease: HeldLease) -> Iterator[HeldRun]:
        """Release a lease at the end of a `with` block, however the block ends.

        There are two exceptions: a commit in the block stopped the run, so that the store released the lease with
        it, or the block decided to `keep` the lease.
        """
        held = HeldRun(self, lease)
        try:
            yield held
        finally:
            if held.must_release:
                self.release(lease)

    def release(self, held: HeldLease, crashed: bool = False) -> None:
        """Release a lease, unless it was lost or belongs to the process that this one was forked from.

        With `crashed`, that counts as a crash of its holder.
        """
        self.stop_renewing(held)
        if held.lost or held.process != os.getpid():
            return
        lease = held.lease
        if crashed:
            # A store counts a crash when a lease that wasn't released is claimed.
            try:
                lease = self.store.claim(lease.run_id, this_process(), self.ttl, lease.fence)
            except (Conflict, RunNotFound):
                return
        self.store.release(lease)

    def stop_renewing(self, held: HeldLease) -> None:
        """Stop renewing a lease that is released or lost."""
        if self.held.get(held.lease.run_id) is held:
            # Another thread may do the same, because a renewal was refused when the run had ended.
            with suppress(KeyError):
                del self.held[held.lease.run_id]

    def now(self) -> float:
        """The time by the store's clock, as far as that is known without asking: by this machine's, if it isn't."""
        return time() if self.clock is None else self.clock()

    def store_time(self, known_for: float = 0.0) -> float:
        """The time by the store's clock; it is asked for, if that is the clock of another machine.

        It isn't asked again, if it was less than `known_for` seconds ago. Raises `StoreError`.
        """
        if self.clock is not None or not provides(self.store, TellsTime):
            return self.now()
        asked, offset = self._asked_time
        if monotonic() - asked >= known_for:
            offset = self.store.store_time() - monotonic()
            self._asked_time = (monotonic(), offset)
        return monotonic() + offset

    def head(self, run_id: str) -> RunHead:
        """What the store knows of a run. Raises `RunNotFound` that names the store, and `UsageError`."""
        try:
            return self.store.head(checked_id(run_id))
        except RunNotFound:
            raise RunNotFound(run_id, f"looked in {self.store}") from None

    def delete(self, run_id: str) -> None:
        """Delete a run. Raises `RunNotFound`, and `Conflict` that describes the holder."""
        with suppress(LimpetError):  # a damaged run can be deleted, too
            self._post_deletion(self.store.head(run_id))
        try:
            self.store.delete(run_id)
        except Conflict as conflict:
            raise with_holder_described(conflict).with_advice("cancel() it first", "cancel") from None

    def _post_deletion(self, head: RunHead) -> None:
        """Have the parent of a run that is to be deleted look at it. It is an end like any other."""
        if head.parent is None or head.status in ENDED or not self.store.abilities.takes_part:
            return
        from limpet.journal.inbox import child_end_post

        post = child_end_post(head.parent, head.run_id, f"deleted.{head.fence}")
        self.store.post(head.parent, post.key, post.body)

    def renew(self, leases: Sequence[HeldLease] = ()) -> None:
        """Renew these leases, or all that are in use. Runs that are lost or to be cancelled are asked to stop."""
        mine = leases or self.leases_in_use()
        if not mine:
            return
        began = [held.now() for held in mine]
        answers = self.store.renew([each.lease for each in mine], self.ttl)
        for held, answer, at in zip(mine, answers, began, strict=True):
            held.renewed = at
            if answer is None:
                held.lost = True
                # Another process may have the run by now: stop before the next node does something a second time.
                held.stop.ask()
                self.stop_renewing(held)
            elif answer:
                notice_posts(self.store, held)

    def has_leases(self) -> bool:
        """Whether there is anything to renew."""
        return bool(self.leases_in_use())

    def do_regularly(self) -> None:
        """`renew`, unless the last renewal still waits for the store. If it fails, the next one will do."""
        if self._renewal_lock.locked():
            return
        with self._renewal_lock:
            try:
                self.renew()
            except Exception as problem:
                log_failed_renewal(problem)

    def _claim_once(self, run_id: str, known: RunHead | None) -> Lease:
        try:
            head = known or self.store.head(run_id)
            if head.kind:
                refuse_thread(head)
            dead = head.holder is not None and (is_dead(head.holder) or self._is_forgotten(head))
            return self.store.claim(run_id, this_process(), self.ttl, head.fence if dead else None)
        except Conflict as conflict:
            waiting = "resume(…, wait=seconds) waits for it"
            if conflict.holder == this_process():
                waiting = f"run.close() releases it; {waiting}"
            raise with_holder_described(conflict).with_advice(waiting, "wait") from None

    def leases_in_use(self) -> list[HeldLease]:
        found = [held for ref in self.held.valuerefs() if (held := ref()) is not None]
        return [held for held in found if held.is_in_use]

    def _note(self, claim: _Claim) -> None:
        """Note that, while its lock is held, the store may know of a lease of ours that isn't in `held` yet."""
        for earlier in list(self._claims):
            if not earlier.lock.locked():
                with suppress(ValueError):  # another thread has removed it
                    self._claims.remove(earlier)
        self._claims.append(claim)

    def _is_forgotten(self, head: RunHead) -> bool:
        """Whether this process holds the lease without knowing: it failed to release it, so it may claim it again.

        A claim that another thread is making counts as known: its lease is in the store before it is in `held`.
        """
        if head.holder != this_process():
            return False
        clients = clients_in_use()
        claims = [claim for client in clients for claim in list(client._claims)]
        if sum(claim.lock.locked() for claim in claims if head.run_id in claim.run_ids) > 1:
            return False
        return not any(client._knows(head, self.store) for client in clients)

    def _knows(self, head: RunHead, store: Store) -> bool:
        """Whether this client uses the lease that a head of `store`, maybe another object for its own, is about."""
        held = self.held.get(head.run_id)
        if held is None or not held.is_in_use or held.lease.fence != head.fence:
            return False
        # Another store may have a run of the same id. If that can't be found out, it is taken for the same run.
        with suppress(Exception):
            return self.store is store or self.store.head(head.run_id).created == head.created
        return True

    def _hold(self, lease: Lease) -> HeldLease:
        held = HeldLease(lease, self.clock or _clock_since(lease.until - self.ttl))
        self.held[lease.run_id] = held
        if self.renews_by_itself:
            renewals.watch(self)
            if self.store.abilities.takes_part and self.store.abilities.shared:
                renewals.watch(self._inbox_checks)
        return held


class _Claim:
    """A claim of runs, which is under way while its lock is held."""

    __slots__ = ("lock", "run_ids")

    def __init__(self, run_ids: Collection[str]) -> None:
        self.run_ids = run_ids
        self.lock = threading.Lock()


_clients: WeakValueDictionary[tuple[int, float], LeaseClient] = WeakValueDictionary()
_clients_lock = threading.Lock()


def client_for(store: Store, ttl: float = LEASE) -> LeaseClient:
    """This process's client of a store; the same one for the same store object and lease length."""
    with _clients_lock:
        client = _clients.get((id(store), ttl))
        if client is None:
            client = _clients[id(store), ttl] = LeaseClient(store, ttl)
        return client


def held_in_this_process(store: Store, run_id: str) -> HeldLease | None:
    """The lease of a run, if this process has it, with whatever length of leases."""
    clients = [client for client in clients_in_use() if client.store is store]
    found = [client.held.get(run_id) for client in clients]
    return next((held for held in found if held is not None and held.is_in_use), None)


def executes_runs() -> bool:
    """Whether this process executes any run now, or opens one."""
    return any(client.has_leases() for client in clients_in_use())


def clients_in_use() -> list[LeaseClient]:
    """All clients of this process, also while another thread makes one."""
    return [client for found in _clients.valuerefs() if (client := found()) is not None]


_supervisors: WeakKeyDictionary[Store, WeakSet[Nudgeable]] = WeakKeyDictionary()


class Nudgeable(Protocol):
    """A supervisor, as far as this module knows one."""

    def nudge(self, schedules_changed: bool = False) -> None:
        """Look for runs now; and for schedules, if some may have been added or changed."""
        ...


def register_supervisor(store: Store, supervisor: Nudgeable) -> None:
    """Have a supervisor of this process nudged when this process queues a run in the store."""
    with _clients_lock:
        _supervisors.setdefault(store, WeakSet()).add(supervisor)
    # A clock that tests turn nudges supervisors too, since their timers don't go off by themselves.
    watch_clock = getattr(getattr(store, "clock", None), "watch", None)
    if watch_clock is not None:
        watch_clock(supervisor)


def nudge_supervisors(store: Store, schedules_changed: bool = False) -> None:
    """Have the supervisors of this process look for runs now. Those of other processes poll the store."""
    with _clients_lock:
        supervisors = list(_supervisors.get(store, ()))
    for supervisor in supervisors:
        supervisor.nudge(schedules_changed)


def _clock_since(granted: float) -> Callable[[], float]:
    """A clock that starts at this time. A change of this machine's time doesn't affect it."""
    since = monotonic()
    return lambda: granted + monotonic() - since


def _reset_in_child() -> None:
    """Start over in a forked child: the leases are the parent's, and locks that its threads held stay locked."""
    global _clients_lock
    _clients_lock = threading.Lock()
    for client in clients_in_use():
        if client.held or client.leases_of_parent:
            from limpet.engine.leases.forked_child import start_over

            start_over(client)
        else:
            client.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
