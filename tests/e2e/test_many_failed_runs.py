"""Many runs fail on a bug; the code is fixed; one command hands them back, and workers finish them. H11."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import limpet
from limpet import Runs, open_store

RUNS = int(os.environ.get("FAILED_RUNS", "60"))
"""How many runs there are; nine of ten fail."""

PATIENCE = 60.0 + RUNS
"""Seconds within which workers have executed all runs, on any machine."""

SHOP = """
import os

from limpet import StateGraph


def note(file, state):
    # One write, which no other process can split.
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{state['order']}\\n".encode())
    os.close(handle)


def pay(state):
    note("paid.txt", state)
    return {"paid": True}


def ship(state):
    BUG
    note("shipped.txt", state)
    return {"shipped": True}


graph = StateGraph({"order": int, "paid": bool, "shipped": bool}, name="orders")
graph.add_node("pay", run=pay).add_node("ship", run=ship)
graph.add_edge("pay", "ship").set_entry_point("pay").set_finish_point("ship")
graph.compile(store="sqlite:///runs.db")
"""

START = """
import sys
from shop import graph
for order in range(int(sys.argv[1])):
    graph.start({"order": order}, run_id=f"order-{order}")
"""


def test_runs_that_failed_on_a_bug_are_handed_back_and_finished(tmp_path: Path) -> None:
    """H11: with real workers; no step that had finished runs again, and runs that had completed stay as they are."""
    write_shop(tmp_path, 'if state["order"] % 10: raise ValueError("a bug")')
    call(tmp_path, "-c", START, str(RUNS))
    work(tmp_path)
    runs = Runs(open_store(f"sqlite:///{tmp_path}/runs.db"))
    broken = RUNS - len(range(0, RUNS, 10))
    assert len(runs.list("failed", error="ValueError", node="ship")) == broken
    before = {info.run_id: info for info in runs.list("completed")}
    write_shop(tmp_path, "pass")
    done = call(tmp_path, "-m", "limpet", "runs", "retry", "--status", "failed", "--since", "1h", "--yes")
    assert f"{broken:,} retried" in done.splitlines()
    assert len(runs.list("queued")) == broken
    work(tmp_path)
    assert len(runs.list("completed")) == RUNS
    orders = {str(order): 1 for order in range(RUNS)}
    assert Counter((tmp_path / "paid.txt").read_text().split()) == orders
    assert Counter((tmp_path / "shipped.txt").read_text().split()) == orders
    assert {run_id: runs.get(run_id).info for run_id in before} == before


def write_shop(folder: Path, line: str) -> None:
    (folder / "shop.py").write_text(SHOP.replace("BUG", line))


def call(folder: Path, *arguments: str) -> str:
    """What a Python process in the folder printed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def work(folder: Path) -> None:
    """Two workers execute what is ready, and exit."""
    command = [sys.executable, "-m", "limpet", "worker", "shop:graph", "--once"]
    quiet = subprocess.DEVNULL
    workers = [
        subprocess.Popen(command, cwd=folder, env=environment(folder), stdout=quiet, stderr=quiet)
        for _ in range(2)
    ]
    deadline = time.monotonic() + PATIENCE
    try:
        assert [worker.wait(max(0.0, deadline - time.monotonic())) for worker in workers] == [0, 0]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def environment(folder: Path) -> dict[str, str]:
    source = str(Path(limpet.__file__).parents[1])
    path = os.pathsep.join([str(folder), source])
    settings = {"PYTHONPATH": path, "LIMPET_STORE": "sqlite:///runs.db", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, **settings}
