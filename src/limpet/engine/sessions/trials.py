"""Trials: which crashes of its process count against a run.

The store counts how often the holder of a run crashed. But a process that crashes takes all its runs with it, and all
but one of them are innocent. So such a crash makes its runs *suspects* only. A supervisor executes a suspect alone in
its process until it gets any further, and notes that in the journal before the run executes: that is a trial. If the
trial is the newest record of the run when it is claimed after another crash, that crash counts. With `max_crashes` of
them in a row the run is quarantined.
"""

from __future__ import annotations

import os
from time import time
from typing import Any, NamedTuple, NoReturn

from limpet.engine.leases.child_posts import announce_end
from limpet.engine.leases.lease_client import HeldRun
from limpet.engine.loop.run_lifecycle import QUARANTINE, next_status
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.errors import Conflict, RunQuarantined, StoreError
from limpet.graphs.plan import PLANNER
from limpet.journal.progress import Progress
from limpet.journal.reader import read_progress_and_weight
from limpet.journal.store import Tail
from limpet.journal.waits import AFTER, FAILED_PHASE
from limpet.journal.writer import JournalWriter, summary
from limpet.observe import events

TRIAL = "trial"
"""Where the metadata of a run has its last trial: the number of its record, the crashes that count, whether alone."""


class NeedsSolitude(Exception):
    """The run is a suspect: it has to be resumed when its process executes nothing else."""

    def __init__(self, run_id: str, history: CrashHistory) -> None:
        super().__init__(f"run {run_id!r} may have crashed its process")
        self.history = history


class CrashLimits(NamedTuple):
    """How a supervisor treats runs whose process crashed, and whether it has a place for a suspect now."""

    max_crashes: int
    """After how many crashes alone a run is quarantined."""
    suspect_from: int
    """After how many crashes in any company a run is a suspect."""
    has_turn: bool = False
    """Whether the run may execute although it is a suspect."""
    is_alone: bool = False
    """Whether this process executes nothing else meanwhile."""


class CrashHistory(NamedTuple):
    """The crashes of a run since it last got any further."""

    crashes: int
    """Those since its newest record."""
    alone: int = 0
    """Those while it executed alone."""
    was_tried: bool = False
    """Whether its newest record is a trial."""

    def is_suspect(self, limits: CrashLimits | None) -> bool:
        """Whether the run may have crashed its process, so that a trial has to say how it executes now."""
        if self.was_tried:
            return True
        return limits is not None and self.crashes >= limits.suspect_from


def crash_history(progress: Progress, sequence: int, crashes: int) -> CrashHistory:
    """The history of a run whose newest record has number `sequence`, and whose holders crashed so often in all."""
    # The journal has the count at the newest record.
    new_crashes = crashes - progress.crashes
    trial = progress.meta.get(TRIAL)
    if trial is None or trial["record"] != sequence:
        return CrashHistory(new_crashes)
    alone = trial["crashes"]
    if trial["alone"] and new_crashes > 0:
        alone += 1
    return CrashHistory(new_crashes, alone, was_tried=True)


def begin_trial(progress: Progress, writer: JournalWriter, held: HeldRun, alone: int, is_alone: bool) -> None:
    """Make durable that a suspect executes now, and whether alone. `alone` crashes count up to now."""
    trial = {"record": writer.sequence + 1, "crashes": alone, "alone": is_alone}
    writer.add_move(progress, {"meta": {**progress.meta, TRIAL: trial}}, time())
    commit = writer.commit(ignores_posts=True)
    held.commit(commit)
    writer.acknowledge(len(commit.records))


def quarantine(
    compiled: CompiledGraph, progress: Progress, tail: Tail, held: HeldRun, times: int
) -> NoReturn:
    """Mark a run that crashes its process again and again as failed. Always raises `RunQuarantined`."""
    node = progress.current_node()
    where = f" at node {node!r}"
    if node == PLANNER:
        node = ""
        where = ""
    crashed = f"crashed {times} times in a row{where}"
    if times == 1:
        crashed = f"crashed{where} while it executed nothing else"
    reason = f"its process {crashed}, so the run was quarantined"
    error = {"type": RunQuarantined.__name__, "message": reason, "node": node}
    status = next_status(tail.head.status, QUARANTINE)
    changes: dict[str, Any] = {"status": status, "reason": reason, "error": error}
    if progress.section is None and progress.phase != AFTER:  # else the node has finished
        changes["phase"] = FAILED_PHASE
    progress.crashes = held.crashes
    writer = JournalWriter(progress.run_id, held.fence, tail.head.sequence)
    writer.add_move(progress, changes, time())
    commit = writer.commit(status, summary(progress), ignores_posts=True)
    if (problem := announce_end(compiled.need_client("quarantine"), progress, commit)) is not None:
        raise problem
    held.commit(commit)
    if compiled.emit is not None:
        data = {"run_id": progress.run_id, "node": node or None, "error": reason}
        compiled.emit(events.RUN_FAIL, compiled.plan.name, data)
    quarantined = RunQuarantined(f"run {progress.run_id!r}: {reason}", progress.run_id)
    raise quarantined.with_advice(f"retry it with resume({progress.run_id!r})", "retry")


def forgive_crashes(progress: Progress, writer: JournalWriter, held: HeldRun) -> None:
    """Reset the count of crashes of a run that sleeps: it did nothing, so holders didn't crash because of it."""
    changes = {}
    if progress.section is None:
        changes["attempts"] = progress.attempts
    progress.count_crashes(held.crashes)
    writer.add_move(progress, changes, time())


def accuse(held: HeldRun) -> None:
    """Have the crash count that follows: a node raised what ends a process, so its run is the cause for sure.

    The journal is read again, as the loop was interrupted and may know more than is stored. If the store refuses
    this, or can't be reached, the run is a suspect at least.
    """
    if held.lease.lost or held.lease.process != os.getpid():
        return
    try:
        tail = held.read()
        progress, _ = read_progress_and_weight(tail)
        history = crash_history(progress, tail.head.sequence, held.crashes)
        progress.count_crashes(held.crashes)
        writer = JournalWriter(progress.run_id, held.fence, tail.head.sequence)
        begin_trial(progress, writer, held, history.alone, is_alone=True)
    except (Conflict, StoreError):
        return
