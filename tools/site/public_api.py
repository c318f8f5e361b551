"""What the reference shows of the code: an extension of Griffe, which reads the code without importing it.

It adds what only a running program knows: methods that are made by an assignment, the call of a class, and the values
of defaults that are written as names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from griffe import (
    Alias,
    AliasResolutionError,
    Attribute,
    Class,
    CyclicAliasError,
    Docstring,
    ExprCall,
    ExprName,
    ExprTuple,
    Extension,
    Function,
    GriffeLoader,
    Module,
    Object,
    Parameter,
    ParameterKind,
    Parameters,
)

NO_VALUE = "…"
"""What stands for a default that means that there is no value."""

SENTINELS = {"object()", "NOT_GIVEN", "_NOT_GIVEN"}


class PublicApi(Extension):
    """Completes what Griffe has read of the package."""

    def on_package(self, *, pkg: Module, loader: GriffeLoader, **_: Any) -> None:
        """Complete the parameters of all functions first, which the methods that are made of them share."""
        places = list(_inside(pkg))
        for each in places:
            if isinstance(each, Function):
                each.parameters = _shown_parameters(each)
        for each in places:
            if isinstance(each, Class | Module):
                _add_assigned_functions(each)
        for each in places:
            if isinstance(each, Class):
                each.extra["limpet"]["call"] = _call_of(each)


def _inside(place: Module | Class) -> Iterator[Object]:
    """A module or class with all that is defined in it."""
    yield place
    for member in list(place.members.values()):
        if isinstance(member, Class | Module):
            yield from _inside(member)
        elif isinstance(member, Function):
            yield member


def _shown_parameters(function: Function) -> Parameters:
    """Its parameters with the values of defaults, and with the keys of a TypedDict that it unpacks."""
    shown = []
    for parameter in function.parameters:
        keys = _unpacked(parameter, function)
        if keys:
            shown += keys
            continue
        if parameter.default is not None:
            parameter.default = _shown(str(parameter.default), function)
        shown.append(parameter)
    return Parameters(*shown)


def _unpacked(parameter: Parameter, function: Function) -> list[Parameter]:
    """The parameters that `**name: Unpack[Keys]` stands for."""
    annotation = str(parameter.annotation)
    if parameter.kind is not ParameterKind.var_keyword or not annotation.startswith("Unpack["):
        return []
    keys = _found(annotation.removeprefix("Unpack[").removesuffix("]"), function)
    if not isinstance(keys, Class):
        return []
    fields = [each for base in [*reversed(keys.mro()), keys] for each in base.members.values()]
    return [
        Parameter(field.name, annotation=field.annotation, kind=ParameterKind.keyword_only, default=NO_VALUE)
        for field in fields
        if isinstance(field, Attribute)
    ]


def _shown(default: str, place: Object) -> str:
    """A default as it is written, or the value of the constant that it names."""
    if default in SENTINELS:
        return NO_VALUE
    if not default.isidentifier() or not default.isupper():
        return default
    found = _found(default, place)
    if not isinstance(found, Attribute) or found.value is None:
        return default
    if isinstance(found.value, ExprTuple):
        return f"({', '.join(_shown(str(each), found) for each in found.value.elements)})"
    value = str(found.value)
    return NO_VALUE if value in SENTINELS else value


def _found(name: str, place: Object) -> Object | None:
    """What a name means at a place; None if that isn't part of what was read."""
    try:
        found = place.modules_collection[place.resolve(name)]
        return found.final_target if isinstance(found, Alias) else found
    except (AliasResolutionError, CyclicAliasError, LookupError):
        return None


def _add_assigned_functions(place: Class | Module) -> None:
    """Turn each `aname = async_version(name)` and `name = other` into the function that it is."""
    for name, attribute in list(place.members.items()):
        if not isinstance(attribute, Attribute):
            continue
        value = attribute.value
        if isinstance(value, ExprCall) and str(value.function) == "async_version":
            text = "`{}` without blocking the event loop."
            original = place.members[str(value.arguments[0])]
        elif isinstance(value, ExprName) and value.name in place.members:
            text = "The same as `{}`."
            original = place.members[value.name]
        else:
            continue
        if not isinstance(original, Function):
            continue
        function = Function(
            name,
            lineno=attribute.lineno,
            endlineno=attribute.endlineno,
            parameters=original.parameters,
            returns=original.returns,
            parent=place,
        )
        if isinstance(value, ExprCall):
            function.labels.add("async")
        function.docstring = Docstring(text.format(original.name), parent=function)
        place.set_member(name, function)


def _call_of(cls: Class) -> Function | None:
    """How a class is called: by its `__init__`, or with its fields if it is a record."""
    own = cls.all_members.get("__init__") or cls.all_members.get("__new__")
    if isinstance(own, Alias):
        own = own.final_target
    if isinstance(own, Function):
        return own
    bases = {str(base).rpartition(".")[2] for base in cls.bases}
    if "NamedTuple" not in bases and "dataclass" not in cls.labels:
        return None
    parameters = [
        Parameter(
            field.name,
            annotation=field.annotation,
            kind=ParameterKind.positional_or_keyword,
            default=None if field.value is None else _shown(str(field.value), cls),
        )
        for field in cls.members.values()
        if isinstance(field, Attribute) and field.annotation is not None and "property" not in field.labels
    ]
    return Function("__init__", parameters=Parameters(*parameters), parent=cls)
