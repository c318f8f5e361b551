"""Defining a workflow: tasks and their dependencies, which are validated as a whole when it is frozen into a plan."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from graphlib import CycleError
from types import MethodType
from typing import Any, Literal, Self, TypeVar, overload

from limpet.defaults import MAX_LAYERS
from limpet.errors import DefinitionError, UsageError, did_you_mean
from limpet.graphs.node_options import LimitLike, limits_of_all, read_limits
from limpet.graphs.parallel import InnerGraph, Section
from limpet.graphs.plan import PLANNER, Freezing, Plan, all_secret_keys, digest, plan_node
from limpet.graphs.retry import Retry, read_retry, read_timeout
from limpet.graphs.schema import Schema
from limpet.graphs.workflow.layers import CONTINUE, STOP, LayerOptions, Layers, layers_of
from limpet.graphs.workflow.planner import planner_function
from limpet.graphs.workflow.state import REDUCERS, LiveWorkflowState
from limpet.graphs.workflow.task_specs import TaskSpec, make_spec
from limpet.graphs.workflow.tasks import TaskDefinition, TaskSignature, read_signature

OnMismatch = Literal["fail", "warn"]
OnError = Literal["continue", "stop"]
F = TypeVar("F", bound=Callable[..., Any])

Task = str | Callable[..., Any]
"""A task by its name, or by the function that it calls."""

Dependencies = Iterable[Task] | Mapping[str, Task]
"""The tasks that a task depends on: a list, or `{parameter: task}` where its function uses other names."""


class WorkflowSchema(Schema):
    """The schema of a workflow's state. The input of a run is a dict of inputs for its tasks."""

    __slots__ = ()

    def initial(self, given: Any) -> dict[str, Any]:
        """The first state of a run. Raises `UsageError` if an input is missing that a task needs."""
        if given is not None and not isinstance(given, Mapping):
            raise UsageError(f"the inputs of a workflow must be a dict, not {type(given).__name__}")
        for key in given or ():
            if type(key) is not str:
                raise UsageError(f"an input's name must be a str, not {type(key).__name__}: {key!r}")
        started: dict[str, Any] = self.source.initial(given or {})
        return started


class WorkflowBuilder:
    """The tasks of a workflow, while it is being defined.

    The order of the calls is free, as for a graph. `validate()` reports all mistakes at once.
    """

    def __init__(
        self,
        name: str = "workflow",
        *,
        max_layers: int = MAX_LAYERS,
        layers: bool = False,
        on_error: OnError = CONTINUE,
        secrets: Iterable[str] = (),
    ) -> None:
        if not isinstance(name, str) or not name:
            raise DefinitionError(f"a workflow's name must be a non-empty str, not {name!r}")
        if type(max_layers) is not int or max_layers < 1:
            raise DefinitionError(
                f"max_layers must be a whole number of at least 1, not {max_layers!r}", name
            )
        names = None if isinstance(secrets, str) else list(secrets)
        if names is None or not all(isinstance(each, str) for each in names):
            raise DefinitionError(
                "secrets must be a list of names of inputs and context keys", name, "workflow"
            )
        if type(layers) is not bool:
            raise DefinitionError(f"layers must be True or False, not {layers!r}", name, "workflow")
        if on_error not in (CONTINUE, STOP):
            raise DefinitionError(
                f"on_error must be {CONTINUE!r} or {STOP!r}, not {on_error!r}", name, "workflow"
            )
        self.name = name
        self._run_options = LayerOptions(max_layers, layers, on_error)
        self.secrets = frozenset(names)
        self._specs: dict[str, TaskSpec] = {}
        self._definitions: dict[str, TaskDefinition] = {}
        self._without_depends_on: set[str] = set()
        self._names: dict[Hashable, list[str]] = {}
        """The tasks by the identity of their functions, which `_definitions` keeps alive."""
        self._graphs: dict[str, Any] = {}
        self._handler: TaskSignature | None = None
        self._freezing = Freezing()

    def add_task(
        self,
        name: str | Callable[..., Any],
        run: Callable[..., Any] | Any = None,
        depends_on: Dependencies | None = None,
        *,
        optional: Dependencies = (),
        condition: Callable[..., Any] | None = None,
        retry: Retry | int | None = None,
        timeout: float | None = None,
        safe_to_fail: bool = False,
        arguments: Mapping[str, Any] | None = None,
        secret: bool = False,
        limits: Iterable[LimitLike] = (),
    ) -> Self:
        """Add a task that calls `run` with the results of the tasks that it depends on, by their names.

        Without `depends_on`, it depends on the tasks that parameters of `run` or of `condition` name, also on tasks
        that are added later; `depends_on=[]` says that it depends on none. `depends_on={parameter: task}` is for a
        task that has another name in `run`.

        `run` may also take `inputs` (or one of them, by its name), `context`, `results` (of all its dependencies),
        `state`, `config`, `ctx`, and the keys of `arguments`. `run` may be a graph or another workflow, which starts
        with all of these; its final state, or the results of its tasks, is the result. `add_task(fn)` names the task
        after the function. A name can't contain `/` or begin with `__`.

        An `optional` dependency that failed or was skipped gives None. If any other dependency failed or was skipped,
        so is the task. It is also skipped if `condition`, which can take the same parameters as `run`, doesn't hold.
        If it fails in all attempts, the run fails, unless it is `safe_to_fail`: then its record has the error.
        A `secret` result is never in events, logs or summaries. `limits` are those that each call needs a slot of,
        over all processes: each a `Limit`, or the name of one. Raises `DefinitionError`.
        """
        if not isinstance(name, str) and callable(name):
            run = name
            name = str(getattr(run, "__name__", ""))
        try:
            spec = make_spec(name, self._by_name(depends_on), self._by_name(optional), arguments)
        except DefinitionError as problem:
            raise DefinitionError(problem.mistakes, self.name, "workflow") from None
        self._add_definition(spec.name, run, condition, retry, timeout, safe_to_fail, secret, limits)
        self._specs[spec.name] = spec
        if depends_on is None:
            self._without_depends_on.add(spec.name)
        return self._changed()

    @overload
    def task(self, run: F, /) -> F: ...

    @overload
    def task(
        self,
        *,
        name: str | None = None,
        depends_on: Dependencies | None = None,
        optional: Dependencies = (),
        condition: Callable[..., Any] | None = None,
        retry: Retry | int | None = None,
        timeout: float | None = None,
        safe_to_fail: bool = False,
        arguments: Mapping[str, Any] | None = None,
        secret: bool = False,
        limits: Iterable[LimitLike] = (),
    ) -> Callable[[F], F]: ...

    def task(self, run: Any = None, **options: Any) -> Any:
        """`add_task` as a decorator: `@flow.task` or `@flow.task(depends_on=[…])`, which also takes `name`."""

        def add(function: F) -> F:
            self.add_task(options.pop("name", None) or _name_of(function), function, **options)
            return function

        if run is None:
            return add
        return add(run)

    def add_template(
        self,
        name: str,
        run: Callable[..., Any] | Any,
        *,
        condition: Callable[..., Any] | None = None,
        retry: Retry | int | None = None,
        timeout: float | None = None,
        safe_to_fail: bool = False,
        secret: bool = False,
        limits: Iterable[LimitLike] = (),
    ) -> Self:
        """Add code for tasks that runs add later: `ctx.add_task(…, run=name)` adds a task that runs it."""
        try:
            make_spec(name)
        except DefinitionError as problem:
            raise DefinitionError(problem.mistakes, self.name, "workflow") from None
        self._add_definition(name, run, condition, retry, timeout, safe_to_fail, secret, limits)
        return self._changed()

    @overload
    def template(self, run: F, /) -> F: ...

    @overload
    def template(
        self,
        *,
        name: str | None = None,
        condition: Callable[..., Any] | None = None,
        retry: Retry | int | None = None,
        timeout: float | None = None,
        safe_to_fail: bool = False,
        secret: bool = False,
        limits: Iterable[LimitLike] = (),
    ) -> Callable[[F], F]: ...

    def template(self, run: Any = None, **options: Any) -> Any:
        """`add_template` as a decorator."""

        def add(function: F) -> F:
            self.add_template(options.pop("name", None) or _name_of(function), function, **options)
            return function

        if run is None:
            return add
        return add(run)

    def after_layer(self, handler: F) -> F:
        """Call `handler` after each layer, before it is saved: it may add or skip tasks of later layers.

        It may take `layer` (its number, from 0), `results` (of its tasks, by name), `state`, `context`, `inputs`,
        `config` and `ctx`, may `pause()`, and returns None or a `TaskResult`. Can be used as a decorator.
        """
        self._handler = read_signature(handler, "the handler after layers")
        self._changed()
        return handler

    @property
    def max_layers(self) -> int:
        """How many layers a run may have."""
        return self._run_options.max_layers

    @property
    def layers(self) -> list[list[str]]:
        """The names of its tasks, in layers. Raises `DefinitionError`."""
        self.validate()
        dag = {name: spec.to_data() for name, spec in self._resolved_specs().items()}
        return [list(layer) for layer in layers_of(dag)]

    def validate(self) -> None:
        """Raise a `DefinitionError` that lists all mistakes, if there are any."""
        self._check(self._resolved_specs())

    def freeze(
        self, on_mismatch: OnMismatch = "fail", outer_resources: Mapping[str, Any] | None = None
    ) -> Plan:
        """Validate and return the plan. Raises `DefinitionError`.

        Tasks can take its resources and `outer_resources`, those of the graph that it is inside of.
        """
        if self._freezing.is_under_way:
            raise DefinitionError("the workflow contains itself", self.name, "workflow")
        specs = self._resolved_specs()
        self._check(specs)
        resources = {**(outer_resources or {}), **self._resources()}
        with self._freezing:
            inner = {
                name: InnerGraph(graph._plan_inside([], [], resources))
                for name, graph in self._graphs.items()
            }
        definitions = dict(self._definitions)
        for name, graph in inner.items():
            definitions[name] = definitions[name]._replace(inner=graph)
        handler = self._handler
        if resources:
            # Of resources of the graph around, one may have the name of a task here. Then the task is meant.
            resources = {name: each for name, each in resources.items() if name not in specs}
            from limpet.graphs.resources.graph_resources import signature_with_resources, task_with_resources

            definitions = {name: task_with_resources(each, resources) for name, each in definitions.items()}
            handler = signature_with_resources(handler, resources)
        layers = Layers(specs, definitions, handler, on_mismatch, self._run_options)
        section = Section(PLANNER, PLANNER, layered=True)
        planner = plan_node(PLANNER, planner_function(layers), None, None, [section], False)
        secrets = layers.secret_results() | {key for each in inner.values() for key in each.plan.secrets}
        return Plan(
            name=self.name,
            nodes={PLANNER: planner, **layers.nodes},
            entry=PLANNER,
            schema=WorkflowSchema({}, REDUCERS, {}, layers, LiveWorkflowState),
            max_iterations=self.max_layers + 1,  # the planner runs once more than there are layers
            interrupt_before=frozenset(),
            interrupt_after=frozenset(),
            fingerprint=_fingerprint(layers, self._definitions),
            graph=self,
            layers=layers,
            secrets=all_secret_keys(self.secrets | secrets, layers.nodes),
            limits=limits_of_all(definitions.values(), inner.values()),
        )

    def _resources(self) -> Mapping[str, Any]:
        """The resources that it was compiled with, by name."""
        return {}

    def _plan_inside(
        self, interrupt_before: list[str], interrupt_after: list[str], resources: Mapping[str, Any]
    ) -> Plan:
        """The plan of this workflow inside of a graph or another workflow."""
        interrupts = [*interrupt_before, *interrupt_after]
        if interrupts:
            raise DefinitionError(
                f"a workflow has no interrupts, so it can't stop at {interrupts[0]!r}: pause() in the task",
                self.name,
                "workflow",
            )
        return self.freeze(outer_resources=resources)

    def _by_name(self, dependencies: Any) -> Any:
        """Dependencies by name, also if they were given as the functions of tasks."""
        if isinstance(dependencies, Mapping):
            return {key: self._name_of_task(each) for key, each in dependencies.items()}
        if isinstance(dependencies, str) or not isinstance(dependencies, Iterable):
            return dependencies
        names = map(self._name_of_task, dependencies)
        if isinstance(dependencies, (set, frozenset)):
            return set(names)
        return list(names)

    def _name_of_task(self, task: Any) -> Any:
        """The name of a task, also of one that is given by its function, unless several tasks call that."""
        names = self._names.get(_identity(task), ())
        if len(names) > 1:
            listed = ", ".join(map(repr, names))
            raise DefinitionError(
                f"{_name_of(task)!r} is the function of several tasks, {listed}: name one of them"
            )
        if names:
            return names[0]
        return task

    def _resolved_specs(self) -> dict[str, TaskSpec]:
        """The tasks, those without `depends_on` with the dependencies that follow from their parameters."""
        specs = dict(self._specs)
        for name in self._without_depends_on:
            specs[name] = self._definitions[name].infer_dependencies(specs[name], specs)
        return specs

    def _changed(self) -> Self:
        return self

    def _add_definition(
        self,
        name: str,
        run: Any,
        condition: Any,
        retry: Retry | int | None,
        timeout: float | None,
        safe_to_fail: bool,
        secret: bool,
        limits: Iterable[LimitLike],
    ) -> None:
        what = f"task {name!r}"
        if name in self._definitions:
            raise DefinitionError(f"a task named {name!r} already exists", self.name, "workflow")
        timeout = read_timeout(timeout, what)
        policy = read_retry(retry)
        is_graph = hasattr(run, "_plan_inside")
        if is_graph and timeout is not None:
            raise DefinitionError(f"{what} is a graph; give its own nodes the timeout", self.name, "workflow")
        if condition is not None:
            condition = read_signature(condition, f"the condition of {what}")
            if condition.is_async:
                raise DefinitionError(
                    f"the condition of {what} is async; let a task before it decide", self.name
                )
        signature = None if is_graph else read_signature(run, what)
        self._definitions[name] = TaskDefinition(
            name,
            signature,
            policy,
            timeout,
            bool(safe_to_fail),
            condition,
            secret=bool(secret),
            limits=read_limits(limits, what),
        )
        if is_graph:
            self._graphs[name] = run
        else:
            self._names.setdefault(_identity(run), []).append(name)

    def _shadowed_resources(self, specs: Mapping[str, TaskSpec]) -> Iterable[str]:
        for name in self._resources():
            if name in specs:
                yield f"a task and a resource have the same name, {name!r}"
            for spec in specs.values():
                if name in spec.arguments or name in spec.named:
                    yield f"task {spec.name!r} is given {name!r}, which is the name of a resource, too"

    def _check(self, specs: Mapping[str, TaskSpec]) -> None:
        mistakes = list(self._mistakes(specs))
        if mistakes:
            raise DefinitionError(mistakes, self.name, "workflow")

    def _mistakes(self, specs: Mapping[str, TaskSpec]) -> Iterable[str]:
        if not specs:
            yield "it has no task: add_task(name, run=function)"
        yield from self._shadowed_resources(specs)
        known: dict[str, dict[str, Any]] = {}
        for spec in specs.values():
            known[spec.name] = {"depends_on": [each for each in spec.dependencies if each in specs]}
            if len(known[spec.name]["depends_on"]) < len(spec.dependencies):
                for needed in spec.dependencies:
                    if needed not in specs:
                        near = did_you_mean(needed, specs)
                        yield f"task {spec.name!r} depends on {needed!r}, which isn't a task{near}"
            signature = self._definitions[spec.name].signature
            if signature is not None and spec.arguments:
                try:
                    signature.check_arguments(spec, f"task {spec.name!r}")
                except DefinitionError as problem:
                    yield from problem.mistakes
        try:
            layers_of(known)
        except CycleError as cycle:
            path = " → ".join(map(repr, reversed(cycle.args[1])))
            yield f"tasks depend on each other in a circle: {path}"


def _fingerprint(layers: Layers, written: Mapping[str, TaskDefinition]) -> str:
    """A digest of the tasks, their parameters and the graphs inside of them. The order here is part of it.

    `written` are the definitions as the user wrote them: resources make no difference.
    """
    parameters: list[tuple[Any, ...]] = []
    inner = []
    for name, definition in layers.definitions.items():
        signature = written[name].signature
        if signature is None:
            parameters.append((name,))
        else:
            parameters.append((name, signature.required, signature.optional, signature.any_keyword))
        if definition.inner is not None:
            inner.append((name, definition.inner.plan.fingerprint))
    return digest(["workflow", sorted(layers.dag.items()), sorted(parameters), sorted(inner)])


def _name_of(function: Any) -> str:
    if isinstance(function, str):
        raise DefinitionError(f"a decorator takes the name of a task as name={function!r}")
    return str(getattr(function, "__name__", ""))


def _identity(function: Any) -> Hashable:
    """What tells functions apart. A bound method is another object each time that it is asked for."""
    if isinstance(function, MethodType):
        return id(function.__self__), id(function.__func__)
    return id(function)
