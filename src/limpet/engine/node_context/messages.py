"""Posts that nodes wait for, such as messages: `receive`, and what a node that is called again gets.

A post that a node has received is kept with its position, by the order of the calls that wait for the same name, or
by `key`, until its step completes.
"""

from __future__ import annotations

from typing import Any

from limpet.durations import Moment, moment_of
from limpet.engine.node_context.call_scope import current
from limpet.engine.node_context.node_context import NodeContext
from limpet.engine.node_context.questions import NOT_GIVEN
from limpet.errors import DeadlinePassed, UsageError
from limpet.journal.encoding.codec import detached_value
from limpet.journal.waits import CHILD_RUN, MESSAGE, PostWait, box_of
from limpet.threads.awaiting import in_thread

CALLS = {MESSAGE: "receive", CHILD_RUN: "join"}
"""The call that waits for each kind of post."""

MAX_NAME = 200
"""Characters that the name of a message may have."""


def receive(
    name: str, *, deadline: Moment | None = None, default: Any = NOT_GIVEN, key: str | None = None
) -> Any:
    """The value of the oldest message of this name that was sent to the run and that no node has received.

    Inside a node; `handle.send(name, value)` sends a message. If none has come, the call of the node ends here and
    no process holds the run. When the message comes, the node is called again from its first line, and this call
    then returns it. So keep earlier results with `once`. In a branch, the others continue meanwhile.

    That the message is received is durable when this returns. A node that is called again, after a pause, a crash or
    a failed attempt, gets the same message, until its step completes. Calls are distinguished by their order among
    those for the same name, or by `key`. In async code, `await ctx.areceive(…)` doesn't block the event loop.

    `deadline` is until when to wait: seconds, a `timedelta`, or a `datetime`. After that this returns `default`, or
    raises `DeadlinePassed`. `deadline=0` doesn't wait. Raises `UsageError` where no message can be sent to the run.
    """
    return current("receive").receive(name, deadline=deadline, default=default, key=key)


def receive_message(
    ctx: NodeContext, name: str, key: str | None, deadline: Moment | None, default: Any
) -> Any:
    """The value of the oldest message of this name: see `limpet.receive`."""
    wait = _wait_for_message(ctx, name, key, deadline, default)
    return _value(ctx, wait, receive_post(ctx, wait), default)


async def areceive_message(
    ctx: NodeContext, name: str, key: str | None, deadline: Moment | None, default: Any
) -> Any:
    """The same without blocking the event loop."""
    wait = _wait_for_message(ctx, name, key, deadline, default)
    # What was taken is kept, even if the node is cancelled meanwhile.
    return _value(ctx, wait, await in_thread(receive_post, ctx, wait), default)


def receive_post(ctx: NodeContext, wait: PostWait) -> list[Any] | None:
    """The `Letter` that this call has received, now or when the node was called before; None if none came in time.

    If it has to be waited for, this raises `PostAwaited`, which ends the call of the node.
    """
    received = ctx.scope.progress.received
    if wait.received_as not in received:
        ctx.scope.services.journal_lock.call_locked(_take, ctx, wait)
    kept: list[Any] | None = received[wait.received_as]
    return kept


def next_wait(
    ctx: NodeContext, kind: str, name: str, key: str | None, deadline: Moment | None = None
) -> PostWait:
    """What the next call of a node waits for. Raises `UsageError` where nothing can be posted to its run."""
    call = CALLS[kind]
    ctx._check_open(call)
    services = ctx.scope.services
    if services.take_letter is None:
        _refuse_without_posts(ctx, call)
    limit = None
    if deadline is not None:
        limit = moment_of(deadline, services.store_clock(), f"{call}(deadline=…)")
    if ctx.used_keys is None:
        # The loop then ends the call under the lock, as it does after `once`.
        ctx.used_keys = set()
    return PostWait(kind, name, _call_key(ctx, box_of(kind, name), key), ctx.scope.place(ctx.node), limit)


def check_name(name: Any, call: str) -> str:
    """The name of a message. Raises `UsageError` for what can't be one."""
    if not isinstance(name, str) or not name or len(name) > MAX_NAME or not name.isprintable():
        raise UsageError(
            f"{call}(name): the name of a message is a str of 1 to {MAX_NAME} printable characters, not {name!r:.80}"
        )
    return name


def _wait_for_message(
    ctx: NodeContext, name: str, key: str | None, deadline: Moment | None, default: Any
) -> PostWait:
    if deadline is None and default is not NOT_GIVEN:
        raise UsageError("receive(default=…) is for when a deadline= has passed")
    return next_wait(ctx, MESSAGE, check_name(name, "receive"), key, deadline)


def _refuse_without_posts(ctx: NodeContext, call: str) -> None:
    if ctx.scope.services.keep_result is None:
        raise UsageError(
            f"{call}() needs a store to keep the run in: compile(store=…), or a CheckpointConfig with an interval"
        )
    raise UsageError(f"{call}(): nothing can be sent to runs in this store").with_advice(
        "keep the run in one of Limpet's own stores: SQLite, PostgreSQL, Redis, files or memory"
    )


def _call_key(ctx: NodeContext, box: str, key: str | None) -> str:
    """What distinguishes this call from others of the node that wait for the same: its key, or its number."""
    counts = getattr(ctx, "_receives", None)
    if counts is None:
        counts = ctx._receives = {}
    if key is None:
        counts[box, ""] = counts.get((box, ""), 0) + 1
        return str(counts[box, ""])
    if not isinstance(key, str) or not key or key.isdigit():
        raise UsageError(f"receive(key={key!r}): a key is a str; numbers are for calls without a key")
    if (box, key) in counts:
        raise UsageError(f"receive(): node {ctx.node!r} has used the key {key!r} before; give each its own")
    counts[box, key] = 1
    return key


def _take(ctx: NodeContext, wait: PostWait) -> None:
    # Checked again under the lock: the call may have ended meanwhile.
    ctx._check_open("receive")
    take_letter = ctx.scope.services.take_letter
    assert take_letter is not None
    take_letter(ctx.scope, wait)


def _value(ctx: NodeContext, wait: PostWait, kept: list[Any] | None, default: Any) -> Any:
    """What `receive` returns: a copy of the message's value, or the default."""
    if kept is not None:
        _, _, value = kept
        ctx.scope.services.masker.remember_state({wait.name: value})
        return detached_value(value)
    if default is not NOT_GIVEN:
        return default
    raise DeadlinePassed(f"no message {wait.name!r} came in time", ctx.run_id)
