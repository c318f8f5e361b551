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
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import limpet
from limpet.errors import UsageError
from limpet.testing.crash.graph_source import GraphSource

if TYPE_CHECKING:
    from limpet.testing.crash.child_run import RunInput

SERVER_GRACE = 30.0
"""Seconds beyond the timeout of a child after which the fork server itself is considered stuck."""


class ChildOptions(NamedTuple):
    """How children run: `timeout` in seconds, `fresh` for a new Python each, and `driver` and `by` of `run_graph`."""

    timeout: float
    fresh: bool
    driver: str
    by: str


class ChildProcesses:
    """Starts child processes, one after the other, that run a graph. Use it with `with`; at the end all are killed.

    The fork server, which starts them, prints to the file `server_output`.
    """

    def __init__(
        self, source: GraphSource, given: RunInput, options: ChildOptions, server_output: Path
    ) -> None:
        self._request: dict[str, Any] = {
            "source": list(source),
            "given": _pickled(given),
            "fresh": options.fresh,
            "timeout": options.timeout,
        }
        self._options = options
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._output_path = server_output

    def __enter__(self) -> Self:
        self._output_path.parent.mkdir(parents=True, exist_ok=True)
        self._output = self._output_path.open("ab")
        # The children import this very Limpet, however the test found it.
        limpet_folder = str(Path(limpet.__file__).parents[1])
        path = os.pathsep.join(filter(None, [limpet_folder, os.environ.get("PYTHONPATH", "")]))
        self._server = subprocess.Popen(
            [sys.executable, "-m", "limpet.testing.crash.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read_answers, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill all that still runs: the fork server, and every process that was started from it."""
        with suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._server.pid, signal.SIGKILL)
            else:
                self._server.kill()
        self._server.wait()
        self._reader.join()
        self._output.close()
        for pipe in (self._server.stdin, self._server.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def run(self, folder: Path, point: str = "", delay: float = 0.0) -> dict[str, Any]:
        """Have a new child start or resume the run of a folder; returns how the child ended (see `fork_server`).

        At `point`, if it is given, the child is killed.
        """
        request = {
            **self._request,
            "run": {
                "log": str(folder / "log"),
                "database": str(folder / "runs.db"),
                "point": point,
                "delay": delay,
                "driver": self._options.driver,
                "by": self._options.by,
            },
            "path": [os.path.abspath(each) for each in sys.path],
            "output": str(folder / "output"),
            "result": str(folder / "result"),
        }
        assert self._server.stdin is not None
        with suppress(BrokenPipeError):
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
        try:
            line = self._answers.get(timeout=self._options.timeout + SERVER_GRACE)
        except queue.Empty:
            return {"late": True}
        if not line:
            printed = self._output_path.read_text(encoding="utf-8", errors="replace")
            return {"raised": f"no process could be started ({self._server.wait()})", "traceback": printed}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _read_answers(self) -> None:
        assert self._server.stdout is not None
        for line in self._server.stdout:
            self._answers.put(line)
        self._answers.put("")


def _pickled(given: RunInput) -> str:
    """The input of a run, for another process."""
    try:
        return b64encode(dumps(tuple(given))).decode()
    except Exception as problem:
        what = "the input of a crash matrix goes to another process, so it has to be picklable"
        raise UsageError(f"{what}: {problem}; define functions at the top of a module") from problem
