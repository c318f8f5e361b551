"""`limpet worker` as a process: it takes what `supervise` takes, and its lines have times. H1, H11."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import limpet as library
from limpet.cli.arguments import make_parser
from limpet.cli.commands.worker import _Display
from limpet.cli.output import Output
from limpet.observe.events import RUN_SLEEP, Event

GRAPHS = """
import os, time
from limpet import StateGraph, receive, sleep


def graph_of(name, node):
    graph = StateGraph({"n": int}, name=name).add_node("node", node)
    return graph.set_entry_point("node").set_finish_point("node").compile(store="sqlite:///runs.db")


def short(state):
    time.sleep(0.05)


def crash(state):
    os._exit(9)


def nap(state):
    sleep(0.3)


one = graph_of("one", short)
two = graph_of("two", short)
deadly = graph_of("deadly", crash)
napping = graph_of("napping", nap)
waiting = graph_of("waiting", lambda state: receive("user"))
"""

Worker = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    """Have a worker execute the runs that are queued, and those of `queue`: `worker("flows:one", "--poll", "1")`."""
    (tmp_path / "flows.py").write_text(GRAPHS)
    kept = {name: value for name, value in os.environ.items() if "LIMPET" not in name}
    environment = {**kept, "PYTHONPATH": str(Path(library.__file__).parents[1])}

    def begin(*words: str, queue: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        if queue:
            starts = [f"{each.partition(':')[0]}.start({{}}, run_id={each!r})" for each in queue]
            code = "\n".join(["from flows import *", *starts])
            subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
        command = [sys.executable, "-m", "limpet", "worker", "--once", *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
        )

    return begin


def test_the_command_takes_all_that_supervise_takes() -> None:
    """H11: but for the store and the graphs, which every command has."""
    taken = set(inspect.signature(library.supervise).parameters) - {"store", "graphs"}
    options = vars(make_parser().parse_args(["worker"]))
    assert taken - {"observers"} <= set(options)
    assert "observer" in options
    for name, parameter in inspect.signature(library.supervise).parameters.items():
        if name in ("lease", "concurrency", "poll", "max_crashes", "max_sleep", "grace"):
            assert options[name] == parameter.default


def most_at_once(said: str) -> Counter[str]:
    """How many runs of each graph were executed at the same time, at most."""
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for line in map(json.loads, said.splitlines()):
        if line.get("type") == "graph.start":
            now[line["graph"]] += 1
            most[line["graph"]] = max(most[line["graph"]], now[line["graph"]])
        elif line.get("type") == "graph.complete":
            now[line["graph"]] -= 1
    return most


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        (["--per-graph", "1"], {"one": 1, "two": 1}),
        (["--per-graph", "one=1"], {"one": 1, "two": 4}),
        (["--per-graph", "2", "--per-graph", "one=1"], {"one": 1, "two": 2}),
    ],
)
def test_runs_of_a_graph_are_limited(worker: Worker, options: list[str], limits: dict[str, int]) -> None:
    """H1: for each graph, or for the one that is named."""
    queue = tuple(f"{name}:{number}" for name in ("one", "two") for number in range(4))
    done = worker("flows:one", "flows:two", "--json", *options, queue=queue)
    assert done.returncode == 0, done.stderr
    most = most_at_once(done.stdout)
    assert most["one"] == limits["one"]
    assert 1 <= most["two"] <= limits["two"]
    assert len(json.loads(done.stdout.splitlines()[-1])["runs"]) == 8


@pytest.mark.parametrize("wrong", ["0", "-1", "one", "one=", "=2", "one=x", "1.5"])
def test_a_wrong_limit_is_refused(worker: Worker, wrong: str) -> None:
    done = worker("flows:one", f"--per-graph={wrong}")
    assert done.returncode == 2
    assert f"takes a whole number of at least 1, or NAME=number, not {wrong!r}" in done.stderr


def test_more_runs_at_once_than_threads_can_be_is_refused(worker: Worker) -> None:
    """H1: before the worker begins."""
    done = worker("flows:one", "--concurrency", "99999999999999999999")
    assert done.returncode == 2
    assert "must be whole numbers from 1 to 10,000, not 99999999999999999999" in done.stderr


def test_a_limit_for_a_graph_that_is_not_there_is_refused(worker: Worker) -> None:
    """It would never take effect."""
    done = worker("flows:one", "flows:two", "--per-graph", "tow=2")
    assert done.returncode == 2
    assert "per_graph names 'tow', which isn't one of the graphs; did you mean 'two'?" in done.stderr


def test_max_crashes_says_how_often_a_worker_may_crash(worker: Worker) -> None:
    """H1: the first crash makes the run a suspect, and those alone count."""
    codes = [
        worker("flows:deadly", "--max-crashes", "2", "--concurrency", "1", queue=("deadly:1",)).returncode
    ]
    while codes[-1] == 9 and len(codes) < 10:
        codes.append(worker("flows:deadly", "--max-crashes", "2", "--concurrency", "1").returncode)
    assert codes == [9, 9, 9, 0]
    assert worker("flows:deadly", "--max-crashes", "0").returncode == 2


@pytest.mark.parametrize(("seconds", "sleeps"), [("60", False), ("0", True)])
def test_max_sleep_says_how_long_a_run_may_sleep_in_the_worker(
    worker: Worker, seconds: str, sleeps: bool
) -> None:
    """H9: a longer sleep is left to whichever worker is there when it is over."""
    done = worker("flows:napping", "--max-sleep", seconds, queue=("napping:1",))
    assert ("napping napping:1 sleeps until 20" in done.stderr) is sleeps
    assert ("napping napping:1 completed" in done.stderr) is not sleeps


def test_a_run_that_waits_for_a_message_is_shown_with_it(worker: Worker) -> None:
    """H16: no process holds it from then on."""
    done = worker("flows:waiting", queue=("waiting:1",))
    assert "waiting waiting:1 waits: 'node' waits for the message 'user'\n" in done.stderr


def test_a_run_that_is_left_to_other_workers_is_released(capsys: pytest.CaptureFixture[str]) -> None:
    """H1: it doesn't sleep, as the worker that is stopped doesn't wait for it."""
    display = _Display(Output(colour=False))
    display(Event(RUN_SLEEP, 0.0, "one", {"run_id": "r", "node": "node", "due": 0.0}))
    assert capsys.readouterr().err == "1970-01-01 00:00:00 one r released\n"


def test_each_line_has_a_time(worker: Worker) -> None:
    """H11: those of the log, too. All are in UTC, as other times of the command line are."""
    done = worker("flows:one", "--observer", "log", queue=("one:1", "one:2"))
    *lines, last = done.stderr.splitlines()
    assert last == "resumed 2 runs"
    assert len(lines) > 8
    for line in lines:
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (one one:|INFO limpet\.run: )", line), line


def test_an_unknown_observer_is_named(worker: Worker) -> None:
    done = worker("flows:one", "--observer", "lgo")
    assert done.returncode == 2
    assert "lgo" in done.stderr
