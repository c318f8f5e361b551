"""A store that fails on demand, to test what happens to runs when a store fails.

store = FaultyStore(MemoryStore())
fault = store.lose_ack("append", nth=3)      # the third save from now on is written, but reported as failed
…
assert fault.struck == 1
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar, Unpack

from limpet.errors import StoreUnavailable, UsageError
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import (
    ENDED,
    Abilities,
    Commit,
    Document,
    Lane,
    Lease,
    NewRun,
    Output,
    Post,
    RunHead,
    Store,
    Tail,
)

T = TypeVar("T")

Kind = Literal["fail", "hang", "lose_ack", "disk_full"]
OPERATIONS = (
    "create",
    "append",
    "head",
    "heads",
    "read",
    "claim",
    "claim_ready",
    "renew",
    "are_valid",
    "release",
    "post",
    "inbox",
    "add_output",
    "output",
    "put_document",
    "get_document",
    "list_documents",
    "delete_document",
    "lanes",
    "ready",
    "list",
    "prune",
    "expire",
    "delete",
)
"""What can be made to fail: all operations of a store except `close`."""


class Call(NamedTuple):
    """A call of a store: the operation, its arguments, and its number among the calls of this operation, from 1."""

    operation: str
    arguments: tuple[Any, ...]
    number: int


class Which(TypedDict, total=False):
    """Which calls a fault strikes: see `FaultyStore`."""

    nth: int
    times: int | None
    when: Callable[[Call], bool] | None
    chance: float | None


class FaultPlan(NamedTuple):
    """How and when a fault strikes: see `FaultyStore`."""

    kind: Kind
    operations: frozenset[str]
    nth: int
    when: Callable[[Call], bool] | None
    chance: float | None
    times: int | None
    seconds: float | None


class Fault:
    """A planned fault, made by `FaultyStore.fail` and the like. `struck` is how often it has struck.

    `wait(timeout)` returns when it has struck, so that a test knows when a call hangs; `release()` lets hanging calls
    continue, and cancels the fault.
    """

    def __init__(self, plan: FaultPlan) -> None:
        self.kind = plan.kind
        self.operations = plan.operations
        self.struck = 0
        self._plan = plan
        self._seen = 0
        self._has_struck = threading.Condition()
        self._released = threading.Event()

    def __repr__(self) -> str:
        return f"<Fault: {self.kind} {', '.join(sorted(self.operations))}; struck {self.struck} times>"

    @property
    def spent(self) -> bool:
        """Whether it won't strike any more."""
        times = self._plan.times
        return self._released.is_set() or (times is not None and self.struck >= times)

    def wait(self, timeout: float = 60.0) -> None:
        """Return when it has struck. Raises `TimeoutError`."""
        with self._has_struck:
            if not self._has_struck.wait_for(lambda: self.struck, timeout):
                raise TimeoutError(f"{self!r}: it didn't strike in {timeout} s")

    def release(self) -> None:
        """Let hanging calls continue, and strike no more."""
        self._released.set()

    def strikes(self, call: Call, chance: Callable[[], float]) -> bool:
        """Whether it strikes this call; if so, it is counted. `chance` returns a random number below 1."""
        plan = self._plan
        if self.spent or call.operation not in plan.operations:
            return False
        if plan.when is not None and not plan.when(call):
            return False
        self._seen += 1
        if self._seen < plan.nth:
            return False
        if plan.chance is not None and chance() >= plan.chance:
            return False
        with self._has_struck:
            self.struck += 1
            self._has_struck.notify_all()
        return True

    def hang(self, call: Call) -> None:
        """Block until it is released. Raises `StoreUnavailable` if it hangs for a limited time, and that is over."""
        seconds = self._plan.seconds
        if not self._released.wait(seconds):
            raise StoreUnavailable(
                f"{call.operation}: no answer from the store in {seconds} s (a planned fault)"
            )


class FaultyStore:
    """A store that passes calls on to another store, except where a fault is planned.

    Each of `fail`, `hang`, `lose_ack` and `disk_full` plans a fault for calls of an operation (`"append"`, several
    in a tuple, or `"*"`), by default for the next one. `nth` is the first call to strike, counted from now, and
    `times` how many calls from there (None: all). `when` is a function of the `Call`: only calls for which it is
    true count. `chance` is a probability for each call; with the same `seed`, the same calls in the same order fail
    again. Threads may share it.
    """

    def __init__(self, store: Store, *, seed: int = 0) -> None:
        self.inner = store
        self.calls: Counter[str] = Counter()
        """How often each operation was called."""
        self.slowest = 0.0
        """How many seconds the slowest call took."""
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._random = random.Random(seed)

    def __repr__(self) -> str:
        return f"FaultyStore({self.inner!r})"

    def __getattr__(self, name: str) -> Any:
        """Attributes that only some stores have: `clock`, `path`, `closed`, `wait_for_change`."""
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def fail(self, operation: str | Iterable[str] = "append", **which: Unpack[Which]) -> Fault:
        """Plan that calls fail before anything is done: `StoreUnavailable`."""
        return self._plan("fail", operation, which)

    def hang(
        self,
        operation: str | Iterable[str] = "append",
        *,
        seconds: float | None = None,
        **which: Unpack[Which],
    ) -> Fault:
        """Plan that calls get no answer until the fault is released, or for this many seconds: `StoreUnavailable`."""
        return self._plan("hang", operation, which, seconds)

    def lose_ack(self, operation: str | Iterable[str] = "append", **which: Unpack[Which]) -> Fault:
        """Plan that calls are carried out but raise as if they had failed, as when a connection breaks."""
        return self._plan("lose_ack", operation, which)

    def disk_full(
        self, operation: str | Iterable[str] = ("append", "create"), **which: Unpack[Which]
    ) -> Fault:
        """Plan that there is no space left: nothing is done, and `StoreUnavailable` says so."""
        return self._plan("disk_full", operation, which)

    def heal(self) -> None:
        """Cancel all faults; hanging calls continue."""
        with self._lock:
            faults = self._faults
            self._faults = []
        for fault in faults:
            fault.release()

    @property
    def abilities(self) -> Abilities:
        """Those of the other store."""
        return self.inner.abilities

    def create(self, run: NewRun) -> Lease | None:
        return self._call("create", self.inner.create, run)

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        return self._call("append", self.inner.append, commits)

    def head(self, run_id: str) -> RunHead:
        return self._call("head", self.inner.head, run_id)

    def heads(self, run_ids: Sequence[str]) -> Sequence[RunHead | None]:
        return self._call("heads", self.inner.heads, run_ids)

    def read(self, run_id: str, first: int | None = None, last: int | None = None) -> Tail:
        return self._call("read", self.inner.read, run_id, first, last)

    def claim(self, run_id: str, holder: str, ttl: float, instead_of: int | None = None) -> Lease:
        return self._call("claim", self.inner.claim, run_id, holder, ttl, instead_of)

    def claim_ready(self, wanted: Sequence[RunHead], holder: str, ttl: float) -> list[Lease | None]:
        return self._call("claim_ready", self.inner.claim_ready, wanted, holder, ttl)

    def renew(self, leases: Iterable[Lease], ttl: float) -> list[bool | None]:
        return self._call("renew", self.inner.renew, list(leases), ttl)

    def release(self, lease: Lease) -> None:
        self._call("release", self.inner.release, lease)

    def post(self, run_id: str, key: str, body: bytes) -> bool:
        return self._call("post", self.inner.post, run_id, key, body)

    def inbox(self, run_id: str) -> Sequence[Post]:
        return self._call("inbox", self.inner.inbox, run_id)

    def add_output(self, run_id: str, fence: int, bodies: Sequence[bytes], keep: int) -> int:
        return self._call("add_output", self.inner.add_output, run_id, fence, bodies, keep)

    def output(self, run_id: str, after: int = 0, limit: int | None = None) -> Sequence[Output]:
        return self._call("output", self.inner.output, run_id, after, limit)

    def put_document(self, name: str, body: bytes, version: int, due: float | None = None) -> int | None:
        return self._call("put_document", self.inner.put_document, name, body, version, due)

    def get_document(self, name: str) -> Document | None:
        return self._call("get_document", self.inner.get_document, name)

    def list_documents(
        self, prefix: str = "", due: bool = False, limit: int | None = None
    ) -> Sequence[Document]:
        return self._call("list_documents", self.inner.list_documents, prefix, due, limit)

    def delete_document(self, name: str, version: int) -> bool:
        return self._call("delete_document", self.inner.delete_document, name, version)

    def lanes(self) -> Sequence[Lane]:
        return self._call("lanes", self.inner.lanes)

    def are_valid(self, leases: Sequence[Lease]) -> list[bool]:
        return self._call("are_valid", self.inner.are_valid, leases)

    def ready(self, lanes: Sequence[Lane], limit: int) -> list[RunHead]:
        return self._call("ready", self.inner.ready, lanes, limit)

    def list(self, which: RunFilter) -> list[RunHead]:
        return self._call("list", self.inner.list, which)

    def prune(self, run_id: str, before: int) -> int:
        return self._call("prune", self.inner.prune, run_id, before)

    def expire(self, older_than: float, statuses: Sequence[str] = ENDED) -> int:
        return self._call("expire", self.inner.expire, older_than, statuses)

    def delete(self, run_id: str) -> None:
        self._call("delete", self.inner.delete, run_id)

    def close(self) -> None:
        """Close the other store; hanging calls continue, and find it closed."""
        self.heal()
        self.inner.close()

    def _plan(
        self,
        kind: Kind,
        operation: str | Iterable[str],
        which: Which,
        seconds: float | None = None,
    ) -> Fault:
        operations = _operations(operation)
        nth = which.get("nth", 1)
        chance = which.get("chance")
        if type(nth) is not int or nth < 1:
            raise UsageError(f"nth must be a whole number of at least 1, not {nth!r}")
        if chance is not None and not 0 <= chance <= 1:
            raise UsageError(f"chance must be a number from 0 to 1, not {chance!r}")
        times: int | None = 1
        if chance is not None:
            times = None
        times = which.get("times", times)
        fault = Fault(FaultPlan(kind, operations, nth, which.get("when"), chance, times, seconds))
        with self._lock:
            self._faults.append(fault)
        return fault

    def _call(self, operation: str, function: Callable[..., T], *arguments: Any) -> T:
        with self._lock:
            self.calls[operation] += 1
            call = Call(operation, arguments, self.calls[operation])
            struck = next((fault for fault in self._faults if fault.strikes(call, self._random.random)), None)
        began = monotonic()
        try:
            return self._carry_out(struck, call, function)
        finally:
            self.slowest = max(self.slowest, monotonic() - began)

    def _carry_out(self, struck: Fault | None, call: Call, function: Callable[..., T]) -> T:
        operation = call.operation
        if struck is None:
            return function(*call.arguments)
        if struck.kind == "fail":
            raise StoreUnavailable(f"{operation}: the store can't be reached (a planned fault)")
        if struck.kind == "disk_full":
            raise StoreUnavailable(f"{operation}: {os.strerror(errno.ENOSPC)} (a planned fault); make room")
        if struck.kind == "hang":
            struck.hang(call)
        result = function(*call.arguments)
        if struck.kind == "lose_ack":
            raise StoreUnavailable(
                f"{operation}: the connection broke before the store answered (a planned fault)"
            )
        return result


def _operations(named: str | Iterable[str]) -> frozenset[str]:
    if named == "*":
        return frozenset(OPERATIONS)
    if isinstance(named, str):
        named = (named,)
    operations = tuple(named)
    for each in operations:
        if each not in OPERATIONS:
            raise UsageError(f"a store has no operation {each!r}; it has {', '.join(OPERATIONS)}")
    return frozenset(operations)
