"""A page of character cells: lines that join where they meet, text over them, and colours for terminals."""

from __future__ import annotations

from collections.abc import Iterator

from limpet.drawing.text_width import cell_count

UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8

_JOINTS = " ╵╷│╴┘┐┤╶└┌├─┴┬┼"
_PLAIN = " |||-+++-+++-+++"
_ARROWS = {"▼": "v", "▲": "^", "◀": "<", "▶": ">", "…": ".", "×": "x", "·": "-", "–": "-", "‖": "="}


class Canvas:
    """Cells by row and column. What is put down later lies on top, but lines join lines."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._lines: dict[tuple[int, int], int] = {}
        self._text: dict[tuple[int, int], str] = {}
        self._colour: dict[tuple[int, int], str] = {}

    def down(self, x: int, top: int, bottom: int) -> None:
        """A line from row `top` to row `bottom`, to the middle of both."""
        for y in range(top, bottom + 1):
            self._join(x, y, (UP if y > top else 0) | (DOWN if y < bottom else 0))

    def across(self, y: int, left: int, right: int, colour: str = "") -> None:
        """A line from one column to another, to the middle of both."""
        for x in range(left, right + 1):
            self._join(x, y, (LEFT if x > left else 0) | (RIGHT if x < right else 0), colour)

    def stub(self, x: int, y: int, direction: int) -> None:
        """Half a line, from the middle of a cell."""
        self._join(x, y, direction)

    def box(self, x: int, y: int, width: int, height: int, colour: str = "") -> None:
        """A frame, with nothing inside of it."""
        for row in range(y, y + height):
            for column in range(x, x + width):
                self._lines.pop((column, row), None)
                self._text.pop((column, row), None)
        self.across(y, x, x + width - 1, colour)
        self.across(y + height - 1, x, x + width - 1, colour)
        for column in (x, x + width - 1):
            for row in range(y, y + height):
                self._join(
                    column, row, (UP if row > y else 0) | (DOWN if row < y + height - 1 else 0), colour
                )

    def write(self, x: int, y: int, text: str, colour: str = "") -> None:
        """Text over whatever is there."""
        for each in text:
            taken = cell_count(each)
            if not taken:
                if (x - 1, y) in self._text:
                    self._text[x - 1, y] += each
                continue
            for more in range(taken):
                self._text[x + more, y] = "" if more else each
                self._colour[x + more, y] = colour
            x += taken

    def render(self, *, ascii_only: bool = False, coloured: bool = False) -> str:
        """The page, line by line, without blanks at the ends."""
        return "\n".join(self._row(y, ascii_only, coloured) for y in range(self.height))

    def _join(self, x: int, y: int, directions: int, colour: str = "") -> None:
        self._lines[x, y] = self._lines.get((x, y), 0) | directions
        if colour:
            self._colour[x, y] = colour

    def _row(self, y: int, ascii_only: bool, coloured: bool) -> str:
        parts, last = [], ""
        for x, shown in self._cells(y, ascii_only):
            colour = self._colour.get((x, y), "") if coloured and shown.strip() else ""
            if coloured and shown.strip() and colour != last:
                parts.append(f"\x1b[{colour}m" if colour else "\x1b[0m")
                last = colour
            parts.append(shown)
        row = "".join(parts).rstrip()
        return f"{row}\x1b[0m" if last else row

    def _cells(self, y: int, ascii_only: bool) -> Iterator[tuple[int, str]]:
        for x in range(self.width):
            text = self._text.get((x, y))
            if text is None:
                joint = self._lines.get((x, y), 0)
                yield x, (_PLAIN if ascii_only else _JOINTS)[joint]
            else:
                yield x, plain(text) if ascii_only else text


def plain(text: str) -> str:
    """The text in ASCII, cell for cell as far as there is something like it, else with ?."""
    return "".join(each if each.isascii() else _ARROWS.get(each, "?" * cell_count(each))[:1] for each in text)
