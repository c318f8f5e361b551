"""Making a live object by its factory, and what closes it again."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from limpet.threads.event_loop import process_loop


class Resource(NamedTuple):
    """How a live object is made, where `compile(resources=…)` can't know it by itself.

    `make` is called without arguments, and `close`, if given, with the object at the end; both may be async. Without
    `Resource`, a function or a class is a factory and anything else is the object.
    """

    make: Callable[[], Any]
    close: Callable[[Any], Any] | None = None


class Opened(NamedTuple):
    """A live object, and what closes it. What that returns may have to be awaited."""

    value: Any
    close: Callable[[], Any]


def can_be_called(call: Any, *arguments: Any) -> bool:
    try:
        inspect.signature(call).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # some functions written in C have no signature
        return True
    return True


def is_async_factory(make: Any) -> bool:
    while isinstance(make, partial):
        make = make.func
    made_with = inspect.unwrap(make)
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in (make, made_with)
    )


def has_to_be_awaited(made: Any) -> bool:
    if inspect.isawaitable(made):
        return True
    return is_derived(made, AbstractAsyncContextManager) and not is_derived(made, AbstractContextManager)


def is_derived(value: Any, kind: type) -> bool:
    """Whether a value says that it is a context manager, and doesn't just have the methods: as a lock has."""
    return kind in type(value).__mro__


def entered(made: Any, close: Callable[[Any], Any] | None) -> Opened:
    if close is not None:
        return Opened(made, partial(close, made))
    if is_derived(made, AbstractContextManager):
        return Opened(made.__enter__(), partial(made.__exit__, None, None, None))
    for name in ("aclose", "close"):
        method = getattr(made, name, None)
        if callable(method) and not isinstance(made, type) and can_be_called(method):
            return Opened(made, method)
    return Opened(made, nothing)


def nothing() -> None:
    pass


def finish(result: Any) -> None:
    """Wait for what closes a resource, in sync code."""
    import asyncio

    async def wait() -> None:
        await result

    if process_loop.loop is None:
        asyncio.run(wait())
    else:
        process_loop.run(wait)
