"""A task of a workflow: what it depends on, what its function takes, and the update that its result becomes.

A `TaskSpec` (`task_specs.py`) is data. A `TaskDefinition` has the code of a task, which is found by name in the
workflow that the process has imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Mapping
from types import FunctionType
from typing import Any, Final, NamedTuple

from limpet.errors import DefinitionError, UsageError, did_you_mean
from limpet.graphs.limits import Limit
from limpet.graphs.parallel import InnerGraph
from limpet.graphs.parameters import ABSENT, Function, generator_refused, is_async, is_generator
from limpet.graphs.retry import Retry
from limpet.graphs.state import detached_view
from limpet.graphs.workflow.state import (
    TASK_COMPLETED,
    TASK_FAILED,
    TASK_SKIPPED,
    TaskResult,
    WorkflowStateView,
)
from limpet.graphs.workflow.task_specs import TaskSpec
from limpet.graphs.workflow.visible_state import VisibleState
from limpet.journal.encoding.codec import detached_value

TASK_PARAMETERS: Final = ("ctx", "context", "inputs", "results", "state", "config")
"""What a task may take besides the results of its dependencies, its arguments and the inputs by name."""

# What a parameter takes, in `Function.takes`: one of the names above, or one of these prefixes and a name.
RESULT: Final = "result "
ARGUMENT: Final = "argument "
INPUT: Final = "input "
OPTIONAL_INPUT: Final = "optional_input "


READS_RESULTS: Final = "reads_results"
"""The attribute of a function that reads results of tasks without a parameter of that name: their names."""


class TaskSignature(NamedTuple):
    """A user's function and the names of its parameters; `any_keyword` if it takes any other by keyword as well.

    `reads` are the names of tasks whose results it takes from `results`, where these are known.
    """

    call: Callable[..., Any]
    required: tuple[str, ...]
    optional: tuple[str, ...]
    any_keyword: bool
    is_async: bool
    reads: tuple[str, ...] = ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of all its parameters."""
        return (*self.required, *self.optional)

    def bind(
        self, spec: TaskSpec, what: str, offered: Iterable[str] = TASK_PARAMETERS, strict: bool = True
    ) -> Function:
        """The function with what each parameter takes, for this task. The run's inputs aren't known yet.

        Raises `DefinitionError` for an argument that the function doesn't take, if `strict`.
        """
        if strict:
            self.check_arguments(spec, what)
        results = {name: name for name in spec.dependencies}
        if spec.named:
            results.update(spec.named)
        takes = []
        for name in self.parameters:
            if name in results:
                value = RESULT + results[name]
            elif name in spec.arguments:
                value = ARGUMENT + name
            elif name in offered:
                value = name
            elif name in self.required:
                value = INPUT + name
            else:
                value = OPTIONAL_INPUT + name
            takes.append((name, value))
        if self.any_keyword:
            takes += self._others(spec, results, {value for _, value in takes})
        return Function(self.call, tuple(takes), False, self.is_async)

    def check_arguments(self, spec: TaskSpec, what: str) -> None:
        """Raise `DefinitionError` for an argument of a task that the function doesn't take."""
        if self.any_keyword:
            return
        for name in spec.arguments:
            if name not in self.parameters and name not in spec.dependencies and name not in spec.named:
                raise DefinitionError(f"{what} has the argument {name!r}, which its function doesn't take")

    def _others(self, spec: TaskSpec, results: dict[str, str], taken: set[str]) -> list[tuple[str, str]]:
        """The results and arguments that no parameter takes by name."""
        renamed = set(spec.named.values())
        others = []
        for name, dependency in results.items():
            if RESULT + dependency not in taken and (name in spec.named or name not in renamed):
                others.append((name, RESULT + dependency))
        for name in spec.arguments:
            if ARGUMENT + name not in taken and name not in results:
                others.append((name, ARGUMENT + name))
        return others


def read_signature(call: Any, what: str) -> TaskSignature:
    """Read what a function takes. Raises `DefinitionError` if it can't be called with keyword arguments."""
    if not callable(call):
        raise DefinitionError(f"{what} is not callable: {call!r}")
    if type(call) is FunctionType and not call.__dict__ and not call.__code__.co_posonlyargcount:
        return _read_plain_function(call, what)
    if is_generator(call):
        raise generator_refused(what)
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):
        raise DefinitionError(
            f"{what}: can't tell what {call!r} takes; wrap it in a function of yours"
        ) from None
    required: list[str] = []
    optional: list[str] = []
    any_keyword = False
    for each in parameters:
        if each.kind is each.POSITIONAL_ONLY:
            raise DefinitionError(
                f"{what} has the positional-only parameter {each.name!r}; it is called by name"
            )
        if each.kind is each.VAR_KEYWORD:
            any_keyword = True
        elif each.kind is each.VAR_POSITIONAL:
            continue
        elif each.default is each.empty:
            required.append(each.name)
        else:
            optional.append(each.name)
    reads = tuple(getattr(call, READS_RESULTS, ()))
    return TaskSignature(call, tuple(required), tuple(optional), any_keyword, is_async(call), reads)


def _read_plain_function(call: FunctionType, what: str) -> TaskSignature:
    """The same for a function that is just a `def` or a lambda: nothing wraps it, and nothing is set on it.

    `inspect` takes longer than all else that a task costs to define.
    """
    code = call.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
        raise generator_refused(what)
    end = code.co_argcount + code.co_kwonlyargcount
    with_default = code.co_varnames[code.co_argcount - len(call.__defaults__ or ()) : code.co_argcount]
    defaults = {*with_default, *(call.__kwdefaults__ or ())}
    required = []
    optional = []
    for name in code.co_varnames[:end]:
        if name in defaults:
            optional.append(name)
        else:
            required.append(name)
    any_keyword = bool(code.co_flags & inspect.CO_VARKEYWORDS)
    coroutine = bool(code.co_flags & inspect.CO_COROUTINE)
    return TaskSignature(call, tuple(required), tuple(optional), any_keyword, coroutine)


class TaskDefinition(NamedTuple):
    """The code of a task, or of a template for tasks: its function or graph, and its policy."""

    name: str
    signature: TaskSignature | None
    retry: Retry | None = None
    timeout: float | None = None
    safe_to_fail: bool = False
    condition: TaskSignature | None = None
    inner: InnerGraph | None = None
    secret: bool = False
    limits: tuple[Limit, ...] = ()

    @property
    def keeps_secret(self) -> bool:
        """Whether its result is secret: it is marked so, or it is the final state of a graph with secrets."""
        return self.secret or (self.inner is not None and self.inner.plan.holds_secrets)

    def infer_dependencies(self, spec: TaskSpec, tasks: Container[str]) -> TaskSpec:
        """The spec of a task without `depends_on`: it depends on the tasks that parameters name.

        What a parameter takes by that name already comes first: an argument, an optional dependency, or one of
        `TASK_PARAMETERS`. A parameter with the name of its own task is an input.
        """
        found: dict[str, None] = {}
        for signature in (self.signature, self.condition):
            if signature is None:
                continue
            for name in (*signature.parameters, *signature.reads):
                if name not in tasks or name == spec.name or name in TASK_PARAMETERS:
                    continue
                if name not in spec.arguments and name not in spec.named and name not in spec.optional:
                    found[name] = None
        if not found:
            return spec
        return spec._replace(depends_on=tuple(found))


class TaskSkipped(NamedTuple):
    """The outcome of a task whose condition doesn't hold."""

    reason: str


class WorkflowTask(NamedTuple):
    """A task as its node has it: the arguments of its function, and the update that its result becomes."""

    spec: TaskSpec
    safe_to_fail: bool
    secret: bool = False

    def argument(self, ctx: Any, value: str) -> Any:
        """What a parameter of the function gets, from the state as this task sees it."""
        return argument_value(self.visible_state(ctx.scope), self.spec, value)

    def visible_state(self, scope: Any) -> Mapping[str, Any]:
        """The state of the workflow as this task sees it: as its layer began with it, or as the flow allows."""
        if scope.flow is None:
            state: Mapping[str, Any] = scope.outer.state
            return state
        return VisibleState(scope.flow, self.spec.name)

    def graph_inputs(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """What a graph that is a task starts with: the run's inputs, its arguments and its dependencies' results."""
        given: dict[str, Any] = detached_value({**state["inputs"], **self.spec.arguments})
        for name in self.spec.dependencies:
            given[name] = result_of(state, name)
        for parameter, name in self.spec.named.items():
            given[parameter] = result_of(state, name)
        return given

    def update(self, ctx: Any, returned: Any, at: float) -> dict[str, Any]:
        """The update for a call that completed. Raises `UsageError` for an invalid result."""
        if isinstance(returned, TaskSkipped):
            return self._update(ctx, skipped_record(self.spec.name, returned.reason, self._layer(ctx), at))
        if isinstance(returned, TaskResult):
            ctx._add_result(returned)
            returned = returned.value
        record = {**self._record(ctx, TASK_COMPLETED, at), "result": returned}
        if self.secret:
            record["secret"] = True
        return self._update(ctx, record)

    def failed(self, ctx: Any, error: dict[str, Any], at: float) -> dict[str, Any]:
        """The update for a call that failed for good, of a task that is safe to fail."""
        return {"tasks": {self.spec.name: {**self._record(ctx, TASK_FAILED, at), "error": error}}}

    def _update(self, ctx: Any, record: dict[str, Any]) -> dict[str, Any]:
        update: dict[str, Any] = {"tasks": {self.spec.name: record}}
        if ctx.task_report is not None:
            update |= ctx.task_report.update()
        return update

    def _layer(self, ctx: Any) -> int:
        layer: int = ctx.scope.outer.section.layer_of(self.spec.name)
        return layer

    def _record(self, ctx: Any, status: str, at: float) -> dict[str, Any]:
        return {
            "id": self.spec.name,
            "status": status,
            "timestamp": at,
            "duration": max(0.0, at - ctx.began),
            "attempts": ctx.attempt,
            "layer": self._layer(ctx),
        }


def skipped_record(name: str, reason: str, layer: int, at: float) -> dict[str, Any]:
    """The record of a task that isn't run."""
    return {"id": name, "status": TASK_SKIPPED, "reason": reason, "layer": layer, "timestamp": at}


def argument_value(state: Mapping[str, Any], spec: TaskSpec, value: str) -> Any:
    """What a parameter gets, in this state of the workflow: always a copy, which the function may change."""
    kind, _, name = value.partition(" ")
    match kind:
        case "result":
            return result_of(state, name)
        case "argument":
            return detached_value(spec.arguments[name])
        case "input" | "optional_input":
            inputs = state["inputs"]
            if name in inputs:
                return detached_value(inputs[name])
            if kind == "optional_input":
                return ABSENT
            raise UsageError(unknown_parameter(spec, name, inputs, state["dag"]))
        case "context" | "inputs":
            return detached_value(state[value])
        case "results":
            return {dependency: result_of(state, dependency) for dependency in spec.dependencies}
        case "state":
            if isinstance(state, VisibleState):
                return detached_view(state.as_dict(), state.whole, kind=WorkflowStateView)
            return detached_view(state, kind=WorkflowStateView)
        case _:
            raise AssertionError(f"no parameter takes {value!r}")


def result_of(state: Mapping[str, Any], name: str) -> Any:
    """The result of a task that has a record; None if it didn't complete."""
    record = state["tasks"][name]
    if record["status"] != TASK_COMPLETED:
        return None
    return detached_value(record["result"])


def unknown_parameter(spec: TaskSpec, name: str, inputs: Mapping[str, Any], dag: Mapping[str, Any]) -> str:
    """The message for a parameter of a task's function that no value has the name of."""
    unknown = f"task {spec.name!r} has an unknown parameter {name!r}"
    if name in dag and name != spec.name:
        return f"{unknown}: it is a task that {spec.name!r} doesn't depend on; add depends_on=[{name!r}]"
    available = [*spec.dependencies, *spec.arguments, *inputs, *TASK_PARAMETERS]
    near = did_you_mean(name, [*available, *(task for task in dag if task != spec.name)])
    listed = ", ".join(dict.fromkeys(available))
    return (
        f"{unknown}{near}; give the run an input {name!r}, or the workflow a resource or a task of that name, "
        f"or use one of the available parameters: {listed}"
    )
