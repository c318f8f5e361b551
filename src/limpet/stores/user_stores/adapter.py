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
    OnSignal,
    RunFilter,
    RunHead,
    Tail,
)
from limpet.stores.heads import fits, held, is_held, refusal, urgency, wants, whereabouts
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
            now = self._clock()
            until = None if run.holder is None else now + run.ttl
            head = RunHead(
                run_id=run.run_id,
                graph=run.graph,
                status=run.status,
                sequence=len(run.records),
                snapshot=1 if run.records else 0,
                fence=1,
                created=now,
                updated=now,
                holder=run.holder,
                lease_until=until,
                tags=tuple(run.tags),
                parent=run.parent,
                note=run.note,
                due=run.due,
                priority=run.priority,
            )
            self._save(_Run(head, list(run.records)))
            return None if until is None else self._grant(Lease(run.run_id, 1, until))

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        with self._kept():
            return [self._apply(commit) for commit in commits]

    def head(self, run_id: str) -> RunHead:
        return self._run(run_id).head

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        head, records = self._run(run_id)
        dropped = head.sequence - len(records)
        start = max(head.snapshot if first is None else first, dropped + 1)
        stop = head.sequence if last is None else last
        found = records[start - dropped - 1 : max(stop - dropped, 0)]
        return Tail(head, start if found else head.sequence + 1, found)

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        with self._kept():
            run, now = self._run(run_id), self._clock()
            head = run.head
            if is_held(head, now) and instead_of != head.fence:
                raise held(head, now)
            lease = Lease(run_id, head.fence + 1, now + ttl, head.crashes + (head.holder is not None))
            self._change(
                run,
                fence=lease.fence,
                crashes=lease.crashes,
                holder=holder,
                lease_until=lease.until,
                updated=now,
            )
            return self._grant(lease)

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[str | None]:
        with self._kept():
            return [self._renew(lease, ttl) for lease in leases]

    def release(self, lease: Lease) -> None:
        with self._kept():
            run = self._find(lease.run_id)
            if run is not None and run.head.fence == lease.fence:
                self._change(run, holder=None, lease_until=None)
                self._granted.pop(lease.run_id, None)

    def signal(self, run_id: str, signal: str) -> None:
        with self._kept():
            run, now = self._run(run_id), self._clock()
            if is_held(run.head, now) and self._granted.get(run_id) != (os.getpid(), run.head.fence):
                raise self._elsewhere(run.head, now)
            self._change(run, signal=signal)

    def list(self, which: RunFilter) -> list[RunHead]:
        now = self._clock()
        heads = [head for head in self._heads(which.graph) if fits(head, which, now)]
        heads.sort(key=lambda head: (head.created, head.run_id), reverse=True)
        return heads[which.offset :][: which.limit]

    def ready(self, graphs: Sequence[str], limit: int) -> Heads:
        """None, ever, unless it is told that it has leases: who has a run is known in the holder's process alone."""
        if not self.abilities.leases:
            return []
        now = self._clock()
        return sorted((head for head in self._heads(None) if wants(head, graphs, now)), key=urgency)[:limit]

    def prune(self, run_id: str, before: int) -> int:
        with self._kept():
            head, records = self._run(run_id)
            gone = max(min(before, head.snapshot) - 1 - (head.sequence - len(records)), 0)
            if gone:
                self._save(_Run(head, records[gone:]))
            return gone

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        with self._kept() as kept:
            now = self._clock()
            old = [
                head.run_id
                for head in self._heads(None)
                if head.status in statuses and head.updated <= now - older_than and not is_held(head, now)
            ]
            for run_id in old:
                kept.delete(run_id)
            return len(old)

    def delete(self, run_id: str) -> None:
        with self._kept() as kept:
            head, now = self._run(run_id).head, self._clock()
            if is_held(head, now):
                raise held(head, now)
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

    def _grant(self, lease: Lease) -> Lease:
        self._granted[lease.run_id] = (os.getpid(), lease.fence)
        return lease

    def _elsewhere(self, head: RunHead, now: float) -> Conflict:
        """To write now might undo what the holder has saved since we looked."""
        return Conflict(
            head.run_id,
            f"{whereabouts(head, now)}, in another process, and {self!r} has no leases to keep two apart: do it "
            "there, or use a store that is shared, such as SQLite",
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

    def _change(self, run: _Run, **changes: Any) -> None:
        self._save(_Run(run.head._replace(**changes), run.records))

    def _apply(self, commit: Commit) -> Exception | None:
        try:
            run, now = self._run(commit.run_id), self._clock()
            refused = refusal(commit, run.head, now)
            if refused is None:
                self._save(run.after(commit, now))
                if commit.status not in (None, RUNNING):
                    self._granted.pop(commit.run_id, None)
            return refused
        except LimpetError as error:
            return error

    def _renew(self, lease: Lease, ttl: float) -> str | None:
        run = self._find(lease.run_id)
        if run is None or run.head.fence != lease.fence or run.head.holder is None:
            return None
        now = self._clock()
        self._change(run, lease_until=now + ttl, updated=now)
        return run.head.signal or ""

    def _heads(self, graph: str | None) -> Sequence[RunHead]:
        with self._kept() as kept:
            states = kept.list() if graph is None else kept.list(graph)
            heads = []
            for state in filter(_is_ours, states):
                try:
                    heads.append(_read(state.checkpoint_id, state).head)
                except DamagedRecord as damage:
                    logging.getLogger("limpet.stores").warning("%r leaves out of its list: %s", self, damage)
            return heads


class _Run(NamedTuple):
    """A head, and the newest records up to its sequence number."""

    head: RunHead
    records: list[bytes]

    def after(self, commit: Commit, now: float) -> _Run:
        """The run once the commit is carried out."""
        head, freed = self.head, commit.status not in (None, RUNNING)
        changed = head._replace(
            sequence=head.sequence + len(commit.records),
            snapshot=0 if commit.purge else commit.snapshot or head.snapshot,
            status=commit.status or head.status,
            note=head.note if commit.note is None else commit.note,
            updated=now if commit.status else head.updated,
            due=commit.due if commit.status else head.due,
            holder=None if freed else head.holder,
            lease_until=None if freed else head.lease_until,
            signal=None if commit.on_signal is OnSignal.CLEAR else head.signal,
        )
        return _Run(changed, [] if commit.purge else [*self.records, *commit.records])


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
