"""H10: processes that start the same run at the same moment, and answers that race with kills of the holder."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import limpet

LONG = 60.0

CALLERS = """
import sys, time
from pathlib import Path
from limpet import StateGraph

url, folder, name = sys.argv[1], Path(sys.argv[2]), sys.argv[3]

def note(state):
    with (folder / "calls").open("a") as file:
        file.write(name + "\\n")
    time.sleep(0.2)
    return {"n": state["n"] + 1}

graph = StateGraph({"n": int}, name="same")
graph.add_node("note", run=note)
graph.add_node("add", run=lambda state: {"n": state["n"] + 1})
graph.set_entry_point("note").add_edge("note", "add").set_finish_point("add")
graph.compile(store=url)
(folder / f"ready-{name}").touch()
while not (folder / "go").exists():
    time.sleep(0.001)
print(graph.execute({"n": 1}, run_id="r")["n"])
"""


def started(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that runs this code with the library that is tested."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(limpet.__file__).parents[1])},
    )


def wait_for(*paths: Path) -> None:
    deadline = time.monotonic() + LONG
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline, f"{paths} aren't there"
        time.sleep(0.005)


@pytest.mark.timeout(120)
def test_processes_that_execute_the_same_run_at_once_all_get_its_result(
    store_url: str, tmp_path: Path
) -> None:
    """H10: one runs it, the others wait; its first node is called once."""
    callers = [started(CALLERS, store_url, tmp_path, name) for name in ("a", "b", "c")]
    wait_for(*(tmp_path / f"ready-{name}" for name in ("a", "b", "c")))
    (tmp_path / "go").touch()
    outcomes = [caller.communicate(timeout=LONG) for caller in callers]
    assert outcomes == [("3\n", "")] * 3
    assert len((tmp_path / "calls").read_text().split()) == 1


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this platform has no SIGKILL")
@pytest.mark.timeout(120)
def test_a_caller_that_waits_continues_the_run_of_one_that_is_killed(store_url: str, tmp_path: Path) -> None:
    """H10, H1: with what was saved, and to the same result."""
    first = started(CALLERS, store_url, tmp_path, "first")
    wait_for(tmp_path / "ready-first")
    (tmp_path / "go").touch()
    wait_for(tmp_path / "calls")
    second = started(CALLERS, store_url, tmp_path, "second")
    wait_for(tmp_path / "ready-second")
    time.sleep(random.Random(0).random() * 0.1)
    first.kill()
    first.communicate()
    assert second.communicate(timeout=LONG) == ("3\n", "")
    assert (tmp_path / "calls").read_text().split() in (["first"], ["first", "second"])
