"""Which nodes emit while they run, so that the caller that iterates the run gets what they emit at once.

A driver can give the caller an event only while no node runs in its own thread. So while a run is streamed, a node
that emits is called in a thread, or as a task, of its own, and the driver waits for it and for what it emits. Which
nodes emit is found in their code, and learned: a node that emits unexpectedly runs where it always does, the caller
gets what it emitted when the call ends, and its next call has a thread of its own.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from limpet.engine.node_context.node_context import NodeContext

EMITTING: Final = frozenset({"emit", "progress"})
"""The names under which nodes call what emits."""

MAX_READ_FUNCTIONS: Final = 300
"""How many functions are looked at, from a node on, for a call that emits."""


class EmittingNodes:
    """What one driver knows of the nodes of its run."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, bool]] = {}
        """Whether a node emits, by the identity of its plan node; with that node, so that it stays the same one."""

    def __contains__(self, task: NodeContext) -> bool:
        known = self._known.get(id(task.plan_node))
        if known is None:
            function = task.plan_node.function
            emits = function is not None and (function.is_async or _seems_to_emit(function.call))
            known = self._known[id(task.plan_node)] = (task.plan_node, emits)
        return known[1]

    def add(self, task: NodeContext) -> None:
        """A node has emitted."""
        self._known[id(task.plan_node)] = (task.plan_node, True)


def _seems_to_emit(call: Any) -> bool:
    try:
        return mentions_emit(call)
    except Exception:  # an object of the user's, such as a proxy, may not like to be looked at
        return False


def mentions_emit(call: Any) -> bool:
    """Whether a function, or one that it refers to, calls something by the name of `emit` or `progress`.

    Functions, classes and objects of libraries aren't followed, unless the node is part of the same package.
    """
    waiting: deque[Any] = deque([call])
    seen: set[CodeType] = set()
    root = _root_of(call)
    while waiting and len(seen) < MAX_READ_FUNCTIONS:
        for function in _functions_of(waiting.popleft()):
            code = function.__code__
            if code in seen:
                continue
            seen.add(code)
            names = set(_names_in(code))
            if not EMITTING.isdisjoint(names):
                return True
            waiting.extend(value for value in _referred_to(function, names) if _is_own_code(value, root))
    return False


def _functions_of(value: Any) -> Iterator[FunctionType]:
    """The Python functions that a call of this value may run."""
    if isinstance(value, partial):
        value = value.func
    if isinstance(value, MethodType):
        yield from _functions_of(value.__self__)
        value = value.__func__
    if isinstance(value, FunctionType):
        yield value
        if hasattr(value, "__wrapped__"):
            yield from _functions_of(value.__wrapped__)
        return
    kind = value if isinstance(value, type) else type(value)
    for member in vars(kind).values():
        member = getattr(member, "__func__", member)
        if isinstance(member, FunctionType):
            yield member


def _names_in(code: CodeType) -> Iterator[str]:
    """The names of globals and attributes in a function, and in those defined inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _referred_to(function: FunctionType, names: set[str]) -> Iterator[Any]:
    """What a function refers to by global names, by those of modules' members, and from the functions around it."""
    modules = []
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            modules.append(value)
        elif value is not None:
            yield value
    for module in modules:
        yield from (vars(module)[name] for name in names if name in vars(module))
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it is still empty
            continue


def _is_own_code(value: Any, root: str) -> bool:
    """Whether a value is of the user's own code, which is looked into."""
    if isinstance(value, partial):
        value = value.func
    if not isinstance(value, (FunctionType, MethodType, type)):
        value = type(value)
    module = getattr(value, "__module__", None) or ""
    if module.partition(".")[0] == root:
        return True
    function = next(_functions_of(value), None)
    if function is None:
        return False
    file = function.__code__.co_filename
    return not any(folder in file for folder in _LIBRARY_FOLDERS)


def _root_of(call: Any) -> str:
    return (getattr(call, "__module__", None) or "").partition(".")[0]


_LIBRARY_FOLDERS: Final = (
    "site-packages",
    "dist-packages",
    os.path.dirname(os.__file__),
    os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
    "<frozen",
)
