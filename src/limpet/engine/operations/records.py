"""Looking at runs, and changing what they will do next: history, differences, forks, rollbacks, cancellation.

Nothing here runs a node. A fork is a new run whose journal begins with the checkpoint it was made from, so
it needs nothing of the old one; a rollback adds a record and removes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.loop.next_node import update_inside
from limpet.engine.node_context.accounts import summary
from limpet.engine.sessions.compatibility import check_fits
from limpet.engine.sessions.resume import merge_update
from limpet.engine.sessions.session import CompiledGraph
from limpet.engine.sessions.start import check_id, made_with, new_run
from limpet.errors import Conflict, DamagedRecord, UsageError
from limpet.graphs.plan import Plan
from limpet.graphs.secrets import MaskedDict
from limpet.graphs.state import State, new_id
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.progress import Progress
from limpet.journal.reader import Checkpoint, check_end, history, next_step, progress_at, read_progress
from limpet.journal.salvage import salvaged
from limpet.journal.store import CANCELLED, ENDED, PAUSED, RUNNING, STATUSES, OnSignal, RunFilter, RunHead
from limpet.journal.waits import AFTER, BEFORE, Question
from limpet.journal.writer import JournalWriter

if TYPE_CHECKING:
    from limpet.journal.verify import Verification


class RunInfo(NamedTuple):
    """What a store knows of a run: enough for a list, and to see what a paused or failed one needs.

    `step`, `node`, `reason`, `error` and `questions` are those of the run's last stop.
    """

    run_id: str
    graph: str
    status: str
    created: float
    updated: float
    tags: tuple[str, ...]
    parent: str | None
    step: int
    node: str
    reason: str | None
    error: dict[str, Any] | None
    questions: list[Question]
    holder: str | None


class RunList(list[RunInfo]):
    """Runs in a list, which a notebook shows as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        from limpet.drawing.notebook import moment, runs_as_html

        rows = [
            (
                each.run_id, each.graph, each.status, each.node, str(each.step), moment(each.updated),
                " · ".join(question.prompt for question in each.questions) or (each.error or {}).get("type", ""),
            )
            for each in self
        ]  # fmt: skip
        return runs_as_html(
            rows, ("run", "graph", "status", "node", "step", "updated", "waits for, or failed with")
        )


class Difference(NamedTuple):
    """What is different between two states: keys that came, keys that went, and `(old, new)` for the rest."""

    added: dict[str, Any]
    removed: dict[str, Any]
    changed: dict[str, tuple[Any, Any]]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def run_info(head: RunHead) -> RunInfo:
    """What a head says, read. Raises `DamagedRecord` if it isn't what was written."""
    note, questions = _note_of(head)
    return RunInfo(
        head.run_id, head.graph, head.status, head.created, head.updated, head.tags, head.parent,
        note.get("step", 0), note.get("node", ""), note.get("reason"), note.get("error"), questions, head.holder,
    )  # fmt: skip


def _note_of(head: RunHead) -> tuple[dict[str, Any], list[Question]]:
    try:
        note = decode(head.note) if head.note else {}
        if type(note) is not dict:
            raise ValueError("it holds something else")
        questions = [Question(**each) for each in note.get("questions", ())]
    except (TypeError, ValueError) as problem:
        reason = f"its summary can't be read ({problem}); a store that is encrypted is opened with its keys"
        raise DamagedRecord(head.run_id, 0, reason) from problem
    return note, questions


def list_runs(
    client: LeaseClient, status: str | None, graph: str | None, tag: str | None, limit: int | None
) -> list[RunInfo]:
    """The runs that fit, newest first."""
    if status is not None and status not in STATUSES:
        raise UsageError(f"a run's status is one of {', '.join(STATUSES)}, not {status!r}")
    statuses = () if status is None else (status,)
    return RunList(run_info(head) for head in client.store.list(RunFilter(statuses, graph, tag, limit=limit)))


def checkpoints(client: LeaseClient, run_id: str) -> list[Checkpoint]:
    """All steps of a run that its journal still has. Raises `DamagedRecord`."""
    tail = client.store.read(run_id, first=1)
    found = history(tail)
    check_end(tail)
    return found


def state_at(compiled: CompiledGraph, run_id: str, step: int | None) -> State:
    """The state after a step, or the newest one."""
    return as_state(progress_of(compiled.need_client("state_at"), run_id, step), compiled.plan)


def difference(client: LeaseClient, run_id: str, a: int, b: int, secrets: frozenset[str]) -> Difference:
    """What is different after step `b` from what was after step `a`. What is secret of it isn't printed."""
    tail = client.store.read(run_id, first=1)
    old, new = progress_at(tail, a).so_far(), progress_at(tail, b).so_far()
    found = Difference(
        added={key: value for key, value in new.items() if key not in old},
        removed={key: value for key, value in old.items() if key not in new},
        changed={
            key: (old[key], value)
            for key, value in new.items()
            if key in old and encode(old[key]) != encode(value)
        },
    )
    return Difference(*(MaskedDict(part, secrets) for part in found)) if secrets else found


def verify(client: LeaseClient, run_id: str) -> Verification:
    """What of a run is damaged, and what can still be had."""
    from limpet.journal import verify as verification

    return verification.verify(client.store, run_id)


def fork(
    compiled: CompiledGraph,
    run_id: str,
    step: int | None,
    update: Mapping[str, Any] | None,
    new_run_id: str | None,
    tags: tuple[str, ...],
) -> str:
    """Create a run that begins where another one stood after `step`, with `update` merged in; return its id."""
    client = compiled.need_client("fork")
    progress = progress_of(client, run_id, step)
    check_fits(compiled.plan, progress)
    progress.run_id, progress.parent = (
        check_id(new_id() if new_run_id is None else new_run_id),
        f"{run_id}@{progress.step}",
    )
    progress.meta = made_with(compiled, tags)
    progress.crashes, progress.status, progress.reason = 0, PAUSED, f"forked from {progress.parent}"
    _forget_stop(progress)
    if update and compiled.plan.layers is not None:
        update = compiled.plan.layers.check_update(update)
    if update:
        merge_update(compiled.plan, update, progress)
        for path, branch in list(progress.under_way()):
            merge_update(*update_inside(compiled.plan, progress, path, update), branch)
    client.store.create(new_run(progress, tags, None, client.ttl))
    return progress.run_id


def rollback(compiled: CompiledGraph, run_id: str, step: int) -> State:
    """Set a run back to where it stood after `step`; it is then paused. Nothing of its history goes."""
    client = compiled.need_client("rollback")
    held = client.claim(run_id)
    try:
        tail = salvaged(client.store, run_id)
        progress = progress_at(tail, step)
        check_fits(compiled.plan, progress)
        progress.step, progress.crashes, progress.at = next_step(tail), held.lease.crashes, time()
        progress.status, progress.reason = PAUSED, f"rolled back to step {step}"
        if progress.section is not None:
            progress.section.step = progress.step  # what is done again has another idempotency key
        _forget_stop(progress)
        writer = JournalWriter(run_id, held.lease.fence, tail.head.sequence)
        writer.whole(progress)
        refusal = client.commit(writer.commit(PAUSED, summary(progress), on_signal=OnSignal.CLEAR))
        if refusal is not None:
            raise refusal
    except BaseException:
        client.release(held)
        raise
    client.let_go(held)
    return as_state(progress, compiled.plan)


def cancel(client: LeaseClient, run_id: str) -> None:
    """Stop a run: here before its next node, elsewhere when its holder next saves or renews, or at once if idle."""
    held = client.held.get(run_id)
    if held is not None:
        held.stop.ask()
        return
    head = client.head(run_id)
    if head.status == CANCELLED:
        return
    _refuse_ended(head)
    try:
        held = client.claim(run_id)
    except Conflict:
        client.store.signal(run_id, "cancel")
        return
    try:
        tail = client.store.read(run_id)
        _refuse_ended(tail.head)
        progress = read_progress(tail)
        progress.crashes = held.lease.crashes
        writer = JournalWriter(run_id, held.lease.fence, tail.head.sequence)
        writer.move(progress, {"status": CANCELLED, "reason": "cancelled"}, time())
        refusal = client.commit(writer.commit(CANCELLED, summary(progress), on_signal=OnSignal.CLEAR))
        if refusal is not None:
            raise refusal
    except BaseException:
        client.release(held)
        raise
    client.let_go(held)


def _refuse_ended(head: RunHead) -> None:
    if head.status in ENDED:
        raise UsageError(f"run {head.run_id!r} has ended already: it is {head.status}")


def progress_of(client: LeaseClient, run_id: str, step: int | None) -> Progress:
    """How far a run had come after a step, or has by now."""
    if step is None:
        return read_progress(client.store.read(run_id))
    return progress_at(salvaged(client.store, run_id), step)


def as_state(progress: Progress, plan: Plan) -> State:
    """The state of a stored run, as those outside see it."""
    live = plan.schema.live.alive(progress.so_far())
    live.run_id, live.checkpoint_node, live._at, live._emit = (
        progress.run_id,
        progress.made_by,
        progress.at,
        None,
    )
    live._saved = f"{progress.run_id}@{progress.step}"
    if plan.secrets:
        live._secrets = plan.secrets
    return live._copy()


def _forget_stop(progress: Progress) -> None:
    """Begin at the position anew: what was asked or approved there counts for the run it was asked in."""
    if progress.phase != AFTER:
        progress.phase = BEFORE
    progress.questions, progress.answers, progress.asked, progress.memos = [], {}, {}, {}
    progress.attempts, progress.error, progress.cleared, progress.timers = 0, None, False, {}
    progress.hidden = []
    for branch in progress.section.children.values() if progress.section is not None else ():
        if not branch.done:
            branch.status, branch.reason = RUNNING, None
            _forget_stop(branch)
