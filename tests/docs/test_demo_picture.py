"""The picture of the demonstration shows what the demonstration prints today."""

from __future__ import annotations

import re
import sys
from collections import Counter

import pytest

if sys.platform == "win32":
    pytest.skip("there is no pseudo terminal on Windows", allow_module_level=True)

from support.terminal_svg import PICTURE, demo_lines, laid_out, lines_shown, plain, render


def test_the_picture_shows_the_lines_that_the_demonstration_prints() -> None:
    """Nodes that run in parallel may report in any order, so the lines are compared without their order."""
    printed = [plain(line) for line in demo_lines() if line]
    shown = lines_shown(PICTURE.read_text(encoding="utf-8"))
    outdated = f"{PICTURE.name} is out of date: PYTHONPATH=src:tests python -m support.terminal_svg"
    assert Counter(shown) == Counter(printed), outdated


def test_the_picture_needs_nothing_but_itself() -> None:
    picture = PICTURE.read_text(encoding="utf-8")
    addresses = set(re.findall(r"https?://[^\"'\s)]+", picture))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<script|<foreignObject|@import|@font-face|href=|url\(", picture)


def test_a_picture_can_be_read_back_as_it_was_drawn() -> None:
    lines = laid_out("┌──┐   ┌──┐\n\n│ \x1b[32m<a>\x1b[0m │ & more")
    assert lines_shown(render(lines)) == ["┌──┐   ┌──┐", "│ <a> │ & more"]
