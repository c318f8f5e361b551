"""Values to bytes and back, exactly: a value comes back equal and of the same type, or encoding refuses it.

The bytes are MessagePack. What MessagePack knows by itself (None, bool, 64-bit int, float, str, bytes,
list, dict with str keys) is written by ormsgpack in one call. Everything else is an *extension*, a tag
and a payload: see `builtin_types.py` for the built-in types and `user_types.py` for registered classes.

- Stored exactly: the above, int of any size, str with lone surrogates, bytearray, tuple, set, frozenset,
  dict with any storable keys (the order is kept; 1, True and 1.0 stay different), datetime, date, time, timedelta
  and their zones (timezone, ZoneInfo; `fold` is kept), UUID, Decimal, Fraction, complex, range, slice, paths,
  Ellipsis, and registered classes. A subclass of any of these has to be registered itself.
- Not kept: sharing. A list that two keys hold comes back as two lists.
- Refused with `UnstorableValue` and the path to the value: everything else, values that contain themselves, and
  values nested much deeper than 200 levels. (A registered class can take two levels.)
- A path reads `messages[3].sender`, `data["odd key"]`, `tags{element}` (in a set) or `data{key}`.

Decoding makes the types listed here and the registered ones, which it finds by name. It imports and calls nothing
else that the data names. It doesn't detect damage or bytes after the value: the envelope's checksum does.

Two ways lead to the same bytes. `_pack` is the fast one. It fails, without saying where, for values that
ormsgpack can't pass to us: keys that aren't str, lone surrogates, bytearrays. `_CarefulEncoder` then takes
the value apart in Python, keeps track of the path, and either joins the bytes or reports what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from datetime import datetime
from enum import Enum
from gc import get_referents
from threading import local
from types import CoroutineType
from typing import Any, NamedTuple

import ormsgpack
from ormsgpack import Ext, packb, unpackb

from limpet.errors import LimpetError, UnstorableValue, UnsupportedFormat, UsageError
from limpet.journal.encoding.builtin_types import FORMATS, LAZY_FORMATS, TypeFormat, flat_items, format_of
from limpet.journal.encoding.unknown_values import UnknownValue, stored_bytes
from limpet.journal.encoding.user_types import TYPES, builtin_base, conversion_of, described_value

_OPTIONS = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
_Extend = Callable[[Any], Ext]
_MAX_DEPTH = 200
# How deep extensions may nest on the fast path. Decoding recurses in C for each, so this bounds its C stack.
_FAST_LEVELS = 4
# ormsgpack replaces the exceptions of its callbacks by its own. `error` keeps the original for the caller.
_callback = local()

IMMUTABLE_TYPES = frozenset({type(None), bool, int, float, complex, str, bytes, datetime})
"""Types whose values can't change in place, so they need neither be copied nor compared."""


def encode(value: Any, path: str = "") -> bytes:
    """The bytes of a value. Encoding an unchanged value again in this process gives the same bytes.

    Raises `UnstorableValue` if the value, or anything in it, can't be stored exactly. `path` is where the value
    is, for the message.
    """
    try:
        data = packb(value, _extend, _OPTIONS)
    except TypeError:
        _raise_interrupt()
    else:
        # `_may_hold_buffer`, inlined: this runs for every record, and the call costs as much as the test.
        if not (0xC4 in data or 0xC5 in data or len(data) > 0xFFFF) or not _holds_buffer(value):
            return data
    return _CarefulEncoder(path).encode(value)


def decode(data: bytes) -> Any:
    """The value that was encoded. Raises ValueError if the bytes don't encode a value.

    Raises `UsageError` for a class that isn't registered or whose `restore` fails, and `UnsupportedFormat` for a
    kind of value that this version doesn't know.
    """
    try:
        return unpackb(data, ext_hook=_restore)
    except ValueError as failure:
        problem = _why_undecodable(failure)
    raise problem


def decode_for_viewing(data: bytes) -> Any:
    """The same for a value that is only looked at: where a class isn't registered, it has an `UnknownValue`."""
    try:
        return unpackb(data, ext_hook=_restore_for_viewing)
    except ValueError as failure:
        problem = _why_undecodable(failure)
    raise problem


def decode_as_stored(data: bytes, names: set[str] | None = None) -> Any:
    """The same without a registered class: each of their values is an `UnknownValue`. No code of a user is called.

    The names of these classes are added to `names`.
    """

    def is_known(name: str) -> bool:
        if names is not None:
            names.add(name)
        return False

    try:
        return unpackb(data, ext_hook=_restorer(is_known))
    except ValueError as failure:
        problem = _why_undecodable(failure)
    raise problem


def is_known_class(name: str) -> bool:
    """Whether values of the class that is stored under this name can be decoded in this process."""
    return TYPES.is_known(name)


def _why_undecodable(failure: ValueError) -> BaseException:
    error = _take_callback_error() or failure
    if isinstance(error, LimpetError | RecursionError | MemoryError) or not isinstance(error, Exception):
        return error
    problem = ValueError(f"not an encoded value: {error}")
    problem.__cause__ = error
    return problem


def detached_value(value: Any) -> Any:
    """A copy that shares nothing changeable with `value`. A value that can't be copied is returned itself."""
    if type(value) in IMMUTABLE_TYPES:
        return value
    try:
        # Several times faster than deepcopy for plain data. What is looked at may hold values of unknown classes.
        return decode_for_viewing(encode(value))
    except UnstorableValue:
        from copy import deepcopy

        try:
            return deepcopy(value)
        except Exception:
            return value


def _pack(value: Any, extend: _Extend | None) -> bytes:
    data = packb(value, extend, _OPTIONS)
    if _may_hold_buffer(data) and _holds_buffer(value):
        raise TypeError("packb takes bytearray and memoryview for bytes")
    return data


def _may_hold_buffer(data: bytes) -> bool:
    """Whether a bytes-like value may be encoded in `data`: such a value begins with one of three marks."""
    return 0xC4 in data or 0xC5 in data or (len(data) > 0xFFFF and 0xC6 in data)


def _holds_buffer(value: Any) -> bool:
    """Whether these lists and dicts hold a bytearray or memoryview, which ormsgpack would write as bytes.

    Extensions check their own payloads. `get_referents` follows a whole level of nesting in one C call.
    """
    level = [value]
    while True:
        kinds = set(map(type, level))
        if bytearray in kinds or memoryview in kinds:
            return True
        if list not in kinds and dict not in kinds:
            return False
        if not kinds <= _NATIVE:
            level = [item for item in level if type(item) in _CONTAINERS]
        level = get_referents(*level)


def _extender(levels: int) -> _Extend:
    """The callback for values that packb doesn't know: makes extensions, nested at most `levels` deep."""
    # One closure for each level instead of a counter: packb calls back with the value alone. Below the last level
    # there is no callback, so packb fails there and the careful encoder, which counts levels, decides.
    deeper = _extender(levels - 1) if levels > 1 else None

    def extend(value: Any) -> Ext:
        try:
            form = format_of(type(value))
            if form is not None:
                content = form.to(value)
                return Ext(form.tag, content if form.raw else _pack(content, deeper))
            stored = TYPES.of_class(type(value))
            if stored is None:
                raise TypeError("not a type that can be stored")
            return Ext(_REGISTERED, _pack([stored.name, stored.to(value)], deeper))
        except BaseException as error:
            # The reason of an ordinary refusal isn't kept: the careful encoder finds it again, with its path. But an
            # interrupt happens once, so it would be lost with the exception that packb replaces.
            if not isinstance(error, Exception):
                _callback.error = error
            raise

    return extend


def _raise_interrupt() -> None:
    """Raise the KeyboardInterrupt, or the like, that packb replaced by a TypeError."""
    error = _take_callback_error()
    if error is not None:
        raise error


def _take_callback_error() -> BaseException | None:
    error: BaseException | None = _callback.__dict__.pop("error", None)
    return error


def _restorer(is_known: Callable[[str], bool] | None) -> Callable[[int, bytes], Any]:
    """The callback for extensions. Of a class that isn't known it makes `UnknownValue`s, if it is given what is."""

    def restore(tag: int, payload: bytes) -> Any:
        try:
            form = _BY_TAG.get(tag)
            if form is None:
                raise UnsupportedFormat(f"a value of kind {tag}: a newer Limpet wrote it; upgrade to read it")
            content: Any = payload if form.raw else unpackb(payload, ext_hook=restore)
            if is_known is not None and tag == _REGISTERED and not is_known(content[0]):
                return UnknownValue(content[0], payload)
            return form.restore(content)
        except BaseException as error:
            # The first error is the cause. Callbacks further out only see what unpackb made of it.
            _callback.__dict__.setdefault("error", error)
            raise

    return restore


class _CarefulEncoder:
    """Encodes what the fast path can't.

    It tries the fast path again for each part, so that only the values on the way to the odd one are taken apart.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.trail: list[Any] = []
        """The steps from the top to the value being encoded. A failure leaves it as it is, for the message."""
        self.open: set[int] = set()
        """The ids of the values on the trail. One that is met again contains itself."""

    def encode(self, value: Any) -> bytes:
        try:
            return self.pack(value, fast_path_failed=True)
        except RecursionError:
            reason = "it is nested too deeply for what is left of Python's stack"
        raise self.refusal(reason)

    def pack(self, value: Any, fast_path_failed: bool = False) -> bytes:
        if not fast_path_failed:
            try:
                return _pack(value, _extend)
            except TypeError:
                _raise_interrupt()
        if id(value) in self.open:
            raise self.refusal("it contains itself")
        if len(self.open) >= _MAX_DEPTH:
            raise self.refusal(f"it is nested more than {_MAX_DEPTH} levels deep")
        parts = self.take_apart(value)
        self.open.add(id(value))
        packed = []
        for step, item in zip(parts.steps, parts.items, strict=True):
            self.trail.append(step)
            packed.append(self.pack(item))
            self.trail.pop()
        self.open.remove(id(value))
        return parts.wrap(b"".join(packed))

    def take_apart(self, value: Any) -> _Parts:
        kind = type(value)
        if kind is list:
            return _Parts(range(len(value)), value, lambda body: _head(_ARRAY, len(value)) + body)
        if kind is dict:
            return self.take_dict_apart(value)
        form = format_of(kind)
        if form is not None:
            content = self.call(form.to, value)
            if form.raw:
                return _Parts((), (), lambda _: packb(Ext(form.tag, content)))
            inner = self.take_content_apart(content)
            if kind is set or kind is frozenset:
                inner = inner._replace(steps=[_Step.ELEMENT] * len(content))
            return inner._replace(wrap=lambda body: packb(Ext(form.tag, inner.wrap(body))))
        stored = TYPES.of_class(kind)
        if stored is None:
            raise self.refusal(_why_unstorable(value))
        inner = self.take_content_apart(self.call(stored.to, value))
        head = _head(_ARRAY, 2) + packb(stored.name)
        return inner._replace(wrap=lambda body: packb(Ext(_REGISTERED, head + inner.wrap(body))))

    def take_dict_apart(self, value: dict[Any, Any]) -> _Parts:
        steps = (step for key in value for step in (_Step.KEY, key))
        items = flat_items(value)
        if all(map(_is_plain_key, value)):
            return _Parts(steps, items, lambda body: _head(_MAP, len(value)) + body)
        # MessagePack maps have str keys only here, so this dict is a list of keys and values in turn.
        tag = FORMATS[dict].tag
        try:
            payload = _pack(items, _extend)
        except TypeError:
            _raise_interrupt()
            return _Parts(steps, items, lambda body: packb(Ext(tag, _head(_ARRAY, len(items)) + body)))
        return _Parts((), (), lambda _: packb(Ext(tag, payload)))

    def take_content_apart(self, content: Any) -> _Parts:
        if type(content) in _CONTAINERS:
            return self.take_apart(content)
        return _Parts([None], [content], lambda body: body)

    def call(self, to: Callable[[Any], Any], value: Any) -> Any:
        try:
            return to(value)
        except UnstorableValue as error:
            self.trail.append(error.path)
            raise self.refusal(error.reason) from None
        except Exception as error:
            problem = str(error)
            # Our own conversions give their reason in a plain ValueError. Of any other, the type says something too.
            if type(error) is not ValueError:
                problem = f"{type(error).__name__}: {problem}"
            raise self.refusal(f"{described_value(value)}: {problem}") from error

    def refusal(self, reason: str) -> UnstorableValue:
        return UnstorableValue(_rendered_path(self.path, self.trail), reason)


class _Parts(NamedTuple):
    """What a value consists of: items, the step of the path that leads to each, and what surrounds their bytes."""

    steps: Iterable[Any]
    items: Iterable[Any]
    wrap: Callable[[bytes], bytes]


def _head(codes: tuple[int, int, int], count: int) -> bytes:
    tiny, medium, large = codes
    if count < 16:
        return bytes((tiny | count,))
    if count < 2**16:
        return struct.pack(">BH", medium, count)
    return struct.pack(">BI", large, count)


def _is_plain_key(key: Any) -> bool:
    try:
        return type(key) is str and (key.isascii() or bool(key.encode()))
    except UnicodeEncodeError:
        return False


def _rendered_path(path: str, trail: list[Any]) -> str:
    for step in trail:
        if type(step) is _Step:
            path += step.value
        elif type(step) is str and step.isidentifier():
            path += f".{step}" if path else step
        elif type(step) is str:
            path += _quoted_key(step)
        elif step is not None:
            path += f"[{_short(step)}]"
    if len(path) <= 200:
        return path
    return f"{path[:120]}…{path[-60:]}"


def _quoted_key(key: str) -> str:
    quoted = repr(key)
    if quoted[0] == '"':
        return f"[{quoted}]"
    escaped = quoted[1:-1].replace('"', r"\"")
    return f'["{escaped}"]'


def _short(key: Any) -> str:
    try:
        text = repr(key)
    except Exception:  # an int of thousands of digits, a user's __repr__
        return type(key).__name__
    return text if len(text) <= 60 else text[:58] + "…"


def _why_unstorable(value: Any) -> str:
    kind = type(value)
    described = described_value(value)
    if kind is CoroutineType:
        return f"{described}: the result of an async function, which has to be awaited first"
    if kind is memoryview:
        return f"{described} only borrows its bytes; store bytes(value)"
    if conversion_of(kind) is not None:
        registering = f"put @register_type on it, or call register_type({kind.__name__})"
        return f"{described}, whose class isn't registered; {registering}"
    base = builtin_base(kind)
    if base in FORMATS or base in _ATOMS or base is list:
        return (
            f"{described}, which would come back as a plain {base.__name__}; "
            "register the class with register_type(cls, to=..., restore=...)"
        )
    return (
        f"{described}; only data can be stored. Register the type with register_type(), "
        "or keep it out of the state"
    )


def _restore_registered(content: list[Any]) -> Any:
    name, stored = content
    restore = TYPES.named(name).restore
    try:
        return restore(stored)
    except (LimpetError, RecursionError, MemoryError):
        raise
    except Exception as error:
        raise UsageError(
            f"a stored {name!r} can't be restored: {type(error).__name__}: {error}. "
            "If the class has changed, give register_type() a restore= that reads the older shape"
        ) from error


class _Step(Enum):
    KEY = "{key}"
    ELEMENT = "{element}"


_CONTAINERS = frozenset((list, dict))
_ATOMS = frozenset((type(None), bool, float, bytes))
_NATIVE = _CONTAINERS | _ATOMS | {int, str}
_ARRAY = (0x90, 0xDC, 0xDD)
_MAP = (0x80, 0xDE, 0xDF)
_REGISTERED = 0

_BY_TAG: dict[int, TypeFormat] = {
    _REGISTERED: TypeFormat(_REGISTERED, False, list, _restore_registered),
    **{form.tag: form for form in FORMATS.values()},
    **{form.tag: form for _, form in LAZY_FORMATS.values()},
}
FORMATS[UnknownValue] = TypeFormat(_REGISTERED, True, stored_bytes, bytes)
_extend = _extender(_FAST_LEVELS)
_restore = _restorer(None)
_restore_for_viewing = _restorer(is_known_class)
