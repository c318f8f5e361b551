"""What a run of a graph can be started with, as a JSON Schema: enough for a form.

Where pydantic is installed, it describes the types of keys. Without it, the common ones are described here: plain
types, `Literal`, enums, optional values, lists and dicts of them, dataclasses and TypedDicts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import partial
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import (
    Any,
    Final,
    Literal,
    NamedTuple,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from limpet.frontends.values import not_json, shown_value
from limpet.graphs.plan import PLANNER, Plan
from limpet.graphs.typed_state.annotations import is_model, plain_type
from limpet.graphs.workflow.layers import Layers

PLAIN_TYPES: Final[Mapping[Any, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    list: "array",
    tuple: "array",
    set: "array",
    frozenset: "array",
    dict: "object",
    NoneType: "null",
    None: "null",
}
"""Types by their names in JSON Schema."""

INPUT: Final = "input "
OPTIONAL_INPUT: Final = "optional_input "
"""How a parameter of a task begins that takes an input of the run."""

MAX_DEPTH: Final = 10
"""Levels of types in types that are described."""

SHOWN_FOR_SECRETS: Final = ("type", "title", "description", "format", "anyOf", "items", "$ref")
"""What is shown of the schema of a secret key: nothing that may have a value."""

VALUES: Final = ("default", "examples", "example", "const", "enum")
"""What a schema has values in."""

JsonSchema = dict[str, Any]


class Key(NamedTuple):
    """A key of an input: its type, and its default as JSON if it has one that is always the same."""

    hint: Any
    default: tuple[Any, ...] = ()


def input_schema(plan: Plan) -> JsonSchema:
    """The schema of what runs of this plan can be started with. Defaults of secret keys are left out."""
    if plan.layers is not None:
        keys, required = _inputs_of_tasks(plan.layers)
        schema = _described(keys, required)
    elif is_model(plan.schema.source):
        schema = _of_model(plan.schema.source) or _described(_keys_of(plan), [])
    else:
        schema = _described(_keys_of(plan), [])
    return _without_secrets(schema, plan.secrets)


def type_name(hint: Any) -> str:
    """The type of a key in one word, "any" for those that have none."""
    return _plain_name(plain_type(hint)) or "any"


def _plain_name(hint: Any) -> str | None:
    """The name that JSON has for a plain type; None for all others."""
    try:
        return PLAIN_TYPES.get(get_origin(hint) or hint)
    except TypeError:  # what isn't hashable isn't a type, such as [int]
        return None


def _of_model(model: Any) -> JsonSchema:
    """The schema of a pydantic model; empty if it has none, because of a field of another library's class."""
    try:
        schema: JsonSchema = model.model_json_schema(by_alias=False)
    except Exception:  # whatever a user's field raises
        return {}
    shared = schema.get("$defs", {})
    # A model that contains itself is among what is shared.
    reference = schema.pop("$ref", "").rpartition("/")[2]
    return {**schema, **shared.get(reference, {})}


def _keys_of(plan: Plan) -> dict[str, Key]:
    defaults = plan.schema.defaults
    return {key: Key(hint, _default(defaults.get(key))) for key, hint in plan.schema.keys.items()}


def _default(make: Callable[[], Any] | None) -> tuple[Any, ...]:
    """The default that a function makes, in a tuple; an empty one if it may be another each time."""
    if make is None or not (isinstance(make, partial) or make in PLAIN_TYPES):
        return ()
    value = make()
    if not_json({"": value}):
        return ()
    return (shown_value(value),)


def _inputs_of_tasks(layers: Layers) -> tuple[dict[str, Key], list[str]]:
    """The inputs that the tasks of a workflow take, and those that they need."""
    found: dict[str, Key] = {}
    required: list[str] = []
    for name, node in layers.nodes.items():
        if name == PLANNER or node.function is None:
            continue
        known = _parameters_of(node.function.call)
        for parameter, source in node.function.takes:
            input = source.removeprefix(INPUT).removeprefix(OPTIONAL_INPUT)
            if source.startswith(INPUT):
                required.append(input)
            if source.startswith((INPUT, OPTIONAL_INPUT)):
                found.setdefault(input, known.get(parameter, Key(Any)))
    return found, list(dict.fromkeys(required))


def _parameters_of(function: Any) -> dict[str, Key]:
    """What is known of the parameters of a user's function."""
    with suppress(Exception):  # names that aren't there, objects without a signature
        hints = get_type_hints(function, include_extras=True)
        found = {}
        for name, parameter in signature(function).parameters.items():
            default: tuple[Any, ...] = ()
            if parameter.default is not Parameter.empty and not not_json({"": parameter.default}):
                default = (parameter.default,)
            found[name] = Key(hints.get(name, Any), default)
        return found
    return {}


def _described(keys: Mapping[str, Key], required: Iterable[str]) -> JsonSchema:
    properties, shared = _schemas_of({name: key.hint for name, key in keys.items()})
    for name, key in keys.items():
        if key.default:
            properties[name] = {**properties[name], "default": key.default[0]}
    schema: JsonSchema = {"type": "object", "properties": properties}
    if needed := list(required):
        schema["required"] = needed
    if shared:
        schema["$defs"] = shared
    return schema


def _schemas_of(hints: Mapping[str, Any]) -> tuple[dict[str, JsonSchema], JsonSchema]:
    """The schemas of types by key, and what they share."""
    try:
        from pydantic import TypeAdapter
    except ImportError:
        return {key: _plain_schema(hint) for key, hint in hints.items()}, {}
    described: dict[str, JsonSchema] = {}
    shared: JsonSchema = {}
    for key, hint in hints.items():
        try:
            schema = TypeAdapter(plain_type(hint)).json_schema(by_alias=False)
        except Exception:  # of a class that pydantic doesn't know
            schema = _plain_schema(hint)
        shared |= schema.pop("$defs", {})
        described[key] = schema
    return described, shared


def _plain_schema(hint: Any, depth: int = 0) -> JsonSchema:
    """The schema of a type without the help of pydantic; an empty one for what isn't known."""
    hint = plain_type(hint)
    if depth > MAX_DEPTH:
        return {}
    origin = get_origin(hint)
    parts = [each for each in get_args(hint) if each is not Ellipsis]
    if origin is Literal:
        return {"enum": parts}
    if origin in (Union, UnionType):
        return {"anyOf": [_plain_schema(each, depth + 1) for each in parts]}
    name = _plain_name(hint)
    if name == "array" and len(parts) == 1:
        return {"type": name, "items": _plain_schema(parts[0], depth + 1)}
    if name == "object" and len(parts) == 2:
        return {"type": name, "additionalProperties": _plain_schema(parts[1], depth + 1)}
    if name is not None:
        return {"type": name}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [shown_value(member.value) for member in hint]}
    if is_typeddict(hint):
        return _of_fields(hint, hint.__required_keys__, depth)
    if is_dataclass(hint):
        return _of_fields(hint, _needed_fields(hint), depth)
    return {}


def _of_fields(kind: Any, required: Collection[str], depth: int) -> JsonSchema:
    with suppress(NameError, TypeError):
        hints = get_type_hints(kind, include_extras=True)
        properties = {name: _plain_schema(hint, depth + 1) for name, hint in hints.items()}
        # A TypedDict takes annotations that are texts for required.
        needed = [name for name in hints if name in required and get_origin(hints[name]) is not NotRequired]
        return {"type": "object", "properties": properties, "required": needed}
    return {"type": "object"}


def _needed_fields(kind: Any) -> list[str]:
    return [
        field.name
        for field in fields(kind)
        if field.init and field.default is MISSING and field.default_factory is MISSING
    ]


def _without_secrets(schema: JsonSchema, secrets: frozenset[str]) -> JsonSchema:
    """The schema without values of secret keys, at any depth, and without those that hold one."""
    shared = schema.get("$defs", {})
    hidden: set[str] = set()
    waiting = list(_schemas_of_secrets(schema, secrets))
    while waiting:
        found = _references(waiting.pop()) & shared.keys() - hidden
        hidden |= found
        waiting += [shared[name] for name in found]
    shown: JsonSchema = _Hiding(secrets, hidden).shown(schema)
    return shown


def _schemas_of_secrets(schema: Any, secrets: frozenset[str]) -> Iterator[Any]:
    """The schemas of all secret keys."""
    for part in _parts(schema):
        properties = part.get("properties")
        if isinstance(properties, dict):
            yield from (properties[name] for name in secrets & properties.keys())


def _references(schema: Any) -> set[str]:
    """The names of the shared schemas that one refers to."""
    return {str(part["$ref"]).rpartition("/")[2] for part in _parts(schema) if "$ref" in part}


def _parts(schema: Any) -> Iterator[JsonSchema]:
    """All objects in a schema."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            yield part
            waiting += part.values()


class _Hiding(NamedTuple):
    """Leaves values out of a schema. `hidden` are the shared schemas that secret keys refer to.

    What holds a secret is left out whole: from a default with a mask in it, a form would send the mask.
    """

    secrets: frozenset[str]
    hidden: Collection[str]

    def shown(self, schema: Any, is_secret: bool = False) -> Any:
        """The schema, of a secret key or of another, as it is shown."""
        if isinstance(schema, list):
            return [self.shown(each, is_secret) for each in schema]
        if not isinstance(schema, dict):
            return schema
        found: JsonSchema = {}
        for name, part in schema.items():
            if name == "properties" and isinstance(part, dict):
                found[name] = {key: self._property(key, each, is_secret) for key, each in part.items()}
            elif name == "$defs":
                found[name] = {key: self.shown(each, key in self.hidden) for key, each in part.items()}
            elif name not in VALUES:
                found[name] = self.shown(part, is_secret)
            elif not is_secret and shown_value(part, self.secrets) == shown_value(part):
                found[name] = part
        return found

    def _property(self, key: str, schema: Any, is_secret: bool) -> Any:
        if key not in self.secrets:
            return self.shown(schema, is_secret)
        known = {name: schema[name] for name in SHOWN_FOR_SECRETS if name in schema}
        return {**self.shown(known, is_secret=True), "writeOnly": True}
