"""What a user's function wants: it is handed the things that its parameters name.

The signature is examined once, when the function is added to a graph; a call after that is a plain call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from limpet.errors import DefinitionError

OFFERED = ("state", "config", "node", "graph", "parallel_results", "ctx")
"""The parameter names that a node, a predicate or a choice may use."""


ABSENT: Any = object()
"""What a function is offered where there is nothing to offer, and its parameter has a default."""


class Function(NamedTuple):
    """A user's function, and which of the offered things it takes, by name.

    `plain` says that it takes the state as its only argument, so that it can be called directly.
    """

    call: Callable[..., Any]
    takes: tuple[tuple[str, str], ...]
    plain: bool
    is_async: bool

    def arguments(self, offer: Callable[[str], Any]) -> dict[str, Any]:
        """The keyword arguments for one call; `offer(name)` gives each thing that is taken."""
        return {parameter: value for parameter, thing in self.takes if (value := offer(thing)) is not ABSENT}


def examine(call: Callable[..., Any], what: str) -> Function:
    """Find out what a function takes. `what` names it in the `DefinitionError` of one that asks for more.

    A first parameter of any other name is taken to be the state.
    """
    if not callable(call):
        raise DefinitionError(f"{what} is not callable: {call!r}")
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):
        return Function(call, (("state", "state"),), True, False)
    named = {parameter.name for parameter in parameters}
    takes: list[tuple[str, str]] = []
    positional: list[str] = []
    for index, parameter in enumerate(parameters):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in OFFERED:
            thing = parameter.name
        elif index == 0 and "state" not in named and parameter.kind is not parameter.KEYWORD_ONLY:
            thing = "state"
        elif parameter.default is parameter.empty:
            raise DefinitionError(
                f"{what} has an unknown parameter {parameter.name!r}; "
                f"available parameters: {', '.join(OFFERED)}"
            )
        else:
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(thing)
        else:
            takes.append((parameter.name, thing))
    if positional and (takes or positional != ["state"]):
        raise DefinitionError(f"{what} has positional-only parameters; only a lone state can be one")
    first = [thing for _, thing in takes] == ["state"] and parameters[
        0
    ].kind is not inspect.Parameter.KEYWORD_ONLY
    return Function(call, tuple(takes), bool(positional) or first, is_async(call))


def examine_choice(call: Callable[..., Any], what: str) -> Function:
    """The same for a predicate or a choice, which can't be async."""
    function = examine(call, what)
    if function.is_async:
        raise DefinitionError(f"{what} is async; only a node can be: let the node before it find out")
    return function


def is_async(call: Callable[..., Any]) -> bool:
    """Whether calling it gives something to be awaited, as far as it says so itself."""
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(call, "__call__", None))  # noqa: B004  # it is the method that may be async
