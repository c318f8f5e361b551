"""The actions that talk with the run: questions, messages, waits, child runs, and what it shows while a node runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from limpet.durations import Moment, moment_of, seconds_in_text
from limpet.engine.node_context.answer_schemas import json_schema_of, why_unfit
from limpet.errors import ActionFailed

if TYPE_CHECKING:
    from limpet.yaml_files.build.child_graphs import ChildGraph

MAX_SHOWN = 300
"""How many characters an error has about a message that doesn't fit."""

_TYPE_OF_WORD = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict}


def ask(ctx: Any, text: str, schema: Any = None, **options: Any) -> Any:
    """Pause the run until the question is answered; gives the answer."""
    return ctx.pause(text, schema=_schema_of(schema), **options)


def receive_message(ctx: Any, name: str, schema: Any = None, **options: Any) -> Any:
    """The value of the oldest message of this name. The call of the node ends here until there is one.

    Raises `ActionFailed` for a value that doesn't fit the schema. The message is received all the same: a retry gets
    it again, and it is gone when an error edge is taken.
    """
    value = ctx.receive(name, **options)
    if schema is not None:
        problem = why_unfit(value, json_schema_of(_schema_of(schema)), f"the message {name!r}")
        if problem:
            raise ActionFailed("receive", f"{problem:.{MAX_SHOWN}}")
    return value


def sleep(ctx: Any, time: Moment) -> None:
    """Wait for this long, or until this point in time."""
    if isinstance(time, str):
        seconds = seconds_in_text(time)
        time = datetime.fromtimestamp(moment_of(time, 0.0, "time"), UTC) if seconds is None else seconds
    if isinstance(time, datetime):
        ctx.sleep(until=time)
    else:
        ctx.sleep(time)


def start_child(
    ctx: Any,
    graph: Any,
    input: Any = None,
    join: bool = False,
    child: ChildGraph | None = None,
    **options: Any,
) -> Any:
    """Start a run of the graph of `child`, to which the reference `graph` leads, or find the one started before.

    Gives its id; with `join` its result, once it has ended.
    """
    assert child is not None, "the builder has found it"
    handle = ctx.start(child.graph, input or {}, **options)
    if join:
        return _result_of(ctx.join(handle))
    return handle.run_id


def join_children(ctx: Any, child: str | list[str]) -> Any:
    """The result of a child run, or the results of several. The call of the node ends here until all have ended."""
    if isinstance(child, str):
        return _result_of(ctx.join(child))
    return [_result_of(ctx.join(each)) for each in child]


def _result_of(final: Any) -> dict[str, Any]:
    """The state that a child ended with; of a workflow, the results of its tasks."""
    return dict(getattr(final, "results", final))


def emit_data(ctx: Any, data: Any) -> None:
    """Pass something on while the run executes."""
    ctx.emit(data)


def report_progress(ctx: Any, done: float, total: float | None = None, message: str = "") -> None:
    """Say how far the run is."""
    ctx.progress(done, total, message)


def _schema_of(schema: Any) -> Any:
    if isinstance(schema, str):
        return _TYPE_OF_WORD[schema]
    return schema
