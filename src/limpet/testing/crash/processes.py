"""The processes of a crash matrix, as the test sees them: each lives once, and none is left behind."""

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
from typing import Any, Self

import limpet
from limpet.errors import UsageError
from limpet.testing.crash.graph_source import Origin

SLACK = 30.0
"""Seconds beyond a life's own limit after which the nursery itself is given up."""


class Children:
    """Has processes live, one after the other. Use it with `with`; at the end all of them are gone.

    `timeout` is how many seconds a life may take, `fresh` whether Python is started anew for each. What the process
    says that starts them is in the file `said`.
    """

    def __init__(
        self,
        place: Origin,
        given: tuple[Any, Any, Any],
        said: Path,
        timeout: float,
        fresh: bool,
        **settings: Any,
    ) -> None:
        self._order: dict[str, Any] = {
            "origin": list(place),
            "given": _packed(given),
            "fresh": fresh,
            "timeout": timeout,
        }
        self._timeout, self._settings = timeout, settings
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._file = said

    def __enter__(self) -> Self:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._said = self._file.open("ab")
        here = str(Path(limpet.__file__).parents[1])
        path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "limpet.testing.crash.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill whatever is still there: the nursery, and all that was started from it."""
        with suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()
        self._reader.join()
        self._said.close()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def live(self, folder: Path, **life: Any) -> dict[str, Any]:
        """Have the run in a folder begun, or gone on with, by a new process; returns how that ended."""
        life = {**self._settings, "log": str(folder / "log"), "database": str(folder / "runs.db"), **life}
        order = {
            **self._order,
            "life": life,
            "path": [os.path.abspath(each) for each in sys.path],
            "output": str(folder / "output"),
            "outcome": str(folder / "outcome"),
        }
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=self._timeout + SLACK)
        except queue.Empty:
            return {"late": True}
        if not line:
            said = self._file.read_text(encoding="utf-8", errors="replace")
            return {"raised": f"no process could be started ({self._process.wait()})", "traceback": said}
        told: dict[str, Any] = json.loads(line)
        return told

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")


def _packed(given: Any) -> str:
    """What a run is given, for another process."""
    try:
        return b64encode(dumps(given)).decode()
    except Exception as problem:
        what = "what a crash matrix is given goes to another process, so it has to be picklable"
        raise UsageError(f"{what}: {problem}; define functions at the top of a module") from problem
