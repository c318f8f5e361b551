"""Whether a value is of the type that an annotation names, for the fields of dataclasses.

What can't be known from a value alone (a type variable, a protocol, the arguments of a callable) fits. As for type
checkers, an int is a float, and a bool is an int.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from limpet.graphs.typed_state.annotations import plain_type
from limpet.graphs.typed_state.instances import short_text


def why_unfit(value: Any, hint: Any, where: str, quoting: bool = True) -> str:
    """Why a value isn't of a type, or an empty str. `where` names the value; without `quoting` it isn't shown."""
    hint = plain_type(hint)
    while hasattr(hint, "__supertype__") or hasattr(hint, "__value__"):
        # A NewType stands for its own type, and an alias that was made by the `type` statement for another one.
        hint = plain_type(getattr(hint, "__supertype__", None) or hint.__value__)
    if hint is None:
        hint = NoneType
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        if any(not why_unfit(value, each, where) for each in get_args(hint)):
            return ""
        return _reason(value, hint, where, quoting)
    if origin is Literal:
        if any(type(value) is type(each) and value == each for each in get_args(hint)):
            return ""
        return _reason(value, hint, where, quoting)
    if not _is_instance(value, origin or hint) or _is_of_other_length(value, hint, origin):
        return _reason(value, hint, where, quoting)
    for part, kind, place in _parts(value, hint, origin, where):
        if reason := why_unfit(part, kind, place, quoting):
            return reason
    if _is_typed_dict(hint):
        return _why_no_typed_dict(value, hint, where, quoting)
    return ""


def _reason(value: Any, hint: Any, where: str, quoting: bool) -> str:
    name = str(hint)
    if isinstance(hint, type) and get_origin(hint) is None:
        name = hint.__name__
    if quoting:
        return f"{where} is {short_text(value)}, not of type {name.replace('typing.', '')}"
    return f"{where} is of type {type(value).__name__}, not {name.replace('typing.', '')}"


def _is_instance(value: Any, kind: Any) -> bool:
    if kind is Any or isinstance(kind, (str, TypeVar)):
        return True
    if kind is float:
        kind = (float, int)
    elif kind is complex:
        kind = (complex, float, int)
    elif _is_typed_dict(kind):
        kind = collections.abc.Mapping
    elif kind is collections.abc.Callable:
        return callable(value)
    try:
        return isinstance(value, kind)
    except TypeError:  # a protocol that can't be checked at run time, or something that isn't a class
        return True


def _is_of_other_length(value: Any, hint: Any, origin: Any) -> bool:
    """Whether a type names each item of a tuple, and this value has more or fewer of them."""
    args = get_args(hint)
    return origin is tuple and Ellipsis not in args and args != ((),) and len(args) != len(value)


def _parts(value: Any, hint: Any, origin: Any, where: str) -> list[tuple[Any, Any, str]]:
    """The items of a value that a type says something about: each with its type and its place."""
    args = get_args(hint)
    if not args or not isinstance(origin, type):
        return []
    if issubclass(origin, tuple):
        if len(args) == 2 and args[1] is Ellipsis:
            return [(each, args[0], f"{where}[{index}]") for index, each in enumerate(value)]
        return [(each, args[index], f"{where}[{index}]") for index, each in enumerate(value)]
    if issubclass(origin, Mapping) and len(args) == 2 and args[0] is not Any:
        keys = [(key, args[0], f"a key of {where}") for key in value]
        return [*keys, *((each, args[1], f"{where}[{key!r}]") for key, each in value.items())]
    if issubclass(origin, Mapping) and len(args) == 2:
        return [(each, args[1], f"{where}[{key!r}]") for key, each in value.items()]
    if issubclass(origin, (list, set, frozenset, collections.abc.Sequence, collections.abc.Set)):
        return [(each, args[0], f"{where}[{index}]") for index, each in enumerate(value)]
    return []


def _is_typed_dict(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, dict) and hasattr(hint, "__required_keys__")


def _why_no_typed_dict(value: Mapping[str, Any], hint: Any, where: str, quoting: bool) -> str:
    for key in hint.__required_keys__:
        if key not in value:
            return f"{where} has no {key!r}"
    for key, kind in get_type_hints(hint, include_extras=True).items():
        if key in value and (reason := why_unfit(value[key], kind, f"{where}[{key!r}]", quoting)):
            return reason
    return ""
