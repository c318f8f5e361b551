"""A task of a workflow: what it depends on, what its function takes, and what becomes of what it returns.

A *spec* is data: it is stored with each run, so that a run whose tasks were changed on the way goes on with the
changed ones. The *code* of a task is found by name, in the workflow that the process has imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from limpet.errors import DefinitionError, UsageError, did_you_mean
from limpet.graphs.parallel import SubPlan
from limpet.graphs.parameters import ABSENT, Function, is_async
from limpet.graphs.plan import PLANNER
from limpet.graphs.retry import Retry
from limpet.graphs.state import glance
from limpet.graphs.workflow.state import (
    TASK_COMPLETED,
    TASK_FAILED,
    TASK_SKIPPED,
    SeenWorkflowState,
    TaskResult,
)
from limpet.journal.encoding.codec import detached_value, encode

OFFERED: Final = ("ctx", "context", "inputs", "results", "state", "config")
"""What a task may take besides the results of its dependencies, its arguments and the inputs by name."""

RESULT, ARGUMENT, INPUT, MAYBE = "result ", "argument ", "input ", "maybe "


class TaskSpec(NamedTuple):
    """What a task depends on, as data. `named` has the dependencies that its function takes by another name.

    `run` is the task or template whose code it runs, if that isn't its own; `added_by` the task that added it.
    """

    name: str
    depends_on: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    named: Mapping[str, str] = {}
    arguments: Mapping[str, Any] = {}
    run: str | None = None
    added_by: str | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """All tasks that come before it."""
        return (*self.depends_on, *self.optional)

    @property
    def code(self) -> str:
        """The name of the code that it runs."""
        return self.run or self.name

    def to_data(self) -> dict[str, Any]:
        """It as plain data. What it has none of is left out."""
        data = {
            "depends_on": list(self.depends_on), "optional": list(self.optional), "named": dict(self.named),
            "arguments": dict(self.arguments), "run": self.run, "added_by": self.added_by,
        }  # fmt: skip
        return {key: value for key, value in data.items() if value}


def read_spec(name: str, data: Mapping[str, Any]) -> TaskSpec:
    """The spec of a task from its data."""
    return TaskSpec(
        name,
        tuple(data.get("depends_on", ())),
        tuple(data.get("optional", ())),
        data.get("named", {}),
        data.get("arguments", {}),
        data.get("run"),
        data.get("added_by"),
    )


def same_task(data: Mapping[str, Any], spec: TaskSpec) -> bool:
    """Whether a task that was added before is this one, whoever adds it."""
    if data.get("added_by") is None and data.get("kind") is None:
        return False
    there = read_spec(spec.name, data)
    return encode(there._replace(added_by=None).to_data()) == encode(spec._replace(added_by=None).to_data())


def make_spec(
    name: Any,
    depends_on: Any = (),
    optional: Any = (),
    arguments: Any = None,
    run: str | None = None,
    added_by: str | None = None,
) -> TaskSpec:
    """A spec from what a user gave. Raises `DefinitionError`."""
    name = _name(name)
    what = f"task {name!r}"
    needed, named = _dependencies(what, "depends_on", depends_on)
    wanted, also_named = _dependencies(what, "optional", optional)
    for kind, twice in (
        ("task", [each for each in wanted if each in needed]),
        ("parameter", named.keys() & also_named),
    ):
        if twice:
            which = next(iter(twice))
            raise DefinitionError(f"{what} has the {kind} {which!r} twice: in depends_on and in optional")
    if arguments is not None and not (
        isinstance(arguments, Mapping) and all(isinstance(each, str) for each in arguments)
    ):
        raise DefinitionError(f"{what}: arguments is a dict by parameter name, not {arguments!r}")
    if run is not None and not isinstance(run, str):
        raise DefinitionError(f"{what}: run is the name of a task or template, not {run!r}")
    given = detached_value(dict(arguments or {}))
    return TaskSpec(name, needed, wanted, {**named, **also_named}, given, run, added_by)


def _name(given: Any) -> str:
    fits = isinstance(given, str) and given and given.isprintable() and "/" not in given
    if not fits or given.startswith("__"):
        raise DefinitionError(
            f"a task's name is a printable str without '/' or a leading '__', not {given!r}"
        )
    if given == PLANNER:
        raise DefinitionError(f"a task's name is not {PLANNER!r}: that is what happens between layers")
    return str.__str__(given)


def _dependencies(what: str, kind: str, given: Any) -> tuple[tuple[str, ...], dict[str, str]]:
    """The names of dependencies, and the parameters that take those that are given as `{parameter: task}`."""
    if isinstance(given, str):
        raise DefinitionError(f"{what}: {kind} is a list of task names, not one str: write [{given!r}]")
    if given is not None and not isinstance(given, Iterable):
        raise DefinitionError(f"{what}: {kind} is a list of task names, not {given!r}")
    parameters = list(given) if isinstance(given, Mapping) else []
    found = list(given.values()) if isinstance(given, Mapping) else list(given or ())
    found = [getattr(each, "__name__", each) if callable(each) else each for each in found]
    for each in (*found, *parameters):
        if not isinstance(each, str):
            raise DefinitionError(f"{what}: {kind} has names of tasks, not {each!r}")
    names = [str.__str__(each) for each in found]
    if isinstance(given, (set, frozenset)):
        names.sort()  # the order of a set is another in each process
    if len(set(names)) != len(names):
        raise DefinitionError(f"{what}: {kind} names a task twice: {', '.join(map(repr, names))}")
    return tuple(names), dict(zip(parameters, names, strict=False))


class Wants(NamedTuple):
    """A user's function, and the names of its parameters; `rest` if it takes any other by keyword as well."""

    call: Callable[..., Any]
    needed: tuple[str, ...]
    optional: tuple[str, ...]
    rest: bool
    is_async: bool

    def bind(
        self, spec: TaskSpec, what: str, offered: Iterable[str] = OFFERED, strict: bool = True
    ) -> Function:
        """What each parameter is given, for this task. Only the run's inputs aren't known yet.

        Raises `DefinitionError` for an argument that isn't taken, if that is to be `strict`.
        """
        results = {name: name for name in spec.needs} | dict(spec.named)
        renamed = set(spec.named.values())
        takes = []
        for name in (*self.needed, *self.optional):
            if name in results:
                takes.append((name, RESULT + results[name]))
            elif name in spec.arguments:
                takes.append((name, ARGUMENT + name))
            elif name in offered:
                takes.append((name, name))
            else:
                takes.append((name, (INPUT if name in self.needed else MAYBE) + name))
        taken = {thing for _, thing in takes}
        others = [
            (name, RESULT + dep)
            for name, dep in results.items()
            if RESULT + dep not in taken and (name in spec.named or name not in renamed)
        ]
        others += [
            (name, ARGUMENT + name)
            for name in spec.arguments
            if ARGUMENT + name not in taken and name not in results
        ]
        if self.rest:
            takes += others
        elif strict and (unused := [name for name, thing in others if thing.startswith(ARGUMENT)]):
            raise DefinitionError(f"{what} has the argument {unused[0]!r}, which its function doesn't take")
        return Function(self.call, tuple(takes), False, self.is_async)


def wants(call: Any, what: str) -> Wants:
    """Find out what a function takes. Raises `DefinitionError` for what can't be called by name."""
    if not callable(call):
        raise DefinitionError(f"{what} is not callable: {call!r}")
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):
        raise DefinitionError(
            f"{what}: can't tell what {call!r} takes; wrap it in a function of yours"
        ) from None
    needed: list[str] = []
    optional: list[str] = []
    rest = False
    for each in parameters:
        if each.kind is each.POSITIONAL_ONLY:
            raise DefinitionError(
                f"{what} has the positional-only parameter {each.name!r}; it is called by name"
            )
        if each.kind is each.VAR_KEYWORD:
            rest = True
        elif each.kind is not each.VAR_POSITIONAL:
            (needed if each.default is each.empty else optional).append(each.name)
    return Wants(call, tuple(needed), tuple(optional), rest, is_async(call))


class TaskCode(NamedTuple):
    """What a task, or a template for tasks, runs, and how."""

    name: str
    wants: Wants | None
    retry: Retry | None = None
    timeout: float | None = None
    safe_to_fail: bool = False
    condition: Wants | None = None
    sub: SubPlan | None = None
    secret: bool = False

    @property
    def keeps_secret(self) -> bool:
        """Whether its result is secret: it was said so, or it is the final state of a graph with secrets."""
        return self.secret or (self.sub is not None and self.sub.plan.holds_secrets)


def offered(state: Mapping[str, Any], spec: TaskSpec, thing: str) -> Any:
    """What a parameter is given, in this state of the workflow: always a copy of the function's own."""
    kind, _, name = thing.partition(" ")
    match kind:
        case "result":
            return result_of(state, name)
        case "argument":
            return detached_value(spec.arguments[name])
        case "input" | "maybe":
            inputs = state["inputs"]
            if name not in inputs and kind == "maybe":
                return ABSENT
            if name not in inputs:
                raise UsageError(nobody_has(spec, name, inputs, state["dag"]))
            return detached_value(inputs[name])
        case "context" | "inputs":
            return detached_value(state[thing])
        case "results":
            return {dep: result_of(state, dep) for dep in spec.needs}
        case "state":
            return glance(state, kind=SeenWorkflowState)
        case _:
            raise AssertionError(f"nobody offers {thing!r}")


def result_of(state: Mapping[str, Any], name: str) -> Any:
    """The result of a task that has a record; None if it didn't complete."""
    record = state["tasks"][name]
    return detached_value(record["result"]) if record["status"] == TASK_COMPLETED else None


def nobody_has(spec: TaskSpec, name: str, inputs: Mapping[str, Any], dag: Mapping[str, Any]) -> str:
    """That a task asks for something that isn't there, in words."""
    if name in dag and name != spec.name:
        return f"task {spec.name!r} takes {name!r}, which is a task that it doesn't depend on: depends_on=[{name!r}]"
    deps = ", ".join(map(repr, spec.needs)) or "none"
    there = ", ".join(map(repr, inputs)) or "none"
    near = did_you_mean(name, [*spec.needs, *inputs, *OFFERED])
    return (
        f"task {spec.name!r} takes {name!r}, which is no dependency of it ({deps}), none of its arguments and "
        f"not among the inputs ({there}){near or '; it may also take ' + ', '.join(OFFERED)}"
    )


class Work(NamedTuple):
    """A task as its node knows it: what its function is offered, and what becomes of what it returns."""

    spec: TaskSpec
    safe_to_fail: bool
    secret: bool = False

    def offer(self, task: Any, thing: str) -> Any:
        """What a parameter of the function is given, in the state that the layer began with."""
        return offered(task.scope.outer.state, self.spec, thing)

    def inputs(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """What a graph that is a task starts with: the run's inputs, its arguments and its dependencies' results."""
        given: dict[str, Any] = detached_value({**state["inputs"], **self.spec.arguments})
        needs = {name: name for name in self.spec.needs} | dict(self.spec.named)
        return given | {name: result_of(state, dep) for name, dep in needs.items()}

    def update(self, task: Any, returned: Any, at: float) -> dict[str, Any]:
        """The update that stands for a call that completed. Raises `UsageError` for what can't be one."""
        if isinstance(returned, TaskResult):
            task._add_result(returned)
            returned = returned.value
        record = {**self._record(task, TASK_COMPLETED, at), "result": returned}
        if self.secret:
            record["secret"] = True
        update = {"tasks": {self.spec.name: record}}
        return update if task.task_report is None else {**update, **task.task_report.update()}

    def failed(self, task: Any, error: dict[str, Any], at: float) -> dict[str, Any]:
        """The update that stands for a call that failed for good, where that is no harm."""
        return {"tasks": {self.spec.name: {**self._record(task, TASK_FAILED, at), "error": error}}}

    def _record(self, task: Any, status: str, at: float) -> dict[str, Any]:
        section = task.scope.outer.section
        return {
            "id": self.spec.name, "status": status, "timestamp": at, "duration": max(0.0, at - task.began),
            "attempts": task.attempt, "layer": section.layer,
        }  # fmt: skip


def skipped(name: str, reason: str, layer: int, at: float) -> dict[str, Any]:
    """The record of a task that isn't run."""
    return {"id": name, "status": TASK_SKIPPED, "reason": reason, "layer": layer, "timestamp": at}
