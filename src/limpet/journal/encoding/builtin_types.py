"""How built-in types are written that MessagePack doesn't know: each as a tag and a payload.

A tag is part of the stored format: it is never given to another type.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from typing import Any, NamedTuple
from uuid import UUID, SafeUUID

from limpet.errors import UsageError


class Form(NamedTuple):
    """How a built-in type is written: `to` gives the payload, as bytes if `raw`, else as a simpler value."""

    tag: int
    raw: bool
    to: Callable[[Any], Any]
    restore: Callable[[Any], Any]


def form_of(kind: type) -> Form | None:
    """The form of a type, if it is one of these."""
    form = FORMS.get(kind)
    if form is None and kind.__name__ in LATER:
        module, later = LATER[kind.__name__]
        if getattr(sys.modules.get(module), kind.__name__, None) is kind:
            form = FORMS[kind] = later
    return form


def pairs(value: dict[Any, Any]) -> list[Any]:
    """Key, value, key, value …"""
    return [part for pair in value.items() for part in pair]


def _pairs_restore(parts: list[Any]) -> dict[Any, Any]:
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _int_to(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _datetime_to(value: datetime) -> bytes:
    clock = value.hour, value.minute, value.second, value.microsecond, value.fold
    return _DATETIME.pack(value.year, value.month, value.day, *clock) + _zone_to(value.tzinfo)


def _datetime_restore(payload: bytes) -> datetime:
    year, month, day, hour, minute, second, micro, fold = _DATETIME.unpack_from(payload)
    zone = _zone_restore(payload[_DATETIME.size :])
    return datetime(year, month, day, hour, minute, second, micro, zone, fold=fold)


def _time_to(value: time) -> bytes:
    clock = value.hour, value.minute, value.second, value.microsecond, value.fold
    return _TIME.pack(*clock) + _zone_to(value.tzinfo)


def _time_restore(payload: bytes) -> time:
    hour, minute, second, micro, fold = _TIME.unpack_from(payload)
    return time(hour, minute, second, micro, _zone_restore(payload[_TIME.size :]), fold=fold)


def _zone_to(zone: tzinfo | None) -> bytes:
    from limpet.journal.encoding.codec import (
        encode,  # which knows the forms, and so can't be imported before them
    )

    return b"" if zone is None else b"Z" if zone is UTC else encode(zone, "tzinfo")


def _zone_restore(payload: bytes) -> Any:
    from limpet.journal.encoding.codec import decode

    return None if not payload else UTC if payload == b"Z" else decode(payload)


def _timedelta_to(value: timedelta) -> bytes:
    return _TIMEDELTA.pack(value.days, value.seconds, value.microseconds)


def _timezone_to(value: Any) -> list[Any]:
    return list(value.__getinitargs__())


def _zoneinfo_to(value: Any) -> bytes:
    if value.key is None:
        raise ValueError("it was read from a file and has no key to find it by")
    return _text_to(value.key)


def _zoneinfo_restore(payload: bytes) -> Any:
    from zoneinfo import ZoneInfo

    key = _text_restore(payload)
    try:
        return ZoneInfo(key)
    except (KeyError, ValueError, OSError) as error:
        raise UsageError(f"this system doesn't know the time zone {key!r}: pip install tzdata") from error


def _uuid_to(value: UUID) -> bytes:
    return value.bytes if value.is_safe is SafeUUID.unknown else value.bytes + value.is_safe.name.encode()


def _uuid_restore(payload: bytes) -> UUID:
    return UUID(bytes=payload[:16], is_safe=SafeUUID[payload[16:].decode() or "unknown"])


def _decimal_restore(payload: bytes) -> Any:
    from decimal import Decimal

    return Decimal(payload.decode())


def _fraction_restore(parts: list[int]) -> Any:
    from fractions import Fraction

    return Fraction(*parts)


def _path_form(tag: int, name: str) -> Form:
    def restore(payload: bytes) -> Any:
        import pathlib

        try:
            return getattr(pathlib, name)(_text_restore(payload))
        except NotImplementedError as error:
            raise UsageError(f"a stored {name} can't be read on this system; store Pure paths") from error

    return Form(tag, True, lambda value: _text_to(str(value)), restore)


def _text_to(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def _text_restore(payload: bytes) -> str:
    return payload.decode("utf-8", "surrogatepass")


_DATETIME, _TIME = struct.Struct(">HBBBBBIB"), struct.Struct(">BBBIB")
_DATE, _TIMEDELTA, _COMPLEX = struct.Struct(">HBB"), struct.Struct(">iII"), struct.Struct(">dd")

FORMS: dict[type, Form] = {
    tuple: Form(1, False, list, tuple),
    set: Form(2, False, list, set),
    frozenset: Form(3, False, list, frozenset),
    dict: Form(4, False, pairs, _pairs_restore),
    int: Form(5, True, _int_to, lambda payload: int.from_bytes(payload, "big", signed=True)),
    str: Form(6, True, _text_to, _text_restore),
    bytearray: Form(7, True, bytes, bytearray),
    complex: Form(
        8,
        True,
        lambda value: _COMPLEX.pack(value.real, value.imag),
        lambda payload: complex(*_COMPLEX.unpack(payload)),
    ),
    range: Form(9, False, lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts)),
    slice: Form(10, False, lambda value: [value.start, value.stop, value.step], lambda parts: slice(*parts)),
    type(...): Form(11, True, lambda _: b"", lambda _: ...),
    datetime: Form(12, True, _datetime_to, _datetime_restore),
    date: Form(
        13,
        True,
        lambda value: _DATE.pack(value.year, value.month, value.day),
        lambda payload: date(*_DATE.unpack(payload)),
    ),
    time: Form(14, True, _time_to, _time_restore),
    timedelta: Form(15, True, _timedelta_to, lambda payload: timedelta(*_TIMEDELTA.unpack(payload))),
    timezone: Form(16, False, _timezone_to, lambda parts: timezone(*parts)),
    UUID: Form(17, True, _uuid_to, _uuid_restore),
}
# Types of modules that aren't imported for this: they are recognised once the program has done so.
LATER: dict[str, tuple[str, Form]] = {
    "ZoneInfo": ("zoneinfo", Form(18, True, _zoneinfo_to, _zoneinfo_restore)),
    "Decimal": ("decimal", Form(19, True, lambda value: str(value).encode(), _decimal_restore)),
    "Fraction": (
        "fractions",
        Form(20, False, lambda value: [value.numerator, value.denominator], _fraction_restore),
    ),
    "PurePosixPath": ("pathlib", _path_form(21, "PurePosixPath")),
    "PureWindowsPath": ("pathlib", _path_form(22, "PureWindowsPath")),
    "PosixPath": ("pathlib", _path_form(23, "PosixPath")),
    "WindowsPath": ("pathlib", _path_form(24, "WindowsPath")),
}
