"""A run as a whole: the table of run statuses, and a run from where it stands to its next stop.

It is as pure as the loop: see `node_loop.py` for what it yields. It returns a `Verdict`. Whatever stops a run
(a pause, an interrupt, a failure, a cancellation, the end) is saved before it is reported.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Final

from limpet.engine.loop.driver_commands import Command, Ending, PostsArrived, Report, StopAsked, Verdict
from limpet.engine.loop.node_loop import NodeLoop
from limpet.engine.loop.node_outcomes import error_of, record, save_refused, step_saved
from limpet.engine.loop.run_context import WAITING, LoopStop, RunContext, changes_at_stop
from limpet.engine.loop.stop_errors import (
    Failure,
    advise_retry,
    changes_at_deadline,
    deadline_passed,
    error_of_stopped,
)
from limpet.engine.loop.taking_in import admission, give_up_turns, take_in, wait_here, waits_here
from limpet.engine.node_context.call_scope import Scope
from limpet.errors import (
    Conflict,
    ExecutionError,
    LimpetError,
    RunCancelled,
    RunNotFound,
)
from limpet.graphs.plan import PLANNER, Plan
from limpet.graphs.state import State, detached
from limpet.journal.progress import Progress
from limpet.journal.store import CANCELLED, COMPLETED, FAILED, PAUSED, RUNNING
from limpet.journal.waits import AFTER, BEFORE
from limpet.journal.writer import summary
from limpet.observe import events

NEW: Final = "new"
"""Stands for a run that isn't stored yet."""

START: Final = "start"
COMPLETE: Final = "complete"
PAUSE: Final = "pause"
INTERRUPT: Final = "interrupt"
FAIL: Final = "fail"
CANCEL: Final = "cancel"
SLEEP: Final = "sleep"
WAIT: Final = "wait"
QUARANTINE: Final = "quarantine"
RESUME: Final = "resume"
ANSWER: Final = "answer"
DEADLINE: Final = "deadline"
FORK: Final = "fork"
ROLLBACK: Final = "rollback"

RUN_STATUSES: Final[dict[str, dict[str, str]]] = {
    NEW: {START: RUNNING, FORK: PAUSED},
    RUNNING: {
        COMPLETE: COMPLETED,
        PAUSE: PAUSED,
        INTERRUPT: PAUSED,
        FAIL: FAILED,
        CANCEL: CANCELLED,
        SLEEP: RUNNING,
        WAIT: RUNNING,
        QUARANTINE: FAILED,
        RESUME: RUNNING,
        ANSWER: RUNNING,
        ROLLBACK: PAUSED,
    },
    PAUSED: {
        RESUME: RUNNING,
        ANSWER: RUNNING,
        DEADLINE: RUNNING,
        CANCEL: CANCELLED,
        ROLLBACK: PAUSED,
    },
    FAILED: {RESUME: RUNNING, ANSWER: RUNNING, ROLLBACK: PAUSED},
    CANCELLED: {RESUME: RUNNING, ROLLBACK: PAUSED},
    COMPLETED: {ROLLBACK: PAUSED},
}
"""For each stored status of a run: which events can happen to it, and the status that each leads to.

A run with status `running` isn't always under way: one that sleeps, waits for a message, or whose process crashed, is
stored as running, too. `resume` is what a user or a supervisor does; retrying a failed run is a resume. `answer` also
approves an interrupted run. `deadline` is a supervisor's resume of a run whose question was not answered in time. An
imported run keeps the status that it was exported with.
"""


def next_status(status: str, event: str) -> str:
    """The status that an event leads to. Raises `RuntimeError` for an event that can't happen in this status."""
    after = RUN_STATUSES[status].get(event)
    if after is None:
        raise RuntimeError(f"{event!r} can't happen to a run that is {status!r}: see RUN_STATUSES")
    return after


class RunLifecycle:
    """One run of a plan, from where its progress says it is."""

    def __init__(self, plan: Plan, context: RunContext) -> None:
        self.context = context
        self.progress: Progress = context.root
        self.loop = self._new_loop(plan)

    @property
    def state(self) -> State:
        """The state as it is."""
        return self.loop.reporter.state_so_far()

    def run(self) -> Generator[Command, Any, Verdict]:
        """Run to the next stop."""
        if self.context.reporting.repeats_stop:
            return (yield from self._repeat_stop())
        # The commit of a resume has made the run's stored status `running` before this. The progress may still say
        # why it stopped, if a branch still waits. What can't be resumed, above all a completed run, is refused here.
        next_status(self.progress.status, RESUME)
        if self.context.limits.is_overdue():
            return (yield from self._miss_deadline())
        while True:
            stop = (yield from admission(self.loop)) if self.context.limits.needs_admission else None
            first_stop = stop or (yield from self.loop.run())
            stop = first_stop
            if first_stop.status == WAITING and waits_here(self.context):
                stop = yield from wait_here(self.context, first_stop)
            if stop is not None and (verdict := (yield from self._end(stop))) is not None:
                return verdict
            # An answer, or a message, came just before the run would have stopped for it, so it continues.
            self.loop = self._new_loop(self.loop.plan)

    def _end(self, stop: LoopStop) -> Generator[Command, Any, Verdict | None]:
        """Save and report why the run stops. None if it doesn't stop after all."""
        match stop.status:
            case "completed":
                return (yield from self._complete())
            case "paused":
                return (yield from self._pause(stop))
            case "failed":
                return (yield from self._fail(stop))
            case "cancelled" if self.context.cancel_requested or not self.context.limits.is_handover():
                return (yield from self._cancel())
            case "cancelled" | "sleeping" | "waiting":
                return (yield from self._leave(stop))
            case _:
                assert isinstance(stop.cause, Exception)
                return (yield from self._refused(stop.cause))

    def _new_loop(self, plan: Plan) -> NodeLoop:
        return NodeLoop(self.context, Scope(self.context.services, plan, self.context.root))

    def joined_results(self) -> list[dict[str, Any]] | None:
        """The results of the branches, if the run stands at their fan-in, before or after it."""
        step, results = self.loop.results_at_step
        if self.progress.phase == AFTER and step == self.progress.step:
            return results
        return self.loop.scope.joined_results()

    def _complete(self) -> Ending:
        p = self.progress
        saving = self.context.saving
        saved = yield from self._save_stop(COMPLETE, {"reason": None}, purge=saving.purges)
        if isinstance(saved, Verdict):
            return saved
        if saving.purges or self.context.save_error is not None:
            # Its journal is deleted or incomplete, so the state has no checkpoint to resume from.
            self.loop.state._saved = None
        reporter = self.loop.reporter
        if self.context.reporting.emit is not None:
            last = None if self.loop.planning else p.made_by
            reporter.notify(events.GRAPH_COMPLETE, exit_point=last, iterations=p.iterations)
        return (yield from self._report_complete())

    def _report_complete(self) -> Ending:
        # The run is over, so the caller gets its values as they are: copying large ones would cost.
        event = {"state": self.state._copy(), "run_id": self.progress.run_id}
        yield from _reports(self.loop.reporter.stream_events.run_completes(event))
        return Verdict(COMPLETED)

    def _repeat_stop(self) -> Ending:
        """Report once more why a stored run stopped."""
        p = self.progress
        if p.status == COMPLETED:
            return (yield from self._report_complete())
        if p.status in (FAILED, CANCELLED):
            return (yield from self._repeat_end())
        is_own = bool(p.questions) or not any(p.stopped_branches())
        yield from self._report_waits(is_own, p.checkpoint_id)
        return Verdict(PAUSED, questions=p.open_questions())

    def _repeat_end(self) -> Ending:
        """Report once more that a stored run has failed, or was cancelled."""
        p = self.progress
        stored = p.error or {}
        node = stored.get("node", p.current_node())
        error = error_of_stopped(p.run_id, p.status, p.reason, stored.get("type"), node)
        state = self.loop.reporter.state_copy()
        event: dict[str, Any] = {"node": node or None, "state": state, "run_id": p.run_id}
        if p.status == CANCELLED:
            yield Report({"type": "cancelled", **event, "node": self._own_node()})
        else:
            if isinstance(error, ExecutionError):
                error.state = event["state"]
            event |= {"error": p.reason, "exception": error, "checkpoint_path": p.checkpoint_id}
            yield from _reports(self.loop.reporter.stream_events.run_fails(event))
        return Verdict(p.status, error)

    def _pause(self, stop: LoopStop) -> Generator[Command, Any, Verdict | None]:
        p = self.progress
        event = PAUSE if stop.questions else INTERRUPT
        saved = yield from self._save_stop(event, self._changes(stop))
        if saved is None:
            return None
        if isinstance(saved, Verdict):
            if saved.error is not None:
                saved.error.add_note(f"The save was for the run's pause: {stop.reason}")
            return saved
        self.loop.reporter.notify(events.RUN_PAUSE, node=p.current_node(), reason=stop.reason)
        yield from self._report_waits(stop.at is self.loop, saved)
        return Verdict(PAUSED, questions=p.open_questions())

    def _report_waits(self, is_own: bool, saved: str) -> Generator[Command, Any, None]:
        """Report what the run waits for: where its own loop stopped, if that `is_own`, and where each branch did."""
        p = self.progress
        reporter = self.loop.reporter
        common = {"checkpoint_path": saved, "run_id": p.run_id}
        if is_own:
            event: dict[str, Any] = {"node": p.node, "state": detached(self.state), **common}
            if p.section is not None and p.phase == BEFORE and p.section.layer is None:
                event["parallel_results"] = self.loop.scope.results()
            yield from _reports(reporter.stream_events.waits(event, p))
        for path, branch in p.stopped_branches():
            if branch.waits:
                continue
            state = State(branch.state, run_id=p.run_id, checkpoint_node=branch.made_by, timestamp=branch.at)
            if secrets := self.context.reporting.masker.names:
                state._secrets = secrets
            event = {"node": branch.node, "branch": p.path_name(path), "state": detached(state), **common}
            yield from _reports(reporter.stream_events.waits(event, branch))

    def _fail(self, stop: LoopStop) -> Ending:
        at = stop.at or self.loop
        node = at.scope.place(at.progress.node)
        saved = yield from self._save_stop(FAIL, self._changes(stop))
        assert saved is not None
        if isinstance(saved, Verdict):
            if saved.error is not None:
                saved.error.add_note(f"The save was for the failure of node {node!r}: {stop.reason}")
                saved.error.__context__ = stop.cause
            return saved
        path = [*at.progress.path]
        if stop.phase != AFTER:
            path.append(at.progress.node)
        if at.nested:
            path = [*self.progress.path, *map(at.scope.place, path)]
        failure = Failure(stop.reason, stop.cause, at, node, path)
        return (yield from self._report_failure(failure, saved))

    def _cancel(self) -> Ending:
        p = self.progress
        if self.context.limits.is_overdue():
            return (yield from self._miss_deadline())
        saved = yield from self._save_stop(CANCEL, {"reason": "cancelled"})
        if isinstance(saved, Verdict):
            return saved
        reporter = self.loop.reporter
        node = self._own_node()
        reporter.notify(events.RUN_CANCEL, node=node)
        yield Report({"type": "cancelled", "node": node, "state": reporter.state_copy(), "run_id": p.run_id})
        where = "" if node is None else f" before {node!r}"
        message = f"run {p.run_id!r} was cancelled{where}; what it saved can be resumed"
        return Verdict(CANCELLED, RunCancelled(message, p.run_id))

    def _own_node(self) -> str | None:
        """The node that the run itself is at. A workflow as a whole is at none that its user wrote."""
        return None if self.loop.planning else self.progress.node

    def _miss_deadline(self) -> Ending:
        """The run fails because its deadline has passed."""
        p = self.progress
        changes = changes_at_deadline(p)
        saved = yield from self._save_stop(FAIL, changes)
        assert saved is not None
        if isinstance(saved, Verdict):
            return saved
        failure = Failure(changes["reason"], None, self.loop, changes["error"]["node"], p.path, overdue=True)
        return (yield from self._report_failure(failure, saved))

    def _leave(self, stop: LoopStop) -> Generator[Command, Any, Verdict | None]:
        """Leave the run where it is, for another process to resume when it is due. None if it continues here."""
        p = self.progress
        writer = self.context.saving.writer
        if writer is None:
            return Verdict(RUNNING)
        waits = stop.status == WAITING
        status = next_status(RUNNING, WAIT if waits else SLEEP)
        due = p.due_when_released()
        # The commit of the last step was refused by the request to stop, so this one stores the step.
        stores_step = self.context.limits.is_handover() and writer.pending > 0 and not self.loop.planning
        answer = yield writer.commit(status, summary(p), due=due)
        while isinstance(answer, PostsArrived):
            taken = take_in(self.context, answer.posts)
            if self.context.cancel_requested:
                return (yield from self._cancel())
            if waits and taken.wakes_nodes:
                return None
            yield from give_up_turns(self.context)
            due = p.due_when_released()  # earlier, maybe, with an answer
            answer = yield writer.commit(status, summary(p), due=due)
        if isinstance(answer, LimpetError):
            return Verdict(RUNNING, answer)
        if isinstance(answer, Exception):
            return Verdict(RUNNING)
        if stores_step or waits:
            step_saved(self.loop, reported=not stores_step)
        if waits:
            yield from self.loop.reporter.run_waits()
            return Verdict(WAITING)
        self.loop.reporter.notify(events.RUN_SLEEP, node=p.current_node(), due=due)
        return Verdict(RUNNING)

    def _save_stop(
        self, event: str, changes: dict[str, Any], purge: bool = False
    ) -> Generator[Command, Any, Verdict | str | None]:
        """Save where the run stops. Returns the checkpoint's reference, or a Verdict if it can't be saved.

        None means that the run doesn't stop: the answer to a question for which it would have paused has come.
        """
        p = self.progress
        loop = self.loop
        writer = self.context.saving.writer
        status = next_status(RUNNING, event)
        before: dict[str, Any] = {
            "status": RUNNING,
            "reason": None,
            "phase": p.phase,
            "cleared": p.cleared,
            "questions": [],
        }
        record(loop, {"status": status, **changes})
        answer: Any = None
        if writer is not None:
            answer = yield writer.commit(status, summary(p), purge, self._due_after(status))
            while isinstance(answer, PostsArrived):
                # A request to cancel wins over a pause, which nothing has reported yet. Any other stop ends the
                # run, as the request wants, and so fulfils it.
                taken = take_in(self.context, answer.posts, stops=status != PAUSED)
                if status == PAUSED and (taken.wakes_nodes or self.context.cancel_requested):
                    record(loop, before)
                    if self.context.cancel_requested:
                        return (yield from self._cancel())
                    return None
                due = self._due_after(status)
                answer = yield writer.commit(status, summary(p), purge, due, takes=taken.newest)
            if isinstance(answer, Exception):
                if status != COMPLETED or not self.context.tolerates(answer):
                    # A stop that isn't saved didn't happen: nothing has reported it, and a resume wouldn't find it.
                    record(loop, before)
                    return (yield from self._refused(answer))
                answer = yield from save_refused(loop, answer)
            else:
                # When a workflow completes, its last layer was reported when that was saved.
                step_saved(loop, reported=status == COMPLETED and loop.planning)
        if p.iterations != loop.reporter.reported_iterations:
            yield from loop.reporter.stream_step()
        if answer:
            return str(answer)
        if writer is None:
            return ""
        loop.state._saved = p.checkpoint_id
        return p.checkpoint_id

    def _due_after(self, status: str) -> float | None:
        """When a run that stops with this status needs a process by itself: when a question's deadline passes."""
        if status == PAUSED:
            return self.progress.due()
        return None

    def _changes(self, stop: LoopStop) -> dict[str, Any]:
        """What is recorded of a stop: all of it where the run's own loop stopped; a branch has recorded its own."""
        error = error_of(self.loop, stop)
        if stop.at is self.loop:
            return changes_at_stop(stop, error)
        changes: dict[str, Any] = {"reason": stop.reason}
        if stop.status == FAILED:
            changes["error"] = error
        return changes

    def _refused(self, refusal: Exception) -> Ending:
        """The store refused a commit: cancel the run if it was asked to stop, leave it to its new holder, or fail."""
        if isinstance(refusal, StopAsked):
            return (yield from self._cancel())
        if isinstance(refusal, (Conflict, RunNotFound)):
            return Verdict(RUNNING, refusal)
        p = self.progress
        loop = self.loop
        writer = self.context.saving.writer
        reason = f"checkpoint save failed: {loop.reporter.error_line(refusal)}"
        node = p.made_by or p.node
        path: Iterable[str] = p.path
        if p.section is not None:
            if loop.planning:
                path = list(map(str, p.section.children))
            if writer is not None:
                node = p.node
                # Branches may have finished nodes meanwhile. A second commit may succeed and keep them.
                yield writer.commit(ignores_posts=True)
        if loop.planning:
            node = ""
        return (yield from self._report_failure(Failure(reason, refusal, loop, node, path)))

    def _report_failure(self, failure: Failure, saved: str = "") -> Ending:
        """Report that the run has failed, whether that could be saved or not."""
        run_id = self.progress.run_id
        failed_at = failure.at
        if failed_at.scope.in_layer:
            # The state of a task is its own result only. A reader wants the workflow's.
            failed_at = self.loop
        state = failed_at.reporter.state_copy()
        path = [name for name in failure.path if name != PLANNER]
        error: ExecutionError
        if failure.overdue:
            error = deadline_passed(run_id, failure.reason, failure.node, state, path)
        else:
            error = ExecutionError(
                failure.reason, run_id=run_id, node=failure.node, state=state, path=path, cause=failure.cause
            )
        if self.context.saving.writer is not None:
            advise_retry(error, failure.reason)
        reporter = self.loop.reporter
        reporter.notify(events.RUN_FAIL, node=failure.node or None, error=failure.reason)
        event = {
            "node": failure.node or None,
            "error": failure.reason,
            "exception": error,
            "state": state,
            "run_id": run_id,
        }
        if saved:
            event["checkpoint_path"] = saved
        yield from _reports(reporter.stream_events.run_fails(event))
        return Verdict(FAILED, error)


def _reports(reported: Iterable[dict[str, Any]]) -> Generator[Command, Any, None]:
    """Events that the caller always gets, whether it iterates every step or not."""
    for event in reported:
        yield Report(event)
