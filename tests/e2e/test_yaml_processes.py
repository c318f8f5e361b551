"""Graphs in files, run by real processes: killed, resumed by others that load the same file, and changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import limpet

GRAPH = """
name: pages
state:
  pages: list
  log: {type: list, reducer: append}
nodes:
  - {name: plan, run: "kill_steps:plan"}
  - {name: fetch, run: "kill_steps:fetch"}
  - {name: bind, run: "kill_steps:bind"}
  - {name: note, uses: file.write, with: {path: "{{ state.folder }}/note", content: "{{ state.book }}", format: json}}
  - {name: ask, prompt: "Print {{ state.book | length }} pages?", output: answer}
  - {name: print, uses: shell, with: {command: [echo, "{{ state.answer }}"]}, output: printed}
edges:
  - {from: plan, each: fetch, over: pages, fan_in: bind, max_concurrency: 1}
  - {from: bind, to: note}
  - {from: note, to: ask}
  - {from: ask, to: print, condition: state.answer == 'yes'}
  - {from: ask, to: END}
  - {from: print, to: END}
config: {store: "sqlite:///runs.db?level=process", preserve: true}
"""

STEPS = """
import os, signal
from pathlib import Path

def effect(*words):
    with open("effects", "a") as file:
        file.write(" ".join(map(str, words)) + "\\n")

def die_at(place):
    order = Path("die-at-" + place)
    if order.exists():
        order.unlink()
        os.kill(os.getpid(), signal.SIGKILL)

def plan(state):
    effect("plan")
    die_at("plan")
    return {"pages": [1, 2, 3], "folder": os.getcwd()}

def fetch(state):
    effect("fetch", state["item"])
    die_at(f"fetch-{state['item']}")
    return {"page": state["item"] * 10}

def bind(state, parallel_results):
    effect("bind")
    die_at("bind")
    return {"book": [each["page"] for each in parallel_results], "log": "bound"}
"""

PROGRAM = """
import json, sys
import limpet

graph = limpet.load(sys.argv[1])
do, *rest = json.loads(sys.argv[2])
try:
    state = getattr(graph, do)(*rest[:-1], **rest[-1])
    print(json.dumps({"state": state}))
except limpet.LimpetError as error:
    print(json.dumps({"error": error.code, "text": str(error)}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "agent.yaml").write_text(GRAPH)
    (tmp_path / "kill_steps.py").write_text(STEPS)
    return tmp_path


def in_process(folder: Path, *order: Any, file: str = "agent.yaml", **options: Any) -> Any:
    """What a fresh process that loads the file has to say; None if it was killed."""
    source = Path(limpet.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, file, json.dumps([*order, options])],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{folder}"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    if done.returncode == -9:
        return None
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def effects(folder: Path) -> list[str]:
    return (folder / "effects").read_text().splitlines()


def test_a_graph_of_a_file_that_is_killed_resumes_in_fresh_processes(folder: Path) -> None:
    """F13, H1, H3, G6: four kills; what was finished isn't done again, what was under way is."""
    assert folder.joinpath("die-at-plan").touch() is None
    assert in_process(folder, "execute", {}, run_id="r") is None
    for place in ("fetch-1", "fetch-3", "bind"):
        (folder / f"die-at-{place}").touch()
        assert in_process(folder, "resume", "r") is None
    paused = in_process(folder, "resume", "r")
    assert (paused["error"], "Print 3 pages?" in paused["text"]) == ("paused", True)
    assert json.loads((folder / "note").read_text()) == [10, 20, 30]
    final = in_process(folder, "resume", "r", "yes")["state"]
    assert (final["printed"]["stdout"], final["book"], final["log"]) == ("yes\n", [10, 20, 30], ["bound"])
    assert effects(folder) == [
        "plan", "plan", "fetch 1", "fetch 1", "fetch 2", "fetch 3", "fetch 3", "bind", "bind",
    ]  # fmt: skip
    assert in_process(folder, "resume", "r")["error"] == "already-completed"


def test_a_run_resumes_with_a_file_that_has_changed_if_its_node_still_exists(folder: Path) -> None:
    """F13, F10: a changed condition is no other graph; a node that is gone is named; nothing is lost by trying."""
    assert in_process(folder, "execute", {}, run_id="r")["error"] == "paused"
    (folder / "gone.yaml").write_text(
        GRAPH.replace("name: ask", "name: asked")
        .replace("to: ask}", "to: asked}")
        .replace("from: ask,", "from: asked,")
    )
    refused = in_process(folder, "resume", "r", "yes", file="gone.yaml")
    assert (refused["error"], "at node 'ask', which is no longer in the graph" in refused["text"]) == (
        "definition",
        True,
    )
    (folder / "other.yaml").write_text(GRAPH.replace("name: pages", "name: others"))
    assert "belongs to graph 'pages'" in in_process(folder, "resume", "r", "yes", file="other.yaml")["text"]
    (folder / "agent.yaml").write_text(GRAPH.replace("state.answer == 'yes'", "state.answer == 'no'"))
    assert "printed" not in in_process(folder, "resume", "r", "yes")["state"]


def test_another_process_resumes_from_a_checkpoint_file(folder: Path) -> None:
    """F13, F8: named in the file's config, as the guide does it."""
    stopping = GRAPH.replace(
        'config: {store: "sqlite:///runs.db?level=process", preserve: true}',
        "config:\n  checkpoint_dir: ./checkpoints\n  interrupt_before: [bind]",
    )
    (folder / "agent.yaml").write_text(stopping)
    assert in_process(folder, "execute", {})["error"] == "paused"
    (saved,) = (folder / "checkpoints").iterdir()
    (folder / "agent.yaml").write_text(
        GRAPH.replace("preserve: true", f"checkpoint: ./checkpoints/{saved.name}")
    )
    assert in_process(folder, "execute")["error"] == "paused"
    assert effects(folder) == ["plan", "fetch 1", "fetch 2", "fetch 3", "bind"]
