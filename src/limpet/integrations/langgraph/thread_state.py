"""What the records of a thread add up to, and the records that change it.

Each record is applied here, by the process that writes it and by each one that reads it, so that both know the same.
A checkpoint is stored as its difference to the one that was saved before it, whichever that was: after a fork, too.
Now and then one is stored whole, with what else later records may refer to. A store reads from the newest of these
on.

The records are those of `journal/threads/records.py`. Here is what `changes` and `rest` are:

    CHECKPOINT   changes: by channel, see `values.py`
                 rest: the origin, whether it is stored whole, the id of its parent (1: the newest checkpoint; nil),
                 `v`, `ts`, the versions of its channels, those that its nodes have seen, its updated channels, a
                 piece with anything else of it (nil: as before), a piece with its metadata; and if it is whole, how
                 many checkpoints the thread has had, and writes that came before their checkpoints: `[checkpoint,
                 rest of WRITES without the origin]`
    WRITES       rest: the origin, the id of the task, its path, and `[index, channel, value]` for each write

The origin is a text that was made up for the first record of a thread, and that all others repeat. A thread may be
deleted and made again while a process is about to add to it, and the new one may have as many records. Then the store
takes what the process adds, which follows from records that are gone. It has another origin, and isn't applied.

Versions are `[true, all]`, or `[false, those that changed]`. The empty name of WRITES is the newest checkpoint: then
the values are differences to the channels of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from secrets import token_hex
from typing import Any, Final, NamedTuple

from limpet.integrations.langgraph.values import (
    Piece,
    RecentPieces,
    Typed,
    Value,
    changed,
    difference,
    repetition,
)
from limpet.journal.threads.kinds import LANGGRAPH
from limpet.journal.threads.records import CHECKPOINT, RESTART, WRITES, ThreadRecord

THE_NEWEST: Final = 1
"""Stands for the newest checkpoint, which is the parent of nearly all."""


COUNTERS: Final = "counters_since_delta_snapshot"
"""What metadata say of the channels whose values aren't in the checkpoint."""


class Write(NamedTuple):
    """What a task has written to a channel."""

    task_path: str
    channel: str
    value: Value


Writes = dict[tuple[str, int], Write]
"""By the id of the task and the index of the write."""


class TaskWrites(NamedTuple):
    """What one call of `put_writes` stores."""

    task_id: str
    task_path: str
    writes: Sequence[tuple[int, str, Value]]


class SavedCheckpoint:
    """A checkpoint as it is stored: its values are in pieces, and so is what only LangGraph understands."""

    __slots__ = (
        "at",
        "extra",
        "id",
        "metadata",
        "parent",
        "seen",
        "source",
        "step",
        "ts",
        "updated",
        "v",
        "values",
        "versions",
        "writes",
    )

    def __init__(self, id: str, parent: str | None, step: int, source: str, at: float) -> None:
        self.id = id
        self.parent = parent
        self.step = step
        self.source = source
        self.at = at
        self.v: Any = None
        self.ts: Any = None
        self.versions: dict[str, Any] = {}
        self.seen: dict[str, Any] = {}
        self.updated: Any = None
        self.extra: Piece = b""
        self.metadata: Piece = b""
        self.values: dict[str, Value] = {}
        self.writes: Writes = {}


class ThreadState:
    """A thread after some of its records: its newest checkpoint, and what the next records refer to.

    With `keeps_all`, all checkpoints are kept, for which the records from the first on are needed.
    """

    __slots__ = ("all", "count", "early", "keeps_all", "last", "newest", "origin", "recent")

    def __init__(self, keeps_all: bool = False) -> None:
        self.keeps_all = keeps_all
        self._start_over()

    def _start_over(self) -> None:
        self.origin = ""
        """Of the records that it is made of; empty before the first."""
        self.all: dict[str, SavedCheckpoint] = {}
        self.newest: SavedCheckpoint | None = None
        """The one with the highest id, with its writes."""
        self.last: SavedCheckpoint | None = None
        """The one that was saved last, from which the next one differs."""
        self.early: dict[str, Writes] = {}
        """Writes that came before their checkpoint: LangGraph saves both in threads of their own."""
        self.recent = RecentPieces()
        self.count = 0
        """How many checkpoints the thread has had."""

    # Making records. Nothing changes until they are applied.

    def checkpoint_record(self, saved: SavedCheckpoint, whole: bool = False) -> ThreadRecord:
        """The record of a checkpoint that is saved next."""
        last = self.last
        recent: RecentPieces | None = self.recent
        if whole:
            last = None
            recent = None
        before = last or SavedCheckpoint("", None, 0, "", 0.0)
        old = before.values
        changes = {
            channel: change
            for channel in (*old, *(each for each in saved.values if each not in old))
            if (change := difference(old.get(channel), saved.values.get(channel), recent)) is not None
        }
        parent: str | int | None = saved.parent
        if not whole and self.newest is not None and parent == self.newest.id:
            parent = THE_NEWEST
        rest = [
            self.origin or token_hex(4),
            whole,
            parent,
            saved.v,
            saved.ts,
            _versions_since(before.versions, saved.versions),
            _versions_since(before.seen, saved.seen),
            saved.updated,
            _as_data(saved.extra, before.extra),
            _as_data(saved.metadata),
        ]
        if whole:
            rest += [self.count, self._early_writes(saved.id)]
        return ThreadRecord(
            saved.step, saved.at, LANGGRAPH, CHECKPOINT, saved.id, saved.source, changes, rest
        )

    def writes_record(self, checkpoint: str, written: TaskWrites, at: float) -> ThreadRecord:
        """The record of writes to a checkpoint."""
        values: Mapping[str, Value] = {}
        step = 0
        if self.newest is not None and checkpoint == self.newest.id:
            values = self.newest.values
            step = self.newest.step
            checkpoint = ""
        rest = [self.origin or token_hex(4), *_writes_data(written, values, self.recent)]
        return ThreadRecord(step, at, LANGGRAPH, WRITES, checkpoint, "", {}, rest)

    def count_with(self, record: ThreadRecord) -> int:
        """How many checkpoints the thread has had, with the one of a record that is to be applied."""
        is_new = self.newest is None or self.newest.id != record.name
        return self.count + is_new

    def _early_writes(self, id: str) -> list[list[Any]]:
        """The writes that came before their checkpoints, as far as these may still come."""
        found = []
        for checkpoint, writes in self.early.items():
            if checkpoint >= id:
                found += [[checkpoint, _writes_data(each, {}, None)] for each in by_task(writes)]
        return found

    # Applying records

    def apply(self, record: ThreadRecord) -> None:
        """Advance by one record. Raises LookupError, TypeError or ValueError for one that doesn't fit."""
        if record.format != LANGGRAPH:
            raise ValueError(f"its format is {record.format!r}")
        if record.what == RESTART:
            self._start_over()
            return
        origin, *rest = record.rest
        is_whole = record.what == CHECKPOINT and rest[0]
        if self.origin not in ("", origin) and not is_whole:
            return  # it follows from a thread that was deleted
        self.origin = origin
        if record.what == CHECKPOINT:
            self._apply_checkpoint(record, rest)
        else:
            self._apply_writes(record.name, rest)

    def _apply_checkpoint(self, record: ThreadRecord, rest: list[Any]) -> None:
        whole, parent, v, ts, versions, seen, updated, extra, metadata, *more = rest
        if whole:
            self.last = None
            self.count, early = more
            self._take_early(record.name, early)
        if parent == THE_NEWEST:
            if self.newest is None:
                raise ValueError("its parent isn't known")
            parent = self.newest.id
        saved = SavedCheckpoint(record.name, parent, record.step, record.label, record.at)
        stored: list[Piece] = []
        before = self.last or SavedCheckpoint("", None, 0, "", 0.0)
        saved.values = dict(before.values)
        for channel, change in record.changes.items():
            value = changed(saved.values.get(channel), change, self.recent, stored.append)
            if value is None:
                saved.values.pop(channel, None)
            else:
                saved.values[channel] = value
        saved.v = v
        saved.ts = ts
        saved.versions = _with_changed(before.versions, versions)
        saved.seen = _with_changed(before.seen, seen)
        saved.updated = updated
        saved.extra = before.extra
        if extra is not None:
            saved.extra = _of_data(extra)
        saved.metadata = _of_data(metadata)
        self.last = saved
        self._keep(saved, stored)

    def _keep(self, saved: SavedCheckpoint, stored: Iterable[Piece]) -> None:
        known = self.all.get(saved.id)
        newest = self.newest
        if newest is not None and saved.id == newest.id:
            known = newest
        if known is not None:
            saved.writes = known.writes
        else:
            saved.writes = self.early.pop(saved.id, {})
            self.count += 1
        if self.keeps_all:
            self.all[saved.id] = saved
        if newest is not None and saved.id < newest.id:
            return
        self.newest = saved
        self.recent = RecentPieces()
        for piece in stored:
            self.recent.add(piece)

    def _apply_writes(self, checkpoint: str, rest: list[Any]) -> None:
        task_id, task_path, data = rest
        newest = self.newest
        is_newest = not checkpoint
        if is_newest and newest is None:
            raise ValueError("its checkpoint isn't known")
        writes = self._writes_of(checkpoint)
        stored: list[Piece] = []
        for index, channel, change in data:
            old = None
            if is_newest and newest is not None:
                old = newest.values.get(channel)
            value = changed(old, change, self.recent, stored.append)
            if value is None:
                raise ValueError("it has no value")
            # The first write of a task at an index counts, except for errors, interrupts and the like.
            if index < 0 or (task_id, index) not in writes:
                writes[task_id, index] = Write(task_path, channel, value)
        for piece in stored:
            self.recent.add(piece)

    def _writes_of(self, checkpoint: str) -> Writes:
        newest = self.newest
        if newest is not None and checkpoint in ("", newest.id):
            return newest.writes
        known = self.all.get(checkpoint)
        if known is not None:
            return known.writes
        if newest is not None and checkpoint < newest.id and not self.keeps_all:
            return {}  # of an older checkpoint, of which nothing is known here
        return self.early.setdefault(checkpoint, {})

    def _take_early(self, id: str, early: list[Any]) -> None:
        """Know of the writes that a whole checkpoint says have come before it, if this begins with it."""
        if self.newest is not None:
            return
        self.early.clear()
        for checkpoint, rest in early:
            self._apply_writes(checkpoint, rest)


def records_of(checkpoints: Iterable[SavedCheckpoint], early: Mapping[str, Writes]) -> Iterator[ThreadRecord]:
    """The records of a thread that begins again, and has these checkpoints and no others."""
    state = ThreadState()

    def applied(record: ThreadRecord) -> ThreadRecord:
        state.apply(record)
        return record

    yield ThreadRecord(0, 0.0, LANGGRAPH, RESTART, "", "", {}, [])
    for saved in sorted(checkpoints, key=lambda each: each.id):
        yield applied(state.checkpoint_record(saved))
        for written in by_task(saved.writes):
            yield applied(state.writes_record(saved.id, written, saved.at))
    for checkpoint, writes in early.items():
        for written in by_task(writes):
            yield applied(state.writes_record(checkpoint, written, 0.0))


def checkpoints_without(
    all_of_thread: Mapping[str, SavedCheckpoint],
    unwanted: Collection[str],
    metadata_of: Callable[[SavedCheckpoint], Mapping[str, Any]],
) -> list[SavedCheckpoint]:
    """The checkpoints that stay when the unwanted ones are deleted: those that are wanted, and what these need.

    A `DeltaChannel` stores its whole value now and then only. In between a checkpoint has nothing of it: its value
    is made of the newest whole one among the ancestors, and of what was written since. Ancestors up to there stay.
    """
    kept = {id: saved for id, saved in all_of_thread.items() if id not in unwanted}
    for saved in list(kept.values()):
        counters = metadata_of(saved).get(COUNTERS) or {}
        open_channels = {channel for channel in counters if channel not in saved.values}
        ancestor = saved
        while open_channels and ancestor.parent:
            found = all_of_thread.get(ancestor.parent)
            if found is None:
                break
            ancestor = found
            kept[ancestor.id] = ancestor
            open_channels -= ancestor.values.keys()
    return sorted(kept.values(), key=lambda each: each.id)


def by_task(writes: Writes) -> list[TaskWrites]:
    """Writes in the order in which they came, those of one task together."""
    tasks: dict[tuple[str, str], list[tuple[int, str, Value]]] = {}
    for (task_id, index), write in writes.items():
        tasks.setdefault((task_id, write.task_path), []).append((index, write.channel, write.value))
    return [TaskWrites(*task, entries) for task, entries in tasks.items()]


def _writes_data(written: TaskWrites, values: Mapping[str, Value], recent: RecentPieces | None) -> list[Any]:
    data = []
    for index, channel, value in written.writes:
        change = difference(values.get(channel), value, recent)
        if change is None:
            change = repetition(value, recent)
        data.append([index, channel, change])
    return [written.task_id, written.task_path, data]


def _versions_since(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Any]:
    """The versions that changed; all of them, if one is gone."""
    if not old.keys() <= new.keys():
        return [True, dict(new)]
    return [False, {key: value for key, value in new.items() if key not in old or _differ(old[key], value)}]


def _differ(a: Any, b: Any) -> bool:
    if type(a) is not type(b) or a != b:
        return True
    # What a node has seen is a dict of versions.
    return type(a) is dict and any(_differ(a[key], b[key]) for key in a)


def _with_changed(old: Mapping[str, Any], data: list[Any]) -> dict[str, Any]:
    is_all, versions = data
    if is_all:
        return dict(versions)
    return {**old, **versions}


def _as_data(piece: Piece, before: Piece | None = None) -> Any:
    """A piece as data; None if it is the one before."""
    if piece == before:
        return None
    if isinstance(piece, Typed):
        return list(piece)
    return piece


def _of_data(data: Any) -> Piece:
    if type(data) is bytes:
        return data
    kind, content = data
    return Typed(kind, content)
