"""References to code, as files have them: `module:function`. They are imported only when a graph is built."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from limpet.errors import UsageError, did_you_mean

REFERENCE: Final = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"


def referred(reference: str) -> Any:
    """What a reference leads to. Imports its module; raises `UsageError` for one that leads nowhere."""
    module_name, _, path = reference.partition(":")
    found: Any = imported(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            near = did_you_mean(name, [each for each in dir(found) if not each.startswith("_")])
            raise UsageError(f"{reference!r}: there is no {name!r} in {module_name}{near}")
        found = getattr(found, name)
    return found


def imported(module: str) -> Any:
    """A module by its name. Raises `UsageError` for one that isn't found or can't be imported."""
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is not None and (module == missing.name or module.startswith(missing.name + ".")):
            raise UsageError(
                f"there is no module {missing.name!r} to import; is its directory on sys.path (PYTHONPATH)?"
            ) from missing
        raise UsageError(f"module {module!r} can't be imported: {missing}") from missing
    except Exception as problem:  # a module may do anything while it is imported
        raise UsageError(
            f"module {module!r} can't be imported: {type(problem).__name__}: {problem}"
        ) from problem


def exception(name: str) -> type[Exception]:
    """An exception class: a built-in one by its name, another as `module:Class`. Raises `UsageError`."""
    import builtins

    found = referred(name) if ":" in name else getattr(builtins, name, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        known = [each for each in dir(builtins) if each.endswith("Error")]
        raise UsageError(
            f"{name!r} is no exception{did_you_mean(name, known) or '; others are module:Class'}"
        )
    return found
