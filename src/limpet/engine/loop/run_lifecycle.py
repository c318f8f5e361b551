"""A run as a whole: its walk from wherever it stands to its next stop, and what is saved and told of that.

Pure like the walk: see there for what it yields. It returns a `Verdict`. Nothing that stops a run (a pause, an
interrupt, a failure, a cancellation, the end) goes unsaved.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any

from limpet.defaults import MAX_CONCURRENCY
from limpet.engine.loop.branches import BranchRunner
from limpet.engine.loop.commands import Command, Ending, Report, Verdict
from limpet.engine.loop.node_loop import NodeLoop
from limpet.engine.loop.run_context import LoopStop, RunContext, stop_changes
from limpet.engine.loop.state_changes import detached
from limpet.engine.node_context.scope import JournalLock, Keep
from limpet.errors import Conflict, ExecutionError, LimpetError, RunCancelled, RunNotFound
from limpet.graphs.plan import PLANNER, Plan
from limpet.graphs.secrets import SecretMasker
from limpet.graphs.state import State
from limpet.journal.progress import Progress
from limpet.journal.store import CANCELLED, COMPLETED, FAILED, PAUSED, RUNNING, OnSignal, Signalled
from limpet.journal.waits import AFTER, BEFORE
from limpet.journal.writer import JournalWriter, summary
from limpet.observe import events
from limpet.observe.hub import Emit


class RunLifecycle:
    """One run of a plan, from wherever its progress says it is."""

    def __init__(
        self,
        plan: Plan,
        progress: Progress,
        writer: JournalWriter | None,
        *,
        clock: Callable[[], float],
        chance: Callable[[], float],
        emit: Emit | None = None,
        interval: int = 1,
        preserve: bool = False,
        stream: bool = False,
        resumed: bool = False,
        keep: Keep | None = None,
        journal_lock: JournalLock | None = None,
        way_out: str = "",
        limit: int = MAX_CONCURRENCY,
        alone: bool = True,
        tolerant: bool = False,
        mark: Callable[[], None] | None = None,
        masker: SecretMasker | None = None,
        timer: Callable[[], float] | None = None,
        patience: float | None = None,
        leaving: Callable[[], bool] = bool,
    ) -> None:
        self.progress, self.writer, self.emit = progress, writer, emit
        self.preserve, self.stream, self.way_out = preserve, stream, way_out
        journal_lock = journal_lock or JournalLock()
        self.context = RunContext(
            progress, writer, clock, chance, emit, interval, stream, keep, journal_lock, limit, alone, resumed,
            tolerant, mark, timer or clock, patience, leaving, self._weave, masker or SecretMasker(plan.secrets),
        )  # fmt: skip
        self.walk = NodeLoop(self.context, plan, progress)

    @property
    def state(self) -> State:
        """The state as it is."""
        return self.walk.view()

    def run(self) -> Generator[Command, Any, Verdict]:
        """The run, to its next stop."""
        halt = yield from self.walk.run()
        match halt.status:
            case "completed":
                return (yield from self._finish())
            case "paused":
                return (yield from self._pause(halt))
            case "failed":
                return (yield from self._fail(halt))
            case "cancelled":
                return (yield from (self._leave() if self.context.leaving() else self._cancel()))
            case "asleep":
                return (yield from self._leave())
            case _:
                assert isinstance(halt.cause, Exception)
                return (yield from self._unsaved(halt.cause))

    def joined(self) -> list[dict[str, Any]] | None:
        """What the branches came to, if the run stands at their fan-in, before or after it."""
        step, results = self.walk.joined
        return (
            results
            if self.progress.phase == AFTER and step == self.progress.step
            else self.walk.scope.joined()
        )

    def _weave(self, walk: NodeLoop) -> Generator[Any, Any, Exception | None]:
        return BranchRunner(self.context).run(walk)

    def _finish(self) -> Ending:
        p = self.progress
        saved = yield from self._stop(
            COMPLETED, {"status": COMPLETED, "reason": None}, purge=not self.preserve
        )
        if isinstance(saved, Verdict):
            return saved
        if not self.preserve or self.context.save_error is not None:
            self.walk.state._saved = None
        if self.emit is not None:
            last = None if self.walk.planning else p.made_by
            self.walk.tell(events.GRAPH_COMPLETE, exit_point=last, iterations=p.iterations)
        yield from self._report(self.walk.words.final({"state": self.state._copy(), "run_id": p.run_id}))
        return Verdict(COMPLETED)

    def _pause(self, halt: LoopStop) -> Ending:
        p = self.progress
        changes = self._changes(halt)
        saved = yield from self._stop(PAUSED, changes)
        if isinstance(saved, Verdict):
            if saved.error is not None:
                saved.error.add_note(f"This was to save that the run waits: {halt.reason}")
            return saved
        self.walk.tell(events.RUN_PAUSE, node=p.place(), reason=halt.reason)
        common = {"checkpoint_path": saved, "run_id": p.run_id}
        if halt.at is self.walk:
            event: dict[str, Any] = {"node": p.node, "state": detached(self.state), **common}
            if p.section is not None and p.phase == BEFORE and p.section.layer is None:
                event["parallel_results"] = self.walk.scope.results()
            yield from self._report(self.walk.words.stops(event, p))
        for path, branch in p.stops():
            state = State(branch.state, run_id=p.run_id, checkpoint_node=branch.made_by, timestamp=branch.at)
            if secrets := self.context.masker.names:
                state._secrets = secrets
            event = {"node": branch.node, "branch": p.way_to(path), "state": detached(state), **common}
            yield from self._report(self.walk.words.stops(event, branch))
        return Verdict(PAUSED, questions=p.open_questions())

    def _report(self, told: Iterable[dict[str, Any]]) -> Generator[Command, Any, None]:
        for event in told:
            yield Report(event)

    def _fail(self, halt: LoopStop) -> Ending:
        saved = yield from self._stop(FAILED, self._changes(halt))
        if isinstance(saved, Verdict):
            if saved.error is not None:
                saved.error.add_note(f"This was to save that {self._node(halt)!r} had failed: {halt.reason}")
                saved.error.__context__ = halt.cause
            return saved
        at = halt.at or self.walk
        p = at.progress
        path = [*p.path] if halt.phase == AFTER else [*p.path, p.node]
        if at.nested:
            path = [*self.progress.path, *map(at.scope.place, path)]
        return (yield from self._failed(halt.reason, halt.cause, at, self._node(halt), path, saved))

    def _leave(self) -> Ending:
        """Leave the run where it is, for somebody else to go on with when it is due."""
        p, writer = self.progress, self.writer
        if writer is None:
            return Verdict(RUNNING)
        answer = yield writer.commit(RUNNING, summary(p), on_signal=OnSignal.IGNORE, due=p.due() or 0.0)
        if isinstance(answer, Exception):
            return Verdict(RUNNING, answer if isinstance(answer, LimpetError) else None)
        self.walk.tell(events.RUN_SLEEP, node=p.place(), due=p.due() or 0.0)
        return Verdict(RUNNING)

    def _cancel(self) -> Ending:
        p = self.progress
        saved = yield from self._stop(CANCELLED, {"status": CANCELLED, "reason": "cancelled"})
        if isinstance(saved, Verdict):
            return saved
        self.walk.tell(events.RUN_CANCEL, node=p.node)
        yield Report({"type": "cancelled", "node": p.node, "state": self.walk.seen(), "run_id": p.run_id})
        where = "" if self.walk.planning else f" before {p.node!r}"
        message = f"run {p.run_id!r} was cancelled{where}; what it saved can be resumed"
        return Verdict(CANCELLED, RunCancelled(message, p.run_id))

    def _stop(
        self, status: str, changes: dict[str, Any], purge: bool = False
    ) -> Generator[Command, Any, Verdict | str]:
        """Save where the run stops. Gives the checkpoint's reference, or a Verdict if it can't be saved."""
        p, writer, walk = self.progress, self.writer, self.walk
        before: dict[str, Any] = {
            "status": RUNNING,
            "reason": None,
            "phase": p.phase,
            "cleared": p.cleared,
            "questions": [],
        }
        walk.note(changes)
        answer: Any = None
        if writer is not None:
            due = p.due() if status == PAUSED else None
            answer = yield writer.commit(
                status,
                summary(p),
                purge,
                on_signal=OnSignal.REFUSE if status == PAUSED else OnSignal.CLEAR,
                due=due,
            )
            if isinstance(answer, Exception):
                if status != COMPLETED or not self.context.tolerates(answer):
                    walk.note(before)  # nobody was told of a stop that isn't saved: it is none
                    return (yield from self._unsaved(answer))
                answer = yield from walk.bear(answer)
            else:
                walk.saved(told=status == COMPLETED and walk.planning)
        if p.iterations != walk.reported:
            yield from walk.step_report()
        return answer or (f"{p.run_id}@{p.step}" if writer is not None else "")

    def _changes(self, halt: LoopStop) -> dict[str, Any]:
        """What is noted of a stop: all of it where the run's own walk has stopped, else that it has."""
        if halt.at is self.walk:
            return stop_changes(halt, self.walk.described(halt))
        changes: dict[str, Any] = {"status": halt.status, "reason": halt.reason}
        return {**changes, "error": self.walk.described(halt)} if halt.status == FAILED else changes

    def _node(self, halt: LoopStop) -> str:
        at = halt.at or self.walk
        return at.scope.place(at.progress.node)

    def _unsaved(self, refusal: Exception) -> Ending:
        """A commit was refused: heed the signal, let go of a run that is somebody else's, or fail."""
        if isinstance(refusal, Signalled):
            return (yield from self._cancel())
        if isinstance(refusal, (Conflict, RunNotFound)):
            return Verdict(RUNNING, refusal)
        p = self.progress
        reason = f"checkpoint save failed: {self.walk.told(refusal)}"
        node = p.made_by or p.node
        if p.section is not None and self.writer is not None:
            node = p.node
            # What branches have finished meanwhile may be saved after all.
            yield self.writer.commit(on_signal=OnSignal.IGNORE)
        path = [*map(str, p.section.children)] if self.walk.planning and p.section is not None else p.path
        return (yield from self._failed(reason, refusal, self.walk, node, path))

    def _failed(
        self,
        reason: str,
        cause: BaseException | None,
        at: NodeLoop,
        node: str,
        path: Iterable[str],
        saved: str = "",
    ) -> Ending:
        """The end of a run that can't go on, saved or not."""
        run_id, seen = self.progress.run_id, (self.walk if at.scope.in_layer else at).seen()
        way = [name for name in path if name != PLANNER]
        error = ExecutionError(
            reason, run_id=run_id, node=node, state=seen, path=way, cause=cause, way_out=self.way_out
        )
        self.walk.tell(events.RUN_FAIL, node=node, error=reason)
        event = {"node": node, "error": reason, "exception": error, "state": seen, "run_id": run_id}
        place = {"checkpoint_path": saved} if saved else {}
        yield from self._report(self.walk.words.fails_for_good({**event, **place}))
        return Verdict(FAILED, error)
