"""What is shown on a terminal: colours, widths, and no command of a stored text."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout

import pytest

from limpet.cli.output import Output
from limpet.cli.values import utc_time

ID = "0123456789abcdef0123456789abcdef"
ROW = (ID, "article", "failed", "ValueError: the line is busy, and it was long")
COLUMNS = ("run", "graph", "status", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(work: Callable[[Output], None], output: Output | None = None) -> str:
    """What a user at a terminal sees of it."""
    with redirect_stdout(Terminal()) as screen, redirect_stderr(screen):
        work(output or Output())
    return screen.getvalue()


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that has them."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_table_fits_the_terminal_and_keeps_ids_whole(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    rows = [ROW, ("海藻", "plain", "paused", "")]
    lines = shown(lambda output: output.table(COLUMNS, rows), Output(colour=False)).splitlines()
    assert max(map(len, lines)) <= width
    assert lines[1].split()[:3] == [ID, "article", "failed"]
    assert ("long" in lines[1]) == (width == 200)
    assert lines[2].index("plain") + 2 == lines[1].index("article")  # 海藻 takes four columns


def test_only_the_status_is_coloured() -> None:
    table = shown(lambda output: output.table(COLUMNS, [("failed", "paused", "failed", "bold")]))
    assert table.splitlines()[1] == "failed  paused  \x1b[31mfailed\x1b[0m  bold"
    facts = shown(lambda output: output.facts({"status": "paused", "word": "paused"}))
    assert facts.count("\x1b[33mpaused\x1b[0m") == 1


@pytest.mark.parametrize("way", ["NO_COLOR", "TERM", "--no-color"])
def test_there_are_no_colours_where_they_are_off(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """H6."""
    if way != "--no-color":
        monkeypatch.setenv(way, "dumb")
    output = Output(colour=False if way == "--no-color" else None)

    def work(output: Output) -> None:
        output.table(COLUMNS, [ROW])
        output.say("done", "completed")

    assert "\x1b" not in shown(work, output)
    assert "\x1b" in shown(work, Output(colour=True))


def test_long_values_are_wrapped_next_to_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    facts = shown(lambda output: output.facts({"text": "kelp " * 20, "n": 1}), Output(colour=False))
    first, second, *_, last = facts.splitlines()
    assert (first[:10], second[:10], last) == ("text  kelp", "      kelp", "n     1")
    assert len(first) <= 40


def test_a_stored_text_cant_command_the_terminal() -> None:
    def work(output: Output) -> None:
        output.text("red \x1b[31m")
        output.facts({"x": "\x1b]0;title\x07"})
        output.event("12:00", "running", "at \x1b[2J")

    assert "\x1b" not in shown(work, Output(colour=False))


def test_progress_is_for_those_who_watch() -> None:
    assert shown(lambda output: output.progress("1 of 2")).endswith("1 of 2")
    assert shown(lambda output: output.progress("1 of 2"), Output(as_json=True)) == ""


@pytest.mark.parametrize("seconds", [1e20, 2**62, float("inf"), 253_402_300_800])
def test_a_time_that_no_calendar_has_is_shown(seconds: float) -> None:
    """An imported run may ask something until then."""
    assert utc_time(seconds) == "after the year 9999"
    assert utc_time(0) == "1970-01-01 00:00:00"
