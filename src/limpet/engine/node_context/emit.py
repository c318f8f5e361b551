"""What nodes emit while they run: `emit` and `progress`, inside a node. It isn't state, and no resume reads it.

An item says which call emitted it: the step, the node with its branch, the attempt, the `call`, which no other call
of the run has, and its `index` within that call. So what a crashed call emitted isn't taken for what the next one
emits.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from limpet.engine.node_context.call_scope import current
from limpet.errors import UsageError
from limpet.graphs.secrets import without_secrets
from limpet.journal.encoding.codec import encode

if TYPE_CHECKING:
    from limpet.engine.node_context.node_context import NodeContext

MAX_ITEM_BYTES: Final = 1_000_000
"""How large an item may be."""

MAX_AMOUNT: Final = 2**63
"""Below what progress is counted."""

OUTPUT: Final = "output"
PROGRESS: Final = "progress"
"""The two kinds of items."""


class Emitted(NamedTuple):
    """An item that a node emitted, without its secrets: `content` is its part of the event, and `place` is where."""

    kind: str
    graph: str
    node: str
    place: dict[str, Any]
    content: dict[str, Any]


class CallNumbers(NamedTuple):
    """How a call numbers what it emits."""

    call: str
    indexes: count[int]


class OutputTaker(Protocol):
    """What takes the items of a run: see `engine/leases/run_output.py`."""

    def begin_call(self, ctx: NodeContext) -> CallNumbers:
        """Give a call the numbers for what it emits, unless it has them: it may emit from several threads."""
        ...

    def take(self, item: Emitted) -> None:
        """Pass an item on: to the caller that streams the run, to observers, and to the store."""
        ...


def emit(data: Any) -> None:
    """Pass something on while the node still runs: a token, a partial result, anything that can be stored.

    Inside a node. A caller of `stream` or `astream` in this process gets it at once, as an `output` event; followers
    in other processes get it from the run's output in the store, to which it is written a few times a second. It
    isn't part of the state, and only the newest items of a run are kept. A crash may lose the last ones.
    A node that is called again emits again, under another `call`. Secrets are masked. Raises `UnstorableValue` with
    the path to what can't be stored, and `UsageError` for an item that is too large.
    """
    current("emit").emit(data)


def progress(done: float, total: float | None = None, message: str = "") -> None:
    """Say how far the node is: `done` of `total`, or just how much if the total isn't known, and what it does.

    Inside a node. Shown by `limpet run`, `limpet runs watch` and the `progress` observer, and passed on as a
    `progress` event, as `emit` does. Only the newest counts: of several in a moment, the store gets the last one.
    """
    current("progress").progress(done, total, message)


def emit_data(ctx: NodeContext, data: Any) -> None:
    """`emit`, for a call."""
    ctx._check_open("emit")
    shown = _without_secrets(ctx, data)
    size = len(encode(shown, "data"))
    if size > MAX_ITEM_BYTES:
        large = UsageError(f"emit(): an item may have {MAX_ITEM_BYTES:,} bytes, and this one has {size:,}")
        raise large.with_advice("store it elsewhere, and emit where it is; or emit it in pieces")
    _pass_on(ctx, OUTPUT, {"data": shown})


def report_progress(ctx: NodeContext, done: float, total: float | None, message: str) -> None:
    """`progress`, for a call."""
    ctx._check_open("progress")
    for name, number in (("done", done), ("total", total)):
        is_number = type(number) in (int, float) and 0 <= (number or 0) < MAX_AMOUNT
        if not is_number and not (name == "total" and number is None):
            raise UsageError(f"progress({name}=…) is a number of at least 0, not {number!r}")
    if not isinstance(message, str):
        raise UsageError(f"progress(message=…) is a str, not {message!r}")
    shown = _without_secrets(ctx, message)
    _pass_on(ctx, PROGRESS, {"done": done, "total": total, "message": shown})


def _pass_on(ctx: NodeContext, kind: str, content: dict[str, Any]) -> None:
    taker = ctx.scope.services.output()
    if taker is None:
        return
    numbers = getattr(ctx, "_emitted", None) or taker.begin_call(ctx)
    place: dict[str, Any] = {"step": _step_of(ctx), "attempt": ctx.attempt, "call": numbers.call}
    if kind == OUTPUT:
        place["index"] = next(numbers.indexes)
    scope = ctx.scope
    if scope.in_layer:
        place["task"] = ctx.node
    if branch := scope.reported_branch:
        place["branch"] = branch
    taker.take(Emitted(kind, scope.plan.name, ctx.node, place, content))


def _step_of(ctx: NodeContext) -> int:
    """The step that the call will complete. In a branch, counted on from the step at which the branches began.

    So it is the same when the node is called again after a crash, and another one when the run comes here again.
    """
    return ctx.step + sum(int(step) for step in ctx.scope.prefix.split(".") if step)


def _without_secrets(ctx: NodeContext, value: Any) -> Any:
    """The value with a mask under secret keys, and wherever a secret occurs in it."""
    masker = ctx.scope.services.masker
    if masker.idle:
        return value
    # `dict.items` doesn't go through the node's state, which would note each key as read.
    masker.remember_state(dict(dict.items(ctx.state)))
    return without_secrets(value, masker.names, ctx.scope.without_secrets)
