"""Values of states as the API sends them: as JSON, without secrets, and large ones only when they are asked for.

What JSON can't hold becomes text: numbers that aren't finite, dates, and bytes (as base64). An instance of a
registered class becomes `{"class": …, "content": …}`, whether the class is known here or not. Whole numbers are sent
with all their digits: a client that reads numbers as floats has to read those beyond 2**53 in another way.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from math import isfinite
from typing import Any, Final, TypeVar

from limpet.frontends.problems import HttpProblem
from limpet.graphs.secrets import MASK
from limpet.journal.encoding.json_values import to_json_value
from limpet.journal.encoding.unknown_values import UnknownValue
from limpet.journal.encoding.user_types import TYPES

LARGE: Final = 20_000
"""Bytes of JSON above which a value is left out, and only its size is sent."""

LARGE_TOGETHER: Final = 1_000_000
"""Bytes of JSON that all values of an answer may have together: else the largest are left out, too."""

AT_ONCE: Final = 10_000
"""Parts of a value that are made into JSON at once, to learn its size: other threads wait for that."""

MANY_PARTS: Final = 200
"""Parts that a value which isn't large may have."""

MAX_VALUE: Final = 64_000_000
"""Bytes of JSON of what is asked for although it is large, at most."""

MAX_DEPTH: Final = 100
"""Levels of a value that are shown."""

TOO_DEEP: Final = "…"

Key = TypeVar("Key")

SECRET_TYPES: Final = "pydantic.types:Secret"
"""How the names begin under which pydantic's types for secrets are registered."""


def shown_value(value: Any, secrets: Collection[str] = ()) -> Any:
    """A value as JSON can express it. Values under secret keys, and secret results of tasks, are masked."""
    return _shown(value, secrets, 0)


def shown_values(values: Mapping[str, Any], secrets: Collection[str]) -> dict[str, Any]:
    """The values of keys, shown."""
    shown = _shown(dict(values), secrets, 0)
    assert isinstance(shown, dict)
    return shown


def _shown(value: Any, secrets: Collection[str], depth: int) -> Any:
    kind = type(value)
    if value is None or kind is str or kind is bool:
        return value
    if kind is int or kind is float:
        return to_json_value(value)  # as text if it isn't finite, or has thousands of digits
    if depth >= MAX_DEPTH:
        return TOO_DEEP
    if kind is dict:
        return _shown_dict(value, secrets, depth)
    if kind in (list, tuple, set, frozenset, deque):
        items = [_shown(each, secrets, depth + 1) for each in value]
        if kind in (set, frozenset):
            items.sort(key=repr)
        return items
    return _shown_instance(value, secrets, depth)


def _shown_dict(value: Mapping[Any, Any], secrets: Collection[str], depth: int) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for key, each in value.items():
        name = str(to_json_value(key))
        while name in shown:
            name = f"{name} ({type(key).__name__})"  # such as 1 beside "1"
        shown[name] = MASK if key in secrets else _shown(each, secrets, depth + 1)
    if shown.get("secret") is True and "result" in shown:
        shown["result"] = MASK  # the record of a task
    return shown


def _shown_instance(value: Any, secrets: Collection[str], depth: int) -> Any:
    if hasattr(value, "get_secret_value"):
        return MASK
    if isinstance(value, UnknownValue):
        return _content(value.class_name, value.content, secrets, depth)
    if hasattr(value, "tolist"):  # of numpy
        return _shown(value.tolist(), secrets, depth + 1)
    if isinstance(value, Mapping):
        return _shown_dict(value, secrets, depth)
    stored = TYPES.of_class(type(value))
    if stored is not None:
        return _content(stored.name, stored.to(value), secrets, depth)
    if isinstance(value, (list, tuple)):
        return [_shown(each, secrets, depth + 1) for each in value]
    return to_json_value(value)


def _content(name: str, content: Any, secrets: Collection[str], depth: int) -> Any:
    """An instance of a class as what it is stored as."""
    if name.startswith(SECRET_TYPES):
        return MASK
    return {"class": name, "content": _shown(content, secrets, depth + 1)}


def not_json(values: Mapping[str, Any]) -> dict[str, str]:
    """The keys whose values aren't exactly those that are shown, each with the name of the first type that isn't."""
    found = {key: _foreign_type([value]) for key, value in values.items()}
    return {key: name for key, name in found.items() if name}


def _foreign_type(values: Iterable[Any]) -> str:
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        kind = type(value)
        if kind is dict:
            if not all(type(key) is str for key in value):
                return "dict with other keys than texts"
            waiting += value.values()
        elif kind is list:
            waiting += value
        elif kind is float and not isfinite(value):
            return kind.__name__
        elif kind not in (str, int, float, bool, type(None)):
            return getattr(value, "class_name", kind.__name__)
    return ""


def incomplete(shown: Mapping[str, Any]) -> dict[str, str]:
    """The keys of shown values of which a part is hidden, each with the reason: sent back, that part would be lost.

    A value that is hidden as a whole isn't one of them: it can be replaced by another.
    """
    reasons = {key: _hidden_part(value) for key, value in shown.items() if value != MASK}
    return {key: reason for key, reason in reasons.items() if reason}


def _hidden_part(shown: Any) -> str:
    if holds_mask(shown):
        return "a secret is in it"
    # The very object, as a text of the user may look like it.
    is_cut = any(part is TOO_DEEP for part in all_parts(shown))
    return "it has too many levels" if is_cut else ""


def holds_mask(shown: Any) -> bool:
    """Whether anything in a shown value, or in what a client has sent, is the mask of a secret."""
    return any(part == MASK for part in all_parts(shown))


def all_parts(value: Any) -> Iterator[Any]:
    """A value of JSON and all that is in it, at any depth."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        yield part
        waiting += parts_of(part)


def parts_of(value: Any) -> Iterable[Any]:
    """What is right inside of a list or an object of JSON."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def without_large(values: Mapping[Key, Any]) -> tuple[dict[Key, Any], dict[Key, int]]:
    """The values that aren't large, alone or together, and the sizes of the others, in bytes of JSON."""
    sizes = {key: size_of(value) for key, value in values.items()}
    large: dict[Key, int] = {}
    room = LARGE_TOGETHER
    for key in sorted(sizes, key=sizes.__getitem__):
        room -= sizes[key]
        if sizes[key] > LARGE or room < 0:
            large[key] = sizes[key]
    return {key: value for key, value in values.items() if key not in large}, large


def may_be_large(value: Any) -> bool:
    """Whether it may take long to show a value. This doesn't: it looks at few parts, and into no instances."""
    parts = 0
    waiting = [value]
    while waiting:
        part = waiting.pop()
        kind = type(part)
        if kind in (dict, list, tuple, set, frozenset):
            parts += len(part)
            if parts > MANY_PARTS:
                return True
            waiting += part.values() if kind is dict else part
        elif kind in (str, bytes):
            if len(part) > LARGE:
                return True
        elif kind not in (int, float, bool, type(None)):
            return True
    return False


def check_size(size: int) -> None:
    """Raise `HttpProblem` for a value that was asked for, and is too large to be sent."""
    if size > MAX_VALUE:
        raise HttpProblem(
            413, "value-too-large", f"the value has {size:,} bytes: read it with Runs(store).state(…)"
        )


def size_of(value: Any) -> int:
    """The size of a value as JSON, in bytes."""
    if isinstance(value, str):
        return len(value)  # near enough, and quick for the largest values there are
    kind = type(value)
    if kind in (list, dict) and len(value) > AT_ONCE:
        items = iter(value if kind is list else value.items())
        parts = iter(lambda: kind(islice(items, AT_ONCE)), kind())
        return 1 + sum(len(to_bytes(part)) - 1 for part in parts)
    return len(to_bytes(value))


def to_bytes(data: Any) -> bytes:
    """Data as JSON that every client can read."""
    try:
        return _encoded(data)
    except (ValueError, RecursionError):  # for what isn't finite, and what is too deep
        return _encoded(shown_value(data))


def _encoded(data: Any) -> bytes:
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=shown_value)
    # Half of a surrogate pair can't be encoded; as an escape, JSON has it.
    return text.encode("utf-8", "backslashreplace")
