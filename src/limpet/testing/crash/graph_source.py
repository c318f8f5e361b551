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


class GraphSource(NamedTuple):
    """A module, its file if that is known, and the path to an attribute in it."""

    module: str
    file: str | None
    path: str

    def __str__(self) -> str:
        return f"{self.module}:{self.path}"


def source_of(target: Target) -> GraphSource:
    """Where another process finds the target. Raises `UsageError` for a target that it can't find."""
    if isinstance(target, str):
        module, _, path = target.partition(":")
        if not module or not path:
            raise UsageError(f"{target!r} isn't a reference to a graph: write 'package.module:attribute'")
        return GraphSource(module, None, path)
    path = getattr(target, "__qualname__", "")
    module = getattr(target, "__module__", "")
    if not callable(target) or not path or not module:
        what = "a function that makes the graph, or 'package.module:attribute'"
        raise UsageError(f"another process can't get {target!r}: give {what}")
    if "<" in path:
        raise UsageError(
            f"another process can't find {path!r}: define the function at the top of its module, with `def`"
        )
    return GraphSource(module, inspect.getsourcefile(target), path)


def load(source: GraphSource) -> Any:
    """Import the target. Raises `DefinitionError` that says what is missing."""
    found: Any = _import(source)
    for part in source.path.split("."):
        if not hasattr(found, part):
            raise DefinitionError(f"'{source}': {source.module!r} has no {part!r}")
        found = getattr(found, part)
    return found


def build(target: Any, store: Store, where: str) -> GraphMethods[Any]:
    """The graph: the target, or what it returns. A function with a parameter for it gets the store."""
    if isinstance(target, GraphMethods):
        return target
    if not callable(target):
        raise DefinitionError(f"'{where}': {target!r} is neither a graph nor a function that makes one")
    if _takes_store(target):
        graph = target(store)
    else:
        graph = target()
    if not isinstance(graph, GraphMethods):
        raise DefinitionError(f"'{where}' returned {graph!r}, which isn't a graph")
    return graph


def _takes_store(function: Callable[..., Any]) -> bool:
    for parameter in inspect.signature(function).parameters.values():
        is_positional = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        if is_positional and (parameter.default is parameter.empty or parameter.name == "store"):
            return True
    return False


def _import(source: GraphSource) -> ModuleType:
    """The module, by its name; or by its file, where the name leads elsewhere, as that of a test module may."""
    name = source.module
    file = source.file
    if name != "__main__":
        try:
            found = import_module(name)
        except ImportError as problem:
            # A module that exists but imports something that is missing has a problem of its own.
            if file is None or not name.startswith(getattr(problem, "name", None) or "?"):
                raise
        else:
            found_file = getattr(found, "__file__", None)
            if file is None:
                return found
            if found_file is not None and os.path.realpath(found_file) == os.path.realpath(file):
                return found
    if file is None:
        raise DefinitionError(f"'{source}': its module has no file, so another process can't import it")
    # The name that `multiprocessing` uses: code under `if __name__ == "__main__"` must not run in the child.
    module_name = "__mp_main__" if name == "__main__" else name
    spec = spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
