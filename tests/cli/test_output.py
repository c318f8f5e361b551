"""What is shown on a terminal: colours, widths, and no command of a stored text."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout

import pytest

from limpet.cli.output import Output
from limpet.cli.values import relative_time, utc_time

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
def test_a_table_fits_the_terminal_and_ids_can_be_typed(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """H6: where there isn't room for the whole id, its beginning is shown."""
    monkeypatch.setenv("COLUMNS", str(width))
    rows = [ROW, ("海藻", "plain", "paused", "")]
    lines = shown(lambda output: output.table(COLUMNS, rows), Output(colour=False)).splitlines()
    assert max(map(len, lines)) <= width
    assert lines[1].split()[:3] == [ID if width == 200 else ID[:8], "article", "failed"]
    assert ("long" in lines[1]) == (width >= 80)
    assert lines[2].index("plain") + 2 == lines[1].index("article")  # 海藻 takes four columns


@pytest.mark.parametrize("width", ["", "60", "80", "wide"])
def test_a_pipe_has_all_columns_unless_the_environment_says_how_many(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: str
) -> None:
    """H6: a pipe into a pager may have `COLUMNS`; another one loses nothing."""
    monkeypatch.setenv("COLUMNS", width)
    output = Output()
    output.table(COLUMNS, [ROW])
    output.facts({"error": "kelp " * 40})
    widest = max(map(len, capsys.readouterr().out.splitlines()))
    assert widest <= int(width) if width.isdecimal() else widest > 200
    assert output.time_heading("updated") == ("updated" if width.isdecimal() else "updated (UTC)")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_table_of_runs_never_cuts_ids_and_times(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """H6: columns of less use are left out instead."""
    monkeypatch.setenv("COLUMNS", str(width))
    columns = ("run", "graph", "status", "step", "node", "updated", "")
    texts = ("a long graph's name", "completed", 12, "some/long/node/name", "59 min ago", "y" * 99)
    rows = [(f"{ID[:12]}{number}{ID}", *texts) for number in range(3)]
    left_out = ("step", "node", "graph")
    lines = shown(
        lambda output: output.table(columns, rows, left_out_first=left_out), Output(colour=False)
    ).splitlines()
    assert max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines[1:]] == [f"{ID[:12]}{number}" for number in range(3)]
    assert all("completed" in line and "59 min ago" in line for line in lines[1:])
    assert ("step" in lines[0], "graph" in lines[0]) == (width >= 80, width >= 80)
    assert ("yyyyyyyyyy" in lines[1]) == (width >= 60)


def test_a_table_of_huge_texts_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cut before it is measured, character by character."""
    monkeypatch.setenv("COLUMNS", "60")
    rows = [("r", "g", "failed", "海" * 3_000_000)]
    (line,) = shown(lambda output: output.table(COLUMNS, rows), Output(colour=False)).splitlines()[1:]
    assert line.endswith("海…")


def test_a_huge_value_is_shown_whole_if_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is wrapped without looking for words, which would take minutes."""
    monkeypatch.setenv("COLUMNS", "60")
    said = shown(lambda output: output.facts({"text": "x" * 3_000_000}), Output(colour=False))
    assert said.count("x") == 3_000_000 + 1  # one is in its name
    assert max(map(len, said.splitlines())) <= 60


def test_a_long_name_leaves_room_for_the_other_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    said = shown(lambda output: output.facts({"n" * 200: 1, "short": 2}), Output(colour=False))
    assert said.splitlines() == [f"{'n' * 200}  1", "short  2"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1000.0, "now"),
        (999.4, "now"),
        (990.0, "10 s ago"),
        (1010.0, "in 10 s"),
        (1000.0 - 60, "1 min ago"),
        (1000.0 - 3599, "59 min ago"),
        (1000.0 + 7200, "in 2 h"),
        (1000.0 - 86400 * 3, "3 d ago"),
        (1000.0 + 86400 * 100, "1970-04-11"),
        (1e20, "after the year 9999"),
        (None, ""),
    ],
)
def test_times_are_seen_from_now(seconds: float | None, text: str) -> None:
    """H6: in few columns."""
    assert relative_time(seconds, 1000.0) == text


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


def test_only_a_line_of_progress_is_cleared() -> None:
    """H12: a line that a node is still printing stays."""

    def work(output: Output) -> None:
        output.progress("")
        output.progress("1 of 2")
        output.progress("")
        output.progress("")

    assert shown(work) == "\r\x1b[K1 of 2\r\x1b[K"


def test_a_line_about_a_run_doesnt_continue_the_line_of_progress() -> None:
    """H12: what a node emits is shown as it grows, and its process may crash meanwhile."""

    def work(output: Output) -> None:
        output.progress("answer: Kelp is")
        output.event("12:00", "abandoned", "step 1")

    assert shown(work).startswith("\r\x1b[Kanswer: Kelp is\r\x1b[K12:00  ")


@pytest.mark.parametrize("seconds", [1e20, 2**62, float("inf"), 253_402_300_800])
def test_a_time_that_no_calendar_has_is_shown(seconds: float) -> None:
    """An imported run may ask something until then."""
    assert utc_time(seconds) == "after the year 9999"
    assert utc_time(0) == "1970-01-01 00:00:00"
