"""A supervisor: resumes the runs of a store that no process advances.

The watch loop (`watch_loop`) finds runs that are ready, the picker (`run_picker`) chooses among them, and the resumer
(`run_resumer`) claims and drives them. Two supervisors never drive the same run: only the one that claims it may. A
run whose graph isn't known here, or that can't be resumed, stays as it is, and the log says why.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from time import monotonic, time
from typing import TYPE_CHECKING, Self

from limpet.durations import patience_of
from limpet.engine.leases.lease_client import client_for, register_supervisor
from limpet.engine.leases.process_identity import place_of
from limpet.engine.leases.workers import WorkerInfo
from limpet.engine.supervisor.catalog import GraphCatalog, Reference
from limpet.engine.supervisor.log import log
from limpet.engine.supervisor.options import SupervisorOptions
from limpet.engine.supervisor.run_resumer import RunResumer
from limpet.engine.supervisor.watch_loop import WatchLoop
from limpet.engine.supervisor.worker_list import OtherWorkers, WorkerEntry
from limpet.errors import UsageError
from limpet.journal.store import Store
from limpet.observe.events import ObserverLike
from limpet.observe.hub import gather
from limpet.threads.workers import start_thread
from limpet.version import VERSION

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Event, Task
    from concurrent.futures import Executor
    from types import TracebackType

    from limpet.engine.sessions.session import Session

MAX_LISTED_RUNS = 50
"""Runs in progress, and lanes that it leaves alone, that a worker lists of itself."""
STORE_THREADS = 8
"""Threads that look at the store and open runs, for a supervisor on an event loop."""
STORE_GRACE = 2.0
"""Seconds that a supervisor waits for its store when it is stopped, after the nodes have had their `grace`."""
SIGNAL_CHECK_INTERVAL = 0.5
"""Seconds between two checks of `run()`: on some systems a wait without a limit can't be interrupted by a signal."""


class Supervisor:
    """Resumes runs, in threads of this process or on an event loop, until it is stopped.

    Use it with `with` or `async with`, or call `run()`, which returns when the process is asked to end.
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
            raise UsageError(
                f"{store!r} can't keep two processes apart, so it can't be supervised; use a store with leases, such "
                "as sqlite:///runs.db"
            )
        self.store = store
        self.options = options
        client = client_for(store, options.lease)
        self._entry = WorkerEntry(client, self._describe)
        others = OtherWorkers(client, lambda: self._entry.name)
        self.resumer = RunResumer(store, catalog, options, gather(observers, time), others)
        self.watch_loop = WatchLoop(store, catalog, options, self.resumer)
        self._is_started = False
        self._task: Task[None] | None = None
        self._executor: Executor | None = None
        register_supervisor(store, self)

    @property
    def running(self) -> list[str]:
        """The ids of the runs in progress."""
        with self.resumer.changed.lock:
            return self.resumer.picker.run_ids

    @property
    def skipped(self) -> dict[str, str]:
        """The runs that it couldn't resume, by id, each with the reason."""
        return self.resumer.skipped.reasons()

    def start(self) -> Self:
        """Start to work, in a thread. A supervisor that has been started continues."""
        # Under the lock, since two threads may call this and only one loop may watch the store.
        with self.resumer.changed.lock:
            if not self._is_started:
                self.resumer.begin()
                self._entry.keep()
                self.watch_loop.start()
                self.watch_loop.start_listener()
                self._is_started = True
        return self

    def stop(self, grace: float | None = None) -> None:
        """Resume no more runs, and release those in progress as soon as their running nodes are done.

        After `grace` seconds (by default those of the options) it waits no longer: the leases are released, and the
        process that resumes the runs repeats their unfinished nodes. A store that doesn't answer then is not waited
        for: the leases expire by themselves.
        """
        seconds = patience_of(self.options.grace if grace is None else grace, "grace")
        # First no more runs, then wait: else a run could be picked after the wait found none.
        self.resumer.request_stop()
        sessions = self.resumer.wait_until_idle(seconds)
        deadline = monotonic() + STORE_GRACE
        # A node or an observer may call this in a thread of the supervisor. And both threads may wait for a store
        # that doesn't answer: they are daemon threads that resume nothing any more, so the wait for them is bounded.
        released = threading.Lock()
        released.acquire()
        if sessions or self.resumer.has_claimed:
            start_thread(_release, "limpet-release", self.resumer, sessions, released)
            released.acquire(True, max(0.0, deadline - monotonic()))
        self._is_started = False
        self.watch_loop.wait_until_ended(max(0.0, deadline - monotonic()))
        self._entry.leave(max(0.0, deadline - monotonic()))

    def drain(self) -> list[str]:
        """Resume all runs that are ready, until none is left, and return their ids."""
        resumed: dict[str, None] = {}  # for its order: a run may be resumed more than once
        self.resumer.note_resumed = lambda run_id: resumed.update({run_id: None})
        try:
            self.watch_loop.drain()
        finally:
            self.resumer.note_resumed = None
        return list(resumed)

    def run(
        self, on_ready: Callable[[], None] | None = None, on_stop: Callable[[], None] | None = None
    ) -> None:
        """Work until the process is asked to end (SIGTERM, or Ctrl-C), then stop as `stop` does.

        For the main thread. `on_ready` is called as soon as these signals no longer end the process at once, and
        `on_stop` when the first one has come. A second one ends the process without waiting for nodes. If the process
        was started with SIGINT ignored, as shells do in the background, Ctrl-C stays ignored.
        """
        import signal

        # A handler interrupts the main thread anywhere, maybe where it holds a lock that `stop` needs, or that of an
        # `Event`. So it only makes a mark, and releases a lock for which nothing waits but the loop below.
        requests: list[object] = []
        wake_up = threading.Lock()
        wake_up.acquire()

        def request_stop(*_: object) -> None:
            if requests:
                raise SystemExit(1)
            requests.append(None)
            wake_up.release()

        signals = [signal.SIGTERM]
        # A shell has processes in the background ignore it: Ctrl-C is for the one in the foreground.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signals.append(signal.SIGINT)
        handlers = {each: signal.signal(each, request_stop) for each in signals}
        try:
            if on_ready is not None:
                on_ready()
            self.start()
            while not requests:
                wake_up.acquire(True, SIGNAL_CHECK_INTERVAL)
            if on_stop is not None:
                on_stop()
            self.stop()
        finally:
            for each, handler in handlers.items():
                signal.signal(each, handler)

    def add(self, graph: Reference) -> str:
        """Resume runs of this graph, too, and return its name. Raises `DefinitionError` if another has that name."""
        name = self.resumer.graphs.catalog.add(graph)
        self.nudge()
        return name

    def nudge(self, schedules_changed: bool = False) -> None:
        """Look at the store now, rather than when it is time: a run was queued, say, or time was skipped.

        With `schedules_changed`, it reads the schedules again, too: some may have been added or changed.
        """
        self.watch_loop.look_now(schedules_changed)

    def _describe(self, name: str, since: float, now: float) -> WorkerInfo:
        """What the list of workers says of this one."""
        host, pid = place_of(name)
        running = self.running
        return WorkerInfo(
            name=name,
            host=host,
            pid=pid,
            since=since,
            seen=now,
            version=VERSION,
            graphs=self.resumer.graphs.known_plans(),
            queues=self.options.queues,
            runs=len(running),
            run_ids=tuple(running[:MAX_LISTED_RUNS]),
            concurrency=self.options.concurrency,
            lease=self.options.lease,
            left=tuple(self.resumer.served.left()[:MAX_LISTED_RUNS]),
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        self.resumer.begin()
        # Threads of its own: nodes may keep all default threads of the event loop busy.
        self._executor = ThreadPoolExecutor(STORE_THREADS, "limpet-supervisor")
        self._entry.keep()
        self.watch_loop.start_listener()
        self._task = asyncio.create_task(self.watch_loop.arun(self._executor), name="limpet-supervisor")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import asyncio

        # In a thread, because it waits for nodes, and those run on this event loop. Not in one of the executor,
        # because those may all wait for a store that doesn't answer.
        stopped = asyncio.Event()
        arguments = (self, asyncio.get_running_loop(), stopped)
        threading.Thread(target=_stop_in_thread, args=arguments, name="limpet-stop", daemon=True).start()
        await stopped.wait()
        self.watch_loop.cancel_tasks()
        if self.resumer.has_claimed:
            start_thread(self.resumer.release_claimed, "limpet-release")
        task = self._task
        self._task = None
        if task is not None:
            finished, _ = await asyncio.wait([task], timeout=STORE_GRACE)
            if finished:
                await task
            else:  # it waits for a thread that waits for the store
                task.cancel()
                await asyncio.wait([task])
        executor = self._executor
        self._executor = None
        if executor is not None:
            # A thread may still wait for a store that is unavailable. Nothing depends on it any more.
            executor.shutdown(wait=False)


def _release(resumer: RunResumer, sessions: Iterable[Session], released: threading.Lock) -> None:
    """Release the leases of runs that aren't opened yet or whose nodes are still running, and then this lock."""
    resumer.release_claimed()
    for session in sessions:
        log().warning("run %s: its node is still running, so the run is released unfinished", session.id)
        session.close()
    released.release()


def _stop_in_thread(supervisor: Supervisor, loop: AbstractEventLoop, stopped: Event) -> None:
    """Stop a supervisor of an event loop, and let the loop know."""
    try:
        supervisor.stop()
    finally:
        loop.call_soon_threadsafe(stopped.set)
