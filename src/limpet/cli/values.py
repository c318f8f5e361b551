"""Values as JSON has them, and back from what somebody typed."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any

from limpet.errors import UsageError


def plain(value: Any) -> Any:
    """A value as JSON can say it. What it has no word for is told as text; bytes as base64."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else repr(value)
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(plain(key)): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(each) for each in value), key=repr)
    if isinstance(value, (bytes, bytearray)):
        return b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def moment(seconds: float | None) -> str:
    """A time of the store's, as people read it, in UTC."""
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def read_value(text: str) -> Any:
    """What was typed: JSON where it is any, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_pairs(pairs: Iterable[str], what: str) -> dict[str, Any]:
    """`key=value` pairs as a dict; each value is JSON where it is any. Raises `UsageError`."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise UsageError(f"{what} is key=value, not {pair!r}")
        found[key] = read_value(value)
    return found


def read_input(parts: Iterable[str]) -> dict[str, Any]:
    """An input: JSON objects, `@files` that hold one, and `key=value` pairs; later ones win. Raises `UsageError`."""
    found: dict[str, Any] = {}
    for part in parts:
        if part.startswith("@"):
            found |= _object(_text_of(Path(part[1:])), part)
        elif part.lstrip().startswith("{"):
            found |= _object(part, "--input")
        else:
            found |= read_pairs([part], "--input")
    return found


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"can't read {path}: {problem}") from problem


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as problem:
        raise UsageError(f"{where} isn't JSON: {problem}") from problem
    if not isinstance(found, dict):
        raise UsageError(f"{where} is a JSON object, {{…}}, not {type(found).__name__}")
    return found
