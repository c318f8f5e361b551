"""Values read from what was typed, and times to be read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from limpet.errors import UsageError


def utc_time(seconds: float | None) -> str:
    """A time of the store's clock for people to read, in UTC."""
    if seconds is None:
        return ""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "after the year 9999"  # an imported run may say so


def read_value(text: str) -> Any:
    """What was typed: parsed as JSON if possible, otherwise taken as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_pairs(pairs: Iterable[str], option: str) -> dict[str, Any]:
    """`key=value` pairs as a dict; values are parsed as JSON if possible. Raises `UsageError`."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise UsageError(f"{option} takes key=value, not {pair!r}")
        found[key] = read_value(value)
    return found


def is_input(part: str) -> bool:
    """Whether this can be a part of an input."""
    return part.startswith("@") or part.lstrip().startswith("{") or "=" in part


def read_input(parts: Iterable[str]) -> dict[str, Any]:
    """An input: JSON objects, `@files` that hold one, and `key=value` pairs; later ones win. Raises `UsageError`."""
    found: dict[str, Any] = {}
    for part in parts:
        if part.startswith("@"):
            found |= _json_object(_file_text(Path(part[1:])), part)
        elif part.lstrip().startswith("{"):
            found |= _json_object(part, "--input")
        else:
            found |= read_pairs([part], "--input")
    return found


def _file_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"can't read {path}: {problem}") from problem


def _json_object(text: str, source: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as problem:
        raise UsageError(f"{source} isn't valid JSON: {problem}") from problem
    if not isinstance(found, dict):
        raise UsageError(f"{source} must be a JSON object, {{…}}, not {type(found).__name__}")
    return found
