"""Mappings with known keys, and the rules about which keys go together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, ClassVar, Final, NamedTuple

from limpet.yaml_files.document import Value
from limpet.yaml_files.grammar.mistakes import Mistakes
from limpet.yaml_files.grammar.value_types import Schema, ValueType


class Key(NamedTuple):
    """A key of a mapping: the type of its value, what it is for, and whether it must be given."""

    value_type: ValueType
    doc: str
    required: bool = False


class TypeBySwitch(NamedTuple):
    """A key (`target`) whose type depends on the word under another key (`switch`): `with` depends on `uses`."""

    switch: str
    target: str
    types: Mapping[str, ValueType]


class KeyRules(NamedTuple):
    """Which keys go together.

    A mapping has exactly one key of each group in `one_of`, and at most one of each group in `at_most_one`. A key in
    `needs` is allowed only together with one of the keys that it needs.
    """

    one_of: Sequence[tuple[str, ...]] = ()
    at_most_one: Sequence[tuple[str, ...]] = ()
    needs: Sequence[tuple[str, tuple[str, ...]]] = ()
    type_by_switch: TypeBySwitch | None = None


_NO_RULES: Final = KeyRules()


class KeyedMapping(ValueType):
    """A mapping with known keys.

    `suggestions` leads from words that users may try to the right keys. Keys that begin with `free_prefix` are
    ignored: they are a place for anchors.
    """

    expected = "a mapping"

    def __init__(
        self,
        title: str,
        doc: str,
        keys: Mapping[str, Key],
        rules: KeyRules = _NO_RULES,
        suggestions: Mapping[str, str] | None = None,
        free_prefix: str = "",
    ) -> None:
        self.title = title
        self.doc = doc
        self.keys = keys
        self.rules = rules
        self.suggestions = dict(suggestions or {})
        self.free_prefix = free_prefix

    def accepts(self, value: Value) -> bool:
        return isinstance(value.data, dict)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        if not self.accepts(value):
            self._note_mismatch(value, what, mistakes)
            return
        has_name = "name" in self.keys and self.keys["name"].required
        name = value.text("name") if has_name else None
        if name:
            what = f"{self.title} {name!r}"
        for key, each in value.data.items():
            if key in self.keys:
                self.keys[key].value_type.check(each, f"{key}", mistakes)
            elif not self._is_free(key):
                self._note_unknown_key(value.keys[key], what, key, mistakes)
        for required in self.required_keys():
            if required not in value.data:
                mistakes.note(value, f"{what} needs the key {required!r}")
        self._check_rules(value, what, mistakes)
        self._check_type_by_switch(value, mistakes)

    def required_keys(self) -> list[str]:
        return [name for name, key in self.keys.items() if key.required]

    def _is_free(self, key: Any) -> bool:
        return bool(self.free_prefix) and isinstance(key, str) and key.startswith(self.free_prefix)

    def _note_unknown_key(self, place: Value, what: str, key: Any, mistakes: Mistakes) -> None:
        if key in self.suggestions:
            mistakes.note(place, f"{what} has no key {key!r}; did you mean {self.suggestions[key]!r}?")
        else:
            mistakes.unknown(place, f"{what} has no key", key, self.keys)

    def _check_rules(self, value: Value, what: str, mistakes: Mistakes) -> None:
        for group in (*self.rules.one_of, *self.rules.at_most_one):
            given = [key for key in group if key in value.data]
            if len(given) > 1:
                both = " and ".join(map(repr, given))
                mistakes.note(value.keys[given[1]], f"{what} has {both}; only one of them is allowed")
        for group in self.rules.one_of:
            if not any(key in value.data for key in group):
                mistakes.note(value, f"{what} needs one of {', '.join(map(repr, group))}")
        for key, needed in self.rules.needs:
            if key in value.data and not any(each in value.data for each in needed):
                mistakes.note(value.keys[key], f"{key!r} needs {' or '.join(map(repr, needed))}")

    def _check_type_by_switch(self, value: Value, mistakes: Mistakes) -> None:
        if self.rules.type_by_switch is None:
            return
        switch, target, types = self.rules.type_by_switch
        word = value.text(switch)
        if word is not None and word in types:
            given = value.get(target) or value.with_data({})
            types[word].check(given, f"{target} of {word}", mistakes)

    def schema(self) -> Schema:
        schema: Schema = {
            "type": "object",
            "description": self.doc,
            "properties": {
                name: {**key.value_type.schema(), "description": key.doc} for name, key in self.keys.items()
            },
            "additionalProperties": False,
        }
        required = self.required_keys()
        if required:
            schema["required"] = required
        if self.free_prefix:
            schema["patternProperties"] = {f"^{self.free_prefix}": {}}
        rules = list(self._rule_schemas())
        if rules:
            schema["allOf"] = rules
        return schema

    def _rule_schemas(self) -> Iterable[Schema]:
        for group in self.rules.one_of:
            yield {"oneOf": [{"required": [key]} for key in group]}
        for group in self.rules.at_most_one:
            for pair in combinations(group, 2):
                yield {"not": {"required": list(pair)}}
        for key, needed in self.rules.needs:
            yield {"dependencies": {key: {"anyOf": [{"required": [each]} for each in needed]}}}
        if self.rules.type_by_switch is not None:
            switch, target, types = self.rules.type_by_switch
            for word, value_type in types.items():
                yield {
                    "if": {"properties": {switch: {"const": word}}, "required": [switch]},
                    "then": _target_schema(target, value_type),
                }


def _target_schema(target: str, value_type: ValueType) -> Schema:
    """The schema of a mapping whose key `target` has this type. If it has required keys, `target` is required too."""
    schema: Schema = {"properties": {target: value_type.schema()}}
    inner = value_type
    if isinstance(value_type, SharedType):
        inner = value_type.resolve()
    if isinstance(inner, KeyedMapping) and (inner.rules.one_of or inner.required_keys()):
        schema["required"] = [target]
    return schema


class SharedType(ValueType):
    """A type that is used in several places, or inside itself. The schema defines it once, under a name.

    `resolve` gives the type. It is a function because a type that contains itself doesn't exist yet at this point.
    """

    definitions: ClassVar[dict[str, Callable[[], ValueType]]] = {}
    """All shared types, by their names in the schema."""

    def __init__(self, name: str, expected: str, resolve: Callable[[], ValueType]) -> None:
        self.name = name.replace(" ", "-")
        self.expected = expected
        self.resolve = resolve
        SharedType.definitions[self.name] = resolve

    def accepts(self, value: Value) -> bool:
        return self.resolve().accepts(value)

    def check(self, value: Value, what: str, mistakes: Mistakes) -> None:
        self.resolve().check(value, what, mistakes)

    def schema(self) -> Schema:
        return {"allOf": [{"$ref": f"#/definitions/{self.name}"}]}
