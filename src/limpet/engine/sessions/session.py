"""A session: one run, opened in this process, ready to be driven; and what all runs of a graph have in common."""

from __future__ import annotations

from collections.abc import Callable, Generator
from threading import Event, Lock
from time import sleep, time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from limpet.defaults import MAX_CONCURRENCY
from limpet.engine.leases.lease_client import HeldLease, LeaseClient, StopRequest, with_holder_described
from limpet.engine.loop.commands import Command, Verdict
from limpet.engine.loop.run_context import Clocks, Limits, Reporting, RunContext, Saving
from limpet.engine.loop.run_lifecycle import RunLifecycle
from limpet.engine.node_context.questions import CallAbandoned
from limpet.engine.node_context.scope import JournalLock, Scope
from limpet.engine.sessions.step_retention import LARGE_CHECKPOINT, BackgroundCleanup, StepRetention
from limpet.engine.sessions.user_checkpointer import save_checkpoint
from limpet.errors import (
    Conflict,
    StoreError,
    StoreUnavailable,
    TooLarge,
    UsageError,
)
from limpet.graphs.plan import Plan
from limpet.graphs.secrets import SecretMasker
from limpet.journal.progress import Progress
from limpet.journal.store import (
    CANCELLED,
    FAILED,
    PAUSED,
    RUNNING,
    Commit,
    OnSignal,
    Signalled,
)
from limpet.journal.writer import JournalWriter, summary
from limpet.observe.hub import Emit
from limpet.stores.user_stores.checkpointer import Checkpointer

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from logging import Logger


A_GLANCE = 0.02
"""Seconds for which nodes that run are waited for before a look at a clock which doesn't go by itself."""
OnSaveError = Literal["fail", "continue", "wait"]

SOONEST = 0.05
OFTEN, A_WHILE = 16, 1.0
"""After so many failures in a row, a save is tried again after so many seconds, where a run goes on without."""


class CompiledGraph(NamedTuple):
    """A plan and all that a run of it needs: where it is saved, how often, who watches."""

    plan: Plan
    client: LeaseClient | None
    interval: int
    preserve: bool
    emit: Emit | None
    checkpointer: Checkpointer | None = None
    scratch_store: bool = False
    """Whether the store is only for the time until a checkpointer gets the run, so that its runs may be replaced."""
    executor: Executor | None = None
    max_concurrency: int = MAX_CONCURRENCY
    on_save_error: OnSaveError = "fail"
    """Whether a run that can't be saved fails, continues unsaved, or waits until the store can be reached."""
    keep: int | None = None
    """How many of a run's newest checkpoints are kept; None keeps all."""
    cleanup: BackgroundCleanup | None = None
    """Deletes expired runs of this graph."""
    has_secrets: bool = False
    """Whether anything in the plan is secret."""
    stores_plain_text: bool = False
    """Whether what is secret would be stored for all to read, which nobody has allowed."""

    @property
    def settings(self) -> dict[str, Any]:
        """How runs are executed, as data to be stored with them."""
        return {
            "max_concurrency": self.max_concurrency,
            "preserve": self.preserve,
            "on_save_error": self.on_save_error,
            "keep": self.keep,
        }

    def need_client(self, what: str) -> LeaseClient:
        """The link to the store. Raises `UsageError` if the graph has none."""
        if self.client is None:
            kind = "graph" if self.plan.layers is None else "workflow"
            raise UsageError(
                f"{what} needs a store, and {kind} {self.plan.name!r} has none: compile(store=…)"
            )
        return self.client


class Session:
    """One run in this process: the loop, the lease it works under, and the flag that stops it."""

    def __init__(
        self,
        compiled: CompiledGraph,
        progress: Progress,
        writer: JournalWriter | None,
        held: HeldLease | None,
        *,
        stream: bool,
        resumed: bool,
        whole: int = 1,
        patience: float | None = None,
        losses: int = 0,
    ) -> None:
        self.compiled, self.progress, self.writer, self.held = compiled, progress, writer, held
        self.stop = held.stop if held is not None else StopRequest()
        self.journal_lock = JournalLock(Lock())
        self.failures, self.tried = 0, 0.0
        self._losses, self._opened_at = losses, 0 if writer is None else writer.sequence
        watched = writer is not None and (compiled.keep is not None or compiled.plan.layers is not None)
        self.retention = StepRetention(compiled.keep, whole) if watched else None
        self.core = RunLifecycle(compiled.plan, self._run_context(stream, resumed, patience))

    def _run_context(self, stream: bool, resumed: bool, patience: float | None) -> RunContext:
        """What the loop gets from outside, made once for all loops of the run."""
        compiled = self.compiled
        progress = self.progress
        saving = Saving(
            writer=self.writer,
            interval=compiled.interval,
            preserve=compiled.preserve or bool(progress.meta.get("queued")),
            tolerant=compiled.on_save_error == "continue",
            keep_result=None if self.writer is None else self._keep,
            on_checkpoint=None if self.retention is None else self._mark,
        )
        masker = SecretMasker(compiled.plan.secrets, compiled.has_secrets, compiled.stores_plain_text)
        limits = Limits(
            max_concurrency=compiled.max_concurrency,
            call_single_node_inline=compiled.executor is None,
            max_wait=patience,
            is_handover=lambda: self.stop.leaving,
        )
        return RunContext(
            progress,
            Clocks(now=time, store=time if self.held is None else self.held.now, random=_chance),
            saving,
            Reporting(masker, compiled.emit, stream, resumed),
            limits,
            self.journal_lock,
        )

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.progress.run_id

    @property
    def degraded(self) -> bool:
        """Whether the run continues although its last save failed."""
        return self.core.context.save_error is not None

    @property
    def wait(self) -> Callable[[float, Event], object] | None:
        """How to let time pass by the store's clock, where that isn't done by just waiting."""
        return None if self.compiled.client is None else self.compiled.client.wait

    def at_most(self, seconds: float | None) -> float | None:
        """For how long to wait for nodes that run, where somebody else sleeps for so many seconds."""
        return seconds if seconds is None or self.wait is None else min(seconds, A_GLANCE)

    @property
    def losses(self) -> int:
        """How many processes in a row were lost with this run before it came any further; 0 once it has."""
        return self._losses if self.writer is not None and self.writer.sequence == self._opened_at else 0

    def loop(self) -> Generator[Command, Any, Verdict]:
        """The loop, to be driven."""
        return self.core.run()

    def stopped(self, commit: Commit) -> Signalled | None:
        """The answer to a commit that would go on although this process asked the run to stop.

        One that stops the run by itself isn't in the way of leaving it.
        """
        if commit.on_signal is not OnSignal.REFUSE or (self.stop.leaving and commit.status is not None):
            return None
        return Signalled(commit.run_id, "cancel")

    def write(self, commit: Commit) -> Exception | None:
        """Carry out a commit, and have the ledger know. Returns why it was refused, or None."""
        assert self.compiled.client is not None
        if self.failures and (rest := self.resting(commit)) is not None:
            return rest
        refusal = self.compiled.client.commit(commit)
        if refusal is None:
            self.written(commit)
        elif self.compiled.on_save_error == "continue":
            return self.reconsidered(commit, refusal)
        elif self.compiled.on_save_error == "wait":
            return self.persist(commit, refusal)
        return refusal

    def persist(self, commit: Commit, refusal: Exception | None) -> Exception | None:
        """Try a save again until the store can be reached, or the run is asked to stop."""
        client, pause = self.compiled.need_client("save"), SOONEST
        while (
            isinstance(refusal, StoreUnavailable)
            and not isinstance(refusal, TooLarge)
            and not self.stop.asked
        ):
            if not self.failures:
                log().warning("run %s waits for its store: %s", self.id, refusal)
            self.failures += 1
            sleep(pause)
            pause = min(pause * 2, A_WHILE)
            refusal = client.commit(commit)
            if refusal is None:
                self.written(commit)
        if isinstance(refusal, Conflict):
            refusal = self.reconsidered(commit, refusal)
        self.failures = 0
        return refusal

    def resting(self, commit: Commit) -> Exception | None:
        """Why nothing is saved now: it was tried often, and just before. Where a run stops it is always tried."""
        if self.failures <= OFTEN or commit.status is not None or time() - self.tried > A_WHILE:
            return None
        return self.core.context.save_error

    def reconsidered(self, commit: Commit, refusal: Exception) -> Exception | None:
        """A refusal, where a run goes on all the same: it may be that an earlier save was taken after all.

        Nobody knows that of one that failed. If its records are what the store has, the rest is saved after them.
        """
        writer, client = self.writer, self.compiled.client
        assert writer is not None
        assert client is not None
        if not isinstance(refusal, Conflict):
            self.failures, self.tried = self.failures + 1, time()
            return refusal
        try:
            found = client.store.read(commit.run_id, first=commit.expected + 1) if self.failures else None
        except Exception:
            return refusal
        count = len(found.records) if found is not None and found.head.fence == commit.fence else 0
        if found is None or not count or found.records != commit.records[:count]:
            return refusal
        self.failures = 0
        writer.taken(count)
        # What was taken may have been a stop, of which nobody was told: the head is to say what is so now.
        status, note = commit.status or RUNNING, commit.note or summary(self.progress)
        due = commit.due if commit.status else 0.0
        return self.write(writer.commit(status, note, commit.purge, commit.on_signal, due))

    def written(self, commit: Commit) -> None:
        """A commit is durable, and so is all that couldn't be saved before it."""
        assert self.writer is not None
        self.writer.acknowledged(commit)
        if self.compiled.on_save_error == "continue":
            self.core.context.save_error = None
            self.failures = 0
        if self.retention is not None:
            self.retention.add_commit(commit)

    def settle(self, commit: Commit, refusal: Exception | None) -> Exception | str | None:
        """What the loop is told about a commit: the reference, where a checkpointer keeps the run."""
        if refusal is not None or commit.status is None or commit.status == RUNNING:
            return with_holder_described(refusal) if isinstance(refusal, Conflict) else refusal
        if self.held is not None and self.compiled.client is not None:
            self.compiled.client.stop_renewing(self.held)
            self.held = None
            if self.compiled.cleanup is not None:
                self.compiled.cleanup.start_if_due(self.compiled.client)
        if self.compiled.checkpointer is None or commit.status not in (PAUSED, FAILED, CANCELLED):
            return None
        try:
            return save_checkpoint(self.compiled.checkpointer, self.progress, self.core.joined_results())
        except Exception as problem:
            return problem

    def close(self) -> None:
        """Give the lease back if it is still held. What was saved can be resumed by anybody."""
        held, self.held = self.held, None
        if held is None or self.compiled.client is None:
            return
        try:
            self.compiled.client.release(held)
        except StoreError as problem:
            log().warning("run %s: couldn't give its lease back, so it has to run out: %s", self.id, problem)

    def _mark(self) -> None:
        """A checkpoint is durable: have older ones go that are no longer to be kept, without waiting for that."""
        retention, writer, client = self.retention, self.writer, self.compiled.need_client("keep")
        assert retention is not None
        assert writer is not None
        added, before = retention.add_checkpoint(writer.sequence)
        if added > LARGE_CHECKPOINT:
            where, kilobytes = f"run {self.id}, step {self.progress.step}", added // 1000
            log().warning("%s: its checkpoint is large, it added %d KB to the journal", where, kilobytes)
        if before:
            client.prune_later(self.id, before)

    def _keep(self, scope: Scope, key: str, value: Any) -> None:
        writer = self.writer
        assert writer is not None
        writer.memo(self.progress, scope.path, key, value, time())
        refusal = self.write(writer.commit(on_signal=OnSignal.IGNORE))
        if refusal is not None and not self.core.context.tolerates(refusal):
            if self.stop.asked and isinstance(refusal, StoreUnavailable):
                raise CallAbandoned  # it was waited for, and would be still
            raise refusal
        self.core.context.save_error = refusal


def log() -> Logger:
    """The log of what happens to runs."""
    from logging import getLogger

    return getLogger("limpet.run")


def _chance() -> float:
    from random import random

    return random()
