"""Async versions of methods that wait for a store: the same call, in a thread, doesn't block the event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Owner = TypeVar("Owner")


def async_version(
    method: Callable[Concatenate[Owner, P], R],
) -> Callable[Concatenate[Owner, P], Coroutine[Any, Any, R]]:
    """The async version of a method, to be defined next to it in its class. It takes, returns and raises the same.

    A call that has begun is finished, even if the caller that awaits it is cancelled.
    """
    name = method.__name__

    async def call_in_thread(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> R:
        from asyncio import to_thread

        # Looked up by name, because a subclass may override the method.
        current: Callable[P, R] = getattr(self, name)
        return await to_thread(current, *args, **kwargs)

    call_in_thread.__name__ = f"a{name}"
    call_in_thread.__qualname__ = method.__qualname__.removesuffix(name) + call_in_thread.__name__
    call_in_thread.__doc__ = f"`{name}` without blocking the event loop."
    call_in_thread.__wrapped__ = method  # type: ignore[attr-defined]  # help() and signature() read it
    return call_in_thread
