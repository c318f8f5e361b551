"""Observers by name: `log` (also `slog`), `noop`, `progress`, and whatever you register."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any, cast

from limpet.errors import UnknownName, UsageError
from limpet.observe.events import ObserverLike
from limpet.observe.hub import NoopObserver
from limpet.observe.log import LogObserver

Factory = Callable[[], ObserverLike]


def register_observer(name: str, factory_or_object: Factory | ObserverLike) -> None:
    """Make an observer available under a name; an observer that has this name so far is replaced.

    A class, or a function that can be called without arguments, is a factory: each graph that uses the
    name gets its own observer. Anything else is the observer itself, shared by all graphs.
    Raises `UsageError` for a name that isn't text and for an object that can't be an observer.
    """
    if not isinstance(name, str) or not name:
        raise UsageError(f"the name of an observer must be a str, not {name!r}")
    if not _is_factory(factory_or_object):
        _checked(factory_or_object)
    with _lock:
        _registered[name] = factory_or_object


def resolve_observer(name_or_object: str | ObserverLike) -> ObserverLike:
    """The observer of a name; an observer object or function is returned as it is.

    Raises `UnknownName` for a name that isn't registered, and `UsageError` for an object that is neither a name, nor
    callable, nor has `on_event`.
    """
    if not isinstance(name_or_object, str):
        given: Any = name_or_object
        if isinstance(given, type):
            return _made(given)
        return _checked(given)
    with _lock:
        known = sorted(_registered)
        found = _registered.get(name_or_object)
    if found is None:
        raise UnknownName("observer", name_or_object, known)
    if _is_factory(found):
        return _made(found, name_or_object)
    return _checked(found)


def _progress() -> ObserverLike:
    from limpet.observe.progress_bar import ProgressObserver

    return ProgressObserver()


_lock = threading.Lock()
_registered: dict[str, Any] = {
    "log": LogObserver,
    "noop": NoopObserver,
    "progress": _progress,
    "slog": LogObserver,
}


def _is_factory(given: Any) -> bool:
    """A class is one, and so is a function, unless it has `on_event` or takes an argument: the event."""
    if isinstance(given, type):
        return True
    if hasattr(given, "on_event") or not callable(given):
        return False
    try:
        inspect.signature(given).bind()
    except (TypeError, ValueError):
        return False
    return True


def _made(factory: Any, name: str | None = None) -> ObserverLike:
    if name:
        called = f"observer {name!r}"
    else:
        called = f"observer class {factory.__qualname__}"
    if isinstance(factory, type):
        try:
            inspect.signature(factory).bind()
        except (TypeError, ValueError) as error:
            raise UsageError(f"{called} can't be made without arguments: {error}; pass an object") from error
    return _checked(factory(), f"{called}: ")


def _checked(given: Any, prefix: str = "") -> ObserverLike:
    listener = getattr(given, "on_event", given)
    if not callable(listener):
        raise UsageError(
            f"{prefix}{_shown(given)} can't observe; an observer is a registered name, an object with "
            "on_event(event), or a function that takes the event"
        )
    if inspect.iscoroutinefunction(listener):
        raise UsageError(
            f"{prefix}{_shown(given)} is async and would never be awaited; use a plain function that passes "
            "the event to your event loop"
        )
    return cast(ObserverLike, given)


def _shown(given: Any) -> str:
    return getattr(given, "__qualname__", None) or f"an object of type {type(given).__qualname__}"
