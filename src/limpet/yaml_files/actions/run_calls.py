"""The actions that talk with the run: questions, messages to it, and what it shows while a node runs."""

from __future__ import annotations

from typing import Any

from limpet.engine.node_context.answer_schemas import json_schema_of, why_unfit
from limpet.errors import ActionFailed

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
