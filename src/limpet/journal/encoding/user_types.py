"""The registry of classes that can be stored, and how the values of each are written and restored.

A class is stored under a *name* and found by that name when a value is read: decoding imports nothing that a
record names. So a class has to be registered before its values are written or read, best where it is defined:

    @register_type
    @dataclass
    class Message: ...

Dataclasses, enums, named tuples and pydantic models need no more than that. They are restored
attribute by attribute: constructors, `__post_init__` and validators don't run again. Any other class needs a
`to` function that turns a value into storable data, and a `restore` function that turns the data back.
OrderedDict, Counter, deque, defaultdict (with a builtin factory) and, once the program has imported it, numpy
are registered already.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from threading import Lock
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType
from typing import Any, NamedTuple, TypeVar, overload

from limpet.errors import UsageError

T = TypeVar("T")
To = Callable[[Any], Any]
Restore = Callable[[Any], Any]


class StoredType(NamedTuple):
    """How values of one class are stored: under `name`, as `to(value)`, which `restore` turns back."""

    name: str
    to: To
    restore: Restore
    cls: type | None = None


class TypeRegistry:
    """The classes that can be stored, by class for writing and by name for reading. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_class: dict[type, StoredType] = {}
        self._by_name: dict[str, StoredType] = dict(_NUMPY)
        for cls, (to, restore) in _COLLECTIONS.items():
            self.register(cls, to=to, restore=restore)

    def register(
        self, cls: type, *, name: str | None = None, to: To | None = None, restore: Restore | None = None
    ) -> None:
        """Make values of exactly `cls` storable, under `name` (by default `module:qualname`).

        A class may be registered again. Under another name, it is read by both names and written by the
        latest. A redefinition of the same class (a reload, a notebook cell) replaces it. `restore` alone reads
        what the class itself wrote in an older shape. Raises UsageError if the name belongs to another class, or
        if storing this class needs `to` and `restore`.
        """
        if not isinstance(cls, type):
            raise UsageError(f"register_type() takes a class, not {cls!r}")
        if name is None:
            name = f"{cls.__module__}:{cls.__qualname__}"
        stored = StoredType(name, *_conversion(cls, to, restore), cls)
        with self._lock:
            before = self._by_name.get(name)
            if before is not None and before.cls is not cls:
                if before.cls is None or not _same_place(before.cls, cls):
                    raise UsageError(
                        f"the name {name!r} is taken by {before.cls or 'Limpet itself'}: "
                        f"register {cls} under another with register_type(..., name=...)"
                    )
                self._by_class.pop(before.cls, None)
            self._by_name[name] = self._by_class[cls] = stored

    def of_class(self, cls: type) -> StoredType | None:
        """How values of exactly this class are stored, or None if it isn't registered."""
        return self._by_class.get(cls) or self._numpy(cls)

    def defined_at(self, module: str, qualname: str) -> type | None:
        """The registered class that was defined there, or None."""
        with self._lock:
            for cls in self._by_class:
                if cls.__module__ == module and cls.__qualname__ == qualname:
                    return cls
        return None

    def is_known(self, name: str) -> bool:
        """Whether values that were stored under this name can be restored in this process."""
        return name in self._by_name and (name not in _NUMPY or "numpy" in sys.modules)

    def named(self, name: str) -> StoredType:
        """The type registered under this name. Raises UsageError if no type is (yet)."""
        stored = self._by_name.get(name)
        if stored is None:
            raise UsageError(
                f"a stored value is of type {name!r}, and no class is registered under that name. "
                f"Import the module that registers it, or call register_type(..., name={name!r}), "
                "before reading"
            )
        return stored

    def _numpy(self, cls: type) -> StoredType | None:
        numpy = sys.modules.get("numpy")
        if numpy is None or not hasattr(numpy, "generic"):
            return None
        if cls is not numpy.ndarray and not (issubclass(cls, numpy.generic) and cls.__module__ == "numpy"):
            return None
        kind = "numpy:array" if cls is numpy.ndarray else "numpy:scalar"
        return self._by_class.setdefault(cls, self._by_name[kind])


@overload
def register_type(
    cls: type[T],
    *,
    name: str | None = None,
    to: Callable[[T], Any] | None = None,
    restore: Restore | None = None,
) -> type[T]: ...
@overload
def register_type(
    cls: None = None, *, name: str | None = None, to: To | None = None, restore: Restore | None = None
) -> Callable[[type[T]], type[T]]: ...
def register_type(
    cls: type[T] | None = None,
    *,
    name: str | None = None,
    to: To | None = None,
    restore: Restore | None = None,
) -> type[T] | Callable[[type[T]], type[T]]:
    """Make a class storable and return it: a call, `@register_type` or `@register_type(name=...)`.

    Values come back equal and of exactly this class. Subclasses have to be registered themselves. See
    `TypeRegistry.register` for the arguments and for what it raises.
    """

    def register(cls: type[T]) -> type[T]:
        TYPES.register(cls, name=name, to=to, restore=restore)
        return cls

    if cls is None:
        return register
    return register(cls)


def conversion_of(cls: type) -> tuple[To, Restore] | None:
    """How a dataclass, enum, named tuple or pydantic model is stored; None for any other class."""
    if issubclass(cls, Enum):
        return _enum_conversion(cls)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _named_tuple_conversion(cls)
    if builtin_base(cls):
        return None
    if is_dataclass(cls):
        return _dataclass_conversion(cls)
    if hasattr(cls, "model_fields") and hasattr(cls, "model_construct"):
        return _pydantic_conversion(cls)
    return None


def builtin_base(cls: type) -> type | None:
    """The built-in class, such as list, that `cls` extends: its values have contents besides their attributes."""
    for base in cls.__mro__[:-1]:
        if isinstance(vars(base).get("__new__"), BuiltinFunctionType):
            return base
    return None


def described_value(value: Any) -> str:
    """What a value is, in a few words that never show its content: its type, or which function or class it is."""
    named = isinstance(value, FunctionType | BuiltinFunctionType | MethodType | type)
    kind = "class" if isinstance(value, type) else type(value).__qualname__
    subject = value if named else type(value)
    article = "an" if kind[0] in "aeiouAEIOU" else "a"
    return f"{article} {kind} ({subject.__module__ or 'builtins'}.{subject.__qualname__})"


def _conversion(cls: type, to: To | None, restore: Restore | None) -> tuple[To, Restore]:
    if to is not None and restore is not None:
        return to, restore
    known = conversion_of(cls)
    if to is not None or known is None:
        raise UsageError(
            f"{cls} needs both to= and restore= in register_type(). Without them only dataclasses, enums, "
            "named tuples and pydantic models can be stored (put @register_type above @dataclass)"
        )
    return known[0], restore or known[1]


def _same_place(one: type, other: type) -> bool:
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def _enum_conversion(cls: type[Enum]) -> tuple[To, Restore]:
    def to(member: Any) -> Any:
        if member._name_ in cls.__members__:
            return member._name_
        return {"flags": member._value_}  # a combination of flags, which has no name of its own

    def restore(stored: Any) -> Any:
        if isinstance(stored, dict):
            return cls(stored["flags"])
        return cls[stored]

    return to, restore


def _named_tuple_conversion(cls: Any) -> tuple[To, Restore]:
    def to(value: Any) -> Any:
        if getattr(value, "__dict__", None):
            raise ValueError("it has attributes besides its fields; register it with to= and restore=")
        return dict(zip(value._fields, value, strict=True))

    def restore(stored: dict[str, Any]) -> Any:
        values = {**cls._field_defaults, **stored}
        if values.keys() != set(cls._fields):
            raise ValueError(f"it was stored with the fields {list(stored)} and now has {list(cls._fields)}")
        return tuple.__new__(cls, [values[name] for name in cls._fields])

    return to, restore


def _dataclass_conversion(cls: Any) -> tuple[To, Restore]:
    slots = {
        name: member
        for base in reversed(cls.__mro__)
        for name, member in vars(base).items()
        if isinstance(member, MemberDescriptorType)
    }
    names = {field.name for field in fields(cls)}

    def to(value: Any) -> Any:
        state = dict(getattr(value, "__dict__", ()))
        state.pop("__orig_class__", None)
        for name, slot in slots.items():
            try:
                state[name] = slot.__get__(value)
            except AttributeError:
                continue
        if not names <= state.keys():
            for field in fields(cls):
                if field.init and not hasattr(value, field.name):
                    raise ValueError(f"its field {field.name!r} is not set")
        return state

    def restore(state: dict[str, Any]) -> Any:
        value = object.__new__(cls)
        for name, part in state.items():
            if name in slots:
                slots[name].__set__(value, part)
            elif hasattr(value, "__dict__"):
                value.__dict__[name] = part
            else:
                raise ValueError(f"it was stored with a field {name!r}, which the class no longer has")
        if not names <= state.keys():
            _fill_new_fields(value)
        return value

    return to, restore


def _fill_new_fields(value: Any) -> None:
    """Give fields that were added to the class after the value was stored their defaults."""
    for field in fields(value):
        if not hasattr(value, field.name):
            if field.default_factory is not MISSING:
                object.__setattr__(value, field.name, field.default_factory())
            elif field.default is not MISSING:
                object.__setattr__(value, field.name, field.default)
            elif field.init:
                raise ValueError(f"it was stored without the field {field.name!r}, which has no default")


def _pydantic_conversion(cls: Any) -> tuple[To, Restore]:
    # No field of a model can have these names: they aren't identifiers.
    fields_set = "(fields set)"
    extra = "(extra)"
    private = "(private)"

    def to(model: Any) -> Any:
        state = dict(model.__dict__)
        if model.__pydantic_fields_set__ != state.keys():
            state[fields_set] = sorted(model.__pydantic_fields_set__)
        if model.__pydantic_extra__ is not None:
            state[extra] = model.__pydantic_extra__
        if model.__pydantic_private__ is not None:
            state[private] = model.__pydantic_private__
        return state

    def restore(state: dict[str, Any]) -> Any:
        model = cls.__new__(cls)
        object.__setattr__(model, "__pydantic_extra__", state.pop(extra, None))
        object.__setattr__(model, "__pydantic_private__", state.pop(private, None))
        object.__setattr__(model, "__pydantic_fields_set__", set(state.pop(fields_set, state)))
        for name, field in cls.model_fields.items():
            if name not in state:
                if field.is_required():
                    raise ValueError(f"it was stored without the field {name!r}, which has no default")
                state[name] = field.get_default(call_default_factory=True)
        object.__setattr__(model, "__dict__", state)
        return model

    return to, restore


def _defaultdict_to(value: defaultdict[Any, Any]) -> Any:
    if value.default_factory not in _FACTORIES.values():
        raise ValueError(f"its default_factory isn't one of {', '.join(_FACTORIES)}; use a plain dict")
    factory = None
    if value.default_factory is not None:
        factory = value.default_factory.__name__
    return {"factory": factory, "items": dict(value)}


_FACTORIES: dict[str, Any] = {
    "None": None,
    **{cls.__name__: cls for cls in (list, dict, set, int, float, str, bool, tuple, bytes)},
}
_COLLECTIONS: dict[type, tuple[To, Restore]] = {
    OrderedDict: (dict, OrderedDict),
    Counter: (dict, Counter),
    deque: (
        lambda value: {"items": list(value), "maxlen": value.maxlen},
        lambda stored: deque(stored["items"], stored["maxlen"]),
    ),
    defaultdict: (
        _defaultdict_to,
        lambda stored: defaultdict(_FACTORIES[str(stored["factory"])], stored["items"]),
    ),
}


def _array_to(array: Any) -> Any:
    order = "C"
    if array.flags.f_contiguous and not array.flags.c_contiguous:
        order = "F"
    return [_dtype_to(array.dtype), list(array.shape), order, array.tobytes(order)]


def _array_restore(stored: Any) -> Any:
    dtype, shape, order, data = stored
    numpy = _loaded_numpy()
    return numpy.ndarray(shape, numpy.dtype(dtype), data, order=order).copy(order)


def _scalar_to(scalar: Any) -> Any:
    stored = [_dtype_to(scalar.dtype), scalar.tobytes()]
    back = _scalar_restore(stored)
    if type(back) is not type(scalar) or back.tobytes() != stored[1]:
        raise ValueError(f"numpy doesn't give this {scalar.dtype!r} back exactly; store scalar.item()")
    return stored


def _scalar_restore(stored: Any) -> Any:
    dtype, data = stored
    numpy = _loaded_numpy()
    return numpy.ndarray((), numpy.dtype(dtype), data)[()]


def _dtype_to(dtype: Any) -> Any:
    if not dtype.hasobject:
        make = _loaded_numpy().dtype
        forms: tuple[Any, ...] = (dtype.str, dtype.char)
        if dtype.names is not None:
            forms = (dtype.descr,)
        for stored in forms:
            if make(stored) == dtype and make(stored).type is dtype.type:
                return stored
    raise ValueError(f"it holds {dtype!r}, which has no exact form in bytes")


def _loaded_numpy() -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise UsageError("a stored value is of a numpy type: import numpy before reading it")
    return numpy


_NUMPY = {
    "numpy:array": StoredType("numpy:array", _array_to, _array_restore),
    "numpy:scalar": StoredType("numpy:scalar", _scalar_to, _scalar_restore),
}

TYPES = TypeRegistry()
"""The registry that `register_type` fills and that the codec reads."""
