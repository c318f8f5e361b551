"""What a user's function takes: it is called with the values that its parameters name.

The signature is read once, when the function is added to a graph. Which resources there are is known when the graph
is compiled: then the parameters that are left get theirs. After that, a call is a plain call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, get_type_hints

from limpet.errors import DefinitionError, did_you_mean

NODE_PARAMETERS = ("state", "config", "node", "graph", "parallel_results", "ctx", "error")
"""The parameter names that a node, a predicate or a choice may use."""

ABSENT: Any = object()
"""Stands for a value that doesn't exist: a key that a state lacks, an argument whose default is used."""


class Function(NamedTuple):
    """A user's function, and what each of its parameters takes: pairs of a parameter and the name of a value.

    `plain` means that it takes the state as its only argument, so that it can be called directly. `required` and
    `optional` are the parameters that only a resource can fill, and `first` is one that takes the state, unless a
    resource has its name. `state_hint` and `return_hint` are the annotations of the parameter that takes the state
    and of what is returned, as they stand there.
    """

    call: Callable[..., Any]
    takes: tuple[tuple[str, str], ...]
    plain: bool
    is_async: bool
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    first: str = ""
    state_hint: Any = None
    return_hint: Any = None

    def arguments(self, value_of: Callable[[str], Any]) -> dict[str, Any]:
        """The keyword arguments for one call; `value_of(name)` gives each value."""
        return {parameter: value for parameter, name in self.takes if (value := value_of(name)) is not ABSENT}

    def missing(self, resources: Mapping[str, Any], what: str) -> list[str]:
        """What is wrong if these are the resources: a message for each parameter that nothing fills."""
        available = [*NODE_PARAMETERS, *resources]
        return [
            f"{what} has an unknown parameter {name!r}{did_you_mean(name, available)}; available parameters: "
            f"{', '.join(available)}; or give it as a resource: compile(resources={{{name!r}: …}})"
            for name in self.required
            if name not in resources
        ]

    def bound(self, resources: Mapping[str, Any]) -> Function:
        """This function with the resources that its parameters name."""
        names = [name for name in (*self.required, *self.optional, self.first) if name in resources]
        if not names:
            return self
        from limpet.graphs.resources.graph_resources import with_resources

        taken = {name: resources[name] for name in names}
        takes = tuple((parameter, value) for parameter, value in self.takes if parameter not in taken)
        return Function(with_resources(self.call, self.is_async, taken), takes, False, self.is_async)


def read_function(call: Callable[..., Any], what: str) -> Function:
    """Read what a node's function takes. A first parameter with another name is taken to be the state.

    A parameter that isn't one of `NODE_PARAMETERS` is for a resource, which `Function.missing` checks. Raises
    `DefinitionError` for a function that can't be called; `what` names it there.
    """
    if not callable(call):
        raise DefinitionError(f"{what} is not callable: {call!r}")
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return Function(call, (("state", "state"),), True, False)
    parameters = list(signature.parameters.values())
    return_hint = None
    if signature.return_annotation is not signature.empty:
        return_hint = signature.return_annotation
    names = {parameter.name for parameter in parameters}
    takes: list[tuple[str, str]] = []
    positional: list[str] = []
    required: list[str] = []
    optional: list[str] = []
    first = ""
    state_hint = None
    for index, parameter in enumerate(parameters):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in NODE_PARAMETERS:
            value = parameter.name
        elif index == 0 and "state" not in names and parameter.kind is not parameter.KEYWORD_ONLY:
            value = "state"
            first = parameter.name
        else:
            (required if parameter.default is parameter.empty else optional).append(parameter.name)
            continue
        if value == "state" and parameter.annotation is not parameter.empty:
            state_hint = parameter.annotation
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(value)
        else:
            takes.append((parameter.name, value))
    if positional:
        if takes or required or positional != ["state"]:
            raise DefinitionError(f"{what} has positional-only parameters; only a lone state can be one")
        return Function(call, (), True, is_async(call), state_hint=state_hint, return_hint=return_hint)
    plain = not required and _takes_only_state(takes, parameters)
    return Function(
        call,
        tuple(takes),
        plain,
        is_async(call),
        tuple(required),
        tuple(optional),
        first,
        state_hint,
        return_hint,
    )


def read_node_function(call: Callable[..., Any], what: str) -> Function:
    """The same for a node, which can't be a generator: nothing would ever run it."""
    if is_generator(call):
        raise generator_refused(what)
    return read_function(call, what)


def is_generator(call: Any) -> bool:
    """Whether a function yields, sync or async."""
    return inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call)


def generator_refused(what: str) -> DefinitionError:
    """The refusal of a function that yields where a result is needed."""
    return DefinitionError(
        f"{what} yields; it must return its result. emit() passes on what comes before that"
    )


def _takes_only_state(takes: list[tuple[str, str]], parameters: list[inspect.Parameter]) -> bool:
    values = [value for _, value in takes]
    return values == ["state"] and parameters[0].kind is not inspect.Parameter.KEYWORD_ONLY


def read_sync_function(call: Callable[..., Any], what: str) -> Function:
    """The same for a predicate or a choice, which can't be async."""
    function = read_function(call, what)
    if function.is_async:
        raise DefinitionError(f"{what} is async; only a node can be. Let the node before it decide")
    return function


def is_async(call: Callable[..., Any]) -> bool:
    """Whether a call returns an awaitable, as far as the function declares it."""
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(call, "__call__", None))  # noqa: B004  # it is the method that may be async


def resolved_hint(call: Callable[..., Any], hint: Any) -> Any:
    """What an annotation of a function means, also if it is a text. None if it names what its module doesn't know."""
    while isinstance(call, partial):
        call = call.func
    if not inspect.isroutine(call):
        call = type(call).__call__
    known = getattr(inspect.unwrap(call), "__globals__", {})
    # Alone, not with all annotations of the function: another one may name what only type checkers import.
    alone = SimpleNamespace(__annotations__={"hint": hint})
    try:
        return get_type_hints(alone, known)["hint"]
    except Exception:
        return None
