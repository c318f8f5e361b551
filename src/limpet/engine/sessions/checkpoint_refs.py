"""Which run and which step a user means by the id of a run or of a checkpoint."""

from __future__ import annotations

import os
from typing import Any

from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.errors import RunNotFound, UsageError
from limpet.graphs.plan import Plan

MAX_STEP_DIGITS = 4000
"""Digits that a step may have. Python refuses to convert much longer numbers."""


def located(compiled: CompiledGraph, reference: Any) -> tuple[str, int | None]:
    """The run and the step that a checkpoint's id names. A workflow also takes a run's id, whose step is None.

    Raises `UsageError` for something that isn't an id, `WrongGraph` for a run of another graph, `RunNotFound`.
    """
    # Raises for something that isn't an id.
    run_of(reference)
    run_id, step = _split(reference)
    if compiled.plan.layers is None:
        if step is None:
            raise UsageError(f"{reference!r} isn't a checkpoint's id: that is a run id, '@' and a step")
        return run_id, step
    call = "resuming or inspecting a run"
    run_id, step = _existing(compiled.need_client(call), reference, run_id, step)
    compiled.own_run(run_id, call)
    return run_id, step


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


def _existing(client: LeaseClient, reference: str, run_id: str, step: int | None) -> tuple[str, int | None]:
    """Which of its two meanings a reference has: `a@3` may be step 3 of run `a`, or a run with just this id."""
    meanings = dict.fromkeys([(run_id, step), (reference, None)])
    existing = [meaning for meaning in meanings if is_run(client, meaning[0])]
    if len(existing) > 1:
        raise UsageError(
            f"{reference!r} is a run and a checkpoint of run {run_id!r} as well: name the run's newest checkpoint"
        )
    return existing[0] if existing else (run_id, step)


def _split(reference: str) -> tuple[str, int | None]:
    run_id, _, step = reference.rpartition("@")
    if run_id and step.isascii() and step.isdecimal() and len(step) < MAX_STEP_DIGITS:
        return run_id, int(step)
    return reference, None
