"""The planner of a workflow: it applies the decisions of tasks, and finds the tasks that run next.

The planner is the one node that a workflow has in its plan, and `planner_function` is its function. In a workflow
with barriers (`Layers.barriers`) it is called before the first layer and after each; each call is a `PlannerVisit`.
In one that runs as data flow it is called before the first task and after the last; in between, `Flow` decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, NamedTuple

from limpet.errors import UsageError, did_you_mean
from limpet.graphs.parameters import Function
from limpet.graphs.plan import budget_reason
from limpet.graphs.workflow.dag_edits import DagEdits, failed_dependency, is_own_decision, reason_for_skip
from limpet.graphs.workflow.layers import Layers, layers_of
from limpet.graphs.workflow.state import TaskResult
from limpet.graphs.workflow.task_report import ADD_TASK, SKIP_LAYERS, SKIP_TASKS
from limpet.graphs.workflow.task_specs import TaskSpec
from limpet.graphs.workflow.tasks import argument_value, result_of, skipped_record
from limpet.journal.progress import Progress


class PlannedLayers(NamedTuple):
    """The result of the planner's visit number `visit`: ready tasks, the layers after them, and skipped tasks.

    The scope keeps it in memory until the next visit, so that the layers aren't computed again after each layer:
    that would make a workflow of many layers quadratic. It isn't stored.
    """

    visit: int
    ready: tuple[str, ...]
    rest: tuple[tuple[str, ...], ...]
    skipped: tuple[str, ...]


def planner_function(layers: Layers) -> Function:
    """The function of the planner's node."""

    def plan_layer(ctx: Any) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """The run begins, a layer is done, or all tasks of a data flow are. Returns the update of the state."""
        handler = layers.handler
        if layers.is_flow(ctx.scope.progress):
            return {}
        if ctx.visit == 1 or handler is None:
            return _planned(layers, ctx, None)
        returned = handler.call(**handler.arguments(lambda value: _handler_argument(ctx, value)))
        if hasattr(returned, "__await__"):
            return _planned_after(layers, ctx, returned)
        return _planned(layers, ctx, returned)

    # As an async function it is called on the loop, without a thread. That is right for an async handler, and also
    # where no code of a user is called: it takes no time, and a thread would cost more.
    is_async = layers.handler is None or layers.handler.is_async
    return Function(plan_layer, (("ctx", "ctx"),), False, is_async)


async def _planned_after(layers: Layers, ctx: Any, returned: Awaitable[Any]) -> dict[str, Any]:
    return _planned(layers, ctx, await returned)


def _planned(layers: Layers, ctx: Any, returned: Any) -> dict[str, Any]:
    """The update of one visit, after the handler has returned."""
    if isinstance(returned, TaskResult):
        ctx._add_result(returned)
    elif returned is not None:
        raise UsageError(
            f"the handler after layers must return a TaskResult or None, not {type(returned).__name__}"
        )
    visit = PlannerVisit(layers, ctx)
    visit.apply_decisions(ctx.task_report.decisions if ctx.task_report is not None else ())
    visit.find_next_layer()
    return visit.update()


def _handler_argument(ctx: Any, value: str) -> Any:
    """What a parameter of the handler gets."""
    progress: Progress = ctx.scope.progress
    if value == "layer":
        return ctx.visit - 2  # the first visit was before the first layer, which is number 0
    if value == "results":
        if progress.section is None:
            return {}
        return {str(name): result_of(progress.state, str(name)) for name in progress.section.children}
    if value in ("ctx", "config"):
        return ctx.offer(value)
    return argument_value(progress.state, TaskSpec("the handler after layers"), value)


class PlannerVisit:
    """One call of the planner of a workflow with barriers. `skips` and `edits` are what it changes.

    `rest` are the layers that are left. It is None when it has to be computed from the state: after a resume, and
    once a decision changed the tasks.
    """

    def __init__(self, layers: Layers, ctx: Any) -> None:
        progress: Progress = ctx.scope.progress
        self.layers = layers
        self.ctx = ctx
        self.progress = progress
        self.state = progress.state
        self.layer = ctx.visit - 1
        self.edits = DagEdits(layers, progress.state, progress.run_id)
        self.skips: dict[str, Any] = {}
        self.ready: tuple[str, ...] = ()
        self.skip_reason = ""
        self.layers_to_skip = 0
        self.rest: tuple[tuple[str, ...], ...] | None = None
        planned: PlannedLayers | None = ctx.scope.layers_ahead
        if ctx.visit == 1:
            self.rest = layers.all
        elif planned is not None and planned.visit == ctx.visit - 1:
            self.rest = planned.rest

    def apply_decisions(self, handler_decisions: Iterable[Mapping[str, Any]]) -> None:
        """Apply what the tasks of the layer have decided, in the order of the tasks, and then the handler."""
        if self.progress.section is not None:
            for child in self.progress.section.children.values():
                for decision in child.state.get("decisions", ()):
                    self._apply(decision)
        for decision in handler_decisions:
            self._apply(decision)

    def find_next_layer(self) -> None:
        """Find the next layer that has a task to run. Tasks before it are skipped, each with its reason."""
        if self.rest is None:
            self.rest = layers_of(self.edits.dag, {**self.state["tasks"], **self.skips})
        while self.rest and not self.ready:
            names = self.rest[0]
            self.rest = self.rest[1:]
            if self.layers_to_skip:
                self.layers_to_skip -= 1
                for name in names:
                    self._skip(name, self.skip_reason)
            self.ready = tuple(name for name in names if name not in self.skips and self._runs(name))
        max_layers = self.layers.max_layers
        if self.ready and self.layer >= max_layers:
            raise UsageError(budget_reason("max_layers", max_layers, "workflow"))
        self.ctx.scope.layers_ahead = PlannedLayers(self.ctx.visit, self.ready, self.rest, tuple(self.skips))

    def update(self) -> dict[str, Any]:
        """The update of the state."""
        update: dict[str, Any] = {}
        if self.ctx.task_report is not None:
            update = self.ctx.task_report.update()
        if self.edits.refused:
            update["decisions"] = [*update.get("decisions", ()), *self.edits.refused]
        if self.skips:
            update["tasks"] = self.skips
        if self.edits.changed:
            update["dag"] = self.edits.changed
        return update

    def _apply(self, decision: Mapping[str, Any]) -> None:
        if not is_own_decision(decision):
            return
        kind = decision["kind"]
        if kind == ADD_TASK:
            if self.edits.add_task(decision, self._is_done) is not None:
                self.rest = None
        elif kind == SKIP_TASKS:
            self._apply_skip(decision)
        elif kind == SKIP_LAYERS:
            self.layers_to_skip += decision["layers"]
            self.skip_reason = reason_for_skip(decision)

    def _apply_skip(self, decision: Mapping[str, Any]) -> None:
        dag = self.edits.dag
        for name in decision["tasks"]:
            if name not in dag:
                self.edits.refuse(decision, f"there is no task {name!r}{did_you_mean(name, dag)}")
            elif name in self.state["tasks"]:
                self.edits.refuse(decision, f"task {name!r} is already done")
            else:
                self._skip(name, reason_for_skip(decision))
                self.rest = None

    def _runs(self, name: str) -> bool:
        """Whether a task whose turn it is runs. If not, it is skipped."""
        reason = failed_dependency(self.edits.dag[name].get("depends_on", ()), self._status)
        if reason:
            self._skip(name, reason)
        return not reason

    def _status(self, name: str) -> str:
        record = self.skips.get(name) or self.state["tasks"][name]
        return str(record["status"])

    def _is_done(self, name: str) -> bool:
        return name in self.state["tasks"] or name in self.skips

    def _skip(self, name: str, reason: str) -> None:
        self.skips[name] = skipped_record(name, reason, self.layer, self.ctx.began)
