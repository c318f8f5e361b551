"""`store …`: tables, JSON, exit codes."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from support.command_line import Command


def test_what_a_store_is_and_has(runs: Command) -> None:
    data = runs("store", "info", "--json").data
    assert (data["level"], data["runs"], data["by_status"]) == ("disk", 2, {"paused": 1, "completed": 1})
    assert "paused     1" in runs("store", "info").out
    assert runs("store", "info", "--store", "nope://x").code == 2
    assert runs("store", "info", "--store", "sqlite:///no/such/dir/a.db").code == 6


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("sqlit:///runs.db", "sqlite://"),
        ("postgress://localhost/app", "postgres://"),
        ("rediss+unix://s", "redis+unix://"),
        ("memry", "memory"),
    ],
)
def test_a_mistyped_store_is_answered_with_the_one_that_was_meant(
    limpet: Command, typed: str, meant: str
) -> None:
    """H6."""
    done = limpet("runs", "list", "--store", typed)
    assert (done.code, f"did you mean '{meant}'?" in done.err) == (2, True)


def test_a_store_is_verified(runs: Command, here: Path) -> None:
    """H5: damage ends with 1."""
    assert runs("store", "verify").code == 0
    assert runs("store", "verify", "nope").code == 4
    with closing(sqlite3.connect(here / "limpet.db")) as db:
        db.execute("UPDATE records SET data = CAST(substr(data, 1, length(data) - 1) || x'00' AS BLOB)")
        db.commit()
    done = runs("store", "verify")
    assert done.code == 1
    assert [line.split()[:2] for line in done.out.splitlines()[1:]] == [
        ["waits", "damaged"],
        ["done", "damaged"],
    ]
    assert "; newest state: can't be restored; steps that can be restored: " in done.out
    done = runs("store", "verify", "done")
    assert done.code == 1
    assert done.out.startswith("run done: completed; DAMAGED\n  records: ")
    assert "\n  newest state: can't be restored\n  steps that can be restored: " in done.out
    assert [each["ok"] for each in runs("store", "verify", "--json").data] == [False, False]


def test_old_runs_are_pruned(runs: Command) -> None:
    """F14, P7: what is paused stays; `--dry-run` only says what would go."""
    assert runs("store", "prune", "--json").data == {"deleted": True, "runs": []}
    would = runs("store", "prune", "--older", "0s", "--dry-run", "--json").data
    assert (would["deleted"], [each["run_id"] for each in would["runs"]]) == (False, ["done"])
    assert "would delete 1 run" in runs("store", "prune", "--older", "0s", "--dry-run").err
    assert runs("store", "prune", "--newest", "1", "--json").data["runs"] == []
    assert runs("store", "prune", "--older", "0s", "--yes").code == 0
    assert [each["run_id"] for each in runs("runs", "list", "--json").data] == ["waits"]
    refused = runs("store", "prune", "--older", "soon")
    assert (refused.code, "--older takes a length of time" in refused.err) == (2, True)
    assert runs("store", "prune", "--status", "asleep").code == 2


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_runs_arent_pruned_unasked(runs: Command, words: list[str]) -> None:
    """P7: without a terminal, `--yes` is needed."""
    done = runs("store", "prune", "--older", "0s", *words)
    assert (done.code, "this deletes 1 run permanently: pass --yes" in done.out + done.err) == (2, True)
    assert len(runs("runs", "list", "--json").data) == 2


@pytest.mark.parametrize(("typed", "left"), [("y", 1), ("n", 2), ("", 2), (None, 2)])
def test_pruning_is_asked_back(
    runs: Command, monkeypatch: pytest.MonkeyPatch, typed: str | None, left: int
) -> None:
    """P7: after a list of what would go."""
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        if typed is None:
            raise EOFError
        return typed

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", answer)
    done = runs("store", "prune", "--older", "0s")
    assert (done.code, asked) == (0, ["Delete 1 run? [y/N] "])
    assert done.out.splitlines()[1].startswith("done  plain  completed")
    assert ("deleted 1 run" in done.err) == (left == 1)
    assert len(runs("runs", "list", "--json").data) == left
    assert runs("store", "prune", "--older", "0s", "--json").code == (0 if left == 1 else 2)


def test_the_schema_is_printed(runs: Command) -> None:
    """D10."""
    assert "CREATE TABLE" in runs("store", "migrate", "--print", "--store", "sqlite:///limpet.db").out
    assert "CREATE TABLE" in runs("store", "migrate", "--print", "--store", "postgresql://localhost/x").out
    assert runs("store", "migrate", "--json").data["current"] is True
    assert runs("store", "migrate", "--print", "--store", "memory").code == 2


def test_the_exit_code_says_that_a_store_is_missing_or_unusable(limpet: Command, here: Path) -> None:
    """H6: 2 where none is named, 6 where it can't be used."""
    (here / "text.db").write_text("this isn't a database, but a text of some length\n" * 50)
    for words in (["info"], ["verify"], ["prune"], ["migrate"]):
        done = limpet("store", *words)
        assert (done.code, "no store named" in done.err) == (2, True)
        assert limpet("store", *words, "--store", "sqlite:///no/such/place/a.db").code == 6
        done = limpet("store", *words, "--store", f"sqlite:///{'x' * 300}.db")
        assert (done.code, "File name too long; let this user" in done.err) == (6, True)
        done = limpet("store", *words, "--store", "sqlite:///text.db", "--json")
        assert (done.code, done.data["error"]["code"]) == (6, "store-unavailable")
    assert not (here / "limpet.db").exists()


def test_the_exit_code_says_that_a_store_is_read_only(runs: Command, here: Path) -> None:
    runs("store", "info")
    (here / "only").mkdir()
    shutil.copy(here / "limpet.db", here / "only" / "read.db")
    (here / "only" / "read.db").chmod(0o400)
    (here / "only").chmod(0o500)
    try:
        if os.access(here / "only", os.W_OK):
            pytest.skip("this user may write everywhere")
        assert runs("store", "prune", "--older", "0s", "--store", "sqlite:///only/read.db").code == 6
        assert runs("run", "flows:plain", "--store", "sqlite:///only/read.db").code == 6
    finally:
        (here / "only").chmod(0o700)


def test_a_store_is_written_as_plain_tables_and_added_to(runs: Command, here: Path) -> None:
    """D12."""
    done = runs("store", "flatten", "flat.jsonl")
    assert (done.code, done.out.startswith("flat.jsonl: 2 runs new or changed, ")) == (0, True)
    assert runs("store", "flatten", "flat.jsonl", "--json").data == {
        "file": "flat.jsonl", "runs": 0, "steps": 0, "values": 0,
    }  # fmt: skip
    assert runs("store", "flatten", "limpet.db").code == 2
