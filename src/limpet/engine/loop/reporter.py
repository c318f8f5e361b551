"""What a loop reports: to observers, what happens; to the caller that iterates the run, what is durable."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from limpet.engine.loop.driver_commands import SUSPENDED, Asked, Cancelled, Failed, Report, Sleeping, Waiting
from limpet.engine.loop.run_context import LoopStop, RunContext
from limpet.engine.loop.stream_events import StreamEvents, stream_events_for
from limpet.engine.node_context.call_scope import Scope
from limpet.engine.node_context.node_context import NodeContext
from limpet.graphs.reducers import copy_containers
from limpet.graphs.state import State, detached, detached_view
from limpet.journal.encoding.codec import detached_value
from limpet.journal.open_parallel_section import states_with_tasks
from limpet.journal.store import COMPLETED, FAILED, PAUSED
from limpet.journal.writer import error_data, error_line
from limpet.observe import events

if TYPE_CHECKING:
    from limpet.engine.loop.recorded_state import StateRecorder
    from limpet.observe.opentelemetry.spans import Stretch


class Reporter:
    """Reports what one loop does. It changes nothing of the run.

    `planning` says that the loop is the planner of a workflow, which reports layers instead of nodes.
    `reported_iterations` is how many steps of the loop were reported.
    """

    __slots__ = (
        "context",
        "planning",
        "progress",
        "recorder",
        "reported_iterations",
        "reported_save",
        "scope",
        "state",
        "stream_events",
    )

    def __init__(self, context: RunContext, scope: Scope, state: State, planning: bool) -> None:
        self.context = context
        self.scope = scope
        self.state = state
        self.planning = planning
        self.stream_events: StreamEvents = stream_events_for(scope.plan)
        """The events for the caller that iterates the run, by what kind of graph this is."""
        self.reported_save: str | None = None
        """The newest checkpoint that was reported to a caller that wants to know of each."""
        self.recorder: StateRecorder | None = None
        """What was recorded of the state, where the run is streamed."""
        self.progress = progress = scope.progress
        self.reported_iterations = progress.iterations

    @property
    def nested(self) -> bool:
        """Whether the loop is one of a branch."""
        return bool(self.scope.path)

    def notify(self, kind: str, **data: Any) -> None:
        """Send an event to the observers, if the run has any."""
        emit = self.context.reporting.emit
        if emit is None:
            return
        data = {"run_id": self.context.root.run_id, **data}
        if branch := self.scope.reported_branch:
            data["branch"] = branch
        self.context.journal_lock.call_unlocked(emit, kind, self.scope.plan.name, data)

    def node_starts(self, ctx: NodeContext) -> None:
        """Notify observers that a node is about to be called."""
        if self.planning:
            return
        iteration = self.progress.iterations + 1
        if ctx.visit > 1 and ctx.attempt == 1:
            self.notify(
                events.CYCLE_DETECTED,
                node=ctx.node,
                visit_count=ctx.visit,
                iteration=iteration,
                path_length=iteration,
            )
        self.notify(events.NODE_START, node=ctx.node, iteration=iteration, attempt=ctx.attempt)

    def begin_span(self, ctx: NodeContext, stretch: Stretch) -> None:
        """Give a call that is about to be made its span. A workflow's planner gets none."""
        if not self.planning:
            scope = self.scope
            from limpet.observe.opentelemetry.places import StepPlace  # not in a run without spans

            place = StepPlace(
                self.context.root.run_id,
                scope.plan.name,
                ctx.node,
                scope.reported_branch,
                ctx.step,
                ctx.attempt,
            )
            ctx.step_span = stretch.step(place, scope.span_around)

    def node_ends(self, ctx: NodeContext, outcome: object) -> None:
        """Notify observers that a node completed or failed. Pauses, sleeps and stops have events of their own."""
        if self.context.reporting.stretch is not None:
            self._end_span(ctx, outcome)
        if self.planning or isinstance(outcome, SUSPENDED):
            return
        failed = isinstance(outcome, Failed)
        if isinstance(outcome, LoopStop):
            if outcome.status != FAILED:
                return
            failed = True
        self.notify(
            events.NODE_COMPLETE,
            node=ctx.node,
            iteration=self.progress.iterations + 1,
            error=failed,
            duration=max(0.0, self.context.clocks.now() - ctx.began),
        )

    def _end_span(self, ctx: NodeContext, outcome: object) -> None:
        """End the span of a call, with the texts of a failure that are stored and reported, too."""
        from limpet.observe.opentelemetry.places import StepEnd

        span = getattr(ctx, "step_span", None)
        if span is None:  # a condition failed, so the call wasn't made
            return
        match outcome:
            case Failed(error, again):
                status = FAILED
            case LoopStop(status, cause=cause):
                again = cause is not None
                error = cause or RuntimeError(outcome.reason)
            case _:
                status = _OUTCOMES.get(type(outcome), COMPLETED)
        end = StepEnd(status)
        if status == FAILED:
            data = self.error_data(error, ctx.node)
            retry = ctx.plan_node.retry
            is_retried = again and retry is not None and retry.applies(error, ctx.attempt)
            end = StepEnd(status, data["type"], data["message"], data["traceback"], is_retried)
        # An exporter may be slow, and a node may wait for the lock meanwhile.
        self.context.journal_lock.call_unlocked(span.end, end)

    def hide(self, text: str) -> str:
        """The text with the secrets of this state, and of those around and below it, masked."""
        masker = self.context.reporting.masker
        if masker.idle:
            return text
        root = self.context.root
        path = self.scope.path
        states: list[Mapping[str, Any]] = [root.config, self.state]
        for depth in range(len(path)):
            states += states_with_tasks(root.branch_at(path[:depth]))
        if self.progress.section is not None:
            states += [child.state for child in self.progress.section.children.values()]
        return masker.hide(text, states)

    def error_line(self, error: BaseException) -> str:
        """An error in one line, without secrets."""
        return self.hide(error_line(error))

    def error_data(self, error: BaseException, node: str) -> dict[str, Any]:
        """An error as plain data, without secrets."""
        return error_data(error, node, self.hide)

    def stream(self, reported: Iterable[dict[str, Any]]) -> Generator[Report, Any, None]:
        """Yield events for the caller that iterates the run, if it wants those of each step."""
        if self.context.reporting.stream:
            for event in reported:
                yield Report(event)

    def stream_step(self) -> Generator[Report, Any, None]:
        """Yield the event of the step that completed last. A step is reported once, after it was saved."""
        if self.context.reporting.stream:
            self.reported_iterations = self.progress.iterations
            for event in self.stream_events.step(self):
                yield Report(event)

    def stream_branch_stop(self, stop: LoopStop) -> Generator[Report, Any, None]:
        """Yield the events of a branch that stopped: its last step, if that wasn't reported, and the stop."""
        p = self.progress
        if p.iterations != self.reported_iterations:
            yield from self.stream_step()
        if stop.status in (COMPLETED, FAILED, PAUSED):
            if p.error is None:
                reported = self.stream_events.branch_stops(self, stop.status, None)
            else:
                reported = self.stream_events.branch_stops(self, FAILED, p.error.get("message") or "")
            yield from self.stream(reported)

    def run_waits(self) -> Generator[Report, Any, None]:
        """Report that the run waits for posts: to observers, and to the caller that iterates it."""
        p = self.progress
        node = p.current_node()
        waits = [wait.to_data() for wait in p.all_waits()]
        self.notify(events.RUN_WAIT, node=node, waits=waits)
        event = {"node": node, "state": self.state_copy(), "waits": waits, "run_id": p.run_id}
        yield Report({"type": "wait", **event, "checkpoint_path": p.checkpoint_id})

    def state_so_far(self) -> State:
        """The state as it is; that of a workflow includes the finished tasks of the layer that is open."""
        data = self.progress.state_so_far()
        if data is self.state:
            return self.state
        schema = self.scope.plan.schema
        state = schema.live_class.from_data(data, schema)
        state.run_id = self.state.run_id
        state.checkpoint_node = self.state.checkpoint_node
        state._at = self.state._at
        state._emit = None
        state._saved = getattr(self.state, "_saved", None)
        if secrets := self.context.reporting.masker.names:
            state._secrets = secrets
        return state

    def state_copy(self) -> State:
        """The state for a reader outside of the run. It never changes when the run's own state does."""
        p = self.progress
        if p.base is None:
            return detached(self.state_so_far())
        # A branch shares most values with the state it was copied from. Those are copied when the reader reads them,
        # so that an event for each of a thousand branches doesn't cost a thousand copies of the whole state.
        changed = {key: detached_value(value) for key, value in self.state.items() if key in p.changed}
        return detached_view({**copy_containers(self.state), **changed}, self.state)


_OUTCOMES = {Asked: PAUSED, Sleeping: "sleeping", Waiting: "waiting", Cancelled: "cancelled"}
"""How a call ended that neither completed nor failed, in the words of its span."""
