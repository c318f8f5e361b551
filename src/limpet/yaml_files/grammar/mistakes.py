"""Mistakes in a file: collected with their places while it is checked, and raised all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from limpet.errors import DeclarationError, DefinitionError, LimpetError, did_you_mean
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

    def attempt(self, place: Value, call: Callable[[], Any], otherwise: Any = None) -> Any:
        """The result of a call. If it raises an error of Limpet, notes it at this place and gives `otherwise`."""
        try:
            return call()
        except DefinitionError as problem:
            for each in problem.mistakes:
                self.note(place, each)
        except LimpetError as problem:
            self.note(place, str(problem))
        return otherwise

    def check(self, value: Value | None, rule: Callable[[str], Any]) -> None:
        """Note what a rule has against a text. If it isn't a text, or is empty, the tables have found that."""
        if value is not None and isinstance(value.data, str) and value.data:
            self.attempt(value, lambda: rule(value.data))

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
