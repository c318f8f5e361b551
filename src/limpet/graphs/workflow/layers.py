"""The layers of a workflow: its tasks as data, the order that follows from their dependencies, and their nodes.

A workflow is a graph of one node, the planner, and a section that the planner opens. As data flow, the section stays
open until no task is left, and tasks join it when all that they depend on is done. With barriers, the planner opens a
section for each layer: the layer's tasks run in parallel, and when all are done the planner runs again. Either way a
layer is one step of the run, and a workflow is run, saved and resumed by the loop that runs every graph.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Container, Iterable, Mapping
from functools import cached_property
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from limpet.defaults import MAX_LAYERS
from limpet.errors import DefinitionError, UsageError, did_you_mean
from limpet.graphs.node_options import names_of_limits
from limpet.graphs.parameters import Function
from limpet.graphs.plan import PlanNode, plan_node
from limpet.graphs.state import State, detached_view
from limpet.graphs.workflow.order import Order, dependencies_of, order_of
from limpet.graphs.workflow.state import OPEN_TO_UPDATES, WorkflowState, WorkflowStateView
from limpet.graphs.workflow.task_report import TaskReport
from limpet.graphs.workflow.task_specs import TaskSpec, make_spec, read_spec, same_task
from limpet.graphs.workflow.tasks import INPUT, TaskDefinition, TaskSignature, WorkflowTask, unknown_parameter
from limpet.journal.encoding.codec import decode, encode
from limpet.journal.progress import Progress

if TYPE_CHECKING:
    from limpet.graphs.workflow.planner import PlannedLayers

Dag = Mapping[str, Mapping[str, Any]]
"""The tasks by name, each with what it depends on: a `TaskSpec` as data."""

CONTINUE: Final = "continue"
"""After a failure, all tasks that don't depend on it still run."""
STOP: Final = "stop"
"""After a failure, no other task begins."""


class LayerOptions(NamedTuple):
    """How a workflow runs: with `barriers` between its layers or as data flow, and after a failure."""

    max_layers: int = MAX_LAYERS
    barriers: bool = False
    on_error: str = CONTINUE


DEFAULT_OPTIONS: Final = LayerOptions()


HANDLER_PARAMETERS: Final = ("ctx", "context", "inputs", "results", "state", "config", "layer")
"""What the function that is called after each layer may take."""


def layers_of(dag: Dag, done: Container[str] = ()) -> tuple[tuple[str, ...], ...]:
    """The tasks that aren't done, in layers: each comes after all that it depends on. Raises `CycleError`."""
    numbers = _layer_numbers(dag, dag, done)
    if numbers is None:
        # A task was added before one that it depends on. That is rare, and sorting takes longer than all else here.
        needed = {
            name: [each for each in dependencies_of(data) if each not in done]
            for name, data in dag.items()
            if name not in done
        }
        numbers = _layer_numbers(TopologicalSorter(needed).static_order(), dag, done)
        assert numbers is not None
    layers: list[list[str]] = [[] for _ in range(1 + max(numbers.values(), default=-1))]
    for name in dag:
        if name in numbers:
            layers[numbers[name]].append(name)
    return tuple(map(tuple, layers))


def _layer_numbers(order: Iterable[str], dag: Dag, done: Container[str]) -> dict[str, int] | None:
    """The layer of each task that isn't done; None if in this order, one comes before a task that it depends on."""
    numbers: dict[str, int] = {}
    for name in order:
        if name in done:
            continue
        number = 0
        for needed in dependencies_of(dag[name]):
            if needed in numbers:
                number = max(number, numbers[needed] + 1)
            elif needed not in done:
                return None
        numbers[name] = number
    return numbers


def all_dependencies(dag: Dag, names: Iterable[str]) -> set[str]:
    """These tasks, and all that they depend on, directly or not."""
    found: set[str] = set()
    unexplored = list(names)
    while unexplored:
        name = unexplored.pop()
        if name not in found:
            found.add(name)
            unexplored += dependencies_of(dag.get(name, {}))
    return found


class Layers:
    """The tasks of a workflow as they are in the code."""

    def __init__(
        self,
        specs: Mapping[str, TaskSpec],
        definitions: Mapping[str, TaskDefinition],
        handler: TaskSignature | None,
        on_mismatch: str = "fail",
        options: LayerOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.specs = specs
        self.definitions = definitions
        self.on_mismatch = on_mismatch
        self.max_layers = options.max_layers
        self.stops_on_error = options.on_error == STOP
        """Whether no task begins after one has failed."""
        self.barriers = options.barriers or handler is not None
        """Whether a layer begins only when the one before is done. Otherwise the workflow runs as data flow."""
        self.handler = None
        if handler is not None:
            self.handler = handler.bind(TaskSpec(""), "the handler after layers", HANDLER_PARAMETERS)
        self.dag: Dag = {name: spec.to_data() for name, spec in specs.items()}
        self._encoded_dag = encode(self.dag, "arguments")
        self.nodes = {name: self.node(spec) for name, spec in specs.items()}
        self.all = layers_of(self.dag)
        """The layers of a run that changes nothing about its tasks."""
        self._required = [
            (spec, name)
            for spec in specs.values()
            for name in self._required_inputs(spec, self.nodes[spec.name].function)
        ]

    @cached_property
    def order(self) -> Order:
        """The order of the tasks of a run that changes nothing about them."""
        return order_of(self.dag)

    def secret_results(self) -> set[str]:
        """The names under which there are secret results: those of tasks, and of what gets them in a graph inside."""
        specs = self.specs
        found = {name for name, spec in specs.items() if self.definitions[spec.definition].keeps_secret}
        with_graphs = [spec for spec in specs.values() if self.definitions[spec.definition].inner is not None]
        named = [(parameter, task) for spec in with_graphs for parameter, task in spec.named.items()]
        return found | {parameter for parameter, task in named if task in found}

    def is_flow(self, progress: Progress) -> bool:
        """Whether a run is data flow. One that has begun with barriers keeps them, and the other way round."""
        section = progress.section
        if section is None or section.layer is None:
            return not self.barriers
        return section.flow is not None

    def initial(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The state that a run starts with. Raises `UsageError` for a missing input."""
        for spec, name in self._required:
            if name not in inputs:
                raise UsageError(unknown_parameter(spec, name, inputs, self.dag))
        return {
            "inputs": dict(inputs),
            "messages": [],
            "tasks": {},
            "decisions": [],
            "context": {},
            "dag": decode(self._encoded_dag),  # a copy: tasks may be added to it
        }

    def results(self, final: Mapping[str, Any]) -> dict[str, Any]:
        """The results of a run's tasks by name, from its final state."""
        return dict(WorkflowState(final).results)

    def view(self, final: Mapping[str, Any]) -> State:
        """A final state for a user's function that reads it."""
        return detached_view(final, kind=WorkflowStateView)

    def node(self, spec: TaskSpec) -> PlanNode:
        """The node that runs a task. Raises `DefinitionError` for arguments that its function doesn't take."""
        definition = self.definitions[spec.definition]
        function = None
        if definition.signature is not None:
            function = definition.signature.bind(spec, f"task {spec.name!r}")
        task = WorkflowTask(spec, definition.safe_to_fail, definition.keeps_secret)
        condition = None
        if definition.condition is not None:
            asked = definition.condition.bind(spec, f"the condition of task {spec.name!r}", strict=False)
            condition = plan_node(spec.name, asked, None, None, (), True, workflow_task=task)
            condition = condition._replace(is_condition=True)
        return plan_node(
            spec.name,
            function,
            definition.retry,
            definition.timeout,
            (),
            True,
            definition.inner,
            workflow_task=task,
            condition=condition,
            limits=names_of_limits(definition.limits, definition.inner, f"task {spec.name!r}"),
        )

    def open_nodes(self, progress: Progress) -> Mapping[str, PlanNode]:
        """The nodes of the open layer: those of the code, and those of tasks that the run has added or changed."""
        dag = progress.state["dag"]
        section = progress.section
        assert section is not None
        changed = {}
        for key, child in section.children.items():
            name = str(key)
            if not child.done and dag[name] != self.dag.get(name):
                changed[name] = self.node(read_spec(name, dag[name]))
        return ChainMap(changed, self.nodes) if changed else self.nodes

    def nodes_for(self, name: str, data: Mapping[str, Any]) -> Mapping[str, PlanNode]:
        """The nodes among which is that of a task, which the run may have added or changed."""
        if data == self.dag.get(name):
            return self.nodes
        return ChainMap({name: self.node(read_spec(name, data))}, self.nodes)

    def next_layer(
        self, state: Mapping[str, Any], visit: int, planned: PlannedLayers | None
    ) -> tuple[str, ...]:
        """The tasks that are ready after this visit of the planner; empty if all are done."""
        if planned is not None and planned.visit == visit:
            return planned.ready
        # After a resume the planner's result isn't in memory: compute it from the state.
        remaining = layers_of(state["dag"], state["tasks"])
        return remaining[0] if remaining else ()

    def check_update(self, update: Mapping[str, Any]) -> dict[str, Any]:
        """An update of the state from outside, in its final form. Raises `UsageError` if it isn't allowed."""
        report = TaskReport("outside")
        for key, value in update.items():
            if key not in OPEN_TO_UPDATES:
                raise UsageError(
                    f"an update of a workflow adds to {', '.join(OPEN_TO_UPDATES)}; it can't set {key!r}"
                )
            if key == "context":
                report.share(value)
            elif isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
                raise UsageError(f"{key} must be a list of entries to add, not {type(value).__name__}")
        report.messages += update.get("messages", ())
        for decision in update.get("decisions", ()):
            report.decide(decision, {})
        return report.update()

    def check_new_task(
        self,
        given: Mapping[str, Any],
        dag: Dag,
        inputs: Mapping[str, Any],
        added_by: str,
        *,
        infer: bool = False,
    ) -> TaskSpec:
        """The spec of a task to add. Raises `UsageError` if it can't be added.

        `infer` adds the dependencies that follow from its parameters. A decision that is stored has them already.
        """
        try:
            spec = make_spec(
                given["name"],
                given.get("depends_on", ()),
                given.get("optional", ()),
                given.get("arguments"),
                given.get("run"),
                added_by,
            )
            if infer and spec.definition in self.definitions:
                spec = self.definitions[spec.definition].infer_dependencies(spec, dag)
            self._check_addition(spec, given.get("before", ()), dag)
        except DefinitionError as problem:
            raise UsageError(f"add_task(): {problem}") from problem
        if missing := self.missing_input(spec, inputs, dag):
            raise UsageError(f"add_task(): {missing}")
        return spec

    def missing_input(self, spec: TaskSpec, inputs: Mapping[str, Any], dag: Dag) -> str:
        """The message about an input that a task needs and the run doesn't have; empty if it has all."""
        signature = self.definitions[spec.definition].signature
        function = None
        if signature is not None:
            function = signature.bind(spec, spec.name, strict=False)
        for name in self._required_inputs(spec, function):
            if name not in inputs:
                return unknown_parameter(spec, name, inputs, dag)
        return ""

    def _check_addition(self, spec: TaskSpec, given_before: Any, dag: Dag) -> None:
        if spec.name in self.definitions or (spec.name in dag and not same_task(dag[spec.name], spec)):
            raise DefinitionError(f"a task named {spec.name!r} already exists")
        if spec.run is None:
            raise DefinitionError(f"task {spec.name!r} needs run=, the name of a task or template")
        if spec.definition not in self.definitions:
            near = did_you_mean(spec.run, self.definitions)
            raise DefinitionError(
                f"task {spec.name!r} runs {spec.run!r}, which isn't a task or a template{near}"
            )
        before = _checked_before(spec.name, given_before)
        for needed in (*spec.dependencies, *before):
            if needed not in dag:
                near = did_you_mean(needed, dag)
                raise DefinitionError(f"task {spec.name!r}: there is no task {needed!r}{near}")
        if before:
            circular = sorted(all_dependencies(dag, spec.dependencies).intersection(before))
            if circular:
                raise DefinitionError(
                    f"task {spec.name!r} can't be before {circular[0]!r}, which it depends on itself"
                )
        self.node(spec)

    def _required_inputs(self, spec: TaskSpec, function: Function | None) -> list[str]:
        """The inputs that a task, which calls this function, and its condition need."""
        takes = function.takes if function is not None else ()
        condition = self.definitions[spec.definition].condition
        if condition is not None:
            takes += condition.bind(spec, spec.name, strict=False).takes
        return [value.removeprefix(INPUT) for _, value in takes if value.startswith(INPUT)]


def _checked_before(task: str, given: Any) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise DefinitionError(f"task {task!r}: before must be a list of task names, not {given!r}")
    names = list(given)
    if not all(isinstance(name, str) for name in names):
        raise DefinitionError(f"task {task!r}: before must be a list of task names, not {names!r}")
    return names
