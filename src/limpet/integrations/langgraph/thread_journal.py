"""The journals of threads in a store: reading them, and adding records without a lease.

A thread has no holder. Any process may add records at any time, each with the number of the newest record that it
knows. If there is a newer one the store refuses, and the process reads what is new and tries again. So no record is
lost, and each is made of what it follows.

What this process knows of the threads that it used last is kept, to be read on from there. It is never relied on:
each look asks the store for what is new.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from limpet.errors import Conflict, DamagedRecord, LimpetError, RunExists, RunNotFound, UsageError
from limpet.integrations.langgraph.thread_names import GRAPH, ThreadName, tag_of
from limpet.integrations.langgraph.thread_state import SavedCheckpoint, ThreadState, Writes
from limpet.journal.encoding.codec import encode
from limpet.journal.encoding.envelope import Envelope
from limpet.journal.reader import check_complete
from limpet.journal.record_shapes import read_summary
from limpet.journal.records import bundle
from limpet.journal.run_filter import RunFilter, list_in_pages
from limpet.journal.snapshots import RECORD_WEIGHT, SnapshotPolicy
from limpet.journal.store import PAUSED, Commit, Labels, NewRun, RunHead, Store, Tail
from limpet.journal.threads.kinds import LANGGRAPH
from limpet.journal.threads.records import CHECKPOINT, WRITES, ThreadRecord, encode_thread_record, read_thread

KEPT_THREADS: Final = 64
"""How many threads are known at a time."""

KEPT_BYTES: Final = 64 * 1024 * 1024
"""How large their records may be, together. One thread alone may be larger while it is used."""

BUNDLE_SIZE: Final = 1024 * 1024
"""How large a stored record of a thread that is written again is, roughly."""


class Addition(Protocol):
    """What is to be added to a thread."""

    def record(self, state: ThreadState) -> ThreadRecord:
        """The record of it, after those that the state is made of. It is asked for again if others came first."""
        ...

    def whole(self, state: ThreadState) -> ThreadRecord | None:
        """The same so that no earlier record is needed, if that can be."""
        ...


class NewestCheckpoint(NamedTuple):
    """A checkpoint, and its writes as they are now: later ones are added to its own."""

    saved: SavedCheckpoint
    writes: Writes


class KnownThread:
    """What this process knows of a thread. Its lock is held while it is used."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.head: RunHead | None = None
        self.state = ThreadState()
        self.policy = _policy(0)
        self.size = 0
        """How many bytes the records have of which it is made."""

    def forget(self) -> None:
        """Know nothing any more."""
        self.head = None
        self.state = ThreadState()
        self.policy = _policy(0)
        self.size = 0

    def take(self, tail: Tail) -> None:
        """Take in records that follow, or with which it begins."""
        is_first = self.head is None
        if is_first:
            _check_whole(tail)
        for number, record in read_thread(tail):
            _apply(self.state, tail.head.run_id, number, record)
        size = sum(map(len, tail.records))
        self.size += size
        if is_first:
            # A snapshot isn't weighed against itself.
            size -= len(tail.records[0]) if tail.records else 0
            self.policy = _policy(size + RECORD_WEIGHT * max(len(tail.records) - 1, 0))
        else:
            self.policy.weight += size + RECORD_WEIGHT * len(tail.records)
        self.head = tail.head

    def whole_if_worthwhile(self, addition: Addition, weight: int) -> ThreadRecord | None:
        """What to store in place of a record of this weight, if reading from there on is worth the bytes."""
        if self.policy.weight + weight < self.policy.next_check:
            return None
        whole = addition.whole(self.state)
        if whole is None:
            return None
        before = self.policy.weight
        self.policy.weight += weight
        is_worthwhile = self.policy.worthwhile(encode_thread_record(whole))
        self.policy.weight = before
        return whole if is_worthwhile else None


class ThreadJournals:
    """The threads in a store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._known: OrderedDict[str, KnownThread] = OrderedDict()

    def names(self, thread_id: str | None = None) -> Iterator[ThreadName]:
        """The namespaces that are kept, of one thread or of all."""
        tags: tuple[str, ...] = ()
        if thread_id is not None:
            tags = (tag_of(thread_id),)
        for head in list_in_pages(self.store, RunFilter(plan=LANGGRAPH, tags=tags)):
            name = name_in(head)
            # Not one that was imported under another id: LangGraph finds a thread by its id.
            if name is not None and name.run_id == head.run_id:
                yield name

    def newest(self, name: ThreadName) -> NewestCheckpoint | None:
        """The newest checkpoint of a thread, after a look at the store; None if there is none."""
        known = self._find(name.run_id)
        with known.lock:
            self._refresh(known, name.run_id)
            saved = known.state.newest
            found = None if saved is None else NewestCheckpoint(saved, dict(saved.writes))
        self._trim()
        return found

    def whole(self, name: ThreadName) -> ThreadState:
        """A thread with all its checkpoints; an empty one if there is none. Raises `DamagedRecord`."""
        state = ThreadState(keeps_all=True)
        with suppress(RunNotFound):
            self._read_whole(name.run_id, state)
        return state

    def add(self, name: ThreadName, addition: Addition) -> None:
        """Add to a thread, which is created if there is none. Raises what keeps the store from doing it."""
        known = self._find(name.run_id)
        with known.lock:
            self._add(known, name, addition)
        self._trim()

    def rewrite(self, name: ThreadName, make: Callable[[ThreadState], Iterable[ThreadRecord] | None]) -> None:
        """Replace a thread by the records that `make` makes of all of it, unless that is None.

        One without checkpoints stays, with nothing in it: what another process adds to it meanwhile isn't deleted.
        """
        while True:
            state = ThreadState(keeps_all=True)
            head = None
            with suppress(RunNotFound):
                head = self._read_whole(name.run_id, state)
            records = make(state)
            if records is None or self._try_to_rewrite(name, head, _bundled(records)):
                return

    def delete(self, name: ThreadName) -> None:
        """Delete a namespace of a thread, if it exists. Raises `UsageError` for a run of ours with its id."""
        with suppress(RunNotFound):
            with suppress(DamagedRecord):  # then its id alone says that it is a thread
                _check_thread(self.store.head(name.run_id))
            self.store.delete(name.run_id)

    # Knowing

    def _find(self, run_id: str) -> KnownThread:
        with self._lock:
            if self._process != os.getpid():
                # A forked child: other threads of the parent may have held locks that no thread here will release.
                self._process = os.getpid()
                self._known.clear()
            known = self._known.pop(run_id, None)
            if known is None:
                known = KnownThread()
            self._known[run_id] = known
            return known

    def _trim(self) -> None:
        with self._lock:
            size = sum(each.size for each in self._known.values())
            while len(self._known) > 1 and (len(self._known) > KEPT_THREADS or size > KEPT_BYTES):
                _, oldest = self._known.popitem(last=False)
                size -= oldest.size

    def _refresh(self, known: KnownThread, run_id: str) -> None:
        """Read what is new; all, if the thread isn't known or isn't the one that was. Forget one that is gone."""
        head = known.head
        try:
            if head is not None:
                tail = self.store.read(run_id, first=head.sequence + 1)
                if _follows(tail, head):
                    known.take(tail)
                    return
                known.forget()
            known.take(self.store.read(run_id))
        except RunNotFound:
            known.forget()
        except BaseException:
            known.forget()
            raise

    def _read_whole(self, run_id: str, state: ThreadState) -> RunHead:
        tail = self.store.read(run_id, first=1)
        _check_whole(tail)
        for number, record in read_thread(tail):
            _apply(state, run_id, number, record)
        return tail.head

    # Writing

    def _add(self, known: KnownThread, name: ThreadName, addition: Addition) -> None:
        if known.head is None:
            self._refresh(known, name.run_id)
        while True:
            try:
                if known.head is None:
                    self._create(known, name, addition)
                else:
                    self._append(known, known.head, name, addition)
                return
            except (Conflict, RunNotFound):  # another process was quicker, or has deleted it
                self._refresh(known, name.run_id)
            except BaseException:
                known.forget()
                raise

    def _create(self, known: KnownThread, name: ThreadName, addition: Addition) -> None:
        record = addition.record(known.state)
        self.store.create(_new_run(name, [encode_thread_record(record)], record, 1))
        # Its head is read with the next call: only the store knows when it was created.

    def _append(self, known: KnownThread, head: RunHead, name: ThreadName, addition: Addition) -> None:
        record = addition.record(known.state)
        body = encode_thread_record(record)
        weight = len(body) + RECORD_WEIGHT
        whole = known.whole_if_worthwhile(addition, weight)
        if whole is not None:
            record = whole
            body = encode_thread_record(record)
        number = head.sequence + 1
        data = Envelope(name.run_id).close(number, body)
        commit = Commit(name.run_id, head.fence, head.sequence, [data], ignores_posts=True)
        if whole is not None:
            commit.snapshot = number
        if record.what == CHECKPOINT:
            commit.status = PAUSED
            commit.note = _note(name, record, number, known.state.count_with(record))
        (refused,) = self.store.append((commit,))
        if refused is not None:
            raise refused
        # As another process will read it.
        known.state.apply(record)
        known.head = head._replace(sequence=number)
        known.size += len(data)
        known.policy.weight += weight
        if whole is not None:
            known.policy.start_over()
            known.size = len(data)

    def _try_to_rewrite(self, name: ThreadName, head: RunHead | None, bundles: list[Bundle]) -> bool:
        with self._lock:
            self._known.pop(name.run_id, None)
        last, count = bundles[-1].last, sum(each.checkpoints for each in bundles)
        bodies = [each.body for each in bundles]
        if head is None:
            if count:
                try:
                    self.store.create(_new_run(name, bodies, last, count))
                except RunExists:
                    return False
            return True
        first = head.sequence + 1
        envelope = Envelope(name.run_id)
        records = [envelope.close(number, body) for number, body in enumerate(bodies, first)]
        note = _note(name, last, head.sequence + len(bodies), count)
        commit = Commit(
            name.run_id, head.fence, head.sequence, records, first, PAUSED, note, ignores_posts=True
        )
        (refused,) = self.store.append((commit,))
        if isinstance(refused, (Conflict, RunNotFound)):
            return False
        if refused is not None:
            raise refused
        with suppress(RunNotFound):
            self.store.prune(name.run_id, first)
        return True


class Bundle(NamedTuple):
    """Records that are stored as one. `last` is the newest checkpoint up to there, or else the first record."""

    body: bytes
    last: ThreadRecord
    checkpoints: int


def name_in(head: RunHead) -> ThreadName | None:
    """The thread and the namespace that a head says it is of; None if that can't be read."""
    try:
        thread_id, namespace = read_summary(head.note)["thread"]
        return ThreadName(thread_id, namespace)
    except (LimpetError, LookupError, TypeError, ValueError, AttributeError):
        return None


def _bundled(records: Iterable[ThreadRecord]) -> list[Bundle]:
    found: list[Bundle] = []
    bodies: list[bytes] = []
    count = 0
    last: ThreadRecord | None = None
    size = 0
    for record in records:
        if size > BUNDLE_SIZE and last is not None:
            found.append(Bundle(bundle(bodies), last, count))
            bodies = []
            count = 0
            size = 0
        bodies.append(encode_thread_record(record))
        size += len(bodies[-1])
        if record.what == CHECKPOINT or last is None:
            last = record
        count += record.what == CHECKPOINT
    assert last is not None
    return [*found, Bundle(bundle(bodies), last, count)]


def _new_run(name: ThreadName, bodies: Sequence[bytes], newest: ThreadRecord, checkpoints: int) -> NewRun:
    envelope = Envelope(name.run_id)
    return NewRun(
        name.run_id,
        GRAPH,
        [envelope.close(number, body) for number, body in enumerate(bodies, 1)],
        PAUSED,
        tags=(tag_of(name.thread_id),),
        note=_note(name, newest, len(bodies), checkpoints),
        labels=Labels(plan=LANGGRAPH),
    )


def _note(name: ThreadName, newest: ThreadRecord, sequence: int, checkpoints: int) -> bytes:
    """What a list says of a thread."""
    count = checkpoints if newest.what != WRITES else 0
    return encode(
        {
            "step": newest.step,
            "node": "",
            "reason": f"a thread of LangGraph, {count:,} checkpoint{'' if count == 1 else 's'}",
            "thread": [name.thread_id, name.namespace],
            "sequence": sequence,
        }
    )


def _policy(weight: int) -> SnapshotPolicy:
    policy = SnapshotPolicy(weight)
    policy.warned = True  # that a state is large is for LangGraph to say: it isn't measured for that
    return policy


def _check_whole(tail: Tail) -> None:
    """Raise `UsageError` for a run of ours with the id of a thread, and `DamagedRecord` if records are missing."""
    _check_thread(tail.head)
    check_complete(tail)


def _check_thread(head: RunHead) -> None:
    if not head.kind:
        raise UsageError(
            f"run {head.run_id!r} isn't a thread of LangGraph, and a thread would have its id"
        ).with_advice("give the thread another id, or delete the run", "delete")


def _follows(tail: Tail, head: RunHead) -> bool:
    """Whether records are those right after a head, of the same run: another may have its id by now."""
    return (
        tail.head.created == head.created
        and tail.head.sequence >= head.sequence
        and (tail.first == head.sequence + 1 or not tail.records)
        and tail.head.sequence - head.sequence == len(tail.records)
    )


def _apply(state: ThreadState, run_id: str, number: int, record: ThreadRecord) -> None:
    try:
        state.apply(record)
    except LimpetError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as problem:
        raise DamagedRecord(run_id, number, f"it doesn't follow from those before: {problem}") from problem
