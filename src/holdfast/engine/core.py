"""The loop. One generator runs every graph: started, resumed, forked or recovered, sync or async.

It reads no clock, file or random number and waits for nothing. It *yields* what is to be done and is sent
what came of it; a driver does the doing:

    yields              is sent
    `Task`              what the node returned, or a `Failed`, `Asked` or `Cancelled`
    `Commit`            once it is durable, None or the reference a checkpointer gave it; else the exception
    `Wait`              None when the time is over, or a `Cancelled`
    `Report`            None; the event is for whoever iterates the run

and returns a `Verdict`. Rules that hold wherever it stops:

- A node's update is applied, and its position moves on, only after it returned; it is reported only after
  it is durable, where this step is to be saved.
- What comes next is decided once and stored. Only a stop after a node leaves the choice to the resume.
- Nothing that stops a run (a pause, an interrupt, a failure, a cancellation, the end) goes unsaved.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from holdfast.engine.accounts import error_data, summary, told
from holdfast.engine.changes import Changes, detached
from holdfast.engine.commands import (
    UNFINISHED,
    Asked,
    Cancelled,
    Command,
    Ending,
    Failed,
    Report,
    Verdict,
    Wait,
)
from holdfast.engine.task import Keep, Scope, Task
from holdfast.errors import Conflict, ExecutionError, RunCancelled, RunNotFound
from holdfast.graphs.plan import END, Choice, Edge, Plan, PlanNode
from holdfast.graphs.state import State
from holdfast.journal.copies import detached_value
from holdfast.journal.ledger import Ledger
from holdfast.journal.progress import AFTER, BEFORE, FAILED_PHASE, Progress, Question
from holdfast.journal.store import CANCELLED, COMPLETED, FAILED, PAUSED, RUNNING, Commit, Signalled
from holdfast.observe import events
from holdfast.observe.hub import Emit


class Core:
    """One run of a plan, from wherever its progress says it is."""

    def __init__(
        self,
        plan: Plan,
        progress: Progress,
        ledger: Ledger | None,
        *,
        clock: Callable[[], float],
        chance: Callable[[], float],
        emit: Emit | None = None,
        interval: int = 1,
        preserve: bool = False,
        stream: bool = False,
        resumed: bool = False,
        keep: Keep | None = None,
        guard: AbstractContextManager[Any] | None = None,
        way_out: str = "",
    ) -> None:
        state = progress.state
        assert isinstance(state, State)
        self.plan, self.progress, self.state, self.ledger = plan, progress, state, ledger
        self.clock, self.chance, self.emit = clock, chance, emit
        self.interval, self.preserve, self.stream, self.way_out = interval, preserve, stream, way_out
        self.changes = Changes(state, plan.schema.reducers, durable=ledger is not None)
        self.resumed, self._reported = resumed, progress.step
        self.scope = Scope(plan, progress, keep, guard or nullcontext())

    def run(self) -> Generator[Command, Any, Verdict]:
        """The loop. See the module's text."""
        plan, p, state, ledger, emit = self.plan, self.progress, self.state, self.ledger, self.emit
        nodes, limit, stream = plan.nodes, plan.max_iterations, self.stream
        before, after = plan.interrupt_before, plan.interrupt_after
        scope, clock, hand_out, collect = self.scope, self.clock, self.changes.private, self.changes.collect
        watched = ledger is not None or bool(plan.schema.reducers)
        straight = emit is None and not after
        interval, unsaved = self.interval, before | {END}  # a step that stops the run is saved with the stop
        stopped = yield from self._arrive()
        if stopped is not None:
            return stopped
        while (name := p.node) != END:
            if before and name in before and not p.cleared:
                return (yield from self._pause(f"interrupted before {name!r}"))
            if p.iterations >= limit:
                reason = f"max_iterations ({limit}) exceeded; a resume needs a graph that allows more"
                return (yield from self._fail(reason, None, FAILED_PHASE))
            node = nodes[name]
            private = hand_out(watched or node.retry is not None)
            task = scope.task = Task(scope, node, private, p.attempts + 1, p.step + 1)
            if emit is not None:
                self._announce(task)
            outcome = yield task
            if type(outcome) is dict or type(outcome) not in UNFINISHED:
                try:
                    outcome = collect(private, outcome)
                except Exception as error:
                    outcome = Failed(error, again=False)
            if type(outcome) is not bytes:
                stopped = yield from self._unfinished(task, outcome)
                if stopped is not None:
                    return stopped
                continue
            if task.used is None:
                scope.task = None
            else:
                task.close()
            if emit is not None:
                self._conclude(task, None)
            state.checkpoint_node = name
            state._at = at = clock()
            following: str | Failed | None = node.follower if straight else None
            if following is None and name not in after:
                following = self._following(node)
            decided = following if type(following) is str else None
            p.complete(name, at, decided)
            if ledger is not None:
                ledger.step(p, outcome, decided)
            if decided is None:
                return (yield from self._stop_after(following))
            if ledger is not None and not (interval == 0 or p.iterations % interval or decided in unsaved):
                commit = ledger.commit()
                answer = yield commit
                if isinstance(answer, Exception):
                    return (yield from self._unsaved(answer))
                self._saved(commit)
            if stream and decided not in unsaved:
                yield self._step_report()
        return (yield from self._finish())

    def _arrive(self) -> Generator[Command, Any, Verdict | None]:
        """Begin where the progress says: after a node, what follows is chosen first. A Verdict ends it there."""
        p = self.progress
        if p.phase == AFTER:
            if p.node in self.plan.interrupt_after and not p.cleared:
                return (yield from self._stop_after(None))
            chosen = self._following(self.plan.nodes[p.node])
            if isinstance(chosen, Failed):
                return (yield from self._stop_after(chosen))
            self._note({"node": chosen, "phase": BEFORE, "cleared": False})
        if self.resumed:
            self._tell(events.CHECKPOINT_RESUME, checkpoint_node=p.made_by, resume_node=p.node)
        return None

    def _following(self, node: PlanNode) -> str | Failed:
        """What comes after a node that completed, or why that can't be told."""
        try:
            if node.tests is not None and self.emit is None:
                state = self.state
                for holds, target in node.tests:
                    if holds(state):
                        return target
            else:
                for way in node.ways:
                    taken = self._tried(way)
                    if taken is not None:
                        if taken != END:
                            self._tell(events.EDGE_TRANSITION, **{"from": node.name, "to": taken})
                        return taken
        except Exception as error:
            return Failed(error)
        if node.exit:
            return END
        return Failed(LookupError(f"no edge from {node.name!r} holds in this state, and it is no exit point"))

    def _tried(self, way: Edge | Choice) -> str | None:
        """Where a way leads now, or None if it isn't taken."""
        asked = way.asks
        if asked is None:
            result: Any = True
        elif asked.plain:
            result = asked.call(self.state)
        else:
            result = asked.call(**asked.arguments(self._offer(way).get))
        target = way.leads(result, self.plan.nodes)
        tried = {"from": way.source, "to": target or way.targets[0], "result": target is not None}
        self._tell(events.EDGE_EVALUATE, **tried)
        return target

    def _offer(self, way: Edge | Choice) -> dict[str, Any]:
        config = detached_value(self.progress.config)
        return {"state": self.state, "config": config, "node": way.source, "graph": self.plan.graph}

    def _unfinished(
        self, task: Task, outcome: Failed | Asked | Cancelled
    ) -> Generator[Command, Any, Verdict | None]:
        """A node didn't complete: try again (None), or stop the run (a Verdict)."""
        task.close()
        self.changes.undo(task.state)
        if self.emit is not None:
            self._conclude(task, outcome)
        match outcome:
            case Asked(question, note):
                return (yield from self._pause(f"{task.node!r} asks: {question.prompt}{note}", [question]))
            case Cancelled():
                return (yield from self._cancel())
            case Failed(error, again):
                retry = task.plan_node.retry
                if again and retry is not None and retry.applies(error, task.attempt):
                    return (yield from self._again(task, error, retry.delay(task.attempt, self.chance())))
                return (yield from self._fail(told(error), error, FAILED_PHASE))

    def _again(
        self, task: Task, error: BaseException, delay: float
    ) -> Generator[Command, Any, Verdict | None]:
        """Count the failed attempt, durably, and wait. None means: try again."""
        ledger = self.ledger
        self._tell(events.NODE_RETRY, node=task.node, attempt=task.attempt, delay=delay, error=told(error))
        self._note({"attempts": task.attempt, "error": error_data(error, task.node)})
        if ledger is not None:
            commit = ledger.commit()
            answer = yield commit
            if isinstance(answer, Exception):
                return (yield from self._unsaved(answer))
            self._saved(commit)
        if isinstance((yield Wait(delay)), Cancelled):
            return (yield from self._cancel())
        return None

    def _stop_after(self, following: Failed | str | None) -> Ending:
        """The node completed, but what follows isn't decided: it is to be, at the resume."""
        if not isinstance(following, Failed):
            return (yield from self._pause(f"interrupted after {self.progress.node!r}"))
        reason = f"choosing what follows failed: {told(following.error)}"
        return (yield from self._fail(reason, following.error, AFTER))

    def _pause(self, reason: str, questions: Sequence[Question] = ()) -> Ending:
        p = self.progress
        asked = [question.to_data() for question in questions]
        changes = {"status": PAUSED, "reason": reason, "questions": asked, "cleared": True}
        saved = yield from self._stop(PAUSED, changes)
        if isinstance(saved, Verdict):
            return saved
        self._tell(events.RUN_PAUSE, node=p.node, reason=reason)
        event = {"node": p.node, "state": detached(self.state), "checkpoint_path": saved, "run_id": p.run_id}
        if questions:
            yield Report({"type": "pause", **event, "questions": asked})
        else:
            yield Report({"type": "interrupt", **event})
        return Verdict(PAUSED, questions=p.questions)

    def _fail(self, reason: str, cause: BaseException | None, phase: str) -> Ending:
        p = self.progress
        described = error_data(cause, p.node) if cause else {"type": "", "message": reason, "node": p.node}
        changes = {"status": FAILED, "reason": reason, "phase": phase, "error": described, "cleared": True}
        saved = yield from self._stop(FAILED, changes)
        if isinstance(saved, Verdict):
            if saved.error is not None:
                saved.error.add_note(f"This was to save that {p.node!r} had failed: {reason}")
                saved.error.__context__ = cause
            return saved
        path = p.path if phase == AFTER else [*p.path, p.node]
        return (yield from self._failed(reason, cause, p.node, path, saved))

    def _cancel(self) -> Ending:
        p = self.progress
        saved = yield from self._stop(CANCELLED, {"status": CANCELLED, "reason": "cancelled"})
        if isinstance(saved, Verdict):
            return saved
        self._tell(events.RUN_CANCEL, node=p.node)
        yield Report({"type": "cancelled", "node": p.node, "state": detached(self.state), "run_id": p.run_id})
        message = f"run {p.run_id!r} was cancelled before {p.node!r}; what it saved can be resumed"
        return Verdict(CANCELLED, RunCancelled(message, p.run_id))

    def _finish(self) -> Ending:
        p = self.progress
        saved = yield from self._stop(
            COMPLETED, {"status": COMPLETED, "reason": None}, purge=not self.preserve
        )
        if isinstance(saved, Verdict):
            return saved
        if self.emit is not None:
            self._tell(events.GRAPH_COMPLETE, exit_point=p.made_by, iterations=p.iterations)
        yield Report({"type": "final", "state": self.state._copy(), "run_id": p.run_id})
        return Verdict(COMPLETED)

    def _stop(
        self, status: str, changes: dict[str, Any], purge: bool = False
    ) -> Generator[Command, Any, Verdict | str]:
        """Save where the run stops. Gives the checkpoint's reference, or a Verdict if it can't be saved."""
        p, ledger = self.progress, self.ledger
        cleared = p.cleared
        self._note(changes)
        if ledger is None:
            if self.stream and p.step != self._reported:
                yield self._step_report()
            return ""
        commit = ledger.commit(status, summary(p), purge, heed=status == PAUSED)
        answer = yield commit
        if isinstance(answer, Exception):
            self._note({"cleared": cleared, "questions": []})
            return (yield from self._unsaved(answer))
        self._saved(commit)
        if self.stream and p.step != self._reported:
            yield self._step_report()
        return answer or f"{p.run_id}@{p.step}"

    def _step_report(self) -> Report:
        """The event of the step that completed last. It is reported once, and after it was saved."""
        self._reported = self.progress.step
        return Report({"type": "state", "node": self.progress.made_by, "state": detached(self.state)})

    def _note(self, changes: dict[str, Any]) -> None:
        """Something other than a completed node happened: move on by it, and have it in the next commit."""
        if self.ledger is None:
            self.progress.move(changes)
        else:
            self.ledger.move(self.progress, changes, self.clock())

    def _saved(self, commit: Commit) -> None:
        assert self.ledger is not None
        self.ledger.acknowledged(commit)
        if self.emit is not None:
            self._tell(events.CHECKPOINT_SAVE, node=self.progress.made_by, step=self.progress.step)

    def _unsaved(self, refusal: Exception) -> Ending:
        """A commit was refused: heed the signal, let go of a run that is somebody else's, or fail."""
        if isinstance(refusal, Signalled):
            return (yield from self._cancel())
        if isinstance(refusal, (Conflict, RunNotFound)):
            return Verdict(RUNNING, refusal)
        p = self.progress
        reason = f"checkpoint save failed: {told(refusal)}"
        return (yield from self._failed(reason, refusal, p.made_by or p.node, p.path))

    def _failed(
        self, reason: str, cause: BaseException | None, node: str, path: Iterable[str], saved: str = ""
    ) -> Ending:
        """The end of a run that can't go on, saved or not."""
        p = self.progress
        seen = detached(self.state)
        error = ExecutionError(
            reason, run_id=p.run_id, node=node, state=seen, path=path, cause=cause, way_out=self.way_out
        )
        self._tell(events.RUN_FAIL, node=node, error=reason)
        event = {"node": node, "error": reason, "exception": error, "state": seen, "run_id": p.run_id}
        yield Report({"type": "error", **event, **({"checkpoint_path": saved} if saved else {})})
        return Verdict(FAILED, error)

    def _announce(self, task: Task) -> None:
        p, iteration = self.progress, self.progress.iterations + 1
        if task.visit > 1 and task.attempt == 1:
            self._tell(
                events.CYCLE_DETECTED,
                node=task.node, visit_count=task.visit, iteration=iteration, path_length=p.iterations + 1,
            )  # fmt: skip
        task.began = self.clock()
        self._tell(events.NODE_START, node=task.node, iteration=iteration, attempt=task.attempt)

    def _conclude(self, task: Task, outcome: Failed | Asked | Cancelled | None) -> None:
        if isinstance(outcome, (Asked, Cancelled)):
            return
        self._tell(
            events.NODE_COMPLETE,
            node=task.node, iteration=self.progress.iterations + 1,
            error=isinstance(outcome, Failed), duration=self.clock() - task.began,
        )  # fmt: skip

    def _tell(self, kind: str, **data: Any) -> None:
        if self.emit is not None:
            self.emit(kind, self.plan.name, {"run_id": self.progress.run_id, **data})
