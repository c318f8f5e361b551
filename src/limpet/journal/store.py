"""The store seam: what the library asks of a store, and what every store must do.

A store keeps *runs*. A run is a `RunHead` (a small row that can be searched) and a journal: records
numbered 1, 2, 3 … without a gap, opaque bytes to the store. The process that advances a run holds its *lease*.
Each claim of the lease raises the run's *fence*, and every commit carries the fence under which it was
made. So a commit of a former holder, whose lease has passed to another, is refused.

Only the holder writes to the journal. Others take part in two ways. They *post* to a run: an answer, a message, a
request to cancel. Posts wait in the run's inbox, in order, until a commit of the holder takes them in. And they keep
*documents*, small named values with a version, which belong to no run. Beside its journal a run has *output*, which
its nodes emit. It isn't part of the journal, and a resume never reads it.

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
    `StoreUnavailable`, `RunNotFound`, `RunExists`, `AlreadyCompleted`, `Conflict`, `DamagedRecord`,
    `DamagedDocument`; never an exception of its driver.

What damage may do
    Damage concerns what is damaged, and nothing else. A document that the store can't read is left out of lists, with
    a warning in the log, and `get_document` raises `DamagedDocument`. The error has a `version`. At this version, the
    document can be replaced or deleted like any other, and only as long as it is as damaged as it was. That is the
    version that it was written with, if the store knows it; otherwise a number that no document ever has, such as -1.

What it must not touch
    A store doesn't look into records, posts, output or documents, doesn't log them or anything in them, and doesn't
    import another store.

`limpet.testing.conformance` checks all of this for any store. Messages name a store by its `str()`: best its URL, and
never with a password.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from limpet.defaults import LEASE, QUEUE
from limpet.errors import DamagedDocument, UsageError
from limpet.journal.run_filter import Cursor, RunFilter
from limpet.journal.threads.kinds import kind_of

Level = Literal["disk", "process", "memory"]

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


def checked_id(run_id: str) -> str:
    """The id of a run that a store is asked for. Raises `UsageError` for what isn't a str."""
    if not isinstance(run_id, str):
        raise UsageError(f"a run is named by its id, a str, not {run_id!r}; of a Run, that is .id")
    return run_id


class Abilities(NamedTuple):
    """What a store can do. Abilities are declared, not discovered by exceptions.

    `level`: what an acknowledged save survives. `shared`: other processes can open the same store. `leases`: it can
    keep two holders apart. `deltas`: it can append records; without it, every save is a snapshot. `notifies`:
    callers can wait for a change, because it is a `Notifying` store. `keeps_secrets`: what is stored can't be read
    outside of this process without a key, as it is encrypted or never leaves the process. `keeps_results`: the head
    of a completed run stays when its journal is deleted; without it, a `purge` with that status deletes the run.
    `takes_part`: others can post to its runs, and it keeps output and documents; without it, those calls raise
    `UsageError`.
    """

    level: Level
    shared: bool
    leases: bool = True
    deltas: bool = True
    notifies: bool = False
    keeps_secrets: bool = False
    keeps_results: bool = True
    takes_part: bool = True


class RunHead(NamedTuple):
    """What a store knows of a run without reading its journal.

    `sequence` is the number of the newest record, `snapshot` that of the newest snapshot (0 after a
    purge). `updated` changes when the run is created, claimed, renewed or given a status, not with each
    record. `note` is a small encoded summary (step, error, open questions), opaque to the store. `labels` are
    what of it can be searched. `crashes` counts the holders that were replaced although they had not released the
    lease. `due` is the time from which on the run needs a holder, if it has none: 0 means at once, None means not by
    itself (it has ended, or waits for an answer); once it is due as of its creation, it stays so (`is_due`). Of runs
    that are due, those of higher `priority` come first. `posted` is the number of the newest post, `taken` that of
    the newest one that a commit has taken in. `output` is the number of the newest item of output. `queue`, `graph`
    and `plan` are the lane in which it waits for a worker.
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
    note: bytes = b""
    crashes: int = 0
    due: float | None = None
    priority: int = 0
    posted: int = 0
    taken: int = 0
    output: int = 0
    node: str = ""
    error: str = ""
    waits_for: str = ""
    plan: str = ""
    queue: str = QUEUE

    @property
    def labels(self) -> Labels:
        """What of the run's summary can be searched."""
        return Labels(self.node, self.error, self.waits_for, self.plan)

    @property
    def lane(self) -> Lane:
        """Where it waits for a worker."""
        return Lane(self.queue, self.graph, self.plan)

    @property
    def kind(self) -> str:
        """The library whose thread it is, such as "langgraph"; "" for a run that Limpet executes."""
        if ":" not in self.plan:
            return ""
        return kind_of(self.plan)

    @property
    def cursor(self) -> Cursor:
        """Its place in the order of `Store.list`."""
        return Cursor(self.created, self.run_id)

    def is_due(self, now: float) -> bool:
        """Whether it needs a holder by now, by the store's clock."""
        return is_due_by(now, self.due, self.created)


def is_due_by(now: float, due: float | None, created: float) -> bool:
    """Whether a run that is due then needs a holder by now.

    A run that waits for no time is due as of its creation. So it is also when the clock was set back since then.
    """
    return due is not None and (due <= now or due == created)


class Lane(NamedTuple):
    """Where runs wait for workers: those of one queue, one graph, and one plan of it, by its fingerprint.

    A worker knows by these whether it can execute a run. The plan is "" where it isn't known, as the run was stored
    by an earlier version.
    """

    queue: str
    graph: str
    plan: str


class Labels(NamedTuple):
    """What of a run's summary can be searched.

    These are its node, the type of its last error, the kind of its wait, and the fingerprint of its plan.
    """

    node: str = ""
    error: str = ""
    waits_for: str = ""
    plan: str = ""


Heads = list[RunHead]


class NewRun(NamedTuple):
    """A run to create, with its first records and, if `holder` is given, its first lease.

    `due`, `priority`, `labels` and `queue` are those of its head. But a run without a holder that is due at once, so
    that `due` is 0, is due from its creation on: runs are executed in the order in which they became ready.
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
    labels: Labels = Labels()
    queue: str = QUEUE


class Commit:
    """Records to append to a run that is still at sequence `expected`, by the holder of `fence`.

    `snapshot` is the sequence number of the snapshot among them, 0 if none of them is a snapshot. `status`, `note`
    and `labels` replace those of the head when given. With a status, `due` replaces that of the head; and a status
    other than `running` also releases the lease. `purge` deletes the journal, these records included, and keeps the
    head. `takes` is the number of the newest post that the records take in, 0 for none. If newer posts wait, the
    commit is refused with `PostsWaiting`, so that the holder can take them in; unless `ignores_posts` says that they
    are left to a later commit.
    """

    __slots__ = (
        "due",
        "expected",
        "fence",
        "ignores_posts",
        "labels",
        "note",
        "purge",
        "records",
        "run_id",
        "snapshot",
        "status",
        "takes",
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
        due: float | None = None,
        takes: int = 0,
        ignores_posts: bool = False,
        labels: Labels | None = None,
    ) -> None:
        self.run_id = run_id
        self.fence = fence
        self.expected = expected
        self.records = records
        self.snapshot = snapshot
        self.status = status
        self.note = note
        self.purge = purge
        self.due = due
        self.takes = takes
        self.ignores_posts = ignores_posts
        self.labels = labels

    @property
    def only_adds_records(self) -> bool:
        """Whether it changes nothing else, so that a store may carry it out in a shorter way."""
        return not (
            self.snapshot
            or self.status is not None
            or self.note is not None
            or self.labels is not None
            or self.purge
            or self.takes
        )


class Lease(NamedTuple):
    """The right to advance a run until `until`, by the store's clock, with writes that carry `fence`.

    `crashes` is how many holders before this one were replaced although they had not released the lease.
    """

    run_id: str
    fence: int
    until: float
    crashes: int = 0


class Tail(NamedTuple):
    """A run's head and consecutive records of it: `records[0]` has sequence number `first`."""

    head: RunHead
    first: int
    records: list[bytes]


class Post(NamedTuple):
    """What was posted to a run. Posts of a run are numbered 1, 2, 3 … in the order in which they came."""

    number: int
    key: str
    body: bytes


class Output(NamedTuple):
    """An item of what a run's nodes emitted. Items are numbered 1, 2, 3 … in order."""

    number: int
    body: bytes


class Document(NamedTuple):
    """A small named value that belongs to no run. Each change gives it another version, which no other ever had.

    `due` is a time by which documents can be found.
    """

    name: str
    version: int
    body: bytes
    due: float | None = None


class PostsWaiting(Exception):
    """A commit was refused because posts wait for the holder. Nothing is wrong: take them in, and commit again."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"posts wait for run {run_id!r}")


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
        `PostsWaiting`, checked in this order. An expired or released lease is not a reason to refuse: until
        another holder claims the run, its fence is the newest. A record larger than the store can take
        refuses its own commit, with `StoreUnavailable`. A failure of the store as a whole is raised, as the same
        class; then no commit of the call was applied.
        """
        ...

    def head(self, run_id: str) -> RunHead:
        """The run's head. Raises `RunNotFound`."""
        ...

    def heads(self, run_ids: Sequence[str]) -> Sequence[RunHead | None]:
        """The heads of several runs, asked for at once; None for a run that doesn't exist or is damaged."""
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

    def claim_ready(self, wanted: Sequence[RunHead], holder: str, ttl: float) -> list[Lease | None]:
        """Claim runs that `ready` has listed, in one call; return for each its lease, or None if it wasn't claimed.

        A run is claimed if it still has the fence of the head in `wanted`, is still due, and has no valid lease. So
        of several processes that have listed the same runs, each gets runs that no other gets, and none gets a run
        that another has executed meanwhile. What counts as a crash does so as in `claim`. A run that doesn't exist,
        that is damaged, that comes a second time, or that another call changes at this moment, isn't claimed. Once a
        run was claimed the call doesn't raise: what stops the store then leaves the others unclaimed.
        """
        ...

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[bool | None]:
        """Extend leases; for each return whether posts wait for the run, or None if the lease is no longer valid.

        A lease that has expired is extended too, unless another holder has claimed the run, or the lease was
        released, by `release` or by a status.
        """
        ...

    def are_valid(self, leases: Sequence[Lease]) -> list[bool]:
        """Whether each lease is still that of its run, hasn't been released, and hasn't expired. Changes nothing."""
        ...

    def release(self, lease: Lease) -> None:
        """Release the lease. Does nothing if another holder has claimed the run, or if the run doesn't exist."""
        ...

    def post(self, run_id: str, key: str, body: bytes) -> bool:
        """Post something to a run, whether any process holds it or not; False if the run was posted this key before.

        The next commit of the holder is refused until it takes the post in, and the next renewal reports it. A run
        that hasn't ended becomes due, as if it had been since its creation: so one without a holder gets one, before
        runs that were created later. Posts to a run that failed or
        was cancelled wait until it is resumed. Raises `RunNotFound`, and `AlreadyCompleted` for a completed run.
        """
        ...

    def inbox(self, run_id: str) -> Sequence[Post]:
        """The posts that no commit has taken in yet, in order. Raises `RunNotFound`.

        The body of a post that was taken in may be deleted. Its key stays known for as long as the run is kept.
        """
        ...

    def add_output(self, run_id: str, fence: int, bodies: Sequence[bytes], keep: int) -> int:
        """Add what nodes of a run emitted, and return the number of the newest item. Only the newest `keep` are kept.

        It survives a crash of the process, but maybe not a power failure. Raises `RunNotFound`, and `Conflict` if
        another holder has claimed the run.
        """
        ...

    def output(self, run_id: str, after: int = 0, limit: int | None = None) -> Sequence[Output]:
        """The items of a run's output that are numbered above `after` and still kept. Raises `RunNotFound`."""
        ...

    def put_document(self, name: str, body: bytes, version: int, due: float | None = None) -> int | None:
        """Write a document that is still at `version` (0: that doesn't exist), and return its new version, else None.

        No version of any document is ever used again, so that one that was deleted and made again is another.
        """
        ...

    def get_document(self, name: str) -> Document | None:
        """The document of this name; None if there is none. Raises `DamagedDocument` if it can't be read."""
        ...

    def list_documents(
        self, prefix: str = "", due: bool = False, limit: int | None = None
    ) -> Sequence[Document]:
        """The documents whose names begin with `prefix`, by name; with `due`, those that are due, by due time.

        Damaged ones are left out, and don't count for `limit`.
        """
        ...

    def delete_document(self, name: str, version: int) -> bool:
        """Delete a document that is still at `version`. False if it isn't, or if there is none."""
        ...

    def lanes(self) -> Sequence[Lane]:
        """The lanes of all runs that have a due time, each once, in any order. Others may be among them.

        What this costs depends on the number of lanes, not on that of runs.
        """
        ...

    def ready(self, lanes: Sequence[Lane], limit: int) -> Heads:
        """The runs in these lanes that need a holder: due by the store's clock (`is_due`), and without a valid lease.

        The most urgent come first: by priority, descending, then by `due`, creation and run id; at most `limit`.
        What this costs depends on the number of lanes and on `limit`, not on how many runs wait.
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
        """Delete the run and all that belongs to it. Raises `RunNotFound`, or `Conflict` while it is held."""
        ...

    def close(self) -> None:
        """Close files and connections. Closing twice is harmless; any other call then fails."""
        ...


def document_version(store: Store, name: str) -> int:
    """The version at which a document can be replaced, whether it can be read or not; 0 if there is none."""
    try:
        found = store.get_document(name)
    except DamagedDocument as damage:
        return damage.version
    return 0 if found is None else found.version
