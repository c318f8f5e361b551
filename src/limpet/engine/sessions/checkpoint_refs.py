"""Which run and which step a user means by the id of a run or of a checkpoint, and what was asked there.

The id of a checkpoint is the run's id, `@` and a step. A run may pause several times in one step, when one question
follows another. The ids of later pauses have a second number: how many questions were closed by then.
"""

from __future__ import annotations

import os
import re
from typing import Any

from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.errors import DamagedRecord, RunNotFound, UsageError
from limpet.graphs.plan import Plan
from limpet.journal.progress import Progress
from limpet.journal.reader import Point, ViewedTail, questions_at, read_progress_and_weight
from limpet.journal.store import COMPLETED, checked_id

MAX_STEP_DIGITS = 4000
"""Digits that a step may have. Python refuses to convert much longer numbers."""

_POINT = re.compile(r"([0-9]+)(?:\.([1-9][0-9]*))?")


def located(compiled: CompiledGraph, reference: Any) -> tuple[str, Point | None]:
    """The run and the point that a checkpoint's id names; of a run's id, the point is None.

    Raises `UsageError` for something that isn't an id, `WrongGraph` for a run of another graph, `RunNotFound`.
    """
    # Raises for something that isn't an id.
    run_of(reference)
    run_id, point = _split(reference)
    if compiled.plan.layers is None and point is not None:
        return run_id, point
    call = "resuming or inspecting a run"
    run_id, point = run_and_point(compiled.need_client(call), reference)
    compiled.own_run(run_id, call)
    return run_id, point


def run_and_point(client: LeaseClient, reference: str) -> tuple[str, Point | None]:
    """Which of its two meanings an id has: `a@3` may be step 3 of run `a`, or a run with just this id.

    Raises `UsageError` where both exist. If neither does, it is taken for a checkpoint.
    """
    run_id, point = _split(checked_id(reference))
    if point is None:
        return run_id, None
    meanings = dict.fromkeys([(run_id, point), (reference, None)])
    existing = [meaning for meaning in meanings if is_run(client, meaning[0])]
    if len(existing) > 1:
        raise UsageError(
            f"{reference!r} is a run and a checkpoint of run {run_id!r} as well: name the run's newest checkpoint"
        )
    return existing[0] if existing else (run_id, point)


def asked_at(client: LeaseClient, progress: Progress, point: Point | None) -> frozenset[str] | None:
    """The ids of the questions that an answer from a point of the run is for; None if that is the present one.

    These are the questions that were open there, or else at the first pause after it: an id names the same ones
    however often it is used. Empty if the journal no longer has the point: then its questions are closed.
    """
    if point is None or point == (progress.step, progress.closed_questions()):
        return None
    try:
        questions = questions_at(ViewedTail(*client.store.read(progress.run_id, first=1)), *point)
    except (UsageError, DamagedRecord):
        return frozenset()
    return frozenset(question.id for question in questions)


def run_of(reference: Any) -> str:
    """The run that a reference names, as far as the text shows. Raises `UsageError` if it isn't a text."""
    if isinstance(reference, os.PathLike):
        reference = os.fspath(reference)
    if not isinstance(reference, str):
        raise UsageError(f"a run or a checkpoint is named by its id, a str, not {type(reference).__name__}")
    return reference.rpartition("@")[0] or reference


def names_file(plan: Plan, reference: Any) -> bool:
    """Whether a reference is the path of a checkpoint file, and not a run's id and a step."""
    if plan.layers is not None or not isinstance(reference, str) or _split(reference)[1] is not None:
        return False
    return reference.endswith(".pkl") or os.sep in reference or "/" in reference or os.path.isfile(reference)


def is_run(client: LeaseClient, run_id: str) -> bool:
    """Whether the store has a run with this id."""
    try:
        client.head(run_id)
    except RunNotFound:
        return False
    return True


def _split(reference: str) -> tuple[str, Point | None]:
    run_id, _, point = reference.rpartition("@")
    found = _POINT.fullmatch(point)
    if not run_id or found is None or len(point) >= MAX_STEP_DIGITS:
        return reference, None
    return run_id, Point(int(found[1]), int(found[2] or 0))


def is_newest(client: LeaseClient, progress: Progress) -> bool:
    """Whether the stored run is still where this checkpoint of it was saved: then its journal is continued."""
    tail = client.store.read(progress.run_id)
    if not tail.records or tail.head.status == COMPLETED:
        return False
    stored, _ = read_progress_and_weight(tail)
    return _position(stored) == _position(progress)


def _position(progress: Progress) -> tuple[Any, ...]:
    asked = [question.id for question in progress.open_questions()]
    return progress.step, progress.node, progress.phase, progress.status, progress.state, asked
