"""Forms: what a client shows for a question, and the answer that a filled form is."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

import pytest
from mcp_types._v2026_07_28 import PrimitiveSchemaDefinition
from pydantic import BaseModel, Field, TypeAdapter

from limpet.engine.node_context.questions import check_answer, question_for
from limpet.errors import AnswerRefused
from limpet.integrations.mcp.forms import MOST_CHOICES, form_of


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Order(BaseModel):
    """Flat, with all that a form can have."""

    colour: Colour
    size: Literal["S", "L"] = "L"
    count: int = Field(3, ge=1, le=9)
    weight: float | None = None
    note: str = Field("", max_length=20, description="What else?")
    gift: bool = False


class Nested(BaseModel):
    """Not flat."""

    orders: list[Order]


def form(choices: Any = None, schema: Any = None) -> Any:
    """The form of a question."""
    return form_of(question_for("ask:1:1", "Well?", "ask", choices, schema))


def test_each_field_is_one_that_the_protocol_has() -> None:
    """P13: what a field can't say is checked when the answer comes."""
    fields = form(schema=Order).schema["properties"]
    for field in fields.values():
        TypeAdapter(PrimitiveSchemaDefinition).validate_python(field)
    assert fields == {
        "colour": {"type": "string", "enum": ["red", "blue"]},
        "size": {"type": "string", "enum": ["S", "L"], "title": "Size"},
        "count": {"type": "integer", "title": "Count", "minimum": 1, "maximum": 9, "default": 3},
        "weight": {"type": "number", "title": "Weight"},
        "note": {
            "type": "string",
            "title": "Note",
            "description": "What else?",
            "maxLength": 20,
            "default": "",
        },
        "gift": {"type": "boolean", "title": "Gift", "default": False},
    }
    assert form(schema=Order).schema["required"] == ["colour"]


@pytest.mark.parametrize(
    ("choices", "shown", "chosen", "meant"),
    [
        (["yes", "no"], ["yes", "no"], "no", "no"),
        ([1, 2.5, None, True], ["1", "2.5", "null", "true"], "null", None),
        (["1", 1], ['"1"', "1"], "1", 1),
        ([{"a": 1}, {"a": 2}], ['{"a":1}', '{"a":2}'], '{"a":2}', {"a": 2}),
    ],
)
def test_choices_are_texts_that_stand_for_values(
    choices: list[Any], shown: list[str], chosen: str, meant: Any
) -> None:
    """P13: also where two of them would look the same."""
    made = form(choices)
    assert made.schema["properties"]["answer"]["enum"] == shown
    assert made.read({"answer": chosen}) == meant
    for wrong in ({"answer": "other"}, {}):
        with pytest.raises(AnswerRefused):
            made.read(wrong)


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        (bool, {"type": "boolean"}),
        (int, {"type": "integer"}),
        ({"type": "string", "format": "date", "pattern": "^2"}, {"type": "string", "format": "date"}),
        ({"type": "string", "format": "odd"}, {"type": "string"}),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, {"type": "number"}),
    ],
)
def test_a_plain_schema_is_one_field(schema: Any, field: Any) -> None:
    """P13."""
    assert form(schema=schema).schema["properties"] == {"answer": field}


@pytest.mark.parametrize(
    "schema",
    [
        Nested,
        list,
        dict,
        {"enum": [1, 2]},
        {"type": ["string", "integer"]},
        {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        {"$ref": "#/$defs/missing"},
        {"type": "object", "properties": {"a": 5}},
        {"type": "object", "properties": []},
        {"type": "string", "enum": [str(each) for each in range(MOST_CHOICES + 1)]},
    ],
)
def test_what_a_form_can_not_have_is_asked_for_as_json(schema: Any) -> None:
    """P13: whatever the schema is, the question can be answered."""
    made = form(schema=schema)
    assert made.schema["properties"]["answer"]["title"] == "Answer as JSON"
    assert made.read({"answer": '{"a": [1, null]}'}) == {"a": [1, None]}
    with pytest.raises(AnswerRefused, match="it isn't JSON"):
        made.read({"answer": "[" * 100_000})


def test_an_answer_of_a_form_fits_its_question() -> None:
    """P13: as the form was made of it."""
    question = question_for("ask:1:1", "Well?", "ask", None, Order)
    check_answer(question, form_of(question).read({"colour": "red", "count": 2}))
    with pytest.raises(AnswerRefused):
        check_answer(question, form_of(question).read({"colour": "green"}))
