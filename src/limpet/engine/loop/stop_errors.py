"""The errors of runs that have stopped, by what is stored of them: what happened, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from limpet.errors import (
    DeadlinePassed,
    ExecutionError,
    RunCancelled,
    RunError,
    RunPaused,
    RunQuarantined,
    RunWaiting,
)
from limpet.graphs.plan import PLANNER, budget_setting
from limpet.journal.progress import Progress
from limpet.journal.store import CANCELLED
from limpet.journal.waits import CHILD_RUN, MESSAGE, Question, reason_of

if TYPE_CHECKING:
    from limpet.engine.loop.node_loop import NodeLoop

NEW_DEADLINE: Final = "give it a new one: resume({0!r}, deadline=…), or get({0!r}).retry(deadline=…)"
"""What to do with a run whose deadline has passed."""


class Failure(NamedTuple):
    """Why a run failed: the loop and the node where it did, and the nodes on the way there.

    `node` is empty where the run as a whole failed. `overdue` says that the run's deadline has passed.
    """

    reason: str
    cause: BaseException | None
    at: NodeLoop
    node: str
    path: Iterable[str]
    overdue: bool = False


def changes_at_deadline(progress: Progress) -> dict[str, Any]:
    """What is recorded of a run that fails because its deadline has passed, besides its status.

    A retry finds it where it was, and it asks again.
    """
    reason = missed_deadline(progress)
    error = {"type": DeadlinePassed.__name__, "message": reason, "node": only_node(progress)}
    changes: dict[str, Any] = {"reason": reason, "error": error, "questions": []}
    if progress.is_at_interrupt:
        changes["cleared"] = False  # nothing has approved it
    return changes


def missed_deadline(progress: Progress) -> str:
    """Why a run fails whose deadline has passed."""
    assert progress.deadline is not None
    at = datetime.fromtimestamp(progress.deadline, UTC)
    return f"its deadline passed at {at:%Y-%m-%d %H:%M:%S} UTC"


def only_node(progress: Progress) -> str:
    """The node that a run is at, if it is at one only; empty if it is at several, or between layers of a workflow.

    An error of the run as a whole names it, so it must not be one of many, or a node that the user didn't write.
    """
    places = [each for each in progress.branches_under_way() if each[1].section is None]
    if len(places) == 1 and places[0][1].node != PLANNER:
        path, branch = places[0]
        return progress.path_name(path, branch.node)
    if places or progress.section is not None or progress.node == PLANNER:
        return ""
    return progress.node


def deadline_passed(
    run_id: str, reason: str, node: str, state: Mapping[str, Any] | None = None, path: Iterable[str] = ()
) -> DeadlinePassed:
    """The error of a run whose deadline has passed, for the reason that `missed_deadline` gives."""
    where = f"run {run_id!r}"
    if node:
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


def error_of_paused(progress: Progress, questions: Sequence[Question]) -> RunPaused:
    """Why a run gives no result that waits for an answer or an approval."""
    given = "answer"
    if not questions:
        given = "update"
    elif len(questions) > 1:
        given = "{question id: answer, …}"
    reason = f"{progress.reason} — resume({progress.run_id!r}, {given}) continues it"
    return RunPaused(progress.run_id, reason, questions, progress.current_node())


def error_of_waiting(progress: Progress) -> RunWaiting:
    """Why a run gives no result that waits for a post."""
    run_id = progress.run_id
    waits = progress.all_waits()
    waiting = RunWaiting(run_id, reason_of(waits), waits, progress.current_node())
    names = [wait.name for wait in waits if wait.kind == MESSAGE]
    children = [wait.name for wait in waits if wait.kind == CHILD_RUN]
    if children:
        advice = (
            f"get({children[0]!r}) says what that waits for; a worker continues this run when it has ended"
        )
        return waiting.with_advice(advice, "watch")
    if not names:
        return waiting.with_advice(f"a worker continues it then; resume({run_id!r}) does it here", "resume")
    sent = (
        f"send({run_id!r}, {names[0]!r}, …) sends it; then a worker, or resume({run_id!r}), continues the run"
    )
    return waiting.with_advice(sent, "send")
