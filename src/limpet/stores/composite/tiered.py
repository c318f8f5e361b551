"""Two stores as one: a cold store that is the truth, and a hot one that quickly returns what live runs need.

Why a flushed, stale, slow or failing hot store never gives wrong data and never fails a run:

1. Every write goes to the cold store, which acknowledges it. The hot store gets a copy afterwards, and its failures
   are ignored. Leases, fences, lists, heads, posts, output and documents are the cold store's alone.
2. The hot store has *copies* of the journals of live runs, each from the newest whole record on. A record of a copy
   carries a digest over the run's id, the run's time of creation, the record's number and its bytes. So a record
   that was changed, moved, or left over from an earlier run of the same id is not used.
3. To read a run's tail, the copy is read first: it ends with record n. Then the cold store is asked for the records
   from n on, which gives, as of one moment, the head and all that the copy lacks. The copy is used only if the head
   has the same time of creation and the cold store's record n has the same bytes as the copy's. Records never change
   once they are written, so the earlier ones are then those of the cold store, however old the copy is. The tail
   starts at the head's newest whole record. If the copy doesn't reach back to that, or if anything else is wrong,
   the whole tail is read from the cold store, and the copy is made again.
4. Whatever the hot store raises is caught. After a failure, or a call that took longer than `SLOW_CALL_SECONDS`, the
   hot store is left out for `FIRST_BACKOFF` seconds, and after each further failure for twice as long, up to
   `MAX_BACKOFF`: reads and writes then use the cold store alone.

What must hold for this: the cold store never gives one creation time twice to one id, and it isn't restored from
a backup while the hot store keeps its copies; flush the hot store then. The digest detects damage, not an attacker
who can write to the hot store: protect it as you do the cold one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple, TypeVar

from limpet.errors import Conflict, RunNotFound, UsageError
from limpet.journal.optional_calls import provides
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import (
    CANCELLED,
    COMPLETED,
    ENDED,
    Abilities,
    Commit,
    Heads,
    Lane,
    Lease,
    NewRun,
    RunHead,
    Store,
    Tail,
)
from limpet.stores.composite.wrapper import StoreWrapper

Outcome = TypeVar("Outcome")
Records = list[bytes]

COPY = "copy"
"""The status of a copy in the hot store. No run has this status, so no run is mistaken for a copy."""

STATUSES_WITHOUT_COPY = (COMPLETED, CANCELLED)
"""Runs of these statuses get no copy. A failed run does, since it is often resumed."""

DIGEST_SIZE = 16
"""Bytes of the digest before each record of a copy."""

SLOW_CALL_SECONDS = 0.5
"""Seconds after which a call to the hot store has taken too long."""

FIRST_BACKOFF = 5.0
"""Seconds for which a hot store is left out after its first failure. Each further failure doubles it."""

MAX_BACKOFF = 60.0
"""Seconds, at most, for which a hot store is left out."""

MAX_REMEMBERED_COPIES = 10_000
"""Runs whose copies are remembered, so that the hot store isn't asked for them with every commit."""


class Copy(NamedTuple):
    """A copy in the hot store: of the run that was created then, and of its records after number `base`."""

    created: float
    base: int


class TieredStore(StoreWrapper):
    """The runs of `cold`, with copies of the live ones in `hot` that make resuming fast.

    The module's text says what holds. `hot` may also be a function that opens the hot store: it is called at the
    first use, and again until it succeeds. `abilities` are those of the cold store. Closing closes both.
    """

    def __init__(self, hot: Store | Callable[[], Store], cold: Store) -> None:
        if not provides(cold, Store) or not (provides(hot, Store) or callable(hot)):
            raise UsageError("TieredStore(hot, cold) takes two stores; open_store(url) gives you one")
        if hot is cold:
            raise UsageError("the hot store and the cold one must be two stores, and you gave one for both")
        self.cold = cold
        self._opened_hot: Store | None = None
        self._open_hot: Callable[[], Store] | None = None
        if provides(hot, Store):
            self._opened_hot = hot
        elif callable(hot):
            self._open_hot = hot
        self._breaker = _CircuitBreaker()
        self._copies: dict[str, Copy | None] = {}

    def __repr__(self) -> str:
        return f"TieredStore(hot={self._opened_hot!r}, cold={self.cold!r})"

    def __str__(self) -> str:
        return f"tiered://?hot={self._opened_hot or 'unavailable'}&cold={self.cold}"

    @property
    def hot(self) -> Store:
        """The hot store. Raises what opening it raises."""
        if self._opened_hot is None:
            assert self._open_hot is not None
            self._opened_hot = self._open_hot()
        return self._opened_hot

    @property
    def _durable_store(self) -> Store:
        return self.cold

    @property
    def abilities(self) -> Abilities:
        """What the cold store can do. Secrets are not safe: the hot store may keep their copies in plain text."""
        return self.cold.abilities._replace(keeps_secrets=False)

    def create(self, run: NewRun) -> Lease | None:
        lease = self.cold.create(run)
        # Without a holder, another process might replace the run before its copy is made.
        if lease is not None:
            self._breaker.attempt(lambda: self._copy_new(run))
        return lease

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        outcomes = self.cold.append(commits)
        accepted = [commit for commit, outcome in zip(commits, outcomes, strict=True) if outcome is None]
        if accepted:
            self._breaker.attempt(lambda: self._copy_commits(accepted))
        return outcomes

    def head(self, run_id: str) -> RunHead:
        return self.cold.head(run_id)

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        if first is not None or last is not None:
            return self.cold.read(run_id, first, last)
        copied = self._breaker.attempt(lambda: self._read_copy(run_id))
        if copied is not None:
            tail = self._completed(run_id, *copied)
            if tail is not None:
                return tail
        whole = self.cold.read(run_id)
        self._breaker.attempt(lambda: self._copy_tail(whole))
        return whole

    def list(self, which: RunFilter) -> list[RunHead]:
        return self.cold.list(which)

    def ready(self, lanes: Sequence[Lane], limit: int) -> Heads:
        return self.cold.ready(lanes, limit)

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        count = self.cold.expire(older_than, statuses)
        self._breaker.attempt(lambda: self.hot.expire(older_than, (COPY,)))
        return count

    def delete(self, run_id: str) -> None:
        self.cold.delete(run_id)
        self._breaker.attempt(lambda: self._drop(run_id))

    def close(self) -> None:
        self.cold.close()
        if self._opened_hot is not None:
            self._breaker.attempt(self._opened_hot.close, even_in_backoff=True)

    def _copy_new(self, run: NewRun) -> None:
        head = self.cold.head(run.run_id)
        if head.status not in STATUSES_WITHOUT_COPY:
            self._put(run.run_id, Copy(head.created, 0), run.graph, run.records)

    def _copy_tail(self, tail: Tail) -> None:
        """Make the copy of a run again, if the run may be resumed."""
        if tail.head.status in STATUSES_WITHOUT_COPY or not tail.records:
            self._drop(tail.head.run_id)
        else:
            copy = Copy(tail.head.created, tail.first - 1)
            self._put(tail.head.run_id, copy, tail.head.graph, tail.records)

    def _put(self, run_id: str, copy: Copy, graph: str, records: Sequence[bytes]) -> None:
        digested = _with_digests(run_id, copy, copy.base + 1, records)
        self._drop(run_id)
        self.hot.create(NewRun(_copy_id(run_id), graph, digested, status=COPY, note=_note(copy)))
        self._remember(run_id, copy)

    def _copy_commits(self, commits: Sequence[Commit]) -> None:
        """Repeat commits that the cold store accepted on the copies."""
        copied: list[Commit] = []
        for commit in commits:
            if commit.purge or commit.status in STATUSES_WITHOUT_COPY:
                self._drop(commit.run_id)
            elif commit.records:
                copy = self._known(commit.run_id)
                if copy is not None:
                    copied.append(_on_copy(commit, copy))
        if not copied:
            return
        for commit, refused in zip(copied, self.hot.append(copied), strict=True):
            if refused is not None:
                # The copy missed an earlier commit, and is useless now.
                self._drop(_original_id(commit.run_id))
            elif commit.snapshot > 1:
                self.hot.prune(commit.run_id, commit.snapshot)

    def _known(self, run_id: str) -> Copy | None:
        """The copy of a run, or None without one, as remembered: the hot store is asked only once."""
        if run_id not in self._copies:
            try:
                self._remember(run_id, _from_note(self.hot.head(_copy_id(run_id)).note))
            except RunNotFound:
                self._remember(run_id, None)
        return self._copies[run_id]

    def _drop(self, run_id: str) -> None:
        self._copies.pop(run_id, None)
        with suppress(RunNotFound):
            self.hot.delete(_copy_id(run_id))

    def _read_copy(self, run_id: str) -> tuple[Copy, int, Records] | None:
        """What the hot store has of a run: the copy, the number of its first record, and the records."""
        try:
            tail = self.hot.read(_copy_id(run_id))
        except RunNotFound:
            return None
        copy = _from_note(tail.head.note)
        if copy is None or tail.head.status != COPY or not tail.records:
            return None
        self._remember(run_id, copy)
        first = copy.base + tail.first
        records = _without_digests(run_id, copy, first, tail.records)
        if records is None:
            return None
        return copy, first, records

    def _completed(self, run_id: str, copy: Copy, first: int, records: Records) -> Tail | None:
        """The tail, from a copy and what the cold store has beyond it; None if the copy isn't of this journal."""
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
        joined = records[:-1] + rest.records
        return Tail(head, head.snapshot, joined[head.snapshot - first :])

    def _remember(self, run_id: str, copy: Copy | None) -> None:
        if len(self._copies) >= MAX_REMEMBERED_COPIES:
            self._copies.clear()
        self._copies[run_id] = copy


class _CircuitBreaker:
    """Calls to the hot store that never raise. After a failure, no calls are made for a while."""

    def __init__(self) -> None:
        self._failures = 0
        self._backoff_until = 0.0

    def attempt(self, call: Callable[[], Outcome], even_in_backoff: bool = False) -> Outcome | None:
        """What `call` returns; None if it raised, or if an earlier call failed not long ago."""
        start = time.monotonic()
        if start < self._backoff_until and not even_in_backoff:
            return None
        try:
            outcome = call()
        except Conflict:
            # Another process was faster. It made the copy, or the copy will turn out not to fit the cold store.
            return None
        except Exception:
            self._back_off("failed", exc_info=True)
            return None
        if time.monotonic() - start > SLOW_CALL_SECONDS:
            self._back_off("was slow")
        else:
            self._failures = 0
        return outcome

    def _back_off(self, what: str, exc_info: bool = False) -> None:
        import logging

        seconds = min(FIRST_BACKOFF * 2**self._failures, MAX_BACKOFF)
        self._failures += 1
        self._backoff_until = time.monotonic() + seconds
        logging.getLogger("limpet.stores").warning(
            "the hot store %s; runs use the cold one alone for %g s", what, seconds, exc_info=exc_info
        )


def _copy_id(run_id: str) -> str:
    return f"copy of {run_id}"


def _original_id(copy_id: str) -> str:
    return copy_id.removeprefix("copy of ")


def _note(copy: Copy) -> bytes:
    return f"{copy.created!r} {copy.base}".encode()


def _from_note(note: bytes) -> Copy | None:
    try:
        created, base = note.decode().split(" ")
        return Copy(float(created), int(base))
    except ValueError:
        return None


def _on_copy(commit: Commit, copy: Copy) -> Commit:
    """The same commit for the copy, whose records are numbered from 1 and whose fence is never raised."""
    snapshot = 0
    if commit.snapshot:
        snapshot = max(commit.snapshot - copy.base, 0)
    return Commit(
        _copy_id(commit.run_id),
        1,
        commit.expected - copy.base,
        _with_digests(commit.run_id, copy, commit.expected + 1, commit.records),
        snapshot=snapshot,
    )


def _with_digests(run_id: str, copy: Copy, first: int, records: Sequence[bytes]) -> list[bytes]:
    """The records, numbered from `first`, each after a digest of what it is a copy of."""
    run_digest = blake2b(f"{run_id}\0{copy.created!r}\0".encode(), digest_size=DIGEST_SIZE)
    digested = []
    for number, data in enumerate(records, first):
        digest = run_digest.copy()
        digest.update(b"%d\0" % number)
        digest.update(data)
        digested.append(digest.digest() + data)
    return digested


def _without_digests(run_id: str, copy: Copy, first: int, records: Sequence[bytes]) -> list[bytes] | None:
    """The records without their digests; None if a record isn't what was written."""
    plain = [record[DIGEST_SIZE:] for record in records]
    if _with_digests(run_id, copy, first, plain) != records:
        return None
    return plain
