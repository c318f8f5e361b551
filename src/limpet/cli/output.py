"""What a command shows: tables and colours on a terminal, plain text in a pipe, JSON for programs.

Results go to standard output; progress, hints and problems to standard error. What is shown may come from a run, so
from anywhere: `Output._write` and `Output.result` are the only ways out, and let no control sequence of a terminal
through. The log goes through `printable_log`. Only a value that was asked for is written as it is, and only into a
pipe: see `Output.text`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from limpet.cli.streams import write
from limpet.cli.values import relative_time, utc_time
from limpet.errors import UsageError

if TYPE_CHECKING:
    from logging import Formatter, LogRecord

STATUSES = {
    "completed": "32",
    "running": "36",
    "paused": "33",
    "failed": "31",
    "cancelled": "35",
    "damaged": "31",
    "queued": "36",
    "sleeping": "36",
    "retrying": "33",
    "waiting": "36",
    "abandoned": "31",
    "quarantined": "31",
    "thread": "36",
}
SCHEDULE_STATUSES = {"active": "32", "overdue": "31", "ended": "2"}
COLOURS = {**STATUSES, **SCHEDULE_STATUSES, "dim": "2", "bold": "1"}
RUN = "run"
"""The column of run ids. They are shown whole, or by a beginning that can be typed in their place."""

STATUS = ("status", "was")
"""Columns that have the status of a run, now or before."""

NEVER_CUT = (RUN, *STATUS, "updated", "at (UTC)")
"""Columns that are never cut: users type run ids again, the status has a colour, half a time is useless."""

NARROWEST_COLUMN = 8
NARROWEST_TEXT = 16
"""The same for the last column, which has what a run waits for or failed with."""
WIDEST_NAME = 40
"""How wide a name is at most that other values are lined up with."""

MAX_WRAPPED = 5000
"""How long a line is at most that is wrapped between its words, which takes long."""

MAX_CELL = 500
"""How many characters of a text a table considers on a terminal, which never shows more."""

MIN_WIDTH = 20
"""How narrow a terminal is believed to be at most."""


class NextCommand(NamedTuple):
    """A command to type next, and what it is for."""

    purpose: str
    command: str


class Output:
    """Where a command writes. With `colour` None, the terminal and `NO_COLOR` decide."""

    def __init__(self, as_json: bool = False, colour: bool | None = None) -> None:
        self.json = as_json
        self._colour = colour
        self._has_progress = False

    @property
    def live(self) -> bool:
        """Whether progress can be shown: standard error is a terminal, and the output isn't JSON."""
        return not self.json and sys.stderr.isatty()

    @property
    def width(self) -> int | None:
        """How many columns results may have: those of the terminal, or in a pipe those of `COLUMNS`; None for any."""
        return None if self.json else _columns()

    def result(self, data: Any) -> None:
        """One result for a program: a line of JSON. Characters that a terminal may act upon are escaped in it."""
        text = _as_json(data)
        _print_line(sys.stdout, "".join(map(_json_character, text)))

    def time(self, seconds: float | None) -> str:
        """A time in a table: as seen from now on a terminal, where there is little room; else the time in UTC."""
        if self.width is None:
            return utc_time(seconds)
        return relative_time(seconds, time())

    def time_heading(self, name: str) -> str:
        """The heading of a column with such times."""
        return f"{name} (UTC)" if self.width is None else name

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[Any]],
        empty: str = "",
        left_out_first: Sequence[str] = (),
    ) -> None:
        """Rows under headings; `empty` where there are none.

        On a terminal the table is at most as wide as the terminal: run ids are shown by beginnings that can be typed
        in their place, long texts are cut, and if that isn't enough, columns are left out: those that
        `left_out_first` names, and then the last ones.
        """
        room = self.width
        length = None if room is None else max(room, MAX_CELL)
        cells = [[_cell(value, length) for value in row] for row in rows]
        if not cells:
            self.say(empty or "nothing")
            return
        widths = _widths(columns, cells)
        if room is not None and RUN in columns and _total(widths) > room:
            cells = _with_short_ids(columns, cells)
            widths = _widths(columns, cells)
        if room is not None:
            widths = _narrowed(columns, widths, room, left_out_first)
        self._write(sys.stdout, (_line(columns, widths), "bold"))
        for row in cells:
            shown = [
                (_fitted(text, width), text if column in STATUS else "")
                for column, text, width in zip(columns, row, widths, strict=True)
                if width
            ]
            self._write(sys.stdout, *_joined(shown))

    def facts(self, data: Mapping[str, Any], more: Iterable[tuple[str, Any]] = ()) -> None:
        """Names and values, one a line; values that are None or empty are left out."""
        known = [
            (" ".join(printable(name).split("\n")), value)
            for name, value in (*data.items(), *more)
            if not is_empty(value)
        ]
        widths = [_width(name) for name, _ in known]
        width = max((each for each in widths if each <= WIDEST_NAME), default=0)
        for (name, value), used in zip(known, widths, strict=True):
            first, *rest = _wrapped(printable(as_text(value)), max(width, used) + 2)
            style = first if name == "status" else ""
            padding = " " * (max(width - used, 0) + 2)
            self._write(sys.stdout, (name, "dim"), (padding, ""), (first, style))
            for line in rest:
                self._write(sys.stdout, (f"{' ' * width}  {line}", ""))

    def text(self, text: str) -> None:
        """A value that is text: unchanged in a pipe, without control characters on a terminal."""
        if sys.stdout.isatty():
            self._write(sys.stdout, (text, ""))
        else:
            write(sys.stdout, f"{text}\n")

    def message(self, text: str) -> None:
        """What a command has done, as its result. It may name what was typed, so it is masked in a pipe as well."""
        self._write(sys.stdout, (text, ""))

    def progress(self, text: str) -> None:
        """The progress of long work, in one line that the next call replaces; an empty one clears it."""
        # Where no progress is shown, the line that would be cleared is one that a node is printing.
        if self.live and (text or self._has_progress):
            write(sys.stderr, f"\r\x1b[K{printable(text)}")
            self._has_progress = bool(text)

    def event(self, when: str, status: str, what: str) -> None:
        """One line about a run that is followed."""
        self.progress("")  # a line that grows is shown again when it does
        self._write(sys.stdout, (f"{when}  ", ""), (f"{status:9}", status), (f"  {_cell(what)}", ""))

    def say(self, text: str, style: str = "") -> None:
        """Text for a person. In JSON mode it is left out."""
        if not self.json:
            self._write(sys.stderr, (text, style))

    def hint(self, what: str, command: str) -> None:
        """What to do next, with the exact command."""
        if not self.json:
            self._write(sys.stderr, (f"{what}\n  ", ""), (" ".join(command.split("\n")), "bold"))

    @property
    def interactive(self) -> bool:
        """Whether a person can be asked: input and output are a terminal, and the output isn't JSON."""
        return not self.json and all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))

    def confirm(self, question: str, what: str) -> bool:
        """Whether a person agrees to `what`. Raises `UsageError` where none can be asked."""
        if self.json or not sys.stdin.isatty():
            raise UsageError(f"this {what}: pass --yes to confirm")
        try:
            reply = self.ask(f"{question} [y/N] ")
        except EOFError:
            self.say("")
            reply = ""
        return reply.strip().lower() in ("y", "yes")

    def ask(self, question: str, hidden: bool = False) -> str:
        """What a person types after a question; `hidden` if it isn't to be seen."""
        if hidden:
            from getpass import getpass

            return getpass(printable(question))
        return input(printable(question))

    def problem(self, message: str, code: str, next_command: NextCommand | None = None) -> None:
        """What went wrong, and the command that helps. A program gets an object with the error's stable code."""
        if self.json:
            error = {"code": code, "message": message}
            if next_command is not None:
                error["next"] = next_command.command
            self.result({"error": error})
            return
        self._write(sys.stderr, ("error:", "failed"), (f" {message}", ""))
        if next_command is not None:
            self.hint(next_command.purpose, next_command.command)

    def _write(self, stream: TextIO, *pieces: tuple[str, str]) -> None:
        """Write a line of texts with their styles. Only the styles are control sequences."""
        shown = [self._styled(printable(text), style, stream) for text, style in pieces]
        _print_line(stream, "".join(shown).rstrip())

    def _styled(self, text: str, style: str, stream: TextIO) -> str:
        wanted = self._colour
        if wanted is None:
            wanted = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        if not wanted or style not in COLOURS:
            return text
        return f"\x1b[{COLOURS[style]}m{text}\x1b[0m"


def _as_json(value: Any) -> str:
    # Late: `--help` needs nothing of it.
    from limpet.journal.encoding.json_values import to_json_value

    return json.dumps(to_json_value(value), ensure_ascii=False)


def as_text(value: Any) -> str:
    """A value as it is shown: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else _as_json(value)


def is_empty(value: Any) -> bool:
    """Whether a value is None, or a text or container without anything in it."""
    return value is None or (isinstance(value, str | list | dict | tuple) and not value)


def one_line(text: str) -> str:
    """A text in one line, without control sequences."""
    return " ".join(printable(text).split())


def shortened(text: str, length: int) -> str:
    """At most this many characters of a text."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _cell(value: Any, length: int | None = None) -> str:
    """A value in one line. Only its beginning is considered if a `length` is given: the rest isn't shown anyway."""
    if value is None:
        return ""
    text = as_text(value)
    if length is not None and len(text) > 2 * length:
        text = f"{text[: 2 * length]}…"
    return one_line(text)


def _joined(pieces: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pieces with two spaces between them."""
    joined = [piece for each in pieces for piece in (("  ", ""), each)]
    return joined[1:]


def printable(text: str) -> str:
    """Text without control sequences of a terminal: it may come from a run, so from anywhere.

    That includes ESC and the controls above ASCII, and marks that change the direction of the text around them.
    """
    if text.isprintable():
        return text
    return "".join(map(_printable_character, text.replace("\t", "    ")))


def _printable_character(character: str) -> str:
    return character if character.isprintable() or character == "\n" else "�"


def _print_line(stream: TextIO, line: str) -> None:
    """Print a line whole: `print` alone writes its end separately, and a worker has threads that print, too."""
    write(stream, f"{line}\n")


def printable_log(format: str) -> Formatter:
    """How log lines are shown: as the format says, without control sequences, and with times in UTC."""
    from logging import Formatter
    from time import gmtime

    class PrintableFormatter(Formatter):
        default_msec_format = None

        def format(self, record: LogRecord) -> str:
            return printable(super().format(record))

    formatter = PrintableFormatter(format)
    formatter.converter = gmtime
    return formatter


def _json_character(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    if code > 0xFFFF:  # two escapes, as JSON writes such characters
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return f"\\u{code:04x}"


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
    """A text, cut or padded to this many columns."""
    missing = width - _width(text)
    if missing < 0:
        from limpet.drawing.text_width import shortened

        text = shortened(text, width)
        missing = width - _width(text)
    return text + " " * missing


def _widths(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(_width, column)) for column in zip(columns, *cells, strict=True)]


def _total(widths: Iterable[int]) -> int:
    """How wide a table is with columns of these widths; one of width 0 is left out."""
    shown = [width for width in widths if width]
    return sum(shown) + 2 * (len(shown) - 1)


def _with_short_ids(columns: Sequence[str], cells: list[list[str]]) -> list[list[str]]:
    from limpet.cli.run_ids import short_ids

    place = columns.index(RUN)
    short = short_ids([row[place] for row in cells])
    return [[*row[:place], short[row[place]], *row[place + 1 :]] for row in cells]


def _narrowed(
    columns: Sequence[str], widths: Sequence[int], room: int, left_out_first: Sequence[str]
) -> list[int]:
    """Leave columns out until the others can be narrow enough, and then make the widest of them narrower.

    A column that is left out gets no width.
    """
    widths = list(widths)
    last = len(columns) - 1
    least = [
        width if name in NEVER_CUT else min(width, NARROWEST_TEXT if number == last else NARROWEST_COLUMN)
        for number, (name, width) in enumerate(zip(columns, widths, strict=True))
    ]
    droppable = [columns.index(name) for name in left_out_first if name in columns]
    droppable += [number for number in range(last, 0, -1) if number not in droppable]
    for number in droppable:
        if _total(least) <= room:
            break
        widths[number] = least[number] = 0
    while _total(widths) > room:
        spare = [width - needed for width, needed in zip(widths, least, strict=True)]
        if not any(spare):
            break
        widest = max(
            (number for number in range(len(widths)) if spare[number]), key=lambda number: widths[number]
        )
        widths[widest] -= 1
    return widths


def _columns() -> int | None:
    """How many columns standard output has, at least 20; None if it isn't a terminal and `COLUMNS` isn't set."""
    # Shells keep the variable to themselves, so one that is exported is meant.
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdecimal():
        return None
    return max(MIN_WIDTH, shutil.get_terminal_size().columns)


def _wrapped(text: str, indent: int) -> list[str]:
    """The lines of a text; on a terminal, long ones are wrapped to the room that the indent leaves."""
    lines = text.split("\n")
    columns = _columns()
    if columns is None or columns - indent < 2 * NARROWEST_COLUMN:
        return lines
    room = columns - indent
    wrap = partial(textwrap.wrap, width=room, break_on_hyphens=False, drop_whitespace=True)
    wrapped = []
    for line in lines:
        if len(line) > MAX_WRAPPED:
            step = room if line.isascii() else room // 2  # in case that all characters are wide
            wrapped += [line[start : start + step] for start in range(0, len(line), step)]
        elif _width(line) > room:
            wrapped += wrap(line)
        else:
            wrapped.append(line)
    return wrapped
