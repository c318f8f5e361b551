"""Actions: what a node of a declared graph can do by name, `uses: mail.send`. Some are built in; you add your own."""

from __future__ import annotations

import re
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from limpet.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from limpet.yaml_files.grammar.mappings import Record

GROUP: Final = "limpet.actions"
F = TypeVar("F", bound=Callable[..., Any])


class Action(NamedTuple):
    """Something that a node can do by name. `parameters` are what it takes, where that is known beforehand.

    `call` is the function, or where to find it. `of_graphs` says that it is for graphs only, not for workflows.
    """

    name: str
    call: Callable[..., Any] | str
    parameters: Record | None = None
    of_graphs: bool = False


def action(name: str) -> Callable[[F], F]:
    """Make a function an action, as a decorator: `@action("mail.send")`.

    It is called with what the node has under `with`, by name; and with whatever it names of `state`, `config`,
    `node`, `ctx` and `parallel_results` (in a task, of `inputs`, `results`, `context`, `config` and `ctx`). What it
    returns is the node's result. It may be async.
    """

    def add(function: F) -> F:
        register_action(name, function)
        return function

    return add


def register_action(name: str, function: Callable[..., Any]) -> None:
    """Make a function an action, in place of what had this name so far. Raises `UsageError`."""
    from limpet.yaml_files.actions.builtin import BUILT_IN

    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
        raise UsageError(f"an action's name is a word, such as 'mail.send', not {name!r}")
    if name in BUILT_IN:
        raise UsageError(f"the action {name!r} is built in; give yours another name")
    if not callable(function):
        raise UsageError(f"an action is a function, not {function!r}")
    with _lock:
        _registered[name] = Action(name, function)


def find_action(name: str) -> Action:
    """The action of this name: built in, registered, or brought by a package, which is imported then.

    Raises `UsageError` for a name that nobody knows.
    """
    from limpet.yaml_files.actions.builtin import BUILT_IN

    with _lock:
        found = BUILT_IN.get(name) or _registered.get(name)
    if found is not None:
        return found
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP, name=name):
        try:
            function = entry.load()
        except Exception as problem:  # a package may do anything while it is imported
            said = f"{type(problem).__name__}: {problem}"
            raise UsageError(f"the action {name!r} can't be loaded from {entry.value}: {said}") from problem
        register_action(name, function)
        return Action(name, function)
    raise UsageError(no_action(name))


def no_action(name: str) -> str:
    """That there is no such action, which was meant perhaps, and how to add one."""
    known = known_actions()
    near = did_you_mean(name, known) or (
        f"; there are {', '.join(known)}. Add yours with @limpet.action({name!r}), in a module that the file "
        "lists under imports"
    )
    return f"there is no action {name!r}{near}"


def known_actions() -> list[str]:
    """The names of all actions that there are now, without importing any."""
    from importlib.metadata import entry_points

    from limpet.yaml_files.actions.builtin import BUILT_IN

    with _lock:
        return sorted({*BUILT_IN, *_registered, *(entry.name for entry in entry_points(group=GROUP))})


_lock = Lock()
_registered: dict[str, Action] = {}
