"""A process of a crash matrix, watched: all that it does is a line in a log, and it is killed at the given point.

Several processes, one after the other, write to one log, so that the order of what happened is known whatever was
killed. The kinds of lines: `process` a process begins; `found` the run exists; `commit` a commit is about to be
written; `ack` it is written, and these calls are saved, or the result of a `once` in this call; `start` and `ended`
of the call of a node; `event` the stream reported that a node is saved; `effect` what a node did to the world
outside; `asked` which answer a question got; `clock` time was skipped; `end` the run is at its end.

`crash_points` lists the points.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from limpet.engine.drivers.node_call import Interrupted
from limpet.engine.loop.driver_commands import Begin, Command, Gather, Verdict
from limpet.engine.loop.node_loop import UNFINISHED
from limpet.engine.node_context.call_scope import CURRENT
from limpet.engine.node_context.node_context import NodeContext
from limpet.engine.sessions.session import Session
from limpet.graphs.plan import PLANNER
from limpet.journal.store import Commit, Lease, NewRun
from limpet.stores.sqlite.store import SQLiteStore
from limpet.testing.clock import FakeClock


class WatchedProcess:
    """What happens in this process, and the point at which it is killed."""

    def __init__(self, log: str, point: str = "", delay: float = 0.0) -> None:
        # Open as long as this process lives. The kernel has what was written, so a kill can't undo it.
        self._file = os.open(log, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        if os.fstat(self._file).st_size:
            os.lseek(self._file, -1, os.SEEK_END)
            if os.read(self._file, 1) != b"\n":
                # The process before was killed while it wrote a line.
                os.write(self._file, b"\n")
        self.point = point
        self.delay = delay
        self.earlier_notes = read_log(log)
        self.streaming = False
        """Whether the run is acknowledged by the events of a stream."""
        self.commits = 0
        self._written = 0
        self._acknowledged = 0
        self.layers = 0
        self.calls = 0
        self.effects: Counter[str] = Counter()
        self._finished_calls: list[str] = []
        self._calls_of_commit: dict[int, list[str]] = {}
        self._once_of_commit: dict[int, str] = {}
        self._layer_of_commit: dict[int, int] = {}
        self._layers_done: Callable[[], int] = int
        """How many layers of a workflow are done in this process."""
        self._lock = threading.Lock()
        self._killer: threading.Thread | None = None
        self.note("process", pid=os.getpid(), point=point)

    def note(self, kind: str, **data: Any) -> None:
        """Add a line to the log."""
        line = json.dumps({"note": kind, "at": time.monotonic(), **data}) + "\n"
        os.write(self._file, line.encode())

    def reach(self, point: str) -> None:
        """Kill this process, if it is to be killed at this point."""
        if point == self.point:
            kill_this_process()

    def watch(self, session: Session) -> Session:
        """Note the calls and commits of a session; returns it."""
        loop = session.loop
        write = session.write

        def write_and_note(commit: Commit) -> Exception | None:
            task = CURRENT.get()
            # The loop's own commits are known from its commands. Any other one, in a node, saves a result of `once`.
            if task is not None and id(commit) not in self._calls_of_commit:
                self._once_of_commit[id(commit)] = task.idempotency_key
            refusal = write(commit)
            if not self.streaming:
                self.acknowledged()
            return refusal

        self.acknowledged()
        progress = session.lifecycle.progress
        # The planner's first step is before the first layer, and each other one ends a layer.
        before = max(1, progress.visits.get(PLANNER, 0)) + self.layers
        self._layers_done = lambda: progress.visits.get(PLANNER, 0) - before
        session.loop = lambda: self._watch_loop(loop())  # type: ignore[method-assign]  # for this session alone
        session.write = write_and_note  # type: ignore[method-assign]  # likewise
        return session

    def commit(self, write: Callable[[], Any], commits: Sequence[Commit]) -> Any:
        """Carry out a write of the store; this process may be killed right before or after it."""
        with self._lock:
            self.commits += 1
            number = self.commits
        layer = max([self._layer_of_commit.get(id(commit), 0) for commit in commits], default=0)
        self.note("commit", number=number)
        self.reach(f"{number}:before")
        self.reach(f"layer-{layer}:before")
        outcome = write()
        if commits:
            for commit, refusal in zip(commits, outcome, strict=True):
                self._note_ack(commit, refusal, number)
        with self._lock:
            self._written = max(self._written, number)
        self.reach(f"{number}:written")
        self.reach(f"layer-{layer}:written")
        return outcome

    def acknowledged(self, layer: int = 0) -> None:
        """The run knows that all commits so far are durable; the last one ends a `layer`, if that is given."""
        with self._lock:
            numbers = range(self._acknowledged + 1, self._written + 1)
            self._acknowledged = self._written
        for number in numbers:
            self.reach(f"{number}:after")
        self.reach(f"layer-{layer}:after")

    def event(self, event: Mapping[str, Any]) -> None:
        """The stream has an event. One that reports what is saved acknowledges the commits so far."""
        if not self.streaming:
            return
        kind = event["type"]
        if kind == "checkpoint_saved":
            self.note("event", node=None, checkpoint=event["checkpoint_id"])
            self.acknowledged(self.layers)
        elif kind in ("state", "task_complete"):
            names = [event.get("branch"), event.get("task") or event["node"]]
            self.note("event", node="/".join(filter(None, names)))
            self.acknowledged()

    def effect(self, name: str) -> None:
        """An effect was recorded."""
        with self._lock:
            self.effects[name] += 1
            of_name = self.effects[name]
            number = self.effects.total()
        self.reach(f"effect-{number}:done")
        self.reach(f"effect-{name}-{of_name}:done")

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
            # All calls that aren't saved yet, not just the new ones: one whose commit was refused is in the next one.
            with self._lock:
                self._calls_of_commit[id(command)] = list(self._finished_calls)
            done = self._layers_done()
            if done > self.layers:
                self.layers = done
                self._layer_of_commit[id(command)] = done

    def _after(self, command: Command, answer: Any) -> None:
        if isinstance(command, NodeContext):
            self._note_end(command, answer)
        elif isinstance(command, Gather):
            for task, outcome in answer:
                self._note_end(task, outcome)
        elif isinstance(command, Commit):
            layer = self._layer_of_commit.pop(id(command), 0)
            if not self.streaming:
                self.acknowledged(layer)

    def _note_start(self, task: NodeContext) -> None:
        if task.node == PLANNER or task.plan_node.is_condition:
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
        if task is None:
            return
        finished = type(outcome) not in UNFINISHED and not isinstance(outcome, Interrupted)
        if task.plan_node.is_condition:
            return
        if task.node != PLANNER:
            self.note("ended", call=task.idempotency_key, finished=finished)
        if finished:
            with self._lock:
                self._finished_calls.append(task.idempotency_key)

    def _note_ack(self, commit: Commit, refusal: Exception | None, number: int) -> None:
        calls = self._calls_of_commit.pop(id(commit), [])
        once = self._once_of_commit.pop(id(commit), None)
        if refusal is not None:
            return
        self.note("ack", calls=calls, number=number, once=once)
        with self._lock:
            saved = set(calls)
            self._finished_calls = [call for call in self._finished_calls if call not in saved]

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
    """The notes of a log. A kill in the middle of a write may leave a part of a line, which counts for nothing."""
    notes: list[dict[str, Any]] = []
    with suppress(FileNotFoundError), open(path, encoding="utf-8") as file:
        for line in file:
            with suppress(json.JSONDecodeError):
                notes.append(json.loads(line))
    return notes


def kill_this_process() -> NoReturn:
    """End this process as `kill -9` does."""
    while True:
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        time.sleep(1.0)
