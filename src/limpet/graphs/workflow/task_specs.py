"""What a task depends on, as data. It is stored with each run, so that a run with changed tasks resumes with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from limpet.errors import DefinitionError
from limpet.graphs.plan import PLANNER
from limpet.journal.encoding.codec import detached_value, encode


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
    def dependencies(self) -> tuple[str, ...]:
        """All tasks that it depends on, optional ones included."""
        return (*self.depends_on, *self.optional)

    @property
    def definition(self) -> str:
        """The name of the definition whose code it runs."""
        return self.run or self.name

    def to_data(self) -> dict[str, Any]:
        """The spec as plain data, without empty fields."""
        data: dict[str, Any] = {}
        if self.depends_on:
            data["depends_on"] = list(self.depends_on)
        if self.optional:
            data["optional"] = list(self.optional)
        if self.named:
            data["named"] = dict(self.named)
        if self.arguments:
            data["arguments"] = dict(self.arguments)
        if self.run:
            data["run"] = self.run
        if self.added_by:
            data["added_by"] = self.added_by
        return data


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
    """Whether a task that was added before is this one, even if another task added it."""
    if data.get("added_by") is None and data.get("kind") is None:
        return False
    existing = read_spec(spec.name, data)
    return encode(existing._replace(added_by=None).to_data()) == encode(
        spec._replace(added_by=None).to_data()
    )


def make_spec(
    name: Any,
    depends_on: Any = (),
    optional: Any = (),
    arguments: Any = None,
    run: str | None = None,
    added_by: str | None = None,
) -> TaskSpec:
    """A spec from a user's arguments. Raises `DefinitionError`."""
    name = _checked_name(name)
    what = f"task {name!r}"
    required_names, required_parameters = _read_dependencies(what, "depends_on", depends_on)
    optional_names, optional_parameters = _read_dependencies(what, "optional", optional)
    _refuse_twice(what, "task", required_names, optional_names)
    _refuse_twice(what, "parameter", required_parameters, optional_parameters)
    if arguments is not None:
        by_name = isinstance(arguments, Mapping) and all(isinstance(each, str) for each in arguments)
        if not by_name:
            raise DefinitionError(f"{what}: arguments must be a dict by parameter name, not {arguments!r}")
        arguments = detached_value(dict(arguments))
    if run is not None and not isinstance(run, str):
        raise DefinitionError(f"{what}: run must be the name of a task or template, not {run!r}")
    return TaskSpec(
        name,
        required_names,
        optional_names,
        {**required_parameters, **optional_parameters},
        arguments or {},
        run,
        added_by,
    )


def _checked_name(given: Any) -> str:
    valid = isinstance(given, str) and given and given.isprintable() and "/" not in given
    if not valid or given.startswith("__"):
        raise DefinitionError(
            f"a task's name must be a printable str without '/' or a leading '__', not {given!r}"
        )
    if given == PLANNER:
        raise DefinitionError(
            f"a task can't be named {PLANNER!r}: that is the name of the step between layers"
        )
    return str.__str__(given)


def _read_dependencies(what: str, kind: str, given: Any) -> tuple[tuple[str, ...], dict[str, str]]:
    """The names of dependencies, and the parameters that take those that are given as `{parameter: task}`."""
    if given is None or given == ():
        return (), {}
    if isinstance(given, str):
        raise DefinitionError(f"{what}: {kind} must be a list of task names, not one str: write [{given!r}]")
    if not isinstance(given, Iterable):
        raise DefinitionError(f"{what}: {kind} must be a list of task names, not {given!r}")
    parameters: list[Any] = []
    tasks: list[Any] = list(given)
    if isinstance(given, Mapping):
        parameters = list(given)
        tasks = list(given.values())
    tasks = [getattr(each, "__name__", each) if callable(each) else each for each in tasks]
    for each in (*tasks, *parameters):
        if not isinstance(each, str):
            raise DefinitionError(f"{what}: {kind} has names of tasks, not {each!r}")
    names = [str.__str__(each) for each in tasks]
    if isinstance(given, (set, frozenset)):
        names.sort()  # the order of a set differs between processes
    if len(set(names)) != len(names):
        raise DefinitionError(f"{what}: {kind} names a task twice: {', '.join(map(repr, names))}")
    return tuple(names), dict(zip(parameters, names, strict=False))


def _refuse_twice(what: str, kind: str, required: Iterable[str], optional: Iterable[str]) -> None:
    for name in optional:
        if name in required:
            raise DefinitionError(f"{what} has the {kind} {name!r} twice: in depends_on and in optional")
