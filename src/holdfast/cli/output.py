"""What a command shows: tables and colours on a terminal, plain text in a pipe, JSON for programs.

Results go to standard output; progress, hints and problems to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from holdfast.cli.plainly import plain

COLOURS = {
    "completed": "32",
    "running": "36",
    "paused": "33",
    "failed": "31",
    "cancelled": "35",
    "dim": "2",
    "bold": "1",
}
NARROWEST = 8


class Output:
    """Where a command writes. `colour` None leaves it to the terminal, and to `NO_COLOR`."""

    def __init__(self, as_json: bool = False, colour: bool | None = None) -> None:
        self.json = as_json
        self._colour = colour

    @property
    def live(self) -> bool:
        """Whether somebody watches: standard error is a terminal, and nobody asked for JSON."""
        return not self.json and sys.stderr.isatty()

    def result(self, data: Any) -> None:
        """One result for a program: a line of JSON."""
        print(json.dumps(plain(data), ensure_ascii=False), flush=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], empty: str = "") -> None:
        """Rows under headings, no wider than the terminal; `empty` where there are none."""
        cells = [[_cell(value) for value in row] for row in rows]
        if not cells:
            self.say(empty or "nothing")
            return
        widths = [max(len(text) for text in column) for column in zip(columns, *cells, strict=True)]
        if sys.stdout.isatty():
            widths = _narrowed(widths, os.get_terminal_size().columns)
        print(self._styled(_line(columns, widths), "bold", sys.stdout))
        for row in cells:
            shown = _line(row, widths)
            style = next((text for text in row if text in COLOURS), "")
            print(self._styled(shown, style, sys.stdout))

    def facts(self, data: Mapping[str, Any]) -> None:
        """Names and values, one a line; what is None or empty is left out."""
        known = {name: value for name, value in data.items() if value not in (None, "", [], {}, ())}
        width = max(map(len, known), default=0)
        for name, value in known.items():
            text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
            first, *more = _printable(text).split("\n")
            print(f"{self._styled(name.ljust(width), 'dim', sys.stdout)}  {self._status(first)}")
            for line in more:
                print(f"{' ' * width}  {line}")

    def text(self, text: str) -> None:
        """A result that is text by itself."""
        print(text, flush=True)

    def say(self, text: str, style: str = "") -> None:
        """Something about the work, for a person. In JSON mode nobody is told."""
        if not self.json:
            print(self._styled(_printable(text), style, sys.stderr), file=sys.stderr, flush=True)

    def hint(self, what: str, command: str) -> None:
        """What to do next: the exact command."""
        if not self.json:
            print(f"{what}\n  {self._styled(command, 'bold', sys.stderr)}", file=sys.stderr, flush=True)

    def problem(self, text: str, error: Any) -> None:
        """What went wrong. A program gets it as an object with the error's stable code."""
        if self.json:
            self.result({"error": {"code": error.code, "message": str(error)}})
        else:
            print(
                f"{self._styled('error:', 'failed', sys.stderr)} {_printable(text)}",
                file=sys.stderr,
                flush=True,
            )

    def _status(self, text: str) -> str:
        return self._styled(text, text, sys.stdout) if text in COLOURS else text

    def _styled(self, text: str, style: str, stream: TextIO) -> str:
        wanted = self._colour
        if wanted is None:
            wanted = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return f"\x1b[{COLOURS[style]}m{text}\x1b[0m" if wanted and style in COLOURS else text


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
    return " ".join(_printable(text).split())


def _printable(text: str) -> str:
    """Text without what would command a terminal: it may come from a run."""
    return "".join(each if each.isprintable() or each == "\n" else "�" for each in text.replace("\t", "    "))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(
        (text if len(text) <= width else text[: width - 1] + "…").ljust(width)
        for text, width in zip(cells, widths, strict=True)
    ).rstrip()


def _narrowed(widths: list[int], room: int) -> list[int]:
    """Take from the widest column what doesn't fit."""
    widths = widths.copy()
    while sum(widths) + 2 * (len(widths) - 1) > room and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return widths
