"""A process of a crash matrix, watched: all that it does is a line in a log, and it is killed at the given point.

Several processes, one after the other, write to one log, so that the order of what happened is known whatever was
killed. The kinds of lines: `process` a process begins; `commit` a commit is about to be written; `ack` it is written,
and these calls are saved; `start` and `ended` of the call of a node; `effect` what a node did to the world outside;
`asked` which answer a question got; `clock` time was skipped; `end` the run is at its end.

`crash_points` lists the points.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NoReturn

from limpet.engine.drivers.node_call import Interrupted
from limpet.engine.loop.driver_commands import Begin, Command, Gather, Verdict
from limpet.engine.loop.node_loop import UNFINISHED
from limpet.engine.node_context.node_context import NodeContext
from limpet.engine.sessions.session import Session
from limpet.graphs.plan import PLANNER
from limpet.journal.store import Commit, Lease, NewRun
from limpet.stores.sqlite.store import SQLiteStore
from limpet.testing import effects
from limpet.testing.clock import FakeClock


class WatchedProcess:
    """What happens in this process, and the point at which it is killed."""

    def __init__(self, log: str, point: str = "", delay: float = 0.0) -> None:
        self.log = log
        self.point = point
        self.delay = delay
        self.earlier_notes = read_log(log)
        self.commits = 0
        self.calls = 0
        self.effects = 0
        self._finished_calls: list[str] = []
        self._calls_of_commit: dict[int, list[str]] = {}
        self._lock = threading.Lock()
        self._killer: threading.Thread | None = None
        self.note("process", pid=os.getpid(), point=point)

    def note(self, kind: str, **data: Any) -> None:
        """Add a line to the log."""
        effects.append(self.log, {"note": kind, "at": time.monotonic(), **data})

    def reach(self, point: str) -> None:
        """Kill this process, if it is to be killed at this point."""
        if point == self.point:
            kill_this_process()

    def watch(self, session: Session) -> Session:
        """Note the calls and commits of a session; returns it."""
        loop = session.loop
        write = session.write

        def write_and_note(commit: Commit) -> Exception | None:
            refusal = write(commit)
            self.acknowledged()
            return refusal

        self.acknowledged()
        session.loop = lambda: self._watch_loop(loop())  # type: ignore[method-assign]  # for this session alone
        session.write = write_and_note  # type: ignore[method-assign]  # likewise
        return session

    def commit(self, write: Callable[[], Any], commits: Sequence[Commit]) -> Any:
        """Carry out a write of the store; this process may be killed right before or after it."""
        with self._lock:
            self.commits += 1
            number = self.commits
        self.note("commit", number=number)
        self.reach(f"{number}:before")
        outcome = write()
        if commits:
            for commit, refusal in zip(commits, outcome, strict=True):
                calls = self._calls_of_commit.pop(id(commit), [])
                if refusal is None:
                    self.note("ack", calls=calls, number=number)
        self.reach(f"{number}:written")
        return outcome

    def acknowledged(self) -> None:
        """The run knows that its last commit is durable."""
        self.reach(f"{self.commits}:after")

    def effect(self) -> None:
        """An effect was recorded."""
        with self._lock:
            self.effects += 1
            number = self.effects
        self.reach(f"effect-{number}:done")

    def note_answer(self, question_id: str, key: str, turn: int) -> None:
        """A question gets an answer."""
        self.note("asked", id=question_id, key=key, turn=turn)

    def earlier_answers(self) -> dict[str, tuple[str, int]]:
        """Which answer of the script each question got in the processes before."""
        return {
            each["id"]: (each["key"], each["turn"]) for each in self.earlier_notes if each["note"] == "asked"
        }

    def start_time(self) -> float:
        """What the clock showed when the process before ended."""
        times = [float(each["now"]) for each in self.earlier_notes if each["note"] == "clock"]
        if times:
            return times[-1]
        return time.time()

    def end(self) -> None:
        """The run is at its end. If this process is to be killed, that happens first."""
        if self._killer is not None:
            self._killer.join()
        self.note("end")

    def _watch_loop(self, loop: Generator[Command, Any, Verdict]) -> Generator[Command, Any, Verdict]:
        """The loop, with notes of the commands that it yields and of their answers."""
        try:
            command = next(loop)
            while True:
                self._before(command)
                answer = yield command
                self._after(command, answer)
                command = loop.send(answer)
        except StopIteration as end:
            verdict: Verdict = end.value
            return verdict
        finally:
            loop.close()

    def _before(self, command: Command) -> None:
        if isinstance(command, NodeContext):
            self._note_start(command)
        elif isinstance(command, Begin):
            for task in command.tasks:
                self._note_start(task)
        elif isinstance(command, Commit):
            # All calls so far, not just the new ones: a call whose commit was refused is in the next one.
            self._calls_of_commit[id(command)] = list(self._finished_calls)

    def _after(self, command: Command, answer: Any) -> None:
        if isinstance(command, NodeContext):
            self._note_end(command, answer)
        elif isinstance(command, Gather):
            for task, outcome in answer:
                self._note_end(task, outcome)
        elif isinstance(command, Commit):
            self.acknowledged()

    def _note_start(self, task: NodeContext) -> None:
        if task.node == PLANNER:
            return
        self.calls += 1
        self.note(
            "start",
            number=self.calls,
            call=task.idempotency_key,
            node=task.scope.place(task.node),
            attempt=task.attempt,
        )
        if self.point == f"call-{self.calls}:inside":
            self._killer = threading.Thread(target=self._kill_later, daemon=True)
            self._killer.start()

    def _note_end(self, task: NodeContext | None, outcome: Any) -> None:
        if task is None or task.node == PLANNER:
            return
        finished = type(outcome) not in UNFINISHED and not isinstance(outcome, Interrupted)
        self.note("ended", call=task.idempotency_key, finished=finished)
        if finished:
            self._finished_calls.append(task.idempotency_key)

    def _kill_later(self) -> None:
        time.sleep(self.delay)
        kill_this_process()


class WatchedStore(SQLiteStore):
    """A store whose process may be killed right before a write, or after it and before it is acknowledged."""

    process: WatchedProcess

    def create(self, run: NewRun) -> Lease | None:
        lease: Lease | None = self.process.commit(lambda: super(WatchedStore, self).create(run), ())
        return lease

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        outcomes: list[Exception | None] = self.process.commit(
            lambda: super(WatchedStore, self).append(commits), commits
        )
        return outcomes


def clock_of_run(process: WatchedProcess) -> FakeClock:
    """A clock that skips by itself, and starts with the time at which the process before ended."""
    clock = FakeClock(process.start_time(), auto=True)
    clock.on_skip = lambda: process.note("clock", now=clock())
    return clock


def read_log(path: str) -> list[dict[str, Any]]:
    """The notes of a log. Each line is written whole, so a kill leaves no broken line."""
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except FileNotFoundError:
        return []


def kill_this_process() -> NoReturn:
    """End this process as `kill -9` does."""
    while True:
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        time.sleep(1.0)
