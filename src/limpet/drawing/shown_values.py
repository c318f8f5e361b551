"""Values of a state as people see them in a table: a type, a short text, and the size where not all is shown.

A value is never walked through as a whole: only as much of it as the text has room for is looked at, however large it
is. Secrets are masked: under their keys, and wherever they occur in a text. Nothing here raises for what a value is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import islice
from typing import Any, Final, NamedTuple

from limpet.drawing.text_width import shortened, single_line
from limpet.graphs.secrets import MASK, MaskedValue, mask_text, secret_values, text_forms
from limpet.journal.encoding.unknown_values import UnknownValue
from limpet.journal.encoding.user_types import TYPES

MAX_TEXT: Final = 300
"""How many characters of a value are shown."""

MAX_LINES: Final = 6
"""How many lines of a text are shown."""

MAX_ITEMS: Final = 50
"""How many items of a list, or of what is inside of a value, are looked at."""

MAX_DEPTH: Final = 6

MAX_SEARCHED: Final = 200_000
"""Characters of the longest text in which secrets are looked for. Of a longer one, only the size is shown."""

MAX_DIGITS: Final = 200
"""A whole number of more bits than these digits need is shown by its size."""


class ShownValue(NamedTuple):
    """A value as it is shown: the name of its type, its text, and its size where the text isn't all of it."""

    kind: str
    text: str
    size: str = ""


class Secrets(NamedTuple):
    """What is masked: values under these `names`, and these `forms` wherever they occur in a text."""

    names: Collection[str] = ()
    forms: Collection[str] = ()

    def hide(self, text: str) -> str:
        """The text with a mask in place of each secret."""
        return mask_text(text, self.forms)


NO_SECRETS: Final = Secrets()


def secrets_in(
    names: Collection[str], states: Iterable[Mapping[str, Any]], more: Collection[str] = ()
) -> Secrets:
    """What to mask where these states are shown, of which these `names` are secret; `more` are forms of others."""
    values = [value for state in states for value in secret_values(own_items(state), names)]
    return Secrets(names, {*more, *text_forms(values)})


def shown_value(value: Any, secrets: Secrets = NO_SECRETS) -> ShownValue:
    """A value as it is shown. A text is shown as it is, anything else as code would write it."""
    kind = type_name(value)
    try:
        if isinstance(value, str):
            return ShownValue(kind, *_shown_text(value, secrets))
        writer = _Writer(secrets)
        writer.write(value, 0)
        if writer.has_room:
            return ShownValue(kind, writer.text())
        return ShownValue(kind, writer.text(), _size(value))
    except Exception as error:  # of a user's class
        return ShownValue(kind, f"<can't be shown: {type(error).__name__}>")


def shown_under(key: str, value: Any, secrets: Secrets) -> ShownValue:
    """The value of a key, which may be secret."""
    if key in secrets.names:
        return masked_value(value)
    return shown_value(value, secrets)


def own_items(state: Mapping[str, Any]) -> dict[str, Any]:
    """The keys and values of a state, without its noting that they are read."""
    if isinstance(state, dict):
        return dict(dict.items(state))
    return dict(state)


def masked_value(value: Any) -> ShownValue:
    """A value under a secret key."""
    return ShownValue(type_name(value), MASK)


def shown_name(name: Any, secrets: Secrets = NO_SECRETS) -> str:
    """A key, or the name of something, in one short line."""
    return shortened(secrets.hide(str(name)[:MAX_SEARCHED]), 80)


def type_name(value: Any) -> str:
    """The name of a value's type, without its module."""
    if value is None:
        return "None"
    if isinstance(value, UnknownValue):
        return shortened(value.class_name, 80)
    return shortened(type(value).__qualname__.removeprefix("__main__."), 80)


def _shown_text(text: str, secrets: Secrets) -> tuple[str, str]:
    """A text as it is, its line breaks included, and its size if it is longer."""
    size = f"{len(text):,} characters"
    if secrets.forms and len(text) > MAX_SEARCHED:
        return "…", size
    shown = secrets.hide(text)
    lines = [single_line(line) for line in shown[: 2 * MAX_TEXT].splitlines()]
    kept = "\n".join(lines[:MAX_LINES])
    is_whole = len(lines) <= MAX_LINES and len(shown) <= MAX_TEXT
    if is_whole:
        return kept, ""
    return f"{kept[:MAX_TEXT].rstrip()}…", size


def _size(value: Any) -> str:
    """How large a value is that isn't shown as a whole."""
    kind = type(value)
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and all(type(each) is int for each in shape):
        return " × ".join(map(str, shape))
    if kind in (bytes, bytearray):
        return f"{len(value):,} bytes"
    if isinstance(value, int):
        return f"{value.bit_length():,} bits"
    if isinstance(value, Mapping):
        return f"{len(value):,} keys"
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return f"{len(value):,} items"
    return ""


class _Writer:
    """Writes a value as code would, until there is no room for more."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._parts: list[str] = []
        self._length = 0
        self.has_room = True

    def text(self) -> str:
        """What was written, with … in place of the rest."""
        text = single_line("".join(self._parts))
        if self.has_room:
            return text
        return f"{text[:MAX_TEXT].rstrip()}…"

    def write(self, value: Any, depth: int) -> None:
        if not self.has_room:
            return
        if depth > MAX_DEPTH:
            self._stop()
        elif isinstance(value, MaskedValue) or hasattr(value, "get_secret_value"):
            self._add(MASK)
        elif isinstance(value, str):
            self._write_text(value)
        elif isinstance(value, (bytes, bytearray)):
            self._write_bytes(bytes(value))
        elif isinstance(value, int) and not isinstance(value, (bool, Enum)):
            self._write_whole_number(int(value))
        elif isinstance(value, Mapping):
            self._write_mapping(value, depth)
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            self._write_fields(type(value).__name__, zip(value._fields, value, strict=False), depth)
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            self._write_items(value, depth)
        else:
            self._write_instance(value, depth)

    def _add(self, text: str) -> None:
        if not self.has_room:
            return
        self._parts.append(text)
        self._length += len(text)
        if self._length > MAX_TEXT:
            self._stop()

    def _stop(self) -> None:
        self.has_room = False

    def _write_text(self, text: str) -> None:
        if self._secrets.forms and len(text) > MAX_SEARCHED:
            self._add(f"<{len(text):,} characters>")
            self._stop()
            return
        # Masked before it is cut: a part of a secret would not be found.
        self._add(repr(self._secrets.hide(text)[: MAX_TEXT + 1]))

    def _write_bytes(self, value: bytes) -> None:
        if self._secrets.forms and len(value) > MAX_SEARCHED:
            self._add(f"<{len(value):,} bytes>")
            self._stop()
            return
        if not self._secrets.forms:
            value = value[: MAX_TEXT + 1]
        self._add(self._secrets.hide(repr(value)))

    def _write_whole_number(self, value: int) -> None:
        if value.bit_length() > MAX_DIGITS * 3.3:
            self._add("<a large number>")
            self._stop()
            return
        self._add(self._secrets.hide(repr(value)))

    def _write_mapping(self, value: Mapping[Any, Any], depth: int) -> None:
        items: Iterable[tuple[Any, Any]] = value.items()
        is_task = False
        if isinstance(value, dict):
            items = dict.items(value)  # a node's state notes each key that is read in another way
            is_task = dict.get(value, "secret") is True
        self._add("{")
        for number, (key, each) in enumerate(self._first(items, len(value))):
            if number:
                self._add(", ")
            self.write(key, depth + 1)
            self._add(": ")
            if _is_in(key, self._secrets.names) or (is_task and key == "result"):
                self._add(MASK)
            else:
                self.write(each, depth + 1)
        self._add("}")

    def _write_items(self, value: Collection[Any], depth: int) -> None:
        opening, closing = ("[", "]")
        if isinstance(value, tuple):
            opening, closing = ("(", ")")
        elif isinstance(value, (set, frozenset)):
            opening, closing = ("{", "}")
        self._add(opening)
        for number, each in enumerate(self._first(value, len(value))):
            if number:
                self._add(", ")
            self.write(each, depth + 1)
        self._add(closing)

    def _first(self, items: Iterable[Any], count: int) -> Iterator[Any]:
        """The items that there is room for."""
        for item in islice(items, MAX_ITEMS):
            if not self.has_room:
                return
            yield item
        if count > MAX_ITEMS:
            self._stop()

    def _write_fields(self, name: str, values: Iterable[tuple[str, Any]], depth: int) -> None:
        self._add(f"{name}(")
        for number, (field, value) in enumerate(islice(values, MAX_ITEMS)):
            if number:
                self._add(", ")
            self._add(f"{self._secrets.hide(field)}=")
            if field in self._secrets.names:
                self._add(MASK)
            else:
                self.write(value, depth + 1)
        self._add(")")

    def _write_instance(self, value: Any, depth: int) -> None:
        kind = type(value)
        if isinstance(value, UnknownValue):
            self._write_content(value.class_name, value.content, depth)
            self._add(" (a class that isn't known here)")
        elif kind.__module__.partition(".")[0] == "numpy" and hasattr(value, "shape"):
            self._write_array(value, depth)
        elif isinstance(value, Enum) or kind is float or kind is bool or value is None:
            self._add(self._secrets.hide(repr(value)))
        elif (stored := TYPES.of_class(kind)) is not None:
            self._write_content(kind.__name__, stored.to(value), depth)
        elif is_dataclass(value):
            values = ((each.name, getattr(value, each.name, None)) for each in fields(value))
            self._write_fields(kind.__name__, values, depth)
        else:
            text = repr(value)
            if self._secrets.forms and len(text) > MAX_SEARCHED:
                text = f"<{kind.__name__}>"
            self._add(self._secrets.hide(text)[: MAX_TEXT + 1])

    def _write_content(self, name: str, content: Any, depth: int) -> None:
        """An instance of a class as what it is stored as."""
        if type(content) is dict and all(type(key) is str for key in islice(content, MAX_ITEMS)):
            self._write_fields(name, content.items(), depth)
            return
        self._add(f"{name}(")
        self.write(content, depth + 1)
        self._add(")")

    def _write_array(self, value: Any, depth: int) -> None:
        if value.shape == ():
            self.write(value.item(), depth)
            return
        self._add(f"{self._secrets.hide(str(value.dtype))}, ")
        self.write(value.reshape(-1)[: MAX_ITEMS + 1].tolist(), depth)
        if value.size > MAX_ITEMS:
            self._stop()


def _is_in(key: Any, names: Collection[str]) -> bool:
    return type(key) is str and key in names
