"""`RunOutput`: takes what the nodes of a run emit, and passes it on.

The caller that streams the run and the observers get each item at once. The store, where followers in other processes
find it, gets a few batches a second: one thread has those of all runs of this process written. What is left is
written before the commit with which the run stops, so that a follower has all of it when it sees the end; and before
the commit of a step, if that wasn't done just now. Only the newest items of a run are kept. No run fails because of
its output: if the store is unavailable, it is tried again with the next batch, and the log has a warning.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from threading import Lock
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from limpet.engine.node_context.emit import PROGRESS, CallNumbers, Emitted
from limpet.errors import Conflict, LimpetError, RunNotFound
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.inbox import OutputItem, output_body
from limpet.journal.store import Store
from limpet.observe.events import NODE_OUTPUT, NODE_PROGRESS
from limpet.threads.workers import start_thread, workers

if TYPE_CHECKING:
    from logging import Logger

    from limpet.engine.node_context.node_context import NodeContext
    from limpet.observe.hub import Emit

FLUSH_INTERVAL: Final = 0.2
"""Seconds between two batches of a run."""

MAX_KEPT_ITEMS: Final = 10_000
MAX_KEPT_BYTES: Final = 16_000_000
"""How many of its newest items a run keeps, and how many bytes of them."""


class OutputPlace(NamedTuple):
    """Where the output of a run is written to: under which fence, and whether there may be some already."""

    store: Store
    fence: int
    may_have_some: bool


class LiveEvents:
    """What nodes emit, on its way to the caller that iterates the run in this process.

    `wake` is called when there is an event, if the driver waits for nodes.
    """

    __slots__ = ("events", "wake")

    def __init__(self) -> None:
        self.events: deque[dict[str, Any]] = deque(maxlen=MAX_KEPT_ITEMS)
        self.wake: Callable[[], object] | None = None

    def put(self, event: dict[str, Any]) -> bool:
        """Add an event, and return whether the oldest had to go. By any thread."""
        is_full = len(self.events) == MAX_KEPT_ITEMS
        self.events.append(event)
        wake = self.wake
        if wake is not None:
            wake()
        return is_full


class RunOutput:
    """The output of one run that is open in this process. May be used by any thread."""

    def __init__(
        self, run_id: str, place: OutputPlace | None, notify: Emit | None, live: LiveEvents | None
    ) -> None:
        self._run_id = run_id
        self._place = place
        self._notify = notify
        self._live = live
        self._calls = count(1)
        self._lock = Lock()
        self._waiting: deque[tuple[str, bytes]] = deque()
        """Items that weren't written yet: for one of progress its call, and the bytes."""
        self._is_due = False
        """Whether the timer knows that there are some."""
        self._writing = Lock()
        self._kept = KeptItems()
        self._flushed_at = float("-inf")
        """When a commit last had the waiting items written."""
        self._has_warned: set[str] = set()

    def begin_call(self, ctx: NodeContext) -> CallNumbers:
        """Give a call the numbers for what it emits, unless it has them: it may emit from several threads."""
        with self._lock:
            numbers: CallNumbers | None = getattr(ctx, "_emitted", None)
            if numbers is None:
                fence = 0 if self._place is None else self._place.fence
                numbers = ctx._emitted = CallNumbers(f"{fence}.{next(self._calls)}", count())
            return numbers

    def take(self, item: Emitted) -> None:
        """Pass an item on. What is passed on is a copy: the node may change what it emitted."""
        at = time()
        content: dict[str, Any] = decode(encode(item.content))
        if self._live is not None:
            event = {"type": item.kind, "node": item.node, **item.place, **content, "at": at}
            if self._live.put(event):
                self._warn("the caller that iterates the run is slower than its nodes emit", "is dropped")
        if self._notify is not None:
            kind = NODE_PROGRESS if item.kind == PROGRESS else NODE_OUTPUT
            data = {"run_id": self._run_id, "node": item.node, **item.place, **content}
            data.pop("task", None)  # to an observer, a task is a node
            self._notify(kind, item.graph, data)
        if self._place is not None:
            self._add(item, at)

    def flush_before_commit(self, ends_run: bool) -> bool:
        """Whether the waiting items are to be written before a commit, which then calls `flush`."""
        if not self._waiting:
            return False
        now = monotonic()
        if not ends_run and now - self._flushed_at < FLUSH_INTERVAL:
            return False  # the timer will
        self._flushed_at = now
        return True

    def flush(self) -> None:
        """Write what waits, as one batch."""
        place = self._place
        if place is None:
            return
        with self._writing:
            bodies = self._take_waiting()
            if not bodies:
                return
            try:
                if place.may_have_some:
                    self._kept.add(item.body for item in place.store.output(self._run_id))
                    place = self._place = place._replace(may_have_some=False)
                if self._kept.add(bodies):
                    self._warn(
                        f"its output is larger than {MAX_KEPT_ITEMS:,} items or {MAX_KEPT_BYTES:,} bytes",
                        "is deleted",
                    )
                place.store.add_output(self._run_id, place.fence, bodies, self._kept.limit)
            except (Conflict, RunNotFound):
                # Another process has the run, or it was deleted: the next commit finds that out, and says so.
                self._place = None
            except LimpetError as problem:
                self._put_back(bodies)
                self._warn(f"its output couldn't be written: {problem}", "waits for the next try")

    def delete(self) -> None:
        """Delete all output of the run from the store. Its journal was deleted, so nothing of it is wanted."""
        place = self._place
        if place is None:
            return
        with self._writing:
            self._waiting.clear()
            try:
                if place.store.head(self._run_id).output:
                    # An item without content, which isn't shown, takes the place of all others. Two, because a store
                    # may keep up to twice as many items as it is asked to.
                    place.store.add_output(self._run_id, place.fence, [b"", b""], 1)
            except LimpetError as problem:
                log().warning("run %s: its output couldn't be deleted: %s", self._run_id, problem)

    def _add(self, item: Emitted, at: float) -> None:
        data = item.content if item.kind == PROGRESS else item.content["data"]
        body = output_body(self._run_id, OutputItem(item.node, at, data, item.place, item.kind))
        replaces = item.place["call"] if item.kind == PROGRESS else ""
        self._waiting.append((replaces, body))
        if not self._is_due:
            # In this order: if the thread is interrupted between the two, the timer is only told again.
            flush_timer.add(self._on_timer)
            self._is_due = True

    def _on_timer(self) -> None:
        self._is_due = False
        workers.do(self.flush)

    def _take_waiting(self) -> list[bytes]:
        """The items that wait: of the progress of a call the newest alone, and no more than are kept."""
        taken: list[tuple[str, bytes]] = []
        for _ in range(len(self._waiting)):
            taken.append(self._waiting.popleft())
        newest = {replaces: number for number, (replaces, _) in enumerate(taken)}
        bodies = [
            body
            for number, (replaces, body) in enumerate(taken)
            if not replaces or newest[replaces] == number
        ]
        kept = KeptItems()
        kept.add(bodies)
        return bodies[-len(kept) :]

    def _put_back(self, bodies: list[bytes]) -> None:
        self._waiting.extendleft(("", body) for body in reversed(bodies))

    def _warn(self, why: str, what: str) -> None:
        """Write to the log, once for each reason."""
        if what not in self._has_warned:
            self._has_warned.add(what)
            log().warning("run %s: %s, so the oldest of it %s", self._run_id, why, what)


class KeptItems:
    """How many of the newest items of a run's output are kept, by their number and their size."""

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()
        self._total = 0
        self.limit = MAX_KEPT_ITEMS
        """How many of the newest items the store has to keep."""

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, bodies: Iterable[bytes]) -> bool:
        """Count items, and return whether older ones have to go."""
        has_dropped = False
        for body in bodies:
            self._sizes.append(len(body))
            self._total += len(body)
            while len(self._sizes) > MAX_KEPT_ITEMS or self._total > MAX_KEPT_BYTES:
                self._total -= self._sizes.popleft()
                has_dropped = True
        if has_dropped:
            self.limit = len(self._sizes)
        return has_dropped


class FlushTimer:
    """The one thread that has the output of all runs of this process written, a few times a second."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start without a thread: at first, and in a forked child."""
        self._due: deque[Callable[[], object]] = deque()
        self._working = Lock()

    def add(self, call: Callable[[], object]) -> None:
        """Have this called at the next tick."""
        self._due.append(call)
        if not self._working.locked():
            start_thread(self._work, "limpet-output")

    def _work(self) -> None:
        # Two threads may start at once: then one of them ends at once. If something is added while the other one is
        # about to end, it is found when the lock is released.
        while self._due and self._working.acquire(blocking=False):
            try:
                self._tick_until_idle()
            finally:
                self._working.release()

    def _tick_until_idle(self) -> None:
        has_work = True
        while has_work:
            sleep(FLUSH_INTERVAL)
            has_work = bool(self._due)
            for _ in range(len(self._due)):
                self._due.popleft()()


flush_timer = FlushTimer()


def log() -> Logger:
    """The log of what happens to runs."""
    from logging import getLogger

    return getLogger("limpet.run")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=flush_timer.forget)
