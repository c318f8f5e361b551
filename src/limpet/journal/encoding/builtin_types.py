"""How built-in types that MessagePack doesn't know are written: each as a tag and a payload.

A tag is part of the stored format and is never reused for another type.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from typing import Any, NamedTuple
from uuid import UUID, SafeUUID

from limpet.errors import UsageError


class TypeFormat(NamedTuple):
    """How a built-in type is written: `to` gives the payload, as bytes if `raw`, else as a simpler value."""

    tag: int
    raw: bool
    to: Callable[[Any], Any]
    restore: Callable[[Any], Any]


def format_of(kind: type) -> TypeFormat | None:
    """How a type is written, if it is one of these."""
    form = FORMATS.get(kind)
    if form is None and kind.__name__ in LAZY_FORMATS:
        module, lazy_form = LAZY_FORMATS[kind.__name__]
        if getattr(sys.modules.get(module), kind.__name__, None) is kind:
            form = FORMATS[kind] = lazy_form
    return form


def flat_items(value: dict[Any, Any]) -> list[Any]:
    """Key, value, key, value …"""
    return [part for pair in value.items() for part in pair]


def _restore_dict(parts: list[Any]) -> dict[Any, Any]:
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _int_to(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _datetime_to(value: datetime) -> bytes:
    clock = (value.hour, value.minute, value.second, value.microsecond, value.fold)
    return _DATETIME.pack(value.year, value.month, value.day, *clock) + _zone_to(value.tzinfo)


def _datetime_restore(payload: bytes) -> datetime:
    year, month, day, hour, minute, second, micro, fold = _DATETIME.unpack_from(payload)
    zone = _zone_restore(payload[_DATETIME.size :])
    return datetime(year, month, day, hour, minute, second, micro, zone, fold=fold)


def _time_to(value: time) -> bytes:
    clock = (value.hour, value.minute, value.second, value.microsecond, value.fold)
    return _TIME.pack(*clock) + _zone_to(value.tzinfo)


def _time_restore(payload: bytes) -> time:
    hour, minute, second, micro, fold = _TIME.unpack_from(payload)
    return time(hour, minute, second, micro, _zone_restore(payload[_TIME.size :]), fold=fold)


def _zone_to(zone: tzinfo | None) -> bytes:
    # Imported here because the codec imports this module.
    from limpet.journal.encoding.codec import encode

    if zone is None:
        return b""
    if zone is UTC:
        return b"Z"
    return encode(zone, "tzinfo")


def _zone_restore(payload: bytes) -> Any:
    from limpet.journal.encoding.codec import decode

    if not payload:
        return None
    if payload == b"Z":
        return UTC
    return decode(payload)


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
    if value.is_safe is SafeUUID.unknown:
        return value.bytes
    return value.bytes + value.is_safe.name.encode()


def _uuid_restore(payload: bytes) -> UUID:
    return UUID(bytes=payload[:16], is_safe=SafeUUID[payload[16:].decode() or "unknown"])


def _decimal_restore(payload: bytes) -> Any:
    from decimal import Decimal

    return Decimal(payload.decode())


def _fraction_restore(parts: list[int]) -> Any:
    from fractions import Fraction

    return Fraction(*parts)


def _path_format(tag: int, name: str) -> TypeFormat:
    def restore(payload: bytes) -> Any:
        import pathlib

        try:
            return getattr(pathlib, name)(_text_restore(payload))
        except NotImplementedError as error:
            raise UsageError(f"a stored {name} can't be read on this system; store Pure paths") from error

    return TypeFormat(tag, True, lambda value: _text_to(str(value)), restore)


def _text_to(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def _text_restore(payload: bytes) -> str:
    return payload.decode("utf-8", "surrogatepass")


_DATETIME = struct.Struct(">HBBBBBIB")
_TIME = struct.Struct(">BBBIB")
_DATE = struct.Struct(">HBB")
_TIMEDELTA = struct.Struct(">iII")
_COMPLEX = struct.Struct(">dd")

FORMATS: dict[type, TypeFormat] = {
    tuple: TypeFormat(1, False, list, tuple),
    set: TypeFormat(2, False, list, set),
    frozenset: TypeFormat(3, False, list, frozenset),
    dict: TypeFormat(4, False, flat_items, _restore_dict),
    int: TypeFormat(5, True, _int_to, lambda payload: int.from_bytes(payload, "big", signed=True)),
    str: TypeFormat(6, True, _text_to, _text_restore),
    bytearray: TypeFormat(7, True, bytes, bytearray),
    complex: TypeFormat(
        8,
        True,
        lambda value: _COMPLEX.pack(value.real, value.imag),
        lambda payload: complex(*_COMPLEX.unpack(payload)),
    ),
    range: TypeFormat(
        9, False, lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts)
    ),
    slice: TypeFormat(
        10, False, lambda value: [value.start, value.stop, value.step], lambda parts: slice(*parts)
    ),
    type(...): TypeFormat(11, True, lambda _: b"", lambda _: ...),
    datetime: TypeFormat(12, True, _datetime_to, _datetime_restore),
    date: TypeFormat(
        13,
        True,
        lambda value: _DATE.pack(value.year, value.month, value.day),
        lambda payload: date(*_DATE.unpack(payload)),
    ),
    time: TypeFormat(14, True, _time_to, _time_restore),
    timedelta: TypeFormat(15, True, _timedelta_to, lambda payload: timedelta(*_TIMEDELTA.unpack(payload))),
    timezone: TypeFormat(16, False, _timezone_to, lambda parts: timezone(*parts)),
    UUID: TypeFormat(17, True, _uuid_to, _uuid_restore),
}
# Types by name, with their modules. Importing these modules would slow down `import limpet`; a value of such a type
# exists only once the program has imported its module.
LAZY_FORMATS: dict[str, tuple[str, TypeFormat]] = {
    "ZoneInfo": ("zoneinfo", TypeFormat(18, True, _zoneinfo_to, _zoneinfo_restore)),
    "Decimal": ("decimal", TypeFormat(19, True, lambda value: str(value).encode(), _decimal_restore)),
    "Fraction": (
        "fractions",
        TypeFormat(20, False, lambda value: [value.numerator, value.denominator], _fraction_restore),
    ),
    "PurePosixPath": ("pathlib", _path_format(21, "PurePosixPath")),
    "PureWindowsPath": ("pathlib", _path_format(22, "PureWindowsPath")),
    "PosixPath": ("pathlib", _path_format(23, "PosixPath")),
    "WindowsPath": ("pathlib", _path_format(24, "WindowsPath")),
}
