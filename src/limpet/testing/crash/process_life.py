"""One life of a run: what a process of a crash matrix does, until it ends or is killed at the point that it was told.

All that it does is a line in one log, so that its order is known afterwards whatever happened: a `life` begins, a
`commit` is about to be written, `ack` says which calls were saved with it, `start` that a node is called and `ended`
that the call is over, `effect` what it did to the world, `asked` which answer a question got, `clock` that time was
skipped, and `end` that the run is at its end.

Points to die at: `17:before`, `17:written` and `17:after` the seventeenth commit (the first is the run's creation):
before it, when it is durable and nobody has heard of it, and when the run has; `call-3:inside` the third call of a
node, half way through it; `effect-2:done` when the second effect was recorded.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NoReturn

from limpet.engine.drivers.call import Interrupted
from limpet.engine.loop.commands import Begin, Command, Gather, Verdict
from limpet.engine.loop.node_loop import UNFINISHED
from limpet.engine.node_context.node_context import NodeContext
from limpet.engine.sessions.session import Session
from limpet.graphs.plan import PLANNER
from limpet.journal.store import Commit, Lease, NewRun
from limpet.stores.sqlite.store import SQLiteStore
from limpet.testing import effects
from limpet.testing.clock import FakeClock


class Life:
    """What happens in this process, and where it is to end."""

    def __init__(self, log: str, point: str = "", delay: float = 0.0) -> None:
        self.log, self.point, self.delay = log, point, delay
        self.before = read_log(log)
        self.commits = self.calls = self.effects = 0
        self._done: list[str] = []
        self._offered: dict[int, list[str]] = {}
        self._lock = threading.Lock()
        self._doom: threading.Thread | None = None
        self.note("life", pid=os.getpid(), point=point)

    def note(self, kind: str, **data: Any) -> None:
        """Add a line to the log."""
        effects.append(self.log, {"note": kind, "at": time.monotonic(), **data})

    def reach(self, point: str) -> None:
        """Die here, if this is where to."""
        if point == self.point:
            die()

    def watched(self, session: Session) -> Session:
        """The same session, of which the calls and commits are noted."""
        loop, write = session.loop, session.write

        def noted(commit: Commit) -> Exception | None:
            refusal = write(commit)
            self.after()
            return refusal

        self.after()
        session.loop = lambda: self._relay(loop())  # type: ignore[method-assign]  # for this session alone
        session.write = noted  # type: ignore[method-assign]  # likewise
        return session

    def commit(self, write: Callable[[], Any], commits: Sequence[Commit]) -> Any:
        """Carry out a write of the store, and die around it if that is where to."""
        with self._lock:
            self.commits += 1
            number = self.commits
        self.note("commit", number=number)
        self.reach(f"{number}:before")
        outcome = write()
        for commit, refusal in zip(commits, outcome if commits else (), strict=True):
            saved = self._offered.pop(id(commit), [])
            if refusal is None:
                self.note("ack", calls=saved, number=number)
        self.reach(f"{number}:written")
        return outcome

    def after(self) -> None:
        """The run knows that what it has had written is durable."""
        self.reach(f"{self.commits}:after")

    def effect(self) -> None:
        """An effect was recorded."""
        with self._lock:
            self.effects += 1
            number = self.effects
        self.reach(f"effect-{number}:done")

    def asked(self, question_id: str, key: str, turn: int) -> None:
        """A question gets an answer."""
        self.note("asked", id=question_id, key=key, turn=turn)

    def given(self) -> dict[str, tuple[str, int]]:
        """Which questions have got which answers in the lives before."""
        return {each["id"]: (each["key"], each["turn"]) for each in self.before if each["note"] == "asked"}

    def now(self) -> float:
        """What the clock showed when the life before ended."""
        shown = [float(each["now"]) for each in self.before if each["note"] == "clock"]
        return shown[-1] if shown else time.time()

    def _relay(self, loop: Generator[Command, Any, Verdict]) -> Generator[Command, Any, Verdict]:
        """The loop, with a note of what passes through."""
        try:
            command = next(loop)
            while True:
                if isinstance(command, NodeContext):
                    self._begins(command)
                elif isinstance(command, Begin):
                    for task in command.tasks:
                        self._begins(task)
                elif isinstance(command, Commit):
                    self._offered[id(command)] = list(self._done)
                answer = yield command
                if isinstance(command, NodeContext):
                    self._ended(command, answer)
                elif isinstance(command, Gather):
                    for task, outcome in answer:
                        self._ended(task, outcome)
                elif isinstance(command, Commit):
                    self.after()
                command = loop.send(answer)
        except StopIteration as end:
            verdict: Verdict = end.value
            return verdict
        finally:
            loop.close()

    def _begins(self, task: NodeContext) -> None:
        if task.node == PLANNER:
            return
        self.calls += 1
        key, place = task.idempotency_key, task.scope.place(task.node)
        self.note("start", number=self.calls, call=key, node=place, attempt=task.attempt)
        if self.point == f"call-{self.calls}:inside":
            self._doom = threading.Thread(target=self._die_later, daemon=True)
            self._doom.start()

    def _ended(self, task: NodeContext | None, outcome: Any) -> None:
        if task is None or task.node == PLANNER:
            return
        finished = type(outcome) not in UNFINISHED and not isinstance(outcome, Interrupted)
        self.note("ended", call=task.idempotency_key, finished=finished)
        if finished:
            self._done.append(task.idempotency_key)

    def end(self) -> None:
        """The run is at its end, and this process with it, or about to be killed."""
        if self._doom is not None:
            self._doom.join()
        self.note("end")

    def _die_later(self) -> None:
        time.sleep(self.delay)
        die()


class MortalStore(SQLiteStore):
    """A store whose process may die just before a write, or just after it and before anybody hears of it."""

    life: Life

    def create(self, run: NewRun) -> Lease | None:
        lease: Lease | None = self.life.commit(lambda: super(MortalStore, self).create(run), ())
        return lease

    def append(self, commits: Sequence[Commit]) -> list[Exception | None]:
        outcome: list[Exception | None] = self.life.commit(
            lambda: super(MortalStore, self).append(commits), commits
        )
        return outcome


class LastingClock(FakeClock):
    """A clock that skips by itself, and whose time the next process goes on with."""

    def __init__(self, life: Life) -> None:
        super().__init__(life.now(), auto=True)
        self._life = life

    def moved(self) -> None:
        self._life.note("clock", now=self())


def read_log(path: str) -> list[dict[str, Any]]:
    """The notes of a log. A line that a kill cut off isn't there, as each is written whole."""
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except FileNotFoundError:
        return []


def die() -> NoReturn:
    """End this process as `kill -9` does."""
    while True:
        os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        time.sleep(1.0)
