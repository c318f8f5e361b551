"""Values to bytes and back, exactly: what comes back is equal and of the same type, or it was refused.

The bytes are MessagePack. What MessagePack knows by itself (None, bool, 64-bit int, float, str, bytes,
list, dict with str keys) is written by ormsgpack in one call; everything else is an *extension*, a tag
and a payload: see `forms.py` for the built-in types and `types.py` for registered classes.

- Stored exactly: the above, int of any size, str with lone surrogates, bytearray, tuple, set, frozenset,
  dict with any storable keys (order kept, 1 and True and 1.0 told apart), datetime, date, time, timedelta
  and their zones (timezone, ZoneInfo; `fold` kept), UUID, Decimal, Fraction, complex, range, slice, paths,
  Ellipsis, and registered classes. Subclasses of any of these are classes of their own.
- Not kept: sharing. A list that is reachable by two ways comes back as two lists.
- Refused with `UnstorableValue` and the path to it: everything else, values that contain themselves, and
  nesting: 200 levels are stored, what goes much deeper isn't. (A registered class can take two of them.)
- A path reads `messages[3].sender`, `data["odd key"]`, `tags{element}` (of a set) or `data{key}`.

Decoding makes the types listed here and those registered, by their names; it imports and calls nothing
else that the data names. It doesn't guard against damage, and doesn't notice bytes that follow the value:
that is what the envelope's checksum is for.

Two ways lead to the same bytes. `_pack` is the fast one. It fails, without saying where, for what
ormsgpack can't hand over to us: keys that aren't str, lone surrogates, bytearrays. `_Careful` then takes
the value apart in Python, knows where it is, and puts the bytes together or says what is wrong.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from enum import Enum
from gc import get_referents
from threading import local
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple

import ormsgpack
from ormsgpack import Ext, packb, unpackb

from limpet.errors import LimpetError, UnstorableValue, UnsupportedFormat, UsageError
from limpet.journal.encoding.builtin_types import FORMS, LATER, Form, form_of, pairs
from limpet.journal.encoding.user_types import TYPES, builtin_base, conversion_of

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
_FAST_LEVELS = 4  # payloads within payloads on the fast path; bounds the C stack that decoding needs
_swallowed = local()  # ormsgpack drops the exceptions of its callbacks; `error` keeps the first


def encode(value: Any, path: str = "") -> bytes:
    """The bytes of a value, the same whenever an unchanged value is encoded again in this process.

    `path` says where the value stands, for the message of the `UnstorableValue` that is raised if it,
    or anything in it, can't be stored exactly.
    """
    try:
        data = packb(value, _extend, _OPTIONS)
    except TypeError:
        _raise_interrupt()
    else:
        # The same question as in `_may_hide`, without the call: this is asked for every record.
        if not (0xC4 in data or 0xC5 in data or len(data) > 0xFFFF) or not _hides_buffer(value):
            return data
    return _Careful(path).encode(value)


def decode(data: bytes) -> Any:
    """The value that was encoded. Raises ValueError if these bytes are none.

    A class that isn't registered, or a `restore` that fails, is a `UsageError`; a kind of value that
    this version doesn't know is `UnsupportedFormat`.
    """
    try:
        return unpackb(data, ext_hook=_restore)
    except ValueError as failure:
        error = _take_swallowed() or failure
    if isinstance(error, LimpetError | RecursionError | MemoryError) or not isinstance(error, Exception):
        raise error
    raise ValueError(f"not an encoded value: {error}") from error


def _pack(value: Any, extend: _Extend | None) -> bytes:
    data = packb(value, extend, _OPTIONS)
    if _may_hide(data) and _hides_buffer(value):
        raise TypeError("packb takes bytearray and memoryview for bytes")
    return data


def _may_hide(data: bytes) -> bool:
    """Whether the bytes of a bytes-like value may be among these: such begin with one of three marks."""
    return 0xC4 in data or 0xC5 in data or (len(data) > 0xFFFF and 0xC6 in data)


def _hides_buffer(value: Any) -> bool:
    """Whether a bytearray or memoryview is in these lists and dicts. Other types look after themselves."""
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
    """What packb calls for a value it doesn't know: makes it an extension of at most so many levels."""
    deeper = _extender(levels - 1) if levels > 1 else None

    def extend(value: Any) -> Ext:
        try:
            form = form_of(type(value))
            if form is not None:
                content = form.to(value)
                return Ext(form.tag, content if form.raw else _pack(content, deeper))
            stored = TYPES.of_class(type(value))
            if stored is None:
                raise TypeError("not a type that can be stored")
            return Ext(_REGISTERED, _pack([stored.name, stored.to(value)], deeper))
        except BaseException as error:
            if not isinstance(error, Exception):
                _swallowed.error = error
            raise

    return extend


def _raise_interrupt() -> None:
    error = _take_swallowed()
    if error is not None:
        raise error


def _take_swallowed() -> BaseException | None:
    error: BaseException | None = _swallowed.__dict__.pop("error", None)
    return error


def _restore(tag: int, payload: bytes) -> Any:
    try:
        form = _BY_TAG.get(tag)
        if form is None:
            raise UnsupportedFormat(f"a value of kind {tag}: a newer Limpet wrote it; upgrade to read it")
        return form.restore(payload if form.raw else unpackb(payload, ext_hook=_restore))
    except BaseException as error:
        _swallowed.__dict__.setdefault("error", error)
        raise


class _Careful:
    """Encodes what the fast path can't. `trail` leads from the top to the value at hand, also on failure."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.trail: list[Any] = []
        self.open: set[int] = set()

    def encode(self, value: Any) -> bytes:
        try:
            return self.pack(value, tried=True)
        except RecursionError:
            reason = "it is nested too deeply for what is left of Python's stack"
        raise self.refusal(reason)

    def pack(self, value: Any, tried: bool = False) -> bytes:
        if not tried:
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
        form = form_of(kind)
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
            raise self.refusal(_why_not(value))
        inner = self.take_content_apart(self.call(stored.to, value))
        head = _head(_ARRAY, 2) + packb(stored.name)
        return inner._replace(wrap=lambda body: packb(Ext(_REGISTERED, head + inner.wrap(body))))

    def take_dict_apart(self, value: dict[Any, Any]) -> _Parts:
        steps, items = (step for key in value for step in (_Step.KEY, key)), pairs(value)
        if all(map(_is_plain_key, value)):
            return _Parts(steps, items, lambda body: _head(_MAP, len(value)) + body)
        tag = FORMS[dict].tag
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
            what = error if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise self.refusal(f"{_name(value)}: {what}") from error

    def refusal(self, reason: str) -> UnstorableValue:
        return UnstorableValue(_render(self.path, self.trail), reason)


class _Parts(NamedTuple):
    """What a value consists of: items, the step that leads to each, and what surrounds their bytes."""

    steps: Iterable[Any]
    items: Iterable[Any]
    wrap: Callable[[bytes], bytes]


def _head(codes: tuple[int, int, int], count: int) -> bytes:
    tiny, medium, large = codes
    if count < 16:
        return bytes((tiny | count,))
    return struct.pack(">BH", medium, count) if count < 2**16 else struct.pack(">BI", large, count)


def _is_plain_key(key: Any) -> bool:
    try:
        return type(key) is str and (key.isascii() or bool(key.encode()))
    except UnicodeEncodeError:
        return False


def _render(path: str, trail: list[Any]) -> str:
    for step in trail:
        if type(step) is _Step:
            path += step.value
        elif type(step) is str and step.isidentifier():
            path += f".{step}" if path else step
        elif type(step) is str:
            quoted = repr(step)
            path += f"[{quoted}]" if quoted[0] == '"' else '["' + quoted[1:-1].replace('"', r"\"") + '"]'
        elif step is not None:
            path += f"[{_short(step)}]"
    return path if len(path) <= 200 else f"{path[:120]}…{path[-60:]}"


def _short(key: Any) -> str:
    try:
        text = repr(key)
    except Exception:  # an int of thousands of digits, a user's __repr__
        return type(key).__name__
    return text if len(text) <= 60 else text[:58] + "…"


def _why_not(value: Any) -> str:
    kind, name = type(value), _name(value)
    if kind is memoryview:
        return f"{name} only borrows its bytes; store bytes(value)"
    if conversion_of(kind) is not None:
        return f"{name}, whose class isn't registered; put @register_type on it"
    base = builtin_base(kind)
    if base in FORMS or base in _ATOMS or base is list:
        return (
            f"{name}, which would come back as a plain {base.__name__}; "
            "register the class with register_type(cls, to=..., restore=...)"
        )
    return (
        f"{name}; only data can be stored. Register the type with register_type(), "
        "or keep it out of the state"
    )


def _name(value: Any) -> str:
    named = isinstance(value, FunctionType | BuiltinFunctionType | MethodType | type)
    kind = "class" if isinstance(value, type) else type(value).__qualname__
    subject = value if named else type(value)
    article = "an" if kind[0] in "aeiouAEIOU" else "a"
    return f"{article} {kind} ({subject.__module__ or 'builtins'}.{subject.__qualname__})"


def _registered_restore(content: list[Any]) -> Any:
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
_ARRAY, _MAP = (0x90, 0xDC, 0xDD), (0x80, 0xDE, 0xDF)
_REGISTERED = 0

_BY_TAG: dict[int, Form] = {
    _REGISTERED: Form(_REGISTERED, False, list, _registered_restore),
    **{form.tag: form for form in FORMS.values()},
    **{form.tag: form for _, form in LATER.values()},
}
_extend = _extender(_FAST_LEVELS)
