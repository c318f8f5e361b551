"""Inputs and changes of the state, as they are typed: read by the schema of the graph, if it has one.

`key=1.10` is text where the schema says `str`, and a number where it says `float`, or nothing. What is given as JSON,
in an object or a file, has its types already.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from limpet.cli.values import read_value
from limpet.errors import UsageError, did_you_mean
from limpet.graphs.plan import PLANNER, Plan

TEXT_MODULES = frozenset({"datetime", "decimal", "fractions", "pathlib", "uuid"})
"""Values of the types of these modules are typed as text: a number would be rounded, or be something else."""

JSON_KINDS: Mapping[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list in JSON",
    dict: "an object in JSON",
}
"""How messages name what JSON can express."""


class KnownKeys(NamedTuple):
    """The keys that are known of an input, or of a state, with their types.

    `complete` says that no other keys are expected. `owner` is what knows them, for messages.
    """

    types: Mapping[str, Any] = {}
    complete: bool = False
    owner: str = ""

    def warnings(self, values: Iterable[str]) -> list[str]:
        """What to say about keys that aren't known, and may be mistyped."""
        found = []
        for key in values:
            if key in self.types:
                continue
            near = did_you_mean(key, self.types)
            if near or self.complete:
                found.append(f"warning: {key!r} isn't among the keys of {self.owner}{near}")
        return found


def input_keys(plan: Plan) -> KnownKeys:
    """What is known of the input of a graph: its schema, or the inputs that the tasks of a workflow take."""
    if plan.layers is None:
        return state_keys(plan)
    types: dict[str, Any] = {}
    for name, node in plan.layers.nodes.items():
        if name == PLANNER or node.function is None:
            continue
        hints = _hints_of(node.function.call)
        for parameter, value in node.function.takes:
            kind, _, key = value.partition(" ")
            if kind in ("input", "optional_input"):
                types.setdefault(key, hints.get(parameter, Any))
    return KnownKeys(types, False, f"the input of workflow {plan.name!r}")


def state_keys(plan: Plan) -> KnownKeys:
    """What is known of the state of a graph; nothing, if it has no schema or is a workflow."""
    types = plan.schema.keys
    return KnownKeys(types, bool(types), f"the schema of graph {plan.name!r}")


def _hints_of(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except Exception:  # names that aren't there, objects without annotations: any type then
        return {}


def is_input(part: str) -> bool:
    """Whether this can be a part of an input."""
    return part.startswith("@") or part.lstrip().startswith("{") or "=" in part


def read_input(parts: Iterable[str], known: KnownKeys) -> dict[str, Any]:
    """An input: JSON objects, `@files` that hold one, and `key=value` pairs; later ones win. Raises `UsageError`."""
    found: dict[str, Any] = {}
    for part in parts:
        if part.startswith("@"):
            found |= _json_object(_file_text(Path(part[1:])), part)
        elif part.lstrip().startswith("{"):
            found |= _json_object(part, "--input")
        else:
            found |= read_pairs([part], "--input", known)
    return found


def read_pairs(pairs: Iterable[str], option: str, known: KnownKeys | None = None) -> dict[str, Any]:
    """`key=value` pairs as a dict, with values of the types that are known. Raises `UsageError`."""
    types = {} if known is None else known.types
    found: dict[str, Any] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise UsageError(f"{option} takes key=value, not {pair!r}")
        try:
            found[key] = typed_value(value, types.get(key, Any))
        except ValueError as problem:
            raise UsageError(f"{option}: {key} takes {problem}, not {value!r}") from None
    return found


def typed_value(text: str, hint: Any) -> Any:
    """What was typed, as a value of this type; JSON if possible, else the text, where the type says nothing about it.

    Raises `ValueError` that says what the type takes.
    """
    kinds = _kinds(hint)
    value = read_value(text)
    if value is None and NoneType in kinds:
        return None
    kinds = [kind for kind in kinds if kind is not NoneType]
    choices = {str(choice): choice for kind in kinds for choice in _choices(kind)}
    if text in choices:
        return choices[text]
    for kind in kinds:
        if _fits(value, kind):
            return float(value) if kind is float else value
    if any(_is_text(kind) for kind in kinds):
        return text
    if choices:
        raise ValueError(f"one of {', '.join(choices)}")
    expected = [JSON_KINDS[kind] for kind in kinds if kind in JSON_KINDS]
    if expected and len(expected) == len(kinds):
        raise ValueError(" or ".join(expected))
    return value


def _kinds(hint: Any) -> list[Any]:
    """The classes that a type allows, without what only annotates them; a `Literal` stays as it is."""
    if isinstance(hint, NewType):
        return _kinds(hint.__supertype__)
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return [kind for each in get_args(hint) for kind in _kinds(each)]
    if origin in (Annotated, Required, NotRequired):
        return _kinds(get_args(hint)[0])
    if origin is Literal:
        return [hint]
    kind = NoneType if hint is None else origin or hint
    if kind in (tuple, set, frozenset, Sequence, Iterable):
        return [list]
    if kind is Mapping or is_typeddict(kind):
        return [dict]
    return [kind]


def _choices(kind: Any) -> list[Any]:
    """The values that a `Literal` or an enumeration allows."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [member.value for member in kind]
    return []


def _fits(value: Any, kind: Any) -> bool:
    if kind is float:
        return type(value) in (int, float)
    return kind in (str, bool, int, list, dict) and type(value) is kind


def _is_text(kind: Any) -> bool:
    if not isinstance(kind, type):
        return False
    return issubclass(kind, str) or kind.__module__.partition(".")[0] in TEXT_MODULES


def _file_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"can't read {path}: {problem}") from problem


def _json_object(text: str, source: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as problem:
        raise UsageError(f"{source} isn't valid JSON: {problem}") from problem
    if not isinstance(found, dict):
        raise UsageError(f"{source} must be a JSON object, {{…}}, not {type(found).__name__}")
    return found
