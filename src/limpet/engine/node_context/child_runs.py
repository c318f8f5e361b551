"""Child runs: `ctx.start` starts a run of its own, and `ctx.join` waits for its end and returns its result.

A child is an ordinary run in the store of its parent, with an id of its own. The id is a hash of the parent's
position: the run, the step, the node with its branch, and the order or key of the call. So a node that is called
again, after a crash or because what it waits for has come, finds the child that it has started before.

What a join waits for is the *end* of the child. A child posts to its parent just before the commit that ends it, so
that no crash can lose the post. The post brings nothing but that the child is to be looked at: how it ended is in the
child alone. If it hasn't ended yet, its process being slow or crashed, it is looked at again a little later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from limpet.durations import Moment, Span, seconds_of
from limpet.engine.node_context.messages import next_wait
from limpet.errors import UsageError
from limpet.journal.waits import CHILD_RUN

if TYPE_CHECKING:
    from limpet.engine.node_context.node_context import NodeContext


class ChildOptions(TypedDict, total=False):
    """What `ctx.start` takes besides the graph and its input."""

    key: str | None
    """Distinguishes the children of one node; without it, the order of the calls does."""
    config: Mapping[str, Any] | None
    tags: Iterable[str]
    priority: int
    delay: Span
    """How long to wait before the child begins."""
    deadline: Moment | None
    """When the child fails if it hasn't ended; never later than the deadline of its parent."""
    queue: str | None
    """The queue of the child; by default that of its graph, else that of its parent."""


class ChildRequest(NamedTuple):
    """A child run to start."""

    run_id: str
    input: Any
    config: Mapping[str, Any] | None
    tags: Iterable[str]
    priority: int
    delay: float
    deadline: Moment | None
    queue: str | None


def start_child(ctx: NodeContext, graph: Any, input: Any, options: ChildOptions) -> Any:
    """Start a child run in the store of this one, or find the one that this call has started before.

    Returns its handle. A node that is called again finds the child by the order of its calls, or by `key`; the input
    of the first call counts. Workers execute it. If none executes this run, the process of this run does, once the
    child is joined. Raises `UsageError` where that isn't possible, `UnstorableValue`, and `RunExists` for a child of
    another graph.
    """
    for name in options:
        if name not in ChildOptions.__annotations__:
            raise TypeError(f"start() takes no {name!r}; it takes {', '.join(ChildOptions.__annotations__)}")
    ctx._check_open("start")
    _check_graph(graph, "start(graph, input)")
    children = ctx.scope.services.children
    if children is None:
        raise UsageError(
            "start() needs a store that other processes can post to, for the run and its children"
        )
    request = ChildRequest(
        _child_id(ctx, options.get("key")),
        input,
        options.get("config"),
        options.get("tags", ()),
        options.get("priority", 0),
        seconds_of(options.get("delay", 0.0), "delay"),
        options.get("deadline"),
        options.get("queue"),
    )
    return children().start(graph, request)


def join_child(ctx: NodeContext, child: Any, graph: Any = None) -> Any:
    """The result of a child run, by its handle or its id: its final State.

    `graph` is its graph, with which a process that executes this run can execute the child, too. A handle has it.

    If it hasn't ended, this raises `PostAwaited`, which ends the call of the node. The node is called again from its
    first line when the child has ended; so it keeps earlier results with `once`. Raises `ChildFailed` for a child
    that failed, was cancelled or was deleted.
    """
    run_id = getattr(child, "run_id", child)
    if not isinstance(run_id, str) or not run_id:
        raise UsageError(f"join(child) takes what start() returned, or its run_id, not {child!r:.80}")
    if run_id == ctx.run_id:
        raise UsageError(f"join(): run {run_id!r} can't wait for itself")
    wait = next_wait(ctx, CHILD_RUN, run_id, None)
    children = ctx.scope.services.children
    assert children is not None, "a run that can wait for posts can have children"
    handle = None
    if child is not run_id:
        handle = child
    elif graph is not None:
        _check_graph(graph, "join(child, graph)")
        handle = children().handle_of(run_id, graph)
    return children().join(ctx.scope, wait, handle)


def _check_graph(graph: Any, call: str) -> None:
    if isinstance(graph, type) or not hasattr(graph, "_start_child"):
        raise UsageError(f"{call}: the graph is a StateGraph or a Workflow, not {graph!r:.80}")


def _child_id(ctx: NodeContext, key: str | None) -> str:
    """The id of a child: the same whenever this node starts it in this step."""
    if key is not None and (not isinstance(key, str) or not key or key.isdigit()):
        raise UsageError(f"start(key={key!r}): a key is a str; numbers are for children without a key")
    if key is None:
        ctx._started = getattr(ctx, "_started", 0) + 1
        key = str(ctx._started)
    return blake2b(f"{ctx.idempotency_key}\n{key}".encode(), digest_size=16).hexdigest()
