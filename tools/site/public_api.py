"""What the reference shows of the code: an extension of Griffe, which reads the code without importing it.

It adds what only a running program knows: methods that are made by an assignment, the call of a class, and the values
of defaults that are written as names.
"""

from __future__ import annotations

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
        """Complete every class and function of a package, once all of it is read."""
        for each in _classes_and_functions(pkg):
            if isinstance(each, Function):
                _show_defaults(each)
        for each in _classes_and_functions(pkg):
            if isinstance(each, Class):
                _add_assigned_methods(each)
        for each in _classes_and_functions(pkg):
            if isinstance(each, Class):
                each.extra["limpet"]["call"] = _call_of(each)


def _classes_and_functions(place: Object) -> list[Object]:
    found: list[Object] = []
    for member in place.members.values():
        if isinstance(member, Alias):
            continue
        if isinstance(member, Class | Function):
            found.append(member)
        if isinstance(member, Class | Module):
            found += _classes_and_functions(member)
    return found


def _show_defaults(function: Function) -> None:
    """Replace the names of constants among the defaults by their values."""
    for parameter in function.parameters:
        if parameter.default is not None:
            parameter.default = _shown(str(parameter.default), function)


def _shown(default: str, place: Object) -> str:
    if default in SENTINELS:
        return NO_VALUE
    if not default.isidentifier() or not default.isupper():
        return default
    try:
        found = place.module.modules_collection[place.resolve(default)]
        if isinstance(found, Alias):
            found = found.final_target
    except (AliasResolutionError, CyclicAliasError, KeyError, LookupError):
        return default
    value = str(found.value) if isinstance(found, Attribute) and found.value is not None else default
    return NO_VALUE if value in SENTINELS else value


def _add_assigned_methods(cls: Class) -> None:
    """Turn each `aname = async_version(name)` and `name = other` into the method that it is."""
    for name, attribute in list(cls.members.items()):
        if not isinstance(attribute, Attribute):
            continue
        value = attribute.value
        if isinstance(value, ExprCall) and str(value.function) == "async_version":
            original = cls.members[str(value.arguments[0])]
            text = f"`{original.name}` without blocking the event loop."
        elif isinstance(value, ExprName) and isinstance(cls.members.get(str(value)), Function):
            original = cls.members[str(value)]
            text = f"The same as `{original.name}`."
        else:
            continue
        assert isinstance(original, Function)
        method = Function(
            name,
            lineno=attribute.lineno,
            endlineno=attribute.endlineno,
            parameters=original.parameters,
            returns=original.returns,
            parent=cls,
        )
        if isinstance(value, ExprCall):
            method.labels.add("async")
        method.docstring = Docstring(text, parent=method)
        cls.set_member(name, method)


def _call_of(cls: Class) -> Function | None:
    """How the class is called: by its `__init__`, or with its fields if it is a record."""
    own = cls.all_members.get("__init__") or cls.all_members.get("__new__")
    if own is not None and own.is_function:
        return own if not own.is_alias else own.final_target  # type: ignore[union-attr]
    fields = [member for member in cls.members.values() if _is_field(member)]
    bases = {str(base).rpartition(".")[2] for base in cls.bases}
    if "NamedTuple" not in bases and not any("dataclass" in label for label in cls.labels):
        return None
    parameters = Parameters(
        *(
            Parameter(
                field.name,
                annotation=field.annotation,
                kind=ParameterKind.positional_or_keyword,
                default=None if field.value is None else _shown(str(field.value), cls),
            )
            for field in fields
        )
    )
    return Function("__init__", parameters=parameters, parent=cls)


def _is_field(member: Object | Alias) -> bool:
    return isinstance(member, Attribute) and member.annotation is not None and "property" not in member.labels
