"""A session: one run, opened in this process, ready to be driven.

Opening is where runs differ: a new one is created, a stored one is claimed and rebuilt, a checkpoint of a
user's own store is recalled. What comes out is the same, and the same loop goes on from it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import suppress
from threading import Lock
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.engine.accounts import summary
from holdfast.engine.changes import Changes
from holdfast.engine.commands import Command, Verdict
from holdfast.engine.core import BESIDE, Core
from holdfast.engine.environment import environment
from holdfast.engine.given import Given
from holdfast.engine.handover import hand_over, take_back
from holdfast.engine.holder import this_process
from holdfast.engine.link import Held, Link, Stop, in_words
from holdfast.engine.task import Guard, Scope
from holdfast.engine.ways import plan_inside, update_inside
from holdfast.errors import (
    AlreadyCompleted,
    Conflict,
    DefinitionError,
    RunNotFound,
    StoreError,
    UsageError,
)
from holdfast.graphs.plan import Plan
from holdfast.graphs.state import State
from holdfast.journal.codec import decode, encode
from holdfast.journal.copies import detached_value
from holdfast.journal.envelope import Seal
from holdfast.journal.ledger import Ledger, weigh
from holdfast.journal.progress import Progress
from holdfast.journal.reading import read_progress
from holdfast.journal.store import (
    CANCELLED,
    COMPLETED,
    FAILED,
    PAUSED,
    RUNNING,
    Commit,
    NewRun,
    RunHead,
    Signalled,
)
from holdfast.observe import events
from holdfast.observe.hub import Emit
from holdfast.stores.checkpointer import Checkpointer

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from logging import Logger


class Compiled(NamedTuple):
    """A plan and all that a run of it needs: where it is saved, how often, who watches."""

    plan: Plan
    link: Link | None
    interval: int
    preserve: bool
    emit: Emit | None
    checkpointer: Checkpointer | None = None
    executor: Executor | None = None
    max_concurrency: int = BESIDE

    def need_link(self, what: str) -> Link:
        """The link to the store. Raises `UsageError` if the graph has none."""
        if self.link is None:
            raise UsageError(f"{what} needs a store, and graph {self.plan.name!r} has none: compile(store=…)")
        return self.link


class Session:
    """One run in this process: the loop, the lease it works under, and the flag that stops it."""

    def __init__(
        self,
        compiled: Compiled,
        progress: Progress,
        ledger: Ledger | None,
        held: Held | None,
        *,
        stream: bool,
        resumed: bool,
    ) -> None:
        way_out = f"resume({progress.run_id!r}) tries it again" if ledger is not None else ""
        self.compiled, self.progress, self.ledger, self.held = compiled, progress, ledger, held
        self.stop = held.stop if held is not None else Stop()
        self.guard = Guard(Lock())
        self.core = Core(
            compiled.plan, progress, ledger, clock=time, chance=_chance, emit=compiled.emit,
            interval=compiled.interval, preserve=compiled.preserve, stream=stream, way_out=way_out,
            resumed=resumed, keep=self._keep if ledger is not None else None, guard=self.guard,
            limit=compiled.max_concurrency, alone=compiled.executor is None,
        )  # fmt: skip

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.progress.run_id

    def loop(self) -> Generator[Command, Any, Verdict]:
        """The loop, to be driven."""
        return self.core.run()

    def stopped(self, commit: Commit) -> Signalled | None:
        """The answer to a commit that would go on although this process asked the run to stop."""
        return Signalled(commit.run_id, "cancel") if commit.heed else None

    def write(self, commit: Commit) -> Exception | None:
        """Carry out a commit, and have the ledger know. Returns why it was refused, or None."""
        assert self.compiled.link is not None
        refusal = self.compiled.link.commit(commit)
        if refusal is None:
            self.written(commit)
        return refusal

    def written(self, commit: Commit) -> None:
        """A commit is durable."""
        assert self.ledger is not None
        self.ledger.acknowledged(commit)

    def settle(self, commit: Commit, refusal: Exception | None) -> Exception | str | None:
        """What the loop is told about a commit: the reference, where a checkpointer keeps the run."""
        if refusal is not None or commit.status is None or commit.status == RUNNING:
            return in_words(refusal) if isinstance(refusal, Conflict) else refusal
        if self.held is not None and self.compiled.link is not None:
            self.compiled.link.let_go(self.held)
            self.held = None
        if self.compiled.checkpointer is None or commit.status not in (PAUSED, FAILED, CANCELLED):
            return None
        try:
            return hand_over(self.compiled.checkpointer, self.progress)
        except Exception as problem:
            return problem

    def close(self) -> None:
        """Give the lease back if it is still held. What was saved can be resumed by anybody."""
        held, self.held = self.held, None
        if held is None or self.compiled.link is None:
            return
        try:
            self.compiled.link.release(held)
        except StoreError as problem:
            _log().warning("run %s: couldn't give its lease back, so it has to run out: %s", self.id, problem)

    def _keep(self, scope: Scope, key: str, value: Any) -> None:
        ledger = self.ledger
        assert ledger is not None
        ledger.memo(self.progress, scope.path, key, value, time())
        refusal = self.write(ledger.commit(heed=None))
        if refusal is not None:
            raise refusal


def _log() -> Logger:
    from logging import getLogger

    return getLogger("holdfast.run")


def _chance() -> float:
    from random import random

    return random()


def start(
    compiled: Compiled,
    given: Any,
    config: Mapping[str, Any] | None,
    run_id: str,
    tags: tuple[str, ...],
    stream: bool,
) -> Session:
    """Open a new run. Raises `RunExists`, `UnstorableValue`, `UsageError`."""
    plan, link = compiled.plan, compiled.link
    progress = Progress(
        run_id, plan.name, plan.fingerprint, plan.entry, detached_value(plan.schema.initial(given)),
        at=time(), config=dict(config or {}),
    )  # fmt: skip
    ledger, held = None, None
    if link is not None:
        encode(progress.config, "config")
        progress.meta = {**environment(), "tags": list(tags)}
        held = link.create(new_run(progress, tags, this_process(), link.ttl))
        ledger = Ledger(run_id, held.lease.fence, 1)
    if compiled.emit is not None:
        compiled.emit(events.GRAPH_START, plan.name, {"run_id": run_id, "entry": plan.entry})
    return Session(compiled, progress, ledger, held, stream=stream, resumed=False)


def resume(
    compiled: Compiled, run_id: str, given: Given, wait: float | None, stream: bool, step: int | None = None
) -> Session:
    """Open a stored run where it stands, with what `given` brings, which is durable before this returns.

    `step` says where the caller believes the run to be. Raises `RunNotFound`, `AlreadyCompleted`,
    `Conflict`, `AnswerRefused`, `RunPaused` for a question left open, `DamagedRecord`, `UsageError`.
    """
    link = compiled.need_link("resume")
    _refuse_completed(link.head(run_id))
    held = link.claim(run_id, wait)
    try:
        progress, ledger, signalled = _reopen(compiled, link, held, step)
        _bring_in(compiled, progress, ledger, given, signalled)
        session = Session(compiled, progress, ledger, held, stream=stream, resumed=True)
    except BaseException:
        link.release(held)
        raise
    if compiled.emit is not None:
        data = {"run_id": run_id, "node": progress.made_by}
        compiled.emit(events.CHECKPOINT_LOAD, compiled.plan.name, data)
    return session


def recall(compiled: Compiled, reference: str, given: Given, stream: bool) -> Session:
    """Open the run that a checkpoint's reference leads to. Raises what `resume` does."""
    if compiled.checkpointer is None:
        run_id, _, step = reference.rpartition("@")
        if not run_id or not step.isdigit():
            raise UsageError(f"{reference!r} is no checkpoint: that is a run id, '@' and a step")
        return resume(compiled, run_id, given, None, stream, int(step))
    progress = take_back(compiled.checkpointer, reference, compiled.plan)
    check_fits(compiled.plan, progress)
    link = compiled.need_link("invoke(checkpoint=…)")
    with suppress(RunNotFound):
        link.store.delete(progress.run_id)
    progress.crashes = 0
    link.store.create(new_run(progress, (), None, link.ttl))
    return resume(compiled, progress.run_id, given, None, stream)


def run_of(reference: Any) -> str:
    """The run that a reference speaks of, as far as it tells."""
    if not isinstance(reference, str):
        raise UsageError(f"a checkpoint is given by its reference, a str, not {type(reference).__name__}")
    return reference.rpartition("@")[0] or reference


def new_run(progress: Progress, tags: tuple[str, ...], holder: str | None, ttl: float) -> NewRun:
    """The run that begins with this progress, as a store takes it."""
    first = Seal(progress.run_id).close(1, progress.snapshot_record())
    return NewRun(
        progress.run_id,
        progress.graph,
        [first],
        progress.status,
        holder,
        ttl,
        tags,
        progress.parent,
        b"" if progress.status == RUNNING else summary(progress),
    )


def check_id(run_id: Any) -> str:
    """A run id as it may be: a str of 1 to 200 printable characters. Raises `UsageError`."""
    if not isinstance(run_id, str) or not 0 < len(run_id) <= 200 or not run_id.isprintable():
        raise UsageError(f"a run id is a str of 1 to 200 printable characters, not {run_id!r}")
    return run_id


def _reopen(compiled: Compiled, link: Link, held: Held, step: int | None) -> tuple[Progress, Ledger, bool]:
    """The run's progress, the ledger to go on with, and whether a signal waits that nobody has heeded."""
    tail = link.store.read(held.lease.run_id)
    _refuse_completed(tail.head)
    progress = read_progress(tail)
    check_fits(compiled.plan, progress)
    if step is not None and step != progress.step:
        raise Conflict(
            progress.run_id,
            f"step {step} is not its newest any more, that is {progress.step}; "
            f"fork({progress.run_id!r}, step={step}) goes on from there beside the run",
        )
    progress.lost(held.lease.crashes)
    weight = weigh(tail.records[1:])
    ledger = Ledger(progress.run_id, held.lease.fence, tail.head.sequence, weight)
    return progress, ledger, tail.head.signal is not None


def _refuse_completed(head: RunHead) -> None:
    if head.status == COMPLETED:
        kept = "fork() it to go on from one of its steps"
        kept = kept if head.snapshot else "its journal went with that; compile(preserve=True) keeps it"
        message = f"run {head.run_id!r} is complete; {kept}"
        raise AlreadyCompleted(message, head.run_id)


def check_fits(plan: Plan, progress: Progress) -> None:
    """Raise unless this plan can go on from this progress: the same graph, and the nodes are still there."""
    if progress.graph != plan.name:
        raise UsageError(f"run {progress.run_id!r} belongs to graph {progress.graph!r}, not to {plan.name!r}")
    missing = _missing(plan, progress, "")
    if missing:
        way_out = "put it back, or rollback() to an earlier step"
        raise DefinitionError(f"run {progress.run_id!r} stands {missing}; {way_out}", plan.name)
    if progress.fingerprint != plan.fingerprint:
        _log().warning("graph %s has changed since run %s was saved with it", plan.name, progress.run_id)


def _missing(plan: Plan, progress: Progress, way: str) -> str:
    """Where a run, or one of its branches, stands that isn't there any more, in words; empty if all is there."""
    if progress.done:
        return ""
    if progress.node not in plan.nodes:
        return f"at node {way + progress.node!r}, which is no longer in the graph"
    section = progress.section
    if section is None:
        return ""
    try:
        inner, _ = plan_inside(plan, section)
    except LookupError:
        return f"in branches that node {way + section.source!r} doesn't open any more"
    for key, child in section.children.items():
        missing = _missing(inner, child, f"{way}{section.label(key)}/")
        if missing:
            return missing
    return ""


def _bring_in(compiled: Compiled, progress: Progress, ledger: Ledger, given: Given, signalled: bool) -> None:
    """Make a resume durable: from now on the run is running again, with what it was given.

    A request to cancel that its holder didn't live to heed is over: resuming is the newer wish.
    """
    answers, update = given.answers_to(progress), given.update_for(progress)
    encode(answers, "answers")
    encode(dict(given.config or {}), "config")
    failed = any(branch.status == FAILED for _, branch in progress.stops())
    if progress.status == RUNNING and not (answers or update or given.config or signalled or failed):
        return
    changes: dict[str, Any] = {"meta": {**progress.meta, **environment()}}
    changes["fingerprint"] = compiled.plan.fingerprint
    if given.config:
        changes["config"] = {**progress.config, **given.config}
    link, at = compiled.need_link("resume"), time()
    ledger.move(progress, {**changes, "going_on": answers}, at)
    if update:
        ledger.note(progress.move_record({}, at, merge_update(compiled.plan, update, progress)))
        for path, branch in list(progress.under_way()):
            delta = merge_update(*update_inside(compiled.plan, progress, path, update), branch)
            ledger.put(progress, path, at, branch.move_record({}, at, delta))
    commit = ledger.commit(RUNNING, summary(progress), heed=False)
    refusal = link.commit(commit)
    if refusal is not None:
        raise refusal
    ledger.acknowledged(commit)


def merge_update(plan: Plan, update: Mapping[str, Any], progress: Progress) -> bytes:
    """Change the state as if a node had returned `update`; returns the delta. Raises `UnstorableValue`."""
    changes = Changes(State(progress.state), plan.schema.reducers, durable=True, base=progress.state)
    delta = changes.collect(changes.private(tracked=False), dict(update))
    progress.change(decode(delta))
    return delta
