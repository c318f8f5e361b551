"""What values in a file may be like: each kind checks a value, and describes itself as a JSON Schema.

So a rule is written down once: what the library refuses, an editor that knows the schema marks as you type.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from math import isfinite
from typing import Any

from limpet.yaml_files.document import Value
from limpet.yaml_files.grammar.mistakes import Mistakes

Schema = dict[str, Any]

TEMPLATE = r"\{[{%#]"
"""What makes a text a template."""


def is_template(data: Any) -> bool:
    """Whether a value is a text that has something to be worked out."""
    return isinstance(data, str) and re.search(TEMPLATE, data) is not None


class Kind(ABC):
    """What a value may be like. `says` is that in a few words, for messages."""

    says: str

    @abstractmethod
    def takes(self, value: Value) -> bool:
        """Whether a value is of the right type; what is in it is another question."""

    @abstractmethod
    def schema(self) -> Schema:
        """The same rule as a JSON Schema."""

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        """Note what is wrong with a value, which is `what` to the reader."""
        if not self.takes(value):
            mistakes.note(value, f"{what} is {self.says}, not {shown(value)}")


class Anything(Kind):
    """Any value at all."""

    says = "anything"

    def takes(self, value: Value) -> bool:
        return True

    def schema(self) -> Schema:
        return {}


class Text(Kind):
    """A text that isn't empty and, if there is a `pattern`, fits it."""

    def __init__(self, says: str = "a text", pattern: str = "") -> None:
        self.says, self.pattern = says, pattern

    def takes(self, value: Value) -> bool:
        return isinstance(value.data, str)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        fits = isinstance(value.data, str) and value.data and re.search(self.pattern, value.data)
        if not fits:
            mistakes.note(value, f"{what} is {self.says}, not {shown(value)}")

    def schema(self) -> Schema:
        return {"type": "string", "minLength": 1, **({"pattern": self.pattern} if self.pattern else {})}


class AnyText(Text):
    """A text, which may be empty."""

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        Kind.check(self, value, what, mistakes)

    def schema(self) -> Schema:
        return {"type": "string"}


class Number(Kind):
    """A number from `least` on, or `above` it, and up to `most`."""

    def __init__(
        self, says: str, *, least: float | None = None, above: float | None = None, most: float | None = None
    ) -> None:
        self.says, self.least, self.above, self.most = says, least, above, most

    def takes(self, value: Value) -> bool:
        return type(value.data) in (int, float)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        data = value.data
        fits = (
            self.takes(value)
            and (type(data) is int or isfinite(data))
            and (self.least is None or data >= self.least)
            and (self.above is None or data > self.above)
            and (self.most is None or data <= self.most)
        )
        if not fits:
            mistakes.note(value, f"{what} is {self.says}, not {shown(value)}")

    def schema(self) -> Schema:
        limits = {"minimum": self.least, "exclusiveMinimum": self.above, "maximum": self.most}
        return {"type": "number", **{word: limit for word, limit in limits.items() if limit is not None}}


class Whole(Number):
    """A whole number."""

    def takes(self, value: Value) -> bool:
        return type(value.data) is int

    def schema(self) -> Schema:
        return {**super().schema(), "type": "integer"}


class Flag(Kind):
    """true or false."""

    says = "true or false"

    def takes(self, value: Value) -> bool:
        return type(value.data) is bool

    def schema(self) -> Schema:
        return {"type": "boolean"}


class Word(Kind):
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.says = listed(repr(word) for word in words)

    def takes(self, value: Value) -> bool:
        return isinstance(value.data, str)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        if self.takes(value) and value.data not in self.words and not value.hidden:
            mistakes.unknown(value, f"{what} can't be", value.data, self.words)
        elif value.data not in self.words:
            mistakes.note(value, f"{what} is {self.says}, not {shown(value)}")

    def schema(self) -> Schema:
        return {"enum": list(self.words)}


class Templated(Kind):
    """A value of some kind, or a template that gives one when it is needed."""

    def __init__(self, kind: Kind) -> None:
        self.kind, self.says = kind, f"{kind.says} or a template"

    def takes(self, value: Value) -> bool:
        return is_template(value.data) or self.kind.takes(value)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        if not is_template(value.data):
            self.kind.check(value, what, mistakes)

    def schema(self) -> Schema:
        inner = self.kind.schema()
        return {"anyOf": [inner, {"type": "string", "pattern": TEMPLATE}]} if inner else {}


class Plain(Kind):
    """A value of some kind that is no template: it is what it is, whatever the state."""

    def __init__(self, kind: Kind, why: str) -> None:
        self.kind, self.says, self.why = kind, kind.says, why

    def takes(self, value: Value) -> bool:
        return self.kind.takes(value)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        if is_template(value.data):
            mistakes.note(value, f"{what} can't be a template: {self.why}")
        else:
            self.kind.check(value, what, mistakes)

    def schema(self) -> Schema:
        return {"allOf": [self.kind.schema(), {"not": {"type": "string", "pattern": TEMPLATE}}]}


class ListOf(Kind):
    """A list of values of one kind, at least `least` of them. `first` is the kind of the first, if another."""

    def __init__(self, kind: Kind, says: str, least: int = 0, first: Kind | None = None) -> None:
        self.kind, self.says, self.least, self.first = kind, says, least, first

    def takes(self, value: Value) -> bool:
        return isinstance(value.data, list)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        if not isinstance(value.data, list) or len(value.data) < self.least:
            mistakes.note(value, f"{what} is {self.says}, not {shown(value)}")
            return
        for number, each in enumerate(value.data):
            kind = self.first if self.first is not None and number == 0 else self.kind
            kind.check(each, f"{what}[{number}]", mistakes)

    def schema(self) -> Schema:
        items: Any = self.kind.schema()
        least = {"minItems": self.least} if self.least else {}
        if self.first is not None:
            return {"type": "array", "items": [self.first.schema()], "additionalItems": items, **least}
        return {"type": "array", "items": items, **least}


class MapOf(Kind):
    """A mapping of words to values of one kind. With `scalars`, numbers, true, false and null are keys too."""

    def __init__(self, kind: Kind, says: str, least: int = 0, scalars: bool = False) -> None:
        self.kind, self.says, self.least, self.scalars = kind, says, least, scalars

    def takes(self, value: Value) -> bool:
        return isinstance(value.data, dict)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        if not isinstance(value.data, dict) or len(value.data) < self.least:
            mistakes.note(value, f"{what} is {self.says}, not {shown(value)}")
            return
        for key, each in value.data.items():
            if not self.scalars and not isinstance(key, str):
                mistakes.note(value.keys[key], f"a key of {what} is a text: write {str(key)!r}, in quotes")
            self.kind.check(each, f"{what}.{key}", mistakes)

    def schema(self) -> Schema:
        least = {"minProperties": self.least} if self.least else {}
        return {"type": "object", "additionalProperties": self.kind.schema(), **least}


class OneOf(Kind):
    """A value of any of several kinds."""

    def __init__(self, *kinds: Kind) -> None:
        self.kinds, self.says = kinds, listed(kind.says for kind in kinds)

    def takes(self, value: Value) -> bool:
        return any(kind.takes(value) for kind in self.kinds)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        fitting = [kind for kind in self.kinds if kind.takes(value)]
        if not fitting:
            mistakes.note(value, f"{what} is {self.says}, not {shown(value)}")
            return
        if len(fitting) > 1 and any(self._fits(kind, value) for kind in fitting):
            return
        fitting[0].check(value, what, mistakes)

    def _fits(self, kind: Kind, value: Value) -> bool:
        tried = Mistakes("")
        kind.check(value, "", tried)
        return not tried

    def schema(self) -> Schema:
        return {"anyOf": [kind.schema() for kind in self.kinds]}


def listed(words: Iterable[str]) -> str:
    """Several things of which there may be any: a, b or c."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def shown(value: Value) -> str:
    """A value as a message shows it: short."""
    if value.hidden:
        return f"this {type(value.data).__name__}"
    match value.data:
        case dict():
            return (
                "an empty mapping"
                if not value.data
                else f"a mapping ({', '.join(map(str, value.data))[:40]})"
            )
        case list():
            return "an empty list" if not value.data else f"a list of {len(value.data)}"
        case None:
            return "nothing"
        case bool():
            return str(value.data).lower()
        case _:
            text = repr(value.data)
            return text if len(text) <= 60 else f"{text[:57]}…"
