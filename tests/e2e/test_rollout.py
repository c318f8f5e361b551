"""A roll-out: workers of two versions of the code share a store, in processes of their own. H18."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import limpet as library
from limpet import Runs, open_store
from support.waiting import until

FLOWS = """
import os
from limpet import StateGraph, Workflow


def build(version):
    say = lambda state: {"said": version}
    article = StateGraph({"said": int}, name="article").add_node("draft").add_node(f"polish {version}", run=say)
    article.add_edge("draft", f"polish {version}")
    article.set_entry_point("draft").set_finish_point(f"polish {version}")
    legacy = StateGraph({"said": int}, name="legacy").add_node(f"only {version}", run=say)
    legacy.set_entry_point(f"only {version}").set_finish_point(f"only {version}")
    report = Workflow("report").add_task("collect", run=lambda: version)
    report.add_task(f"render {version}", run=lambda: version, depends_on=["collect"])
    return article, legacy, report


article, legacy, report = build(int(os.environ.get("VERSION", "1")))
"""

STORE = "sqlite:///runs.db"
Worker = Callable[[int], "subprocess.Popen[str]"]


@pytest.fixture
def flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "rolled_out.py").write_text(FLOWS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import rolled_out

    yield rolled_out
    del sys.modules["rolled_out"]


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """Start a worker that has one version of the code."""
    started: list[subprocess.Popen[str]] = []

    def start(version: int) -> subprocess.Popen[str]:
        source = str(Path(library.__file__).parents[1])
        environment = {**os.environ, "VERSION": str(version), "PYTHONPATH": f"{source}:{tmp_path}"}
        targets = [f"rolled_out:{name}" for name in ("article", "legacy", "report")]
        command = [sys.executable, "-m", "limpet", "worker", *targets, "--store", STORE, "--poll", "0.1"]
        with (tmp_path / f"log {version}").open("a") as log:
            started.append(
                subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log, text=True)
            )
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait()


def said(graph: Any, run_id: str) -> Any:
    """Which version of the code has executed a run last."""
    state = graph.get(run_id).state
    return list(state.results.values())[-1] if graph.name == "report" else state["said"]


@pytest.mark.timeout(300)
def test_workers_of_two_versions_take_the_runs_that_they_can_continue(
    flows: ModuleType, worker: Worker, tmp_path: Path
) -> None:
    """H18: each its own, while both live; then the policies apply, and what no worker can continue is listed."""
    store = open_store(STORE)
    runs = Runs(store)
    versions = {1: flows.build(1), 2: flows.build(2)}
    for graphs in versions.values():
        for graph in graphs:
            graph.compile(store=store)

    def start(version: int, number: int) -> dict[str, Any]:
        started = {}
        for graph in versions[version]:
            run_id = f"{graph.name} {version}.{number}"
            graph.start({}, run_id=run_id)
            started[run_id] = graph
        return started

    def plans() -> set[str]:
        return {each.graphs["legacy"] for each in runs.workers() if each.is_live}

    expected = {version: versions[version][1].compiled().plan.fingerprint for version in (1, 2)}
    first, second = worker(1), worker(2)
    until(lambda: plans() == set(expected.values()), "both are listed")
    for number in range(3):
        of_one, of_two = start(1, number), start(2, number)
        for version, started in ((1, of_one), (2, of_two)):
            for run_id, graph in started.items():
                until(lambda each=run_id: runs.get(each).status == "completed", f"{run_id} is completed")
                assert said(graph, run_id) == version, run_id
    assert runs.unserved() == []

    first.send_signal(signal.SIGKILL)
    first.wait()
    assert {each.pid: each.is_live for each in runs.workers()} == {first.pid: False, second.pid: True}
    left = start(1, 3)
    until(lambda: runs.get("article 1.3").status == "completed", "the other version continues it")
    assert said(versions[2][0], "article 1.3") == 2
    until(lambda: {each.graph for each in runs.unserved()} == {"legacy", "report"}, "these are listed")
    reasons = {each.graph: each.reason for each in runs.unserved()}
    assert reasons["legacy"].startswith(f"no worker has its plan, {expected[1][:8]}: ")
    assert "has changed" in reasons["report"]
    assert {info.run_id for info in runs.list(unserved=True)} == {"legacy 1.3", "report 1.3"}
    assert [store.head(run_id).fence for run_id in ("legacy 1.3", "report 1.3")] == [1, 1], "not claimed"
    told = (tmp_path / "log 2").read_text()
    assert told.count("runs of graph legacy with plan") == 1
    assert told.count("runs of graph report with plan") == 1

    third = worker(1)
    for run_id, graph in left.items():
        if graph.name != "article":
            until(lambda each=run_id: runs.get(each).status == "completed", f"{run_id} is completed")
            assert said(graph, run_id) == 1
    for each in (second, third):
        each.send_signal(signal.SIGTERM)
        assert each.wait(60) == 0
    assert [each.pid for each in runs.workers()] == [first.pid], "the others have left in order"
