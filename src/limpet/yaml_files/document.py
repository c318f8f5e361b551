"""YAML text as values that know where they are: the line and column at which each begins.

What YAML 1.1 reads in surprising ways is text here: `no`, `on`, `off`, `yes`, `1_000`, `0123`, `12:30:45` and dates.
`true`, `false`, `null`, numbers, `0x1f` and `0o17` are what they look like. A key may occur once, only the tags of
plain data are allowed, and aliases can't turn a small file into a huge document.
"""

from __future__ import annotations

import re
from typing import Any, Final

from limpet.errors import DeclarationError, LimpetError, UsageError

MAX_CHARACTERS: Final = 2_000_000
MAX_VALUES: Final = 50_000
"""How many values a document may have; an alias counts as all the values that it stands for."""
MAX_DEPTH: Final = 60
MAX_DIGITS: Final = 1000
"""How long the text of a number may be: converting a very long one takes time that grows with its square."""

Scalar = str | int | float | bool | None


class Value:
    """A value of the document. `data` is a scalar, a list of values, or a dict of values.

    `keys` has the places of a mapping's keys. A `hidden` value is never shown in messages: it isn't written in the
    file and may be a secret.
    """

    __slots__ = ("column", "data", "depth", "hidden", "keys", "line", "size")

    def __init__(self, data: Any, line: int = 1, column: int = 1) -> None:
        self.data = data
        self.line = line
        self.column = column
        self.keys: dict[Scalar, Value] = {}
        self.size = 1
        self.depth = 1
        self.hidden = False

    @classmethod
    def hidden_from(cls, data: Any, place: Value) -> Value:
        """Plain data that isn't from the file, as a hidden value at one place."""
        keys: dict[Scalar, Value] = {}
        if isinstance(data, dict):
            keys = dict.fromkeys(data, place)
            data = {key: cls.hidden_from(each, place) for key, each in data.items()}
        elif isinstance(data, (list, tuple)):
            data = [cls.hidden_from(each, place) for each in data]
        value = cls(data, place.line, place.column)
        value.keys = keys
        value.hidden = True
        return value

    def with_data(self, data: Any) -> Value:
        """Other data at the same place."""
        return Value(data, self.line, self.column)

    def plain_data(self) -> Any:
        """A copy of the data, without places."""
        match self.data:
            case dict():
                return {key: each.plain_data() for key, each in self.data.items()}
            case list():
                return [each.plain_data() for each in self.data]
            case _:
                return self.data

    def get(self, key: str) -> Value | None:
        """The value under a key, or None if this isn't a mapping or doesn't have the key."""
        if isinstance(self.data, dict):
            return self.data.get(key)
        return None

    def text(self, key: str) -> str | None:
        """The text under a key, or None if there isn't one."""
        found = self.get(key)
        if found is None or not isinstance(found.data, str):
            return None
        return found.data

    def items(self, key: str) -> list[Value]:
        """The items of the list under a key; a value that isn't a list is a list of one item."""
        found = self.get(key)
        if found is None:
            return []
        if isinstance(found.data, list):
            return found.data
        return [found]

    def place_of(self, key: str) -> Value:
        """The place for a message about a key: its value, or this mapping if the key is missing."""
        return self.get(key) or self


def read_document(text: str, file: str) -> Value:
    """The one document in a text. Raises `DeclarationError`; `UsageError` where PyYAML isn't installed."""
    yaml = _yaml_module()
    if len(text) > MAX_CHARACTERS:
        message = f"it has {len(text)} characters; a declaration has at most {MAX_CHARACTERS}"
        raise _mistake(file, 1, 1, message)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    reader = _Reader(file)
    try:
        for event in yaml.parse(text, Loader=loader):
            reader.take(event)
    except yaml.YAMLError as problem:
        line, column = _line_and_column(getattr(problem, "problem_mark", None))
        reason = getattr(problem, "problem", None) or getattr(problem, "reason", None) or str(problem)
        raise _mistake(file, line, column, f"this isn't YAML: {reason}") from problem
    except LimpetError:
        raise
    except (UnicodeError, ValueError) as problem:
        raise _mistake(file, 1, 1, f"this isn't YAML: {problem}") from problem
    if reader.root is None or (reader.root.data is None and reader.root.size == 1):
        raise _mistake(file, 1, 1, "it is empty; a declaration has nodes, or tasks")
    return reader.root


class _OpenCollection:
    """A list or mapping that has begun and not ended."""

    __slots__ = ("anchor", "key", "merged", "value")

    def __init__(self, value: Value, anchor: str | None) -> None:
        self.value = value
        self.anchor = anchor
        self.key: Value | None = None
        self.merged: list[Value] = []


class _Reader:
    """Builds values from the parser's events, without recursion: a text may nest deeper than Python allows."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.root: Value | None = None
        self._open: list[_OpenCollection] = []
        self._anchors: dict[str, Value] = {}

    def take(self, event: Any) -> None:
        """Take the parser's next event. Raises `DeclarationError`."""
        line, column = _line_and_column(event.start_mark)
        match type(event).__name__:
            case "DocumentStartEvent" if self.root is not None:
                raise _mistake(self.file, line, column, "a second document begins here; a file has one")
            case "ScalarEvent":
                self._complete(Value(self._scalar(event, line, column), line, column), event.anchor)
            case "SequenceStartEvent" | "MappingStartEvent":
                self._open_collection(event, line, column)
            case "SequenceEndEvent":
                closed = self._open.pop()
                self._complete(closed.value, closed.anchor)
            case "MappingEndEvent":
                closed = self._open.pop()
                self._merge(closed)
                self._complete(closed.value, closed.anchor)
            case "AliasEvent":
                self._complete(self._aliased(event.anchor, line, column), None)

    def _open_collection(self, event: Any, line: int, column: int) -> None:
        is_list = type(event).__name__ == "SequenceStartEvent"
        if is_list:
            own_tag = f"{_TAG_PREFIX}seq"
        else:
            own_tag = f"{_TAG_PREFIX}map"
        if event.tag not in (None, "!", own_tag):
            raise _mistake(self.file, line, column, _unknown_tag(event.tag))
        if len(self._open) >= MAX_DEPTH:
            raise _mistake(self.file, line, column, f"it is nested more than {MAX_DEPTH} levels deep")
        data: Any = [] if is_list else {}
        self._open.append(_OpenCollection(Value(data, line, column), event.anchor))

    def _complete(self, value: Value, anchor: str | None) -> None:
        """Put a complete value where it belongs: it is the root, an item, a key, or the value of a key."""
        if anchor is not None:
            self._anchors[anchor] = value
        if not self._open:
            self.root = value
            return
        around = self._open[-1]
        self._count(around.value, value)
        if isinstance(around.value.data, list):
            around.value.data.append(value)
        elif around.key is None:
            if isinstance(value.data, (list, dict)):
                raise _mistake(self.file, value.line, value.column, "a key is a word or a number")
            around.key = value
        else:
            self._put(around, around.key, value)
            around.key = None

    def _put(self, around: _OpenCollection, key: Value, value: Value) -> None:
        """Put a value under its key; what `<<` names is merged when the mapping ends."""
        if key.data == "<<":
            around.merged.append(value)
            return
        if key.data in around.value.data:
            first = around.value.keys[key.data]
            message = f"the key {key.data!r} is there twice; first in line {first.line}"
            raise _mistake(self.file, key.line, key.column, message)
        around.value.data[key.data] = value
        around.value.keys[key.data] = key

    def _count(self, around: Value, value: Value) -> None:
        # An alias adds the size of what it stands for, so nested aliases can't grow beyond the limits unnoticed.
        around.size += value.size
        around.depth = max(around.depth, value.depth + 1)
        if around.size > MAX_VALUES:
            message = f"it amounts to more than {MAX_VALUES} values"
            raise _mistake(self.file, value.line, value.column, message)
        if around.depth > MAX_DEPTH:
            message = f"it is nested more than {MAX_DEPTH} levels deep"
            raise _mistake(self.file, value.line, value.column, message)

    def _merge(self, closed: _OpenCollection) -> None:
        """Add the keys of what `<<` names, except those that the mapping has itself."""
        for merged in closed.merged:
            sources = merged.data
            if not isinstance(merged.data, list):
                sources = [merged]
            for source in sources:
                if not isinstance(source.data, dict):
                    message = "<< takes in a mapping, or a list of them"
                    raise _mistake(self.file, merged.line, merged.column, message)
                for key, value in source.data.items():
                    if key not in closed.value.data:
                        closed.value.data[key] = value
                        closed.value.keys[key] = source.keys[key]

    def _aliased(self, name: str, line: int, column: int) -> Value:
        if any(each.anchor == name for each in self._open):
            raise _mistake(self.file, line, column, f"*{name} is inside what it stands for")
        if name not in self._anchors:
            message = f"*{name} stands for nothing: there is no &{name} before it"
            raise _mistake(self.file, line, column, message)
        return self._anchors[name]

    def _scalar(self, event: Any, line: int, column: int) -> Scalar:
        text: str = event.value
        tag = event.tag
        if tag is None or tag == "!":
            is_plain = tag is None and event.implicit[0]
            tag = _TAG_PREFIX + (_type_of_plain(text) if is_plain else "str")
        parse = None
        if tag.startswith(_TAG_PREFIX):
            parse = _SCALAR_PARSERS.get(tag.removeprefix(_TAG_PREFIX))
        if parse is None:
            raise _mistake(self.file, line, column, _unknown_tag(tag))
        try:
            return parse(text)  # type: ignore[no-any-return]  # one of the functions below
        except (ValueError, KeyError):
            message = f"{text[:40]!r} can't be read as {tag.removeprefix(_TAG_PREFIX)}"
            raise _mistake(self.file, line, column, message) from None


_TAG_PREFIX: Final = "tag:yaml.org,2002:"
_NULLS: Final = ("", "~", "null", "Null", "NULL")
_BOOLEANS: Final = {
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}
_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT: Final = re.compile(
    r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)


def _type_of_plain(text: str) -> str:
    """The type of a plain word, one without quotes and tag."""
    if text in _NULLS:
        return "null"
    if text in _BOOLEANS:
        return "bool"
    if _INTEGER.fullmatch(text):
        return "int"
    if _FLOAT.fullmatch(text):
        return "float"
    return "str"


def _parse_null(text: str) -> None:
    if text not in _NULLS:
        raise ValueError(text)


def _parse_integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError("too long for a number")
    if text[:2] in ("0o", "0x"):
        return int(text, 0)
    return int(text)


def _parse_float(text: str) -> float:
    return float(re.sub(r"\.(?=[iInN])", "", text))


_SCALAR_PARSERS: Final[dict[str, Any]] = {
    "str": str,
    "null": _parse_null,
    "bool": _BOOLEANS.__getitem__,
    "int": _parse_integer,
    "float": _parse_float,
}


def _unknown_tag(tag: str) -> str:
    shown = tag.replace(_TAG_PREFIX, "!!")
    return f"the tag {shown!r} isn't known; a declaration has text, numbers, true, false, null, lists and mappings"


def _line_and_column(mark: Any) -> tuple[int, int]:
    """A place of the parser, counted from 1."""
    if mark is None:
        return 1, 1
    return mark.line + 1, mark.column + 1


def _mistake(file: str, line: int, column: int, text: str) -> DeclarationError:
    return DeclarationError(file, [(line, column, text)])


def _yaml_module() -> Any:
    try:
        import yaml
    except ImportError as missing:
        raise missing_extra() from missing
    return yaml


def missing_extra() -> UsageError:
    """The error where the packages that declarations need aren't installed."""
    return UsageError("graphs in YAML need PyYAML and Jinja2: pip install 'limpet[yaml]'")
