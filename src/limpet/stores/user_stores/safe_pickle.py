"""Checkpoints as pickles that others can read, and a reader that builds data and runs nothing.

This is the only module that knows pickle. What it writes is a pickle of plain types, of standard ones, and of
classes that were registered, each by the name and the parts it is stored with elsewhere too. After the pickle
comes a trailer with a checksum; whoever reads with `pickle.load` never sees it.

What a pickle names is looked up in a table and never imported. A name gives no class and no function but an
`_Allowed`, which only this reader knows what to do with: it can be called, or asked for a blank value to be filled
once, and nothing else. So no opcode reaches an object that was there before the file was read. A file made to harm
can still take time and memory.
"""

from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Callable
from io import BytesIO
from struct import Struct
from types import ModuleType
from typing import Any
from zlib import crc32

from limpet.errors import LimpetError
from limpet.journal.encoding.user_types import TYPES

PROTOCOL = 4
"""What every Python from 3.4 on reads."""


class Forbidden(Exception):
    """A pickle names something that isn't allowed."""


class Damaged(Exception):
    """These bytes aren't what was written, or no pickle."""


def dumps(value: Any) -> bytes:
    """The pickle of a value that can be stored, and its trailer. Raises whatever pickle does."""
    file = BytesIO()
    _Pickler(file, PROTOCOL).dump(value)
    body = file.getvalue()
    return body + _TRAILER.pack(_MARK, len(body), crc32(body))


def loads(data: bytes) -> tuple[Any, bool]:
    """The value in a pickle, and whether it had a trailer that fits. Raises `Forbidden` or `Damaged`."""
    body, sealed = _unsealed(data)
    file = BytesIO(body)
    try:
        value = _Unpickler(file).load()
    except (Forbidden, LimpetError):
        raise
    except EOFError as problem:
        raise Damaged("it ends before its pickle does") from problem
    except Exception as problem:  # the bytes may say anything, and so may what they lead to
        raise Damaged(f"it is no whole pickle ({type(problem).__name__}: {problem})") from problem
    if file.read(1):
        raise Damaged("something follows its pickle that isn't a trailer")
    return value, sealed


def registered(name: str, parts: Any) -> Any:
    """A value of a registered class, by the name and the parts that it is stored with."""
    return TYPES.named(name).restore(parts)


NAME_IN_FILES = "limpet_checkpoint"
"""The module that files name for `registered`. It is no file, so moving this module never breaks a checkpoint."""


def _provide_name_in_files() -> None:
    """Make `registered` importable under `NAME_IN_FILES`.

    Pickle writes a function by its module's name, and only if importing that name finds the same function.
    """
    module = ModuleType(NAME_IN_FILES, "Where checkpoint files say that `registered` is.")
    module.registered = registered  # type: ignore[attr-defined]  # a module takes any attribute
    registered.__module__ = NAME_IN_FILES
    sys.modules[NAME_IN_FILES] = module


def _unsealed(data: bytes) -> tuple[bytes, bool]:
    """The pickle without its trailer, and whether there was one. Raises `Damaged` if it doesn't fit."""
    if len(data) < _TRAILER.size:
        return data, False
    mark, size, checksum = _TRAILER.unpack_from(data, len(data) - _TRAILER.size)
    if mark != _MARK:
        return data, False
    body = data[: -_TRAILER.size]
    if len(body) != size or crc32(body) != checksum:
        raise Damaged("its checksum doesn't match its contents")
    return body, True


_TRAILER = Struct(">8sQI")
_MARK = b"limpet\0\0"


class _Pickler(pickle.Pickler):
    """Writes values of registered classes by their parts, and all others as pickle does."""

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, type) or kind.__module__ == "collections":
            return NotImplemented
        stored = TYPES.of_class(kind)
        return NotImplemented if stored is None else (registered, (stored.name, stored.to(value)))


class _Allowed:
    """What stands for a name while a pickle is read.

    `call` makes a value from arguments. `new` makes a blank one, which `fill` gives its contents.
    """

    __slots__ = ("call", "fill", "kind", "name", "new")

    def __init__(
        self,
        name: str,
        call: Callable[..., Any] | None = None,
        new: Callable[..., Any] | None = None,
        fill: Callable[[Any, Any], None] | None = None,
        kind: type | None = None,
    ) -> None:
        self.name, self.call, self.new, self.fill, self.kind = name, call, new, fill, kind

    def __repr__(self) -> str:
        return f"<the class or function {self.name}>"


_Plain: Any = pickle._Unpickler


class _Unpickler(_Plain):  # type: ignore[misc]  # the stubs know little of it
    """Reads a pickle. In Python, as what the C one does with a value it has made can't be looked at."""

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file, encoding="latin-1")
        self.blank: dict[int, tuple[Any, _Allowed]] = {}

    def find_class(self, module: str, name: str) -> Any:
        module, name = _MOVED.get(module, module), _RENAMED.get(name, name)
        return ... if (module, name) == ("builtins", "Ellipsis") else allowed(module, name)

    def get_extension(self, code: int) -> None:
        raise Forbidden(f"the extension {code} of copyreg")

    def persistent_load(self, pid: Any) -> Any:
        raise Forbidden("a persistent id")

    def _instantiate(self, klass: Any, args: Any) -> None:
        self.append(_called(klass, args))

    def _reduce(self) -> None:
        args = self.stack.pop()
        self.stack[-1] = _called(self.stack[-1], args)

    def _newobj(self) -> None:
        args = self.stack.pop()
        self.stack[-1] = self._blank(self.stack[-1], args)

    def _blank(self, stand_in: Any, args: Any) -> Any:
        if not isinstance(stand_in, _Allowed) or stand_in.new is None:
            raise Forbidden(f"to make a blank of {_named(stand_in)}")
        value = stand_in.new(*args)
        if stand_in.fill is not None:
            self.blank[id(value)] = value, stand_in
        return value

    def _newobj_ex(self) -> None:
        raise Forbidden("values that are made with keyword arguments")

    def _build(self) -> None:
        contents = self.stack.pop()
        value, stand_in = self.blank.pop(id(self.stack[-1]), (None, None))
        if stand_in is None or stand_in.fill is None:
            raise Forbidden(f"to set attributes of {_named(self.stack[-1])}")
        stand_in.fill(value, contents)

    def _append(self) -> None:
        self._checked(-2, _LISTS)
        _Plain.load_append(self)

    def _appends(self) -> None:
        self._checked_below_mark(_LISTS)
        _Plain.load_appends(self)

    def _setitem(self) -> None:
        self._checked(-3, _DICTS)
        _Plain.load_setitem(self)

    def _setitems(self) -> None:
        self._checked_below_mark(_DICTS)
        _Plain.load_setitems(self)

    def _additems(self) -> None:
        self._checked_below_mark((set,))
        _Plain.load_additems(self)

    def _checked(self, place: int, kinds: tuple[type, ...]) -> None:
        _check_kind(self.stack[place], kinds)

    def _checked_below_mark(self, kinds: tuple[type, ...]) -> None:
        _check_kind(self.metastack[-1][-1], kinds)

    dispatch = {  # noqa: RUF012  # it is the parent's, and never changed
        **_Plain.dispatch,
        pickle.REDUCE[0]: _reduce,
        pickle.NEWOBJ[0]: _newobj,
        pickle.NEWOBJ_EX[0]: _newobj_ex,
        pickle.BUILD[0]: _build,
        pickle.APPEND[0]: _append,
        pickle.APPENDS[0]: _appends,
        pickle.SETITEM[0]: _setitem,
        pickle.SETITEMS[0]: _setitems,
        pickle.ADDITEMS[0]: _additems,
    }


def _called(stand_in: Any, args: Any) -> Any:
    if not isinstance(stand_in, _Allowed) or stand_in.call is None:
        raise Forbidden(f"to call {_named(stand_in)}")
    return stand_in.call(*args)


def _check_kind(value: Any, kinds: tuple[type, ...]) -> None:
    if type(value) not in kinds:
        raise Forbidden(f"to add to {_named(value)}")


def _named(value: Any) -> str:
    return (
        value.name
        if isinstance(value, _Allowed)
        else f"a value of {type(value).__module__}.{type(value).__qualname__}"
    )


def allowed(module: str, name: str) -> _Allowed:
    """What stands for a name. Raises `Forbidden` for one that isn't in the table, nor that of a registered class."""
    found = _STANDARD.get((module, name)) or _of_registered(module, name)
    if found is None:
        raise Forbidden(f"{module}.{name}")
    return found


def _of_registered(module: str, name: str) -> _Allowed | None:
    """For values of registered classes that plain pickle has written."""
    from enum import Enum

    cls: Any = TYPES.of_place(module, name)
    full = f"{module}.{name}"
    if cls is None:
        return None
    if issubclass(cls, Enum):
        return _Allowed(full, cls, kind=cls)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _Allowed(full, new=lambda *parts: _named_tuple(cls, parts))
    if hasattr(cls, "__dataclass_fields__") and cls.__new__ is object.__new__:
        return _Allowed(full, new=lambda: object.__new__(cls), fill=_fill_dataclass)
    return None


def _named_tuple(cls: Any, parts: tuple[Any, ...]) -> Any:
    if len(parts) != len(cls._fields):
        raise ValueError(f"{cls} has {len(cls._fields)} fields, not {len(parts)}")
    return tuple.__new__(cls, parts)


def _fill_dataclass(value: Any, contents: Any) -> None:
    """Give a blank dataclass its attributes, in whichever of pickle's ways they come; its own code doesn't run."""
    from dataclasses import fields

    if isinstance(contents, list):  # frozen, with slots
        contents = dict(zip([field.name for field in fields(value)], contents, strict=True))
    parts = contents if isinstance(contents, tuple) else (contents,)
    for part in parts:
        for name, each in (part or {}).items():
            object.__setattr__(value, name, each)


def _fill_uuid(value: Any, contents: dict[str, Any]) -> None:
    from uuid import SafeUUID

    number = contents["int"]
    if type(number) is not int or not 0 <= number < 1 << 128:
        raise ValueError(f"{number!r} is no UUID")
    safe = dict.get(contents, "is_safe", SafeUUID.unknown.value)
    object.__setattr__(value, "int", number)
    object.__setattr__(value, "is_safe", SafeUUID(safe))


def _late(module: str, name: str) -> Callable[..., Any]:
    """A standard class that is imported when a value of it is made."""

    def make(*args: Any) -> Any:
        from importlib import import_module

        return getattr(import_module(module), name)(*args)

    return make


def _blank_uuid() -> Any:
    from uuid import UUID

    return object.__new__(UUID)


def _zone(key: Any, from_cache: Any) -> Any:
    from zoneinfo import ZoneInfo

    return ZoneInfo(key) if from_cache else ZoneInfo.no_cache(key)


def _attribute(owner: Any, name: Any) -> Any:
    """`getattr`, for the two uses that pickles of allowed types make of it."""
    if isinstance(owner, _Allowed) and isinstance(name, str):
        if (owner.name, name) == ("zoneinfo.ZoneInfo", "_unpickle"):
            return _Allowed("zoneinfo.ZoneInfo._unpickle", _zone)
        if owner.kind is not None:
            return owner.kind[name]  # type: ignore[index]  # an enum's member
    raise Forbidden(f"builtins.getattr, for {name!r} of {_named(owner)}")


def _encoded(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise Forbidden(f"_codecs.encode to {encoding!r}")
    return text.encode("latin-1")


def _bytearray(content: Any = b"", encoding: str = "latin-1") -> bytearray:
    return bytearray(content if type(content) is bytes else _encoded(content, encoding))


def _fraction(*parts: Any) -> Any:
    from fractions import Fraction

    if len(parts) == 1 and not re.fullmatch(r"-?\d+(/\d+)?", str(parts[0])):
        raise ValueError(f"{parts[0]!r} is no fraction")
    return Fraction(*parts)


def _defaultdict(factory: Any = None, *more: Any) -> Any:
    from collections import defaultdict

    if factory is not None and (not isinstance(factory, _Allowed) or factory.kind not in _FACTORIES):
        raise Forbidden(f"a defaultdict of {_named(factory)}")
    return defaultdict(None if factory is None else factory.kind, *more)


def _table() -> dict[tuple[str, str], _Allowed]:
    paths = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
    late: dict[str, tuple[str, ...]] = {
        "builtins": ("set", "frozenset", "complex", "range", "slice"),
        "collections": ("OrderedDict", "Counter", "deque"),
        "datetime": ("datetime", "date", "time", "timedelta", "timezone"),
        "decimal": ("Decimal",),
        "pathlib": paths,
        "uuid": ("SafeUUID",),
    }
    table = {
        (module, name): _Allowed(f"{module}.{name}", _late(module, name))
        for module, names in late.items()
        for name in names
    }
    for name in paths:
        table["pathlib._local", name] = table["pathlib", name]
    for cls in _FACTORIES:
        name = cls.__name__
        made = table["builtins", name].call if ("builtins", name) in table else None
        table["builtins", name] = _Allowed(f"builtins.{name}", made, kind=cls)
    calls: dict[tuple[str, str], Callable[..., Any]] = {
        ("builtins", "bytearray"): _bytearray,
        ("builtins", "getattr"): _attribute,
        ("_codecs", "encode"): _encoded,
        ("collections", "defaultdict"): _defaultdict,
        ("fractions", "Fraction"): _fraction,
        (NAME_IN_FILES, "registered"): registered,
    }
    table |= {(module, name): _Allowed(f"{module}.{name}", call) for (module, name), call in calls.items()}
    table["uuid", "UUID"] = _Allowed("uuid.UUID", new=_blank_uuid, fill=_fill_uuid)
    table["zoneinfo", "ZoneInfo"] = _Allowed("zoneinfo.ZoneInfo")
    return table


def _containers() -> tuple[tuple[type, ...], tuple[type, ...]]:
    from collections import Counter, OrderedDict, defaultdict, deque

    return (list, deque), (dict, OrderedDict, defaultdict, Counter)


_FACTORIES: tuple[type, ...] = (list, dict, set, int, float, str, bool, tuple, bytes)
_LISTS, _DICTS = _containers()
_MOVED = {"__builtin__": "builtins"}  # what the oldest protocols write, for Python 2 to read
_RENAMED = {"xrange": "range"}
_STANDARD = _table()
_provide_name_in_files()
