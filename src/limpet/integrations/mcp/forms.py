"""The form of a question, as clients show it to a person, and the answer that a filled form gives.

A form is flat: texts, numbers, flags and choices. What a question takes beyond that is asked for as JSON in a text.
A secret question has no form: what a person types into one passes through the client, and maybe a model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from limpet.engine.node_context.questions import NOT_GIVEN
from limpet.engine.operations.run_info import RunInfo
from limpet.errors import AnswerRefused
from limpet.frontends.values import shown_value, to_bytes
from limpet.journal.waits import Question

ANSWER: Final = "answer"
"""The only field of a form for one value."""

APPROVAL: Final = "approval"
"""Stands for the id of a question where a run waits for an approval. No question has an id without a colon."""

LONGEST_SCHEMA: Final = 4000
"""Characters of a schema that a person is shown, at most."""

LONGEST_PROMPT: Final = 20_000
"""The same of a prompt."""

MOST_CHOICES: Final = 500
"""Choices that are listed in a form, at most."""

MORE_FORMATS: Final = ("date", "date-time", "email", "uri")
SHARED_KEYS: Final = ("title", "description")
OWN_KEYS: Final[Mapping[str, Sequence[str]]] = {
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "boolean": (),
}
"""The types of fields that a form may have, and what each may say besides the shared keys."""

PYTHON_TYPES: Final[Mapping[str, Any]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}

JsonSchema = Mapping[str, Any]
Content = Mapping[str, Any]


class Form(NamedTuple):
    """A form: what is asked, its fields as a flat JSON Schema, and how the answer is read from what was filled in."""

    question_id: str
    message: str
    schema: dict[str, Any]
    read: Callable[[Content], Any]
    """Raises `AnswerRefused` for what can't be an answer. `NOT_GIVEN` stands for an approval."""


def forms_of(run: RunInfo) -> list[Form]:
    """The forms of all that a run asks, except for secrets."""
    if run.waits_for_approval:
        return [_approval_form(run)]
    return [form_of(question) for question in run.questions if not question.secret]


def form_of(question: Question) -> Form:
    """The form of a question that isn't secret."""
    message = question.prompt[:LONGEST_PROMPT]
    if question.choices is not None and len(question.choices) <= MOST_CHOICES:
        return _choice_form(question, message)
    schema = question.schema
    if schema is None and question.choices is None:
        return _one_field(question, message, {"type": "string"}, _as_it_is)
    if schema is not None and question.choices is None:
        shared = schema.get("$defs", {})
        field = _field(schema, shared)
        if field is not None:
            return _one_field(question, message, field, _as_it_is)
        fields = _fields(schema, shared)
        if fields is not None:
            return Form(question.id, message, fields, dict)
    return _json_form(question, message)


def _approval_form(run: RunInfo) -> Form:
    field = {"type": "boolean", "title": "Approve", "description": "whether the run may continue"}

    def read(content: Content) -> Any:
        if content.get(ANSWER) is not True:
            raise AnswerRefused(APPROVAL, "the run was not approved")
        return NOT_GIVEN

    message = f"Run {run.run_id} of {run.graph} was {run.reason}. May it continue?"
    return Form(APPROVAL, message, _schema_of({ANSWER: field}, [ANSWER]), read)


def _choice_form(question: Question, message: str) -> Form:
    choices = question.choices or []
    texts = [each if isinstance(each, str) else _json(each) for each in choices]
    if len(set(texts)) < len(texts):  # such as "1" besides 1
        texts = [_json(each) for each in choices]
    by_text = dict(zip(texts, choices, strict=True))

    def read(value: Any) -> Any:
        if value not in by_text:
            raise AnswerRefused(question.id, f"{value!r} is not one of {', '.join(by_text)}")
        return by_text[value]

    return _one_field(question, message, {"type": "string", "enum": texts}, read)


def _json_form(question: Question, message: str) -> Form:
    described = ""
    if question.schema is not None:
        described = f" that fits this schema: {_json(question.schema)[:LONGEST_SCHEMA]}"
    field = {"type": "string", "title": "Answer as JSON", "description": f"JSON{described}"}

    def read(value: Any) -> Any:
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as problem:
            raise AnswerRefused(question.id, f"it isn't JSON: {problem}") from None

    return _one_field(question, message, field, read)


def _one_field(question: Question, message: str, field: JsonSchema, read: Callable[[Any], Any]) -> Form:
    def read_field(content: Content) -> Any:
        if ANSWER not in content:
            raise AnswerRefused(question.id, f"the form has no {ANSWER!r}")
        return read(content[ANSWER])

    return Form(question.id, message, _schema_of({ANSWER: field}, [ANSWER]), read_field)


def _as_it_is(value: Any) -> Any:
    return value


def _fields(schema: JsonSchema, shared: JsonSchema) -> dict[str, Any] | None:
    """A schema of an object as that of a form; None for one that isn't flat."""
    schema = _resolved(schema, shared)
    properties = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, Mapping) or not properties:
        return None
    fields: dict[str, Any] = {}
    for name, each in properties.items():
        field = _field(each, shared)
        if field is None:
            return None
        fields[name] = field
    return _schema_of(fields, schema.get("required", ()))


def _field(schema: Any, shared: JsonSchema) -> dict[str, Any] | None:
    """A schema as that of a field; None for one that a form can't have."""
    if not isinstance(schema, Mapping):
        return None
    about = {key: schema[key] for key in SHARED_KEYS if isinstance(schema.get(key), str)}
    resolved = _resolved(schema, shared)
    if "anyOf" in resolved:
        others = [each for each in resolved["anyOf"] if each != {"type": "null"}]
        if len(others) != 1:
            return None
        resolved = _resolved(others[0], shared)
    kind = str(resolved.get("type"))
    listed = resolved.get("enum")
    if listed is not None:
        if not all(isinstance(each, str) for each in listed) or len(listed) > MOST_CHOICES:
            return None
        return {"type": "string", "enum": list(listed), **about}
    if kind not in OWN_KEYS or "const" in resolved:
        return None
    field = {"type": kind, **about, **{key: resolved[key] for key in OWN_KEYS[kind] if key in resolved}}
    if resolved.get("format") in MORE_FORMATS:
        field["format"] = resolved["format"]
    default = schema.get("default")
    if isinstance(default, PYTHON_TYPES[kind]) and (kind == "boolean" or not isinstance(default, bool)):
        field["default"] = default
    return field


def _resolved(schema: Any, shared: JsonSchema) -> JsonSchema:
    """The schema that one refers to, or itself."""
    if not isinstance(schema, Mapping):
        return {}
    if "$ref" in schema:
        found = shared.get(str(schema["$ref"]).rpartition("/")[2], {})
        return found if isinstance(found, Mapping) else {}
    return schema


def _schema_of(fields: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(fields), "required": list(required)}


def _json(value: Any) -> str:
    return to_bytes(shown_value(value)).decode()
