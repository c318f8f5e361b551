"""Where a graph comes from, so that another process can make it: a reference, or a function that builds it."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any, NamedTuple

from limpet.errors import DefinitionError, UsageError
from limpet.graph_methods import GraphMethods
from limpet.journal.store import Store

Target = str | Callable[..., GraphMethods[Any]]
"""`"package.module:attribute"`, a graph or a function that makes one; or such a function itself."""


class Origin(NamedTuple):
    """A module, the file that it is in if that is known, and the way to something in it."""

    module: str
    file: str | None
    path: str

    def __str__(self) -> str:
        return f"{self.module}:{self.path}"


def origin_of(target: Target) -> Origin:
    """Where another process finds the same. Raises `UsageError` if it can't."""
    if isinstance(target, str):
        module, _, path = target.partition(":")
        if not module or not path:
            raise UsageError(f"{target!r} is no reference to a graph: write 'package.module:attribute'")
        return Origin(module, None, path)
    path, module = getattr(target, "__qualname__", ""), getattr(target, "__module__", "")
    if not callable(target) or not path or not module:
        what = "a function that makes the graph, or 'package.module:attribute'"
        raise UsageError(f"another process can't get hold of {target!r}: give {what}")
    if "<" in path:
        raise UsageError(
            f"another process can't find {path!r}: define the function at the top of its module, with `def`"
        )
    return Origin(module, inspect.getsourcefile(target), path)


def load(origin: Origin) -> Any:
    """What is there. Raises `DefinitionError` that says what is missing."""
    found: Any = _module(origin)
    for part in origin.path.split("."):
        if not hasattr(found, part):
            raise DefinitionError(f"'{origin}': {origin.module!r} has no {part!r}")
        found = getattr(found, part)
    return found


def build(found: Any, store: Store, where: str) -> GraphMethods[Any]:
    """The graph: what was found, or what it returns; a function that takes something is given the store."""
    if isinstance(found, GraphMethods):
        return found
    if not callable(found):
        raise DefinitionError(f"'{where}': {found!r} is neither a graph nor a function that makes one")
    made = found(store) if _takes_one(found) else found()
    if not isinstance(made, GraphMethods):
        raise DefinitionError(f"'{where}' returned {made!r}, which is no graph")
    return made


def _takes_one(function: Callable[..., Any]) -> bool:
    needed = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        if each.default is each.empty or each.name == "store"
    ]
    return bool(needed)


def _module(origin: Origin) -> ModuleType:
    """The module, by its name; by its file, where the name leads elsewhere, as that of a test may."""
    name, file = origin.module, origin.file
    if name != "__main__":
        try:
            found = import_module(name)
        except ImportError as problem:
            if file is None or not name.startswith(getattr(problem, "name", None) or "?"):
                raise
        else:
            there = getattr(found, "__file__", None)
            if file is None or (there is not None and os.path.realpath(there) == os.path.realpath(file)):
                return found
    if file is None:
        raise DefinitionError(f"'{origin}': it was defined in no file")
    spec = spec_from_file_location("__mp_main__" if name == "__main__" else name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
