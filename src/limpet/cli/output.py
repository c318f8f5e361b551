"""What a command shows: tables and colours on a terminal, plain text in a pipe, JSON for programs.

Results go to standard output; progress, hints and problems to standard error.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TextIO

from limpet.cli.exit_codes import NextCommand
from limpet.cli.values import to_json_value

STATUSES = {"completed": "32", "running": "36", "paused": "33", "failed": "31", "cancelled": "35"}
COLOURS = {**STATUSES, "damaged": "31", "dim": "2", "bold": "1"}
NEVER_CUT = ("run", "status")
"""Columns that are never shortened: users type run ids again, and the status has a colour."""

NARROWEST_COLUMN = 8


class Output:
    """Where a command writes. With `colour` None, the terminal and `NO_COLOR` decide."""

    def __init__(self, as_json: bool = False, colour: bool | None = None) -> None:
        self.json = as_json
        self._colour = colour

    @property
    def live(self) -> bool:
        """Whether progress can be shown: standard error is a terminal, and the output isn't JSON."""
        return not self.json and sys.stderr.isatty()

    def result(self, data: Any) -> None:
        """One result for a program: a line of JSON."""
        print(json.dumps(to_json_value(data), ensure_ascii=False), flush=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], empty: str = "") -> None:
        """Rows under headings; `empty` where there are none.

        On a terminal the table is at most as wide as the terminal: long texts are shortened, and if that isn't
        enough, the last columns are left out. Run ids are never shortened.
        """
        cells = [[_cell(value) for value in row] for row in rows]
        if not cells:
            self.say(empty or "nothing")
            return
        widths = [max(map(_width, column)) for column in zip(columns, *cells, strict=True)]
        if sys.stdout.isatty():
            widths = _narrowed(columns, widths, shutil.get_terminal_size().columns)
        print(self._styled(_line(columns, widths), "bold", sys.stdout))
        for row in cells:
            shown = [_fitted(text, width) for text, width in zip(row, widths, strict=True)]
            if "status" in columns:
                at = columns.index("status")
                shown[at] = self._styled(shown[at], row[at], sys.stdout)
            print("  ".join(text for text, width in zip(shown, widths, strict=True) if width).rstrip())

    def facts(self, data: Mapping[str, Any]) -> None:
        """Names and values, one a line; values that are None or empty are left out."""
        known = {name: value for name, value in data.items() if value not in (None, "", [], {}, ())}
        width = max(map(len, known), default=0)
        for name, value in known.items():
            text = value if isinstance(value, str) else json.dumps(to_json_value(value), ensure_ascii=False)
            first, *more = _wrapped(_printable(text), width + 2)
            style = first if name == "status" else ""
            shown = self._styled(first, style, sys.stdout)
            print(f"{self._styled(name.ljust(width), 'dim', sys.stdout)}  {shown}".rstrip())
            for line in more:
                print(f"{' ' * width}  {line}".rstrip())

    def text(self, text: str) -> None:
        """A result that is text: unchanged in a pipe, without control characters on a terminal."""
        print(_printable(text) if sys.stdout.isatty() else text, flush=True)

    def progress(self, text: str) -> None:
        """The progress of long work, in one line that the next call replaces; an empty one clears it."""
        if self.live:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def event(self, when: str, status: str, what: str) -> None:
        """One line about a run that is followed."""
        shown = self._styled(f"{status:9}", status, sys.stdout)
        print(f"{when}  {shown}  {_cell(what)}", flush=True)

    def say(self, text: str, style: str = "") -> None:
        """Text for a person. In JSON mode it is left out."""
        if not self.json:
            print(self._styled(_printable(text), style, sys.stderr), file=sys.stderr, flush=True)

    def hint(self, what: str, command: str) -> None:
        """What to do next, with the exact command."""
        if not self.json:
            print(f"{what}\n  {self._styled(command, 'bold', sys.stderr)}", file=sys.stderr, flush=True)

    def problem(self, message: str, code: str, next_command: NextCommand | None = None) -> None:
        """What went wrong, and the command that helps. A program gets an object with the error's stable code."""
        if self.json:
            error = {"code": code, "message": message}
            if next_command is not None:
                error["next"] = next_command.command
            self.result({"error": error})
            return
        text = f"{self._styled('error:', 'failed', sys.stderr)} {_printable(message)}"
        print(text, file=sys.stderr, flush=True)
        if next_command is not None:
            self.hint(next_command.purpose, next_command.command)

    def _styled(self, text: str, style: str, stream: TextIO) -> str:
        wanted = self._colour
        if wanted is None:
            wanted = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        if not wanted or style not in COLOURS:
            return text
        return f"\x1b[{COLOURS[style]}m{text}\x1b[0m"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(to_json_value(value), ensure_ascii=False)
    return " ".join(_printable(text).split())


def _printable(text: str) -> str:
    """Text without control sequences of a terminal: it may come from a run, so from anywhere."""
    return "".join(map(_printable_character, text.replace("\t", "    ")))


def _printable_character(character: str) -> str:
    return character if character.isprintable() or character == "\n" else "�"


def _width(text: str) -> int:
    """How many columns of a terminal a text takes up."""
    from limpet.drawing.text_width import cell_count

    if text.isascii():
        return len(text)
    return cell_count(text)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    shown = [_fitted(text, width) for text, width in zip(cells, widths, strict=True) if width]
    return "  ".join(shown).rstrip()


def _fitted(text: str, width: int) -> str:
    """A text, shortened or padded to this many columns."""
    if _width(text) > width:
        while text and _width(text) >= width:
            text = text[:-1]
        if width:
            text += "…"
    return text + " " * (width - _width(text))


def _narrowed(columns: Sequence[str], widths: Sequence[int], room: int) -> list[int]:
    """Shrink the widest columns until the table fits, then leave out the last ones, which get no width."""
    widths = list(widths)
    shrinkable = [number for number, name in enumerate(columns) if name not in NEVER_CUT]

    def too_wide() -> bool:
        shown = [width for width in widths if width]
        return sum(shown) + 2 * (len(shown) - 1) > room

    while too_wide() and any(widths[number] > NARROWEST_COLUMN for number in shrinkable):
        widths[max(shrinkable, key=lambda number: widths[number])] -= 1
    while too_wide() and shrinkable:
        widths[shrinkable.pop()] = 0
    return widths


def _wrapped(text: str, indent: int) -> list[str]:
    """The lines of a text; on a terminal, long ones are wrapped to the room that the indent leaves."""
    lines = text.split("\n")
    room = shutil.get_terminal_size().columns - indent
    if not sys.stdout.isatty() or room < 2 * NARROWEST_COLUMN:
        return lines
    wrap = partial(textwrap.wrap, width=room, break_on_hyphens=False, drop_whitespace=True)
    wrapped = []
    for line in lines:
        if _width(line) > room:
            wrapped += wrap(line)
        else:
            wrapped.append(line)
    return wrapped
