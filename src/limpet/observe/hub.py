"""One function that passes each event to all observers of a run, or None for a run without observers.

The engine keeps what `gather` returns and checks only whether it is None. So a run without observers pays for that
check and nothing else: no event is built and no clock is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from limpet.observe.events import Event, ObserverLike

Emit = Callable[[str, str, dict[str, Any]], None]
"""`emit(type, source, data)`. The data belongs to the event from then on: pass a fresh dict."""


class NoopObserver:
    """Watches nothing. A run whose only observer this is costs as little as one without any."""

    def on_event(self, event: Event) -> None:
        """Do nothing."""


def gather(observers: Iterable[ObserverLike], clock: Callable[[], float]) -> Emit | None:
    """Combine observers into one `emit` function; None if there are only noop ones.

    Observers get an event in the order given. An observer that raises affects neither the others nor the run, and
    keeps getting events: its first exception is logged (logger `limpet.observe`, with the traceback), later ones are
    dropped. `KeyboardInterrupt` and the like are raised.
    """
    listeners = [_listener(observer) for observer in observers if not isinstance(observer, NoopObserver)]
    if not listeners:
        return None
    already_logged: set[int] = set()

    def emit(type: str, source: str, data: dict[str, Any]) -> None:
        event = Event(type, clock(), source, data)
        for number, listener in enumerate(listeners):
            try:
                listener(event)
            except Exception as error:
                if number not in already_logged:
                    already_logged.add(number)
                    _log_failure(listener, event, error)

    return emit


def both(one: Emit | None, other: Emit | None) -> Emit | None:
    """An `emit` that passes events to two others."""
    if one is None or other is None:
        return one or other

    def emit(type: str, source: str, data: dict[str, Any]) -> None:
        one(type, source, data)
        other(type, source, data)

    return emit


def _listener(observer: ObserverLike) -> Callable[[Event], None]:
    on_event: Callable[[Event], None] | None = getattr(observer, "on_event", None)
    if on_event is not None:
        return on_event
    assert callable(observer)
    return observer


def _log_failure(listener: Callable[[Event], None], event: Event, error: Exception) -> None:
    import logging

    owner = getattr(listener, "__self__", listener)
    name = getattr(owner, "__qualname__", type(owner).__qualname__)
    try:
        logging.getLogger("limpet.observe").error(
            "observer %s failed at %s; the run continues, and later failures of the observer aren't logged",
            name,
            event.type,
            exc_info=error,
        )
    except Exception:  # a log handler that raises must not break the run either
        return
