"""The types that values in a file may have. Each checks a value, and describes itself as a JSON Schema.

So each rule is written once: an editor that uses the schema marks what the loader would refuse.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import datetime, timedelta
from math import isfinite
from typing import Any

from limpet.durations import LONGEST_SPAN
from limpet.yaml_files.document import Value
from limpet.yaml_files.grammar.mistakes import Mistakes

Schema = dict[str, Any]

TEMPLATE_PATTERN = r"\{[{%#]"
"""What makes a text a template."""

MAX_SHOWN = 60
"""How many characters of a value a message shows."""


def is_template(data: Any) -> bool:
    """Whether a value is a text that contains a template."""
    return isinstance(data, str) and re.search(TEMPLATE_PATTERN, data) is not None


class ValueType(ABC):
    """The type of a value. `expected` describes it in a few words, for messages: "a list of nodes"."""

    expected: str

    @abstractmethod
    def accepts(self, value: Value) -> bool:
        """Whether the value has the right type at the top; what it contains is left to `check`."""

    @abstractmethod
    def schema(self) -> Schema:
        """The same rule as a JSON Schema."""

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        """Note the mistakes in a value, which messages call `what`."""
        if not self.accepts(value):
            self._note_mismatch(value, what, mistakes)

    def _note_mismatch(self, value: Value, what: str, mistakes: Mistakes) -> None:
        mistakes.note(value, f"{what} must be {self.expected}, not {shown(value)}")


class AnyValue(ValueType):
    """Any value."""

    expected = "anything"

    def accepts(self, value: Value) -> bool:
        return True

    def schema(self) -> Schema:
        return {}


class Text(ValueType):
    """A text that isn't empty and, if there is a `pattern`, matches it."""

    def __init__(self, expected: str = "a text", pattern: str = "") -> None:
        self.expected = expected
        self.pattern = pattern

    def accepts(self, value: Value) -> bool:
        return isinstance(value.data, str)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        if not self.accepts(value) or not value.data or not re.search(self.pattern, value.data):
            self._note_mismatch(value, what, mistakes)

    def schema(self) -> Schema:
        schema: Schema = {"type": "string", "minLength": 1}
        if self.pattern:
            schema["pattern"] = self.pattern
        return schema


class AnyText(ValueType):
    """A text, which may be empty."""

    expected = "a text"

    def accepts(self, value: Value) -> bool:
        return isinstance(value.data, str)

    def schema(self) -> Schema:
        return {"type": "string"}


class Number(ValueType):
    """A finite number of at least `least` or above `above`, and of at most `most`."""

    def __init__(
        self,
        expected: str,
        *,
        least: float | None = None,
        above: float | None = None,
        most: float | None = None,
    ) -> None:
        self.expected = expected
        self.least = least
        self.above = above
        self.most = most

    def accepts(self, value: Value) -> bool:
        return type(value.data) in (int, float)  # isinstance() would take true and false for numbers

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        if not self.accepts(value) or not self._is_in_range(value.data):
            self._note_mismatch(value, what, mistakes)

    def _is_in_range(self, number: float) -> bool:
        if type(number) is float and not isfinite(number):
            return False
        if self.least is not None and number < self.least:
            return False
        if self.above is not None and number <= self.above:
            return False
        return self.most is None or number <= self.most

    def schema(self) -> Schema:
        limits = {"minimum": self.least, "exclusiveMinimum": self.above, "maximum": self.most}
        return {"type": "number", **{word: limit for word, limit in limits.items() if limit is not None}}


class Integer(Number):
    """A whole number."""

    def accepts(self, value: Value) -> bool:
        return type(value.data) is int

    def schema(self) -> Schema:
        return {**super().schema(), "type": "integer"}


class PointInTime(ValueType):
    """When: seconds from now, a text as `durations.Moment` has it, or what a template may give: a date or a span."""

    expected = "a number of seconds, or a time such as 90s, 30m, 12h, 7d or 2026-05-01T12:00Z"
    pattern = r"^ *[0-9]+(\.[0-9]+)? *[smhdw] *$|^[0-9]{4}-[0-9]{2}-[0-9]{2}"
    seconds = Number("a number of seconds", least=0, most=LONGEST_SPAN)

    def accepts(self, value: Value) -> bool:
        return self.seconds.accepts(value) or isinstance(value.data, (str, datetime, timedelta))

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        match value.data:
            case str():
                fits = re.search(self.pattern, value.data) is not None
            case int() | float():
                fits = _has_no_mistake(self.seconds, value)
            case _:
                fits = self.accepts(value)
        if not fits:
            self._note_mismatch(value, what, mistakes)

    def schema(self) -> Schema:
        return {"anyOf": [self.seconds.schema(), {"type": "string", "pattern": self.pattern}]}


class Boolean(ValueType):
    """true or false."""

    expected = "true or false"

    def accepts(self, value: Value) -> bool:
        return type(value.data) is bool

    def schema(self) -> Schema:
        return {"type": "boolean"}


class Null(ValueType):
    """null."""

    expected = "null"

    def accepts(self, value: Value) -> bool:
        return value.data is None

    def schema(self) -> Schema:
        return {"type": "null"}


class OneWordOf(ValueType):
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.expected = alternatives(repr(word) for word in words)

    def accepts(self, value: Value) -> bool:
        return isinstance(value.data, str)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        if value.data in self.words:
            return
        if self.accepts(value) and not value.hidden:
            mistakes.unknown(value, f"{what} can't be", value.data, self.words)
        else:
            self._note_mismatch(value, what, mistakes)

    def schema(self) -> Schema:
        return {"enum": list(self.words)}


class Templated(ValueType):
    """A value of a type, or a template that gives one when the node runs."""

    def __init__(self, value_type: ValueType) -> None:
        self.value_type = value_type
        self.expected = f"{value_type.expected} or a template"

    def accepts(self, value: Value) -> bool:
        return is_template(value.data) or self.value_type.accepts(value)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        if not is_template(value.data):
            self.value_type.check(value, what, mistakes)

    def schema(self) -> Schema:
        inner = self.value_type.schema()
        if not inner:
            return {}
        return {"anyOf": [inner, {"type": "string", "pattern": TEMPLATE_PATTERN}]}


class NotTemplated(ValueType):
    """A value of a type that can't be a template, for the reason that messages give."""

    def __init__(self, value_type: ValueType, reason: str) -> None:
        self.value_type = value_type
        self.expected = value_type.expected
        self.reason = reason

    def accepts(self, value: Value) -> bool:
        return self.value_type.accepts(value)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        if is_template(value.data):
            mistakes.note(value, f"{what} can't be a template: {self.reason}")
        else:
            self.value_type.check(value, what, mistakes)

    def schema(self) -> Schema:
        return {"allOf": [self.value_type.schema(), {"not": {"type": "string", "pattern": TEMPLATE_PATTERN}}]}


class ListOf(ValueType):
    """A list of values of one type, at least `least` of them. `first` is the type of the first, if that differs."""

    def __init__(
        self, item_type: ValueType, expected: str, least: int = 0, first: ValueType | None = None
    ) -> None:
        self.item_type = item_type
        self.expected = expected
        self.least = least
        self.first = first or item_type

    def accepts(self, value: Value) -> bool:
        return isinstance(value.data, list)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        if not self.accepts(value) or len(value.data) < self.least:
            self._note_mismatch(value, what, mistakes)
            return
        for number, each in enumerate(value.data):
            item_type = self.item_type
            if number == 0:
                item_type = self.first
            item_type.check(each, f"{what}[{number}]", mistakes)

    def schema(self) -> Schema:
        schema: Schema = {"type": "array"}
        if self.first is self.item_type:
            schema["items"] = self.item_type.schema()
        else:
            schema["items"] = [self.first.schema()]
            schema["additionalItems"] = self.item_type.schema()
        if self.least:
            schema["minItems"] = self.least
        return schema


class MapOf(ValueType):
    """A mapping of texts to values of one type. With `any_scalar_keys`, numbers, booleans and null are keys too."""

    def __init__(
        self, value_type: ValueType, expected: str, least: int = 0, any_scalar_keys: bool = False
    ) -> None:
        self.value_type = value_type
        self.expected = expected
        self.least = least
        self.any_scalar_keys = any_scalar_keys

    def accepts(self, value: Value) -> bool:
        return isinstance(value.data, dict)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        if not self.accepts(value) or len(value.data) < self.least:
            self._note_mismatch(value, what, mistakes)
            return
        for key, each in value.data.items():
            if not self.any_scalar_keys and not isinstance(key, str):
                mistakes.note(
                    value.keys[key], f"a key of {what} must be a text: write {str(key)!r}, in quotes"
                )
            self.value_type.check(each, f"{what}.{key}", mistakes)

    def schema(self) -> Schema:
        schema: Schema = {"type": "object", "additionalProperties": self.value_type.schema()}
        if self.least:
            schema["minProperties"] = self.least
        return schema


class AnyOf(ValueType):
    """A value of any of several types."""

    def __init__(self, *types: ValueType) -> None:
        self.types = types
        self.expected = alternatives(each.expected for each in types)

    def accepts(self, value: Value) -> bool:
        return any(each.accepts(value) for each in self.types)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        accepting = [each for each in self.types if each.accepts(value)]
        if not accepting:
            self._note_mismatch(value, what, mistakes)
            return
        if len(accepting) > 1 and any(_has_no_mistake(each, value) for each in accepting):
            return
        # No type fits completely: the mistakes are those of the first one that could be meant.
        accepting[0].check(value, what, mistakes)

    def schema(self) -> Schema:
        return {"anyOf": [each.schema() for each in self.types]}


def _has_no_mistake(value_type: ValueType, value: Value) -> bool:
    mistakes = Mistakes("")
    value_type.check(value, "", mistakes)
    return not mistakes


def alternatives(words: Iterable[str]) -> str:
    """Several alternatives in words: a, b or c."""
    *others, last = words
    if others:
        return f"{', '.join(others)} or {last}"
    return last


def shown(value: Value) -> str:
    """A value as a message shows it, shortened."""
    data = value.data
    if value.hidden:
        return f"this {type(data).__name__}"
    if data is None:
        return "nothing"
    if isinstance(data, bool):
        return str(data).lower()
    if isinstance(data, dict):
        if data:
            return f"a mapping ({', '.join(map(str, data))[:40]})"
        return "an empty mapping"
    if isinstance(data, list):
        if data:
            return f"a list of {len(data)}"
        return "an empty list"
    text = repr(data)
    if len(text) > MAX_SHOWN:
        return f"{text[: MAX_SHOWN - 3]}…"
    return text
