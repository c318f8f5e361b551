"""Defining a workflow: tasks and what they depend on, checked as a whole when it is frozen into a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from graphlib import CycleError
from typing import Any, Literal, Self, TypeVar, overload

from limpet.defaults import MAX_LAYERS
from limpet.errors import DefinitionError, UsageError, did_you_mean
from limpet.graphs.parallel import Section, SubPlan
from limpet.graphs.plan import PLANNER, Plan, digest, plan_node, secrets_among
from limpet.graphs.retry import Retry, read_retry, read_timeout
from limpet.graphs.schema import Schema
from limpet.graphs.workflow.dag import layers_of
from limpet.graphs.workflow.layers import Layers
from limpet.graphs.workflow.state import REDUCERS, LiveWorkflowState
from limpet.graphs.workflow.tasks import TaskCode, TaskSpec, Wants, make_spec, wants

OnMismatch = Literal["fail", "warn"]
F = TypeVar("F", bound=Callable[..., Any])

Dependencies = Iterable[str] | Mapping[str, str]
"""The tasks that one depends on: their names, or `{parameter: name}` where its function calls them otherwise."""


class WorkflowSchema(Schema):
    """The schema of a workflow's state. What a run is given are the inputs of its tasks."""

    __slots__ = ()

    def initial(self, given: Any) -> dict[str, Any]:
        """The first state of a run. Raises `UsageError` when a task asks for an input that isn't given."""
        if given is not None and not isinstance(given, Mapping):
            raise UsageError(f"the inputs of a workflow are a dict, not {type(given).__name__}")
        for key in given or ():
            if type(key) is not str:
                raise UsageError(f"an input's name is a str, not {type(key).__name__}: {key!r}")
        started: dict[str, Any] = self.source.initial(given or {})
        return started


class WorkflowBuilder:
    """The tasks of a workflow, while it is being written.

    The order of the calls is free, as for a graph; `validate()` says everything that is wrong at once.
    """

    def __init__(
        self, name: str = "workflow", *, max_layers: int = MAX_LAYERS, secrets: Iterable[str] = ()
    ) -> None:
        if not isinstance(name, str) or not name:
            raise DefinitionError(f"a workflow's name is a non-empty str, not {name!r}")
        if type(max_layers) is not int or max_layers < 1:
            raise DefinitionError(f"max_layers is a whole number from 1, not {max_layers!r}", name)
        names = None if isinstance(secrets, str) else list(secrets)
        if names is None or not all(isinstance(each, str) for each in names):
            raise DefinitionError("secrets is a list of names of inputs and context keys", name, "workflow")
        self.name, self.max_layers, self.secrets = name, max_layers, frozenset(names)
        self._specs: dict[str, TaskSpec] = {}
        self._codes: dict[str, TaskCode] = {}
        self._graphs: dict[str, Any] = {}
        self._handler: Wants | None = None
        self._freezing = False

    def add_task(
        self,
        name: str | Callable[..., Any],
        run: Callable[..., Any] | Any = None,
        depends_on: Dependencies = (),
        *,
        optional: Dependencies = (),
        condition: Callable[..., Any] | None = None,
        retry: Retry | int | None = None,
        timeout: float | None = None,
        safe_to_fail: bool = False,
        arguments: Mapping[str, Any] | None = None,
        secret: bool = False,
    ) -> Self:
        """Add a task that calls `run` with the results of the tasks that it depends on, by their names.

        `run` may also take `inputs` (or one of them, by its name), `context`, `results` (of all its dependencies),
        `state`, `config`, `ctx`, and what `arguments` has. `depends_on={parameter: task}` is for a task that is
        called otherwise in `run`. It may be a graph or another workflow, which starts with all of these; its final
        state, or the results of its tasks, is the result. `add_task(fn)` names the task after the function.

        Of `optional` dependencies, one that failed or was skipped gives None; without any other that it needs, the
        task is skipped. It is skipped as well where `condition`, which takes what `run` may, doesn't hold. When it
        has failed for good, `retry` included, the run fails; unless it is `safe_to_fail`: then its record says so.
        A `secret` result is never in events, logs or summaries. Raises `DefinitionError`.
        """
        if not isinstance(name, str) and callable(name):
            run, name = name, str(getattr(name, "__name__", ""))
        try:
            spec = make_spec(name, self._named(depends_on), self._named(optional), arguments)
        except DefinitionError as problem:
            raise DefinitionError(problem.mistakes, self.name, "workflow") from None
        self._add_code(spec.name, run, condition, retry, timeout, safe_to_fail, secret)
        self._specs[spec.name] = spec
        return self._changed()

    @overload
    def task(self, run: F, /) -> F: ...

    @overload
    def task(
        self,
        *,
        name: str | None = None,
        depends_on: Dependencies = (),
        optional: Dependencies = (),
        condition: Callable[..., Any] | None = None,
        retry: Retry | int | None = None,
        timeout: float | None = None,
        safe_to_fail: bool = False,
        arguments: Mapping[str, Any] | None = None,
        secret: bool = False,
    ) -> Callable[[F], F]: ...

    def task(self, run: Any = None, **options: Any) -> Any:
        """`add_task` as a decorator: `@flow.task` or `@flow.task(depends_on=[…])`, which also takes `name`."""

        def add(function: F) -> F:
            self.add_task(options.pop("name", None) or _called(function), function, **options)
            return function

        return add if run is None else add(run)

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
    ) -> Self:
        """Add the code of tasks that don't exist until `ctx.add_task(…, run=name)` adds one, while a run is under
        way.
        """
        try:
            make_spec(name)
        except DefinitionError as problem:
            raise DefinitionError(problem.mistakes, self.name, "workflow") from None
        self._add_code(name, run, condition, retry, timeout, safe_to_fail, secret)
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
    ) -> Callable[[F], F]: ...

    def template(self, run: Any = None, **options: Any) -> Any:
        """`add_template` as a decorator."""

        def add(function: F) -> F:
            self.add_template(options.pop("name", None) or _called(function), function, **options)
            return function

        return add if run is None else add(run)

    def after_layer(self, handler: F) -> F:
        """Have `handler` called after each layer, before it is saved: it may decide what is still to be done.

        It may take `layer` (its number, from 0), `results` (of its tasks, by name), `state`, `context`, `inputs`,
        `config` and `ctx`, may `pause()`, and returns None or a `TaskResult`. Can be used as a decorator.
        """
        self._handler = wants(handler, "the handler after layers")
        self._changed()
        return handler

    @property
    def layers(self) -> list[list[str]]:
        """The names of its tasks, in layers. Raises `DefinitionError`."""
        self.validate()
        return [
            list(layer) for layer in layers_of({name: spec.to_data() for name, spec in self._specs.items()})
        ]

    def validate(self) -> None:
        """Raise a `DefinitionError` that lists every mistake, or return if there is none."""
        mistakes = list(self._mistakes())
        if mistakes:
            raise DefinitionError(mistakes, self.name, "workflow")

    def freeze(self, on_mismatch: OnMismatch = "fail") -> Plan:
        """Validate and return the plan. Raises `DefinitionError`."""
        if self._freezing:
            raise DefinitionError("the workflow contains itself", self.name, "workflow")
        self.validate()
        self._freezing = True
        try:
            inside = {name: SubPlan(graph._plan_inside([], [])) for name, graph in self._graphs.items()}
        finally:
            self._freezing = False
        codes = {name: code._replace(sub=inside.get(name)) for name, code in self._codes.items()}
        layers = Layers(dict(self._specs), codes, self._handler, on_mismatch, self.max_layers)
        section = Section(PLANNER, PLANNER, layered=True)
        planner = plan_node(PLANNER, layers.planner, None, None, [section], False)
        subs = {name: sub.plan.fingerprint for name, sub in inside.items()}
        kept = {name for name, spec in self._specs.items() if codes[spec.code].keeps_secret}
        kept |= {name for sub in inside.values() for name in sub.plan.secrets}
        templates = sorted((name, *(code.wants[1:4] if code.wants else ())) for name, code in codes.items())
        return Plan(
            name=self.name,
            nodes={PLANNER: planner, **layers.nodes},
            entry=PLANNER,
            schema=WorkflowSchema({}, REDUCERS, {}, layers, LiveWorkflowState),
            max_iterations=self.max_layers + 1,  # it is planned once more than there are layers
            interrupt_before=frozenset(),
            interrupt_after=frozenset(),
            fingerprint=digest(["workflow", sorted(layers.dag.items()), templates, sorted(subs.items())]),
            graph=self,
            layers=layers,
            secrets=secrets_among(self.secrets | kept, layers.nodes),
        )

    def _plan_inside(self, interrupt_before: list[str], interrupt_after: list[str]) -> Plan:
        """The plan of this workflow where it runs inside a graph, or another workflow."""
        if stops := [*interrupt_before, *interrupt_after]:
            raise DefinitionError(
                f"a workflow has no interrupts, so it can't stop at {stops[0]!r}: pause() in the task",
                self.name,
                "workflow",
            )
        return self.freeze()

    def _named(self, dependencies: Any) -> Any:
        """Dependencies by name, also where they were given as the functions of tasks."""
        names = {id(code.wants.call): name for name, code in self._codes.items() if code.wants is not None}
        if isinstance(dependencies, Mapping):
            return {key: names.get(id(each), each) for key, each in dependencies.items()}
        if isinstance(dependencies, (list, tuple)):
            return [names.get(id(each), each) for each in dependencies]
        return dependencies

    def _changed(self) -> Self:
        return self

    def _add_code(
        self,
        name: str,
        run: Any,
        condition: Any,
        retry: Retry | int | None,
        timeout: float | None,
        safe_to_fail: bool,
        secret: bool,
    ) -> None:
        what = f"task {name!r}"
        if name in self._codes:
            raise DefinitionError(f"there is a task {name!r} already", self.name, "workflow")
        timeout, tried = read_timeout(timeout, what), read_retry(retry)
        inside = hasattr(run, "_plan_inside")
        if inside and timeout is not None:
            raise DefinitionError(f"{what} is a graph; give its own nodes the timeout", self.name, "workflow")
        if condition is not None and (condition := wants(condition, f"the condition of {what}")).is_async:
            raise DefinitionError(
                f"the condition of {what} is async; let a task before it find out", self.name
            )
        taken = None if inside else wants(run, what)
        self._codes[name] = TaskCode(
            name, taken, tried, timeout, bool(safe_to_fail), condition, secret=bool(secret)
        )
        if inside:
            self._graphs[name] = run

    def _mistakes(self) -> Iterable[str]:
        if not self._specs:
            yield "it has no task: add_task(name, run=function)"
        for spec in self._specs.values():
            for needed in spec.needs:
                if needed not in self._specs:
                    near = did_you_mean(needed, self._specs)
                    yield f"task {spec.name!r} depends on {needed!r}, which is no task{near}"
            code = self._codes[spec.name]
            try:
                _ = code.wants and code.wants.bind(spec, f"task {spec.name!r}")
            except DefinitionError as problem:
                yield from problem.mistakes
        known = {
            name: {"depends_on": [each for each in spec.needs if each in self._specs]}
            for name, spec in self._specs.items()
        }
        try:
            layers_of(known)
        except CycleError as cycle:
            yield f"tasks depend on each other in a circle: {' → '.join(map(repr, reversed(cycle.args[1])))}"


def _called(function: Any) -> str:
    return str(getattr(function, "__name__", ""))
