"""`runs …` that change something, and `store …`, `graph …`: tables, JSON, exit codes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from limpet.yaml_files.grammar.json_schema import generated_text
from support.command_line import Command


@pytest.fixture
def runs(limpet: Command) -> Command:
    """Two runs: one complete, one that waits."""
    limpet("run", "flows:plain", "--id", "done")
    limpet("run", "flows:graph", "-i", "topic=kelp", "--id", "waits")
    return limpet


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
    assert runs("runs", "cancel", "waits", "--json").data["status"] == "cancelled"
    assert runs("runs", "cancel", "done").code == 2


def test_a_run_is_carried_by_a_file(runs: Command, here: Path) -> None:
    assert runs("runs", "export", "waits", "w.run").code == 0
    assert runs("runs", "import", "w.run", "--store", "sqlite:///other.db").out == "waits\n"
    assert runs("runs", "import", "w.run").code == 5
    assert runs("runs", "import", "w.run", "--id", "w2", "--json").data == {"run_id": "w2"}
    assert runs("runs", "export", "waits", "no/such/place.run").code == 6
    assert runs("runs", "import", "nope.run").code in (4, 6)


def test_an_imported_run_is_only_resumed_if_it_can_be(runs: Command) -> None:
    """G13: what is suggested after an import fits the status of the run."""
    for run_id, suggestion in (("waits", "limpet answer waits"), ("done", "")):
        assert runs("runs", "export", run_id, f"{run_id}.run").code == 0
        imported = runs("runs", "import", f"{run_id}.run", "--store", "sqlite:///other.db")
        assert (imported.code, suggestion in imported.err) == (0, True)
        assert "resume" not in imported.err


def test_deleting_is_asked_back(runs: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs("runs", "delete", "done").code == 2
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda prompt: "n")
    assert runs("runs", "delete", "done").code == 0
    assert runs("runs", "show", "done").code == 0
    assert runs("runs", "delete", "done", "--yes", "--json").data == {"run_id": "done", "deleted": True}
    assert runs("runs", "show", "done").code == 4


def test_what_a_store_is_and_has(runs: Command) -> None:
    data = runs("store", "info", "--json").data
    assert (data["level"], data["runs"], data["by_status"]) == ("disk", 2, {"paused": 1, "completed": 1})
    assert "paused     1" in runs("store", "info").out
    assert runs("store", "info", "--store", "nope://x").code == 2
    assert runs("store", "info", "--store", "sqlite:///no/such/dir/a.db").code == 6


def test_a_store_is_verified(runs: Command, here: Path) -> None:
    """H5: damage ends with 1."""
    import sqlite3
    from contextlib import closing

    assert runs("store", "verify").code == 0
    assert runs("store", "verify", "nope").code == 4
    with closing(sqlite3.connect(here / "limpet.db")) as db:
        db.execute("UPDATE records SET data = CAST(substr(data, 1, length(data) - 1) || x'00' AS BLOB)")
        db.commit()
    done = runs("store", "verify")
    assert done.code == 1
    assert "damaged" in done.out
    assert [each["ok"] for each in runs("store", "verify", "--json").data] == [False, False]


def test_old_runs_are_pruned(runs: Command) -> None:
    """F14, P7: what is paused stays; `--dry-run` only says what would go."""
    assert runs("store", "prune", "--json").data == {"deleted": True, "runs": []}
    would = runs("store", "prune", "--older", "0s", "--dry-run", "--json").data
    assert (would["deleted"], [each["run_id"] for each in would["runs"]]) == (False, ["done"])
    assert "would delete 1 run" in runs("store", "prune", "--older", "0s", "--dry-run").err
    assert runs("store", "prune", "--newest", "1", "--json").data["runs"] == []
    assert runs("store", "prune", "--older", "0s").code == 0
    assert [each["run_id"] for each in runs("runs", "list", "--json").data] == ["waits"]
    assert runs("store", "prune", "--older", "soon").code == 2
    assert runs("store", "prune", "--status", "asleep").code == 2


def test_the_schema_is_printed(runs: Command) -> None:
    """D10."""
    assert "CREATE TABLE" in runs("store", "migrate", "--print", "--store", "sqlite:///limpet.db").out
    assert "CREATE TABLE" in runs("store", "migrate", "--print", "--store", "postgresql://localhost/x").out
    assert runs("store", "migrate", "--json").data["current"] is True
    assert runs("store", "migrate", "--print", "--store", "memory").code == 2


def test_a_graph_is_shown(limpet: Command) -> None:
    done = limpet("graph", "show", "flows:graph")
    assert done.code == 0
    assert [line.split()[:2] for line in done.out.splitlines()[-3:]] == [
        ["draft", "review"], ["review", "publish"], ["publish", "end"],
    ]  # fmt: skip
    data = limpet("graph", "show", "flows:flow", "--json").data
    assert [(node["layer"], node["task"], node["after"]) for node in data["nodes"]] == [
        (0, "page", ""), (1, "words", "page"),
    ]  # fmt: skip
    assert limpet("graph", "show", "flows:twice").code == 0
    assert limpet("graph", "show", "flows:nope").code == 2


def test_a_graph_is_checked(limpet: Command) -> None:
    """G2: all mistakes at once."""
    assert limpet("graph", "check", "flows:graph").out == "article is valid\n"
    assert limpet("graph", "check", "flows:graph", "--json").data["ok"] is True
    done = limpet("graph", "check", "flows:wrong")
    assert done.code == 2
    assert len(done.err.splitlines()) >= 2
    assert len(limpet("graph", "check", "flows:wrong", "--json").data["mistakes"]) >= 2


def test_a_graph_is_drawn(runs: Command, here: Path) -> None:
    assert "review" in runs("graph", "draw", "flows:graph").out
    assert (
        runs("graph", "draw", "flows:graph", "--format", "mermaid", "--json")
        .data["picture"]
        .startswith("flowchart")
    )
    assert runs("graph", "draw", "flows:graph", "--run", "waits", "--out", "g.svg").code == 0
    assert (here / "g.svg").read_text().startswith("<svg")
    assert runs("graph", "draw", "flows:graph", "--out", "g.png").code == 2
    assert runs("graph", "draw", "flows:graph", "--out", "no/such/g.svg").code == 2
    assert runs("graph", "draw", "flows:graph", "--run", "nope").code == 4


def test_the_exit_code_says_that_a_store_is_missing_or_unusable(limpet: Command, here: Path) -> None:
    """H6: 2 where none is named, 6 where it can't be used."""
    (here / "text.db").write_text("this isn't a database, but a text of some length\n" * 50)
    for words in (["info"], ["verify"], ["prune"], ["migrate"]):
        done = limpet("store", *words)
        assert (done.code, "no store named" in done.err) == (2, True)
        assert limpet("store", *words, "--store", "sqlite:///no/such/place/a.db").code == 6
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


def test_what_is_changed_is_printed_in_words_and_as_json(runs: Command, here: Path) -> None:
    """H6."""
    assert runs("runs", "export", "waits", "w.run").out == "written to w.run\n"
    assert runs("runs", "export", "waits", "w.run", "--json").data == {"run_id": "waits", "file": "w.run"}
    assert runs("store", "verify").out.splitlines()[1].split() == ["waits", "ok"]
    assert [each["ok"] for each in runs("store", "verify", "--json").data] == [True, True]
    assert "is up to date" in runs("store", "migrate").out
    assert runs("runs", "rollback", "waits", "0", "--graph", "flows:graph").out == "rolled back to step 0\n"
    assert runs("runs", "delete", "done", "--yes").out == "deleted\n"


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["ru"], ["run", "runs"]),
        (["runs", "s"], ["show", "state"]),
        (["store", "prune", "--d"], ["--dry-run"]),
        (["resume", "r", "--s"], ["--store", "--set"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        (["run", "flo"], []),
    ],
)
def test_bash_completes_what_was_typed(limpet: Command, typed: list[str], offered: list[str]) -> None:
    """H6: words, or options after a dash; files are bash's own."""
    script = limpet("completion", "bash").out
    words = " ".join(f"'{word}'" for word in ["limpet", *typed])
    script += f"COMP_WORDS=({words}); COMP_CWORD={len(typed)}; _limpet; echo ${{COMPREPLY[*]}}"
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert (said.stdout.split(), said.stderr) == (offered, "")


def test_completion_is_for_shells_that_are_known(limpet: Command) -> None:
    assert limpet("completion", "tcsh").code == 2
    assert limpet("completion", "bash", "--json").data["shell"] == "bash"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command(limpet: Command, shell: str) -> None:
    said = limpet("completion", shell).out
    assert all(word in said for word in ("rollback", "migrate", "detach", "answer"))


def test_wrong_use_is_2_and_help_is_0(limpet: Command) -> None:
    assert limpet().code == 2
    assert limpet("runs").code == 2
    assert limpet("fly").code == 2
    assert limpet("--help").code == 0
    assert "exit codes" in limpet("runs", "watch", "--help").out
    assert limpet("--version").out.startswith("limpet ")


def test_the_schema_of_yaml_files_is_printed(limpet: Command) -> None:
    """F13: editors that check YAML files get the schema from the command, without the repository."""
    done = limpet("graph", "schema")
    assert (done.code, json.loads(done.out)) == (0, json.loads(generated_text()))
