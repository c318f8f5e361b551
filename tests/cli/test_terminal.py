"""The command line in a real terminal: tables fit it, and a paused run can be answered there."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.command_line import Command
from support.waiting import until

pty = pytest.importorskip("pty", reason="there are no pseudo terminals")
termios = pytest.importorskip("termios", reason="there are no pseudo terminals")

DEADLINE = 60.0

IN_TERMINAL = """
import os, sys
os.login_tty(0)
os.execv(sys.executable, [sys.executable, "-m", "limpet", *sys.argv[1:]])
"""
"""Have the terminal control the command, so that Ctrl-C there interrupts it."""


class Terminal:
    """A command in a terminal with this many columns: what it shows, and what is typed there."""

    def __init__(self, here: Path, columns: int, *words: str) -> None:
        self.shown = ""
        self._written = b""
        self._controller, terminal = pty.openpty()
        termios.tcsetwinsize(terminal, (40, columns))
        environment = {name: value for name, value in os.environ.items() if "LIMPET" not in name}
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        command = [sys.executable, "-c", IN_TERMINAL, *words, "--no-color"]
        self.process = subprocess.Popen(
            command, cwd=here, stdin=terminal, stdout=terminal, stderr=terminal,
            env={**environment, "TERM": "xterm"},
        )  # fmt: skip
        os.close(terminal)

    def read_until(self, text: str | None) -> str:
        """All that was shown until this text appears, or until the end."""
        deadline = time.monotonic() + DEADLINE
        while text is None or text not in self.shown:
            ready, _, _ = select.select([self._controller], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, self.shown
            try:
                chunk = os.read(self._controller, 65536)
            except OSError:  # Linux reports the end of a pseudo terminal as an error
                chunk = b""
            if not chunk:
                assert text is None, self.shown
                break
            self._written += chunk  # which may end within a character
            self.shown = self._written.decode(errors="ignore").replace("\r\n", "\n")
        return self.shown

    def type(self, text: str) -> None:
        os.write(self._controller, text.encode())

    def wait(self) -> int:
        """Its exit code, after what it showed was read."""
        return self.process.wait(DEADLINE)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._controller)


OpenTerminal = Callable[..., Terminal]


@pytest.fixture
def open_terminal(here: Path, ctrl_c: None) -> Iterator[OpenTerminal]:
    """Start a command in a terminal: `open_terminal(80, "runs", "list")`."""
    opened: list[Terminal] = []

    def start(columns: int, *words: str) -> Terminal:
        opened.append(Terminal(here, columns, *words))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


@pytest.fixture
def stored(runs: Command, here: Path) -> Path:
    """A project with runs of long ids, nodes and errors."""
    for number in range(2):
        runs("run", "flows:busy", "--id", f"a-long-id-of-a-customer-{number}")
    return here


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_list_fits_the_terminal(stored: Path, open_terminal: OpenTerminal, columns: int) -> None:
    """H6: with whole times, and ids that can be typed."""
    terminal = open_terminal(columns, "runs", "list")
    lines = terminal.read_until(None).splitlines()
    assert terminal.wait() == 0
    assert max(map(len, lines)) <= columns
    assert ("graph" in lines[0], "status" in lines[0]) == (columns >= 80, True)
    assert all(re.search(r" (now|\d+ (s|min) ago)( |$)", line) for line in lines[1:])
    assert [line.split()[0] for line in lines[1:3]] == [
        "a-long-id-of-a-customer-1",
        "a-long-id-of-a-customer-0",
    ]


def test_the_same_status_is_shown_everywhere_and_a_dry_run_says_so(
    stored: Path, runs: Command, open_terminal: OpenTerminal
) -> None:
    """H11: also while it looks at runs; afterwards, a table says which status runs had before."""
    dry = open_terminal(80, "runs", "retry", "--status", "failed", "--dry-run")
    told = dry.read_until(None)
    assert dry.wait() == 0
    assert "would retry: 1 a-long-id" in told
    assert "retried: " not in told
    assert "status" in told.splitlines()[-4]
    done = runs("runs", "retry", "--status", "failed", "--yes")
    assert done.out.split()[:4] == ["run", "graph", "was", "outcome"]
    run_id = "a-long-id-of-a-customer-1"
    (listed,) = (line for line in runs("runs", "list").out.splitlines() if line.startswith(run_id))
    data = runs("runs", "show", run_id, "--json").data
    (in_list,) = (each for each in runs("runs", "list", "--json").data if each["run_id"] == run_id)
    shown = re.search(r"^status +(\w+)$", runs("runs", "show", run_id).out, re.M)
    assert shown is not None
    statuses = (listed.split()[2], shown[1], data["status"], in_list["status"])
    assert (set(statuses), data["stored_status"]) == ({"queued"}, "running")


def test_a_paused_run_is_answered_where_it_was_started(runs: Command, open_terminal: OpenTerminal) -> None:
    """P1."""
    terminal = open_terminal(80, "run", "flows:graph", "-i", "topic=rope", "--id", "r")
    terminal.read_until("Answer here, or press Enter to leave it: ")
    terminal.type("yes\n")
    shown = terminal.read_until(None)
    assert (terminal.wait(), "✓ publish" in shown) == (0, True)
    assert runs("runs", "show", "r", "--json").data["status"] == "completed"


def test_a_paused_run_is_left_by_the_end_of_input(runs: Command, open_terminal: OpenTerminal) -> None:
    """P1: as by Enter; it is paused, and nothing is lost."""
    terminal = open_terminal(80, "run", "flows:graph", "-i", "topic=rope", "--id", "r")
    terminal.read_until("Answer here, or press Enter to leave it: ")
    terminal.type("\x04")
    terminal.read_until(None)
    assert terminal.wait() == 3
    assert runs("runs", "show", "r", "--json").data["status"] == "paused"


def test_a_browser_opens_at_the_page_of_an_exported_run(
    runs: Command, here: Path, open_terminal: OpenTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H20: at the place that the terminal shows, with a code for its token; Ctrl-C stops the server."""
    pytest.importorskip("uvicorn", reason="the extra server isn't installed")
    from limpet.frontends.security import is_browser_code

    runs("runs", "export", "waits", "waits.run")
    browser = here / "browser"
    browser.write_text('#!/bin/sh\necho "$1" > opened.part && mv opened.part opened\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    terminal = open_terminal(200, "serve", "waits.run", "--port", "0")
    shown = terminal.read_until("stops it")
    ((place, token),) = re.findall(r"(http://127.0.0.1:\d+/runs/waits\?token=)(\S+)", shown)
    until((here / "opened").exists)
    opened = (here / "opened").read_text().strip()
    assert opened.startswith(place)
    assert is_browser_code(opened.removeprefix(place), token, time.time())
    terminal.type("\x03")
    assert terminal.read_until(None).endswith("stopped\n")
    assert terminal.wait() == 0
