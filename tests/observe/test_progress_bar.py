"""The live view of runs: promises G10 and G11."""

from __future__ import annotations

import contextlib
import io
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from limpet.observe import Event, ProgressObserver


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that claims to be a terminal, and knows what a terminal would show."""

    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        lines = [""]
        row = 0
        for part in re.findall(r"\x1b\[\??\d*[A-Za-z]|\n|[^\x1b\n]+", self.getvalue()):
            if part == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif part.endswith("F"):
                row -= int(part[2:-1])
                assert row >= 0, "the cursor went above where painting began"
            elif part == "\x1b[0J":
                lines = [*lines[:row], ""]
            elif part not in ("\x1b[?7l", "\x1b[?7h"):
                lines[row] += part
        return [line for line in lines if line]


class Show:
    """An observer with a fake clock, and a short way to send it events."""

    def __init__(self, stream: Any) -> None:
        self.clock = Clock()
        self.observer = ProgressObserver(stream, clock=self.clock)

    def emit(self, type: str, run_id: str = "r1", source: str = "essay", **data: Any) -> None:
        with self.observer._changed.lock:  # so that the spinner doesn't paint between the two
            self.clock.now += 1.0
            self.observer.on_event(Event(type, self.clock.now, source, {"run_id": run_id, **data}))

    def step(self, node: str, iteration: int = 1, run_id: str = "r1", **data: Any) -> None:
        self.emit("node.start", run_id, node=node, iteration=iteration, attempt=1)
        done = {"error": False, "duration": 0.25} | data
        self.emit("node.complete", run_id, node=node, iteration=iteration, **done)


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        threading.Event().wait(0.01)


def ticking() -> bool:
    return any(thread.name == "limpet-progress" for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def terminal_and_no_thread_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TERM", "xterm-256color")
    yield
    eventually(lambda: not ticking(), "the spinner stops")


def test_without_a_terminal_each_important_event_is_one_plain_line() -> None:
    """G11: finished nodes, retries, pauses and ends; no control characters."""
    # Another test's spinner may not have stopped yet.
    eventually(lambda: not ticking(), "the spinner stops")
    stream = io.StringIO()
    show = Show(stream)
    show.emit("graph.start", entry="draft")
    show.step("draft")
    show.emit("edge.transition", **{"from": "draft", "to": "review"})
    show.emit("node.start", node="review", iteration=2, attempt=1)
    show.emit("node.retry", node="review", attempt=1, delay=1.5, error="TimeoutError: slow")
    show.step("review", 2)
    show.step("review", 3, error=True)
    show.emit("run.pause", node="publish", reason="interrupt_before")
    show.emit("checkpoint.resume", checkpoint_node="review", resume_node="publish")
    show.step("publish", 4)
    show.emit("graph.complete", exit_point="publish", iterations=4)
    assert stream.getvalue().splitlines() == [
        "essay r1: draft done in 0.25s",
        "essay r1: review: retry in 1.50s: TimeoutError: slow",
        "essay r1: review done in 0.25s",
        "essay r1: review failed after 0.25s",
        "essay r1: paused at publish: interrupt_before",
        "essay r1: resumed at publish",
        "essay r1: publish done in 0.25s",
        "essay r1: completed at publish, 4 steps",
    ]
    assert not ticking()


def test_the_progress_of_a_node_is_a_bar_on_a_terminal_and_a_line_now_and_then_elsewhere() -> None:
    """H12: and gone when the node is done."""
    plain = io.StringIO()
    for stream in (plain, Terminal()):
        show = Show(stream)
        show.emit("graph.start", entry="load")
        show.emit("node.start", node="load", iteration=1, attempt=1)
        for done in (1, 2, 10):
            show.clock.now -= 0.8  # one after the other, in quick succession
            show.emit("node.progress", node="load", done=done, total=10, message="pages")
        if stream is not plain:
            lines = show.observer._runs["r1"].lines(show.clock.now, show.observer._marks, "*")
            assert lines[-1].endswith("[####################] 10/10 pages")
        show.emit("node.progress", node="load", done=11, total=None, message="")
        show.emit("node.complete", node="load", iteration=1, error=False, duration=0.5)
        assert not show.observer._runs["r1"].progress
        show.emit("graph.complete", exit_point="load", iterations=1)
    assert plain.getvalue().splitlines() == [
        "essay r1: load: [##..................] 1/10 pages",
        "essay r1: load: [####################] 10/10 pages",
        "essay r1: load: 11",
        "essay r1: load done in 0.50s",
        "essay r1: completed at load, 1 step",
    ]


def test_failure_and_cancellation_are_shown() -> None:
    """G11: how a run ended, and where."""
    stream = io.StringIO()
    show = Show(stream)
    show.emit("run.fail", node="draft", error=ValueError("no luck"))
    show.emit("run.cancel", run_id="r2", node="review")
    assert stream.getvalue().splitlines() == [
        "essay r1: failed at draft: ValueError: no luck",
        "essay r2: cancelled at review",
    ]


def test_on_a_terminal_one_block_is_repainted() -> None:
    """G11: the headline, the last nodes with their durations, and the node that runs now."""
    terminal = Terminal()
    show = Show(terminal)
    show.emit("graph.start", entry="draft")
    for number in range(7):
        show.step(f"node{number}", number)
    show.emit("node.start", node="review", iteration=8, attempt=1)
    screen = terminal.screen()
    assert screen[0] == "essay · r1 · 7 steps · 15.0s"
    assert screen[1:6] == [f"  ✓ node{number}  0.25s" for number in range(2, 7)]
    assert re.fullmatch(r"  [⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] review  0\.00s", screen[6])
    assert len(screen) == 7
    show.emit("node.retry", node="review", attempt=1, delay=30, error="TimeoutError")
    assert terminal.screen()[0] == "essay · r1 · 7 steps, 1 retry · 16.0s"
    assert terminal.screen()[-1] == "  ↻ review  retry in 30.0s: TimeoutError"
    show.emit("run.cancel", node="review")


@pytest.mark.parametrize(
    ("type", "data", "headline"),
    [
        (
            "graph.complete",
            {"exit_point": "b", "iterations": 1},
            "✓ essay · r1 · completed at b · 1 step · 3.00s",
        ),
        (
            "run.pause",
            {"node": "b", "reason": "Ship it?"},
            "⏸ essay · r1 · paused at b: Ship it? · 1 step · 3.00s",
        ),
        ("run.pause", {"node": "b"}, "⏸ essay · r1 · paused at b: waits for an answer · 1 step · 3.00s"),
        ("run.fail", {"node": "b", "error": "E"}, "✗ essay · r1 · failed at b: E · 1 step · 3.00s"),
        ("run.cancel", {"node": "b"}, "✗ essay · r1 · cancelled at b · 1 step · 3.00s"),
    ],
)
def test_a_run_that_ends_leaves_its_outcome_on_the_screen(
    type: str, data: dict[str, Any], headline: str
) -> None:
    """G11: completion, pause, failure and cancellation."""
    terminal = Terminal()
    show = Show(terminal)
    show.emit("graph.start", entry="a")
    show.step("a")
    show.emit(type, **data)
    assert terminal.screen() == [headline, "  ✓ a  0.25s"]


def test_several_runs_are_shown_side_by_side() -> None:
    """G11: a run that ends moves above the others; late events of it don't bring it back."""
    terminal = Terminal()
    show = Show(terminal)
    show.emit("graph.start", "r1", entry="a")
    show.emit("graph.start", "r2", entry="a")
    show.step("a", run_id="r1")
    show.step("b", run_id="r2")
    assert [line.split(" · ")[:2] for line in terminal.screen() if "·" in line] == [
        ["essay", "r1"],
        ["essay", "r2"],
    ]
    show.emit("graph.complete", "r2", exit_point="b", iterations=1)
    show.emit("checkpoint.save", "r2", node="b", step=1)
    show.emit("graph.complete", "r2", exit_point="b", iterations=1)
    show.step("c", run_id="r1")
    screen = terminal.screen()
    assert screen[:2] == ["✓ essay · r2 · completed at b · 1 step · 5.00s", "  ✓ b  0.25s"]
    assert screen[2].startswith("essay · r1 · 2 steps")
    assert screen[3:] == ["  ✓ a  0.25s", "  ✓ c  0.25s"]


def test_nodes_that_run_at_once_are_all_shown() -> None:
    """G11: parallel branches of one run."""
    terminal = Terminal()
    show = Show(terminal)
    show.emit("graph.start", entry="a")
    show.emit("node.start", node="left", iteration=1, attempt=1)
    show.emit("node.start", node="right", iteration=1, attempt=1)
    assert [line.split()[1] for line in terminal.screen()[1:]] == ["left", "right"]
    show.emit("node.complete", node="left", iteration=1, error=False, duration=1.0)
    assert [line.split()[1] for line in terminal.screen()[1:]] == ["left", "right"]
    assert terminal.screen()[1] == "  ✓ left  1.00s"
    show.emit("run.cancel", node="right")


def test_events_in_quick_succession_are_painted_together() -> None:
    """G11: a fast run isn't slowed down by its own picture."""
    terminal = Terminal()
    show = Show(terminal)
    show.emit("graph.start", entry="a")
    before = len(terminal.getvalue())
    for number in range(100):
        show.observer.on_event(
            Event(
                "node.complete",
                0.0,
                "essay",
                {"run_id": "r1", "node": "a", "iteration": number, "error": False},
            )
        )
    assert len(terminal.getvalue()) == before
    show.emit("graph.complete", exit_point="a", iterations=100)
    assert "100 steps" in terminal.screen()[0]


def test_what_comes_from_outside_can_not_drive_the_terminal() -> None:
    """G11: escape sequences and line breaks in names and errors are blanked."""
    for stream in (io.StringIO(), Terminal()):
        show = Show(stream)
        show.emit("run.fail", source="e\x1b[2Jvil", node="a\nb", error="\x1b]0;owned\x07\r\n")
        assert "\x1b[2J" not in stream.getvalue()
        assert "\x1b]" not in stream.getvalue()
        assert "\x07" not in stream.getvalue()
        assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize("tty", [True, False])
def test_a_stream_that_lacks_the_characters_gets_ascii(tty: bool) -> None:
    """G11: no `UnicodeEncodeError`, neither for our marks nor for the names of others."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    stream.isatty = lambda: tty  # type: ignore[method-assign]  # a terminal of 1985
    show = Show(stream)
    show.emit("graph.start", entry="a")
    show.step("prüfen")
    show.emit("graph.complete", exit_point="prüfen", iterations=1)
    assert b"pr?fen" in raw.getvalue()
    assert (b"+ essay - r1 - completed" in raw.getvalue()) == tty


class Broken(Terminal):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def closed(stream: io.StringIO) -> io.StringIO:
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [Broken(), closed(Terminal()), closed(io.StringIO()), object()])
def test_a_broken_stream_raises_no_error(stream: Any) -> None:
    """G11: closed before, or broken in the middle: the run continues."""
    show = Show(stream)
    show.emit("graph.start", entry="a")
    show.step("a")
    show.emit("run.fail", node="a", error="E")


def test_a_stream_that_closes_in_between_raises_no_error() -> None:
    """G11: the spinner's thread ends by itself, too."""
    terminal = Terminal()
    show = Show(terminal)
    show.emit("graph.start", entry="a")
    show.emit("node.start", node="a", iteration=1, attempt=1)
    terminal.close()
    eventually(lambda: not ticking(), "the spinner stops")
    show.emit("graph.complete", exit_point="a", iterations=1)


def test_a_missing_standard_error_raises_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """G11: a program without a console has none."""
    monkeypatch.setattr("sys.stderr", None)
    Show(None).step("a")


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """G11: TERM=dumb understands no escape sequences."""
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    Show(terminal).step("a")
    assert terminal.getvalue() == "essay r1: a done in 0.25s\n"


def test_events_without_a_run_and_of_unknown_types_are_passed_over() -> None:
    """G11: there is nothing to show of them."""
    stream = io.StringIO()
    show = Show(stream)
    show.observer.on_event(Event("edge.evaluate", 1.0, "essay", {"from": "a", "to": "b", "result": True}))
    show.emit("something.new", node="a")
    show.emit("checkpoint.load", node="a")
    assert stream.getvalue() == ""


def test_on_a_real_terminal_the_spinner_turns_while_a_node_runs() -> None:
    """G11: seen through a pseudo-terminal, with the real clock, and lines cut to its width."""
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    painted = b""

    def read_until(text: str) -> None:
        def found() -> bool:
            nonlocal painted
            with contextlib.suppress(BlockingIOError):
                painted += os.read(ours, 65536)
            return text.encode() in painted

        eventually(found, text)

    with open(theirs, "w", encoding="utf-8") as stream:
        observer = ProgressObserver(stream)
        observer.on_event(
            Event("node.start", 1.0, "essay", {"run_id": "r1", "node": "n" * 200, "iteration": 1})
        )
        for frame in "⠙⠹⠸":
            read_until(frame)
        assert b"n" * 80 not in painted
        observer.on_event(Event("graph.complete", 2.0, "essay", {"run_id": "r1", "exit_point": "draft"}))
        read_until("completed at draft")
        eventually(lambda: not ticking(), "the spinner stops")
    os.close(ours)
