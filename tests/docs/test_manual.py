"""The reference of the command line says what the command line takes."""

from __future__ import annotations

from pathlib import Path

from holdfast.cli.manual import manual

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def test_the_reference_of_the_command_line_is_current() -> None:
    """F13, H6: write it anew with `python -m holdfast.cli.manual` where this fails."""
    assert PAGE.read_text(encoding="utf-8") == manual()
