"""YAML text as values that know their place: where each begins, line and column.

What YAML 1.1 reads in surprising ways is text here: `no`, `on`, `off`, `yes`, `1_000`, `0123`, `12:30:45` and
dates. `true`, `false`, `null`, numbers, `0x1f` and `0o17` are what they look like. Keys come once, tags are those of
plain data, and aliases can't make a small file a huge one.
"""

from __future__ import annotations

import re
from typing import Any, Final

from limpet.errors import DeclarationError, UsageError

MOST_CHARACTERS: Final = 2_000_000
MOST_VALUES: Final = 50_000
"""How many values a document may amount to, with what aliases stand for counted each time."""
MOST_LEVELS: Final = 60
MOST_DIGITS: Final = 1000

Scalar = str | int | float | bool | None


class Value:
    """A value of the document. `data` is a scalar, a list of values or a dict of them; `keys` has where keys are.

    A `hidden` value isn't shown in messages, as it isn't written in the file: it may be a secret.
    """

    __slots__ = ("column", "data", "depth", "hidden", "keys", "line", "size")

    def __init__(self, data: Any, line: int = 1, column: int = 1) -> None:
        self.data, self.line, self.column = data, line, column
        self.keys: dict[Scalar, Value] = {}
        self.size = self.depth = 1
        self.hidden = False

    @classmethod
    def of(cls, data: Any, place: Value) -> Value:
        """Plain data that came from elsewhere as a value, hidden, that is all in one place."""
        keys = dict.fromkeys(data, place) if isinstance(data, dict) else {}
        if isinstance(data, dict):
            data = {key: cls.of(each, place) for key, each in data.items()}
        elif isinstance(data, (list, tuple)):
            data = [cls.of(each, place) for each in data]
        made = cls(data, place.line, place.column)
        made.keys, made.hidden = keys, True
        return made

    def plain(self) -> Any:
        """The same as plain data, which is the caller's own."""
        match self.data:
            case dict():
                return {key: each.plain() for key, each in self.data.items()}
            case list():
                return [each.plain() for each in self.data]
            case _:
                return self.data

    def get(self, key: str) -> Value | None:
        """The value under a key, if this is a mapping that has it."""
        return self.data.get(key) if isinstance(self.data, dict) else None

    def text(self, key: str) -> str | None:
        """The text under a key, if there is one."""
        found = self.get(key)
        return found.data if found is not None and isinstance(found.data, str) else None

    def all(self, key: str) -> list[Value]:
        """The items under a key; a value that is no list counts as one of one item."""
        found = self.get(key)
        if found is None:
            return []
        return found.data if isinstance(found.data, list) else [found]

    def at(self, key: str) -> Value:
        """Where a key's value is, for a message about it: the value, or else this one."""
        return self.get(key) or self


def read_document(text: str, file: str) -> Value:
    """The one document in a text. Raises `DeclarationError`; `UsageError` where PyYAML isn't installed."""
    yaml = _yaml()
    if len(text) > MOST_CHARACTERS:
        raise _wrong(
            file, 1, 1, f"it has {len(text)} characters; a declaration has at most {MOST_CHARACTERS}"
        )
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    reader = _Reader(file)
    try:
        for event in yaml.parse(text, Loader=loader):
            reader.take(event)
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        said = getattr(problem, "problem", None) or getattr(problem, "reason", None) or str(problem)
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        raise _wrong(file, line, column, f"this isn't YAML: {said}") from problem
    except (UnicodeError, ValueError) as problem:
        raise _wrong(file, 1, 1, f"this isn't YAML: {problem}") from problem
    if reader.root is None or (reader.root.data is None and reader.root.size == 1):
        raise _wrong(file, 1, 1, "it is empty; a declaration has nodes, or tasks")
    return reader.root


class _Open:
    """A list or mapping that has begun and not ended."""

    __slots__ = ("anchor", "key", "merged", "value")

    def __init__(self, value: Value, anchor: str | None) -> None:
        self.value, self.anchor = value, anchor
        self.key: Value | None = None
        self.merged: list[Value] = []


class _Reader:
    """Builds values from the parser's events, without recursion."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.root: Value | None = None
        self._open: list[_Open] = []
        self._anchors: dict[str, Value] = {}

    def take(self, event: Any) -> None:
        """One event of the parser. Raises `DeclarationError`."""
        mark = event.start_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        match type(event).__name__:
            case "DocumentStartEvent" if self.root is not None:
                raise _wrong(self.file, line, column, "a second document begins here; a file has one")
            case "ScalarEvent":
                self._done(Value(self._scalar(event, line, column), line, column), event.anchor)
            case "SequenceStartEvent" | "MappingStartEvent":
                self._begin(event, line, column)
            case "SequenceEndEvent":
                closed = self._open.pop()
                self._done(closed.value, closed.anchor)
            case "MappingEndEvent":
                closed = self._open.pop()
                self._merge(closed)
                self._done(closed.value, closed.anchor)
            case "AliasEvent":
                self._done(self._aliased(event.anchor, line, column), None)

    def _begin(self, event: Any, line: int, column: int) -> None:
        sequence = type(event).__name__ == "SequenceStartEvent"
        kind = "seq" if sequence else "map"
        if event.tag not in (None, "!", f"{_TAG}{kind}"):
            raise _wrong(self.file, line, column, _bad_tag(event.tag))
        if len(self._open) >= MOST_LEVELS:
            raise _wrong(self.file, line, column, f"it is nested more than {MOST_LEVELS} levels deep")
        self._open.append(_Open(Value([] if sequence else {}, line, column), event.anchor))

    def _done(self, value: Value, anchor: str | None) -> None:
        """A value is complete: put it where it belongs."""
        if anchor is not None:
            self._anchors[anchor] = value
        if not self._open:
            self.root = value
            return
        around = self._open[-1]
        self._grow(around.value, value)
        if isinstance(around.value.data, list):
            around.value.data.append(value)
        elif around.key is None:
            if isinstance(value.data, (list, dict)):
                raise _wrong(self.file, value.line, value.column, "a key is a word or a number")
            around.key = value
        else:
            key, around.key = around.key, None
            if key.data == "<<":
                around.merged.append(value)
                return
            if key.data in around.value.data:
                first = around.value.keys[key.data]
                twice = f"the key {key.data!r} is there twice; first in line {first.line}"
                raise _wrong(self.file, key.line, key.column, twice)
            around.value.data[key.data] = value
            around.value.keys[key.data] = key

    def _grow(self, around: Value, value: Value) -> None:
        around.size += value.size
        around.depth = max(around.depth, value.depth + 1)
        if around.size > MOST_VALUES:
            raise _wrong(self.file, value.line, value.column, f"it amounts to more than {MOST_VALUES} values")
        if around.depth > MOST_LEVELS:
            raise _wrong(
                self.file, value.line, value.column, f"it is nested more than {MOST_LEVELS} levels deep"
            )

    def _merge(self, closed: _Open) -> None:
        """Take in what `<<` names: keys that the mapping doesn't have itself."""
        for given in closed.merged:
            for source in given.data if isinstance(given.data, list) else [given]:
                if not isinstance(source.data, dict):
                    raise _wrong(
                        self.file, given.line, given.column, "<< takes in a mapping, or a list of them"
                    )
                for key, value in source.data.items():
                    if key not in closed.value.data:
                        closed.value.data[key] = value
                        closed.value.keys[key] = source.keys[key]

    def _aliased(self, name: str, line: int, column: int) -> Value:
        if any(each.anchor == name for each in self._open):
            raise _wrong(self.file, line, column, f"*{name} is inside of what it stands for")
        if name not in self._anchors:
            raise _wrong(
                self.file, line, column, f"*{name} stands for nothing: there is no &{name} before it"
            )
        return self._anchors[name]

    def _scalar(self, event: Any, line: int, column: int) -> Scalar:
        text: str = event.value
        tag = event.tag
        if tag is None or tag == "!":
            plain = tag is None and event.implicit[0]
            tag = f"{_TAG}{_meant(text)}" if plain else f"{_TAG}str"
        read = _READ.get(tag.removeprefix(_TAG)) if tag.startswith(_TAG) else None
        if read is None:
            raise _wrong(self.file, line, column, _bad_tag(tag))
        try:
            return read(text)  # type: ignore[no-any-return]  # one of the functions below
        except (ValueError, KeyError):
            kind = tag.removeprefix(_TAG)
            raise _wrong(self.file, line, column, f"{text[:40]!r} can't be read as {kind}") from None


_TAG: Final = "tag:yaml.org,2002:"
_NULLS: Final = ("", "~", "null", "Null", "NULL")
_BOOLEANS: Final = {word: word[0] in "tT" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_WHOLE: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+")
_BROKEN: Final = re.compile(
    r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)


def _meant(text: str) -> str:
    """What a plain word stands for."""
    if text in _NULLS:
        return "null"
    if text in _BOOLEANS:
        return "bool"
    if _WHOLE.fullmatch(text):
        return "int"
    return "float" if _BROKEN.fullmatch(text) else "str"


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError("too long for a number")
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


def _broken(text: str) -> float:
    return float(re.sub(r"\.(?=[iInN])", "", text))


def _null(text: str) -> None:
    if text not in _NULLS:
        raise ValueError(text)


_READ: Final[dict[str, Any]] = {
    "str": str, "null": _null, "bool": _BOOLEANS.__getitem__, "int": _whole, "float": _broken,
}  # fmt: skip


def _bad_tag(tag: str) -> str:
    shown = tag.replace(_TAG, "!!")
    return f"the tag {shown!r} isn't known; a declaration has text, numbers, true, false, null, lists and mappings"


def _wrong(file: str, line: int, column: int, text: str) -> DeclarationError:
    return DeclarationError(file, [(line, column, text)])


def _yaml() -> Any:
    try:
        import yaml
    except ImportError as missing:
        raise needs_extra() from missing
    return yaml


def needs_extra() -> UsageError:
    """The error of somebody who hasn't installed what declarations need."""
    return UsageError("graphs in YAML need PyYAML and Jinja2: pip install 'limpet[yaml]'")
