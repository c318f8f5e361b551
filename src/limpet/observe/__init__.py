"""Watching runs: events, the hub that passes them to observers, and ready-made observers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.observe.events import EVENT_TYPES, Event, Observer, ObserverLike
from limpet.observe.hub import Emit, NoopObserver, gather
from limpet.observe.log import LogObserver
from limpet.observe.observer_registry import register_observer, resolve_observer

if TYPE_CHECKING:
    from limpet.observe.progress_bar import ProgressObserver

__all__ = [
    "EVENT_TYPES",
    "Emit",
    "Event",
    "LogObserver",
    "NoopObserver",
    "Observer",
    "ObserverLike",
    "ProgressObserver",
    "gather",
    "register_observer",
    "resolve_observer",
]


def __getattr__(name: str) -> Any:
    if (
        name == "ProgressObserver"
    ):  # fetched late: few programs show progress, and all would pay for its import
        from limpet.observe.progress_bar import ProgressObserver

        return ProgressObserver
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
