"""`demo`: a run is killed with kill -9, another process resumes it, and it waits for your answer."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from importlib import import_module
from pathlib import Path

from limpet.cli.demo_graph import CRASH, PACE
from limpet.cli.exit_codes import OK, PAUSED, UNAVAILABLE
from limpet.cli.output import Output
from limpet.cli.project import load_target, program, shell_line
from limpet.stores.opening import open_store

GRAPH = "limpet.cli.demo_graph:graph"
SERVE = "limpet.cli.commands.serve"
STEP_SECONDS = 0.4
"""How long each step of the demonstration takes, unless --fast is given."""


def show(args: Namespace, output: Output) -> int:
    """Play the crash with the commands that a user would type, and leave the run for the user to inspect."""
    if args.serve:
        import_module(SERVE)  # it needs an extra: that is said before anything is played
    folder = Path(args.dir or tempfile.mkdtemp(prefix="limpet-demo-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        output.say(f"can't create {folder}: {problem}", "failed")
        return UNAVAILABLE
    store = f"sqlite:///{(folder / 'demo.db').resolve().as_posix()}"
    player = _Player(store, output, 0.0 if args.fast else STEP_SECONDS)
    run = f"kelp-{len(list(folder.iterdir()))}"
    player.say("1. A graph runs: an outline, then three branches in parallel. One of them kills its process.")
    killed = player.play("run", GRAPH, "--input", "topic=kelp", "--id", run, crash=True)
    player.say(f"   The process crashed (exit status {killed}). This is what it had saved:")
    player.play("graph", "draw", GRAPH, "--run", run)
    player.say(
        "2. Another process resumes the run. Finished nodes don't run again; the interrupted branch does."
    )
    if player.play("resume", run, "--graph", GRAPH) != PAUSED:
        output.say("the run didn't pause as it should have", "failed")
        return 1
    facts = {"run_id": run, "store": player.store, "status": "paused"}
    if args.serve:
        return _serve(run, player, facts, output)
    if output.json:
        output.result(facts)
        return OK
    player.say("3. Now the run waits for your answer, for a minute or a month. Inspect it, then answer:")
    for words in (["runs", "history", run], ["runs", "state", run], ["answer", run, "yes", "--graph", GRAPH]):
        output.message(f"     {shell_line([*program(), *words, '--store', player.store])}")
    output.say(
        f"\n   Or watch such a run in a browser, and answer there: {shell_line([*program(), 'demo', '--serve'])}"
    )
    return OK


def _serve(run: str, player: _Player, facts: dict[str, str], output: Output) -> int:
    """Show the run in a browser. What is answered there is executed in this process."""
    from limpet.cli.commands.serve import Shown, run_path, serve_runs
    from limpet.cli.web.listening import Address

    player.say("3. Now the run waits for your answer, for a minute or a month. Give it in the browser:")
    os.environ[PACE] = str(player.pace)
    store = open_store(player.store)
    shown = Shown(store, [load_target(GRAPH)], str(store), run_path(run), has_worker=True)
    return serve_runs(shown, Address(), output, facts)


class _Player:
    """Prints commands and runs each in a process of its own."""

    def __init__(self, store: str, output: Output, pace: float) -> None:
        self.store = store
        self._output = output
        self.pace = pace

    def say(self, text: str) -> None:
        self._output.say(f"\n{text}\n")

    def play(self, *words: str, crash: bool = False) -> int:
        shown = shell_line([*program(), *words, "--store", self.store])
        self._output.say(f"   $ {shown}", "bold")
        environment = {**os.environ, PACE: str(self.pace), CRASH: "1" if crash else ""}
        script = Path(sys.argv[0])
        called = [sys.executable, "-m", "limpet"]
        if script.stem == "limpet" and os.access(script, os.X_OK):
            called = [str(script)]
        command = [*called, *words, "--store", self.store]
        quiet = subprocess.DEVNULL if self._output.json else None
        # Without a terminal as its input, the command leaves the question to the user, for whom the demonstration is.
        return subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=quiet, stderr=quiet
        ).returncode
