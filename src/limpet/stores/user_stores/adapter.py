"""`AdaptedStore`: an object with the five methods of a `CheckpointStore`, as a store of runs.

A run is one checkpoint: head and journal are one text in its context, read and written whole by each call. One lock
keeps the threads of this process apart. Nothing keeps processes apart, since between `load` and `save` another one
may do the same: the store declares that it has no leases to rely on, and isn't shared.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple
from zlib import crc32

from limpet.errors import (
    Conflict,
    DamagedRecord,
    LimpetError,
    RunExists,
    RunNotFound,
    StoreUnavailable,
    UsageError,
)
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.store import (
    ENDED,
    PAUSED,
    RUNNING,
    Abilities,
    Commit,
    Heads,
    Lease,
    NewRun,
    RunFilter,
    RunHead,
    Tail,
)
from limpet.stores import heads
from limpet.stores.user_stores.checkpoint_store import (
    METHODS,
    CheckpointState,
    CheckpointStore,
    PauseMetadata,
)

KEY = "__limpet__"
"""Under this key of the context is the run itself."""

LEVELS = ("disk", "process", "memory")
MARK = "LMC1:"


class AdaptedStore:
    """Keeps runs in `kept`, an object with the methods of a `CheckpointStore`. `open_store(kept)` gives you one.

    Raises `UsageError` for an object whose methods are async, or whose `level` is none. Closing doesn't close `kept`.
    """

    def __init__(self, kept: CheckpointStore, clock: Callable[[], float] = time.time) -> None:
        self.kept, self.closed = kept, False
        self.abilities = Abilities(_level_of(kept), shared=False, leases=False, deltas=False)
        self._clock = clock
        self._lock = threading.RLock()
        self._granted: dict[str, tuple[int, int]] = {}

    def __repr__(self) -> str:
        return f"<AdaptedStore of {_kind(self.kept)}>"

    def create(self, run: NewRun) -> Lease | None:
        with self._kept() as kept:
            if kept.load(run.run_id) is not None:
                raise RunExists(run.run_id)
            head, lease = heads.create(run, self._clock())
            self._save(_Run(head, list(run.records)))
            if lease is not None:
                self._remember(lease)
            return lease

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        with self._kept():
            return [self._apply(commit) for commit in commits]

    def head(self, run_id: str) -> RunHead:
        return self._run(run_id).head

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        head, records = self._run(run_id)
        dropped = head.sequence - len(records)
        start, stop = heads.readable(head, dropped, first, last)
        found = records[start - dropped - 1 : max(stop - dropped, 0)]
        return Tail(head, start if found else head.sequence + 1, found)

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        with self._kept():
            run = self._run(run_id)
            head, lease = heads.claim(run.head, holder, ttl, self._clock(), instead_of)
            self._save(_Run(head, run.records))
            self._remember(lease)
            return lease

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[str | None]:
        with self._kept():
            return [self._renew(lease, ttl) for lease in leases]

    def release(self, lease: Lease) -> None:
        with self._kept():
            run = self._find(lease.run_id)
            head = None if run is None else heads.release(run.head, lease)
            if run is not None and head is not None:
                self._save(_Run(head, run.records))
                self._granted.pop(lease.run_id, None)

    def signal(self, run_id: str, signal: str) -> None:
        with self._kept():
            run, now = self._run(run_id), self._clock()
            if heads.is_held(run.head, now) and self._granted.get(run_id) != (os.getpid(), run.head.fence):
                raise self._elsewhere(run.head, now)
            self._save(_Run(heads.signal(run.head, signal), run.records))

    def list(self, which: RunFilter) -> list[RunHead]:
        now = self._clock()
        found = [head for head in self._heads(which.graph) if heads.matches(head, which, now)]
        return heads.newest_first(found, which)

    def ready(self, graphs: Sequence[str], limit: int) -> Heads:
        """None, ever, unless it is told that it has leases: who has a run is known in the holder's process alone."""
        if not self.abilities.leases:
            return []
        now = self._clock()
        found = [head for head in self._heads(None) if heads.is_ready(head, graphs, now)]
        return heads.most_urgent_first(found)[:limit]

    def prune(self, run_id: str, before: int) -> int:
        with self._kept():
            head, records = self._run(run_id)
            gone = heads.prunable(head, head.sequence - len(records), before)
            if gone:
                self._save(_Run(head, records[gone:]))
            return gone

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        with self._kept() as kept:
            now = self._clock()
            old = [
                head.run_id for head in self._heads(None) if heads.is_expired(head, older_than, statuses, now)
            ]
            for run_id in old:
                kept.delete(run_id)
            return len(old)

    def delete(self, run_id: str) -> None:
        with self._kept() as kept:
            heads.refuse_if_held(self._run(run_id).head, self._clock())
            kept.delete(run_id)
            self._granted.pop(run_id, None)

    def close(self) -> None:
        with self._lock:
            self.closed = True

    @contextmanager
    def _kept(self) -> Iterator[CheckpointStore]:
        """The object, for one thread; what it raises is told as an error of a store."""
        with self._lock:
            if self.closed:
                raise StoreUnavailable(f"{self!r} was closed: open it again with open_store(…)")
            try:
                yield self.kept
            except LimpetError:
                raise
            except Exception as error:
                raise StoreUnavailable(
                    f"{_kind(self.kept)} raised {type(error).__name__}: see what caused this"
                ) from error

    def _remember(self, lease: Lease) -> None:
        self._granted[lease.run_id] = (os.getpid(), lease.fence)

    def _elsewhere(self, head: RunHead, now: float) -> Conflict:
        """To write now might undo what the holder has saved since we looked."""
        return Conflict(
            head.run_id,
            f"{heads.describe_lease(head, now)}, in another process, and {self!r} has no leases to keep two "
            "processes apart: do it there, or use a store that is shared, such as SQLite",
            head.holder,
            head.lease_until,
        )

    def _find(self, run_id: str) -> _Run | None:
        with self._kept() as kept:
            state = kept.load(run_id)
        return None if state is None or not _is_ours(state) else _read(run_id, state)

    def _run(self, run_id: str) -> _Run:
        run = self._find(run_id)
        if run is None:
            raise RunNotFound(run_id)
        return run

    def _save(self, run: _Run) -> None:
        with self._kept() as kept:
            kept.save(_written(run, self._clock()))

    def _apply(self, commit: Commit) -> Exception | None:
        try:
            run, now = self._run(commit.run_id), self._clock()
            refused = heads.refusal(commit, run.head, now)
            if refused is None:
                self._save(run.after(commit, now))
                if commit.status not in (None, RUNNING):
                    self._granted.pop(commit.run_id, None)
            return refused
        except LimpetError as error:
            return error

    def _renew(self, lease: Lease, ttl: float) -> str | None:
        run = self._find(lease.run_id)
        head = None if run is None else heads.renew(run.head, lease, ttl, self._clock())
        if run is None or head is None:
            return None
        self._save(_Run(head, run.records))
        return head.signal or ""

    def _heads(self, graph: str | None) -> Sequence[RunHead]:
        with self._kept() as kept:
            states = kept.list() if graph is None else kept.list(graph)
            found = []
            for state in filter(_is_ours, states):
                try:
                    found.append(_read(state.checkpoint_id, state).head)
                except DamagedRecord as damage:
                    logging.getLogger("limpet.stores").warning("%r leaves out of its list: %s", self, damage)
            return found


class _Run(NamedTuple):
    """A head, and the newest records up to its sequence number."""

    head: RunHead
    records: list[bytes]

    def after(self, commit: Commit, now: float) -> _Run:
        """The run once the commit is carried out."""
        records = [] if commit.purge else [*self.records, *commit.records]
        return _Run(heads.apply(self.head, commit, now), records)


def _written(run: _Run, now: float) -> CheckpointState:
    head = run.head
    data = encode([[*head[:10], list(head.tags), *head[11:]], [bytes(record) for record in run.records]])
    blob = MARK + b64encode(crc32(data).to_bytes(4, "big") + data).decode()
    note = _note_of(head)
    shown = {"status": head.status, "node": note.get("node", ""), "step": note.get("step", 0)}
    return CheckpointState(
        checkpoint_id=head.run_id,
        workflow_name=head.graph,
        context={**shown, KEY: blob},
        created_at=datetime.fromtimestamp(now, UTC).replace(tzinfo=None),
        pause_metadata=_pause(note) if head.status == PAUSED else None,
    )


def _note_of(head: RunHead) -> dict[str, Any]:
    """The summary of a run, for people who look at a checkpoint. Nothing depends on it."""
    try:
        note = decode(head.note) if head.note else {}
    except Exception:
        return {}
    return note if isinstance(note, dict) else {}


def _pause(note: dict[str, Any]) -> PauseMetadata:
    for question in note.get("questions") or ():
        return PauseMetadata(question["node"], question["prompt"])
    return PauseMetadata(note.get("node", ""), note.get("reason") or "")


def _is_ours(state: CheckpointState) -> bool:
    return KEY in state.context


def _read(run_id: str, state: CheckpointState) -> _Run:
    try:
        blob = state.context[KEY]
        if not blob.startswith(MARK):
            raise ValueError("it doesn't begin as one")
        stored = b64decode(blob[len(MARK) :], validate=True)
        if crc32(stored[4:]) != int.from_bytes(stored[:4], "big"):
            raise ValueError("its checksum doesn't match")
        data, records = decode(stored[4:])
        head = _head_from(data)
        if head.run_id != run_id:
            raise ValueError(f"it is that of run {head.run_id!r}")
    except Exception as error:
        raise DamagedRecord(run_id, 0, f"its checkpoint isn't what was saved: {error}") from error
    return _Run(head, records)


def _head_from(data: list[Any]) -> RunHead:
    """The head in a checkpoint; in those from before there were `due` and `priority`, the last two are missing."""
    late = [0.0 if data[2] == RUNNING else None, 0] if len(data) == len(RunHead._fields) - 2 else []
    return RunHead._make([*data[:10], tuple(data[10]), *data[11:], *late])


def _level_of(kept: CheckpointStore) -> Any:
    from inspect import iscoroutinefunction

    waiting = [name for name in METHODS if iscoroutinefunction(getattr(kept, name))]
    if waiting:
        raise UsageError(f"the methods of a store can't be async: {', '.join(waiting)} of {_kind(kept)}")
    level = getattr(kept, "level", "memory")
    if level not in LEVELS:
        raise UsageError(f"the level of {_kind(kept)} is one of {', '.join(LEVELS)}, not {level!r}")
    return level


def _kind(kept: object) -> str:
    return type(kept).__qualname__
