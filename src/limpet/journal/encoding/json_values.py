"""Values as JSON can express them, for tables, files and programs that know nothing of Limpet."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Mapping
from math import isfinite
from typing import Any

from limpet.journal.encoding.unknown_values import UnknownValue


def to_json_value(value: Any) -> Any:
    """A value as JSON can express it: bytes become base64, and types that JSON doesn't know become text.

    So do numbers that are too long for Python to write in decimal: they become hexadecimal text.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return hex(value) if _is_too_long(value) else value
    if isinstance(value, float):
        return value if isfinite(value) else repr(value)
    if isinstance(value, Mapping):
        return {_json_key(key): to_json_value(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_value(each) for each in value]
    if isinstance(value, (set, frozenset)):
        return sorted((to_json_value(each) for each in value), key=repr)
    if isinstance(value, UnknownValue):
        return {"class": value.class_name, "content": to_json_value(value.content)}
    if isinstance(value, (bytes, bytearray)):
        return b64encode(value).decode()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    try:
        return str(value)
    except Exception:  # of a user's class
        return f"<{type(value).__name__}>"


def _is_too_long(value: int) -> bool:
    """Whether Python refuses to write this number in decimal, which takes long for thousands of digits."""
    most_digits = sys.get_int_max_str_digits()
    return most_digits > 0 and value.bit_length() > 3 * most_digits


def _json_key(key: Any) -> str:
    return key if isinstance(key, str) else str(to_json_value(key))
