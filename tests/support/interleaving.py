"""Processes in one program, whose threads take turns: one runs at a time, and which one a seed decides.

A thread gives up its turn before and after every call of the store, where it takes a lock, and where it sleeps. In
between, anything may happen: other threads continue, time passes, and the process may crash, which ends its threads
where they are.
"""

from __future__ import annotations

from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from random import Random
from typing import Any, NoReturn

from limpet.errors import StoreUnavailable
from limpet.stores.memory import MemoryStore
from limpet.testing.conformance.store_calls import ManualClock


class Crashed(BaseException):
    """Ends a thread, as the end of its process would. No `Exception`: nothing makes the best of it."""


class Never(BaseException):
    """Something happened that never may. No `Exception`, for the same reason."""


class Turn:
    """A thread of the program. It is used for one job after the other, as starting a thread takes long."""

    idle: list[Turn] = []  # noqa: RUF012 - all worlds share it

    def __init__(self) -> None:
        self.go = allocate_lock()
        self.back = allocate_lock()
        self.go.acquire()
        self.back.acquire()
        self.job: Callable[[], None] | None = None
        start_new_thread(self._run, ())

    def give(self) -> None:
        """Let it run until it gives its turn back."""
        self.go.release()
        self.back.acquire()

    def give_back(self) -> None:
        """Let others run."""
        self.back.release()
        self.go.acquire()

    def _run(self) -> NoReturn:
        while True:
            self.go.acquire()
            assert self.job is not None
            self.job()
            self.job = None
            self.back.release()


class Thread:
    """A thread of a simulated process, which does one job."""

    def __init__(self, world: Interleaving, process: Any, job: Callable[[], None]) -> None:
        self.world = world
        self.process = process
        self.until = 0.0
        """When it continues, by the clock that can't be set."""
        self.waits_for: SharedLock | None = None
        self.is_done = False
        self.is_crashed = False
        self.problem: BaseException | None = None
        self.clock_read = 0.0
        """What `Interleaving.elapsed` was when it last looked at the clock."""
        self.granted_at: dict[str, tuple[float, int]] = {}
        """By limit: when it decided its last change of it, by `Interleaving.elapsed`, and which change that was."""
        self._job = job
        self._turn = Turn.idle.pop() if Turn.idle else Turn()
        self._turn.job = self._do

    def resume(self) -> None:
        """Let it run until its next call of the store. Raises what it raised."""
        around = self.world.current
        self.world.current = self
        self._turn.give()
        self.world.current = around
        if self.is_done and self._turn is not None:
            Turn.idle.append(self._turn)
        if self.problem is not None:
            raise self.problem

    def crash(self) -> None:
        """End it where it is."""
        self.is_crashed = True
        while not self.is_done:
            self.resume()

    def pause(self) -> None:
        """Give up its turn."""
        self._turn.give_back()
        if self.is_crashed:
            raise Crashed

    def _do(self) -> None:
        try:
            if not self.is_crashed:
                self._job()
        except Crashed:
            pass
        except BaseException as problem:
            self.problem = problem
        self.is_done = True


class SharedLock:
    """A lock for the threads of a simulated process."""

    world: Interleaving

    def __init__(self) -> None:
        self.is_held = False

    def locked(self) -> bool:
        """Whether a thread holds it."""
        return self.is_held

    def __enter__(self) -> None:
        thread = self.world.current
        while self.is_held:
            assert thread is not None
            thread.waits_for = self
            thread.pause()
            thread.waits_for = None
        self.is_held = True

    def __exit__(self, *_: object) -> None:
        self.is_held = False


class ProcessStore:
    """The store as a process sees it: calls may fail, or be carried out without an answer."""

    abilities = MemoryStore.abilities

    def __init__(self, world: Interleaving) -> None:
        self._world = world
        self.clock = ProcessClock(world)

    def __str__(self) -> str:
        return "simulated://"

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._world.store, name)
        world = self._world

        def call(*args: Any, **more: Any) -> Any:
            return world.call(name, method, args, more)

        setattr(self, name, call)
        return call


class ProcessClock:
    """The clock as a process reads it. It is noted when it did."""

    def __init__(self, world: Interleaving) -> None:
        self._world = world

    def __call__(self) -> float:
        if self._world.current is not None:
            self._world.current.clock_read = self._world.elapsed
        return self._world.clock()

    def monotonic(self) -> float:
        """The clock that can't be set."""
        return self._world.clock.monotonic()


class Interleaving:
    """A store, a clock, and threads that take turns. The same seed is the same world."""

    failures = 0.02
    """How likely it is that a call of the store fails, or is carried out without an answer."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = Random(seed)
        self.clock = ManualClock(1_700_000_000.0)
        self.elapsed = 0.0
        """The time that has passed by the store's clock: setting it back doesn't undo that."""
        self.store = MemoryStore(self.clock)
        self.threads: list[Thread] = []
        self.current: Thread | None = None
        self.faults = True
        self.trace = list[tuple[Any, ...]]()

    def call(self, name: str, method: Any, args: tuple[Any, ...], more: dict[str, Any]) -> Any:
        """A process calls the store."""
        thread = self.current
        if thread is None:
            answer = method(*args, **more)
            self.carried_out(name, args, answer)
            return answer
        thread.pause()
        if self.faults and self.dice.random() < self.failures:
            self.note("the store fails:", name)
            raise StoreUnavailable("it is away")
        answer = method(*args, **more)
        self.carried_out(name, args, answer)
        if self.faults and self.dice.random() < self.failures:
            self.note("the store doesn't answer:", name)
            raise StoreUnavailable("the connection broke")
        if self.dice.random() < 0.2:
            thread.pause()
        return answer

    def carried_out(self, name: str, args: tuple[Any, ...], answer: Any) -> None:
        """The store has carried out a call."""

    def begin(self, process: Any, job: Callable[[], None]) -> Thread:
        """A process begins a job in a thread."""
        thread = Thread(self, process, job)
        self.threads.append(thread)
        return thread

    def step(self, thread: Thread) -> None:
        """A thread continues until its next call."""
        thread.resume()
        if thread.is_done and thread in self.threads:
            self.threads.remove(thread)

    def able(self) -> list[Thread]:
        """The threads that can continue."""
        now = self.clock.monotonic()
        return [
            thread
            for thread in self.threads
            if thread.until <= now and (thread.waits_for is None or not thread.waits_for.is_held)
        ]

    def sleep(self, seconds: float) -> None:
        """The thread at work sleeps."""
        thread = self.current
        if thread is None:
            self.advance(seconds)
            return
        thread.until = self.clock.monotonic() + seconds
        thread.pause()

    def advance(self, seconds: float) -> None:
        """Time passes."""
        self.clock.advance(seconds)
        self.elapsed += seconds

    def set_clock(self, seconds: float) -> None:
        """The time of day is set."""
        self.clock.set_by(seconds)
        self.elapsed += max(0.0, seconds)

    def end_threads(self, process: Any = None) -> None:
        """A process, or all of them, have crashed."""
        for thread in list(self.threads):
            if process is None or thread.process is process:
                self.threads.remove(thread)
                thread.crash()

    def note(self, *words: Any) -> None:
        """Something for the trace."""
        self.trace.append(words)

    def check(self, holds: bool, claim: str) -> None:
        """Raise with what happened unless it holds."""
        if not holds:
            raise Never(claim)

    def report(self, problem: BaseException, test: str) -> str:
        """What happened, and how to see it again."""
        lines = "\n".join("  " + " ".join(map(str, words)) for words in self.trace)
        again = f"SIMULATION_SEED={self.seed} pytest {test}"
        return f"seed {self.seed}: {type(problem).__name__}: {problem}\n{lines}\nTo see it again: {again}"
