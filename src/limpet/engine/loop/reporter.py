"""What a walk tells: observers, what happens as it happens; whoever iterates the run, what is durable."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

from limpet.engine.loop.commands import Asked, Cancelled, Failed, Report, Sleeping
from limpet.engine.loop.run_context import LoopStop, RunContext
from limpet.engine.loop.state_changes import detached
from limpet.engine.loop.stream_events import StreamEvents, stream_events_for
from limpet.engine.node_context.node_context import NodeContext
from limpet.engine.node_context.scope import Scope
from limpet.graphs.plan import Plan
from limpet.graphs.state import State, glance, unshared
from limpet.journal.encoding.copies import detached_value
from limpet.journal.progress import Progress
from limpet.journal.store import FAILED
from limpet.journal.writer import error_data, error_line
from limpet.observe import events


class Reporter:
    """The part of a walk that speaks. `first` is when its first node began, `reported` how far it was reported.

    `planning` is the way of a workflow's planner, of which layers are
    told and not nodes.
    """

    context: RunContext
    plan: Plan
    progress: Progress
    scope: Scope
    state: State
    nested: bool
    planning: bool
    first: float
    reported: int

    @property
    def words(self) -> StreamEvents:
        """The words for whoever iterates the run."""
        return stream_events_for(self.plan)

    def tell(self, kind: str, **data: Any) -> None:
        """Tell the observers, if there are any."""
        emit = self.context.emit
        if emit is not None:
            data = {"run_id": self.context.root.run_id, **data}
            if branch := self.scope.around:
                data["branch"] = branch
            self.context.journal_lock.call_unlocked(emit, kind, self.plan.name, data)

    def announce(self, task: NodeContext) -> None:
        """A node is about to be called."""
        task.began = self.context.clock()
        self.first = self.first or task.began
        if self.context.emit is None or self.planning:
            return
        p, iteration = self.progress, self.progress.iterations + 1
        if task.visit > 1 and task.attempt == 1:
            self.tell(
                events.CYCLE_DETECTED,
                node=task.node, visit_count=task.visit, iteration=iteration, path_length=p.iterations + 1,
            )  # fmt: skip
        self.tell(events.NODE_START, node=task.node, iteration=iteration, attempt=task.attempt)

    def conclude(self, task: NodeContext, outcome: object) -> None:
        """A node was called; what it asks for, and a run that stops, is told elsewhere."""
        if self.planning or isinstance(outcome, (Asked, Sleeping, Cancelled)):
            return
        failed = isinstance(outcome, Failed) or (isinstance(outcome, LoopStop) and outcome.status == FAILED)
        if isinstance(outcome, LoopStop) and not failed:
            return
        self.tell(
            events.NODE_COMPLETE,
            node=task.node, iteration=self.progress.iterations + 1,
            error=failed, duration=self.context.clock() - task.began,
        )  # fmt: skip

    def hide(self, text: str) -> str:
        """The text with what is secret in the states around here covered."""
        masker, p = self.context.masker, self.progress
        if masker.idle:
            return text
        root, path = self.context.root, self.scope.path
        around = [root.descend(path[:depth]).state for depth in range(len(path))]
        below = [child.state for child in p.section.children.values()] if p.section is not None else []
        return masker.hide(text, [root.config, self.state, *around, *below])

    def told(self, error: BaseException) -> str:
        """An error in one line, without secrets."""
        return self.hide(error_line(error))

    def error_data(self, error: BaseException, node: str) -> dict[str, Any]:
        """An error as plain data, without secrets."""
        return error_data(error, node, self.hide)

    def report(self, told: Iterable[dict[str, Any]]) -> Generator[Report, Any, None]:
        """Hand events to whoever iterates the run, if they are to hear of each step."""
        if self.context.stream:
            for event in told:
                yield Report(event)

    def step_report(self) -> Generator[Report, Any, None]:
        """The event of the step that completed last. It is reported once, and after it was saved."""
        if self.context.stream:
            self.reported = self.progress.iterations
            yield from self.report(self.words.step(self))

    def view(self) -> State:
        """The state as it is; of a workflow, with what the tasks of the layer that is open have come to."""
        data = self.progress.so_far()
        if data is self.state:
            return self.state
        live = self.plan.schema.live.alive(data)
        live.run_id, live.checkpoint_node = self.state.run_id, self.state.checkpoint_node
        live._at, live._emit, live._saved = self.state._at, None, getattr(self.state, "_saved", None)
        if secrets := self.context.masker.names:
            live._secrets = secrets
        return live

    def seen(self) -> State:
        """The state for somebody outside. What a branch hasn't changed is copied when it is read, if it ever is."""
        p = self.progress
        if p.base is None:
            return detached(self.view())
        copied = {key: detached_value(value) for key, value in self.state.items() if key in p.changed}
        return glance({**unshared(self.state), **copied}, self.state)
