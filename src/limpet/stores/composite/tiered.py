"""Two stores as one: a cold one that is the truth, and a hot one that gives back quickly what live runs need.

Why a lost, flushed, stale, slow or failing hot store never gives wrong data and never fails a run:

1. Every write goes to the cold store and is acknowledged by it. The hot store hears of it afterwards; what it
   says to that is nobody's business. Leases, fences, signals, lists and heads are the cold store's alone.
2. The hot store has *copies* of the journals of live runs, each from its newest whole record on. A record in it
   carries a digest over the run's id, the run's time of creation, the record's number and its bytes, so one that
   was changed, moved, or left over from an earlier run of the same id is not taken for the one that is asked for.
3. To read a run's tail, the copy is read first: it ends with record n. Then the cold store is asked for the records
   from n on, which gives, as of one moment, the head and whatever the copy has not. The copy is used only if the
   head has the same time of creation and the cold store's record n has the very bytes of the copy's. Records are
   never changed once they are written, so those before n are then what the cold store has, however old the copy is.
   What is given back starts at the head's newest whole record; if the copy doesn't reach back to it, or if
   anything else is amiss, all is read from the cold store, and the copy is made anew.
4. Whatever the hot store raises is caught. One that raised, or took longer than `PATIENCE`, is left alone for `REST`
   seconds, and each time it fails again for twice as long: reads and writes are then the cold store's alone.

What must hold for this: the cold store never gives out a creation time twice for one id, and it isn't set back
(restored from a backup, say) while the hot one keeps its copies; flush the hot one then. The digest finds damage, not
somebody who can write to the hot store and means harm: protect it as you do the cold one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple, TypeVar

from limpet.errors import Conflict, RunNotFound, UsageError
from limpet.journal.store import (
    CANCELLED,
    COMPLETED,
    ENDED,
    Commit,
    Heads,
    Lease,
    NewRun,
    OnSignal,
    RunFilter,
    RunHead,
    Store,
    Tail,
)
from limpet.stores.composite.wrapper import StoreWrapper

Outcome = TypeVar("Outcome")
Records = list[bytes]

COPY = "copy"
"""The status of a copy in the hot store: no run of anybody's has it, so none is mistaken for a copy."""

OVER = (COMPLETED, CANCELLED)
"""The statuses after which a run hardly goes on; one that failed often does."""

DIGEST = 16
"""Bytes of the digest before each record of a copy."""

PATIENCE = 0.5
"""Seconds after which the hot store is too slow to be of use."""

REST = 5.0
"""Seconds for which a hot store that failed is left alone, the first time."""

LONGEST_REST = 60.0

MOST_REMEMBERED = 10_000


class Copy(NamedTuple):
    """A copy in the hot store: of the run created then, of its records after number `base`."""

    created: float
    base: int


class TieredStore(StoreWrapper):
    """The runs of `cold`, with copies of the live ones in `hot` that make resuming fast.

    The module's text says what holds. `hot` may also be a function that opens the hot store, called when that is
    first needed and until it succeeds. `abilities` are those of the cold store. Closing closes both.
    """

    def __init__(self, hot: Store | Callable[[], Store], cold: Store) -> None:
        if not _is_store(cold) or not (_is_store(hot) or callable(hot)):
            raise UsageError("TieredStore(hot, cold) takes two stores; open_store(url) gives you one")
        if hot is cold:
            raise UsageError("the hot store and the cold one must be two: one is read when the other is lost")
        self.cold = cold
        self._opened: Store | None = hot if isinstance(hot, Store) and _is_store(hot) else None
        self._open: Callable[[], Store] | None = None if isinstance(hot, Store) else hot
        self._hot = _Careful()
        self._copies: dict[str, Copy | None] = {}

    def __repr__(self) -> str:
        return f"TieredStore(hot={self._opened!r}, cold={self.cold!r})"

    @property
    def hot(self) -> Store:
        """The hot store. Raises what opening it raises."""
        if self._opened is None:
            assert self._open is not None
            self._opened = self._open()
        return self._opened

    @property
    def _behind(self) -> Store:
        return self.cold

    def create(self, run: NewRun) -> Lease | None:
        lease = self.cold.create(run)
        if lease is not None:  # while it is held, nobody can put another in its place
            self._hot.attempt(lambda: self._begin(run))
        return lease

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        outcomes = self.cold.append(commits)
        taken = [commit for commit, outcome in zip(commits, outcomes, strict=True) if outcome is None]
        if taken:
            self._hot.attempt(lambda: self._follow(taken))
        return outcomes

    def head(self, run_id: str) -> RunHead:
        return self.cold.head(run_id)

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        if first is not None or last is not None:
            return self.cold.read(run_id, first, last)
        copied = self._hot.attempt(lambda: self._copied(run_id))
        tail = None if copied is None else self._completed(run_id, *copied)
        if tail is None:
            tail = self.cold.read(run_id)
            whole = tail
            self._hot.attempt(lambda: self._fill(whole))
        return tail

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        return self.cold.claim(run_id, holder, ttl, instead_of)

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[str | None]:
        return self.cold.renew(leases, ttl)

    def release(self, lease: Lease) -> None:
        self.cold.release(lease)

    def signal(self, run_id: str, signal: str) -> None:
        self.cold.signal(run_id, signal)

    def list(self, which: RunFilter) -> list[RunHead]:
        return self.cold.list(which)

    def ready(self, graphs: Sequence[str], limit: int) -> Heads:
        return self.cold.ready(graphs, limit)

    def prune(self, run_id: str, before: int) -> int:
        return self.cold.prune(run_id, before)

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        gone = self.cold.expire(older_than, statuses)
        self._hot.attempt(lambda: self.hot.expire(older_than, (COPY,)))
        return gone

    def delete(self, run_id: str) -> None:
        self.cold.delete(run_id)
        self._hot.attempt(lambda: self._drop(run_id))

    def close(self) -> None:
        self.cold.close()
        if self._opened is not None:
            self._hot.attempt(self._opened.close, anyway=True)

    def _begin(self, run: NewRun) -> None:
        head = self.cold.head(run.run_id)
        if head.status not in OVER:
            self._put(run.run_id, Copy(head.created, 0), run.graph, run.records)

    def _fill(self, tail: Tail) -> None:
        """Make a copy anew, of a run that may go on."""
        if tail.head.status in OVER or not tail.records:
            self._drop(tail.head.run_id)
        else:
            copy = Copy(tail.head.created, tail.first - 1)
            self._put(tail.head.run_id, copy, tail.head.graph, tail.records)

    def _put(self, run_id: str, copy: Copy, graph: str, records: Sequence[bytes]) -> None:
        sealed = _sealed(run_id, copy, copy.base + 1, records)
        self._drop(run_id)
        self.hot.create(NewRun(_name(run_id), graph, sealed, status=COPY, note=_note(copy)))
        self._remember(run_id, copy)

    def _follow(self, commits: Sequence[Commit]) -> None:
        """Carry commits that the cold store took over to the copies."""
        later: list[Commit] = []
        for commit in commits:
            if commit.purge or commit.status in OVER:
                self._drop(commit.run_id)
            elif commit.records:
                copy = self._known(commit.run_id)
                if copy is not None:
                    later.append(_carried(commit, copy))
        for copied, outcome in zip(later, self.hot.append(later) if later else (), strict=True):
            if outcome is not None:
                self._drop(_original(copied.run_id))
            elif copied.snapshot > 1:
                self.hot.prune(copied.run_id, copied.snapshot)

    def _known(self, run_id: str) -> Copy | None:
        """The copy of a run that there is, as far as is known; asks the hot store only once."""
        if run_id not in self._copies:
            try:
                self._remember(run_id, _noted(self.hot.head(_name(run_id)).note))
            except RunNotFound:
                self._remember(run_id, None)
        return self._copies[run_id]

    def _drop(self, run_id: str) -> None:
        self._copies.pop(run_id, None)
        with suppress(RunNotFound):
            self.hot.delete(_name(run_id))

    def _copied(self, run_id: str) -> tuple[Copy, int, Records] | None:
        """What the hot store has of a run: the copy, the number of its first record, and the records."""
        try:
            tail = self.hot.read(_name(run_id))
        except RunNotFound:
            return None
        copy = _noted(tail.head.note)
        if copy is None or tail.head.status != COPY or not tail.records:
            return None
        self._remember(run_id, copy)
        first = copy.base + tail.first
        records = _unsealed(run_id, copy, first, tail.records)
        return None if records is None else (copy, first, records)

    def _completed(self, run_id: str, copy: Copy, first: int, records: Records) -> Tail | None:
        """The tail, from a copy and what the cold store has beyond it; None if the two don't fit."""
        newest = first + len(records) - 1
        rest = self.cold.read(run_id, first=newest)
        head = rest.head
        if (
            head.created != copy.created
            or rest.first != newest
            or rest.records[:1] != records[-1:]
            or not first <= head.snapshot <= head.sequence
        ):
            return None
        return Tail(head, head.snapshot, (records[:-1] + rest.records)[head.snapshot - first :])

    def _remember(self, run_id: str, copy: Copy | None) -> None:
        if len(self._copies) >= MOST_REMEMBERED:
            self._copies.clear()
        self._copies[run_id] = copy


class _Careful:
    """Attempts that never fail: what can't be done now is left for a while."""

    def __init__(self) -> None:
        self._rests = 0
        self._until = 0.0

    def attempt(self, call: Callable[[], Outcome], anyway: bool = False) -> Outcome | None:
        """What `call` returns; None if it raised, or if an earlier one did not long ago."""
        start = time.monotonic()
        if start < self._until and not anyway:
            return None
        try:
            outcome = call()
        except Conflict:
            return None  # somebody else was faster; the copy is theirs, or will be found not to fit
        except Exception:
            self._rest("failed", exc_info=True)
            return None
        if time.monotonic() - start > PATIENCE:
            self._rest("was slow")
        else:
            self._rests = 0
        return outcome

    def _rest(self, what: str, exc_info: bool = False) -> None:
        import logging

        seconds = min(REST * 2**self._rests, LONGEST_REST)
        self._rests, self._until = self._rests + 1, time.monotonic() + seconds
        logging.getLogger("limpet.stores").warning(
            "the hot store %s; the cold one does its work for %g s", what, seconds, exc_info=exc_info
        )


def _is_store(store: object) -> bool:
    return isinstance(store, Store) and not isinstance(store, type)


def _name(run_id: str) -> str:
    return f"copy of {run_id}"


def _original(name: str) -> str:
    return name.removeprefix("copy of ")


def _note(copy: Copy) -> bytes:
    return f"{copy.created!r} {copy.base}".encode()


def _noted(note: bytes) -> Copy | None:
    try:
        created, base = note.decode().split(" ")
        return Copy(float(created), int(base))
    except ValueError:
        return None


def _carried(commit: Commit, copy: Copy) -> Commit:
    """The same commit, as the copy gets it."""
    return Commit(
        _name(commit.run_id),
        1,
        commit.expected - copy.base,
        _sealed(commit.run_id, copy, commit.expected + 1, commit.records),
        snapshot=max(commit.snapshot - copy.base, 0) if commit.snapshot else 0,
        on_signal=OnSignal.IGNORE,
    )


def _sealed(run_id: str, copy: Copy, first: int, records: Sequence[bytes]) -> list[bytes]:
    """The records, numbered from `first`, each with the digest before it that says of what it is a copy."""
    of_the_run = blake2b(f"{run_id}\0{copy.created!r}\0".encode(), digest_size=DIGEST)
    sealed = []
    for number, data in enumerate(records, first):
        digest = of_the_run.copy()
        digest.update(b"%d\0" % number)
        digest.update(data)
        sealed.append(digest.digest() + data)
    return sealed


def _unsealed(run_id: str, copy: Copy, first: int, records: Sequence[bytes]) -> list[bytes] | None:
    """The records without their digests; None if one of them isn't what was written."""
    plain = [record[DIGEST:] for record in records]
    return plain if _sealed(run_id, copy, first, plain) == records else None
