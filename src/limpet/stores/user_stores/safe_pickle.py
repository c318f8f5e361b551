"""Checkpoints as pickles that other programs can read, and a reader that builds data and executes nothing.

This is the only module that knows pickle. What it writes is a pickle of plain types, of standard ones, and of
registered classes, each by the name and the parts that it is stored with in a journal too. After the pickle comes a
trailer with a checksum; `pickle.load` never reads that far.

A name in a pickle is looked up in a table and never imported. What the reader finds there is not a class or function
but an `_Allowed`, which only this reader knows how to use: it can be called, or asked for a blank value that is
filled once, and nothing else. So no opcode reaches an object that existed before the file was read. A malicious file
can still cost time and memory.
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
"""Every Python from 3.4 on reads this one."""


class Forbidden(Exception):
    """A pickle names something that isn't allowed."""


class Damaged(Exception):
    """These bytes aren't a pickle, or not the one that was written."""


def dumps(value: Any) -> bytes:
    """The pickle of a value that can be stored, and its trailer. Raises whatever pickle raises."""
    file = BytesIO()
    _Pickler(file, PROTOCOL).dump(value)
    body = file.getvalue()
    return body + _TRAILER.pack(_TRAILER_MARK, len(body), crc32(body))


def loads(data: bytes) -> tuple[Any, bool]:
    """The value in a pickle, and whether it had a trailer. Raises `Forbidden` or `Damaged`."""
    body, has_trailer = _without_trailer(data)
    file = BytesIO(body)
    try:
        value = _Unpickler(file).load()
    except (Forbidden, LimpetError):
        raise
    except EOFError as problem:
        raise Damaged("it ends before its pickle does") from problem
    except Exception as problem:  # arbitrary bytes can make the reader raise anything
        raise Damaged(f"it isn't a whole pickle ({type(problem).__name__}: {problem})") from problem
    if file.read(1):
        raise Damaged("something follows its pickle that isn't a trailer")
    return value, has_trailer


def registered(name: str, parts: Any) -> Any:
    """A value of a registered class, by the name and the parts that it is stored with."""
    return TYPES.named(name).restore(parts)


NAME_IN_FILES = "limpet_checkpoint"
"""The module that files name for `registered`. It isn't a file, so moving this module never breaks a checkpoint."""


def _provide_name_in_files() -> None:
    """Make `registered` importable under `NAME_IN_FILES`.

    Pickle writes a function by its module's name, and only if importing that name finds the same function.
    """
    module = ModuleType(NAME_IN_FILES, "Where checkpoint files say that `registered` is.")
    module.registered = registered  # type: ignore[attr-defined]  # a module takes any attribute
    registered.__module__ = NAME_IN_FILES
    sys.modules[NAME_IN_FILES] = module


def _without_trailer(data: bytes) -> tuple[bytes, bool]:
    """The pickle without its trailer, and whether it had one. Raises `Damaged` if the checksum doesn't match."""
    if len(data) < _TRAILER.size:
        return data, False
    mark, size, checksum = _TRAILER.unpack_from(data, len(data) - _TRAILER.size)
    if mark != _TRAILER_MARK:
        return data, False
    body = data[: -_TRAILER.size]
    if len(body) != size or crc32(body) != checksum:
        raise Damaged("its checksum doesn't match its contents")
    return body, True


_TRAILER = Struct(">8sQI")
_TRAILER_MARK = b"limpet\0\0"
"""As long as its field: a shorter one would be padded, and never be equal to what was read."""


class _Pickler(pickle.Pickler):
    """Writes values of registered classes by their parts, and all others as pickle does."""

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, type) or kind.__module__ == "collections":
            return NotImplemented
        stored = TYPES.of_class(kind)
        if stored is None:
            return NotImplemented
        return registered, (stored.name, stored.to(value))


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
        self.name = name
        self.call = call
        self.new = new
        self.fill = fill
        self.kind = kind

    def __repr__(self) -> str:
        return f"<the class or function {self.name}>"


_PythonUnpickler: Any = pickle._Unpickler
"""The one in Python: the C one doesn't let a subclass see what it does with the values it has made."""


class _Unpickler(_PythonUnpickler):  # type: ignore[misc]  # the stubs know little of it
    """Reads a pickle, with each opcode that calls, fills or extends a value replaced by one that checks it first."""

    def __init__(self, file: BytesIO) -> None:
        super().__init__(file, encoding="latin-1")
        self.blank: dict[int, tuple[Any, _Allowed]] = {}
        """Values that may still be filled, by their ids. They are kept here, so no id is used twice."""

    def find_class(self, module: str, name: str) -> Any:
        module = _MOVED.get(module, module)
        name = _RENAMED.get(name, name)
        if (module, name) == ("builtins", "Ellipsis"):
            return ...
        return allowed(module, name)

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
            self.blank[id(value)] = (value, stand_in)
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
        _PythonUnpickler.load_append(self)

    def _appends(self) -> None:
        self._checked_below_mark(_LISTS)
        _PythonUnpickler.load_appends(self)

    def _setitem(self) -> None:
        self._checked(-3, _DICTS)
        _PythonUnpickler.load_setitem(self)

    def _setitems(self) -> None:
        self._checked_below_mark(_DICTS)
        _PythonUnpickler.load_setitems(self)

    def _additems(self) -> None:
        self._checked_below_mark((set,))
        _PythonUnpickler.load_additems(self)

    def _checked(self, place: int, kinds: tuple[type, ...]) -> None:
        _check_kind(self.stack[place], kinds)

    def _checked_below_mark(self, kinds: tuple[type, ...]) -> None:
        _check_kind(self.metastack[-1][-1], kinds)

    dispatch = {  # noqa: RUF012  # it is the parent's, and never changed
        **_PythonUnpickler.dispatch,
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
    if isinstance(value, _Allowed):
        return value.name
    return f"a value of {type(value).__module__}.{type(value).__qualname__}"


def allowed(module: str, name: str) -> _Allowed:
    """What stands for a name. Raises `Forbidden` unless it is in the table or that of a registered class."""
    found = _STANDARD.get((module, name)) or _of_registered(module, name)
    if found is None:
        raise Forbidden(f"{module}.{name}")
    return found


def _of_registered(module: str, name: str) -> _Allowed | None:
    """For values of registered classes that plain pickle has written."""
    from enum import Enum

    cls: Any = TYPES.defined_at(module, name)
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
    """Give a blank dataclass its attributes, in any of the forms that pickle uses; its own code isn't executed."""
    from dataclasses import fields

    if isinstance(contents, list):  # frozen, with slots
        contents = dict(zip([field.name for field in fields(value)], contents, strict=True))
    if not isinstance(contents, tuple):
        contents = (contents,)
    for part in contents:
        for name, each in (part or {}).items():
            object.__setattr__(value, name, each)


def _fill_uuid(value: Any, contents: dict[str, Any]) -> None:
    from uuid import SafeUUID

    number = contents["int"]
    if type(number) is not int or not 0 <= number < 1 << 128:
        raise ValueError(f"{number!r} isn't the number of a UUID")
    safe = dict.get(contents, "is_safe", SafeUUID.unknown.value)
    object.__setattr__(value, "int", number)
    object.__setattr__(value, "is_safe", SafeUUID(safe))


def _imported_late(module: str, name: str) -> Callable[..., Any]:
    """A standard class, imported when the first value of it is made."""

    def make(*args: Any) -> Any:
        from importlib import import_module

        return getattr(import_module(module), name)(*args)

    return make


def _blank_uuid() -> Any:
    from uuid import UUID

    return object.__new__(UUID)


def _zone(key: Any, from_cache: Any) -> Any:
    from zoneinfo import ZoneInfo

    if from_cache:
        return ZoneInfo(key)
    return ZoneInfo.no_cache(key)


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
    if type(content) is not bytes:
        content = _encoded(content, encoding)
    return bytearray(content)


def _fraction(*parts: Any) -> Any:
    from fractions import Fraction

    if len(parts) == 1 and not re.fullmatch(r"-?\d+(/\d+)?", str(parts[0])):
        raise ValueError(f"{parts[0]!r} isn't a fraction")
    return Fraction(*parts)


def _defaultdict(factory: Any = None, *more: Any) -> Any:
    from collections import defaultdict

    if factory is None:
        return defaultdict(None, *more)
    if not isinstance(factory, _Allowed) or factory.kind not in _FACTORIES:
        raise Forbidden(f"a defaultdict of {_named(factory)}")
    return defaultdict(factory.kind, *more)


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
        (module, name): _Allowed(f"{module}.{name}", _imported_late(module, name))
        for module, names in late.items()
        for name in names
    }
    for name in paths:
        table["pathlib._local", name] = table["pathlib", name]
    for cls in _FACTORIES:
        name = cls.__name__
        known = table.get(("builtins", name))
        call = None if known is None else known.call
        table["builtins", name] = _Allowed(f"builtins.{name}", call, kind=cls)
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
_MOVED = {"__builtin__": "builtins"}  # the name that the oldest protocols write, for Python 2
_RENAMED = {"xrange": "range"}
_STANDARD = _table()
_provide_name_in_files()
