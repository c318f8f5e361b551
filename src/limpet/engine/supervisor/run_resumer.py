"""Resuming runs: each picked run is claimed, rebuilt and driven to its next stop, in a thread or as a task."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from random import random
from threading import current_thread
from time import monotonic
from typing import TYPE_CHECKING

from limpet.engine.drivers.sync_driver import drive_to_stop
from limpet.engine.leases.held_lease import HeldLease
from limpet.engine.leases.lease_client import client_for, executes_runs
from limpet.engine.loop.driver_commands import Verdict
from limpet.engine.node_context.questions import ResumeInput
from limpet.engine.sessions import resume as entry
from limpet.engine.sessions.compatibility import check_fits
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.sessions.session import Session
from limpet.engine.sessions.trials import CrashHistory, CrashLimits, NeedsSolitude
from limpet.engine.supervisor.catalog import Graph, GraphCatalog, GraphsOnStore
from limpet.engine.supervisor.lanes import ServedLanes
from limpet.engine.supervisor.limit_admission import LimitAdmission
from limpet.engine.supervisor.log import log
from limpet.engine.supervisor.options import SupervisorOptions
from limpet.engine.supervisor.orphans import OrphanFinder
from limpet.engine.supervisor.run_picker import RunPicker
from limpet.engine.supervisor.skipped_runs import SkippedRuns
from limpet.engine.supervisor.stranded_runs import StrandedRuns
from limpet.engine.supervisor.suspects import Suspects
from limpet.engine.supervisor.worker_list import OtherWorkers
from limpet.errors import (
    AlreadyCompleted,
    Conflict,
    DefinitionError,
    KeyMissing,
    LimpetError,
    RunNotFound,
    RunQuarantined,
    StoreUnavailable,
    UsageError,
)
from limpet.journal.reader import read_progress
from limpet.journal.store import RunHead, Store
from limpet.observe.hub import Emit
from limpet.threads.workers import Monitor

if TYPE_CHECKING:
    from concurrent.futures import Executor

STORE_RETRY_LIMIT = 10.0
"""Seconds, at most, between two tries to reach a store that is unavailable."""


class RunResumer:
    """Resumes runs, and knows those in progress.

    `changed` guards all of it, and is notified when a run ends and when the supervisor stops.
    """

    def __init__(
        self,
        store: Store,
        catalog: GraphCatalog,
        options: SupervisorOptions,
        emit: Emit | None,
        others: OtherWorkers,
    ) -> None:
        client = client_for(store, options.lease)
        self.graphs = GraphsOnStore(catalog, client, emit)
        self.served = ServedLanes(self.graphs, options.queues, others)
        self.orphans = OrphanFinder(store, self.served, options.lease)
        self.admission = LimitAdmission(client, self.graphs)
        self.picker = RunPicker(options.concurrency, options.per_graph)
        self.skipped = SkippedRuns()
        self.stranded = StrandedRuns(client, self.served, self.picker, self.skipped, self._emit_for)
        self.suspects = Suspects(options.poll)
        self.changed = Monitor()
        self.stopping = False
        self.resumed = 0
        """How many runs were resumed."""
        self.note_resumed: Callable[[str], object] | None = None
        """Called with the id of each run that is resumed, under the lock."""
        self._client = client
        self._leases: dict[str, HeldLease] = {}
        """The leases of runs that were claimed together and aren't opened yet. What opens one takes it out."""
        self._options = options
        self._emit = emit
        self._sessions: dict[str, Session] = {}

    def claim(self, picked: Sequence[RunHead]) -> list[RunHead]:
        """Claim picked runs in one call; returns those to resume. The others are no longer in progress here.

        Runs that have to be claimed in another way are among those to resume: `open_session` claims them.
        """
        together = [head for head in picked if self._is_claimed_with_others(head)]
        missed: set[str] = set()
        try:
            if together:
                for head, lease in zip(together, self._client.claim_ready(together), strict=True):
                    if lease is None:
                        missed.add(head.run_id)
                    else:
                        self._leases[head.run_id] = lease
        except BaseException:
            missed.update(head.run_id for head in picked)
            self.release_claimed(missed)
            raise
        finally:
            self.give_up([head for head in picked if head.run_id in missed])
        return [head for head in picked if head.run_id not in missed]

    def give_up(self, picked: Collection[RunHead]) -> None:
        """Runs that were picked aren't executed here: release their slots, and count them as ended."""
        try:
            self.admission.release([head.run_id for head in picked], were_executed=False)
        finally:
            for head in picked:
                self.ended(head, None)

    @property
    def has_claimed(self) -> bool:
        """Whether runs were claimed that aren't opened yet."""
        return bool(self._leases)

    def resume(self, head: RunHead) -> None:
        """Resume one run and drive it to its next stop, in this thread.

        Whatever a node raises, even `SystemExit`, ends only its run: the other runs of the process continue. What
        isn't an `Exception` counts as a crash (see `Session.note_interrupt`): the run is quarantined in the end.
        """
        verdict: Verdict | None = None
        session: Session | None = None
        thread = current_thread()
        name = thread.name
        thread.name = f"{name}-{head.run_id}"
        try:
            session = self.open_session(head)
            if session is not None:
                verdict = drive_to_stop(session)
        except BaseException as problem:
            self.skipped.skip(head.run_id, f"{type(problem).__name__}: {problem}")
        finally:
            thread.name = name
            try:
                self.admission.release([head.run_id], were_executed=session is not None)
            finally:
                self.ended(head, verdict)

    async def aresume(self, head: RunHead, executor: Executor | None) -> None:
        """The same on the event loop; the store is used in threads of `executor`."""
        import asyncio

        from limpet.engine.drivers import async_driver

        verdict: Verdict | None = None
        session: Session | None = None
        try:
            # Not in the event loop's default threads: nodes may keep all of those busy.
            opening = asyncio.get_running_loop().run_in_executor(executor, self.open_session, head)
            session = await opening
            if session is not None:
                async for event in async_driver.drive(session):
                    if isinstance(event, Verdict):
                        verdict = event
        except (asyncio.CancelledError, KeyboardInterrupt):
            # The supervisor is stopped, or Ctrl-C was pressed, which the thread of the event loop gets.
            raise
        except BaseException as problem:
            self.skipped.skip(head.run_id, f"{type(problem).__name__}: {problem}")
        finally:
            try:
                if self.admission.has_slots(head.run_id):
                    release = partial(self.admission.release, [head.run_id], session is not None)
                    await asyncio.get_running_loop().run_in_executor(executor, release)
            finally:
                self.ended(head, verdict)

    def open_session(self, head: RunHead) -> Session | None:
        """Rebuild a run, and claim it unless `claim` has; None if that is impossible. What matters is logged."""
        try:
            session = None if self.stopping else self._opened(head)
        except NeedsSolitude as suspect:
            self._wait_for_turn(head, suspect.history)
            return None
        except Conflict as conflict:
            # Another process claimed it first. If that process dies, its runs are found without asking the store.
            if conflict.holder:
                self.orphans.remember_holder(conflict.holder)
            return None
        except (RunNotFound, AlreadyCompleted):
            # Another process has resumed it to its end, or deleted it, since the store listed it.
            return None
        except RunQuarantined as problem:
            log().error("%s", problem)
            return None
        except KeyMissing as problem:
            # This is a `StoreUnavailable` too, but a key that is missing now will hardly appear within seconds.
            self.skipped.skip(head.run_id, str(problem))
            return None
        except StoreUnavailable as problem:
            self.skipped.skip(head.run_id, f"it couldn't be claimed: {problem}", STORE_RETRY_LIMIT)
            return None
        except LimpetError as problem:
            self.skipped.skip(head.run_id, str(problem))
            return None
        finally:
            self.release_claimed([head.run_id])
        if session is None:
            return None
        session.on_child_graph = self._learn_graph
        is_admitted = False
        try:
            # The turn of a suspect may have begun after this run was picked.
            is_admitted = self.admission.confirms(session) and self._admit(session)
        finally:
            if not is_admitted:
                session.close()
        return session if is_admitted else None

    def release_claimed(self, run_ids: Iterable[str] | None = None) -> None:
        """Release those of these runs, or all, that were claimed and aren't opened yet."""
        for run_id in list(self._leases if run_ids is None else run_ids):
            lease = self._leases.pop(run_id, None)
            if lease is not None:
                with suppress(StoreUnavailable):  # then it expires
                    self._client.release(lease)

    def ended(self, head: RunHead, verdict: Verdict | None) -> None:
        """A run has reached its next stop, or wasn't resumed at all."""
        if verdict is not None and isinstance(verdict.error, Conflict):
            # Its nodes may have been called twice, so an operator looks for the reason: a process that was suspended.
            log().warning("run %s of %s is dropped: %s", head.run_id, head.graph, verdict.error)
        elif verdict is not None and verdict.error is not None:
            log().info("run %s of %s: %s", head.run_id, head.graph, verdict.error)
        # In one step: a loop that finds room for the next run must not find the session of this one.
        with self.changed.lock:
            self._sessions.pop(head.run_id, None)
            self.picker.ended(head.run_id)
            self.suspects.end_turn(head.run_id, monotonic())
            self.changed.notify()

    def begin(self) -> None:
        """Resume runs from now on, maybe again after a stop."""
        self.stopping = False
        if self.graphs.store_numbers is not None:
            self.graphs.store_numbers.is_stopped = False

    def request_stop(self) -> None:
        """Resume no more runs, and ask those in progress to stop before their next node."""
        with self.changed.lock:
            self.stopping = True
            if self.graphs.store_numbers is not None:
                self.graphs.store_numbers.is_stopped = True
            sessions = list(self._sessions.values())
            self.changed.notify()
        # Outside of the lock: `leave` calls into drivers, and a run that ends needs the lock.
        for session in sessions:
            session.stop.leave()

    def make_room(self) -> None:
        """Ask the runs in progress to leave before their next node, as it is the turn of a suspect."""
        with self.changed.lock:
            others = [each for each in self._sessions.values() if not self.suspects.admits(each.id)]
        for session in others:
            session.stop.leave()

    def wait_until_idle(self, seconds: float) -> list[Session]:
        """Wait until no run is in progress, for this many seconds at most; returns the sessions still in progress."""
        self.changed.wait_for(lambda: not self.picker.run_ids, max(0.0, seconds))
        with self.changed.lock:
            return list(self._sessions.values())

    def _is_claimed_with_others(self, head: RunHead) -> bool:
        """Whether a run may be claimed with others.

        Not a suspect, nor a run whose holder died, maybe with a valid lease, nor one of another plan, which has to be
        looked at first.
        """
        if self.suspects.has_turn(head.run_id) or head.holder is not None:
            return False
        with suppress(Exception):  # `open_session` reports it
            return _has_plan_of(self.graphs.compiled(head.graph), head)
        return False

    def _opened(self, head: RunHead) -> Session | None:
        compiled = self.graphs.compiled(head.graph)
        if not self._fits(compiled, head):
            return None
        limits = self._limits_for(head.run_id)
        lease = self._leases.pop(head.run_id, None)
        if lease is not None and lease.lost:
            raise Conflict(head.run_id, "its lease expired before it was opened")
        return entry.resume(
            compiled,
            head.run_id,
            ResumeInput(timed=True),
            max_sleep=self._options.max_sleep,
            limits=limits,
            known=head,
            lease=lease,
        )

    def _fits(self, compiled: CompiledGraph, head: RunHead) -> bool:
        """Whether a run can be continued here, by its plan. That is found out before the run is claimed."""
        if _has_plan_of(compiled, head):
            return True
        progress = read_progress(self._client.store.read(head.run_id))
        try:
            check_fits(compiled.plan, progress, quiet=True)
        except (DefinitionError, UsageError) as problem:
            seconds = self.served.note_unfit(head, str(problem))
            self.skipped.skip(head.run_id, str(problem), seconds, is_logged=False)
            return False
        return True

    def _limits_for(self, run_id: str) -> CrashLimits:
        """What applies to a run that is about to be claimed, if its process crashed."""
        most = self._options.max_crashes
        suspect_from = max(most - 1, 1)
        if self._options.concurrency == 1:
            # It executes alone in any case, so a trial costs the others nothing.
            suspect_from = 1
        has_turn = self.suspects.has_turn(run_id)
        # The user's own code may execute runs in this process, too.
        return CrashLimits(most, suspect_from, has_turn, has_turn and not executes_runs())

    def _wait_for_turn(self, head: RunHead, history: CrashHistory) -> None:
        """A suspect was found: it is resumed when nothing else executes here."""
        log().warning("run %s waits until it can execute alone: it may have crashed its process", head.run_id)
        with self.changed.lock:
            self.suspects.add(head, history.alone, monotonic(), random())

    def _admit(self, session: Session) -> bool:
        """Count a session as in progress; False if it is the turn of a suspect, so that others have to wait."""
        with self.changed.lock:
            if not self.suspects.admits(session.id):
                return False
            self.skipped.forget(session.id)
            self._sessions[session.id] = session
            self.resumed += 1
            if self.note_resumed is not None:
                self.note_resumed(session.id)
            if session.on_trial:
                session.on_progress = lambda: self._end_turn(session.id)
            else:  # it isn't a suspect any more: another process has executed it since
                self.suspects.end_turn(session.id, monotonic())
            # The stop was requested after this run was picked, and couldn't reach its session then.
            if self.stopping:
                session.stop.leave()
            return True

    def _end_turn(self, run_id: str) -> None:
        """A suspect got further: others may execute beside it from now on."""
        with self.changed.lock:
            self.suspects.end_turn(run_id, monotonic())
            self.changed.notify()

    def _learn_graph(self, graph: Graph) -> None:
        """A run starts a child: its graph is known to this process from now on, so it can execute the child."""
        if graph.name not in self.graphs.catalog.names:
            with suppress(DefinitionError):  # another thread has added a graph of the same name
                self.graphs.catalog.add(graph)

    def _emit_for(self, name: str) -> Emit | None:
        """The observers of a graph's runs: only those of the supervisor, if the graph isn't known or can't be had."""
        with suppress(LimpetError):
            if name in self.graphs.catalog.names:
                return self.graphs.compiled(name).emit
        return self._emit


def _has_plan_of(compiled: CompiledGraph, head: RunHead) -> bool:
    """Whether a run has the plan of a graph, as far as the store knows that of the run."""
    return head.plan in ("", compiled.plan.fingerprint)
