"""The actions that talk with the run: questions, messages, waits, child runs, and what it shows while a node runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from limpet.durations import Moment, moment_of, seconds_in_text
from limpet.engine.node_context.answer_schemas import as_plain_data, json_schema_of, read_answer, why_unfit
from limpet.engine.node_context.questions import NOT_GIVEN
from limpet.errors import ActionFailed

if TYPE_CHECKING:
    from limpet.yaml_files.build.child_graphs import ChildGraph

MAX_SHOWN = 300
"""How many characters an error has about a message that doesn't fit."""

_TOO_LATE = object()
_TYPE_OF_WORD = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict}


def ask(ctx: Any, text: str, schema: Any = None, model: Any = None, **options: Any) -> Any:
    """Pause the run until the question is answered; gives the answer, as plain data.

    `model` is the class to which the reference `schema` leads.
    """
    return as_plain_data(ctx.pause(text, schema=model or _schema_of("prompt", schema), **options))


def receive_message(
    ctx: Any, name: str, schema: Any = None, model: Any = None, default: Any = NOT_GIVEN, **options: Any
) -> Any:
    """The value of the oldest message of this name. The call of the node ends here until there is one.

    `model` is the class to which the reference `schema` leads; even then, the value is plain data. Raises
    `ActionFailed` for one that doesn't fit. The message is received all the same: a retry gets it again, and it is
    gone when an error edge is taken.
    """
    wanted = model or _schema_of("receive", schema)
    if default is not NOT_GIVEN:
        value = ctx.receive(name, default=_TOO_LATE, **options)
        if value is _TOO_LATE:
            return default
    else:
        value = ctx.receive(name, **options)
    if wanted is None:
        return value
    problem = why_unfit(value, json_schema_of(wanted), f"the message {name!r}")
    if problem:
        raise ActionFailed("receive", f"{problem:.{MAX_SHOWN}}")
    try:
        return as_plain_data(read_answer(value, wanted))
    except ValueError as mismatch:
        raise ActionFailed("receive", f"the message {name!r}: {mismatch!s:.{MAX_SHOWN}}") from mismatch


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


def _schema_of(action: str, schema: Any) -> Any:
    if not isinstance(schema, str):
        return schema
    if schema not in _TYPE_OF_WORD:
        raise ActionFailed(action, f"schema can't be {schema!r}: the file names the code, not the state")
    return _TYPE_OF_WORD[schema]
