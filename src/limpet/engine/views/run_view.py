"""A run as a notebook shows it: a session of this process, or a run in a store. Nothing here starts or changes a run.

A store is asked in a thread, and not waited for longer than `LONGEST_LOOK`: a cell that shows a run never hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from limpet.drawing.notebook import (
    NextStep,
    RunView,
    StateTable,
    quietly,
    run_as_html,
    state_table,
    text_as_html,
    utc_time_text,
)
from limpet.drawing.run_marks import RunMarks, marks_of_progress, marks_of_stored_run
from limpet.drawing.shown_values import Secrets, secrets_in
from limpet.engine.leases.lease_client import LeaseClient
from limpet.engine.loop.driver_commands import Verdict
from limpet.engine.loop.run_context import WAITING
from limpet.engine.loop.stop_errors import error_of_waiting
from limpet.engine.operations.run_info import RunInfo, info_of
from limpet.engine.operations.stored_state import secrets_of, viewed_progress
from limpet.engine.sessions.compiled_graph import CompiledGraph
from limpet.engine.views.next_steps import (
    ANSWER_STORED,
    ARESUME,
    RESUME,
    CallStyle,
    masked_questions,
    step_of_error,
    step_to_approve,
    steps_of_stored,
    steps_to_answer,
)
from limpet.errors import LimpetError, RunNotFound, StoreUnavailable
from limpet.graphs.edges import END
from limpet.graphs.plan import PLANNER, Plan
from limpet.graphs.state import LiveState, State
from limpet.journal.progress import Progress
from limpet.journal.store import COMPLETED, PAUSED, RunHead
from limpet.threads.workers import Monitor, start_thread

if TYPE_CHECKING:
    from limpet.engine.sessions.session import Session

T = TypeVar("T")

LONGEST_LOOK: Final = 5.0
"""Seconds after which a store that hasn't answered is shown as one that doesn't."""


INTERRUPTED: Final = "interrupted"
"""How the status of a run is shown whose caller has left it."""


class OpenRun(NamedTuple):
    """A run that a caller of this process drives, as far as it has come: no session if it hasn't begun."""

    run_id: str
    status: str
    session: Session | None
    verdict: Verdict | None
    is_async: bool


class StoredMarks(NamedTuple):
    """The marks of a stored run, with its head; and whether what it did is kept."""

    head: RunHead
    marks: RunMarks
    is_kept: bool


def html_of_open(run: OpenRun, text: str) -> str | None:
    """What is shown of a run of this process; `text` if it hasn't begun. None if that fails."""
    if run.session is None:
        return text_as_html(text)
    return quietly(lambda: run_as_html(view_of_open(run)))


def html_of_stored(client: LeaseClient, run_id: str, compiled: CompiledGraph | None) -> str | None:
    """What is shown of a run in a store. None if that fails."""
    return quietly(lambda: run_as_html(view_of_stored(client, run_id, compiled)))


def view_of_open(run: OpenRun) -> RunView:
    """A run of this process, with its state: by its journal if it has one, else by what is known here.

    If it has continued elsewhere since it stopped here, it is shown as it is by now.
    """
    session = run.session
    assert session is not None
    view = live_view(run)._replace(state=_state_of_session(session))
    client = session.compiled.client
    if client is None:
        return view
    plan = session.compiled.plan
    stored = _within_limit(lambda: _stored_marks(client, run.run_id, plan))
    if isinstance(stored, RunNotFound) and run.status == COMPLETED:
        return view  # its result isn't kept
    if isinstance(stored, LimpetError):
        return view._replace(problem=str(stored))
    if run.verdict is not None and _has_moved_on(session, stored.head):
        return view_of_stored(client, run.run_id, session.compiled)
    if not stored.is_kept:
        return view
    return view._replace(marks=stored.marks._replace(status=run.status))


def live_view(run: OpenRun) -> RunView:
    """A run of this process without its state, by what is known here alone: quick, also while it is under way."""
    session = run.session
    assert session is not None
    progress = session.progress
    plan = session.compiled.plan
    view = RunView(
        title=progress.graph or plan.name,
        status=run.status,
        facts=_facts(run.run_id, progress.step, progress.current_node(), progress.at),
        plan=plan,
        marks=marks_of_progress(plan, progress, run.status),
    )
    if run.verdict is None:
        return view
    return view._replace(
        error=_error_of(progress, run.verdict.error), next_steps=_next_steps(run, progress, run.verdict)
    )


def interrupted_view(run: OpenRun) -> RunView:
    """A run of this process that its caller has left before it stopped, with its state: how to continue it."""
    session = run.session
    assert session is not None
    style = RESUME
    if run.is_async:
        style = ARESUME
    step = NextStep("It was interrupted. Nothing of it is saved, as it has no store.")
    if session.compiled.client is not None:
        words = "It was interrupted. Everything that it finished is saved. Resume it with:"
        step = NextStep(words, style.code(run.run_id))
    view = live_view(run._replace(status=INTERRUPTED))
    return view._replace(next_steps=[step], state=_state_of_session(session))


def view_of_stored(
    client: LeaseClient, run_id: str, compiled: CompiledGraph | None, with_state: bool = True
) -> RunView:
    """A run in a store, in any process, with its state: what of it can be read, and why the rest can't."""
    found = _within_limit(lambda: info_of(client, run_id))
    if not isinstance(found, RunInfo):
        return RunView(f"run {run_id}", "unknown", problem=str(found))
    plan: Plan | None = None
    style = ANSWER_STORED
    if compiled is not None and compiled.plan.name == found.graph:
        plan = compiled.plan
        style = RESUME
    # Without choices until it is known which secrets they may have in them.
    bare = [question._replace(choices=None) for question in found.questions]
    view = _view_of_info(found._replace(questions=bare), style)
    if found.problem is not None:
        return view
    if plan is not None:
        stored = _within_limit(lambda: _stored_marks(client, run_id, plan))
        if isinstance(stored, LimpetError):
            return view._replace(problem=str(stored))
        view = view._replace(plan=plan, marks=stored.marks._replace(status=found.shown_status))
    if not with_state and bare == found.questions:
        return view
    stored_state = _within_limit(lambda: _stored_state(client, run_id, plan))
    if isinstance(stored_state, LimpetError):
        return view._replace(problem=str(stored_state))
    state, secrets = stored_state
    masked = found._replace(questions=masked_questions(found.questions, secrets))
    view = view._replace(next_steps=steps_of_stored(masked, style))
    if not with_state:
        return view
    return view._replace(state=state_table(state, secrets))


def html_of_info(info: RunInfo) -> str | None:
    """What is shown of what a store knows of a run: all but its picture and its state."""
    return quietly(lambda: run_as_html(_view_of_info(info, ANSWER_STORED)))


def _view_of_info(info: RunInfo, style: CallStyle) -> RunView:
    error = None
    if info.error:
        error = (str(info.error.get("type", "")), str(info.error.get("message") or ""))
    elif info.reason and not info.questions and not info.waits_for_approval:
        error = (info.reason, "")
    return RunView(
        title=info.graph,
        status=info.shown_status,
        facts=_facts(info.run_id, info.step, info.node, info.updated),
        error=error,
        next_steps=steps_of_stored(info, style),
        problem=info.problem or "",
    )


def _facts(run_id: str, step: int, node: str, updated: float) -> list[tuple[str, str]]:
    facts = [("run", run_id), ("step", str(step))]
    if node and node not in (END, PLANNER):
        facts.append(("at", node))
    if updated:
        facts.append(("", utc_time_text(updated)))
    return facts


def _error_of(progress: Progress, error: LimpetError | None) -> tuple[str, str] | None:
    """The type and the text of an error; those of what a node raised, without secrets, where it is one."""
    if error is None:
        return None
    stored = progress.error
    if stored is not None and stored.get("type"):
        return str(stored["type"]), str(stored.get("message") or "")
    return type(error).__name__, error.message


def _next_steps(run: OpenRun, progress: Progress, verdict: Verdict) -> Sequence[NextStep]:
    style = RESUME
    if run.is_async:
        style = ARESUME
    if verdict.status == PAUSED and verdict.questions:
        assert run.session is not None
        masked = masked_questions(verdict.questions, _secrets_of_session(run.session))
        return steps_to_answer(run.run_id, masked, style)
    if verdict.status == PAUSED:
        return [step_to_approve(run.run_id, progress.reason or "paused", style)]
    if verdict.status == WAITING:
        return step_of_error(error_of_waiting(progress).advice)
    return step_of_error(getattr(verdict.error, "advice", ""))


def _state_of_session(session: Session) -> StateTable:
    return state_table(session.lifecycle.state, _secrets_of_session(session))


def _secrets_of_session(session: Session) -> Secrets:
    context = session.lifecycle.context
    names = session.compiled.plan.secrets | secrets_of(session.progress)
    return secrets_in(names, [session.lifecycle.state], context.reporting.masker.remembered)


def _stored_state(client: LeaseClient, run_id: str, plan: Plan | None) -> tuple[State, Secrets]:
    """The newest state of a run, and what to mask in it."""
    progress = viewed_progress(client, run_id)
    state = LiveState.from_data(progress.state_so_far())
    names = secrets_of(progress)
    if plan is not None:
        names |= plan.secrets
    return state, secrets_in(names, [state])


def _stored_marks(client: LeaseClient, run_id: str, plan: Plan) -> StoredMarks:
    tail = client.store.read(run_id, first=1)
    return StoredMarks(tail.head, marks_of_stored_run(plan, tail), bool(tail.records))


def _has_moved_on(session: Session, head: RunHead) -> bool:
    """Whether a process has advanced a run since it stopped in this one."""
    if session.writer is None:
        return head.status != session.progress.status
    return head.sequence > session.writer.sequence


def _within_limit(look: Callable[[], T]) -> T | LimpetError:
    """What a look at a store finds, or the error that it raises; an error, too, if it takes too long."""
    found: list[T | LimpetError] = []
    changed = Monitor()

    def look_now() -> None:
        try:
            found.append(look())
        except LimpetError as problem:
            found.append(problem)
        except Exception as problem:
            found.append(LimpetError(f"{type(problem).__name__}: {problem}"))
        changed.notify()

    start_thread(look_now, "limpet-view")
    changed.wait_for(lambda: found, LONGEST_LOOK)
    if found:
        return found[0]
    late = StoreUnavailable(f"the store hasn't answered within {LONGEST_LOOK:g} seconds")
    return late.with_advice("show the run again to see the rest")
