"""`graph …`: tables, JSON, pictures, exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from limpet.yaml_files.grammar.json_schema import generated_text
from support.command_line import Command


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
    missing = runs("graph", "draw", "flows:graph", "--run", "nope")
    assert (missing.code, "limpet runs list --graph flows:graph" in missing.err) == (4, True)


COMPILED = """
from limpet import StateGraph

graph = StateGraph({"x": int}, name="there")
graph.add_node("one", lambda state: {"x": 1})
graph.set_entry_point("one")
graph.set_finish_point("one")
graph.compile(store=STORE)
"""


@pytest.mark.parametrize(
    "store",
    [
        "postgresql://localhost:1/nowhere",
        "redis://localhost:1/0",
        "sqlite:///made.db",
        "made.db",
        "file://./made",
        "encrypted+sqlite:///made.db",
        "tiered://?hot=redis://localhost:1&cold=sqlite:///made.db",
    ],
)
@pytest.mark.parametrize("named_by", ["LIMPET_STORE", "compile", "pyproject.toml"])
def test_looking_at_a_graph_opens_no_store(
    limpet: Command, here: Path, monkeypatch: pytest.MonkeyPatch, store: str, named_by: str
) -> None:
    """G2, P5: no server is asked, and no file is made."""
    target = "flows:graph"
    if named_by == "LIMPET_STORE":
        monkeypatch.setenv("LIMPET_STORE", store)
    elif named_by == "compile":
        target = "there.py:graph"
        (here / "there.py").write_text(COMPILED.replace("STORE", repr(store)))
        monkeypatch.delitem(sys.modules, "there", raising=False)
    else:
        (here / "pyproject.toml").write_text(f'[tool.limpet]\nstore = "{store}"\n')
    before = {each.name for each in here.iterdir()} | {"__pycache__"}
    for words in (["check"], ["show"], ["draw"], ["draw", "--format", "svg"]):
        assert limpet("graph", words[0], target, *words[1:]).code == 0
    assert {each.name for each in here.iterdir()} <= before


def test_a_store_that_makes_no_sense_is_found_without_opening_it(
    limpet: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIMPET_STORE", "postgress://localhost/app")
    done = limpet("graph", "check", "flows:graph")
    assert (done.code, "did you mean 'postgres://'?" in done.err) == (2, True)


def test_the_schema_of_yaml_files_is_printed(limpet: Command) -> None:
    """F13: editors that check YAML files get the schema from the command, without the repository."""
    done = limpet("graph", "schema")
    assert (done.code, json.loads(done.out)) == (0, json.loads(generated_text()))
