"""Mistakes in a file: noted as they are found, each with its place, and raised all at once."""

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
    """The mistakes that were found in one file so far. A mistake that is found twice is noted once."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._found: dict[Mistake, None] = {}

    def note(self, place: Value, text: str) -> None:
        """There is something wrong at this value."""
        self._found[Mistake(place.line, place.column, text)] = None

    def unknown(self, place: Value, what: str, name: object, known: Iterable[str]) -> None:
        """A word is used that isn't known there; the nearest one that is gets mentioned."""
        words = list(known)
        near = did_you_mean(name, words)
        self.note(place, f"{what} {name!r}{near or '; known: ' + ', '.join(words)}")

    @property
    def found(self) -> list[Mistake]:
        """All of them, in the order of the file."""
        return sorted(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def raise_any(self) -> None:
        """Raise a `DeclarationError` that lists them, if there are any."""
        if self._found:
            raise DeclarationError(self.file, self.found)
