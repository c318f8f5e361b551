"""Calls that hold a run for a moment, such as a cancel, and that Ctrl-C may interrupt at any point."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from time import monotonic
from typing import ParamSpec, TypeVar

from limpet.engine.leases.lease_client import clients_in_use
from limpet.errors import StoreError

P = ParamSpec("P")
R = TypeVar("R")


def releases_if_interrupted(call: Callable[P, R]) -> Callable[P, R]:
    """The same call, which releases what it has claimed also if it is interrupted before its `with` block begins.

    A traceback may keep what the call had for long, a REPL until the next error: its lease would be renewed.
    """

    @wraps(call)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        since = monotonic()
        try:
            return call(*args, **kwargs)
        except Exception:
            raise
        except BaseException:
            release_unused(since)
            raise

    return guarded


def release_unused(since: float) -> None:
    """Release what this thread has claimed since then and no driver has run, because the thread was interrupted."""
    for client in clients_in_use():
        for found in client.held.valuerefs():
            held = found()
            if held is not None and held.is_unused_since(since):
                with suppress(StoreError):
                    client.release(held)
