"""Mistakes in a file: collected with their places while it is checked, and raised all at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from limpet.errors import DeclarationError, did_you_mean
from limpet.yaml_files.document import Value


class Mistake(NamedTuple):
    """What is wrong, and where: lines and columns count from 1."""

    line: int
    column: int
    text: str


class Mistakes:
    """The mistakes found in one file so far. One that is found twice is listed once."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._found: dict[Mistake, None] = {}  # a dict because it keeps the order and drops repetitions

    def note(self, place: Value, text: str) -> None:
        """Note a mistake at this value."""
        self._found[Mistake(place.line, place.column, text)] = None

    def unknown(self, place: Value, what: str, name: object, known: Iterable[str]) -> None:
        """Note a word that isn't known, with the nearest known one, or all of them if none is near."""
        words = list(known)
        hint = did_you_mean(name, words) or f"; known: {', '.join(words)}"
        self.note(place, f"{what} {name!r}{hint}")

    @property
    def found(self) -> list[Mistake]:
        """All mistakes, in the order of the file."""
        return sorted(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def raise_any(self) -> None:
        """Raise a `DeclarationError` that lists the mistakes, if there are any."""
        if self._found:
            raise DeclarationError(self.file, self.found)
