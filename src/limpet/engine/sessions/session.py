"""A session: one run, opened in this process, ready to be driven.

It stands between the node loop, which only decides, and the store. The drivers pass the loop's commits to it; it
writes them, deals with a store that can't be reached, and releases the lease when the run stops.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from functools import partial
from math import inf
from threading import Event, Lock
from time import time
from typing import TYPE_CHECKING, Any

from limpet.engine.leases.held_lease import (
    DEADLINE_CHECK_INTERVAL,
    DeadlineWatch,
    HeldLease,
    StopRequest,
    renewals,
)
from limpet.engine.leases.lease_client import HeldRun
from limpet.engine.leases.process_identity import with_holder_described
from limpet.engine.loop.driver_commands import Command, PostsArrived, StopAsked, Verdict
from limpet.engine.loop.run_context import Clocks, Limits, Reporting, RunContext, Saving
from limpet.engine.loop.run_lifecycle import RunLifecycle
from limpet.engine.node_context.call_scope import JournalLock
from limpet.engine.sessions.compiled_graph import CompiledGraph, SessionOptions
from limpet.engine.sessions.node_saves import keep_result, take_letter
from limpet.engine.sessions.step_retention import RunPruning, prune_completed, report_undeleted
from limpet.engine.sessions.trials import accuse
from limpet.engine.sessions.user_checkpointer import save_checkpoint
from limpet.errors import Conflict, StoreError, UsageError
from limpet.graphs.habits.langgraph import refuse_thread_id
from limpet.graphs.secrets import SecretMasker, text_of_values
from limpet.journal.progress import Progress
from limpet.journal.store import CANCELLED, COMPLETED, ENDED, FAILED, PAUSED, RUNNING, Commit
from limpet.journal.writer import JournalWriter
from limpet.observe.hub import Emit, both

if TYPE_CHECKING:
    from logging import Logger

    from limpet.engine.drivers.child_runs import SessionChildren
    from limpet.engine.drivers.node_slots import NodeSlots
    from limpet.engine.leases.run_output import LiveEvents, RunOutput
    from limpet.engine.sessions.failed_saves import FailedSaves

FAKE_CLOCK_CHECK_INTERVAL = 0.02
"""Seconds between two looks at a clock that only tests turn, while nodes run."""

_children_lock = Lock()

LONGEST_WAIT = 86400.0
"""Seconds after which a run that waits looks at the clock again: no system waits for any length of time at once."""


class Session:
    """One run in this process: its node loop, the lease it runs under, and the request to stop it."""

    def __init__(
        self,
        compiled: CompiledGraph,
        progress: Progress,
        writer: JournalWriter | None,
        held: HeldLease | None,
        options: SessionOptions,
    ) -> None:
        self.compiled = compiled
        self.progress = progress
        self.writer = writer
        self.held = held
        self.stop = StopRequest()
        if held is not None:
            self.stop = held.stop
            held.graph = compiled.plan.name
        self.stop.has_deadline = progress.deadline is not None
        self.journal_lock = JournalLock(threads=True)
        self._options = options
        self.stretch = options.stretch  # its span in this process; None if it isn't traced
        self._crashed = False
        self.on_trial = options.on_trial
        self.on_progress: Callable[[], object] | None = None
        """What is called, once, when a commit is durable: then a trial is over."""
        self.failed_saves: FailedSaves | None = None  # the saves that failed
        self._output_lock = Lock()
        self.output: RunOutput | None = None  # what takes the items that nodes emit, once one does
        self.live: LiveEvents | None = None  # what nodes emit, on its way to a caller that gets it
        if options.stream:
            self.pass_on_output()
        self._pruning: RunPruning | None = None
        if writer is not None:
            writer.on_large = self._warn_of_size
            if compiled.keep is not None and compiled.client is not None:
                first = options.first_record if options.resumed else None
                self._pruning = RunPruning(compiled.client, writer, compiled.keep, first)
        self.children: SessionChildren | None = None  # its child runs, once a node has asked for them
        self.make_children: Callable[[Session], SessionChildren] | None = None  # set by its driver
        self.slots: NodeSlots | None = None  # the slots of limits that its calls have, and the run as a whole
        self.on_child_graph: Callable[[Any], None] | None = None
        """Gets the graphs of child runs; a supervisor wants to know them, to execute these runs."""
        self.lifecycle = RunLifecycle(compiled.plan, self._run_context())

    @property
    def is_supervised(self) -> bool:
        """Whether a supervisor resumed it: then supervisors execute its children, too."""
        return self._options.supervised

    @property
    def has_begun(self) -> bool:
        """Whether a process has executed it before."""
        return self._options.has_begun

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.progress.run_id

    @property
    def degraded(self) -> bool:
        """Whether the run continues although its last save failed."""
        return self.lifecycle.context.save_error is not None

    @property
    def clock_wait(self) -> Callable[[float, Event], object] | None:
        """How to wait by the store's clock, if that is one that tests turn; None to just wait."""
        if self.compiled.client is None:
            return None
        return self.compiled.client.clock_wait

    def pass_on_output(self) -> None:
        """Have the caller that iterates the run get what nodes emit. To be called before the run is driven."""
        from limpet.engine.leases.run_output import LiveEvents

        self.live = LiveEvents()

    def limit_wait(self, seconds: float | None) -> float | None:
        """For how long to wait for running nodes, if a branch sleeps for this many seconds meanwhile."""
        if seconds is None:
            return None
        return min(seconds, LONGEST_WAIT if self.clock_wait is None else FAKE_CLOCK_CHECK_INTERVAL)

    def seconds_until(self, until: float) -> float:
        """For how long to wait for a moment by the store's clock, before looking at the clock again."""
        deadline = self.progress.deadline
        if deadline is not None and until < inf:
            # A clock that skips what a run waits for must not skip its deadline.
            until = min(until, deadline)
        seconds = max(0.0, until - self.lifecycle.context.clocks.store())
        return min(seconds, LONGEST_WAIT) if self.clock_wait is None else seconds

    @property
    def may_have_lost_lease(self) -> bool:
        """Whether the lease wasn't renewed for so long that another process may have claimed the run."""
        if self.held is None or self.compiled.client is None:
            return False
        return self.held.now() - self.held.renewed > self.compiled.client.ttl / 2

    def renew_if_late(self) -> None:
        """After a wait: renew the lease if that is late. A run that another process has claimed is asked to stop.

        This process may have been stopped while it waited, together with the thread that renews. If the store can't
        be reached, the next commit finds out.
        """
        if self.may_have_lost_lease and self.held is not None and self.compiled.client is not None:
            try:
                self.compiled.client.renew([self.held])
            except StoreError as problem:
                log().warning("run %s: couldn't renew its lease after a wait: %s", self.id, problem)

    def loop(self) -> Generator[Command, Any, Verdict]:
        """The loop, to be driven. From now on the run fails when its deadline passes."""
        if self.stop.has_deadline:
            self.check_deadline()
            if self.compiled.client is None or self.compiled.client.renews_by_itself:
                renewals.watch(DeadlineWatch(self, self.limit_wait(DEADLINE_CHECK_INTERVAL) or 0.0))
        if self.stretch is None:
            return self.lifecycle.run()
        from limpet.engine.leases.run_span import run_in_stretch

        return run_in_stretch(self, self.stretch)

    def seconds_left(self) -> float:
        """In how many seconds the run's deadline passes."""
        assert self.progress.deadline is not None
        return self.progress.deadline - self.lifecycle.context.clocks.store()

    def check_deadline(self) -> None:
        """Ask the run to stop if its deadline has passed."""
        if self.seconds_left() <= 0:
            self.stop.expire()

    def refuse_if_stopping(self, commit: Commit) -> StopAsked | None:
        """The refusal of a commit after this process asked the run to stop; None for a commit that is still written.

        A commit that ends the run is written. A pause isn't, unless the run is only to be released: then a pause or
        an end is better than a handover.
        """
        if commit.ignores_posts:
            return None
        if commit.status is not None and (self.stop.leaving or commit.status != PAUSED):
            return None
        return StopAsked()

    def has_output_for(self, commit: Commit) -> bool:
        """Whether what nodes emitted is to be written, by `output.flush`, before this commit."""
        return self.output is not None and self.output.flush_before_commit(commit.status is not None)

    def write(self, commit: Commit) -> Exception | None:
        """Write a commit to the store. Returns why it was refused, or None."""
        assert self.compiled.client is not None
        if self.failed_saves is not None and (error := self.failed_saves.skip(commit)) is not None:
            return error
        refusal = None
        if commit.status is not None:
            refusal = self.announce_end(commit)
        if refusal is None:
            save = self.compiled.client.commit
            refusal = save(commit) if (stretch := self.stretch) is None else stretch.measured(save, commit)
        if refusal is None:
            self.acknowledge(commit)
            return None
        return self.handle_refusal(commit, refusal)

    def handle_refusal(self, commit: Commit, refusal: Exception) -> Exception | None:
        """Handle a refused commit as `on_save_error` says. Returns the refusal that remains, or None."""
        if self.failed_saves is None:
            from limpet.engine.sessions.failed_saves import FailedSaves

            self.failed_saves = FailedSaves(self)
        return self.failed_saves.handle(commit, refusal)

    def acknowledge(self, commit: Commit) -> None:
        """A commit is durable, and so is everything that couldn't be saved before it."""
        assert self.writer is not None
        self.writer.acknowledge(len(commit.records))
        if self.on_progress is not None:
            self.on_progress()
            self.on_progress = None
        if self.compiled.on_save_error == "continue":
            self.lifecycle.context.save_error = None
            self.failed_saves = None
        if self._pruning is not None and commit.snapshot:
            self._pruning.snapshot_saved(commit.snapshot)

    def finish_commit(self, commit: Commit, refusal: Exception | None) -> Exception | str | None:
        """What the loop gets for a commit: the refusal, or the reference if a checkpointer keeps the run.

        With the commit of a stop the store has released the lease, so it isn't renewed any longer.
        """
        if isinstance(refusal, Conflict):
            return with_holder_described(refusal)
        if isinstance(refusal, PostsArrived) and refusal.asks_to_cancel:
            # A branch has found out that the run is to be cancelled. That is for the nodes of the others, too.
            self.stop.ask()
        if refusal is not None or commit.status is None or commit.status == RUNNING:
            return refusal
        client = self.compiled.client
        if self.held is not None and client is not None:
            client.stop_renewing(self.held)
            if self.progress.child_of is not None:
                from limpet.engine.leases.child_posts import notice_end

                notice_end(client, self.progress.child_of)
            store_time = self.held.now()
            self.held = None
            if self.compiled.cleanup is not None:
                self.compiled.cleanup.start_if_due(client)
            is_result_all = self.writer is None or self.writer.newest_snapshot <= 1
            if commit.status == COMPLETED and not (commit.purge or self.compiled.preserve or is_result_all):
                prune_completed(client, store_time)
            if commit.purge and (self.output is not None or self._options.resumed):
                self._open_output().delete()
            if commit.purge and not client.store.abilities.keeps_results:
                report_undeleted(client.store, self.progress, self.lifecycle.loop.reporter)
        checkpointer = self.compiled.checkpointer
        if checkpointer is None or commit.status not in (PAUSED, FAILED, CANCELLED):
            return None
        try:
            return save_checkpoint(checkpointer, self.progress, self.lifecycle.joined_results())
        except Exception as problem:
            return problem

    def _children(self) -> SessionChildren:
        with _children_lock:  # nodes may ask in several threads at once
            if self.children is None:
                assert self.make_children is not None, "a driver runs the session, and has set it"
                self.children = self.make_children(self)
            return self.children

    def leave_children(self) -> None:
        """The run is no longer driven here: child runs that this process executes for it are released."""
        if self.children is not None:
            self.children.leave()

    def announce_end(self, commit: Commit) -> Exception | None:
        """Before a commit that ends a child run or cancels a run: see `child_posts.announce_end`."""
        if self.held is not None and self.held.lost:
            return None
        if commit.status == CANCELLED or (self.progress.child_of is not None and commit.status in ENDED):
            from limpet.engine.leases.child_posts import announce_end

            return announce_end(self.compiled.need_client("save"), self.progress, commit)
        return None

    @property
    def _takes_posts(self) -> bool:
        """Whether other processes can reach the run: not if a checkpointer keeps it, and its store is in here."""
        client = self.compiled.client
        if self.writer is None or client is None or self.compiled.scratch_store:
            return False
        return client.store.abilities.takes_part

    def note_interrupt(self, error: BaseException) -> None:
        """An exception comes out of the run: one that would end the process counts as a crash under a supervisor.

        There it doesn't end the process, and the run would be resumed, and the node called, again and again.
        """
        self._crashed = self._options.supervised and not isinstance(error, (Exception, GeneratorExit))

    def driven(self) -> Lock:
        """The lock that a driver holds while it runs the session: only then the lease is renewed."""
        if self.held is None:
            return Lock()
        return self.held.driven()

    def close(self) -> None:
        """Release the lease if it is still held, so that any process can resume the run from what was saved."""
        if self.slots is not None:
            self.slots.close()
        if self.stretch is not None:
            self.stretch.interrupt(self.progress.step, self.stop.leaving)
        held = self.held
        self.held = None
        if held is None or self.compiled.client is None:
            return
        if self.output is not None:
            self.output.flush()
        try:
            if self._crashed:
                accuse(HeldRun(self.compiled.client, held))
            self.compiled.client.release(held, self._crashed)
        except StoreError as problem:
            log().warning(
                "run %s: couldn't release its lease; it will expire by itself: %s", self.id, problem
            )

    def _run_context(self) -> RunContext:
        """What the loop gets from outside, made once for all loops of the run."""
        compiled = self.compiled
        progress = self.progress
        keeps_results = compiled.client is None or compiled.client.store.abilities.keeps_results
        keeps_result = compiled.keep_result or progress.child_of is not None
        saving = Saving(
            writer=self.writer,
            interval=compiled.interval,
            # Because the user wants no result to be kept, or because the store keeps none.
            # That of a child is for its parent.
            purges=not (compiled.preserve or (keeps_result and keeps_results)),
            tolerant=compiled.on_save_error == "continue",
            keep_result=None if self.writer is None else partial(keep_result, self),
            take_letter=partial(take_letter, self) if self._takes_posts else None,
            children=self._children if self._takes_posts else None,
            on_checkpoint=None if self._pruning is None else self._pruning.checkpoint_saved,
        )
        masker = SecretMasker(compiled.plan.secrets, compiled.has_secrets, compiled.stores_plain_text)
        limits = Limits(
            max_concurrency=compiled.max_concurrency,
            call_single_node_inline=compiled.executor is None,
            max_wait=self._options.max_sleep,
            is_handover=lambda: self.stop.leaving,
            is_stopping=lambda: self.stop.asked,
            is_cancelled=lambda: self.stop.cancels,
            is_overdue=lambda: self.stop.is_overdue,
            waits_for_children=lambda: self.children is not None and self.children.executor is not None,
            waits_for_slots=not self.is_supervised,
            needs_admission=bool(compiled.limits) and not self.is_supervised,
            executes_children=lambda: self.children is not None and self.children.is_executing,
            has_posts=self.stop.take_notice,
        )
        return RunContext(
            progress,
            Clocks(now=time, store=time if self.held is None else self.held.now, random=_random),
            saving,
            Reporting(
                masker,
                self._emit(),
                self._options.stream,
                compiled.is_detailed,
                self._options.resumed,
                self._options.repeats_stop,
                self._open_output,
                self._options.stretch,
            ),
            limits,
            self.journal_lock,
        )

    def _open_output(self) -> RunOutput:
        """What takes the items that nodes emit. By the thread of any node."""
        from limpet.engine.leases.run_output import OutputPlace, RunOutput

        with self._output_lock:
            if self.output is None:
                place = None
                if self.writer is not None and self._takes_posts:
                    store = self.compiled.need_client("emit").store
                    place = OutputPlace(store, self.writer.fence, self._options.resumed)
                self.output = RunOutput(self.id, place, self.compiled.emit, self.live)
            return self.output

    def _emit(self) -> Emit | None:
        """Where the events of the run go: to the observers, and to the log if it wants lines of each saved step."""
        if self.compiled.client is None or "logging" not in sys.modules:
            return self.compiled.emit
        from limpet.observe.log import checkpoint_steps

        # Not `self` inside of the function: the context would then refer to the session that refers to it.
        progress = self.progress
        secrets = self.compiled.plan.secrets
        return both(self.compiled.emit, checkpoint_steps(lambda: text_of_values(progress.state, secrets)))

    def _warn_of_size(self, size: int) -> None:
        """The whole state of the run has become large, which makes every restore of it slow."""
        text = "run %s, step %d: its checkpoint is large, %d KB: keep large values outside of the state"
        log().warning(text, self.id, self.progress.step, size // 1000)


def log() -> Logger:
    """The log of what happens to runs."""
    from logging import getLogger

    return getLogger("limpet.run")


def _random() -> float:
    from random import random

    return random()


def config_of(given: Any) -> dict[str, Any]:
    """The `config` that a call was given, as a dict of its own. Raises `UsageError` for what isn't one."""
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"config is a dict of settings that nodes read, not {type(given).__name__}")
    if given:
        refuse_thread_id(given)
    return dict(given or {})
