"""The store seam: what a journal asks of whatever keeps it.

A store keeps *runs*. A run is one `RunHead` (a small row that can be searched) and a journal: records
numbered 1, 2, 3 … without a gap, opaque bytes to the store. Whoever advances a run holds its *lease*;
each claim of the lease raises the run's *fence*, and every commit carries the fence under which it was
made, so that a holder which was away too long is refused rather than obeyed.

What every store must do
    - A call that returned has happened, at the durability level in `abilities.level`; a call that
      raised has changed nothing. There is no third outcome.
    - `append` is all or nothing for each commit, and independent between the commits of one call.
    - Any number of threads, and where `abilities.shared` says so of processes, use it at once.
      Waiting for a lock is the store's business: nobody outside hears of it.
    - Times are the store's: leases are granted and found expired, and runs found due, by one clock. Where
      that is this process's own, the store has it as an attribute, `clock`. A clock that doesn't go by itself may
      have a method `wait(seconds, stop)`: a run that waits calls it, and it returns when so much time has passed by
      the clock, or when the `threading.Event` is set. `limpet.testing.FakeClock` is one.

What it may raise: `StoreUnavailable`, `RunNotFound`, `RunExists`, `Conflict`. Nothing of its driver's.
What it must not do: look into records, log or keep anything of them, or import another store.

`limpet.testing.conformance` checks all of this for any store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from limpet.defaults import LEASE

Level = Literal["disk", "process", "memory"]

RUNNING = "running"
PAUSED = "paused"
COMPLETED = "completed"
FAILED = "failed"
CANCELLED = "cancelled"
STATUSES = (RUNNING, PAUSED, COMPLETED, FAILED, CANCELLED)
ENDED = (COMPLETED, FAILED, CANCELLED)


class Abilities(NamedTuple):
    """What a store can do, declared rather than found out.

    `level`: what an acknowledged save survives. `shared`: other processes can open the same store.
    `leases`: it can keep two holders apart. `deltas`: it can append; without it every save is whole.
    `notifies`: it can be waited for until something changes, and is a `Notifying` store. `keeps_secrets`: without a
    key, nothing that is stored can be read outside of this process, as it is encrypted or never leaves it.
    """

    level: Level
    shared: bool
    leases: bool = True
    deltas: bool = True
    notifies: bool = False
    keeps_secrets: bool = False


class RunHead(NamedTuple):
    """What a store knows of a run without opening its journal.

    `sequence` is the number of the newest record, `snapshot` that of the newest whole one (0 after a
    purge). `updated` moves when the run is created, claimed, renewed or given a status, not with each
    record. `note` is a small encoded summary (step, error, open questions), opaque to the store. `signal`
    is a request to the holder, such as "cancel". `crashes` counts the holders that were
    replaced without having let go. `due` is from when on the run wants a holder, if nobody has it: 0 at once,
    None not by itself (it has ended, or waits for somebody). `priority` is how urgent that is: more comes first.
    """

    run_id: str
    graph: str
    status: str
    sequence: int
    snapshot: int
    fence: int
    created: float
    updated: float
    holder: str | None = None
    lease_until: float | None = None
    tags: tuple[str, ...] = ()
    parent: str | None = None
    signal: str | None = None
    note: bytes = b""
    crashes: int = 0
    due: float | None = None
    priority: int = 0


Heads = list[RunHead]


class NewRun(NamedTuple):
    """A run to be created, together with its first records and, if `holder` is given, its first lease.

    `due` and `priority` are those of its head.
    """

    run_id: str
    graph: str
    records: Sequence[bytes]
    status: str = RUNNING
    holder: str | None = None
    ttl: float = LEASE
    tags: tuple[str, ...] = ()
    parent: str | None = None
    note: bytes = b""
    due: float | None = None
    priority: int = 0


class OnSignal(Enum):
    """What a commit does where a signal (a request to cancel) waits for the run."""

    REFUSE = True
    """The commit is refused with `Signalled`, so that the holder can stop."""
    CLEAR = False
    """The commit is taken and the signal is cleared: this commit is the answer to it."""
    IGNORE = None
    """The commit is taken and the signal is left for the next one."""


class Commit:
    """Records to append to a run that is still at sequence `expected`, by the holder of `fence`.

    `snapshot` is the sequence number of the whole record among them, if one is (0: none is). `status` and `note`
    replace those of the head when given; with a status goes the head's new `due`, and one other than `running` also
    releases the lease. `purge` drops the journal, these records included, and keeps the head. `on_signal` says
    what becomes of a signal that waits.
    """

    __slots__ = (
        "due",
        "expected",
        "fence",
        "note",
        "on_signal",
        "purge",
        "records",
        "run_id",
        "snapshot",
        "status",
    )

    def __init__(
        self,
        run_id: str,
        fence: int,
        expected: int,
        records: list[bytes],
        snapshot: int = 0,
        status: str | None = None,
        note: bytes | None = None,
        purge: bool = False,
        on_signal: OnSignal = OnSignal.REFUSE,
        due: float | None = None,
    ) -> None:
        self.run_id = run_id
        self.fence = fence
        self.expected = expected
        self.records = records
        self.snapshot = snapshot
        self.status = status
        self.note = note
        self.purge = purge
        self.on_signal = on_signal
        self.due = due


class Lease(NamedTuple):
    """The right to advance a run until `until`, by the store's clock, with writes that carry `fence`.

    `crashes` is how many holders before this one were replaced without having let go.
    """

    run_id: str
    fence: int
    until: float
    crashes: int = 0


class RunFilter(NamedTuple):
    """Which runs to list; what is None or empty doesn't restrict. Newest first, at most `limit`.

    `unclaimed` keeps the runs that nobody holds a valid lease of.
    """

    statuses: tuple[str, ...] = ()
    graph: str | None = None
    tag: str | None = None
    parent: str | None = None
    unclaimed: bool = False
    limit: int | None = None
    offset: int = 0


class Tail(NamedTuple):
    """A run's head and consecutive records of it: `records[0]` has sequence number `first`."""

    head: RunHead
    first: int
    records: list[bytes]


class Signalled(Exception):
    """A commit was refused because a signal waits for the holder. Nothing is wrong; answer it."""

    def __init__(self, run_id: str, signal: str) -> None:
        self.run_id, self.signal = run_id, signal
        super().__init__(f"run {run_id!r} was sent {signal!r}")


@runtime_checkable
class Store(Protocol):
    """Keeps the journals of runs. The module's text says what holds for all of it."""

    @property
    def abilities(self) -> Abilities:
        """What this store, as it was opened, can do."""
        ...

    def create(self, run: NewRun) -> Lease | None:
        """Add a run with its first records, the first of them whole; return its lease if it names a holder.

        The fence starts at 1, with a holder or without. Raises `RunExists` if the id is taken, also by a
        run that has ended.
        """
        ...

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        """Carry out commits of different runs together; return for each None, or why it was refused.

        Refusals are `RunNotFound`, `Conflict` (the fence is old, or the run is at another sequence) and
        `Signalled`, looked for in this order. A lease that ran out, or was given back, is no reason: until
        somebody else claims the run, its fence is the newest. A record larger than the store can take
        refuses its own commit, with `StoreUnavailable`. What stops the store as a whole (the same class)
        is raised, and then no commit of the call was applied.
        """
        ...

    def head(self, run_id: str) -> RunHead:
        """What is known of the run without opening its journal. Raises `RunNotFound`."""
        ...

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        """The head and the records `first`…`last` as of one moment.

        `first` None starts at the newest whole record, `last` None ends at the newest record; records
        that were pruned or purged are left out, so `Tail.first` says where it really starts. Where that
        leaves none, `Tail.first` is the number that the next record will get. Raises `RunNotFound`.
        """
        ...

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        """Take the lease of a run that nobody validly holds, and raise its fence.

        If the last holder hasn't released it, or ended the run, that counts as a crash.

        `instead_of` breaks a lease that has not run out, provided that the fence is still this number:
        for a holder known to be dead. It is no condition for a run that is free. Raises `RunNotFound`, or
        `Conflict` naming `holder` and `until`.
        """
        ...

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[str | None]:
        """Prolong leases; for each: "" when it was, the waiting signal, or None when it is lost.

        A lease with a waiting signal is prolonged too, and so is one that ran out unless it was claimed
        by somebody else, given back, or released by a status.
        """
        ...

    def release(self, lease: Lease) -> None:
        """Give the lease back. A lease that was lost meanwhile is left as it is; so is a missing run."""
        ...

    def signal(self, run_id: str, signal: str) -> None:
        """Leave a request for the run's holder; its next commit or renewal learns of it.

        A later signal replaces an earlier one. It waits through claims and releases. Raises `RunNotFound`.
        """
        ...

    def ready(self, graphs: Sequence[str], limit: int) -> Heads:
        """The runs of these graphs that want a holder: due by the store's clock, and nobody validly holds them.

        The most urgent first: by priority, descending, then by `due`, creation and run id; at most `limit`.
        """
        ...

    def list(self, which: RunFilter) -> list[RunHead]:
        """The heads of the runs that fit, newest first: by creation, then by run id, both descending."""
        ...

    def prune(self, run_id: str, before: int) -> int:
        """Drop the records below sequence `before`, but never the newest whole one or what follows it.

        Returns how many records went. Raises `RunNotFound`.
        """
        ...

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        """Delete runs of these statuses that have not changed for `older_than` seconds and that nobody holds.

        Returns how many runs went.
        """
        ...

    def delete(self, run_id: str) -> None:
        """Remove the run and its journal. Raises `RunNotFound`, or `Conflict` while somebody holds it."""
        ...

    def close(self) -> None:
        """Let go of files and connections. Closing twice is harmless; any other call then fails."""
        ...


@runtime_checkable
class Notifying(Store, Protocol):
    """A store that declares `abilities.notifies`: whoever waits for a run need not ask again and again."""

    def wait_for_change(self, timeout: float) -> bool:
        """Wait until something changes, for so many seconds at most; False if nothing did.

        A change is that a run is created without a holder, released, given another status, signalled, deleted or
        expired, by whomever, in whatever process. True also if there was one since this thread called last, so
        that none is missed between two calls; and now and then for no reason. Any number of threads may wait. That
        a lease runs out is no change. A store that can't be reached is not an error here: that counts as a change.
        """
        ...


@runtime_checkable
class Inspectable(Protocol):
    """A store that can look itself through for damage that no single run shows. Few need to; `verify` asks them."""

    def faults(self) -> Sequence[str]:
        """What is wrong with whatever the runs are kept in, in words that name it; nothing if all is well."""
        ...
