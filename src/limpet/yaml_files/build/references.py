"""References to code, as files write them: `module:function`. They are imported only when a graph is built."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from limpet.errors import UsageError, did_you_mean

REFERENCE_PATTERN: Final = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"


def import_reference(reference: str) -> Any:
    """The object that a reference names. Imports its module; raises `UsageError` if it doesn't exist."""
    module_name, _, path = reference.partition(":")
    found: Any = import_named_module(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            hint = did_you_mean(name, [each for each in dir(found) if not each.startswith("_")])
            raise UsageError(f"{reference!r}: there is no {name!r} in {module_name}{hint}")
        found = getattr(found, name)
    return found


def import_named_module(module: str) -> Any:
    """A module by its name. Raises `UsageError` if it isn't found or can't be imported."""
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is not None and (module == missing.name or module.startswith(missing.name + ".")):
            raise UsageError(
                f"there is no module {missing.name!r} to import; is its directory on sys.path (PYTHONPATH)?"
            ) from missing
        raise UsageError(f"module {module!r} can't be imported: {missing}") from missing
    except (Exception, SystemExit) as problem:  # a module may raise anything while it is imported
        raise UsageError(
            f"module {module!r} can't be imported: {type(problem).__name__}: {problem}"
        ) from problem


def import_exception(name: str) -> type[Exception]:
    """An exception class: a built-in one by its name, another as `module:Class`. Raises `UsageError`."""
    import builtins

    if ":" in name:
        found = import_reference(name)
    else:
        found = getattr(builtins, name, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        known = [each for each in dir(builtins) if each.endswith("Error")]
        hint = did_you_mean(name, known) or "; others are module:Class"
        raise UsageError(f"{name!r} is not an exception{hint}")
    return found
