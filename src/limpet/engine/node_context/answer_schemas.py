"""What kind of answer a question takes: as a type in the code that asks, and as a JSON Schema where it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, NamedTuple

from limpet.errors import UsageError, did_you_mean
from limpet.graphs.typed_state.annotations import is_model

_TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": (list, tuple),
    "object": Mapping,
    "null": type(None),
}
"""The Python types of each type of JSON Schema."""

_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
"""The Python types that a question may give as its schema."""


def json_schema_of(schema: Any) -> dict[str, Any]:
    """A question's schema as it is stored. Raises `UsageError` for what can't be one."""
    if isinstance(schema, Mapping):
        return dict(schema)
    described: dict[str, Any]
    if is_model(schema):
        described = schema.model_json_schema()
        return described
    if _is_for_pydantic(schema):
        described = _adapter(schema).json_schema()
        return described
    if isinstance(schema, type) and schema in _NAMES:
        return {"type": _NAMES[schema]}
    raise UsageError(
        f"schema is a type ({', '.join(kind.__name__ for kind in _NAMES)}), a pydantic model, a dataclass, an enum "
        f"or a JSON Schema dict, not {schema!r}"
    )


def read_answer(answer: Any, schema: Any) -> Any:
    """The answer as `pause()` returns it: of the type that the schema names. Raises `ValueError` if it doesn't fit.

    It was checked when it was given, but by the schema that the code had then.
    """
    if is_model(schema):
        return schema.model_validate(answer)
    if _is_for_pydantic(schema):
        return _adapter(schema).validate_python(answer)
    if isinstance(schema, type) and schema in _NAMES:
        problem = why_unfit(answer, {"type": _NAMES[schema]})
        if problem:
            raise ValueError(problem)
        if schema in (float, list):  # of which an int and a tuple are kinds, to JSON Schema
            return schema(answer)
    return answer


def as_plain_data(answer: Any) -> Any:
    """An answer to a question with a schema, as JSON has it: an instance of a class becomes what it is made from."""
    if is_model(type(answer)):
        return answer.model_dump(mode="json", by_alias=True)
    if isinstance(answer, Enum):
        return answer.value
    if is_dataclass(answer) and not isinstance(answer, type):
        return _adapter(type(answer)).dump_python(answer, mode="json", by_alias=True)
    return answer


def _is_for_pydantic(schema: Any) -> bool:
    """Whether pydantic is needed to make the answer of plain data, although the schema isn't a model."""
    return isinstance(schema, type) and (is_dataclass(schema) or issubclass(schema, Enum))


def _adapter(schema: Any) -> Any:
    try:
        from pydantic import TypeAdapter
    except ImportError:
        missing = UsageError(f"pause(schema={schema.__name__}) needs pydantic")
        raise missing.with_advice("install limpet[pydantic]") from None
    return TypeAdapter(schema)


def why_unfit(answer: Any, schema: Mapping[str, Any], what: str = "the answer") -> str:
    """Why an answer doesn't fit the question's schema, or an empty str. Nothing fits a schema that isn't one."""
    try:
        return _mismatch(answer, schema, _Schemas(schema.get("$defs", {}), {}), what)
    except (TypeError, AttributeError, LookupError, ValueError, RecursionError) as problem:
        return f"the question's schema can't be used: {type(problem).__name__}: {problem}"


class _Schemas(NamedTuple):
    """What parts of a schema share, and why values don't fit its alternatives, as far as they were tried.

    Alternatives may have the same ones inside. If each were tried again in each, a small answer would take for ever.
    """

    shared: Mapping[str, Any]
    tried: dict[tuple[str, int, int], str]


def _mismatch(value: Any, schema: Mapping[str, Any], known: _Schemas, where: str) -> str:
    """Why a value doesn't fit a JSON Schema, or an empty str. Only the common keywords are checked."""
    if "$ref" in schema:
        schema = known.shared.get(str(schema["$ref"]).rpartition("/")[2], {})
    if "anyOf" in schema:
        place = (where, id(value), id(schema))
        if place not in known.tried:
            problems = [_mismatch(value, each, known, where) for each in schema["anyOf"]]
            known.tried[place] = "" if "" in problems else problems[0]  # one that fits is enough
        return known.tried[place]
    for check in (_wrong_type, _wrong_value, _wrong_parts):
        problem = check(value, schema, known, where)
        if problem:
            return problem
    return ""


def _wrong_type(value: Any, schema: Mapping[str, Any], known: _Schemas, where: str) -> str:
    kinds = schema.get("type")
    if kinds is None:
        return ""
    kinds = [kinds] if isinstance(kinds, str) else kinds
    for kind in kinds:
        # To Python a bool is an int; to JSON Schema it isn't.
        boolean = isinstance(value, bool)
        if isinstance(value, _TYPES.get(kind, object)) and (not boolean or kind == "boolean"):
            return ""
    return f"{where} is {value!r}, not of type {' or '.join(kinds)}"


def _wrong_value(value: Any, schema: Mapping[str, Any], known: _Schemas, where: str) -> str:
    if "enum" in schema and not any(equal(value, each) for each in schema["enum"]):
        return f"{where} is {value!r}, not one of {schema['enum']!r}"
    if "const" in schema and value != schema["const"]:
        return f"{where} is {value!r}, not {schema['const']!r}"
    number = isinstance(value, (int, float))
    if number and "minimum" in schema and value < schema["minimum"]:
        return f"{where} is {value!r}, below {schema['minimum']}"
    if number and "maximum" in schema and value > schema["maximum"]:
        return f"{where} is {value!r}, above {schema['maximum']}"
    if number and "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
        return f"{where} is {value!r}, not above {schema['exclusiveMinimum']}"
    if number and "exclusiveMaximum" in schema and value >= schema["exclusiveMaximum"]:
        return f"{where} is {value!r}, not below {schema['exclusiveMaximum']}"
    sized = isinstance(value, str)
    if sized and len(value) < schema.get("minLength", 0):
        return f"{where} is shorter than {schema['minLength']} characters"
    if sized and "maxLength" in schema and len(value) > schema["maxLength"]:
        return f"{where} is longer than {schema['maxLength']} characters"
    return ""


def _wrong_parts(value: Any, schema: Mapping[str, Any], known: _Schemas, where: str) -> str:
    if isinstance(value, Mapping):
        for key in schema.get("required", ()):
            if key not in value:
                return f"{where} has no {key!r}"
        for key, part in schema.get("properties", {}).items():
            if key in value and (problem := _mismatch(value[key], part, known, f"{where}.{key}")):
                return problem
        if schema.get("additionalProperties") is False:
            expected = schema.get("properties", {})
            for key in value:
                if key not in expected:
                    return f"{where} has {key!r}, which isn't expected{did_you_mean(key, expected)}"
    if isinstance(value, (list, tuple)):
        if len(value) < schema.get("minItems", 0):
            return f"{where} has fewer than {schema['minItems']} items"
        if "maxItems" in schema and len(value) > schema["maxItems"]:
            return f"{where} has more than {schema['maxItems']} items"
    if isinstance(value, (list, tuple)) and isinstance(schema.get("items"), Mapping):
        for index, each in enumerate(value):
            if problem := _mismatch(each, schema["items"], known, f"{where}[{index}]"):
                return problem
    return ""


def equal(answer: Any, choice: Any) -> bool:
    """Whether two values are the same answer: 1, 1.0 and True differ."""
    return type(answer) is type(choice) and bool(answer == choice)
