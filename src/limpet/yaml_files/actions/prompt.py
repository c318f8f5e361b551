"""The action `prompt`: a question to a person or a program."""

from __future__ import annotations

from typing import Any

_TYPE_OF_WORD = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict}


def ask(
    ctx: Any, text: str, choices: list[Any] | None = None, schema: Any = None, key: str | None = None
) -> Any:
    """Pause the run until the question is answered; gives the answer."""
    answer_schema = schema
    if isinstance(schema, str):
        answer_schema = _TYPE_OF_WORD[schema]
    return ctx.pause(text, choices=choices, schema=answer_schema, key=key)
