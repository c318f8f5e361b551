"""`graph …`: tables, JSON, pictures, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

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
    assert runs("graph", "draw", "flows:graph", "--run", "nope").code == 4


def test_the_schema_of_yaml_files_is_printed(limpet: Command) -> None:
    """F13: editors that check YAML files get the schema from the command, without the repository."""
    done = limpet("graph", "schema")
    assert (done.code, json.loads(done.out)) == (0, json.loads(generated_text()))
