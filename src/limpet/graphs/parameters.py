"""What a user's function takes: it is called with the values that its parameters name.

The signature is read once, when the function is added to a graph. After that, a call is a plain call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from limpet.errors import DefinitionError

NODE_PARAMETERS = ("state", "config", "node", "graph", "parallel_results", "ctx")
"""The parameter names that a node, a predicate or a choice may use."""

ABSENT: Any = object()
"""Stands for a value that doesn't exist: a key that a state lacks, an argument whose default is used."""


class Function(NamedTuple):
    """A user's function, and what each of its parameters takes: pairs of a parameter and the name of a value.

    `plain` means that it takes the state as its only argument, so that it can be called directly.
    """

    call: Callable[..., Any]
    takes: tuple[tuple[str, str], ...]
    plain: bool
    is_async: bool

    def arguments(self, value_of: Callable[[str], Any]) -> dict[str, Any]:
        """The keyword arguments for one call; `value_of(name)` gives each value."""
        return {parameter: value for parameter, name in self.takes if (value := value_of(name)) is not ABSENT}


def read_function(call: Callable[..., Any], what: str) -> Function:
    """Read what a node's function takes. A first parameter with another name is taken to be the state.

    Raises `DefinitionError` for a parameter that isn't one of `NODE_PARAMETERS`; `what` names the function there.
    """
    if not callable(call):
        raise DefinitionError(f"{what} is not callable: {call!r}")
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):  # some functions written in C have no signature
        return Function(call, (("state", "state"),), True, False)
    names = {parameter.name for parameter in parameters}
    takes: list[tuple[str, str]] = []
    positional: list[str] = []
    for index, parameter in enumerate(parameters):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in NODE_PARAMETERS:
            value = parameter.name
        elif index == 0 and "state" not in names and parameter.kind is not parameter.KEYWORD_ONLY:
            value = "state"
        elif parameter.default is parameter.empty:
            raise DefinitionError(
                f"{what} has an unknown parameter {parameter.name!r}; "
                f"available parameters: {', '.join(NODE_PARAMETERS)}"
            )
        else:
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(value)
        else:
            takes.append((parameter.name, value))
    if positional and (takes or positional != ["state"]):
        raise DefinitionError(f"{what} has positional-only parameters; only a lone state can be one")
    return Function(
        call, tuple(takes), bool(positional) or _takes_only_state(takes, parameters), is_async(call)
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
