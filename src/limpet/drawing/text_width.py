"""How much room text takes, and how it is made to fit. No font is asked: widths are estimated on the safe side."""

from __future__ import annotations

from unicodedata import category, combining, east_asian_width

_NARROW, _WIDE = frozenset("iljtfrI1.,:;'|!()[]{} -/\\`\""), frozenset("mwMW@%…→×—")


def single_line(text: str) -> str:
    """The text on one line, without anything that isn't seen or that turns what follows round."""
    shown = "".join(" " if each.isspace() else each for each in text)
    kept = (
        each for each in shown if category(each) not in ("Cc", "Cf", "Cs", "Co", "Cn") or each == "\u200d"
    )
    return " ".join("".join(kept).split())


def shortened(text: str, most: int) -> str:
    """The text in at most so many cells of a terminal, with … where something was left out."""
    text = single_line(text)
    if cell_count(text) <= most:
        return text
    kept, used = "", 0
    for each in text:
        used += cell_count(each)
        if used > most - 1:
            break
        kept += each
    return f"{kept.rstrip()}…" if most > 0 else ""


def cell_count(text: str) -> int:
    """How many cells of a terminal the text takes."""
    return sum(_cells(each) for each in text)


def estimated_width(text: str, size: float) -> float:
    """About how wide the text is in a usual typeface of this size; rather too wide than too narrow."""
    return sum(_ems(each) for each in text) * size


def _cells(each: str) -> int:
    if combining(each) or each == "\u200d" or "\ufe00" <= each <= "\ufe0f":
        return 0
    return 2 if east_asian_width(each) in "WF" else 1


def _ems(each: str) -> float:
    if not _cells(each):
        return 0.0
    if east_asian_width(each) in "WF":
        return 1.05
    if each in _NARROW:
        return 0.37
    if each in _WIDE:
        return 0.92
    if ord(each) > 0x24FF:
        return 1.0
    return 0.69 if each.isupper() else 0.585
