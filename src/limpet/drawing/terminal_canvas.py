"""A page of character cells: lines that join where they meet, text on top of them, and terminal colours."""

from __future__ import annotations

from collections.abc import Iterator

from limpet.drawing.text_width import cell_count

UP = 1
DOWN = 2
LEFT = 4
RIGHT = 8

# Indexed by the sum of the directions in which lines leave a cell.
_JOINTS = " ╵╷│╴┘┐┤╶└┌├─┴┬┼"
_ASCII_JOINTS = " |||-+++-+++-+++"
_ASCII_SIGNS = {"▼": "v", "▲": "^", "◀": "<", "▶": ">", "…": ".", "×": "x", "·": "-", "–": "-", "‖": "="}


class Canvas:
    """Cells by column and row. Text covers what was drawn before it; lines join lines."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self._lines: dict[tuple[int, int], int] = {}
        self._text: dict[tuple[int, int], str] = {}
        self._colour: dict[tuple[int, int], str] = {}

    def draw_down(self, x: int, top: int, bottom: int, colour: str = "") -> None:
        """Draw a line from row `top` to row `bottom`, from the middle of one cell to that of the other."""
        for y in range(top, bottom + 1):
            self._join(x, y, (UP if y > top else 0) | (DOWN if y < bottom else 0), colour)

    def draw_across(self, y: int, left: int, right: int, colour: str = "") -> None:
        """Draw a line from column `left` to column `right`, from the middle of one cell to that of the other."""
        for x in range(left, right + 1):
            self._join(x, y, (LEFT if x > left else 0) | (RIGHT if x < right else 0), colour)

    def draw_half(self, x: int, y: int, direction: int) -> None:
        """Draw half a line, from the middle of a cell."""
        self._join(x, y, direction)

    def draw_box(self, x: int, y: int, width: int, height: int, colour: str = "") -> None:
        """Draw an empty frame."""
        right = x + width - 1
        bottom = y + height - 1
        for row in range(y, y + height):
            for column in range(x, x + width):
                self._lines.pop((column, row), None)
                self._text.pop((column, row), None)
        self.draw_across(y, x, right, colour)
        self.draw_across(bottom, x, right, colour)
        self.draw_down(x, y, bottom, colour)
        self.draw_down(right, y, bottom, colour)

    def write(self, x: int, y: int, text: str, colour: str = "") -> None:
        """Write text over whatever the cells show."""
        for character in text:
            width = cell_count(character)
            if not width:
                # An accent or a joiner takes no cell: it belongs to the character before it.
                if (x - 1, y) in self._text:
                    self._text[x - 1, y] += character
                continue
            for offset in range(width):
                self._text[x + offset, y] = "" if offset else character
                self._colour[x + offset, y] = colour
            x += width

    def render(self, *, ascii_only: bool = False, coloured: bool = False) -> str:
        """The page, line by line, without blanks at the ends."""
        return "\n".join(self._row(y, ascii_only, coloured) for y in range(self.height))

    def _join(self, x: int, y: int, directions: int, colour: str = "") -> None:
        self._lines[x, y] = self._lines.get((x, y), 0) | directions
        if colour:
            self._colour[x, y] = colour

    def _row(self, y: int, ascii_only: bool, coloured: bool) -> str:
        parts = []
        current_colour = ""
        for x, shown in self._cells(y, ascii_only):
            if coloured and shown.strip():
                colour = self._colour.get((x, y), "")
                if colour != current_colour:
                    parts.append(f"\x1b[{colour}m" if colour else "\x1b[0m")
                    current_colour = colour
            parts.append(shown)
        row = "".join(parts).rstrip()
        if current_colour:
            return f"{row}\x1b[0m"
        return row

    def _cells(self, y: int, ascii_only: bool) -> Iterator[tuple[int, str]]:
        joints = _ASCII_JOINTS if ascii_only else _JOINTS
        for x in range(self.width):
            text = self._text.get((x, y))
            if text is None:
                yield x, joints[self._lines.get((x, y), 0)]
            elif ascii_only:
                yield x, in_ascii(text)
            else:
                yield x, text


def in_ascii(text: str) -> str:
    """The text in ASCII, with a similar character where one exists, else with ?."""
    return "".join(_ascii_character(each) for each in text)


def _ascii_character(character: str) -> str:
    if character.isascii():
        return character
    if character in _ASCII_SIGNS:
        return _ASCII_SIGNS[character]
    if cell_count(character):
        return "?"
    return ""
