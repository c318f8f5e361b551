"""No text of a run reaches a terminal as a command to it, whatever command of ours shows it."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from shutil import which

import pytest

from limpet import Question, open_store
from limpet.cli.arguments import make_parser
from limpet.cli.main import main
from limpet.cli.next_commands import _example
from limpet.cli.project import shell_line
from limpet.engine.sessions.start import new_run
from limpet.errors import UsageError
from limpet.journal.progress import Progress

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\x85\u202egnp.exe\u2066\u200b\x7f\r"
"""Set the title, clear the screen, a colour by a C1 control, text that runs backwards, and more."""

OUR_OWN = re.compile(r"\x1b\[\d+m|\r?\x1b\[K")
"""Colours, and what clears the line of progress."""

FLOWS = f"""
from limpet import StateGraph, pause
EVIL = {EVIL!r}

def fail(state):
    raise ValueError(EVIL)

asking = StateGraph(name="asking" + EVIL)
asking.add_node("a", lambda state: {{EVIL: EVIL, "plain" + EVIL: {{EVIL: [EVIL]}}}})
asking.add_node("b", lambda state: {{"said": pause("prompt" + EVIL, choices=["choice" + EVIL, "no"], key="q")}})
asking.add_edge("a", "b").set_entry_point("a").set_finish_point("b")
asking.compile(preserve=True)

failing = StateGraph(name="failing" + EVIL).add_node("a", fail)
failing.set_entry_point("a").set_finish_point("a")
"""

COMMANDS: dict[str, list[list[str]]] = {
    "run": [
        ["run", "flows:asking", "-i", f"x={EVIL}"],
        ["run", "flows:failing"],
        ["run", "flows:asking", "--detach"],
    ],
    "resume": [["resume", "asks"], ["resume", "fails"], ["resume", f"none{EVIL}"]],
    "answer": [
        ["answer", "asks", EVIL],
        ["answer", "asks", f"none{EVIL}", "1"],
        ["answer", "fails", "1"],
        ["answer", "copied", "no"],
    ],
    "runs list": [["runs", "list"], ["runs", "list", "--status", EVIL]],
    "runs show": [["runs", "show", "asks"], ["runs", "show", "fails"], ["runs", "show", f"odd{EVIL}"]],
    "runs history": [["runs", "history", "asks"]],
    "runs state": [
        ["runs", "state", "asks"],
        ["runs", "state", "asks", "--key", f"none{EVIL}"],
        ["runs", "state", "asks", "--key", EVIL],
    ],
    "runs diff": [["runs", "diff", "asks", "0", "1"]],
    "runs watch": [["runs", "watch", "asks"], ["runs", "watch", "fails"]],
    "runs send": [["runs", "send", "asks", f"name{EVIL}", EVIL], ["runs", "send", "asks", "note", EVIL]],
    "runs fork": [["runs", "fork", "asks", "--step", "1"], ["runs", "fork", f"odd{EVIL}"]],
    "runs rollback": [["runs", "rollback", "asks", "1"]],
    "runs retry": [["runs", "retry", "--all", "--dry-run"], ["runs", "retry", f"odd{EVIL}", f"none{EVIL}"]],
    "runs cancel": [["runs", "cancel", "copied"], ["runs", "cancel", f"odd{EVIL}"]],
    "runs export": [["runs", "export", "asks", "asks.run"], ["runs", "export", "asks", f"asks{EVIL}.run"]],
    "runs import": [["runs", "import", "asks.run", "--id", "again"], ["runs", "import", f"none{EVIL}.run"]],
    "runs delete": [["runs", "delete", "again", "--yes"], ["runs", "delete", f"odd{EVIL}"]],
    "graph show": [["graph", "show", "flows:asking"]],
    "graph check": [["graph", "check", "flows:asking"]],
    "graph draw": [
        ["graph", "draw", "flows:asking", "--run", "asks"],
        ["graph", "draw", "flows:asking"],
        ["graph", "draw", "flows:asking", "--out", f"{EVIL}.svg"],
        ["graph", "draw", "flows:asking", f"--{EVIL}"],
    ],
    "schedules add": [
        ["schedules", "add", "new", "flows:asking", "--every", "1h", "-i", f"x={EVIL}", "--tag", EVIL],
        ["schedules", "add", f"new{EVIL}", "flows:asking", "--cron", EVIL, "--timezone", EVIL],
        ["schedules", "add", "new", "flows:asking", "--every", "1h", "--timezone", EVIL],
    ],
    "schedules sync": [["schedules", "sync", "flows:asking"], ["schedules", "sync", f"none{EVIL}.yaml"]],
    "schedules list": [["schedules", "list"]],
    "schedules show": [["schedules", "show", "planned"], ["schedules", "show", f"none{EVIL}"]],
    "schedules pause": [["schedules", "pause", "planned"], ["schedules", "pause", f"none{EVIL}"]],
    "schedules resume": [["schedules", "resume", "planned"], ["schedules", "resume", f"none{EVIL}"]],
    "schedules trigger": [["schedules", "trigger", "planned"], ["schedules", "trigger", f"none{EVIL}"]],
    "schedules delete": [["schedules", "delete", f"none{EVIL}"], ["schedules", "delete", "planned"]],
    "limits list": [["limits", "list"]],
    "limits show": [["limits", "show", "limited"], ["limits", "show", f"none{EVIL}"]],
    "limits set": [
        ["limits", "set", "limited", "--rate", EVIL],
        ["limits", "set", f"new{EVIL}", "--concurrency", "1"],
    ],
    "limits delete": [["limits", "delete", f"none{EVIL}"], ["limits", "delete", "limited"]],
    "store info": [["store", "info"]],
    "store verify": [["store", "verify"]],
    "store flatten": [["store", "flatten", f"flat{EVIL}.jsonl"]],
    "store prune": [["store", "prune", "--older", "0s", "--dry-run"]],
    "worker": [["worker", "flows:asking", "--once"]],
    "workers": [["workers"]],
    "serve": [
        ["serve", "--port", "0", "--no-browser"],
        ["serve", "asks.run", "--port", "0", "--no-browser"],
        ["serve", f"none{EVIL}.run"],
        ["serve", "--host", EVIL],
        ["serve", "--token", EVIL],
    ],
    "mcp": [
        ["mcp", "--http", "--port", "0"],
        ["mcp", "--http", "--host", EVIL],
        ["mcp", "--http", "--token", EVIL],
        ["mcp", "--http", "--graph", EVIL],
    ],
}
NO_STORED_DATA = {"graph schema", "store migrate", "demo", "completion"}
"""They show what is ours alone."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def names(parser: ArgumentParser, before: str = "") -> Iterator[str]:
    """All commands of the command line, by their words."""
    nouns = [action for action in parser._actions if isinstance(action, _SubParsersAction)]
    if not nouns:
        yield before
    for word, inner in [each for noun in nouns for each in noun.choices.items()]:
        yield from names(inner, f"{before} {word}".strip())


def test_every_command_is_driven_below() -> None:
    """A new one has to be listed here."""
    assert set(names(make_parser())) == {*COMMANDS, *NO_STORED_DATA}


@pytest.fixture
def hostile(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with runs whose names, keys, values, prompts, choices, errors and tags are such a text."""
    (here / "flows.py").write_text(FLOWS)
    monkeypatch.setenv("LIMPET_STORE", f"sqlite:///{here}/runs.db")
    monkeypatch.setenv("LIMPET_GRAPHS", "flows:asking,flows:failing")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.setattr(sys, "stdin", Terminal("\n" * 99))
    for arguments in (
        ["run", "flows:asking", "--id", "asks", "--tag", f"tag{EVIL}"],
        ["run", "flows:failing", "--id", "fails"],
        ["runs", "export", "asks", "asks.run"],
        ["runs", "import", "asks.run", "--id", "copied"],
        ["limits", "set", "limited", "--concurrency", "1"],
        [
            "schedules",
            "add",
            "planned",
            "flows:asking",
            "--every",
            "1h",
            "-i",
            f"x={EVIL}",
            "--tag",
            f"tag{EVIL}",
        ],
    ):
        screen(arguments)
    with suppress(UsageError):  # it needs an extra
        from limpet.cli.web.web_server import WebServer

        monkeypatch.setattr(WebServer, "start", not_started)
    store = open_store(f"sqlite:///{here}/runs.db")
    progress = Progress(f"odd{EVIL}", f"odd{EVIL}", "", f"node{EVIL}", {EVIL: EVIL}, at=1.0, status="paused")
    progress.reason = f"reason{EVIL}"
    store.create(new_run(progress, (EVIL,), None, 1.0))
    return here


def not_started(server: object) -> None:
    """In place of a server, which would work until it is stopped."""
    raise RuntimeError(EVIL)


def screen(arguments: list[str]) -> str:
    """All that a user at a terminal sees of a command."""
    # SystemExit: argparse has explained it
    with redirect_stdout(Terminal()) as shown, redirect_stderr(shown), suppress(SystemExit):
        main(arguments)
    return shown.getvalue()


def dangers(shown: str) -> list[str]:
    rest = OUR_OWN.sub("", shown)
    return sorted({repr(letter) for letter in rest if not letter.isprintable() and letter != "\n"})


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_masks_what_runs_contain(name: str, hostile: Path) -> None:
    """Prompts, choices and keys of the state among it; as JSON, they are escaped."""
    for arguments in COMMANDS[name]:
        shown = screen(arguments)
        assert dangers(shown) == [], (arguments, shown)
        assert shown
        if name != "runs delete":  # which asks
            assert dangers(screen([*arguments, "--json"])) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_masks_what_was_typed_in_a_pipe_as_well(name: str, hostile: Path) -> None:
    """Only a value that was asked for is written as it is: the next program may want it so."""
    for arguments in COMMANDS[name]:
        if arguments == ["runs", "state", "asks", "--key", EVIL]:
            continue
        with redirect_stdout(io.StringIO()) as shown, redirect_stderr(shown), suppress(SystemExit):
            main(arguments)
        assert dangers(shown.getvalue()) == [], arguments


def words_of(command: str) -> list[str]:
    """What a shell makes of a command."""
    line = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True)
    return [os.fsdecode(word) for word in line.stdout.split(b"\0")[:-1]]


@pytest.mark.skipif(which("bash") is None, reason="there is no shell that reads $'…'")
def test_the_command_that_is_suggested_can_be_pasted(hostile: Path) -> None:
    """It answers with the very choice, although a terminal can't show it."""
    command = screen(["runs", "show", "asks"]).splitlines()[-1]
    words = words_of(OUR_OWN.sub("", command))
    answer = words[words.index("answer") :]
    assert answer == ["answer", "asks", "choice" + EVIL]
    assert main([*answer, "--json"]) == 0
    assert json.loads(screen(["runs", "state", "asks", "--json"]))["said"] == "choice" + EVIL


@pytest.mark.parametrize(
    "word", ["plain", "a b", "it's", "", "a\nb\\n'\t", EVIL, "\x1b7", "é\x85ü", "\udcff"]
)
@pytest.mark.skipif(which("bash") is None, reason="there is no shell that reads $'…'")
def test_a_shell_reads_the_word_that_was_meant(word: str) -> None:
    line = shell_line([word, "next"])
    assert line.isprintable()
    assert words_of(line) == [word, "next"]


@pytest.mark.parametrize(
    ("choices", "suggested"),
    [(["\0", "half \ud800", "-x", "fine"], "fine"), (["\0"], "ANSWER"), (["-x"], "ANSWER")],
)
def test_a_choice_that_cant_be_typed_is_not_suggested(choices: list[str], suggested: str) -> None:
    assert _example(Question("q", "?", "node", choices)) == suggested


def test_a_program_reads_the_same_values_from_json_on_a_terminal(hostile: Path) -> None:
    """They are escaped, not replaced."""
    assert json.loads(screen(["runs", "state", "asks", "--json"]))[EVIL] == EVIL


def test_the_data_is_hostile_at_all(hostile: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """In a pipe, a value is written as it is."""
    main(["runs", "state", "asks", "--key", EVIL])
    assert EVIL in capfd.readouterr().out


def test_the_log_of_a_command_is_masked(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the program hasn't set one up, and in a worker, which has its own."""
    monkeypatch.setattr(logging.root, "handlers", [])
    main(["store", "info"])
    for arguments in (["store", "info"], ["worker", "flows:asking", "--once"]):
        with redirect_stdout(Terminal()) as shown, redirect_stderr(shown):
            main(arguments)
            logging.getLogger("limpet.test").warning("see %s", EVIL)
        assert "see \ufffd]0;owned" in shown.getvalue()
        assert dangers(shown.getvalue()) == []
