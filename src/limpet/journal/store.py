"""The store seam: what the library asks of a store, and what every store must do.

A store keeps *runs*. A run is a `RunHead` (a small row that can be searched) and a journal: records
numbered 1, 2, 3 … without a gap, opaque bytes to the store. The process that advances a run holds its *lease*.
Each claim of the lease raises the run's *fence*, and every commit carries the fence under which it was
made. So a commit of a former holder, whose lease has passed to another, is refused.

What every store must do
    - A call that returned has happened, at the durability level in `abilities.level`. A call that
      raised has changed nothing. There is no third outcome.
    - `append` applies each commit as a whole or not at all. The commits of one call are independent of each other.
    - Any number of threads use it at once, and any number of processes if `abilities.shared` is true.
      Waiting for locks is the store's business: callers never see a lock.
    - Time is the store's: one clock decides when runs are due, and either it or a clock that can't be set decides
      when leases expire. If the first is the clock of this process, the store has it as an attribute, `clock`, and
      leases go by its method `monotonic`, if it has one. A clock that doesn't advance by itself may have a method
      `wait(seconds, stop)`: a run that waits calls it, and it returns when that much time has passed by the clock, or
      when the `threading.Event` is set. `limpet.testing.FakeClock` is such a clock.

What it may raise
    `StoreUnavailable`, `RunNotFound`, `RunExists`, `Conflict`, `DamagedRecord`; never an exception of its driver.

What it must not touch
    A store doesn't look into records, doesn't log them or anything in them, and doesn't import another store.

`limpet.testing.conformance` checks all of this for any store. Messages name a store by its `str()`: best its URL, and
never with a password.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Literal, NamedTuple, Protocol, TypeGuard, TypeVar, runtime_checkable

from limpet.defaults import LEASE
from limpet.errors import DamagedRecord

Level = Literal["disk", "process", "memory"]
T = TypeVar("T")

RUNNING = "running"
PAUSED = "paused"
COMPLETED = "completed"
FAILED = "failed"
CANCELLED = "cancelled"
STATUSES = (RUNNING, PAUSED, COMPLETED, FAILED, CANCELLED)
ENDED = (COMPLETED, FAILED, CANCELLED)
DAMAGED = "damaged"
"""What a list says of a run whose head, or whose newest commits, can't be read. It is never stored."""

MISSING = "it is missing"
"""The reason of a `DamagedRecord` that the store doesn't have, although nothing deleted it."""


class Abilities(NamedTuple):
    """What a store can do. Abilities are declared, not discovered by exceptions.

    `level`: what an acknowledged save survives. `shared`: other processes can open the same store. `leases`: it can
    keep two holders apart. `deltas`: it can append records; without it, every save is a snapshot. `notifies`:
    callers can wait for a change, because it is a `Notifying` store. `keeps_secrets`: what is stored can't be read
    outside of this process without a key, as it is encrypted or never leaves the process. `keeps_results`: the head
    of a completed run stays when its journal is deleted; without it, a `purge` with that status deletes the run.
    """

    level: Level
    shared: bool
    leases: bool = True
    deltas: bool = True
    notifies: bool = False
    keeps_secrets: bool = False
    keeps_results: bool = True


class RunHead(NamedTuple):
    """What a store knows of a run without reading its journal.

    `sequence` is the number of the newest record, `snapshot` that of the newest snapshot (0 after a
    purge). `updated` changes when the run is created, claimed, renewed or given a status, not with each
    record. `note` is a small encoded summary (step, error, open questions), opaque to the store. `signal`
    is a request to the holder, such as "cancel". `crashes` counts the holders that were replaced although they had
    not released the lease. `due` is the time from which on the run needs a holder, if it has none: 0 means at once,
    None means not by itself (it has ended, or waits for an answer). Of runs that are due, those of higher `priority`
    come first.
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
    """A run to create, with its first records and, if `holder` is given, its first lease.

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

    `snapshot` is the sequence number of the snapshot among them, 0 if none of them is a snapshot. `status` and `note`
    replace those of the head when given. With a status, `due` replaces that of the head; and a status other than
    `running` also releases the lease. `purge` deletes the journal, these records included, and keeps the head.
    `on_signal` is what to do if a signal waits.
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

    `crashes` is how many holders before this one were replaced although they had not released the lease.
    """

    run_id: str
    fence: int
    until: float
    crashes: int = 0


class RunFilter(NamedTuple):
    """Which runs to list, newest first and at most `limit`. A field that is None or empty doesn't restrict.

    `unclaimed` selects the runs without a valid lease.
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
    """A commit was refused because a signal waits for the holder. Nothing is wrong: act on the signal."""

    def __init__(self, run_id: str, signal: str) -> None:
        self.run_id = run_id
        self.signal = signal
        super().__init__(f"run {run_id!r} was sent {signal!r}")


@runtime_checkable
class Store(Protocol):
    """Keeps the journals of runs. The module's docstring has the rules for all methods."""

    @property
    def abilities(self) -> Abilities:
        """What this store, as it was opened, can do."""
        ...

    def create(self, run: NewRun) -> Lease | None:
        """Add a run with its first records, the first of which is a snapshot; return its lease if it names a holder.

        The fence starts at 1, with a holder or without. Raises `RunExists` if a run has the id, even one that
        has ended.
        """
        ...

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        """Apply commits of different runs together; return for each None, or why it was refused.

        Refusals are `RunNotFound`, `Conflict` (the fence is old, or the run is at another sequence) and
        `Signalled`, checked in this order. An expired or released lease is not a reason to refuse: until
        another holder claims the run, its fence is the newest. A record larger than the store can take
        refuses its own commit, with `StoreUnavailable`. A failure of the store as a whole is raised, as the same
        class; then no commit of the call was applied.
        """
        ...

    def head(self, run_id: str) -> RunHead:
        """The run's head. Raises `RunNotFound`."""
        ...

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        """The head and the records `first`…`last` as of one moment.

        `first` None starts at the newest snapshot, `last` None ends at the newest record. Records that were pruned
        or purged are left out, so `Tail.first` is where the records really start. If none are left, `Tail.first` is
        the number that the next record will get. Raises `RunNotFound`.
        """
        ...

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        """Take the lease of a run without a valid lease, and raise its fence.

        If the last holder has neither released the lease nor ended the run, that counts as a crash.

        `instead_of` breaks a lease that has not expired, if the fence is still this number: for a holder whose
        process is known to be dead. It doesn't matter for a run without a valid lease. Raises `RunNotFound`, or
        `Conflict` with `holder` and `until`.
        """
        ...

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[str | None]:
        """Extend leases; for each return "" if it was, the waiting signal, or None if the lease is no longer valid.

        A lease with a waiting signal is extended too. So is one that has expired, unless another holder has claimed
        the run, or the lease was released, by `release` or by a status.
        """
        ...

    def release(self, lease: Lease) -> None:
        """Release the lease. Does nothing if another holder has claimed the run, or if the run doesn't exist."""
        ...

    def signal(self, run_id: str, signal: str) -> None:
        """Leave a request for the run's holder, whose next commit or renewal returns it.

        A later signal replaces an earlier one. A signal waits through claims and releases. Raises `RunNotFound`.
        """
        ...

    def ready(self, graphs: Sequence[str], limit: int) -> Heads:
        """The runs of these graphs that need a holder: due by the store's clock, and without a valid lease.

        The most urgent come first: by priority, descending, then by `due`, creation and run id; at most `limit`.
        A damaged run is left out, and keeps no other from being found.
        """
        ...

    def list(self, which: RunFilter) -> list[RunHead]:
        """The heads of the runs that match, newest first: by creation, then by run id, both descending.

        Every run that exists is in the list. One whose head or newest commits can't be read is there with the status
        `DAMAGED`, and matches the filters by what is still known of it; `head` then says what is wrong. No status
        but `DAMAGED` selects it.
        """
        ...

    def prune(self, run_id: str, before: int) -> int:
        """Delete the records below sequence `before`, but never the newest snapshot or the records after it.

        Returns how many records were deleted. Raises `RunNotFound`.
        """
        ...

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        """Delete runs of these statuses that have not changed for `older_than` seconds and have no valid lease.

        Returns how many runs were deleted.
        """
        ...

    def delete(self, run_id: str) -> None:
        """Delete the run and its journal. Raises `RunNotFound`, or `Conflict` while it has a valid lease."""
        ...

    def close(self) -> None:
        """Close files and connections. Closing twice is harmless; any other call then fails."""
        ...


@runtime_checkable
class Notifying(Store, Protocol):
    """A store that declares `abilities.notifies`: a caller that waits for a run doesn't have to poll."""

    def wait_for_change(self, timeout: float) -> bool:
        """Wait until something changes, for at most `timeout` seconds; False if nothing changed.

        A change is that any process creates a run without a holder, releases, signals, deletes or expires a run, or
        gives it another status. Returns True also if there was a change since this thread's last call, so that none
        is missed between two calls, and sometimes without a change. Any number of threads may wait. An expired lease
        is not a change. A store that can't be reached is not an error here: it counts as a change.
        """
        ...


@runtime_checkable
class Inspectable(Protocol):
    """A store that can check itself for damage that no single run shows. Few need to; `verify` asks them."""

    def faults(self) -> Sequence[str]:
        """Descriptions of what is wrong with the files or tables that hold the runs; empty if nothing is."""
        ...


@runtime_checkable
class Salvaging(Protocol):
    """A store that can give the records of a run whose head can't be read. `verify`, `state_at` and `fork` ask it."""

    def salvage(self, run_id: str) -> Mapping[int, bytes | DamagedRecord]:
        """All records that are left of a run, by their numbers; for a damaged one, the error. Raises `RunNotFound`.

        The head isn't used, so records that were pruned may be among them, and newest ones may be missing.
        """
        ...


@runtime_checkable
class ReportsUndeleted(Protocol):
    """A store without results of completed runs (`abilities.keeps_results`) that may fail to delete such a run."""

    def undeleted(self, run_id: str) -> Exception | None:
        """Why a run that completed is still there; None if it isn't."""
        ...


@runtime_checkable
class ListsUnreadable(Protocol):
    """A store whose `list` leaves out runs that it can't read, such as those whose key is missing."""

    def list_all(self, which: RunFilter) -> Sequence[tuple[RunHead, Exception | None]]:
        """All runs that match, newest first, with the reason for those that can't be read."""
        ...


def provides(target: object, protocol: Callable[..., T]) -> TypeGuard[T]:
    """Whether an object has all that a protocol names, itself or through its `__getattr__`.

    `isinstance` says the same up to Python 3.11. Later versions don't ask `__getattr__`, so a wrapper that passes
    most calls on to a store would no longer be a store.
    """
    if isinstance(target, type):
        return False
    kinds = getattr(protocol, "__mro__", ())
    return all(hasattr(target, name) for kind in kinds for name in vars(kind) if not name.startswith("_"))
