"""The functions of declared nodes and tasks: they render an action's arguments and call it, or evaluate a condition.

To the engine these are ordinary functions, called with what their parameters name.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from limpet.errors import ActionFailed, UsageError, did_you_mean
from limpet.graphs.edges import END
from limpet.graphs.parameters import is_async
from limpet.graphs.workflow.tasks import READS_RESULTS
from limpet.yaml_files.actions.data_paths import ROOT_KEY, check_paths
from limpet.yaml_files.actions.registry import Action
from limpet.yaml_files.build.references import import_reference
from limpet.yaml_files.document import Value
from limpet.yaml_files.grammar.mappings import KeyedMapping
from limpet.yaml_files.grammar.mistakes import Mistakes
from limpet.yaml_files.templates import Template, render_all, results_read, variables_in

GRAPH_VARIABLES = ("state", "config", "node", "run_id", "env", "parallel_results", "error")
"""The variables of templates and conditions in a graph."""

EDGE_VARIABLES = ("state", "config", "node", "run_id")
"""The variables of conditions and choices at edges."""

TASK_VALUES = ("inputs", "results", "context", "config", "state")
"""The variables of a workflow's tasks that a function of a task can take as parameters."""

TASK_VARIABLES = (*TASK_VALUES, "node", "run_id", "env")
"""The variables of a workflow's tasks."""

TEMPLATE_VARIABLES = (*TASK_VARIABLES, "arguments")
"""The variables of templates for tasks: also the arguments that a run gives the task which it adds."""

_BY_NAME = inspect.Parameter.KEYWORD_ONLY
_ENVIRONMENT: Mapping[str, str] = MappingProxyType(os.environ)


class BoundAction(NamedTuple):
    """An action with the arguments from the file, which may contain templates.

    `provided` are the parameters of the function that the engine fills; `resources` are those among them that take
    resources. `owner` is the node or task in messages.
    """

    action: Action
    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    provided: tuple[str, ...]
    owner: str
    resources: tuple[str, ...] = ()

    def call(self, ctx: Any, variables: Mapping[str, Any]) -> Any:
        """Render the arguments and call the action. Raises `TemplateError`, and whatever the action raises."""
        arguments = render_all(self.arguments, variables)
        if self.action.parameters is not None:
            self._check(self.action.parameters, arguments)
            check_paths(self.action.name, self.arguments, arguments)
            arguments.pop(ROOT_KEY, None)
        if self.action.name == "python":
            arguments = arguments.get("arguments", {})
        for name in self.provided:
            if name not in arguments:
                arguments[name] = ctx if name == "ctx" else variables[name]
        return self.function(**arguments)

    def _check(self, parameters: KeyedMapping, arguments: dict[str, Any]) -> None:
        """Hold the results of templates against the same rules as what is written in the file."""
        mistakes = Mistakes(self.owner)
        parameters.check(Value.hidden_from(arguments, Value(None)), f"with of {self.action.name}", mistakes)
        if mistakes:
            reasons = "; ".join(each.text for each in mistakes.found)
            raise ActionFailed(self.action.name, f"{self.owner}: {reasons}")


def bind_action(
    action: Action,
    arguments: Mapping[str, Any],
    variables: tuple[str, ...],
    resources: Collection[str],
    owner: str,
) -> BoundAction:
    """An action with its arguments, whose function may take these variables and resources by name.

    Imports the function; raises `UsageError` if the arguments don't fit.
    """
    if action.name == "python":
        reference = arguments["function"]
        function = import_reference(reference)
        taken = arguments.get("arguments", {})
        provided = _provided_parameters(function, taken, tuple(resources), f"function {reference!r}")
        return BoundAction(action, function, arguments, provided, owner, provided)
    function = action.call
    if isinstance(action.call, str):
        function = import_reference(action.call)
    taken = arguments
    if action.parameters is not None:
        resources = ()  # a built-in action takes none, whatever its parameters are called
        taken = {name: value for name, value in arguments.items() if name != ROOT_KEY}
    offered = (*variables, "ctx")
    provided = _provided_parameters(function, taken, (*offered, *resources), f"action {action.name!r}")
    return BoundAction(
        action, function, arguments, provided, owner, tuple(name for name in provided if name not in offered)
    )


def _provided_parameters(
    function: Any, arguments: Mapping[str, Any], offered: tuple[str, ...], what: str
) -> tuple[str, ...]:
    """The parameters that a function takes of what is offered. Raises `UsageError` if it can't be called."""
    if not callable(function):
        raise UsageError(f"{what} is not a function but {type(function).__name__}")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()  # a function in C may have no signature: then the call itself shows whether it fits
    named = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    names = [each.name for each in named]
    takes_any_name = any(each.kind is each.VAR_KEYWORD for each in parameters)
    for name in arguments:
        if name not in names and not takes_any_name:
            hint = did_you_mean(name, names) or f"; it takes {', '.join(names) or 'nothing'}"
            raise UsageError(f"{what} doesn't take {name!r}{hint}")
    for each in named:
        if each.kind is each.POSITIONAL_ONLY:
            raise UsageError(
                f"{what} can't be called by name, as it takes {each.name!r} by position; wrap it"
            )
        if each.default is each.empty and each.name not in arguments and each.name not in offered:
            raise UsageError(f"{what} takes {each.name!r}, which it isn't given")
    return tuple(name for name in names if name in offered and name not in arguments)


def node_function(
    bound: BoundAction, output: str | None, outputs: Callable[[Any], dict[str, Any]] | None = None
) -> Callable[..., Any]:
    """The function of a node that carries out an action. Its result is stored under the key `output`, if given.

    That of an action which updates the state is the update, unless there is an `output`. `outputs` makes the update
    of the result of children.
    """

    def variables(
        state: Any, config: Any, node: str, ctx: Any, parallel_results: Any, **resources: Any
    ) -> dict[str, Any]:
        return {
            **resources,
            "state": state,
            "config": config,
            "node": node,
            "run_id": ctx.run_id,
            "env": _ENVIRONMENT,
            "parallel_results": parallel_results,
            "error": ctx.error,
        }

    def update(result: Any) -> dict[str, Any] | None:
        if output is not None:
            return {output: result}
        if outputs is not None:
            return outputs(result)
        if bound.action.updates_state:
            return dict(result)
        return None

    if is_async(bound.function):

        async def call_async(**values: Any) -> Any:
            return update(await bound.call(values["ctx"], variables(**values)))

        return _with_node_parameters(call_async, bound.resources)

    def call(**values: Any) -> Any:
        return update(bound.call(values["ctx"], variables(**values)))

    return _with_node_parameters(call, bound.resources)


def _with_node_parameters(function: Callable[..., Any], resources: Iterable[str]) -> Callable[..., Any]:
    """The function with a parameter for each value that templates of nodes may use, and for these resources."""
    names = ("state", "config", "node", "ctx", "parallel_results", *resources)
    return _with_signature(function, [inspect.Parameter(name, _BY_NAME) for name in names])


def task_function(bound: BoundAction, *, of_template: bool = False) -> Callable[..., Any]:
    """The function of a task that carries out an action. The action's result is the task's.

    That of a template for tasks also takes the arguments that a run gives the task which it adds.
    """
    used = {*variables_in(bound.arguments), *bound.provided}
    if is_async(bound.function):

        async def call_async(**values: Any) -> Any:
            return await bound.call(values["ctx"], _task_variables(values, bound.resources))

        return _with_parameters(call_async, used, of_template, bound.arguments, bound.resources)

    def call(**values: Any) -> Any:
        return bound.call(values["ctx"], _task_variables(values, bound.resources))

    return _with_parameters(call, used, of_template, bound.arguments, bound.resources)


def task_condition(template: Template, *, of_template: bool = False) -> Callable[..., bool]:
    """The condition of a task. Its name is its text, which the record of a skipped task shows."""

    def holds(**values: Any) -> bool:
        return bool(template.render(_task_variables(values)))

    holds.__name__ = template.text
    return _with_parameters(holds, template.variables, of_template, template)


def _with_parameters(
    function: Callable[..., Any],
    used: Iterable[str],
    of_template: bool,
    templates: Any,
    resources: Iterable[str] = (),
) -> Callable[..., Any]:
    """The function with a parameter for each value of the workflow that is used: others aren't copied for it."""
    names = {"ctx", *used} & {"ctx", *TASK_VALUES}
    if of_template:
        names.add("results")  # they tell the arguments apart
    parameters = [inspect.Parameter(name, _BY_NAME) for name in (*sorted(names), *resources)]
    if of_template:
        parameters.append(inspect.Parameter("arguments", inspect.Parameter.VAR_KEYWORD))
    return with_results_read(_with_signature(function, parameters), templates)


def _with_signature(
    function: Callable[..., Any], parameters: Sequence[inspect.Parameter]
) -> Callable[..., Any]:
    """The function as one with these parameters, which the engine fills."""
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # any function may have one
    return function


def with_results_read(function: Callable[..., Any], data: Any) -> Callable[..., Any]:
    """The function, marked with the tasks whose results the templates in this data name: it depends on them."""
    setattr(function, READS_RESULTS, results_read(data))
    return function


def _task_variables(values: Mapping[str, Any], resources: tuple[str, ...] = ()) -> dict[str, Any]:
    """The variables of templates, and these resources, from what the function of a task was called with."""
    ctx = values["ctx"]
    variables = {name: values[name] for name in (*TASK_VALUES, *resources) if name in values}
    results = values.get("results", {})
    variables["arguments"] = {
        name: value
        for name, value in values.items()
        if name not in variables and name != "ctx" and name not in results
    }
    return {**variables, "node": ctx.node, "run_id": ctx.run_id, "env": _ENVIRONMENT}


def edge_predicate(template: Template) -> Callable[..., bool]:
    """The predicate of an edge: a function of the state alone if its template uses nothing else."""
    if template.variables <= {"state"}:

        def holds_for_state(state: Any) -> bool:
            return bool(template.render({"state": state}))

        holds_for_state.__name__ = template.text
        return holds_for_state

    def holds(state: Any, config: Any, node: str) -> bool:
        return bool(template.render(_edge_variables(state, config, node)))

    holds.__name__ = template.text
    return holds


def edge_choice(template: Template, gives_node_name: bool = False) -> Callable[..., Any]:
    """The function that chooses what follows a node. `gives_node_name` says that its result is a name, or END."""

    def choose(state: Any, config: Any, node: str) -> Any:
        found = template.render(_edge_variables(state, config, node))
        if gives_node_name and found == "END":
            return END
        return found

    choose.__name__ = template.text
    return choose


def _edge_variables(state: Any, config: Any, node: str) -> dict[str, Any]:
    return {"state": state, "config": config, "node": node, "run_id": getattr(state, "run_id", "")}


def map_items(template: Template) -> Callable[[Any], Any]:
    """The function that gives the items of a map: the result of a template for the state."""
    return lambda state: template.render({"state": state})


def renamed_keys(sources: Mapping[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """The function that makes the inputs or outputs of a graph inside a node.

    `sources` has for each new key a template, or the key of the state whose value it gets.
    """

    def rename(state: Any) -> dict[str, Any]:
        for key in sources.values():
            if isinstance(key, str) and key not in state:
                raise UsageError(f"the state has no {key!r}{did_you_mean(key, state)}")
        renamed = {}
        for new_key, source in sources.items():
            if isinstance(source, Template):
                renamed[new_key] = source.render({"state": state})
            else:
                renamed[new_key] = state[source]
        return renamed

    return rename


def outputs_of_children(sources: Mapping[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """The function that makes the update of a node which joins children, with a list for each key if it joins a list.

    `sources` are as for `renamed_keys`.
    """
    rename = renamed_keys(sources)

    def outputs(result: Any) -> dict[str, Any]:
        if not isinstance(result, list):
            return rename(result)
        renamed = [rename(each) for each in result]
        return {key: [each[key] for each in renamed] for key in sources}

    return outputs
