"""Real processes for the tests: started, spoken to, stopped and killed, and none left behind."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import limpet
from support import waiting
from support.workers import Fleet

PROGRAMS = Path(__file__).parent / "crash_graphs"
PATIENCE = 60.0


class Program:
    """A program of `crash_graphs`, which reads a JSON line for each order and answers with one."""

    def __init__(self, name: str, *arguments: object) -> None:
        source = Path(limpet.__file__).parents[1]
        self.popen = subprocess.Popen(
            [sys.executable, str(PROGRAMS / f"{name}.py"), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(source)},
            start_new_session=True,
        )
        self.pid = self.popen.pid
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def ask(self, do: str = "", /, *args: Any, **kwargs: Any) -> Any:
        """Give an order and wait for its answer."""
        self.tell(do, *args, **kwargs)
        return self.hear()

    def tell(self, do: str = "", /, *args: Any, **kwargs: Any) -> None:
        """Give an order."""
        order = {"do": do, "args": args, "kwargs": kwargs} if do else kwargs
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(order) + "\n")
        self.popen.stdin.flush()

    def hear(self) -> Any:
        """The next answer. Fails if the program ends instead."""
        try:
            line = self._answers.get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError(f"no answer from process {self.pid} in {PATIENCE:g} s") from None
        assert line, f"process {self.pid} ended ({self.popen.wait()}) without an answer"
        return json.loads(line)

    @property
    def has_answered(self) -> bool:
        """Whether `hear` would return at once."""
        return not self._answers.empty()

    def freeze(self) -> None:
        """Stop it, as a debugger or a suspended machine does, and wait until all its threads stand still."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def thaw(self) -> None:
        """Let it continue."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self, bury: bool = True) -> None:
        """kill -9, and wait until it is dead. Unless it is buried, it stays in the process table."""
        if self.popen.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.wait(bury)

    def wait(self, bury: bool = True) -> int | None:
        """Wait until it is dead."""
        if bury:
            return self.popen.wait(PATIENCE)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        return None

    def clean_up(self) -> None:
        """End it and what it forked."""
        if self.popen.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait()
        self._reader.join()
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdout.close()
        with suppress(BrokenPipeError):
            self.popen.stdin.close()

    def _listen(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self._answers.put(line)
        self._answers.put("")


Launch = Callable[..., Program]


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Start a program: `launch("actor", …)`. It ends with the test."""
    with launching() as start:
        yield start


@pytest.fixture(scope="module")
def launch_for_module() -> Iterator[Launch]:
    """The same for a program that ends with the last test of the module."""
    with launching() as start:
        yield start


@pytest.fixture
def actor(launch: Launch, tmp_path: Path) -> Launch:
    """A process that is ready to use a graph whose files are in `tmp_path`: `actor("gated", lease=60)`."""

    def start(graph: str, folder: Path = tmp_path, **settings: Any) -> Program:
        program = launch("actor", graph, folder, json.dumps(settings))
        assert program.hear() == {"ready": program.pid}
        return program

    return start


@pytest.fixture
def effects(tmp_path: Path) -> Callable[[], list[list[str]]]:
    """What nodes have done so far, in order: the words of each line they wrote."""
    file = tmp_path / "effects"
    return lambda: [line.split() for line in file.read_text().splitlines()] if file.exists() else []


@contextmanager
def launching() -> Iterator[Launch]:
    programs: list[Program] = []

    def start(name: str, *arguments: object) -> Program:
        programs.append(Program(name, *arguments))
        return programs[-1]

    try:
        yield start
    finally:
        for program in programs:
            program.clean_up()


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Any]:
    """Wait for a condition: `until(lambda: …)` returns what it gave as soon as that is true."""
    return waiting.until


@pytest.fixture(params=["sqlite", "postgres"])
def workers(request: pytest.FixtureRequest, tmp_path: Path, launch: Launch) -> Iterator[Fleet]:
    """A fleet of workers on a store of each kind."""
    url = (
        f"sqlite:///{tmp_path}/runs.db" if request.param == "sqlite" else request.getfixturevalue("database")
    )
    made = Fleet(tmp_path, url, launch)
    yield made
    made.store.close()
