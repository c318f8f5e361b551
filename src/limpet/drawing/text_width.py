"""How wide text is, and how it is shortened to fit. No font is consulted: widths are estimated rather too wide."""

from __future__ import annotations

from unicodedata import category, combining, east_asian_width

_NARROW = frozenset("iljtfrI1.,:;'|!()[]{} -/\\`\"")
_WIDE = frozenset("mwMW@%…→×—")
_HIDDEN_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Cn")
_ZERO_WIDTH_JOINER = "\u200d"


def single_line(text: str) -> str:
    """The text on one line, without invisible characters and without those that change the direction of writing."""
    with_blanks = "".join(" " if each.isspace() else each for each in text)
    # The joiner is kept: it holds the parts of an emoji together.
    visible = (
        each for each in with_blanks if category(each) not in _HIDDEN_CATEGORIES or each == _ZERO_WIDTH_JOINER
    )
    return " ".join("".join(visible).split())


def shortened(text: str, max_cells: int) -> str:
    """The text on one line in at most `max_cells` terminal cells, with … in place of what is left out."""
    text = single_line(text)
    if cell_count(text) <= max_cells:
        return text
    if max_cells <= 0:
        return ""
    kept = ""
    used = 0
    for each in text:
        used += cell_count(each)
        if used > max_cells - 1:
            break
        kept += each
    return f"{kept.rstrip()}…"


def cell_count(text: str) -> int:
    """How many cells of a terminal the text takes."""
    return sum(_cells_of(each) for each in text)


def estimated_width(text: str, font_size: float) -> float:
    """About how wide the text is in a usual typeface of this size, rather too wide than too narrow."""
    return sum(_ems_of(each) for each in text) * font_size


def _cells_of(character: str) -> int:
    if combining(character) or character == _ZERO_WIDTH_JOINER or "\ufe00" <= character <= "\ufe0f":
        return 0
    if east_asian_width(character) in "WF":
        return 2
    return 1


def _ems_of(character: str) -> float:
    if not _cells_of(character):
        return 0.0
    if east_asian_width(character) in "WF":
        return 1.05
    if character in _NARROW:
        return 0.37
    if character in _WIDE:
        return 0.92
    if ord(character) > 0x24FF:
        return 1.0
    if character.isupper():
        return 0.69
    return 0.585
