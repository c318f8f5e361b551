"""What the annotations of a schema's keys say: the type, the reducer, and the classes whose values are stored."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import InitVar, is_dataclass
from types import BuiltinFunctionType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from limpet.errors import DefinitionError
from limpet.graphs.reducers import Reducer
from limpet.journal.encoding.user_types import TYPES, conversion_of

_QUALIFIERS: Final = (Annotated, ClassVar, Final, NotRequired, Required)
_NO_METADATA: Final = (bool, int, float, complex, bytes, list, tuple, dict, set, frozenset, type(None))
"""Values of these types in `Annotated` mean nothing to any library, so one of them is a mistake."""


def is_model(source: Any) -> bool:
    """Whether this is a pydantic model."""
    return isinstance(source, type) and hasattr(source, "model_fields") and hasattr(source, "model_validate")


def has_instances(source: Any) -> bool:
    """Whether a state can be handed out as an instance of this: a dataclass or a pydantic model."""
    return isinstance(source, type) and (is_dataclass(source) or is_model(source))


def plain_type(hint: Any) -> Any:
    """The type inside of `Annotated`, `NotRequired` and the like."""
    while True:
        if isinstance(hint, InitVar):
            hint = hint.type
        elif get_origin(hint) in _QUALIFIERS or _is_read_only(hint):
            hint = get_args(hint)[0]
        else:
            return hint


def metadata_of(hint: Any) -> list[Any]:
    """What `Annotated` says beside the type, also inside of `NotRequired` and the like."""
    found: list[Any] = []
    while get_origin(hint) in _QUALIFIERS or _is_read_only(hint):
        if get_origin(hint) is Annotated:
            found += get_args(hint)[1:]
        hint = get_args(hint)[0]
    return found


def _is_read_only(hint: Any) -> bool:
    return getattr(get_origin(hint), "__name__", getattr(get_origin(hint), "_name", "")) == "ReadOnly"


def reducers_in(keys: Mapping[str, Any]) -> dict[str, Reducer]:
    """The reducers by key. Raises a `DefinitionError` that lists everything that is meant as one and isn't."""
    found: dict[str, Reducer] = {}
    mistakes: list[str] = []
    for key, hint in keys.items():
        extras = metadata_of(hint)
        functions = [each for each in extras if _is_function(each)]
        # Beside a reducer, anything else is for another reader.
        problems = [_why_no_reducer(each, hint) for each in functions or extras]
        mistakes += [f"the key {key!r}: {problem}" for problem in problems if problem]
        if len(functions) > 1:
            mistakes.append(f"the key {key!r} has two reducers: {', '.join(map(_name, functions))}")
        elif functions:
            found[key] = functions[0]
        elif any(_is_function(each) for part in _union_parts(hint) for each in metadata_of(part)):
            mistakes.append(
                f"the key {key!r} has a reducer for a part of its type only: put Annotated around the whole, "
                "as in Annotated[list | None, append]"
            )
    if mistakes:
        raise DefinitionError(mistakes)
    return found


def _is_function(extra: Any) -> bool:
    return callable(extra) and not isinstance(extra, type)


def _union_parts(hint: Any) -> tuple[Any, ...]:
    inner = plain_type(hint)
    if get_origin(inner) in (Union, UnionType):
        return get_args(inner)
    return ()


def _why_no_reducer(extra: Any, hint: Any) -> str:
    """Why this part of an annotation, which is meant as a reducer, isn't one; empty if it is, or isn't meant as one.

    A text of several words is a note for readers. An object of another library is for that library.
    """
    if isinstance(extra, str):
        if not extra.replace(".", "_").isidentifier():
            return ""
        word = extra.rpartition(".")[2]
        example = f"Annotated[{_name(plain_type(hint))}, {word}]"
        return f"the text {extra!r} isn't a reducer; write the function itself, {example}, or a note of several words"
    if isinstance(extra, type):
        if extra.__module__ != "builtins":
            return ""
        return f"the class {extra.__name__} isn't a reducer: that is a function (old, new) that returns the new value"
    if type(extra) in _NO_METADATA:
        return f"{extra!r} isn't a reducer: that is a function (old, new) that returns the new value"
    if _is_function(extra) and not _takes_two(extra):
        return f"{_name(extra)} isn't a reducer: it can't be called with (old, new)"
    return ""


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # some functions written in C have no signature
        return True
    return True


def _name(thing: Any) -> str:
    return getattr(thing, "__name__", None) or type(thing).__name__


def register_classes(keys: Mapping[str, Any]) -> None:
    """Make the classes that a schema names storable, unless they are: dataclasses, models, enums, named tuples."""
    seen: set[Any] = set()
    for hint in keys.values():
        for cls in _classes_in(hint, seen):
            if TYPES.of_class(cls) is None and conversion_of(cls) is not None:
                TYPES.register(cls)


def _classes_in(hint: Any, seen: set[Any]) -> Iterator[type]:
    hint = plain_type(hint)
    if isinstance(hint, type) and get_origin(hint) is None:
        if hint in seen or hint.__module__ in ("builtins", "typing"):
            return
        seen.add(hint)
        yield hint
        if getattr(hint, "__annotations__", None):
            try:
                parts = get_type_hints(hint, include_extras=True)
            except Exception:  # a name that only type checkers know: nothing can be said about its class
                return
            for part in parts.values():
                yield from _classes_in(part, seen)
        return
    for part in get_args(hint):
        if not isinstance(part, (str, int, bytes, BuiltinFunctionType)):
            yield from _classes_in(part, seen)
