"""The YAML of the guide that Limpet's first users know loads unchanged, and does what the guide says."""

from __future__ import annotations

import pickle
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import limpet
from limpet import StateGraph, load, loads

PAGE = Path(__file__).with_name("guide_yaml.md")
EXAMPLE = re.compile(r"^## (?P<title>.+?)\n+```(?P<kind>\w+)\n(?P<code>.*?)^```$", re.M | re.S)
EXAMPLES = {found["title"]: found["code"] for found in EXAMPLE.finditer(PAGE.read_text(encoding="utf-8"))}

NODES = """
name: agent
state_schema: {ran: {type: list, reducer: append}, approved: bool}
nodes:
  - {name: validation_node, run: "guide:note"}
  - {name: review_node, run: "guide:note"}
  - {name: last_node, run: "guide:note"}
"""
"""The graph around the guide's configurations, which it doesn't show."""


def note(state: dict[str, Any], node: str) -> dict[str, Any]:
    return {"ran": [node]}


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty directory, and the module with the graph's functions."""
    monkeypatch.chdir(tmp_path)
    guide = ModuleType("guide")
    guide.note = note  # type: ignore[attr-defined]  # of this test
    monkeypatch.setitem(sys.modules, "guide", guide)
    return tmp_path


def stopped() -> dict[str, Any]:
    """The event of a run that stopped at the interrupt before the review."""
    graph = loads(NODES + EXAMPLES["auto-save configuration"])
    (first,) = graph.invoke({})
    (second,) = graph.invoke(None, checkpoint=first["checkpoint_path"])
    assert (first["node"], second["node"]) == ("validation_node", "review_node")
    assert (first["state"]["ran"], second["state"]["ran"]) == (["validation_node"], ["validation_node"])
    return second


def test_auto_save_stops_and_writes_files_where_the_configuration_says(place: Path) -> None:
    """F13, F8: after the one node, before the other."""
    stop = stopped()
    names = sorted(each.name for each in (place / "checkpoints").iterdir())
    assert [re.sub(r"\d+", "N", name) for name in names] == ["review_node_N.pkl", "validation_node_N.pkl"]
    assert pickle.loads(Path(stop["checkpoint_path"]).read_bytes())["state"] == {"ran": ["validation_node"]}


def test_a_configured_checkpoint_is_really_resumed_from(place: Path) -> None:
    """F13, F5, F6: the interrupted node runs, and the nodes before it don't."""
    Path(stopped()["checkpoint_path"]).rename(place / "checkpoints" / "review_node_1733500000.pkl")
    graph = loads(NODES + EXAMPLES["resume from checkpoint"])
    (final,) = graph.invoke({"approved": True})
    assert final["state"] == {"ran": ["validation_node", "review_node", "last_node"], "approved": True}
    assert graph.execute()["ran"] == ["validation_node", "review_node", "last_node"]


def test_load_from_file_really_resumes(place: Path) -> None:
    """F13: the guide's own line of Python."""
    Path(stopped()["checkpoint_path"]).rename(place / "checkpoints" / "state.pkl")
    (place / "agent.yaml").write_text(NODES, encoding="utf-8")
    namespace: dict[str, Any] = {"engine": limpet}
    exec(EXAMPLES["resume in Python"], namespace)
    assert [event["node"] for event in namespace["graph"].stream() if event["type"] == "state"] == [
        "review_node",
        "last_node",
    ]
    assert load("agent.yaml").execute({})["ran"] == ["validation_node", "review_node", "last_node"]


def test_checkpoint_actions_save_and_load(place: Path) -> None:
    """F13, F7, F9: nodes alone are a graph; templates name the file."""
    StateGraph().save_checkpoint("./checkpoints/previous.pkl", {"n": 1}, "older", {"user": "Ann"})
    final = loads(EXAMPLES["checkpoint actions"]).execute({"step_name": "draft"})
    assert final["save_result"]["path"] == "checkpoints/draft.pkl"
    assert StateGraph.load_checkpoint("checkpoints/draft.pkl")["state"] == {"step_name": "draft"}
    loaded = final["loaded_checkpoint"]
    assert (loaded["state"], loaded["node"], loaded["config"]) == ({"n": 1}, "older", {"user": "Ann"})


def test_every_snippet_is_checked() -> None:
    """F13: no snippet is left out."""
    assert list(EXAMPLES) == [
        "auto-save configuration",
        "resume from checkpoint",
        "resume in Python",
        "checkpoint actions",
    ]
