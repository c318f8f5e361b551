"""The schema of a graph's state: its keys, their starting values and their reducers.

A schema is a dict of types, a TypedDict, a dataclass or a pydantic model. `Annotated[list, append]`, or
any other `(old, new) -> merged` function in the annotation, gives a key its reducer; `secret` keeps its value
from being shown. A schema describes and doesn't restrict: nodes may return keys that it doesn't name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from limpet.errors import DefinitionError, UsageError
from limpet.graphs.reducers import Reducer
from limpet.graphs.secrets import mask_text, secret_keys_of, text_forms
from limpet.graphs.state import LiveState


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

    @property
    def validates(self) -> bool:
        """Whether the first state of a run is validated, by a pydantic model."""
        return _is_model(self.source)

    def initial(self, given: Any) -> dict[str, Any]:
        """The first state of a run: the defaults, with `given` over them.

        `given` is a mapping, or an instance of the schema's own class. A pydantic schema validates it.
        Raises `UsageError` if it doesn't fit the schema.
        """
        values = _as_dict(given)
        if self.validates:
            made = _validated(self.source, values, self.secrets)
            values = {**made, **_unknown(values, self.keys)}
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
    if isinstance(source, Mapping):
        keys = dict(source)
    elif isinstance(source, type) and (is_dataclass(source) or _is_model(source) or _is_typed_dict(source)):
        keys = get_type_hints(source, include_extras=True)
        if _is_model(source):
            keys = {name: keys[name] for name in source.model_fields}  # type: ignore[attr-defined]  # a model
    elif source is dict:
        keys = {}
    else:
        raise DefinitionError(
            f"a schema must be a dict of types, a TypedDict, a dataclass or a pydantic model, not {source!r}"
        )
    reducers = {key: found for key, hint in keys.items() if (found := _reducer(hint)) is not None}
    defaults = _defaults(source, keys, reducers)
    return Schema(keys, reducers, defaults, source, secrets=secret_keys_of(keys))


def _reducer(hint: Any) -> Reducer | None:
    if get_origin(hint) is not Annotated:
        return None
    for extra in get_args(hint)[1:]:
        if callable(extra) and not isinstance(extra, type):
            return extra  # type: ignore[no-any-return]  # any function can be a reducer
    return None


def _defaults(source: Any, keys: Mapping[str, Any], reducers: Mapping[str, Reducer]) -> dict[str, Any]:
    found: dict[str, Callable[[], Any]] = {}
    for key in reducers:
        kind = get_args(keys[key])[0]
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
    if _is_model(type(given)):
        return {name: getattr(given, name) for name in type(given).model_fields}
    raise UsageError(f"the input of a run must be a dict of state values, not {type(given).__name__}")


def _validated(model: Any, values: dict[str, Any], secrets: frozenset[str]) -> dict[str, Any]:
    known = {key: value for key, value in values.items() if key in model.model_fields}
    try:
        made = model.model_validate(known)
    except ValueError as problem:
        if secrets:
            forms = text_forms(known[key] for key in secrets if key in known)
            shown = mask_text(_errors_without_values(problem), forms)
            raise UsageError(f"the input doesn't fit {model.__name__}: {shown}") from None
        raise UsageError(f"the input doesn't fit {model.__name__}: {problem}") from problem
    return {name: getattr(made, name) for name in model.model_fields}


def _errors_without_values(problem: Any) -> str:
    """The errors of pydantic without the values that they are about."""
    if not hasattr(problem, "errors"):
        return str(problem)
    texts = []
    for error in problem.errors(include_input=False, include_url=False, include_context=False):
        place = ".".join(map(str, error["loc"]))
        texts.append(f"{place}: {error['msg']}")
    return "; ".join(texts)


def _unknown(values: dict[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def _is_model(source: Any) -> bool:
    return isinstance(source, type) and hasattr(source, "model_fields") and hasattr(source, "model_validate")


def _is_typed_dict(source: Any) -> bool:
    return isinstance(source, type) and issubclass(source, dict) and hasattr(source, "__required_keys__")
