"""The layers of a workflow: which tasks run next, what is skipped, and how decisions change what is to be done.

A workflow is a graph of one node, the planner, and a section that it opens again and again: it plans a layer, the
layer's tasks run beside each other, and when all are done the planner takes its turn, until nothing is left. So a
layer is one step of the run, and a workflow is run, saved and resumed by the loop that runs every graph.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Final

from limpet.defaults import MAX_LAYERS
from limpet.errors import DefinitionError, UsageError, did_you_mean
from limpet.graphs.parameters import Function
from limpet.graphs.plan import PlanNode, plan_node
from limpet.graphs.state import State, glance
from limpet.graphs.workflow.dag import Dag, all_before, layers_of
from limpet.graphs.workflow.planner import Ahead, Planning
from limpet.graphs.workflow.state import (
    OPEN_TO_UPDATES,
    TASK_COMPLETED,
    SeenWorkflowState,
    TaskResult,
    WorkflowState,
)
from limpet.graphs.workflow.task_report import TaskReport
from limpet.graphs.workflow.tasks import (
    TaskCode,
    TaskSpec,
    Wants,
    Work,
    make_spec,
    nobody_has,
    offered,
    read_spec,
    result_of,
    same_task,
)
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.progress import Progress

HANDLER_OFFERED: Final = ("ctx", "context", "inputs", "results", "state", "config", "layer")
"""What the function that is called after each layer may take."""


class Layers:
    """The tasks of a workflow as they are in the code, and the planner of its runs."""

    def __init__(
        self,
        specs: Mapping[str, TaskSpec],
        codes: Mapping[str, TaskCode],
        handler: Wants | None,
        on_mismatch: str = "fail",
        most: int = MAX_LAYERS,
    ) -> None:
        self.specs, self.codes, self.handler, self.on_mismatch = specs, codes, handler, on_mismatch
        self.most = most
        """How many layers there may be."""
        self.dag: Dag = {name: spec.to_data() for name, spec in specs.items()}
        self._stored_dag = encode(self.dag, "arguments")
        self.nodes = {name: self.node(spec) for name, spec in specs.items()}
        self.first = layers_of(self.dag)
        self._wanted = [(spec, name) for spec in specs.values() for name in self._asked(spec)]
        self._handled = handler and handler.bind(TaskSpec(""), "the handler after layers", HANDLER_OFFERED)
        conditional = any(code.condition is not None for code in codes.values())
        self.prompt = handler is None and not conditional
        """Whether the planner calls nobody's code but ours, so that it takes no time."""

    @property
    def planner(self) -> Function:
        """The planner, as a function of its call. It is called without a thread where it calls nobody else's code."""
        is_async = self.prompt or (self.handler is not None and self.handler.is_async)
        return Function(self.plan_layer, (("ctx", "ctx"),), False, is_async)

    def initial(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The state that a run starts with. Raises `UsageError` for an input that a task asks for and isn't there."""
        for spec, name in self._wanted:
            if name not in inputs:
                raise UsageError(nobody_has(spec, name, inputs, self.dag))
        start: dict[str, Any] = {
            "inputs": dict(inputs),
            "messages": [],
            "tasks": {},
            "decisions": [],
            "context": {},
        }
        return {**start, "dag": decode(self._stored_dag)}

    def results(self, final: Mapping[str, Any]) -> dict[str, Any]:
        """What a run came to, for a graph around it: the results of its tasks, by name."""
        return WorkflowState(final).results

    def seen(self, final: Mapping[str, Any]) -> State:
        """The same for a function that says what passes out: all of the state, to be looked at."""
        return glance(final, kind=SeenWorkflowState)

    def node(self, spec: TaskSpec) -> PlanNode:
        """The node that runs a task. Raises `DefinitionError` for arguments that its function doesn't take."""
        code = self.codes[spec.code]
        function = code.wants and code.wants.bind(spec, f"task {spec.name!r}")
        made = plan_node(spec.name, function, code.retry, code.timeout, (), True, code.sub)
        return made._replace(work=Work(spec, code.safe_to_fail, code.keeps_secret))

    def nodes_in(self, progress: Progress) -> Mapping[str, PlanNode]:
        """The nodes of the layer that is open: those of the code, and those of tasks that were added or changed."""
        dag, section = progress.state["dag"], progress.section
        assert section is not None
        names = [str(key) for key, child in section.children.items() if not child.done]
        other = [name for name in names if dag[name] != self.dag.get(name)]
        changed = {name: self.node(read_spec(name, dag[name])) for name in other}
        return ChainMap(changed, self.nodes) if changed else self.nodes

    def next_layer(self, state: Mapping[str, Any], visit: int, planned: Ahead | None) -> tuple[str, ...]:
        """The tasks that are ready after this visit of the planner; none if all is done."""
        if planned is not None and planned.visit == visit:
            return planned.ready
        remaining = layers_of(state["dag"], state["tasks"])
        return remaining[0] if remaining else ()

    def plan_layer(self, ctx: Any) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """The planner: a layer is done, or the run begins. Returns what changes by that."""
        if ctx.visit == 1 or self._handled is None:
            return self._planned(ctx, None)
        called = self._handled.call(**self._handled.arguments(lambda thing: self._for_handler(ctx, thing)))
        return (
            self._planned_later(ctx, called) if hasattr(called, "__await__") else self._planned(ctx, called)
        )

    async def _planned_later(self, ctx: Any, called: Awaitable[Any]) -> dict[str, Any]:
        return self._planned(ctx, await called)

    def _for_handler(self, ctx: Any, thing: str) -> Any:
        progress: Progress = ctx.scope.progress
        match thing:
            case "layer":
                return ctx.visit - 2
            case "results":
                done = progress.section.children if progress.section is not None else ()
                return {str(name): result_of(progress.state, str(name)) for name in done}
            case _:
                return _offered(ctx, progress.state, TaskSpec("the handler after layers"), thing)

    def _planned(self, ctx: Any, returned: Any) -> dict[str, Any]:
        if isinstance(returned, TaskResult):
            ctx._add_result(returned)
        elif returned is not None:
            raise UsageError(
                f"the handler after layers returns a TaskResult or None, not {type(returned).__name__}"
            )
        planning = Planning(self, ctx)
        planning.decide(ctx.task_report.decisions if ctx.task_report is not None else ())
        planning.go_on()
        return planning.update()

    def check_update(self, update: Mapping[str, Any]) -> dict[str, Any]:
        """What somebody adds to the state from outside, as it is to be added. Raises `UsageError` if it can't be."""
        said = TaskReport("outside")
        for key, value in update.items():
            if key not in OPEN_TO_UPDATES:
                raise UsageError(
                    f"an update of a workflow adds to {', '.join(OPEN_TO_UPDATES)}; it can't set {key!r}"
                )
            if key == "context":
                said.share(value)
            elif isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
                raise UsageError(f"{key} is a list of what is to be added, not {type(value).__name__}")
        said.messages += update.get("messages", ())
        for decision in update.get("decisions", ()):
            said.decide(decision, {})
        return said.update()

    def why_not(self, spec: TaskSpec, state: Mapping[str, Any], ctx: Any) -> str:
        """Why a task whose turn it is isn't to run, in this state; empty if it is."""
        for needed in spec.depends_on:
            status = state["tasks"][needed]["status"]
            if status != TASK_COMPLETED:
                return (
                    f"{needed!r}, which it depends on, {'was skipped' if status == 'skipped' else 'failed'}"
                )
        condition = self.codes[spec.code].condition
        if condition is None:
            return ""
        function = condition.bind(spec, f"the condition of task {spec.name!r}", strict=False)
        before = ctx.task_report.without_answers() if ctx.task_report is not None else {"decisions": []}
        holds = function.call(**function.arguments(lambda thing: _offered(ctx, state, spec, thing)))
        if ctx.task_report is not None and ctx.task_report.without_answers() != before:
            raise UsageError(
                "a condition only looks; a task or the handler after layers says and decides things"
            )
        return (
            "" if holds else f"its condition {getattr(condition.call, '__name__', 'function')!r} doesn't hold"
        )

    def check_new(self, wanted: Mapping[str, Any], dag: Dag, inputs: Mapping[str, Any], by: str) -> TaskSpec:
        """The spec of a task that is to be added. Raises `UsageError` if it can't be."""
        try:
            spec = make_spec(
                wanted["name"], wanted.get("depends_on", ()), wanted.get("optional", ()), wanted.get("arguments"),
                wanted.get("run"), by,
            )  # fmt: skip
            if spec.name in self.codes or (spec.name in dag and not same_task(dag[spec.name], spec)):
                raise DefinitionError(f"there is a task {spec.name!r} already")
            if spec.code not in self.codes:
                near = did_you_mean(spec.run, self.codes)
                raise DefinitionError(
                    f"task {spec.name!r} runs {spec.run!r}, which is no task or template{near}"
                )
            before = _names_before(spec.name, wanted.get("before", ()))
            for needed in (*spec.needs, *before):
                if needed not in dag:
                    near = did_you_mean(needed, dag)
                    raise DefinitionError(f"task {spec.name!r}: there is no task {needed!r}{near}")
            circular = sorted(all_before(dag, spec.needs).intersection(before)) if before else []
            if circular:
                raise DefinitionError(
                    f"task {spec.name!r} can't be before {circular[0]!r}, which it depends on itself"
                )
            self.node(spec)
        except DefinitionError as problem:
            raise UsageError(f"add_task(): {problem}") from problem
        if missing := self.missing(spec, inputs, dag):
            raise UsageError(f"add_task(): {missing}")
        return spec

    def missing(self, spec: TaskSpec, inputs: Mapping[str, Any], dag: Dag) -> str:
        """What a task asks for that isn't there, in words; empty if all is."""
        absent = [name for name in self._asked(spec) if name not in inputs]
        return nobody_has(spec, absent[0], inputs, dag) if absent else ""

    def _asked(self, spec: TaskSpec) -> Iterable[str]:
        """The inputs that a task and its condition can't do without."""
        code = self.codes[spec.code]
        for wants in (code.wants, code.condition):
            function = wants and wants.bind(spec, spec.name, strict=False)
            for _, thing in function.takes if function else ():
                if thing.startswith("input "):
                    yield thing.removeprefix("input ")


def _names_before(task: str, given: Any) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise DefinitionError(f"task {task!r}: before is a list of task names, not {given!r}")
    names = list(given)
    if not all(isinstance(name, str) for name in names):
        raise DefinitionError(f"task {task!r}: before is a list of task names, not {names!r}")
    return names


def _offered(ctx: Any, state: Mapping[str, Any], spec: TaskSpec, thing: str) -> Any:
    """What a condition or the handler is given."""
    return ctx.offer(thing) if thing in ("ctx", "config") else offered(state, spec, thing)
