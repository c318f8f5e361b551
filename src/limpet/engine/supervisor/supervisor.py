"""A supervisor: goes on with the runs in a store that nobody goes on with.

It looks for runs that want a holder (queued ones, sleepers whose time has come, questions whose deadline has passed,
and what a dead process left behind), takes on as many as it may, and walks each to its next stop with the loop that
walks every run. Two supervisors never walk the same one: whoever claims it has it. What a supervisor doesn't know, or
can't go on with, it leaves as it is, and says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from limpet.engine.drivers.sync_driver import drive
from limpet.engine.leases.lease_client import client_for, watch
from limpet.engine.loop.commands import Verdict
from limpet.engine.node_context.resume_input import ResumeInput
from limpet.engine.sessions import resume as entry
from limpet.engine.sessions.session import CompiledGraph, Session
from limpet.engine.supervisor.catalog import GraphCatalog
from limpet.engine.supervisor.orphans import MOST_LISTED, OrphanFinder
from limpet.engine.supervisor.run_picker import RunPicker, together
from limpet.errors import (
    AlreadyCompleted,
    Conflict,
    KeyMissing,
    LimpetError,
    RunNotFound,
    RunQuarantined,
    StoreUnavailable,
    UsageError,
)
from limpet.journal.store import RUNNING, Notifying, RunFilter, RunHead, Store
from limpet.observe.events import ObserverLike
from limpet.observe.hub import both, gather

if TYPE_CHECKING:
    from asyncio import Future, Task
    from concurrent.futures import Executor
    from logging import Logger
    from types import TracebackType

A_WHILE = 60.0
"""Seconds until a run that couldn't be gone on with is tried again, and until unknown graphs are looked for again."""
LONGEST_PAUSE = 10.0
"""Seconds between two tries to reach a store that is away."""
A_MOMENT = 0.05
"""Seconds in which changes gather that the store tells of: each run that ends is one."""
BESIDE = 8
"""Threads that look at the store and open runs, for a supervisor on an event loop."""

T = TypeVar("T")
ENDING = (Exception, SystemExit, KeyboardInterrupt)
"""What a node may raise: one that would end its process ends its run's walk."""


class SupervisorOptions(NamedTuple):
    """How a supervisor works. See `limpet.supervise`."""

    lease: float = 10.0
    concurrency: int = 16
    per_graph: int | Mapping[str, int] | None = None
    poll: float = 2.0
    max_crashes: int = 3
    patience: float = 5.0
    grace: float = 30.0

    def check(self) -> None:
        """Raise `UsageError` for habits that nobody can have."""
        for name in ("lease", "poll"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is a number of seconds above 0, not {getattr(self, name)!r}")
        for name in ("patience", "grace"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} is a number of seconds from 0, not {getattr(self, name)!r}")
        if type(self.max_crashes) is not int or self.max_crashes < 1:
            raise UsageError(f"max_crashes is a whole number from 1, not {self.max_crashes!r}")


class Supervisor:
    """Goes on with runs, in threads of this process or on an event loop, until it is stopped.

    Use it with `with` or `async with`, or call `run()`, which returns when the process is told to end.
    """

    def __init__(
        self,
        store: Store,
        catalog: GraphCatalog,
        options: SupervisorOptions,
        observers: Iterable[ObserverLike] = (),
    ) -> None:
        options.check()
        if not store.abilities.leases:
            raise UsageError(f"{store!r} can't keep two processes apart, so nobody can supervise it")
        self.store, self.options, self._catalogue = store, options, catalog
        self._dispatch = RunPicker(options.concurrency, options.per_graph)
        self._compiled: dict[str, CompiledGraph] = {}
        self._sessions: dict[str, Session] = {}
        self._left: dict[str, tuple[str, float]] = {}
        self._taken_on: dict[str, None] = {}
        self._backlog: list[RunHead] = []
        self._more = False
        self._look_at = 0.0
        self._neighbours = OrphanFinder(store, options.lease)
        self._change = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._task: Task[None] | None = None
        self._tasks: set[Task[None]] = set()
        self._helpers: Executor | None = None
        self._unknown_after = 0.0
        self._emit = gather(observers, time)
        watch(store, self)

    @property
    def running(self) -> list[str]:
        """The ids of the runs that it is at."""
        with self._change:
            return self._dispatch.runs

    @property
    def left_alone(self) -> dict[str, str]:
        """The runs that it couldn't go on with, by id, each with the reason."""
        with self._change:
            return {run_id: reason for run_id, (reason, _) in self._left.items()}

    def start(self) -> Self:
        """Begin to work, in a thread. One that works already goes on."""
        with self._change:
            if self._thread is None:
                self._stopping = False
                self._thread = threading.Thread(target=self._watch, name="limpet-supervisor", daemon=True)
                self._thread.start()
                self._listen()
        return self

    def stop(self, grace: float | None = None) -> None:
        """Take on no more runs, and let go of those under way as soon as the nodes that run are done.

        After `grace` seconds (those it was made with, if None) it doesn't wait any longer: the leases are given back,
        and what wasn't finished is done again by whoever takes the runs on.
        """
        self._leave()
        deadline = monotonic() + (self.options.grace if grace is None else grace)
        with self._change:
            self._change.wait_for(lambda: not self._dispatch.runs, max(0.0, deadline - monotonic()))
            late = list(self._sessions.values())
        for session in late:
            log().warning("run %s: its node is still running, so it is left to others unfinished", session.id)
            session.close()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(self.options.poll + 1)

    def drain(self) -> list[str]:
        """Go on with all that is ready, until nothing is; returns the ids of the runs. One sweep, not for ever."""
        self._taken_on.clear()
        while True:
            taken = self._begin(self._ready())
            with self._change:
                if not taken and not self._dispatch.runs:
                    return list(self._taken_on)
                self._change.wait_for(lambda: not self._dispatch.runs or self._has_next(), 1.0)

    def run(self) -> None:
        """Work until the process is told to end (SIGTERM, or Ctrl-C), then stop as `stop` does.

        For the main thread. A second signal ends it without waiting for nodes.
        """
        import signal

        asked = threading.Event()

        def ask(*_: object) -> None:
            if asked.is_set():
                raise SystemExit(1)
            asked.set()

        before = {each: signal.signal(each, ask) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            self.start()
            while not asked.wait(0.5):
                pass
            self.stop()
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def nudge(self) -> None:
        """Look now, rather than when it is time: something was queued. Who has enough to do looks after that."""
        with self._change:
            if self._dispatch.room > 0 or not self._backlog:
                self._look_at = 0.0
                self._change.notify_all()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        self._stopping = False
        self._helpers = ThreadPoolExecutor(BESIDE, "limpet-supervisor")
        self._listen()
        self._task = asyncio.create_task(self._watch_here(), name="limpet-supervisor")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._aside(self.stop)
        for late in list(self._tasks):
            late.cancel()
        task, self._task = self._task, None
        if task is not None:
            await task
        helpers, self._helpers = self._helpers, None
        if helpers is not None:
            helpers.shutdown(wait=False)

    def _watch(self) -> None:
        """The work of the thread: look, begin, wait, again."""
        pause = self.options.poll
        while not self._stopping:
            ready = self._careful(self._ready)
            if ready is not None:
                self._begin(ready)
            pause = min(pause * 2, LONGEST_PAUSE) if ready is None else self.options.poll
            self._rest(pause if ready is None else None)

    def _aside(self, work: Callable[..., T], *args: Any) -> Future[T]:
        """Do something in a thread: not in the event loop's own, which nodes may keep busy."""
        import asyncio

        return asyncio.get_running_loop().run_in_executor(self._helpers, work, *args)

    async def _watch_here(self) -> None:
        """The same on an event loop: runs are tasks of it."""
        import asyncio

        pause, tasks = self.options.poll, self._tasks
        while not self._stopping:
            ready = await self._aside(self._careful, self._ready)
            for head in self._chosen(ready) if ready is not None else ():
                task = asyncio.create_task(self._walk_here(head), name=f"limpet {head.run_id}")
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            pause = min(pause * 2, LONGEST_PAUSE) if ready is None else self.options.poll
            await self._aside(self._rest, pause if ready is None else None)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _listen(self) -> None:
        """Hear of changes, where the store tells of them, in a thread that ends with the work."""
        store = self.store
        if not (store.abilities.notifies and isinstance(store, Notifying)):
            return

        def listen() -> None:
            while not self._stopping:
                try:
                    if store.wait_for_change(self.options.poll):
                        self.nudge()
                        sleep(A_MOMENT)
                except Exception as problem:
                    log().warning("couldn't listen for changes: %s; will try again", problem)
                    with self._change:
                        self._change.wait_for(lambda: self._stopping, self.options.poll)

        threading.Thread(target=listen, name="limpet-listener", daemon=True).start()

    def _rest(self, pause: float | None) -> None:
        """Wait for the time to look again, or for a run to end while others wait for room."""
        with self._change:
            if pause is not None:
                self._look_at = monotonic() + pause
            self._change.wait_for(
                lambda: self._stopping or not self._look_at or (pause is None and self._has_next()),
                max(0.0, self._look_at - monotonic()),
            )

    def _has_next(self) -> bool:
        """Whether there is room for a run that waits, or that may wait in the store."""
        if self._more and not self._backlog:
            return self._dispatch.room > 0
        return any(self._dispatch.room_for(graph) > 0 for graph in {head.graph for head in self._backlog})

    def _ready(self) -> list[RunHead]:
        """Runs that may be begun, and some more: what is left of the last look at the store, or else another look."""
        names = self._catalogue.names
        with self._change:
            room, now = self._dispatch.room, monotonic()
            if self._backlog and now < self._look_at:
                return self._backlog
            self._look_at = now + self.options.poll
            if room <= 0 or not names:
                self._more = bool(names)
                return self._backlog
            under_way = self._dispatch.runs
        self._report_unknown(names)
        skipped = self._skipped().union(under_way)  # one that ends while we look isn't to be begun again
        limit = room + self.options.concurrency + len(skipped)
        found = self.store.ready(names, limit)
        self._more = len(found) == limit
        if self._more and len(names) > 1:
            found = together([self.store.ready([name], limit) for name in names])
        return [
            *self._neighbours.orphans(names, skipped),
            *(head for head in found if head.run_id not in skipped),
        ]

    def _skipped(self) -> set[str]:
        with self._change:
            now = monotonic()
            self._left = {run: each for run, each in self._left.items() if each[1] > now - A_WHILE}
            return {run_id for run_id, (_, until) in self._left.items() if until > now}

    def _report_unknown(self, names: list[str]) -> None:
        """Say, now and then, which runs wait for a graph that isn't known here."""
        if self._unknown_after > monotonic():
            return
        self._unknown_after = monotonic() + A_WHILE
        which = RunFilter(statuses=(RUNNING,), unclaimed=True, limit=MOST_LISTED)
        for head in self.store.list(which):
            if head.graph not in names and head.due is not None:
                self._leave_alone(head.run_id, f"graph {head.graph!r} isn't known to this supervisor")

    def _chosen(self, ready: list[RunHead]) -> list[RunHead]:
        """Those that are to be begun; they count as under way from now on."""
        with self._change:
            if self._stopping:
                return []
            chosen = self._dispatch.choose(ready)
            for head in chosen:
                self._dispatch.began(head.run_id, head.graph)
            begun = {head.run_id for head in chosen}
            self._backlog = [head for head in ready if head.run_id not in begun]
            return chosen

    def _begin(self, ready: list[RunHead]) -> list[str]:
        chosen = self._chosen(ready)
        for head in chosen:
            name = f"limpet-run-{head.run_id}"
            threading.Thread(target=self._walk, args=(head,), name=name, daemon=True).start()
        return [head.run_id for head in chosen]

    def _walk(self, head: RunHead) -> None:
        """Walk one run to its next stop, in this thread."""
        verdict: Verdict | None = None
        try:
            session = self._opened(head)
            if session is not None:
                events = drive(session)
                while verdict is None:
                    try:
                        next(events)
                    except StopIteration as end:
                        verdict = end.value
        except ENDING as problem:
            self._leave_alone(head.run_id, f"{type(problem).__name__}: {problem}")
        finally:
            self._ended(head, verdict)

    async def _walk_here(self, head: RunHead) -> None:
        """The same on the event loop."""
        from limpet.engine.drivers import async_driver as aio

        verdict: Verdict | None = None
        try:
            session = await self._aside(self._opened, head)
            if session is not None:
                async for event in aio.drive(session):
                    verdict = event if isinstance(event, Verdict) else None
        except ENDING as problem:
            self._leave_alone(head.run_id, f"{type(problem).__name__}: {problem}")
        finally:
            self._ended(head, verdict)

    def _opened(self, head: RunHead) -> Session | None:
        """The run, claimed and rebuilt; None if it isn't to be had, or can't be gone on with."""
        try:
            session = entry.resume(
                self._compiled_for(head.graph), head.run_id, ResumeInput(timed=True), None, False,
                patience=self.options.patience, most_crashes=self.options.max_crashes, known=head,
            )  # fmt: skip
        except Conflict as quicker:
            if quicker.holder:
                self._neighbours.met(quicker.holder)
            return None
        except (RunNotFound, AlreadyCompleted):
            return None  # somebody else was quicker
        except RunQuarantined as problem:
            log().error("%s", problem)
            return None
        except KeyMissing as problem:
            self._leave_alone(head.run_id, str(problem))
            return None
        except StoreUnavailable as problem:
            self._leave_alone(head.run_id, f"it couldn't be taken on: {problem}", LONGEST_PAUSE)
            return None
        except LimpetError as problem:
            self._leave_alone(head.run_id, str(problem))
            return None
        if not self._entered(session):
            session.close()
            return None
        return session

    def _entered(self, session: Session) -> bool:
        """Take a session on. Of the runs that have but one try left, only one has it at a time.

        A process that dies takes all its runs with it, and all but one of them are innocent.
        """
        with self._change:
            others = [each.id for each in self._sessions.values() if self._on_probation(each)]
            if not others or not self._on_probation(session):
                self._left.pop(session.id, None)
                self._sessions[session.id] = session
                self._taken_on[session.id] = None
                if self._stopping:
                    session.stop.leave()
                return True
        reason = f"its process was lost {session.losses} times in a row, as was that of run {others[0]!r}: one by one"
        self._leave_alone(session.id, reason, self.options.poll)
        return False

    def _on_probation(self, session: Session) -> bool:
        return session.losses >= max(self.options.max_crashes - 1, 1)

    def _compiled_for(self, name: str) -> CompiledGraph:
        """A graph, as it runs on this store."""
        if name not in self._compiled:
            compiled = self._catalogue.graph(name).compiled()
            self._compiled[name] = compiled._replace(
                client=client_for(self.store, self.options.lease), interval=compiled.interval or 1,
                checkpointer=None, own=True, patient=not compiled.tolerant, emit=both(compiled.emit, self._emit),
            )  # fmt: skip
        return self._compiled[name]

    def _ended(self, head: RunHead, verdict: Verdict | None) -> None:
        if verdict is not None and verdict.error is not None:
            log().info("run %s of %s: %s", head.run_id, head.graph, verdict.error)
        with self._change:
            self._sessions.pop(head.run_id, None)
            self._dispatch.ended(head.run_id)
            self._change.notify_all()

    def _leave_alone(self, run_id: str, reason: str, seconds: float = A_WHILE) -> None:
        with self._change:
            known = self._left.get(run_id)
            self._left[run_id] = reason, monotonic() + seconds
        if known is None or known[0] != reason:
            log().warning("run %s is left alone: %s", run_id, reason)

    def _leave(self) -> None:
        with self._change:
            self._stopping = True
            sessions = list(self._sessions.values())
            self._change.notify_all()
        for session in sessions:
            session.stop.leave()

    def _careful(self, look: Any) -> list[RunHead] | None:
        """What a look at the store finds; None if the store can't be reached, which is said and tried again."""
        try:
            found: list[RunHead] = look()
            return found
        except Exception as problem:
            log().warning("couldn't look for runs: %s; will try again", problem)
            return None


def log() -> Logger:
    """The log of what supervisors do."""
    from logging import getLogger

    return getLogger("limpet.supervisor")
