"""`demo`: a run is killed with kill -9, another process goes on with it, and it waits for you."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

from limpet.cli.demo_graph import ACCIDENT, PACE
from limpet.cli.exit_codes import OK, PAUSED, UNAVAILABLE
from limpet.cli.output import Output
from limpet.cli.project import program

GRAPH = "limpet.cli.demo_graph:graph"
SECONDS = 0.4


def show(given: Namespace, output: Output) -> int:
    """Stage the accident with the commands that a user would type, and leave the run for you to look at."""
    folder = Path(given.dir or tempfile.mkdtemp(prefix="limpet-demo-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        output.say(f"can't make {folder}: {problem}", "failed")
        return UNAVAILABLE
    stage = _Stage(
        f"sqlite:///{(folder / 'demo.db').resolve().as_posix()}", output, 0.0 if given.fast else SECONDS
    )
    run = f"kelp-{len(list(folder.iterdir()))}"
    stage.say("1. A graph runs: an outline, then three branches side by side. One of them kills its process.")
    killed = stage.play("run", GRAPH, "--input", "topic=kelp", "--id", run, accident=True)
    stage.say(f"   The process is gone (exit status {killed}). This is what it had saved:")
    stage.play("graph", "draw", GRAPH, "--run", run)
    stage.say(
        "2. Another process goes on. What was finished isn't done again; the branch that was cut off is."
    )
    if stage.play("resume", run, "--graph", GRAPH) != PAUSED:
        output.say("that isn't what should have happened", "failed")
        return 1
    if output.json:
        output.result({"run_id": run, "store": stage.store, "status": "paused"})
        return OK
    stage.say("3. Now it waits for you, for a minute or a month. Look at it, then answer:")
    for words in (["runs", "history", run], ["runs", "state", run], ["answer", run, "yes", "--graph", GRAPH]):
        output.text(f"     {shlex.join([*program(), *words, '--store', stage.store])}")
    return OK


class _Stage:
    """Where the commands are played: each is printed, and then run by a process of its own."""

    def __init__(self, store: str, output: Output, pace: float) -> None:
        self.store, self._output, self._pace = store, output, pace

    def say(self, text: str) -> None:
        self._output.say(f"\n{text}\n")

    def play(self, *words: str, accident: bool = False) -> int:
        shown = shlex.join([*program(), *words, "--store", self.store])
        self._output.say(f"   $ {shown}", "bold")
        environment = {**os.environ, PACE: str(self._pace), ACCIDENT: "1" if accident else ""}
        script = Path(sys.argv[0])
        called = [str(script)] if script.stem == "limpet" and os.access(script, os.X_OK) else None
        command = [*(called or [sys.executable, "-m", "limpet"]), *words, "--store", self.store]
        quiet = subprocess.DEVNULL if self._output.json else None
        return subprocess.run(command, env=environment, stdout=quiet, stderr=quiet).returncode
