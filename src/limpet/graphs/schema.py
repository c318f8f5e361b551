"""The schema of a graph's state: its keys, their starting values and their reducers.

A schema is a dict of types, a TypedDict, a dataclass or a pydantic model. `Annotated[list, append]`, or
any other `(old, new) -> merged` function in the annotation, gives a key its reducer; `secret` keeps its value
from being shown. A dataclass or a pydantic model validates values where they enter. Otherwise a schema describes and
doesn't restrict: nodes may return keys that it doesn't name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from limpet.errors import DefinitionError, UsageError
from limpet.graphs.reducers import Reducer
from limpet.graphs.secrets import secret_keys_of
from limpet.graphs.state import LiveState
from limpet.graphs.typed_state.annotations import (
    has_instances,
    is_model,
    plain_type,
    reducers_in,
    register_classes,
)

if TYPE_CHECKING:
    from limpet.graphs.typed_state.field_checks import FieldChecks


class Schema(NamedTuple):
    """The keys of a state with their types, reducers and starting values."""

    keys: Mapping[str, Any]
    reducers: Mapping[str, Reducer]
    defaults: Mapping[str, Callable[[], Any]]
    source: Any = None
    live_class: type[LiveState] = LiveState
    """The class of a run's state while it runs."""
    secrets: frozenset[str] = frozenset()
    """The keys whose values are never shown."""
    checks: FieldChecks | None = None
    """Whether values fit the class that describes the state; None if it isn't described by a class of instances."""

    def initial(self, given: Any) -> dict[str, Any]:
        """The first state of a run: the defaults, with `given` over them.

        `given` is a mapping, or an instance of the schema's own class. A dataclass or a pydantic model validates it.
        Raises `UsageError` if it doesn't fit the schema.
        """
        values = _as_dict(given)
        if self.checks is not None:
            values = self.checks.first(values)
        for key, make in self.defaults.items():
            if key not in values:
                values[key] = make()
        for key in values:
            if type(key) is not str:
                raise UsageError(f"a state key must be a str, not {type(key).__name__}: {key!r}")
        return values


def read_schema(source: Any) -> Schema:
    """The schema from a user's description of the state. Raises `DefinitionError` if it isn't one."""
    if source is None:
        return Schema({}, {}, {})
    types = get_args(source)
    if types:
        source = get_origin(source)  # a generic class, with the types that it is of
    if isinstance(source, Mapping):
        keys = dict(source)
    elif has_instances(source) or _is_typed_dict(source):
        keys = _with_types(_hints_of(source), source, types)
    elif source is dict:
        keys = {}
    else:
        raise DefinitionError(
            f"a schema must be a dict of types, a TypedDict, a dataclass or a pydantic model, not {source!r}"
        )
    reducers = reducers_in(keys)
    register_classes(keys)
    secrets = secret_keys_of(keys)
    checks = None
    if has_instances(source):
        from limpet.graphs.typed_state.field_checks import FieldChecks

        checks = FieldChecks(source, keys, secrets)
    return Schema(keys, reducers, _defaults(source, keys, reducers), source, secrets=secrets, checks=checks)


def _hints_of(source: Any) -> dict[str, Any]:
    """The types of a class's fields. Raises `DefinitionError` if a name in them isn't known here."""
    try:
        hints = get_type_hints(source, include_extras=True)
    except NameError as problem:
        raise DefinitionError(
            f"the annotations of {source.__name__} can't be read: {problem}; define or import it in the module"
        ) from problem
    if is_model(source):
        return {name: hints[name] for name in source.model_fields}
    if is_dataclass(source):
        return {field.name: hints[field.name] for field in fields(source)}
    return hints


def _with_types(hints: dict[str, Any], source: Any, types: tuple[Any, ...]) -> dict[str, Any]:
    """The types of a generic class's fields, where it is of these types."""
    if not types:
        return hints
    by_variable = dict(zip(source.__parameters__, types, strict=True))
    filled = {}
    for name, hint in hints.items():
        variables = getattr(hint, "__parameters__", ())
        if isinstance(hint, TypeVar):
            hint = by_variable[hint]
        elif variables:
            hint = hint[tuple(by_variable[each] for each in variables)]
        filled[name] = hint
    return filled


def _defaults(source: Any, keys: Mapping[str, Any], reducers: Mapping[str, Reducer]) -> dict[str, Any]:
    found: dict[str, Callable[[], Any]] = {}
    for key in reducers:
        kind = plain_type(keys[key])
        kind = get_origin(kind) or kind
        if kind in (list, dict, set, frozenset, tuple, int, float, str):
            found[key] = kind
    if is_dataclass(source):
        for field in fields(source):
            if field.default_factory is not MISSING:
                found[field.name] = field.default_factory
            elif field.default is not MISSING:
                found[field.name] = partial(_unchanged, field.default)
    return found


def _unchanged(value: Any) -> Any:
    return value


def _as_dict(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    if is_dataclass(given) and not isinstance(given, type):
        return {field.name: getattr(given, field.name) for field in fields(given)}
    if is_model(type(given)):
        return {name: getattr(given, name) for name in type(given).model_fields}
    raise UsageError(f"the input of a run must be a dict of state values, not {type(given).__name__}")


def _is_typed_dict(source: Any) -> bool:
    return isinstance(source, type) and issubclass(source, dict) and hasattr(source, "__required_keys__")
