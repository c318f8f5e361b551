"""The five methods that make any object a store of whole checkpoints, and the store of runs over such an object.

Give an object with the methods of `CheckpointStore` wherever a store is named: `Workflow(store=…)`,
`compile(store=…)`, `open_store(…)`. One thread at a time calls it. What it can't do (share a run between processes,
keep a journal that only grows, let others post to a run) takes a `limpet.journal.store.Store`.

`AdaptedStore` makes a store of runs from it. A run is one checkpoint, its newest, which replaces the one before it:
head and journal are one text in its context, which each call reads and writes whole. A lock keeps the threads of this
process apart. Nothing keeps two processes apart, since both may `load` before either `save`s. So the store declares
that it has no leases and isn't shared.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, Protocol, runtime_checkable

from limpet.errors import DamagedRecord, LimpetError, RunExists, RunNotFound, StoreUnavailable, UsageError
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import (
    COMPLETED,
    ENDED,
    Abilities,
    Commit,
    Document,
    Heads,
    Lane,
    Lease,
    NewRun,
    Output,
    Post,
    RunHead,
    Tail,
)
from limpet.stores import heads
from limpet.stores.claims import claim_one_by_one
from limpet.stores.user_stores.checkpoint_contents import Contents, read_contents
from limpet.stores.user_stores.checkpoint_state import (
    CheckpointState,
    PackedRun,
    checkpoint_of,
    is_ours,
    run_id_of,
    run_of,
)

# Pickles that older versions made name the class here.
from limpet.stores.user_stores.checkpoint_state import PauseMetadata as PauseMetadata

METHODS = ("save", "load", "delete", "list", "cleanup_expired")
LEVELS = ("disk", "process", "memory")


@runtime_checkable
class CheckpointStore(Protocol):
    """Keeps checkpoints whole. Derive from it, or have its methods.

    A `save` that returned has happened, and one that raised has changed nothing. An attribute `level` says what a
    save survives, "disk" or "process"; without it, "memory" is assumed.
    """

    @abstractmethod
    def save(self, state: CheckpointState) -> None:
        """Keep a checkpoint, in place of the one with the same id."""
        ...

    @abstractmethod
    def load(self, checkpoint_id: str) -> CheckpointState | None:
        """The checkpoint with this id, equal to what was saved, or None."""
        ...

    @abstractmethod
    def delete(self, checkpoint_id: str) -> None:
        """Remove a checkpoint. A missing one is not an error."""
        ...

    @abstractmethod
    def list(self, workflow_name: str | None = None) -> Sequence[CheckpointState]:
        """All checkpoints, or those of one workflow."""
        ...

    @abstractmethod
    def cleanup_expired(self, max_age_hours: int = 24) -> int:
        """Remove checkpoints that are older, paused ones too; return how many.

        Limpet never calls it: runs expire by a `Retention`, which leaves paused ones alone unless it names them.
        """
        ...


class AdaptedStore:
    """Keeps runs in a user's object with the methods of a `CheckpointStore`. `open_store(object)` gives you one.

    Raises `UsageError` for an object with async methods or an unknown `level`. Closing doesn't close the object.
    """

    def __init__(
        self, user_store: CheckpointStore, clock: Callable[[], float] = time.time, *, by_run: bool = False
    ) -> None:
        self.user_store = user_store
        self.closed = False
        self.abilities = Abilities(
            _level_of(user_store),
            shared=False,
            leases=False,
            deltas=False,
            keeps_results=False,
            takes_part=False,
        )
        self._clock = clock
        self._by_run = by_run
        """Whether a checkpoint's id is that of its run, because the user's object knows no others."""
        self._ids: dict[str, str] = {}
        """The id of the checkpoint that each run was last saved as, or found under."""
        self._contents: dict[str, tuple[int, Contents | None]] = {}
        """What is known about each open run, at which record."""
        self._stale: dict[str, set[str]] = {}
        """Older checkpoints of a run that should have been deleted when a newer one was saved."""
        self._undeleted: dict[str, Exception] = {}
        """Why runs couldn't be deleted when they completed."""
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"<AdaptedStore of {_kind(self.user_store)}>"

    def create(self, run: NewRun) -> Lease | None:
        with self._locked() as user_store:
            if user_store.load(run.run_id) is not None or self._find(run.run_id) is not None:
                raise RunExists(run.run_id)
            head, lease = heads.create(run, self._clock())
            self._save(PackedRun(head, list(run.records)))
            return lease

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        with self._locked():
            return [self._apply(commit) for commit in commits]

    def head(self, run_id: str) -> RunHead:
        return self._run(run_id).head

    def heads(self, run_ids: Sequence[str]) -> Sequence[RunHead | None]:
        with self._locked():
            return [self._readable_head(run_id) for run_id in run_ids]

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        head, records = self._run(run_id)
        dropped = head.sequence - len(records)
        start, stop = heads.readable(head, dropped, first, last)
        found = records[start - dropped - 1 : max(stop - dropped, 0)]
        return heads.tail(head, start, found)

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        with self._locked():
            run = self._run(run_id)
            head, lease = heads.claim(run.head, holder, ttl, self._clock(), instead_of)
            self._save(PackedRun(head, run.records))
            return lease

    def claim_ready(self, wanted: Sequence[RunHead], holder: str, ttl: float) -> list[Lease | None]:
        with self._locked():
            return claim_one_by_one(wanted, lambda listed: self._claim_ready(listed, holder, ttl))

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[bool | None]:
        with self._locked():
            return [self._renew(lease, ttl) for lease in leases]

    def are_valid(self, leases: Sequence[Lease]) -> list[bool]:
        now = self._clock()
        found = self.heads([lease.run_id for lease in leases])
        return [heads.is_valid(lease, head, now) for lease, head in zip(leases, found, strict=True)]

    def release(self, lease: Lease) -> None:
        with self._locked():
            run = self._find(lease.run_id)
            if run is None:
                return
            head = heads.release(run.head, lease)
            if head is not None:
                self._save(PackedRun(head, run.records))

    def post(self, run_id: str, key: str, body: bytes) -> bool:
        self._refuse("be posted to a run")

    def inbox(self, run_id: str) -> Sequence[Post]:
        self._refuse("be posted to a run")

    def add_output(self, run_id: str, fence: int, bodies: Sequence[bytes], keep: int) -> int:
        self._refuse("be emitted by a run")

    def output(self, run_id: str, after: int = 0, limit: int | None = None) -> Sequence[Output]:
        self._refuse("be emitted by a run")

    def put_document(self, name: str, body: bytes, version: int, due: float | None = None) -> int | None:
        self._refuse("be kept as a document")

    def get_document(self, name: str) -> Document | None:
        self._refuse("be kept as a document")

    def list_documents(
        self, prefix: str = "", due: bool = False, limit: int | None = None
    ) -> Sequence[Document]:
        self._refuse("be kept as a document")

    def delete_document(self, name: str, version: int) -> bool:
        self._refuse("be kept as a document")

    def list(self, which: RunFilter) -> list[RunHead]:
        now = self._clock()
        found = [head for head in self._heads(which.graph) if heads.matches(head, which, now)]
        return heads.newest_first(found, which)

    def lanes(self) -> Sequence[Lane]:
        """Always empty, as is `ready`."""
        if not self.abilities.leases:
            return []
        return list({head.lane for head in self._heads(None) if head.due is not None})

    def ready(self, lanes: Sequence[Lane], limit: int) -> Heads:
        """Always empty, as without leases only the holder's own process knows that a run is held.

        A test that sets `abilities.leases` gets the runs as from any store.
        """
        if not self.abilities.leases:
            return []
        now = self._clock()
        found = [head for head in self._heads(None) if heads.is_ready(head, lanes, now)]
        return heads.most_urgent_first(found)[:limit]

    def prune(self, run_id: str, before: int) -> int:
        with self._locked():
            head, records = self._run(run_id)
            count = heads.prunable(head, head.sequence - len(records), before)
            if count:
                self._save(PackedRun(head, records[count:]))
            return count

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        with self._locked() as user_store:
            now = self._clock()
            found = self._heads(None)
            expired = [head.run_id for head in found if heads.is_expired(head, older_than, statuses, now)]
            for run_id in expired:
                self._delete(user_store, run_id)
            return len(expired)

    def delete(self, run_id: str) -> None:
        with self._locked() as user_store:
            with suppress(DamagedRecord):  # who holds it isn't known, and nothing can be saved to it
                heads.refuse_if_held(self._run(run_id).head, self._clock())
            self._delete(user_store, run_id)

    def undeleted(self, run_id: str) -> Exception | None:
        """Why a run that completed is still there, if it is: the user's object couldn't delete it."""
        return self._undeleted.get(run_id)

    def close(self) -> None:
        with self._lock:
            self.closed = True

    @contextmanager
    def _locked(self) -> Iterator[CheckpointStore]:
        """The user's object, for one thread. Whatever it raises becomes a `StoreUnavailable`."""
        with self._lock:
            if self.closed:
                raise StoreUnavailable(f"{self!r} was closed: open it again with open_store(…)")
            try:
                yield self.user_store
            except LimpetError:
                raise
            except Exception as error:
                raise StoreUnavailable(
                    f"{_kind(self.user_store)} raised {type(error).__name__}: see what caused this"
                ) from error

    def _refuse(self, what: str) -> NoReturn:
        raise UsageError(
            f"in {self!r} nothing can {what}: its abilities.takes_part is False, as it keeps whole checkpoints only. "
            "Use a store such as SQLite"
        )

    def _find(self, run_id: str) -> PackedRun | None:
        with self._locked() as user_store:
            state = user_store.load(self._ids.get(run_id, run_id))
            if state is None or not is_ours(state) or run_id_of(state, self._by_run) != run_id:
                state = self._search(user_store, run_id)
        if state is None:
            return None
        self._ids[run_id] = state.checkpoint_id
        run = run_of(run_id, state)
        if run_id not in self._contents and state.workflow_inputs:
            # The first record may be gone by now, and with it what the run was started with.
            known = Contents(state.checkpoint_id, dict(state.workflow_inputs), [], 0, {})
            self._contents[run_id] = (-1, known)
        return run

    def _search(self, user_store: CheckpointStore, run_id: str) -> CheckpointState | None:
        """The newest checkpoint of a run that was saved by another object, as in a process before this one."""
        if self._by_run:
            return None
        found = [
            state
            for state in user_store.list()
            if is_ours(state) and state.checkpoint_id.rpartition("@")[0] == run_id
        ]
        found.sort(key=lambda state: run_of(run_id, state).head.sequence)
        self._stale.setdefault(run_id, set()).update(state.checkpoint_id for state in found[:-1])
        return found[-1] if found else None

    def _delete(self, user_store: CheckpointStore, run_id: str) -> None:
        # Older ones first: without the newest, one of them would be the run.
        for checkpoint_id in self._stale.pop(run_id, ()):
            self._delete_replaced(user_store, run_id, checkpoint_id)
        if self._stale.get(run_id):
            raise StoreUnavailable(
                f"{_kind(self.user_store)} couldn't delete all checkpoints of run {run_id!r}"
            )
        user_store.delete(self._ids.get(run_id, run_id))
        self._ids.pop(run_id, None)
        self._undeleted.pop(run_id, None)
        self._contents.pop(run_id, None)

    def _readable_head(self, run_id: str) -> RunHead | None:
        with suppress(DamagedRecord, RunNotFound):
            return self._run(run_id).head
        return None

    def _run(self, run_id: str) -> PackedRun:
        run = self._find(run_id)
        if run is None:
            raise RunNotFound(run_id)
        return run

    def _save(self, run: PackedRun) -> None:
        """Save a run as its newest checkpoint, and only then delete the one before it."""
        run_id = run.head.run_id
        contents = self._contents_of(run)
        checkpoint_id = run_id
        if contents is not None and not self._by_run:
            checkpoint_id = contents.checkpoint_id
        with self._locked() as user_store:
            user_store.save(checkpoint_of(checkpoint_id, run, contents, self._clock()))
            before = self._ids.get(run_id, checkpoint_id)
            self._ids[run_id] = checkpoint_id
            if before != checkpoint_id:
                self._delete_replaced(user_store, run_id, before)

    def _delete_replaced(self, user_store: CheckpointStore, run_id: str, checkpoint_id: str) -> None:
        """Delete a checkpoint that a newer one replaces. If that fails, the newer one counts all the same."""
        try:
            user_store.delete(checkpoint_id)
        except Exception:
            self._stale.setdefault(run_id, set()).add(checkpoint_id)
            log = logging.getLogger("limpet.stores")
            log.warning("%r couldn't delete checkpoint %s, which is out of date", self, checkpoint_id)

    def _contents_of(self, run: PackedRun) -> Contents | None:
        """What is known about a run, read once for each new record."""
        run_id = run.head.run_id
        sequence, known = self._contents.get(run_id, (-1, None))
        if sequence == run.head.sequence:
            return known
        contents = read_contents(*run)
        if contents is not None and contents.inputs is None:
            contents = contents._replace(inputs=None if known is None else known.inputs)
        self._contents[run_id] = (run.head.sequence, contents)
        return contents

    def _apply(self, commit: Commit) -> Exception | None:
        try:
            run = self._run(commit.run_id)
            now = self._clock()
            refused = heads.refusal(commit, run.head, now)
            if refused is not None:
                return refused
            if commit.purge and commit.status == COMPLETED:
                self._delete_completed(run, heads.apply(run.head, commit, now))
                return None
            records = [] if commit.purge else [*run.records, *commit.records]
            self._save(PackedRun(heads.apply(run.head, commit, now), records))
        except LimpetError as error:
            return error
        return None

    def _delete_completed(self, run: PackedRun, completed: RunHead) -> None:
        """Delete a run that completes. There is no result to keep here: the user's object keeps what can be resumed.

        If it can't be deleted, it is saved as complete, in place of what could be resumed, and expires by a policy.
        """
        run_id = completed.run_id
        try:
            with self._locked() as user_store:
                self._delete(user_store, run_id)
        except StoreUnavailable as problem:
            checkpoint_id = self._ids.get(run_id, run_id)
            with self._locked() as user_store:
                contents = self._contents_of(run)
                user_store.save(
                    checkpoint_of(checkpoint_id, PackedRun(completed, []), contents, self._clock())
                )
            self._undeleted[run_id] = problem
            log = logging.getLogger("limpet.stores")
            log.warning("run %s is complete, and couldn't be deleted: %s", run_id, problem)

    def _claim_ready(self, listed: RunHead, holder: str, ttl: float) -> Lease | None:
        run = self._run(listed.run_id)
        claimed = heads.claim_ready(run.head, listed, holder, ttl, self._clock())
        if claimed is None:
            return None
        head, lease = claimed
        self._save(PackedRun(head, run.records))
        return lease

    def _renew(self, lease: Lease, ttl: float) -> bool | None:
        run = self._find(lease.run_id)
        if run is None:
            return None
        head = heads.renew(run.head, lease, ttl, self._clock())
        if head is None:
            return None
        self._save(PackedRun(head, run.records))
        return False

    def _heads(self, graph: str | None) -> Sequence[RunHead]:
        with self._locked() as user_store:
            if graph is None:
                states = user_store.list()
            else:
                states = user_store.list(graph)
            found: dict[str, RunHead] = {}
            for state in filter(is_ours, states):
                run_id = run_id_of(state, self._by_run)
                try:
                    head = run_of(run_id, state).head
                except DamagedRecord as damage:
                    logging.getLogger("limpet.stores").warning("%r lists a damaged run: %s", self, damage)
                    head = heads.unreadable(run_id, 0.0, state.workflow_name)
                other = found.get(run_id)
                # Two, where a process ended after it had saved the newer and before it deleted the older.
                if other is None or other.sequence <= head.sequence:
                    older = None if other is None else self._ids[run_id]
                    found[run_id] = head
                    self._ids[run_id] = state.checkpoint_id
                else:
                    older = state.checkpoint_id
                if older is not None:
                    self._stale.setdefault(run_id, set()).add(older)
            return list(found.values())


def _level_of(user_store: CheckpointStore) -> Any:
    from inspect import iscoroutinefunction

    awaited = [name for name in METHODS if iscoroutinefunction(getattr(user_store, name))]
    if awaited:
        raise UsageError(
            f"the methods of a store can't be async: {', '.join(awaited)} of {_kind(user_store)}"
        )
    level = getattr(user_store, "level", "memory")
    if level not in LEVELS:
        raise UsageError(
            f"the level of {_kind(user_store)} must be one of {', '.join(LEVELS)}, not {level!r}"
        )
    return level


def _kind(user_store: object) -> str:
    return str(getattr(user_store, "kind", type(user_store).__qualname__))
