"""The ways into a run: it is started, resumed, or recalled from a checkpoint of a user's own store.

This is where runs differ: a new one is created, a stored one is claimed and rebuilt. What comes out is a session, and
the same loop goes on from it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from time import time
from typing import TYPE_CHECKING, Any

from holdfast.engine.accounts import summary
from holdfast.engine.changes import Changes
from holdfast.engine.environment import environment
from holdfast.engine.given import Given
from holdfast.engine.handover import take_back
from holdfast.engine.holder import this_process
from holdfast.engine.link import Held, Link, link_to, nudge
from holdfast.engine.session import Compiled, Session, log
from holdfast.engine.ways import plan_inside, update_inside
from holdfast.errors import (
    AlreadyCompleted,
    Conflict,
    DefinitionError,
    RunExists,
    RunNotFound,
    RunSetAside,
    UnstorableValue,
    UsageError,
)
from holdfast.graphs.plan import PLANNER, Plan
from holdfast.graphs.secrets import refused_discreetly
from holdfast.graphs.state import State, new_id
from holdfast.journal.codec import decode, encode
from holdfast.journal.copies import detached_value
from holdfast.journal.envelope import Seal
from holdfast.journal.ledger import Ledger
from holdfast.journal.progress import FAILED_PHASE, Progress
from holdfast.journal.reading import read_on
from holdfast.journal.store import (
    COMPLETED,
    FAILED,
    RUNNING,
    NewRun,
    RunHead,
    Tail,
)
from holdfast.observe import events

if TYPE_CHECKING:
    from holdfast.graphs.layers import Layers

A_MOMENT = 1.0
"""Seconds by which what is known of the store's clock may be wrong."""


def start(
    compiled: Compiled,
    given: Any,
    config: Mapping[str, Any] | None,
    run_id: str,
    tags: tuple[str, ...],
    stream: bool,
) -> Session:
    """Open a new run. Raises `RunExists`, `UnstorableValue`, `UsageError`."""
    link, progress = compiled.link, _new(compiled.plan, given, config, run_id)
    ledger, held = None, None
    if link is not None:
        encode(progress.config, "config")
        progress.meta = made_with(compiled, tags)
        try:
            made = new_run(progress, tags, this_process(), link.ttl, due=0.0)
        except UnstorableValue as problem:
            raise refused_discreetly(problem, compiled.plan.secrets) from None
        held = link.create(made)
        ledger = Ledger(run_id, held.lease.fence, 1)
    _tell_start(compiled, run_id)
    return Session(compiled, progress, ledger, held, stream=stream, resumed=False)


def enqueue(
    compiled: Compiled,
    given: Any,
    config: Mapping[str, Any] | None,
    run_id: str,
    tags: tuple[str, ...],
    priority: int,
    delay: float,
) -> bool:
    """Create a run for whoever supervises the store. False if this run is there already.

    Raises `RunExists` if the id is that of a run of another graph, `UnstorableValue`, `UsageError`.
    """
    link = compiled.need_link("start")
    if not link.store.abilities.leases:
        raise UsageError(
            f"{link.store!r} can't keep two processes apart, so nobody could take the run up: execute() it here"
        )
    progress = _new(compiled.plan, given, config, run_id)
    encode(progress.config, "config")
    progress.meta = {**made_with(compiled, tags), "queued": True}
    holder = this_process() if delay else None
    try:
        run = new_run(progress, tags, holder, link.ttl, due=0.0, priority=priority)
    except UnstorableValue as problem:
        raise refused_discreetly(problem, compiled.plan.secrets) from None
    try:
        if not delay:
            link.store.create(run)
            return True
        held = link.create(run)  # so that the delay is one by the store's clock
    except RunExists:
        if link.head(run_id).graph != compiled.plan.name:
            raise
        return False
    try:
        ledger = Ledger(run_id, held.lease.fence, 1)
        refusal = link.commit(ledger.commit(RUNNING, heed=None, due=held.now() + delay))
        if refusal is not None:
            raise refusal
    finally:
        link.release(held)
    return True


def _new(plan: Plan, given: Any, config: Mapping[str, Any] | None, run_id: str) -> Progress:
    """A run at its beginning."""
    initial = plan.schema.initial(given if plan.layers is None else detached_value(given))
    return Progress(
        run_id, plan.name, plan.fingerprint, plan.entry,
        initial if plan.layers is not None else detached_value(initial),
        at=time(), config=dict(config or {}),
    )  # fmt: skip


def _tell_start(compiled: Compiled, run_id: str) -> None:
    plan = compiled.plan
    if compiled.emit is not None:
        entry = plan.entry if plan.layers is None else None
        compiled.emit(events.GRAPH_START, plan.name, {"run_id": run_id, "entry": entry})


def made_with(compiled: Compiled, tags: tuple[str, ...]) -> dict[str, Any]:
    """What is stored with a new run of where it was made, and how."""
    settings = {} if compiled.plan.layers is None else {"settings": compiled.settings}
    secrets = {"secrets": sorted(compiled.plan.secrets)} if compiled.plan.secrets else {}
    return {**environment(), "tags": list(tags), **settings, **secrets}


def resume(
    compiled: Compiled,
    run_id: str,
    given: Given,
    wait: float | None,
    stream: bool,
    step: int | None = None,
    patience: float | None = None,
    most_crashes: int | None = None,
    known: RunHead | None = None,
) -> Session:
    """Open a stored run where it stands, with what `given` brings, which is durable before this returns.

    `step` says where the caller believes the run to be, `patience` for how long it may wait here, `most_crashes` how
    often in a row it may have taken its process down, `known` what the store said of it just now. Raises
    `RunNotFound`, `AlreadyCompleted`, `Conflict`, `AnswerRefused`, `RunPaused` for a question left open,
    `DamagedRecord`, `UsageError`, `RunSetAside`.
    """
    link = compiled.need_link("resume")
    if known is None:
        _refuse_completed(link.head(run_id))
    held = link.claim(run_id, wait, known)
    try:
        tail = link.store.read(run_id)
        progress, ledger, losses = _reopen(compiled, tail, held, step, given, most_crashes)
        _bring_in(compiled, progress, ledger, given, tail.head.signal is not None, held.now())
        fresh = progress.meta.get("queued") and not progress.iterations and progress.section is None
        session = Session(
            compiled, progress, ledger, held, stream=stream, resumed=not fresh, whole=tail.first, patience=patience,
            losses=losses,
        )  # fmt: skip
    except BaseException:
        link.release(held)
        raise
    if given.timed and tail.head.signal is not None:
        session.stop.ask()
    if fresh:
        _tell_start(compiled, run_id)
    elif compiled.emit is not None:
        data = {"run_id": run_id, "node": progress.made_by}
        compiled.emit(events.CHECKPOINT_LOAD, compiled.plan.name, data)
    return session


def answer(link: Link, run_id: str, given: Given, wait: float | None = None) -> None:
    """Store answers to what a run asks; whoever supervises the store goes on with it. Needs no plan.

    Raises `RunNotFound`, `Conflict`, `AnswerRefused`, `UsageError` if it asks nothing, `DamagedRecord`.
    """
    held = link.claim(run_id, wait)
    try:
        tail = link.store.read(run_id)
        _refuse_completed(tail.head)
        progress, weight = read_on(tail)
        if not progress.open_questions():
            raise UsageError(
                f"run {run_id!r} asks nothing; resume({run_id!r}) goes on with one that has stopped"
            )
        answers, overdue = given.answers_to(progress, held.now()), progress.overdue(held.now())
        encode(answers, "answers")
        progress.lost(held.lease.crashes)
        ledger = Ledger(run_id, held.lease.fence, tail.head.sequence, weight)
        ledger.move(progress, {"time_passed": overdue, "going_on": answers}, time())
        refusal = link.commit(
            ledger.commit(RUNNING, summary(progress), heed=False, due=progress.due() or 0.0)
        )
        if refusal is not None:
            raise refusal
    finally:
        link.release(held)
    nudge(link.store)


def recall(
    compiled: Compiled, reference: str | os.PathLike[str], given: Given, stream: bool, file: bool = False
) -> Session:
    """Open the run that a checkpoint's reference leads to: a file's, if `file`. Raises what `resume` does."""
    file = file or isinstance(reference, os.PathLike)
    if compiled.checkpointer is None and not (file or _names_file(compiled.plan, reference)):
        run_id, step = located(compiled, reference)
        return resume(compiled, run_id, given, None, stream, step)
    from holdfast.stores.checkpoint_files import CheckpointFiles

    keeper = compiled.checkpointer if compiled.checkpointer is not None and not file else CheckpointFiles()
    progress = take_back(keeper, os.fspath(reference), compiled.plan)
    check_fits(compiled.plan, progress)
    if compiled.link is None:
        from holdfast.stores.memory import MemoryStore

        compiled = compiled._replace(link=link_to(MemoryStore()), interval=0, own=False)
    link = compiled.need_link("invoke(checkpoint=…)")
    if not compiled.own:
        with suppress(RunNotFound):
            link.store.delete(progress.run_id)
    elif _is_run(link, progress.run_id):
        if _stands_there(link, progress):
            return resume(compiled, progress.run_id, given, None, stream, progress.step)
        progress.run_id, progress.parent = new_id(), progress.run_id
    progress.crashes = 0
    link.store.create(new_run(progress, (), None, link.ttl))
    return resume(compiled, progress.run_id, given, None, stream)


def _names_file(plan: Plan, reference: Any) -> bool:
    """Whether a reference is the path of a checkpoint file, and not a run's id and a step."""
    if plan.layers is not None or not isinstance(reference, str) or _parted(reference)[1] is not None:
        return False
    return reference.endswith(".pkl") or os.sep in reference or "/" in reference or os.path.isfile(reference)


def _stands_there(link: Link, progress: Progress) -> bool:
    """Whether the stored run is still where this progress of it was saved: then its journal is gone on with."""
    tail = link.store.read(progress.run_id)
    if not tail.records or tail.head.status == COMPLETED:
        return False
    stored, _ = read_on(tail)
    return (stored.step, stored.node, stored.phase, stored.status, stored.state) == (
        progress.step, progress.node, progress.phase, progress.status, progress.state
    )  # fmt: skip


def located(compiled: Compiled, reference: Any) -> tuple[str, int | None]:
    """The run and the step that a checkpoint's id names. For a workflow it may be a run's: then that, and None.

    Raises `UsageError` for what is no id, and for a run of another graph; `RunNotFound`.
    """
    run_of(reference)  # raises for what is no id
    run_id, step = _parted(reference)
    if compiled.plan.layers is None:
        if step is None:
            raise UsageError(f"{reference!r} is no checkpoint: that is a run id, '@' and a step")
        return run_id, step
    link = compiled.need_link("resume, or a look at a run,")
    ways = dict.fromkeys([(run_id, step), (reference, None)])
    found = [(named, number) for named, number in ways if _is_run(link, named)]
    if len(found) > 1:
        raise UsageError(
            f"{reference!r} is a run and a checkpoint of run {run_id!r} as well: name the run's newest one"
        )
    named, number = found[0] if found else (run_id, step)
    head = link.head(named)
    if head.graph != compiled.plan.name:
        raise UsageError(f"run {named!r} belongs to graph {head.graph!r}, not to {compiled.plan.name!r}")
    return named, number


def _parted(reference: str) -> tuple[str, int | None]:
    run_id, _, step = reference.rpartition("@")
    is_step = run_id and step.isascii() and step.isdecimal() and len(step) < 4000
    return (run_id, int(step)) if is_step else (reference, None)


def _is_run(link: Link, run_id: str) -> bool:
    try:
        link.head(run_id)
    except RunNotFound:
        return False
    return True


def check_step(progress: Progress, step: int | None) -> None:
    """Raise `UsageError` for a step that the run hasn't come to."""
    if step is not None and step > progress.step:
        raise UsageError(f"run {progress.run_id!r} has no checkpoint {step}; its newest is {progress.step}")


def run_of(reference: Any) -> str:
    """The run that a reference speaks of, as far as it tells."""
    if isinstance(reference, os.PathLike):
        reference = os.fspath(reference)
    if not isinstance(reference, str):
        raise UsageError(f"a run or a checkpoint is named by its id, a str, not {type(reference).__name__}")
    return reference.rpartition("@")[0] or reference


def new_run(
    progress: Progress,
    tags: tuple[str, ...],
    holder: str | None,
    ttl: float,
    due: float | None = None,
    priority: int = 0,
) -> NewRun:
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
        due,
        priority,
    )


def check_id(run_id: Any) -> str:
    """A run id as it may be: a str of 1 to 200 printable characters. Raises `UsageError`."""
    if not isinstance(run_id, str) or not 0 < len(run_id) <= 200 or not run_id.isprintable():
        raise UsageError(f"a run id is a str of 1 to 200 printable characters, not {run_id!r}")
    return run_id


def _reopen(
    compiled: Compiled, tail: Tail, held: Held, step: int | None, given: Given, most_crashes: int | None
) -> tuple[Progress, Ledger, int]:
    """The run's progress, the ledger to go on with, and how many holders were lost since it last came further."""
    _refuse_completed(tail.head)
    if given.timed and (tail.head.due is None or tail.head.due > held.now() + A_MOMENT):
        raise Conflict(tail.head.run_id, "it isn't due any more")
    progress, weight = read_on(tail)
    losses = held.lease.crashes - progress.crashes
    waits = (progress.due() or 0.0) > held.now()
    if most_crashes is not None and losses >= most_crashes and not waits:
        _set_aside(compiled, progress, tail, held)
    asked = {question.id for question in progress.open_questions()}
    refitted = check_fits(compiled.plan, progress)
    gone = sorted(asked - {question.id for question in progress.open_questions()})
    if gone and given.answers_any:
        way_out = f"resume({progress.run_id!r}) without an answer goes on"
        raise UsageError(f"question {gone[0]!r} is gone, as the task that asked it has changed; {way_out}")
    check_step(progress, step)
    if step is not None and step != progress.step and compiled.plan.layers is None:
        raise Conflict(
            progress.run_id,
            f"step {step} is not its newest any more, that is {progress.step}; "
            f"fork({progress.run_id!r}, step={step}) goes on from there beside the run",
        )
    ledger = Ledger(progress.run_id, held.lease.fence, tail.head.sequence, weight)
    if losses > 0 and waits:
        _forgive(progress, ledger, held)
        losses = 0
    progress.lost(held.lease.crashes)
    if refitted:
        ledger.whole(progress)
    return progress, ledger, losses


def _forgive(progress: Progress, ledger: Ledger, held: Held) -> None:
    """A run that only let time pass took nobody down: holders that were lost meanwhile don't count against it."""
    changes = {"attempts": progress.attempts} if progress.section is None else {}
    progress.lost(held.lease.crashes)
    ledger.move(progress, changes, time())


def _set_aside(compiled: Compiled, progress: Progress, tail: Tail, held: Held) -> None:
    """Have a run that takes its process down again and again count as failed: `RunSetAside`."""
    times = held.lease.crashes - progress.crashes
    link, node = compiled.need_link("supervise"), progress.place()
    reason = f"its process was lost {times} times in a row at {node!r}, so it was set aside"
    error = {"type": RunSetAside.__name__, "message": reason, "node": node}
    changes: dict[str, Any] = {"status": FAILED, "reason": reason, "error": error, "cleared": True}
    if progress.section is None:
        changes["phase"] = FAILED_PHASE
    progress.crashes = held.lease.crashes
    ledger = Ledger(progress.run_id, held.lease.fence, tail.head.sequence)
    ledger.move(progress, changes, time())
    refusal = link.commit(ledger.commit(FAILED, summary(progress), heed=None))
    if refusal is not None:
        raise refusal
    if compiled.emit is not None:
        data = {"run_id": progress.run_id, "node": node, "error": reason}
        compiled.emit(events.RUN_FAIL, compiled.plan.name, data)
    message = f"run {progress.run_id!r}: {reason}; resume({progress.run_id!r}) tries it again"
    raise RunSetAside(message, progress.run_id)


def _refuse_completed(head: RunHead) -> None:
    if head.status == COMPLETED:
        kept = "fork() it to go on from one of its steps"
        kept = kept if head.snapshot else "its journal went with that; compile(preserve=True) keeps it"
        message = f"run {head.run_id!r} is complete; {kept}"
        raise AlreadyCompleted(message, head.run_id)


def check_fits(plan: Plan, progress: Progress) -> bool:
    """Raise unless this plan can go on from this progress: the same graph, and the nodes are still there.

    Says whether the progress had to be changed for that, as that of a workflow whose tasks have changed is.
    """
    if progress.graph != plan.name:
        raise UsageError(f"run {progress.run_id!r} belongs to graph {progress.graph!r}, not to {plan.name!r}")
    if (plan.layers is not None) != (
        "dag" in progress.state and PLANNER in (progress.node, *progress.visits)
    ):
        raise UsageError(f"run {progress.run_id!r} is of another kind of graph than {plan.name!r}")
    changed = progress.fingerprint != plan.fingerprint
    refitted = changed and _refitted(plan, progress)
    missing = _missing(plan, progress, "")
    if missing:
        way_out = "put it back, or rollback() to an earlier step"
        raise DefinitionError(f"run {progress.run_id!r} stands {missing}; {way_out}", plan.name)
    if changed:
        if plan.layers is None:
            log().warning("graph %s has changed since run %s was saved with it", plan.name, progress.run_id)
        elif refitted:
            progress.fingerprint = plan.fingerprint
    return refitted


def _refitted(plan: Plan, progress: Progress) -> bool:
    """Have workflows that have changed, the run's or inside of it, go on as they are now, where that may be."""
    from holdfast.graphs.refit import refit

    changed = [
        refit(layers, inner, name, place) for layers, inner, name, place in workflows_in(plan, progress)
    ]
    return any(changed)


def workflows_in(
    plan: Plan, progress: Progress, place: str = ""
) -> Iterator[tuple[Layers, Progress, str, str]]:
    """The workflows that are under way in a run, with how far each has come, its name, and the way to it."""
    if progress.done:
        return
    if plan.layers is not None:
        yield plan.layers, progress, plan.name, place
    section = progress.section
    if section is None:
        return
    try:
        inner, _ = plan_inside(plan, progress)
    except (LookupError, DefinitionError):
        return
    if section.layer is not None:
        inner = inner._replace(layers=None)  # a task follows no workflow, but may run one
    for key, child in section.children.items():
        label = "" if section.inside and place else section.label(key)
        yield from workflows_in(inner, child, "/".join(filter(None, (place, label))))


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
        inner, _ = plan_inside(plan, progress)
    except LookupError:
        return f"in branches that node {way + section.source!r} doesn't open any more"
    for key, child in section.children.items():
        missing = _missing(inner, child, f"{way}{section.label(key)}/")
        if missing:
            return missing
    return ""


def _bring_in(
    compiled: Compiled, progress: Progress, ledger: Ledger, given: Given, signalled: bool, now: float
) -> None:
    """Make a resume durable: from now on the run is running again, with what it was given.

    A request to cancel that its holder didn't live to heed is over: resuming is the newer wish, if it is one.
    """
    answers, update = given.answers_to(progress, now), given.update_for(progress)
    overdue = progress.overdue(now)
    if compiled.plan.layers is not None:
        update = compiled.plan.layers.check_update(update)
    encode(answers, "answers")
    encode(dict(given.config or {}), "config")
    failed = any(branch.status == FAILED for _, branch in progress.stops())
    wished = not given.timed and (signalled or failed)
    brings = answers or update or given.config or wished or overdue or ledger.pending
    if progress.status == RUNNING and not brings:
        return
    changes: dict[str, Any] = {"meta": {**progress.meta, **environment()}}
    changes["fingerprint"] = compiled.plan.fingerprint
    if given.config:
        changes["config"] = {**progress.config, **given.config}
    link, at = compiled.need_link("resume"), time()
    if overdue or given.timed:
        changes["time_passed"] = overdue
    ledger.move(progress, changes if given.timed else {**changes, "going_on": answers}, at)
    if update:
        ledger.note(progress.move_record({}, at, merge_update(compiled.plan, update, progress)))
        for path, branch in list(progress.under_way()):
            delta = merge_update(*update_inside(compiled.plan, progress, path, update), branch)
            ledger.put(progress, path, at, branch.move_record({}, at, delta))
    commit = ledger.commit(RUNNING, summary(progress), heed=None if given.timed else False, due=0.0)
    refusal = link.commit(commit)
    if refusal is not None:
        raise refusal
    ledger.acknowledged(commit)


def merge_update(plan: Plan, update: Mapping[str, Any], progress: Progress) -> bytes:
    """Change the state as if a node had returned `update`; returns the delta. Raises `UnstorableValue`."""
    changes = Changes(State(progress.state), plan.schema.reducers, durable=True, base=progress.state)
    try:
        delta = changes.collect(changes.private(tracked=False), dict(update))
    except UnstorableValue as problem:
        raise refused_discreetly(problem, plan.secrets) from None
    progress.change(decode(delta))
    return delta
