"""Values of states as the API sends them: as JSON, without secrets, and large ones only when they are asked for."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

from limpet.graphs.secrets import MASK, masked
from limpet.journal.encoding.json_values import to_json_value

LARGE: Final = 20_000
"""Bytes of JSON above which a value is left out, and only its size is sent."""


def shown_values(values: Mapping[str, Any], secrets: Collection[str]) -> dict[str, Any]:
    """The values of keys as JSON can express them. Those of secret keys are masked, at any depth."""
    shown = to_json_value(masked(dict(values), secrets, mask=MASK))
    assert isinstance(shown, dict)
    return shown


def without_large(values: Mapping[str, Any], limit: int = LARGE) -> tuple[dict[str, Any], dict[str, int]]:
    """The values that aren't large, and the sizes of those that are, in bytes of JSON."""
    small: dict[str, Any] = {}
    large: dict[str, int] = {}
    for key, value in values.items():
        size = size_of(value)
        if size > limit:
            large[key] = size
        else:
            small[key] = value
    return small, large


def size_of(value: Any) -> int:
    """The size of a value as JSON, in bytes."""
    if isinstance(value, str):
        return len(value)  # near enough, and quick for the largest values there are
    return len(to_bytes(value))


def to_bytes(data: Any) -> bytes:
    """Data as JSON."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), default=str).encode("utf-8", "replace")
