"""The action `prompt`: a question to a person or a program."""

from __future__ import annotations

from typing import Any

_TYPES = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict}


def ask(
    ctx: Any, text: str, choices: list[Any] | None = None, schema: Any = None, key: str | None = None
) -> Any:
    """Pause until somebody answers; gives the answer."""
    wanted = _TYPES[schema] if isinstance(schema, str) else schema
    return ctx.pause(text, choices=choices, schema=wanted, key=key)
