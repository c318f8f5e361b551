"""Actions: what a node of a declared graph can do by name, as in `uses: mail.send`. Users can add their own."""

from __future__ import annotations

import re
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from limpet.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from limpet.yaml_files.grammar.mappings import KeyedMapping

ENTRY_POINT_GROUP: Final = "limpet.actions"
F = TypeVar("F", bound=Callable[..., Any])


class Action(NamedTuple):
    """Something that a node can do by name.

    `call` is the function, or a reference to it. `parameters` describes the arguments of a built-in action.
    `for_graphs_only` says that workflows can't use it, `updates_state` that its result is an update of the state.
    """

    name: str
    call: Callable[..., Any] | str
    parameters: KeyedMapping | None = None
    for_graphs_only: bool = False
    updates_state: bool = False


def action(name: str) -> Callable[[F], F]:
    """Make a function an action, as a decorator: `@action("mail.send")`.

    The function is called with the arguments that the node has under `with`, by name. It also gets each of `state`,
    `config`, `node`, `ctx` and `parallel_results` that it has a parameter for (in a task: `inputs`, `results`,
    `context`, `config` and `ctx`). Its return value is the node's result. It may be async.
    """

    def add(function: F) -> F:
        register_action(name, function)
        return function

    return add


def register_action(name: str, function: Callable[..., Any]) -> None:
    """Make a function an action. It replaces a registered action of that name. Raises `UsageError`."""
    from limpet.yaml_files.actions.builtin import BUILT_IN

    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
        raise UsageError(f"an action's name must be a word, such as 'mail.send', not {name!r}")
    if name in BUILT_IN:
        raise UsageError(f"the action {name!r} is built in; give yours another name")
    if not callable(function):
        raise UsageError(f"an action must be a function, not {function!r}")
    with _lock:
        _registered[name] = Action(name, function)


def find_action(name: str) -> Action:
    """The action of this name: built in, registered, or provided by an installed package, which is then imported.

    Raises `UsageError` for an unknown name.
    """
    from limpet.yaml_files.actions.builtin import BUILT_IN

    with _lock:
        found = BUILT_IN.get(name) or _registered.get(name)
    if found is not None:
        return found
    from importlib.metadata import entry_points

    for entry in entry_points(group=ENTRY_POINT_GROUP, name=name):
        try:
            function = entry.load()
        except Exception as problem:  # a package may raise anything while it is imported
            reason = f"{type(problem).__name__}: {problem}"
            raise UsageError(f"the action {name!r} can't be loaded from {entry.value}: {reason}") from problem
        register_action(name, function)
        return Action(name, function)
    raise UsageError(unknown_action_message(name))


def unknown_action_message(name: str) -> str:
    """The message about an unknown action: the nearest known one, or all of them and how to add one."""
    known = known_actions()
    hint = did_you_mean(name, known) or (
        f"; there are {', '.join(known)}. Add yours with @limpet.action({name!r}), in a module that the file "
        "lists under imports"
    )
    return f"there is no action {name!r}{hint}"


def known_actions() -> list[str]:
    """The names of all actions, without importing any."""
    from importlib.metadata import entry_points

    from limpet.yaml_files.actions.builtin import BUILT_IN

    with _lock:
        return sorted(
            {*BUILT_IN, *_registered, *(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))}
        )


_lock = Lock()
_registered: dict[str, Action] = {}
