"""The command line as a process: its imports, runs that are interrupted, workers told to end, the demonstration."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import limpet as library
from support.waiting import until

SLOW = """
import os, time

from limpet import StateGraph


def first(state):
    return {"seen": 1}


def second(state):
    open("at-second", "w").close()
    while os.path.exists("hold"):
        time.sleep(0.02)
    return {"seen": 2}


graph = StateGraph({"seen": int}, name="slow")
graph.add_node("first", first).add_node("second", second)
graph.set_entry_point("first").add_edge("first", "second").set_finish_point("second")
graph.compile(preserve=True)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path, ctrl_c: None) -> Iterator[Start]:
    """Start a command in a project of its own whose second node waits while there is a file `hold`."""
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "hold").touch()
    begun: list[subprocess.Popen[str]] = []

    def begin(*words: str, **more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "limpet", *words]
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment(**more), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        begun.append(process)
        return process

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if "LIMPET" not in name}
    return {**kept, "PYTHONPATH": str(Path(library.__file__).parents[1]), **more}


def test_help_imports_no_engine_and_no_store(start: Start) -> None:
    """H6: so that it is there at once."""
    _, told = start("--help", PYTHONPROFILEIMPORTTIME="1").communicate()
    imported = set(re.findall(r"\| +(limpet[\w.]*)$", told, re.M))
    assert "limpet.cli.arguments" in imported
    assert [name for name in imported if re.match(r"limpet\.(engine|stores|graphs|journal)", name)] == []


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send")
def test_a_run_that_is_interrupted_can_be_resumed(start: Start, tmp_path: Path) -> None:
    """G7, H6: by the command that is printed, in another process; nothing finished runs again."""
    running = start("run", "slow:graph", "--id", "r")
    until((tmp_path / "at-second").exists)
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=60)
    assert running.returncode == 130
    printed = shlex.split(told.strip().splitlines()[-1])
    assert printed[printed.index("resume") :] == ["resume", "r", "--graph", "slow:graph"]
    (tmp_path / "hold").unlink()
    resumed = start(*printed[printed.index("resume") :])
    _, told = resumed.communicate(timeout=60)
    assert resumed.returncode == 0
    assert told.split() == ["✓", "second"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM to send")
@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_gets_sigterm_finishes_its_node_and_leaves_the_rest(
    start: Start, tmp_path: Path, told: signal.Signals
) -> None:
    """H1: its exit code is 0."""
    worker = start("worker", "slow:graph", "--poll", "0.05", "--json")
    assert start("run", "slow:graph", "--id", "r", "--detach").wait(60) == 0
    until((tmp_path / "at-second").exists)
    worker.send_signal(told)
    (tmp_path / "hold").unlink()
    out, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert json.loads(out.splitlines()[0])["run_id"] == "r"
    state, _ = start("runs", "state", "r", "--json").communicate(timeout=60)
    assert json.loads(state) == {"seen": 2}


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send")
def test_a_worker_says_what_it_waits_for_when_it_is_stopped_and_leaves_when_told_again(
    start: Start, tmp_path: Path
) -> None:
    """H1: its step is repeated by another worker."""
    assert start("run", "slow:graph", "--id", "r", "--detach").wait(60) == 0
    worker = start("worker", "slow:graph", "--grace", "90")
    until((tmp_path / "at-second").exists)
    worker.send_signal(signal.SIGINT)
    assert worker.stderr is not None
    told = next(line for line in worker.stderr if "stopping" in line)
    waits = (
        "stopping: waits up to 90 s for the steps under way in 1 run. Ctrl-C or SIGTERM again leaves at once"
    )
    assert told.strip().endswith(waits)
    worker.send_signal(signal.SIGINT)
    assert worker.wait(60) == 1
    assert (tmp_path / "hold").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send")
def test_a_worker_that_works_once_releases_its_runs_when_it_is_interrupted(
    start: Start, tmp_path: Path
) -> None:
    """H1: it hasn't crashed, and the runs haven't either."""
    assert start("run", "slow:graph", "--id", "r", "--detach").wait(60) == 0
    worker = start("worker", "slow:graph", "--once")
    until((tmp_path / "at-second").exists)
    worker.send_signal(signal.SIGINT)
    _, told = worker.communicate(timeout=60)
    assert worker.returncode == 130
    assert "stopped; other workers can resume" in told
    shown, _ = start("runs", "show", "r", "--json").communicate(timeout=60)
    assert json.loads(shown)["status"] == "queued"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_command_whose_output_is_full_or_closed_says_so_and_its_run_continues(
    start: Start, tmp_path: Path
) -> None:
    """H6: a result that can't be written is a failure, without a traceback; what happens meanwhile is left out."""
    (tmp_path / "hold").unlink()
    shell = partial(in_shell, tmp_path)
    full = "error: can't write to standard output: No space left on device\n"
    ran = shell("limpet run slow:graph --id a 2>&1 >/dev/full")
    assert (ran.returncode, ran.stdout.splitlines(keepends=True)[-1]) == (1, full)
    assert shell("limpet run slow:graph --id b 2>/dev/full").returncode == 0
    assert shell("limpet run slow:graph --id c 2>&1 | head -1").stdout == "  ✓ first\n"
    listed = shell("limpet runs list --json")
    assert [run["status"] for run in json.loads(listed.stdout)] == ["completed"] * 3
    for closed in (">&-", "2>&-", ">/dev/full"):
        done = shell(f"limpet runs list {closed}")
        assert (done.returncode, done.stderr) == ((1, full) if "full" in closed else (0, ""))


@pytest.mark.skipif(sys.platform == "win32", reason="there is no bash")
def test_a_run_whose_store_has_no_room_says_so_and_can_be_resumed(start: Start, tmp_path: Path) -> None:
    """G5: its status is the stored one, and what was saved before is kept."""
    (tmp_path / "large.py").write_text(
        SLOW.replace('{"seen": 2}', '{"seen": 2, "noise": os.urandom(400_000).hex()}')
    )
    (tmp_path / "hold").unlink()
    ran = in_shell(tmp_path, "ulimit -f 300; limpet run large:graph --id r 2>&1")
    assert ran.returncode == 1
    assert re.search(r"^status +queued$", ran.stdout, re.M)
    (problem,) = [line for line in ran.stdout.splitlines() if line.startswith("error: ")]
    assert "checkpoint save failed: StoreUnavailable" in problem
    assert in_shell(tmp_path, "limpet resume r --graph large:graph").returncode == 0


def in_shell(here: Path, line: str) -> subprocess.CompletedProcess[str]:
    """What a line of bash does, in which the command is called `limpet`."""
    command = ["bash", "-c", line.replace("limpet", f"{sys.executable} -m limpet", 1)]
    return subprocess.run(command, cwd=here, env=environment(), capture_output=True, text=True, timeout=60)


IMPATIENT = """
import os, signal, sys
from limpet.cli.main import main
from limpet.cli.output import Output

say = Output.say

def say_and_stop(self, text, style=""):
    say(self, text, style)
    if "SIGTERM stops it" in text:
        os.kill(os.getpid(), signal.SIGTERM)

Output.say = say_and_stop
sys.exit(main(["worker", "slow:graph"]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM to send")
def test_a_worker_says_that_sigterm_stops_it_only_when_it_does(start: Start, tmp_path: Path) -> None:
    """H1: a service manager that waits for the line and then stops the worker doesn't kill it."""
    command = [sys.executable, "-c", IMPATIENT]
    worker = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert worker.returncode == 0, worker.stderr
    assert "SIGTERM stops it" in worker.stderr
    assert worker.stderr.rstrip().endswith(" stopped")  # it had no runs that others could resume


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send")
@pytest.mark.parametrize("command", ["run", "worker"])
def test_a_command_in_the_background_is_not_stopped_by_ctrl_c(
    start: Start, tmp_path: Path, command: str
) -> None:
    """H6: a shell has what it runs in the background ignore SIGINT, which is for what runs in the foreground."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited; the fixture restores it
    if command == "run":
        running = start("run", "slow:graph", "--id", "r")
    else:
        running = start("worker", "slow:graph", "--poll", "0.05")
        assert start("run", "slow:graph", "--id", "r", "--detach").wait(60) == 0
    until((tmp_path / "at-second").exists)
    running.send_signal(signal.SIGINT)
    (tmp_path / "hold").unlink()
    if command == "worker":
        start("runs", "watch", "r", "--every", "0.05").wait(60)  # until the run has ended
        assert running.poll() is None
        running.send_signal(signal.SIGTERM)
    _, told = running.communicate(timeout=60)
    assert running.returncode == 0
    assert "Ctrl-C" not in told
    state, _ = start("runs", "state", "r", "--json").communicate(timeout=60)
    assert json.loads(state) == {"seen": 2}


ASKING = """
import os, time

from limpet import Workflow


def ask(ctx):
    return ctx.pause("Publish?", choices=["yes", "no"])


def slow():
    open("at-slow", "w").close()
    while os.path.exists("hold"):
        time.sleep(0.02)
    return 1


flow = Workflow("asking", store="sqlite:///limpet.db")
flow.add_task("ask", ask)
flow.add_task("slow", slow)
flow.add_task("end", lambda ask, slow: ask, depends_on=["ask", "slow"])
"""


def test_a_question_is_answered_while_another_process_executes_the_rest_of_the_run(
    start: Start, tmp_path: Path
) -> None:
    """H10: `runs show` has the command for it, a wrong answer is refused, and the process takes the right one in."""
    (tmp_path / "asking.py").write_text(ASKING)
    holder = start("run", "asking.py:flow", "--id", "r")
    until((tmp_path / "at-slow").exists)
    until(lambda: finished(start("runs", "show", "r", "--json"))["questions"])
    shown, hints = start("runs", "show", "r", "--graph", "asking.py:flow").communicate(timeout=60)
    assert "Publish?" in shown + hints
    (command,) = re.findall(r"limpet (answer r .*)", shown + hints)
    assert command == "answer r yes --graph asking.py:flow"
    wrong = start("answer", "r", "maybe", "--graph", "asking.py:flow")
    said = wrong.communicate(timeout=60)[1]
    assert (wrong.returncode, "held" in said, "'yes'" in said) == (2, False, True), said
    assert finished(start(*shlex.split(command), "--json")) == {"run_id": "r", "status": "running"}
    (tmp_path / "hold").unlink()
    said = holder.communicate(timeout=60)[1]
    assert holder.returncode == 0, said
    assert finished(start("runs", "show", "r", "--json"))["status"] == "completed"


def finished(process: subprocess.Popen[str]) -> Any:
    """What a command printed for programs."""
    said, problem = process.communicate(timeout=60)
    assert process.returncode == 0, problem
    return json.loads(said)


def test_watching_shows_each_step_until_the_run_stops(start: Start, tmp_path: Path) -> None:
    running = start("run", "slow:graph", "--id", "r")
    until((tmp_path / "at-second").exists)
    watching = start("runs", "watch", "r", "--every", "0.05")
    assert watching.stdout is not None
    line = watching.stdout.readline()
    assert "running    step 1, at second; held by process" in line
    (tmp_path / "hold").unlink()
    out, _ = watching.communicate(timeout=60)
    assert re.search(r"running +step 2: second\n.*completed +step 2\n", out)
    assert (watching.returncode, running.wait(60)) == (0, 0)


def test_what_a_terminal_has_no_letters_for_ends_no_command(start: Start, tmp_path: Path) -> None:
    (tmp_path / "hold").unlink()
    running = start("run", "slow:graph", PYTHONIOENCODING="ascii")
    _, told = running.communicate(timeout=60)
    assert running.returncode == 0
    assert "\\u2713 first" in told


def test_the_demonstration_ends_with_a_run_that_waits(start: Start, tmp_path: Path) -> None:
    """H6: and the commands that it prints work."""
    demo = start("demo", "--fast", "--dir", "shown")
    out, told = demo.communicate(timeout=100)
    assert demo.returncode == 0
    assert "kill -9, now" in told
    assert "▶ uses" in out
    listed = [shlex.split(line) for line in out.splitlines() if " -m limpet " in line]
    commands = [words[words.index("limpet") + 1 :] for words in listed]
    assert [words[:2] for words in commands] == [["runs", "history"], ["runs", "state"], ["answer", "kelp-0"]]
    for words in commands:
        assert start(*words).wait(60) == 0
    shown, _ = start("runs", "show", "kelp-0", *commands[0][-2:], "--json").communicate(timeout=60)
    assert json.loads(shown)["status"] == "completed"


def test_the_demonstration_prints_for_programs_where_its_run_is(start: Start) -> None:
    demo = start("demo", "--fast", "--dir", "shown", "--json")
    out, told = demo.communicate(timeout=100)
    found = json.loads(out)
    assert (demo.returncode, found["status"], told) == (0, "paused", "")
    assert start("runs", "show", found["run_id"], "--store", found["store"]).wait(60) == 0
    assert start("demo", "--dir", "slow.py/shown").wait(60) == 6
