"""Mappings with keys that are known, and the rules about which keys go together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from typing import Any, NamedTuple

from limpet.yaml_files.document import Value
from limpet.yaml_files.grammar.mistakes import Mistakes
from limpet.yaml_files.grammar.value_types import Kind, Schema, shown


class Field(NamedTuple):
    """What may be under a key, and what for."""

    kind: Kind
    doc: str
    required: bool = False


class Record(Kind):
    """A mapping with keys that are known.

    Of the keys in each group of `one_of` there is exactly one, of those in `at_most_one` one at most. A key in
    `needs` is there only beside one of those that it needs. `also` leads from words that people try to ours.
    """

    def __init__(
        self,
        title: str,
        doc: str,
        fields: Mapping[str, Field],
        *,
        says: str = "a mapping",
        one_of: Iterable[tuple[str, ...]] = (),
        at_most_one: Iterable[tuple[str, ...]] = (),
        needs: Iterable[tuple[str, tuple[str, ...]]] = (),
        also: Mapping[str, str] | None = None,
        details: Callable[[], Mapping[str, Mapping[str, Kind]]] | None = None,
        open_to: str = "",
    ) -> None:
        self.title, self.doc, self.fields, self.says = title, doc, fields, says
        self.one_of, self.at_most_one = list(one_of), list(at_most_one)
        self.needs, self.also = list(needs), dict(also or {})
        self.named = "name" in fields and fields["name"].required
        self.open_to = open_to
        """How keys begin that are nobody's business: anchors may be there."""
        self.details = details
        """The kinds that keys have beside one word of another key: `{"uses": {"shell": …}}` for `with`."""

    def takes(self, value: Value) -> bool:
        return isinstance(value.data, dict)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        if not isinstance(value.data, dict):
            mistakes.note(value, f"{what} is {self.says}, not {shown(value)}")
            return
        if name := value.text("name") if self.named else None:
            what = f"{self.title} {name!r}"
        for key, each in value.data.items():
            if key in self.fields:
                self.fields[key].kind.check(each, f"{key}", mistakes)
            elif not (self.open_to and isinstance(key, str) and key.startswith(self.open_to)):
                self._unknown(value.keys[key], what, key, mistakes)
        for key, field in self.fields.items():
            if field.required and key not in value.data:
                mistakes.note(value, f"{what} has no {key!r}, which it needs")
        self._together(value, what, mistakes)
        self._in_detail(value, mistakes)

    def _unknown(self, place: Value, what: str, key: Any, mistakes: Mistakes) -> None:
        if key in self.also:
            mistakes.note(place, f"{what} has no key {key!r}; did you mean {self.also[key]!r}?")
        else:
            mistakes.unknown(place, f"{what} has no key", key, self.fields)

    def _together(self, value: Value, what: str, mistakes: Mistakes) -> None:
        for group in (*self.one_of, *self.at_most_one):
            there = [key for key in group if key in value.data]
            if len(there) > 1:
                both = " and ".join(map(repr, there))
                mistakes.note(value.keys[there[1]], f"{what} has {both}, of which there can be one")
        for group in self.one_of:
            if not any(key in value.data for key in group):
                mistakes.note(value, f"{what} has none of {', '.join(map(repr, group))}; it needs one")
        for key, needed in self.needs:
            if key in value.data and not any(each in value.data for each in needed):
                mistakes.note(value.keys[key], f"{key!r} goes with {' or '.join(map(repr, needed))}")

    def _in_detail(self, value: Value, mistakes: Mistakes) -> None:
        if self.details is None:
            return
        for (switch, target), kinds in self._switches():
            chosen, given = value.text(switch), value.get(target)
            if chosen is not None and chosen in kinds:
                kinds[chosen].check(
                    given or Value({}, value.line, value.column), f"{target} of {chosen}", mistakes
                )

    def _switches(self) -> Iterable[tuple[tuple[str, str], Mapping[str, Kind]]]:
        assert self.details is not None
        for names, kinds in self.details().items():
            switch, _, target = names.partition(" ")
            yield (switch, target), kinds

    def schema(self) -> Schema:
        made: Schema = {
            "type": "object",
            "description": self.doc,
            "properties": {
                key: {**field.kind.schema(), "description": field.doc} for key, field in self.fields.items()
            },
            "additionalProperties": False,
        }
        required = [key for key, field in self.fields.items() if field.required]
        if required:
            made["required"] = required
        if self.open_to:
            made["patternProperties"] = {f"^{self.open_to}": {}}
        rules: list[Schema] = [{"oneOf": [{"required": [key]} for key in group]} for group in self.one_of]
        rules += [
            {"not": {"required": list(pair)}} for group in self.at_most_one for pair in combinations(group, 2)
        ]
        rules += [
            {"dependencies": {key: {"anyOf": [{"required": [each]} for each in needed]}}}
            for key, needed in self.needs
        ]
        rules += self._detailed()
        if rules:
            made["allOf"] = rules
        return made

    def _detailed(self) -> list[Schema]:
        if self.details is None:
            return []
        return [
            {
                "if": {"properties": {switch: {"const": word}}, "required": [switch]},
                "then": _then(target, kind),
            }
            for (switch, target), kinds in self._switches()
            for word, kind in kinds.items()
        ]


def _then(target: str, kind: Kind) -> Schema:
    inner = kind.kind() if isinstance(kind, Shared) else kind
    needed = isinstance(inner, Record) and (
        inner.one_of or any(each.required for each in inner.fields.values())
    )
    return {"properties": {target: kind.schema()}, **({"required": [target]} if needed else {})}


class Shared(Kind):
    """A kind that is used in several places, or inside of itself: the schema has it once, under a name."""

    named: dict[str, Callable[[], Kind]] = {}  # noqa: RUF012  # all there are, for the schema

    def __init__(self, name: str, says: str, kind: Callable[[], Kind]) -> None:
        self.name, self.says, self.kind = name, says, kind
        Shared.named[name.replace(" ", "-")] = kind

    def takes(self, value: Value) -> bool:
        return self.kind().takes(value)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        self.kind().check(value, what, mistakes)

    def schema(self) -> Schema:
        return {"allOf": [{"$ref": f"#/definitions/{self.name.replace(' ', '-')}"}]}
