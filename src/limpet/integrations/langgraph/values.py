"""Values of channels in pieces, and how one differs from the one before: what is stored of it is only that.

A piece is a value, or a part of one, as LangGraph's serializer encodes it. A list has a piece for each item, a dict
for each of its entries, and anything else is one piece. Two values are compared by their pieces, so by what is
stored: an object that was changed in place differs, and 1, True and 1.0 are three things. What the serializer decodes
from the pieces is what it would decode from the whole.

As data, a value that changed is one of these. The entries of a list are pieces, those of a dict `[key, piece]`; and
`[first, count]` stands for that many entries of the value before.

    [ABSENT]             there is none
    [WHOLE, piece]
    [LIST, entries]
    [BLOCKS, entries]    a long list of numbers: each piece has up to `BLOCK` of them
    [DICT, entries]

A piece is bytes; `[type, bytes]` where the serializer's type isn't msgpack; `[[piece, …]]` for a list in a dict; or a
number, for a piece that was stored shortly before: see `RecentPieces`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

ABSENT: Final = 0
WHOLE: Final = 1
LIST: Final = 2
BLOCKS: Final = 3
DICT: Final = 4

BLOCK: Final = 64
"""How many numbers of a list are one piece."""

MIN_RECENT: Final = 48
"""The size from which a piece is remembered: a smaller one is stored again."""

_USUAL = "msgpack"
_NUMBERS = frozenset({int, float, bool, type(None)})


class Typed(NamedTuple):
    """A piece whose type isn't the usual one."""

    type: str
    data: bytes


class Listed(NamedTuple):
    """A list that is the value of an entry of a dict."""

    pieces: tuple[Piece, ...]


Piece = bytes | Typed
Part = Piece | Listed
Entry = Any
"""Of a list a piece, of a dict a pair of a key and a part."""


class Value(NamedTuple):
    """A value in pieces."""

    form: int
    entries: Sequence[Entry]


class Serializer(Protocol):
    """What a serializer of LangGraph does."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]: ...

    def loads_typed(self, data: tuple[str, bytes]) -> Any: ...


Dump = Callable[[Any], Piece]


def dump_with(serializer: Serializer) -> Dump:
    """The function that makes a piece of a value."""

    def dump(value: Any) -> Piece:
        kind, data = serializer.dumps_typed(value)
        return bytes(data) if kind == _USUAL else Typed(kind, bytes(data))

    return dump


def to_pieces(value: Any, dump: Dump) -> Value:
    """A value in pieces."""
    if type(value) is list:
        if len(value) > BLOCK and set(map(type, value)) <= _NUMBERS:
            return Value(
                BLOCKS, [dump(value[first : first + BLOCK]) for first in range(0, len(value), BLOCK)]
            )
        return Value(LIST, [dump(item) for item in value])
    if type(value) is dict and all(type(key) is str for key in value):
        return Value(DICT, [(key, _part(item, dump)) for key, item in value.items()])
    return Value(WHOLE, [dump(value)])


def _part(value: Any, dump: Dump) -> Part:
    if type(value) is list:
        return Listed(tuple(dump(item) for item in value))
    return dump(value)


def from_pieces(value: Value, serializer: Serializer) -> Any:
    """The value, all of it new objects."""

    def load(piece: Piece) -> Any:
        return load_piece(piece, serializer)

    if value.form == WHOLE:
        return load(value.entries[0])
    if value.form == LIST:
        return [load(piece) for piece in value.entries]
    if value.form == BLOCKS:
        return [number for block in value.entries for number in load(block)]
    return {
        key: [load(piece) for piece in part.pieces] if type(part) is Listed else load(part)
        for key, part in value.entries
    }


def load_piece(piece: Piece, serializer: Serializer) -> Any:
    """The value of one piece."""
    if isinstance(piece, Typed):
        return serializer.loads_typed((piece.type, piece.data))
    return serializer.loads_typed((_USUAL, piece))


class RecentPieces:
    """The pieces that were stored since the newest checkpoint, and with it: numbers stand for them.

    What a task writes is stored twice by LangGraph, as its write and in the channel of the next checkpoint. The
    second time a number is enough.
    """

    __slots__ = ("_numbers", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._numbers: dict[Piece, int] | None = None

    def add(self, piece: Piece) -> None:
        """A piece was stored."""
        if _size(piece) < MIN_RECENT:
            return
        if self._numbers is not None:
            self._numbers.setdefault(piece, len(self._pieces))
        self._pieces.append(piece)

    def number_of(self, piece: Piece) -> int | None:
        """What stands for a piece; None if it has to be stored."""
        if _size(piece) < MIN_RECENT:
            return None
        if self._numbers is None:
            self._numbers = {}
            for number, known in enumerate(self._pieces):
                self._numbers.setdefault(known, number)
        return self._numbers.get(piece)

    def __getitem__(self, number: int) -> Piece:
        return self._pieces[number]


def _size(piece: Piece) -> int:
    if isinstance(piece, Typed):
        return len(piece.data)
    return len(piece)


def difference(old: Value | None, new: Value | None, recent: RecentPieces | None) -> list[Any] | None:
    """How a value differs from the one before, as data; None if it doesn't."""
    if new is None:
        if old is None:
            return None
        return [ABSENT]
    if new is old or (old is not None and new.form == old.form and new.entries == old.entries):
        return None
    if new.form == WHOLE:
        return [WHOLE, _stored_part(new.entries[0], recent)]
    before: Sequence[Entry] = ()
    if old is not None and old.form == new.form:
        before = old.entries
    stored = _stored_pair if new.form == DICT else _stored_part
    entries = [each if type(each) is range else stored(each, recent) for each in _runs(before, new.entries)]
    return [new.form, [[each.start, len(each)] if type(each) is range else each for each in entries]]


def repetition(value: Value, recent: RecentPieces | None) -> list[Any]:
    """A value that is the same as the one before, as data."""
    if value.form == WHOLE:
        return [WHOLE, _stored_part(value.entries[0], recent)]
    return [value.form, [[0, len(value.entries)]]]


def _runs(old: Sequence[Entry], new: Sequence[Entry]) -> Iterator[Any]:
    """The entries of a sequence, with a range of numbers for those that another one has in the same order."""
    places: dict[Entry, int] | None = None
    run = range(0)
    for entry in new:
        following = run.stop
        if following < len(old) and entry == old[following]:
            run = range(run.start, following + 1)
            continue
        if run:
            yield run
        if places is None:
            places = {}
            # What was only added at the end isn't looked for among those before.
            if following < len(old):
                for place, known in enumerate(old):
                    places.setdefault(known, place)
        found = places.get(entry)
        if found is None:
            # An entry that was replaced: the next one may be the next of the old ones again.
            run = range(following + 1, following + 1)
            yield entry
        else:
            run = range(found, found + 1)
    if run:
        yield run


def _stored_pair(entry: tuple[str, Part], recent: RecentPieces | None) -> list[Any]:
    key, part = entry
    return [key, _stored_part(part, recent)]


def _stored_part(part: Part, recent: RecentPieces | None) -> Any:
    if isinstance(part, Listed):
        return [[_stored_part(piece, recent) for piece in part.pieces]]
    number = None if recent is None else recent.number_of(part)
    if number is not None:
        return number
    if isinstance(part, Typed):
        return list(part)
    return part


def changed(
    old: Value | None, change: list[Any], recent: RecentPieces | None, stored: Callable[[Piece], None]
) -> Value | None:
    """The value after a change that `difference` has made. `stored` is called with each piece that is in the change.

    Raises LookupError, TypeError or ValueError for anything else.
    """
    form, *rest = change
    if form == ABSENT:
        return None

    def part(data: Any) -> Part:
        if type(data) is int:
            if recent is None:
                raise ValueError("it repeats a piece that isn't known")
            return recent[data]
        if type(data) is list and type(data[0]) is list:
            return Listed(tuple(part(each) for each in data[0]))  # type: ignore[misc]  # these are pieces
        piece: Piece = data if type(data) is bytes else Typed(*data)
        stored(piece)
        return piece

    (content,) = rest
    if form == WHOLE:
        return Value(WHOLE, [part(content)])
    if form not in (LIST, BLOCKS, DICT):
        raise ValueError(f"its form is {form!r}")
    before: Sequence[Entry] = ()
    if old is not None and old.form == form:
        before = old.entries
    entries: list[Entry] = []
    for each in content:
        if type(each) is list and type(each[0]) is int:
            first, count = each
            if not 0 <= first <= first + count <= len(before):
                raise ValueError("it repeats entries that aren't known")
            entries += before[first : first + count]
        elif form == DICT:
            key, data = each
            entries.append((key, part(data)))
        else:
            entries.append(part(each))
    return Value(form, entries)
