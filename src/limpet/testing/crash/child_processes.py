"""The child processes of a crash matrix, as the test sees them: one at a time, and none survives the test."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from base64 import b64encode
from contextlib import suppress
from pathlib import Path
from pickle import dumps
from typing import TYPE_CHECKING, Any, NamedTuple

import limpet
from limpet.errors import UsageError
from limpet.testing.crash.crash_points import KillMoment
from limpet.testing.crash.graph_source import GraphSource

if TYPE_CHECKING:
    from limpet.testing.crash.child_run import RunInput

SERVER_GRACE = 30.0
"""Seconds beyond the timeout of a child after which the fork server itself is considered stuck."""


class ChildOptions(NamedTuple):
    """How children run: `timeout` in seconds, `fresh` for a new Python each, and what `run_graph` takes."""

    timeout: float
    fresh: bool
    driver: str
    by: str
    level: str


class ChildProcesses:
    """Starts child processes, one after the other, that run a graph."""

    def __init__(self, server: ForkServer, source: GraphSource, given: str, options: ChildOptions) -> None:
        self._server = server
        self._source = source
        self._given = given
        self._options = options

    def run(self, folder: Path, moment: KillMoment | None = None) -> dict[str, Any]:
        """Have a new child start or resume the run of a folder; returns how the child ended (see `fork_server`).

        At the `moment`, if it is given, the child is killed.
        """
        if moment is None:
            moment = KillMoment()
        options = self._options
        request = {
            "source": list(self._source),
            "given": self._given,
            "fresh": options.fresh,
            "timeout": options.timeout,
            "notes": moment.notes,
            "delay": moment.delay,
            "run": {
                "log": str(folder / "log"),
                "database": str(folder / "runs.db"),
                "point": moment.point,
                "delay": moment.delay,
                "driver": options.driver,
                "by": options.by,
                "level": options.level,
            },
            "path": [os.path.abspath(each) for each in sys.path],
            "environ": _environment(),
            "folder": os.getcwd(),
            "output": str(folder / "output"),
            "result": str(folder / "result"),
        }
        return self._server.ask(request, options.timeout + SERVER_GRACE)


class ForkServer:
    """The process that starts the children, started when it is first asked. `close` kills it and all children.

    It prints to the file `output`.
    """

    def __init__(self, output: Path) -> None:
        self._output_path = output
        self._server: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send a request, and return the answer."""
        if self._server is None:
            self._server = self._start()
        assert self._server.stdin is not None
        with suppress(BrokenPipeError):
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
        try:
            line = self._answers.get(timeout=timeout)
        except queue.Empty:
            # A late answer must not be taken for that to the next request.
            self.close()
            return {"late": True}
        if not line:
            exit_code = self._server.wait()
            self.close()
            printed = self._output_path.read_text(encoding="utf-8", errors="replace")
            return {"raised": f"no process could be started ({exit_code})", "traceback": printed}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Kill all that still runs: the server, and every process that was started from it."""
        server = self._server
        if server is None:
            return
        self._server = None
        with suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(server.pid, signal.SIGKILL)
            else:
                server.kill()
        server.wait()
        self._reader.join()
        for pipe in (server.stdin, server.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _start(self) -> subprocess.Popen[str]:
        self._output_path.parent.mkdir(parents=True, exist_ok=True)
        with self._output_path.open("ab") as output:
            server = subprocess.Popen(
                [sys.executable, "-m", "limpet.testing.crash.fork_server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                env=_environment(),
                start_new_session=True,
            )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=_read_answers, args=(server, self._answers), daemon=True)
        self._reader.start()
        return server


def _read_answers(server: subprocess.Popen[str], answers: queue.SimpleQueue[str]) -> None:
    assert server.stdout is not None
    for line in server.stdout:
        answers.put(line)
    answers.put("")


def _environment() -> dict[str, str]:
    """The environment of the children, who import this very Limpet, however the test found it."""
    limpet_folder = str(Path(limpet.__file__).parents[1])
    path = os.pathsep.join(filter(None, [limpet_folder, os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path}


def pickled(given: RunInput) -> str:
    """The input of a run, for another process."""
    try:
        return b64encode(dumps(tuple(given))).decode()
    except Exception as problem:
        what = "the input of a crash matrix goes to another process, so it has to be picklable"
        raise UsageError(f"{what}: {problem}; define functions at the top of a module") from problem
