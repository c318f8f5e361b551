"""Results that a node keeps with `once`, so that what was done isn't done again when the node is called again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from limpet.errors import UsageError
from limpet.journal.encoding.codec import detached_value, encode
from limpet.threads.awaiting import wait_until_done

if TYPE_CHECKING:
    from limpet.engine.node_context.node_context import NodeContext


def call_once(
    ctx: NodeContext, key: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The result that is kept under `key` in this step; else that of the function, which is kept before this returns.

    For an async function, the result is something to be awaited. Raises `UsageError` for a key that was used before.
    """
    used_keys = _used_keys_without(ctx, key)
    if key in ctx.scope.progress.memos:
        awaited, stored = ctx.scope.progress.memos[key]
        used_keys.add(key)
        value = detached_value(stored)
        if awaited:
            return _as_awaitable(value)
        return value
    value = function(*args, **kwargs)
    if hasattr(value, "__await__"):
        return _keep_when_done(ctx, key, value)
    return _keep(ctx, key, value, awaited=False)


async def _keep_when_done(ctx: NodeContext, key: str, awaitable: Any) -> Any:
    from asyncio import CancelledError, ensure_future, shield, to_thread

    value = await awaitable
    # Keeping it waits for the store, which must not block the event loop. And what was done is kept, even if the node
    # is cancelled meanwhile.
    keeping = ensure_future(to_thread(_keep, ctx, key, value, awaited=True))
    try:
        return await shield(keeping)
    except CancelledError:
        await wait_until_done(keeping)
        raise


def _keep(ctx: NodeContext, key: str, value: Any, *, awaited: bool) -> Any:
    services = ctx.scope.services

    def keep() -> None:
        # Checked again under the lock: the call may have ended, or the key been used, while the function ran.
        ctx._check_open("once")
        used_keys = _used_keys_without(ctx, key)
        memo = [awaited, detached_value(value)]
        if services.keep_result is None:
            ctx.scope.progress.memos[key] = memo
        else:
            encode(value, f"once({key!r})")
            services.keep_result(ctx.scope, key, memo)
        used_keys.add(key)

    services.journal_lock.call_locked(keep)
    return value


def _used_keys_without(ctx: NodeContext, key: str) -> set[str]:
    """The keys used so far. Raises `UsageError` for one of them: it would get the result of the first use."""
    if ctx.used_keys is None:
        ctx.used_keys = set()
    elif key in ctx.used_keys:
        raise UsageError(f"once(): node {ctx.node!r} has used the key {key!r} before; give each its own")
    return ctx.used_keys


async def _as_awaitable(value: Any) -> Any:
    return value
