"""What a node of a declared graph calls: an action with its arguments, worked out anew each time; or a condition.

These are ordinary functions to the engine, which hands them what their parameters name.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from limpet.errors import ActionFailed, UsageError, did_you_mean
from limpet.graphs.parameters import is_async
from limpet.graphs.plan import END
from limpet.yaml_files.actions.registry import Action
from limpet.yaml_files.build.references import referred
from limpet.yaml_files.document import Value
from limpet.yaml_files.grammar.mappings import Record
from limpet.yaml_files.grammar.mistakes import Mistakes
from limpet.yaml_files.templates import Template, filled

IN_GRAPHS = ("state", "config", "node", "run_id", "env", "parallel_results")
"""The variables that the templates and conditions of a graph have."""

AT_EDGES = ("state", "config", "node", "run_id")
"""Those of conditions and choices at edges."""

IN_WORKFLOWS = ("inputs", "results", "context", "config", "node", "run_id", "env")
"""Those of a workflow's tasks."""

_ENVIRONMENT: Mapping[str, str] = MappingProxyType(os.environ)


class Work(NamedTuple):
    """An action with the arguments that the file gives it, which may be templates. `owner` is whose work it is."""

    action: Action
    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    takes: tuple[str, ...]
    owner: str

    def begin(self, ctx: Any, variables: Mapping[str, Any]) -> Any:
        """Call the action. Raises `TemplateError`, and whatever the action does."""
        given = filled(self.arguments, variables)
        if self.action.parameters is not None:
            self._check(self.action.parameters, given)
        if self.action.name == "python":
            return self.function(**given.get("arguments", {}))
        more = {name: ctx if name == "ctx" else variables[name] for name in self.takes if name not in given}
        return self.function(**given, **more)

    def _check(self, parameters: Record, given: dict[str, Any]) -> None:
        """Hold what templates came to against the same rules as what is written in the file."""
        found = Mistakes(self.owner)
        place = Value(None)
        parameters.check(Value.of(given, place), f"with of {self.action.name}", found)
        if found:
            raise ActionFailed(
                self.action.name, f"{self.owner}: " + "; ".join(each.text for each in found.found)
            )


def bound(action: Action, arguments: Mapping[str, Any], variables: tuple[str, ...], owner: str) -> Work:
    """An action with its arguments, if they fit. Imports what it calls; raises `UsageError` if they don't fit."""
    if action.name == "python":
        function = referred(arguments["function"])
        _fit(function, arguments.get("arguments", {}), (), f"function {arguments['function']!r}")
        return Work(action, function, arguments, (), owner)
    function = referred(action.call) if isinstance(action.call, str) else action.call
    offered = (*variables, "ctx")
    takes = _fit(function, arguments, offered, f"action {action.name!r}")
    return Work(action, function, arguments, takes, owner)


def _fit(function: Any, arguments: Mapping[str, Any], offered: tuple[str, ...], what: str) -> tuple[str, ...]:
    """Which of the offered things a function takes besides. Raises `UsageError` if it can't be called."""
    if not callable(function):
        raise UsageError(f"{what} is no function but {type(function).__name__}")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    named = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    known = [each.name for each in named]
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):
        for name in arguments:
            if name not in known:
                near = did_you_mean(name, known) or f"; it takes {', '.join(known) or 'nothing'}"
                raise UsageError(f"{what} doesn't take {name!r}{near}")
    for each in named:
        if each.kind is each.POSITIONAL_ONLY:
            raise UsageError(
                f"{what} can't be called by name, as it takes {each.name!r} by position; wrap it"
            )
        if each.default is each.empty and each.name not in arguments and each.name not in offered:
            raise UsageError(f"{what} takes {each.name!r}, which it isn't given")
    return tuple(name for name in known if name in offered and name not in arguments)


def node_function(work: Work, output: str | None) -> Callable[..., Any]:
    """The function of a node that carries out an action; its result becomes the state's `output`, if there is one."""

    def variables(state: Any, config: Any, node: str, ctx: Any, parallel_results: Any) -> dict[str, Any]:
        known = {"state": state, "config": config, "node": node, "run_id": ctx.run_id, "env": _ENVIRONMENT}
        return {**known, "parallel_results": parallel_results}

    def update(result: Any) -> dict[str, Any] | None:
        return None if output is None else {output: result}

    if is_async(work.function):

        async def later(state: Any, config: Any, node: str, ctx: Any, parallel_results: Any) -> Any:
            return update(await work.begin(ctx, variables(state, config, node, ctx, parallel_results)))

        return later

    def now(state: Any, config: Any, node: str, ctx: Any, parallel_results: Any) -> Any:
        return update(work.begin(ctx, variables(state, config, node, ctx, parallel_results)))

    return now


def task_function(work: Work) -> Callable[..., Any]:
    """The function of a task that carries out an action, whose result is the task's."""
    if is_async(work.function):

        async def later(inputs: Any, results: Any, context: Any, config: Any, ctx: Any) -> Any:
            return await work.begin(ctx, _of_task(inputs, results, context, config, ctx))

        return later

    def now(inputs: Any, results: Any, context: Any, config: Any, ctx: Any) -> Any:
        return work.begin(ctx, _of_task(inputs, results, context, config, ctx))

    return now


def task_condition(template: Template) -> Callable[..., bool]:
    """The condition of a task, called as it is written, so that a record of a task that was skipped says it."""

    def holds(inputs: Any, results: Any, context: Any, config: Any, ctx: Any) -> bool:
        return bool(template.render(_of_task(inputs, results, context, config, ctx)))

    holds.__name__ = template.text
    return holds


def _of_task(inputs: Any, results: Any, context: Any, config: Any, ctx: Any) -> dict[str, Any]:
    known = {"inputs": inputs, "results": results, "context": context, "config": config}
    return {**known, "node": ctx.node, "run_id": ctx.run_id, "env": _ENVIRONMENT}


def predicate(template: Template) -> Callable[..., bool]:
    """The predicate of an edge: a function of the state alone, where it asks for nothing else."""
    if template.asks <= {"state"}:

        def plainly(state: Any) -> bool:
            return bool(template.render({"state": state}))

        plainly.__name__ = template.text
        return plainly

    def holds(state: Any, config: Any, node: str) -> bool:
        return bool(template.render(_of_edge(state, config, node)))

    holds.__name__ = template.text
    return holds


def choice(template: Template, names: bool = False) -> Callable[..., Any]:
    """The function that picks what follows a node. `names` says that its result is itself a name, or END."""

    def choose(state: Any, config: Any, node: str) -> Any:
        found = template.render(_of_edge(state, config, node))
        return END if names and found == "END" else found

    choose.__name__ = template.text
    return choose


def _of_edge(state: Any, config: Any, node: str) -> dict[str, Any]:
    return {"state": state, "config": config, "node": node, "run_id": getattr(state, "run_id", "")}


def of_state(template: Template) -> Callable[[Any], Any]:
    """A function of the state alone: what a map goes over."""
    return lambda state: template.render({"state": state})


def passing(given: Mapping[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """What passes in or out of a graph, where templates have a part in it; other values are the keys that pass."""

    def passed(state: Any) -> dict[str, Any]:
        missing = [key for key in given.values() if isinstance(key, str) and key not in state]
        if missing:
            raise UsageError(f"the state has no {missing[0]!r}{did_you_mean(missing[0], state)}")
        variables = {"state": state}
        return {
            new: value.render(variables) if isinstance(value, Template) else state[value]
            for new, value in given.items()
        }

    return passed
