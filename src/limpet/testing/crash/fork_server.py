"""A process that starts a child for each request it reads: `python -m limpet.testing.crash.fork_server`.

Where the system can fork, a child costs milliseconds: the server has imported what it needs of Limpet. The user's
modules are imported by each child itself, as they would be in a new process. Elsewhere, and for a `fresh` child, a
new Python is started.

A request is a JSON line, and so is the answer: `{"killed": true}`, `{"died": exit code}`, `{"late": true}` for a
child that took longer than its timeout, `{"ended": …}` with what `run_graph` returned, or `{"raised": …,
"traceback": …}`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from base64 import b64decode
from contextlib import suppress
from pathlib import Path
from pickle import loads
from select import select
from typing import IO, Any

FIRST_WAIT = 0.0005
LONGEST_WAIT = 0.005
"""Seconds between two looks at a child: at first, and at most."""

KILLED = -getattr(signal, "SIGKILL", -signal.SIGTERM)
"""The exit code of a process that was killed."""


def main() -> None:
    """Answer requests until there are no more. With the argument `alone`, be the child of the one request."""
    if sys.argv[1:] == ["alone"]:
        be_the_child(json.loads(sys.stdin.readline()))
    # Standard output carries the answers. What the server, or a child of it, prints goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _import_for_children()
    for line in sys.stdin:
        answer = run_child(json.loads(line))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def run_child(request: dict[str, Any]) -> dict[str, Any]:
    """Start a child, wait for it, and return how it ended."""
    result = Path(request["result"])
    result.unlink(missing_ok=True)
    if hasattr(os, "fork") and not request["fresh"]:
        child: ForkedChild | FreshChild = ForkedChild(request)
    else:
        child = FreshChild(request)
    exit_code = _wait_for(child, request)
    if exit_code is None:
        return {"late": True}
    if result.exists():
        answer: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return answer
    if exit_code == KILLED:
        return {"killed": True}
    return {"died": exit_code}


def be_the_child(request: dict[str, Any]) -> None:
    """Run the graph, write the result, and end this process."""
    _redirect_output(request["output"])
    # A server may be older than what the test has changed since.
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.path[:] = request["path"]
    try:
        from limpet.testing.crash.child_run import RunInput, run_graph
        from limpet.testing.crash.graph_source import GraphSource, load

        source = GraphSource(*request["source"])
        load(source)  # the pickled input may need classes of this module
        given = RunInput(*loads(b64decode(request["given"])))
        answer: dict[str, Any] = {"ended": run_graph(source, given, **request["run"])}
    except BaseException as problem:
        answer = {"raised": f"{type(problem).__name__}: {problem}", "traceback": traceback.format_exc()}
    sys.stdout.flush()
    sys.stderr.flush()
    # Written aside and renamed: a child that is killed meanwhile leaves no half of a result.
    path = request["result"]
    Path(path + ".new").write_text(json.dumps(answer), encoding="utf-8")
    os.replace(path + ".new", path)
    # Not `sys.exit`: a forked child must not run the exit handlers of the server.
    os._exit(0)


def _import_for_children() -> None:
    """Import what every child needs."""
    import limpet.engine.drivers.async_driver
    import limpet.engine.drivers.loop_thread
    import limpet.engine.drivers.node_threads
    import limpet.state_graph
    import limpet.testing.crash.child_run
    import limpet.workflow  # noqa: F401  # a child may need it

    with suppress(ImportError):
        import pytest  # noqa: F401  # a graph that is defined in a test module needs it


class ForkedChild:
    """A child that was forked from this process."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            be_the_child(request)

    def exit_code(self) -> int | None:
        """Its exit code, or None while it runs."""
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        if not ended:
            return None
        return os.waitstatus_to_exitcode(status)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        """Let time pass; returns whether the test that sends requests has ended meanwhile."""
        # The test sends no request before it has the answer to the last one. So if there is anything to read now, it
        # is the end of the input.
        ready, _, _ = select([sys.stdin], [], [], seconds)
        return bool(ready)


class FreshChild:
    """A child that is a new Python."""

    def __init__(self, request: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "limpet.testing.crash.fork_server", "alone"]
        self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=request["environ"])
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError):  # it has ended by itself, and its exit code tells
            self._popen.stdin.write(json.dumps(request) + "\n")
            self._popen.stdin.close()

    def exit_code(self) -> int | None:
        """Its exit code, or None while it runs."""
        return self._popen.poll()

    def kill(self) -> None:
        self._popen.kill()

    def wait(self, seconds: float) -> bool:
        """Let time pass. Windows can't wait for the input meanwhile, so the end of the test isn't noticed."""
        time.sleep(seconds)
        return False


def _wait_for(child: ForkedChild | FreshChild, request: dict[str, Any]) -> int | None:
    """Wait for a child and return its exit code; None if it was killed because it took too long.

    With `notes` in the request, it is killed when the log has this many, `delay` seconds later.
    """
    deadline = time.monotonic() + request["timeout"]
    longest_wait = LONGEST_WAIT
    log = None
    if request["notes"]:
        longest_wait = FIRST_WAIT
        log = LogLength(request["run"]["log"])
    wait = FIRST_WAIT
    while True:
        exit_code = child.exit_code()
        if exit_code is not None:
            return exit_code
        if log is not None and log.lines() >= request["notes"]:
            _pass_time(request["delay"])
            child.kill()
            log = None
        if time.monotonic() > deadline or child.wait(wait):
            child.kill()
            while child.exit_code() is None:
                time.sleep(FIRST_WAIT)
            return None
        wait = min(wait * 1.5, longest_wait)


class LogLength:
    """How many lines a growing file has, without reading any of it twice."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0
        self._lines = 0

    def lines(self) -> int:
        with suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(self._offset)
            added = file.read()
            self._offset += len(added)
            self._lines += added.count(b"\n")
        return self._lines


def _pass_time(seconds: float) -> None:
    """Let a time pass that is too short for `sleep` to be exact."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def _redirect_output(path: str) -> None:
    """Have what the user's code prints go to a file."""
    file: IO[bytes] = open(path, "ab", buffering=0)  # noqa: SIM115  # it stays open until the process ends
    for number in (1, 2):
        os.dup2(file.fileno(), number)


if __name__ == "__main__":
    main()
