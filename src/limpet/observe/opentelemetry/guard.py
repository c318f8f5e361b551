"""Telemetry never breaks a run: what an exporter, a processor or the API raises is logged, and not more than once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_failures: list[str] = []
"""The places that have failed in this process."""


def guarded(call: Callable[P, T]) -> Callable[P, T | None]:
    """The same function, which returns None instead of raising an `Exception`."""

    @wraps(call)
    def guarded_call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return call(*args, **kwargs)
        except Exception as problem:
            _log_failure(call.__qualname__, problem)
            return None

    return guarded_call


def _log_failure(place: str, problem: Exception) -> None:
    if place in _failures:
        return
    _failures.append(place)
    try:
        from logging import getLogger

        getLogger("limpet.observe").error(
            "OpenTelemetry failed at %s; the run continues, and later failures there aren't logged",
            place,
            exc_info=problem,
        )
    except Exception:  # a log handler that raises must not break the run either
        return
