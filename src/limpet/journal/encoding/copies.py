"""Copies that share nothing: what the codec reads back is nobody else's."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from limpet.errors import UnstorableValue
from limpet.journal.encoding.codec import decode, encode

ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, datetime})
"""The types of which a value can't be changed in place: it need neither be watched nor copied."""


def detached_value(value: Any) -> Any:
    """A copy that shares nothing changeable with `value`, as far as it can be copied."""
    if type(value) in ATOMS:
        return value
    try:
        return decode(encode(value))
    except UnstorableValue:
        from copy import deepcopy

        try:
            return deepcopy(value)
        except Exception:
            return value
