"""What the command line prints about errors: it names commands, and never a Python call or the id of a holder."""

from __future__ import annotations

import json
import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from limpet import StateGraph, Workflow, open_store, pause
from support.command_line import Command

PYTHON_CALL = re.compile(r"\w+\(")
HOLDER = "elsewhere|boot|namespace|123|456"

GRAPHS = """
from limpet import StateGraph, Workflow, pause

late = StateGraph(name="late")
late.add_node("ask", lambda state: {"a": pause("A?", deadline=0.001)})
late.set_entry_point("ask")
late.set_finish_point("ask")

moved = StateGraph(name="moved")
moved.add_node("new", lambda state: {})
moved.set_entry_point("new")
moved.set_finish_point("new")

changed = Workflow("changed")
changed.task(lambda: 1, name="new")
"""

ERROR_PATHS = [
    (["resume", "nope"], 4, "runs list"),
    (["resume", "asks"], 3, "answer asks yes"),
    (["resume", "asks-twice"], 3, "answer asks-twice a/a:1.1:1 ANSWER"),
    (["resume", "done"], 1, "runs history done"),
    (["resume", "held"], 5, "resume held --wait 60"),
    (["runs", "rollback", "held", "0"], 5, "runs cancel held"),
    (["runs", "rollback", "done", "9"], 2, "runs history done"),
    (["runs", "fork", "done", "--step", "9"], 2, "runs history done"),
    (["runs", "fork", "done", "--id", "asks"], 5, "runs show asks"),
    (["runs", "state", "done", "--step", "9"], 2, "runs history done"),
    (["runs", "diff", "done", "0", "9"], 2, "runs history done"),
    (["runs", "state", "done", "--key", "nope"], 2, None),
    (["runs", "delete", "held", "--yes"], 5, "runs cancel held"),
    (["runs", "cancel", "done"], 2, "runs delete done"),
    (["runs", "cancel", "nope"], 4, "runs list"),
    (["runs", "import", "flows.py"], 6, "runs export RUN FILE"),
    (["runs", "import", "nope.run"], 2, None),
    (["runs", "export", "done", "nope/done.run"], 6, None),
    (["runs", "export", "held", "held.run"], 5, "runs watch held"),
    (["runs", "list", "--status", "nope"], 2, None),
    (["runs", "state", "damaged"], 6, "store verify damaged"),
    (["resume", "damaged"], 6, "store verify damaged"),
    (["answer", "done", "yes"], 2, "runs state done"),
    (["answer", "asks", "maybe"], 2, None),
    (["answer", "asks-twice", "1"], 2, None),
    (["answer", "forked", "yes"], 2, "resume forked"),
    (["answer", "queued", "yes"], 2, "worker"),
    (["answer", "late", "yes"], 2, "resume late"),
    (["run", "flows:plain", "--id", "asks"], 5, "runs show asks --graph flows:plain"),
    (["run", "flows:nope"], 2, None),
    (["run", "flows:graph", "--checkpoint", "nope.ckpt"], 4, "runs list --graph flows:graph"),
    (["run", "flows:plain", "--checkpoint", "done@1"], 1, "runs history done --graph flows:plain"),
    (["run", "flows:graph", "--checkpoint", "asks@0", "--detach"], 2, None),
    (["resume", "moved"], 2, "runs history moved"),
    (["runs", "list", "--store", "nope://somewhere"], 2, None),
    (["runs", "list", "--store", "sqlite:///nope.db"], 6, None),
    (["resume", "changed"], 2, None),
    (["worker", "nope:graph", "--once"], 2, None),
    (["store", "prune", "--status", "nope"], 2, None),
]
"""A command, its exit code, and the command that its error suggests."""


def _name_of_path(value: object) -> str:
    if isinstance(value, list):
        return "-".join(value)
    return ""


@pytest.fixture
def stored(limpet: Command, here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """The command line of a project whose store has runs that get in the way of commands, each of another one."""
    (here / "other_graphs.py").write_text(GRAPHS)
    names = ["flows:plain", "flows:graph", "flows:twice"]
    names += ["other_graphs:late", "other_graphs:moved", "other_graphs:changed"]
    monkeypatch.setenv("LIMPET_GRAPHS", ",".join(names))
    monkeypatch.setenv("LIMPET_STORE", "sqlite:///limpet.db")
    _store_runs_of_older_graphs()
    limpet("run", "flows:plain", "--id", "done")
    limpet("run", "flows:graph", "-i", "topic=kelp", "--id", "asks")
    limpet("run", "flows:twice", "--id", "asks-twice")
    limpet("run", "other_graphs:late", "--id", "late")
    limpet("run", "flows:plain", "--id", "queued", "--detach")
    limpet("run", "flows:plain", "--id", "held", "--detach")
    open_store("sqlite:///limpet.db").claim("held", HOLDER, 60.0)
    limpet("runs", "fork", "done", "--step", "1", "--id", "forked")
    limpet("run", "flows:graph", "-i", "topic=kelp", "--id", "damaged")
    _damage(here / "limpet.db", "damaged")
    yield limpet
    sys.modules.pop("other_graphs", None)


@pytest.mark.parametrize(("words", "code", "suggested"), ERROR_PATHS, ids=_name_of_path)
def test_an_error_names_commands_and_no_python_call(
    stored: Command, words: list[str], code: int, suggested: str | None
) -> None:
    """P1: a reader of the terminal can't call a method, and doesn't know the ids of holders."""
    expected = [] if suggested is None else [f"limpet {suggested}"]
    text = stored(*words)
    as_json = stored(*words, "--json")
    for done in (text, as_json):
        printed = done.out + done.err
        assert done.code == code, printed
        assert not PYTHON_CALL.search(printed), printed
        assert "|" not in printed
    assert [line.strip() for line in text.err.splitlines() if line.startswith("  limpet ")] == expected
    error = as_json.data["error"]
    assert [error[key] for key in error if key == "next"] == expected


def test_a_holder_is_described_in_words(stored: Command) -> None:
    for words in (["resume", "held"], ["runs", "delete", "held", "--yes"], ["runs", "show", "held"]):
        done = stored(*words)
        assert "process 123 on elsewhere" in done.out + done.err
        assert HOLDER not in done.out + done.err


def _store_runs_of_older_graphs() -> None:
    """Pause runs of graphs as they were before their files were changed."""
    moved = StateGraph(name="moved")
    moved.add_node("old", lambda state: {"a": pause("A?")})
    moved.set_entry_point("old")
    moved.set_finish_point("old")
    list(moved.compile(store="sqlite:///limpet.db").invoke({}, run_id="moved"))
    changed = Workflow("changed", store="sqlite:///limpet.db")
    changed.task(lambda: pause("A?"), name="old")
    list(changed.invoke({}, run_id="changed"))


def _damage(file: Path, run_id: str) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        (row,) = database.execute("SELECT id FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        database.execute("UPDATE records SET data = zeroblob(length(data)) WHERE id >> 32 = ?", (row,))


LEAVING = "import sys\nsys.exit(9)\n"


@pytest.mark.parametrize("target", ["leaving:graph", "leaving.py:graph", "leaving.yaml"])
@pytest.mark.parametrize("command", [["runs", "list", "--graph"], ["run"], ["graph", "show"], ["worker"]])
def test_code_that_ends_the_process_when_it_is_imported_is_an_error(
    here: Path, limpet: Command, command: list[str], target: str
) -> None:
    """A script that was not meant to be imported doesn't choose the exit code of the command."""
    (here / "leaving.py").write_text(LEAVING)
    (here / "leaving.yaml").write_text("imports: [leaving]\nnodes: [{name: a, run: 'leaving:a'}]\n")
    sys.modules.pop("leaving", None)
    done = limpet(*command, target)
    if (command, target) == (["graph", "show"], "leaving.yaml"):  # which imports no code
        assert done.code == 0
        return
    assert done.code == 2
    assert "SystemExit: 9" in done.err


def test_runs_are_listed_although_the_code_of_a_graph_ends_the_process(
    stored: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "leaving.py").write_text(LEAVING)
    sys.modules.pop("leaving", None)
    monkeypatch.setenv("LIMPET_GRAPHS", "leaving:graph")
    assert stored("runs", "list").code == 0


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["runs", "list", "--limit", "x"], "takes a whole number of at least 1, not 'x'"),
        (["runs", "state", "r", "--step", "x"], "invalid int value: 'x'"),
        (["runs", "show"], "the following arguments are required: RUN"),
        (["nothing"], "there is no command 'nothing'"),
        (["runs", "list", "--typo"], "unrecognized arguments: --typo"),
        (["runs", "list", "--statsu=failed"], "arguments: --statsu=failed; did you mean '--status'?"),
    ],
)
def test_a_command_line_that_cant_be_parsed_is_an_error_like_others(
    limpet: Command, words: list[str], wrong: str
) -> None:
    """In words with the usage, and to a program as JSON."""
    said = limpet(*words)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("usage: limpet")
    assert wrong in said.err.splitlines()[-1]
    told = limpet(*words, "--json")
    assert (told.code, told.err) == (2, "")
    error = json.loads(told.out)["error"]
    assert error["code"] == "usage"
