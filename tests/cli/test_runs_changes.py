"""`runs fork`, `rollback`, `cancel`, `export`, `import`, `delete`: what they change, print and exit with."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import Command


def test_a_fork_is_a_run_of_its_own(runs: Command) -> None:
    """H6: with the command that resumes it."""
    done = runs(
        "runs", "fork", "waits", "--step", "0", "--set", "topic=rope", "--id", "f", "--graph", "flows:graph"
    )
    assert (done.code, done.out) == (0, "f\n")
    assert "limpet resume f --graph flows:graph" in done.err
    assert runs("resume", "f", "--graph", "flows:graph").code == 3
    assert runs("runs", "state", "f", "--key", "text").out == "About rope.\n"
    made = runs("runs", "fork", "waits", "--json", "--graph", "flows:graph").data
    assert made["forked_from"] == "waits"
    assert runs("runs", "fork", "waits", "--step", "99", "--graph", "flows:graph").code == 2


def test_a_run_is_set_back(runs: Command) -> None:
    """H6."""
    assert runs("runs", "rollback", "waits", "0", "--graph", "flows:graph").code == 0
    assert "text" not in runs("runs", "state", "waits", "--json").data
    assert runs("runs", "rollback", "waits", "99", "--graph", "flows:graph").code == 2
    assert runs("runs", "rollback", "waits", "0", "--graph", "flows:graph", "--json").data["step"] == 0


def test_a_run_is_cancelled(runs: Command) -> None:
    """G12."""
    assert runs("runs", "cancel", "waits").out == "cancelled\n"
    assert runs("runs", "cancel", "waits").out == "it is cancelled already\n"
    assert runs("runs", "cancel", "waits", "--json").data["status"] == "cancelled"
    assert runs("runs", "cancel", "done").code == 2


def test_a_run_is_carried_by_a_file(runs: Command, here: Path) -> None:
    assert runs("runs", "export", "waits", "w.run").code == 0
    assert runs("runs", "import", "w.run", "--store", "sqlite:///other.db").out == "waits\n"
    assert runs("runs", "import", "w.run").code == 5
    assert runs("runs", "import", "w.run", "--id", "w2", "--json").data == {"run_id": "w2"}
    assert runs("runs", "export", "waits", "no/such/place.run").code == 6


@pytest.mark.parametrize("words", [[], ["--store", "sqlite:///new.db"]])
def test_importing_a_file_that_isnt_there_says_so(limpet: Command, here: Path, words: list[str]) -> None:
    """G13: and makes no store."""
    done = limpet("runs", "import", "nope.run", *words)
    assert (done.code, "there is no file 'nope.run'" in done.err) == (2, True)
    assert not list(here.glob("*.db"))


@pytest.mark.parametrize("step", ["99", "-1"])
def test_a_rollback_that_is_refused_changes_nothing(runs: Command, step: str) -> None:
    """H6: not even when the run was updated."""
    before = runs("runs", "show", "waits", "--json").data
    done = runs("runs", "rollback", "waits", step, "--graph", "flows:graph")
    assert done.code == 2
    assert runs("runs", "show", "waits", "--json").data == before


def test_deleting_is_asked_back(runs: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs("runs", "delete", "done").code == 2
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: "n")
    assert runs("runs", "delete", "done").code == 0
    assert runs("runs", "show", "done").code == 0
    assert runs("runs", "delete", "done", "--yes", "--json").data == {"run_id": "done", "deleted": True}
    assert runs("runs", "show", "done").code == 4


def test_what_is_changed_is_printed_in_words_and_as_json(runs: Command, here: Path) -> None:
    """H6."""
    assert runs("runs", "export", "waits", "w.run").out == "written to w.run\n"
    assert runs("runs", "export", "waits", "w.run", "--json").data == {"run_id": "waits", "file": "w.run"}
    assert runs("store", "verify").out.splitlines()[1].split() == ["waits", "ok"]
    assert [each["ok"] for each in runs("store", "verify", "--json").data] == [True, True]
    assert "is up to date" in runs("store", "migrate").out
    rolled_back = runs("runs", "rollback", "waits", "0", "--graph", "flows:graph")
    assert rolled_back.out == "rolled back to step 0\n"
    assert "limpet resume waits" in rolled_back.err
    assert "limpet runs retry waits" in rolled_back.err, "or a worker continues it"
    assert runs("runs", "delete", "done", "--yes").out == "deleted\n"


def test_an_imported_run_is_only_resumed_if_it_can_be(runs: Command) -> None:
    """G13: what is suggested after an import fits the status of the run."""
    for run_id, suggestion in (("waits", "limpet answer waits"), ("done", "")):
        assert runs("runs", "export", run_id, f"{run_id}.run").code == 0
        imported = runs("runs", "import", f"{run_id}.run", "--store", "sqlite:///other.db")
        assert (imported.code, suggestion in imported.err) == (0, True)
        assert "resume" not in imported.err
