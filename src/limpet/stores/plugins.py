"""Stores that other packages bring: the entry points of the group `limpet.stores`, looked up when needed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from limpet.errors import StoreUnavailable, UsageError

GROUP = "limpet.stores"


def brought() -> list[str]:
    """The names, or schemes, of all stores that installed packages bring."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def factory_of(name: str) -> Callable[[Any], Any] | None:
    """The function from a `StoreURL` to a store that a package brings under this name, or None.

    Raises `StoreUnavailable` if it can't be loaded, as where it needs a package that isn't installed.
    """
    for entry in entry_points(group=GROUP, name=name):
        return _loaded(entry)
    return None


def _loaded(entry: EntryPoint) -> Callable[[Any], Any]:
    package = "a package" if entry.dist is None else entry.dist.name
    try:
        factory = entry.load()
    except Exception as error:
        missing = f": install {error.name}" if isinstance(error, ImportError) and error.name else ""
        raise StoreUnavailable(
            f"the store {entry.name!r} of {package} can't be loaded ({type(error).__name__}: {error}){missing}"
        ) from error
    if not callable(factory):
        raise UsageError(
            f"the store {entry.name!r} of {package} is {factory!r}, and no function of a StoreURL"
        )
    return factory  # type: ignore[no-any-return]  # a plugin's: checked as far as it can be
