"""The planner of a workflow: after each layer it applies the decisions of tasks, and finds the next layer.

The planner is the one node that a workflow has in its plan. `planner_function` is its function. Each call is a
`PlannerVisit`: the first before any task runs, the others after a layer each.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, NamedTuple

from limpet.errors import UsageError, did_you_mean
from limpet.graphs.parameters import Function
from limpet.graphs.plan import budget_reason
from limpet.graphs.workflow.layers import Dag, Layers, layers_of
from limpet.graphs.workflow.state import TASK_COMPLETED, TASK_SKIPPED, TaskResult
from limpet.graphs.workflow.task_report import ADD_TASK, REFUSED, SKIP_LAYERS, SKIP_TASKS
from limpet.graphs.workflow.tasks import TaskSpec, argument_value, read_spec, result_of, skipped_record
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
        """A layer is done, or the run begins. Returns the update of the state."""
        handler = layers.handler
        if ctx.visit == 1 or handler is None:
            return _planned(layers, ctx, None)
        returned = handler.call(**handler.arguments(lambda value: _handler_argument(ctx, value)))
        if hasattr(returned, "__await__"):
            return _planned_after(layers, ctx, returned)
        return _planned(layers, ctx, returned)

    # As an async function it is called on the loop, without a thread. That is right for an async handler, and also
    # where no code of a user is called: it takes no time, and a thread would cost more.
    is_async = layers.calls_no_user_code or (layers.handler is not None and layers.handler.is_async)
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
    return _argument(ctx, progress.state, TaskSpec("the handler after layers"), value)


def _argument(ctx: Any, state: Mapping[str, Any], spec: TaskSpec, value: str) -> Any:
    if value in ("ctx", "config"):
        return ctx.offer(value)
    return argument_value(state, spec, value)


class PlannerVisit:
    """One call of the planner. `skips` and `dag` are what it changes, `rest` the layers that are left.

    `rest` is None when it has to be computed from the state: after a resume, and once a decision changed the tasks.
    """

    def __init__(self, layers: Layers, ctx: Any) -> None:
        progress: Progress = ctx.scope.progress
        self.layers = layers
        self.ctx = ctx
        self.progress = progress
        self.state = progress.state
        self.layer = ctx.visit - 1
        self.dag: dict[str, Any] = {}
        self.skips: dict[str, Any] = {}
        self.refused: list[dict[str, Any]] = []
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
            self.rest = layers_of(self._current_dag(), {**self.state["tasks"], **self.skips})
        while self.rest and not self.ready:
            tasks = self.state["tasks"]
            if self.skips:
                tasks = {**tasks, **self.skips}
            seen = {**self.state, "tasks": tasks, **self._changed_context()}
            names = self.rest[0]
            self.rest = self.rest[1:]
            if self.layers_to_skip:
                self.layers_to_skip -= 1
                for name in names:
                    self._skip(name, self.skip_reason)
            self.ready = tuple(name for name in names if name not in self.skips and self._runs(name, seen))
        max_layers = self.layers.max_layers
        if self.ready and self.layer >= max_layers:
            raise UsageError(budget_reason("max_layers", max_layers, "workflow"))
        self.ctx.scope.layers_ahead = PlannedLayers(self.ctx.visit, self.ready, self.rest, tuple(self.skips))

    def update(self) -> dict[str, Any]:
        """The update of the state."""
        update: dict[str, Any] = {}
        if self.ctx.task_report is not None:
            update = self.ctx.task_report.update()
        if self.refused:
            update["decisions"] = [*update.get("decisions", ()), *self.refused]
        if self.skips:
            update["tasks"] = self.skips
        if self.dag:
            update["dag"] = self.dag
        return update

    def _apply(self, decision: Mapping[str, Any]) -> None:
        if "/" in decision["by"]:
            return  # a workflow inside of a task has decided it, and has applied it
        kind = decision["kind"]
        if kind == ADD_TASK:
            self._apply_add(decision)
        elif kind == SKIP_TASKS:
            self._apply_skip(decision)
        elif kind == SKIP_LAYERS:
            self.layers_to_skip += decision["layers"]
            self.skip_reason = _reason(decision)

    def _apply_add(self, decision: Mapping[str, Any]) -> None:
        dag = self._current_dag()
        before = decision.get("before", ())
        try:
            spec = self.layers.check_new_task(decision, dag, self.state["inputs"], decision["by"])
            if spec.name in dag:
                return  # another task has added the same task
            for name in before:
                if name in self.state["tasks"] or name in self.skips:
                    raise UsageError(f"add_task(): {name!r} is done, so nothing can be put before it")
        except UsageError as problem:
            self._refuse(decision, str(problem))
            return
        self.dag[spec.name] = spec.to_data()
        kind = "optional" if decision.get("may_fail") else "depends_on"
        for name in before:
            data = self._current_dag()[name]
            self.dag[name] = {**data, kind: [*data.get(kind, ()), spec.name]}
        self.rest = None

    def _apply_skip(self, decision: Mapping[str, Any]) -> None:
        dag = self._current_dag()
        for name in decision["tasks"]:
            if name not in dag:
                self._refuse(decision, f"there is no task {name!r}{did_you_mean(name, dag)}")
            elif name in self.state["tasks"]:
                self._refuse(decision, f"task {name!r} is already done")
            else:
                self._skip(name, _reason(decision))
                self.rest = None

    def _refuse(self, decision: Mapping[str, Any], reason: str) -> None:
        """Record a decision that can't be applied. The run continues without it."""
        from logging import getLogger

        getLogger("limpet.run").warning("run %s: a decision is refused: %s", self.progress.run_id, reason)
        self.refused.append(
            {"kind": REFUSED, "by": decision["by"], "decision": decision["kind"], "reason": reason}
        )

    def _runs(self, name: str, state: Mapping[str, Any]) -> bool:
        """Whether a task whose turn it is runs. If not, it is skipped."""
        data = self.dag.get(name) or self.state["dag"][name]
        spec = self.layers.specs.get(name)
        if spec is None or data != self.layers.dag[name]:
            spec = read_spec(name, data)
        try:
            reason = self._why_skipped(spec, state)
        except Exception as problem:
            problem.add_note(f"in the condition of task {name!r}")
            raise
        if reason:
            self._skip(name, reason)
        return not reason

    def _why_skipped(self, spec: TaskSpec, state: Mapping[str, Any]) -> str:
        """Why a task is skipped in this state; empty if it runs."""
        for needed in spec.depends_on:
            status = state["tasks"][needed]["status"]
            if status == TASK_SKIPPED:
                return f"{needed!r}, which it depends on, was skipped"
            if status != TASK_COMPLETED:
                return f"{needed!r}, which it depends on, failed"
        condition = self.layers.definitions[spec.definition].condition
        if condition is None:
            return ""
        function = condition.bind(spec, f"the condition of task {spec.name!r}", strict=False)
        ctx = self.ctx
        before = ctx.task_report.without_answers() if ctx.task_report is not None else {"decisions": []}
        holds = function.call(**function.arguments(lambda value: _argument(ctx, state, spec, value)))
        # A condition may ask a question, and the answer is recorded. Anything else must come from tasks.
        if ctx.task_report is not None and ctx.task_report.without_answers() != before:
            raise UsageError(
                "a condition can't add messages, decisions or context; a task or the handler after layers can"
            )
        if holds:
            return ""
        return f"its condition {getattr(condition.call, '__name__', 'function')!r} doesn't hold"

    def _skip(self, name: str, reason: str) -> None:
        self.skips[name] = skipped_record(name, reason, self.layer, self.ctx.began)

    def _changed_context(self) -> dict[str, Any]:
        """The context with what the handler has just added, for conditions."""
        report = self.ctx.task_report
        if report is None or not report.context:
            return {}
        return {"context": {**self.state["context"], **report.context}}

    def _current_dag(self) -> Dag:
        return ChainMap(self.dag, self.state["dag"]) if self.dag else self.state["dag"]


def _reason(decision: Mapping[str, Any]) -> str:
    reason = f"{decision['by']!r} decided so"
    if decision.get("reason"):
        reason += f": {decision['reason']}"
    return reason
