"""The watch loop: look at the store for runs that are ready, resume them, wait for a change, and again.

Each look fires the schedules that are due first.

A run is ready when it is queued, its sleep is over, the deadline of its question has passed, or its process has died.
Between two looks the loop works off its backlog: what the last look found and had no room for.
"""

from __future__ import annotations

from functools import partial
from random import random
from threading import get_ident
from time import monotonic, sleep
from typing import TYPE_CHECKING

from limpet.engine.operations.run_info import is_quarantined, list_all
from limpet.engine.supervisor.catalog import GraphCatalog
from limpet.engine.supervisor.lanes import ReadyRuns
from limpet.engine.supervisor.limit_admission import is_behind
from limpet.engine.supervisor.log import log
from limpet.engine.supervisor.options import SupervisorOptions
from limpet.engine.supervisor.orphans import MAX_LISTED
from limpet.engine.supervisor.run_resumer import STORE_RETRY_LIMIT, RunResumer
from limpet.engine.supervisor.schedule_firing import ScheduleFiring
from limpet.errors import RunNotFound
from limpet.journal.optional_calls import Notifying, provides
from limpet.journal.run_filter import RunFilter
from limpet.journal.store import FAILED, RunHead, Store
from limpet.threads.workers import Workers, start_thread

if TYPE_CHECKING:
    from asyncio import Task
    from concurrent.futures import Executor

REPORT_INTERVAL = 60.0
"""Seconds between two looks for runs that were quarantined."""
FIRST_MISS_PAUSE = 0.002
"""Seconds, at most, until the store is asked again after other workers were faster. Each further time doubles it."""
NOTICE_PAUSE = 0.05
"""Seconds in which several notices of changes count as one: each run that ends is a change."""


class WatchLoop:
    """Finds runs that are ready and has them resumed, until the resumer is stopped."""

    def __init__(
        self, store: Store, catalog: GraphCatalog, options: SupervisorOptions, resumer: RunResumer
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._options = options
        self._resumer = resumer
        self._picker = resumer.picker
        self._changed = resumer.changed
        self._served = resumer.served
        self._stranded = resumer.stranded
        self._admission = resumer.admission
        self._ready_runs = ReadyRuns(store, resumer.served)
        self._schedules = ScheduleFiring(store, catalog, options.fires_schedules)
        self._backlog: list[RunHead] = []
        self._store_has_more = False
        self._next_look = 0.0
        self._next_report = 0.0
        self._reported: set[str] = set()
        """The quarantined runs that were reported."""
        self._tasks: set[Task[None]] = set()
        self._newest = 0
        """How many threads were started to watch. An interrupt may cause one too many: only the newest stays."""
        self._watched_by: int | None = None
        self._misses = 0
        """How often in a row other workers were faster to claim most of what was picked."""
        self._threads = Workers("limpet-run", options.concurrency)

    def start(self) -> None:
        """Watch in a thread, until the resumer is stopped."""
        self._newest += 1
        start_thread(self._run, "limpet-supervisor", self._newest)

    def wait_until_ended(self, seconds: float) -> None:
        """Wait until the thread has ended, for this many seconds at most. At once, if this is the thread."""
        if self._watched_by != get_ident():
            self._changed.wait_for(lambda: self._watched_by is None, seconds)

    def _run(self, number: int) -> None:
        """Watch until the resumer is stopped, or another thread was started. Each run is resumed in a thread."""
        self._watched_by = get_ident()
        try:
            self._watch(number)
            self._leave_lines()
        finally:
            self._threads.end_idle()
            if self._watched_by == get_ident():
                self._watched_by = None
            self._changed.notify()

    def _watch(self, number: int) -> None:
        pause = self._options.poll
        while not self._resumer.stopping and number == self._newest:
            claimed = self.claim_next()
            # Each failure doubles the pause, so that many workers don't keep a server busy that is just starting.
            if claimed is None:
                pause = min(pause * 2, STORE_RETRY_LIMIT)
                self._wait(pause)
            else:
                pause = self._options.poll
                self._resume_in_threads(claimed)
                self._wait()

    async def arun(self, executor: Executor) -> None:
        """The same on an event loop: each run is a task, and the store is used in threads of `executor`."""
        import asyncio

        loop = asyncio.get_running_loop()
        pause = self._options.poll
        while not self._resumer.stopping:
            claimed = await loop.run_in_executor(executor, self.claim_next)
            if claimed is None:
                pause = min(pause * 2, STORE_RETRY_LIMIT)
                await loop.run_in_executor(executor, self._wait, pause)
            else:
                pause = self._options.poll
                self._resume_in_tasks(claimed, executor)
                await loop.run_in_executor(executor, self._wait)
        await loop.run_in_executor(executor, self._leave_lines)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cancel_tasks(self) -> None:
        """Cancel the tasks of runs that didn't stop in time."""
        for task in list(self._tasks):
            task.cancel()

    def drain(self) -> None:
        """Resume all runs that are ready, in threads, until none is left.

        In a thread of its own, since Ctrl-C in the middle of a claim would leave runs held until their leases expire.
        """
        outcome: list[BaseException | None] = []
        try:
            start_thread(self._drain, "limpet-drain", outcome)
            self._changed.wait_for(lambda: outcome)
        except BaseException:
            outcome.append(None)  # which ends the thread
            raise
        problem = outcome[0]
        if problem is not None:
            raise problem

    def _drain(self, outcome: list[BaseException | None]) -> None:
        problem: BaseException | None = None
        try:
            self._stranded.look_soon()
            while not outcome and self._drain_once():
                if self._misses:
                    self._wait()
                else:
                    self._changed.wait_for(lambda: not self._picker.run_ids or self._has_next(), 1.0)
        except BaseException as error:
            problem = error
        self._leave_lines()
        self._threads.end_idle()
        outcome.append(problem)
        self._changed.notify()

    def _drain_once(self) -> bool:
        """Resume runs that are ready. False if none was, and none is in progress."""
        picked = self.pick(self.ready())
        self._resume_in_threads(self.claim(picked))
        with self._changed.lock:
            # A run in progress may queue others, or become ready again, so the last one has to end first.
            return bool(picked or self._picker.run_ids)

    def look_now(self, schedules_changed: bool = False) -> None:
        """Look at the store now. A loop without room for more works off its backlog first."""
        if schedules_changed:
            self._schedules.list_soon()
        with self._changed.lock:
            if self._picker.room > 0 or not self._backlog:
                self._next_look = 0.0
                self._changed.notify()

    def start_listener(self) -> None:
        """Look at once after each change that the store notifies of, in a thread that ends when the loop does."""
        store = self._store
        if store.abilities.notifies and provides(store, Notifying):
            start_thread(self._listen, "limpet-listener", store)

    def _listen(self, store: Notifying) -> None:
        while not self._resumer.stopping:
            try:
                # With a timeout, so that the thread ends soon after the supervisor was stopped.
                if store.wait_for_change(self._options.poll):
                    self.look_now()
                    # The runs of this supervisor are changes, too: without the pause each of them would cause a look.
                    sleep(NOTICE_PAUSE)
            except Exception as problem:
                log().warning("couldn't listen for changes: %s; will try again", problem)
                self._changed.wait_for(lambda: self._resumer.stopping, self._options.poll)

    def claim_next(self) -> list[RunHead] | None:
        """Look for runs, pick some and claim them; returns those to resume. None if the store is unavailable."""
        ready = self.look()
        if ready is None:
            return None
        try:
            return self.claim(self.pick(ready))
        except Exception as problem:
            log().warning("couldn't claim runs: %s; will try again", problem)
            return None

    def look(self) -> list[RunHead] | None:
        """`ready()`, or None if the store is unavailable, which is logged."""
        try:
            return self.ready()
        except Exception as problem:
            log().warning("couldn't look for runs: %s; will try again", problem)
            return None

    def ready(self) -> list[RunHead]:
        """Runs that are ready, more than there is room for: the backlog, or another look at the store."""
        graphs = self._catalog.names
        self._stranded.look()
        # Before the store is asked: the runs that they start are ready.
        if monotonic() >= min(self._next_look, self._schedules.wake_up):
            self._schedules.look()
        may_have_room = monotonic() >= min(self._next_look, self._admission.wake_up)
        if may_have_room:
            self._admission.look()
        with self._changed.lock:
            room = self._picker.room
            now = monotonic()
            if self._backlog and not may_have_room:
                return self._backlog
            self._next_look = now + self._options.poll
            suspect = self._resumer.suspects.chosen
            if room <= 0 or not graphs:
                # Without room there is no need to ask. There may be runs in the store, so look once a run ends.
                self._store_has_more = bool(graphs)
                return self._backlog
            in_progress = self._picker.run_ids
        if suspect is not None and (suspect.run_id in in_progress or not self._end_turn_if_taken(suspect)):
            return self._backlog
        self._report_quarantined()
        # The runs in progress were noted before the store is asked: a run that ends meanwhile is still excluded, as
        # what the store lists of it may be out of date.
        excluded = self._resumer.skipped.run_ids().union(
            in_progress, self._resumer.suspects.waiting, self._admission.passed_over
        )
        # Ask for more than there is room for: the rest is the backlog, and saves looks while runs are short.
        limit = room + self._options.concurrency + len(excluded)
        orphans = self._resumer.orphans.find(excluded)
        served = [head for head in orphans if self._served.serves(head.lane)]
        # Before the store is asked: what helps these runs makes others ready.
        self._stranded.help([head for head in orphans if head not in served])
        found = self._ready_runs.find(limit, self._admission.is_open)
        self._store_has_more = found.has_more
        lanes_of_orphans = {head.lane for head in served}
        in_line = [lane for lane in self._admission.lanes_in_line if lane not in lanes_of_orphans]
        self._admission.leave_lines(self._ready_runs.without_runs(in_line, found))
        return served + [head for head in found.heads if head.run_id not in excluded]

    def _leave_lines(self) -> None:
        """Have all lanes leave the lines of limits: no run is claimed here for now."""
        self._admission.leave_lines(self._admission.lanes_in_line)

    def pick(self, ready: list[RunHead]) -> list[RunHead]:
        """The runs to resume now, which have slots of their limits; the others are the new backlog."""
        admitted: list[RunHead] = []
        while picked := self._pick_next(ready):
            try:
                found = self._admission.admit(picked)
            except BaseException:
                self._resumer.give_up({head.run_id: head for head in (*admitted, *picked)}.values())
                raise
            admitted += found
            if len(found) == len(picked):
                break
            refused = [head for head in picked if head not in found]
            for head in refused:
                self._resumer.ended(head, None)
            # Others can have their room. But none of the same lane: those are looked for again together, in order. A
            # slot that is released meanwhile would go to one that is behind those that were refused. What another
            # worker is about to claim is ahead of none.
            ahead = [head for head in refused if head.run_id not in self._admission.passed_over]
            with self._changed.lock:
                self._backlog = [head for head in self._backlog if not is_behind(head, ahead)]
            ready = self._backlog
        return admitted

    def _pick_next(self, ready: list[RunHead]) -> list[RunHead]:
        """The runs to resume next, which count as in progress at once; the others are the new backlog."""
        with self._changed.lock:
            if self._resumer.stopping:
                return []
            others = [
                each for each in self._resumer.suspects.others(ready) if self._admission.may_admit(each)
            ]
            suspect = self._resumer.suspects.choose(monotonic(), bool(others or self._picker.run_ids))
            if suspect is None:
                picked = self._picker.pick(others)
            elif self._picker.run_ids:
                picked = []
            else:
                picked = [suspect]
            for head in picked:
                self._picker.started(head.run_id, head.graph)
            picked_ids = {head.run_id for head in picked}
            self._backlog = [head for head in others if head.run_id not in picked_ids]
            # The runs that leave for a suspect are resumed after it.
            self._store_has_more = self._store_has_more or suspect is not None
        if suspect is not None:
            self._resumer.make_room()
        return picked

    def claim(self, picked: list[RunHead]) -> list[RunHead]:
        """Claim runs that were picked; returns those to resume. The others make room for more at once.

        If other workers were faster, what is left of the list is likely theirs, too. So the store is asked again:
        soon, but not by all of them at the same moment.
        """
        claimed = self._resumer.claim(picked)
        with self._changed.lock:
            if len(claimed) * 2 >= len(picked):
                self._misses = 0
            else:
                self._misses += 1
                self._backlog = []
                self._store_has_more = False
                longest = min(FIRST_MISS_PAUSE * 2**self._misses, self._options.poll)
                self._next_look = monotonic() + random() * longest
        return claimed

    def _resume_in_threads(self, claimed: list[RunHead]) -> None:
        for head in claimed:
            self._threads.do(partial(self._resumer.resume, head))

    def _resume_in_tasks(self, claimed: list[RunHead], executor: Executor) -> None:
        import asyncio

        for head in claimed:
            task = asyncio.create_task(self._resumer.aresume(head, executor), name=f"limpet {head.run_id}")
            # The event loop refers to its tasks weakly: without this set a task could be collected while it runs.
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _wait(self, pause: float | None = None) -> None:
        """Wait until it is time to look again, or until there is room for a run that waits.

        With a `pause` the store is unavailable: wait that long, even if there is room.
        """
        with self._changed.lock:
            end = min(self._next_look, self._schedules.wake_up, self._admission.wake_up)
            if pause is not None:
                end = self._next_look = monotonic() + pause
            seconds = max(0.0, end - monotonic())
        self._changed.wait_for(
            lambda: self._resumer.stopping or not self._next_look or (pause is None and self._has_next()),
            seconds,
        )

    def _has_next(self) -> bool:
        """Whether there is room for a run of the backlog, for one that may be in the store, or for a suspect."""
        suspects = self._resumer.suspects
        is_idle = not self._picker.run_ids
        if suspects.chosen is not None:
            return is_idle
        if is_idle and suspects.waiting and not self._backlog:
            return True
        if self._store_has_more and not self._backlog:
            return self._picker.room > 0
        return any(self._picker.room_for(graph) > 0 for graph in {head.graph for head in self._backlog})

    def _end_turn_if_taken(self, suspect: RunHead) -> bool:
        """Wait no longer until a suspect can execute here, if another process has resumed it; says whether."""
        try:
            head = self._store.head(suspect.run_id)
            is_taken = head.holder is not None or head.due is None
        except RunNotFound:
            is_taken = True
        if is_taken:
            with self._changed.lock:
                self._resumer.suspects.end_turn(suspect.run_id, monotonic())
        return is_taken

    def _report_quarantined(self) -> None:
        """Log, now and then, which runs were quarantined."""
        if self._next_report > monotonic():
            return
        self._next_report = monotonic() + REPORT_INTERVAL
        failed = RunFilter(statuses=(FAILED,), limit=MAX_LISTED)
        for head, problem in list_all(self._store, failed):
            if head.run_id not in self._reported and problem is None and is_quarantined(head):
                self._reported.add(head.run_id)
                log().warning("run %s of %s is quarantined: resume it to retry it", head.run_id, head.graph)
