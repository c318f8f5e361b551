"""Async twins of calls that wait for a store: the same call in a thread, so that the event loop goes on."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Owner = TypeVar("Owner")


def twin(
    method: Callable[Concatenate[Owner, P], R],
) -> Callable[Concatenate[Owner, P], Coroutine[Any, Any, R]]:
    """The async twin of a method, to be put beside it in its class: it takes, returns and raises the same.

    What was begun comes to its end, also if whoever awaits it is cancelled.
    """
    name = method.__name__

    async def aside(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> R:
        from asyncio import to_thread

        found: Callable[P, R] = getattr(self, name)  # by name: a subclass may have its own
        return await to_thread(found, *args, **kwargs)

    aside.__name__ = f"a{name}"
    aside.__qualname__ = method.__qualname__.removesuffix(name) + aside.__name__
    aside.__doc__ = f"`{name}` without blocking the event loop."
    aside.__wrapped__ = method  # type: ignore[attr-defined]  # whence help() and signature() know its parameters
    return aside
