"""What a user names a run or a checkpoint by, and what that leads to."""

from __future__ import annotations

import os
from typing import Any

from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.sessions.session import CompiledGraph
from limpet.errors import (
    RunNotFound,
    UsageError,
)
from limpet.graphs.plan import Plan
from limpet.journal.progress import Progress


def located(compiled: CompiledGraph, reference: Any) -> tuple[str, int | None]:
    """The run and the step that a checkpoint's id names. For a workflow it may be a run's: then that, and None.

    Raises `UsageError` for what is no id, and for a run of another graph; `RunNotFound`.
    """
    run_of(reference)  # raises for what is no id
    run_id, step = _parted(reference)
    if compiled.plan.layers is None:
        if step is None:
            raise UsageError(f"{reference!r} is no checkpoint: that is a run id, '@' and a step")
        return run_id, step
    client = compiled.need_client("resume, or a look at a run,")
    ways = dict.fromkeys([(run_id, step), (reference, None)])
    found = [(named, number) for named, number in ways if is_run(client, named)]
    if len(found) > 1:
        raise UsageError(
            f"{reference!r} is a run and a checkpoint of run {run_id!r} as well: name the run's newest one"
        )
    named, number = found[0] if found else (run_id, step)
    head = client.head(named)
    if head.graph != compiled.plan.name:
        raise UsageError(f"run {named!r} belongs to graph {head.graph!r}, not to {compiled.plan.name!r}")
    return named, number


def run_of(reference: Any) -> str:
    """The run that a reference speaks of, as far as it tells."""
    if isinstance(reference, os.PathLike):
        reference = os.fspath(reference)
    if not isinstance(reference, str):
        raise UsageError(f"a run or a checkpoint is named by its id, a str, not {type(reference).__name__}")
    return reference.rpartition("@")[0] or reference


def check_step(progress: Progress, step: int | None) -> None:
    """Raise `UsageError` for a step that the run hasn't come to."""
    if step is not None and step > progress.step:
        raise UsageError(f"run {progress.run_id!r} has no checkpoint {step}; its newest is {progress.step}")


def names_file(plan: Plan, reference: Any) -> bool:
    """Whether a reference is the path of a checkpoint file, and not a run's id and a step."""
    if plan.layers is not None or not isinstance(reference, str) or _parted(reference)[1] is not None:
        return False
    return reference.endswith(".pkl") or os.sep in reference or "/" in reference or os.path.isfile(reference)


def is_run(client: LeaseClient, run_id: str) -> bool:
    try:
        client.head(run_id)
    except RunNotFound:
        return False
    return True


def _parted(reference: str) -> tuple[str, int | None]:
    run_id, _, step = reference.rpartition("@")
    is_step = run_id and step.isascii() and step.isdecimal() and len(step) < 4000
    return (run_id, int(step)) if is_step else (reference, None)
