"""The errors of runs that have stopped, by what is stored of them: what happened, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from limpet.errors import DeadlinePassed, ExecutionError, RunCancelled, RunError, RunQuarantined
from limpet.graphs.plan import PLANNER, budget_setting
from limpet.journal.progress import Progress
from limpet.journal.store import CANCELLED

NEW_DEADLINE: Final = "give it a new one: resume({0!r}, deadline=…), or get({0!r}).retry(deadline=…)"
"""What to do with a run whose deadline has passed."""


def missed_deadline(progress: Progress) -> str:
    """Why a run fails whose deadline has passed."""
    assert progress.deadline is not None
    at = datetime.fromtimestamp(progress.deadline, UTC)
    return f"its deadline passed at {at:%Y-%m-%d %H:%M:%S} UTC"


def deadline_passed(
    run_id: str, reason: str, node: str, state: Mapping[str, Any] | None = None, path: Iterable[str] = ()
) -> DeadlinePassed:
    """The error of a run whose deadline has passed, for the reason that `missed_deadline` gives."""
    where = f"run {run_id!r}"
    if node and node != PLANNER:
        where += f", at {node!r}"
    return DeadlinePassed(f"{where}: {reason}", run_id, node=node, state=state, path=path)


def advise_retry(error: ExecutionError, reason: str) -> ExecutionError:
    """Give the error of a stored run the advice that helps: to retry it, unless a retry would fail again."""
    if isinstance(error, DeadlinePassed):
        return error.with_advice(NEW_DEADLINE.format(error.run_id), "retry")
    setting = budget_setting(reason)
    if setting is None:
        return error.with_advice(f"retry it with resume({error.run_id!r})", "retry")
    return error.with_advice(f"give it a larger {setting}, then resume({error.run_id!r}) continues it")


def error_of_stopped(
    run_id: str, status: str, reason: str | None, error_type: str | None, node: str
) -> RunError:
    """Why a stored run that was cancelled or has failed gives no result, by what its head says of it."""
    reason = reason or "it failed"
    stopped: RunError
    advice = f"retry it with resume({run_id!r}), or hand it back to the workers with get({run_id!r}).retry()"
    if status == CANCELLED:
        stopped = RunCancelled(f"run {run_id!r} was cancelled", run_id)
    elif error_type == RunQuarantined.__name__:
        stopped = RunQuarantined(f"run {run_id!r}: {reason}", run_id)
    elif error_type == DeadlinePassed.__name__:
        return advise_retry(deadline_passed(run_id, reason, node=node), reason)
    else:
        stopped = ExecutionError(reason, run_id=run_id, node=node)
        if budget_setting(reason) is not None:
            return advise_retry(stopped, reason)
    return stopped.with_advice(advice, "retry")
