"""Interrupts: find out whether code that Ctrl-C, or a signal handler that raises, hits anywhere leaves a lock held.

    from limpet.testing.interrupts import hunt_at_every_point, hunt_at_random

    report = hunt_at_random(work, check, count=1000)
    assert not report.problems, report

`work()` is interrupted once in each round; `check()` then has to succeed within the deadline. Python runs signal
handlers in the main thread, so call these functions there. Two ways to interrupt complement each other:

- `hunt_at_random` sets a timer whose handler raises. This hits whatever `work` does, also in the code of other
  packages.
- `hunt_at_every_point` finds the points of the given packages where Python can run a handler, and interrupts at each
  of them, once when it is first reached and once later.

Python (3.11 to 3.13) looks for signals when a function begins or resumes, when a loop jumps back, and when a call has
returned. So a lock that `with lock:` holds is always released, if the lock is one of `threading.Lock()` or `RLock()`,
whose enter and exit are no Python functions. `lock.acquire()` followed by `try:` isn't safe, and neither is a
context manager that is written in Python.
"""

from __future__ import annotations

import dis
import faulthandler
import math
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from traceback import format_exception
from types import CodeType, FrameType
from typing import Any, NamedTuple

DEADLINE = 30.0
"""Seconds that `work` and `check` may take together."""

GRACE = 20.0
"""Seconds that a hanging round has to end after `Hang` was raised. Then the process ends with a trace."""

WATCH_INTERVAL = 0.05

TRACES_FROM_THE_NEXT_CALL = sys.version_info >= (3, 13)
"""From Python 3.13 on, the instructions of a function are traced from the call after the one that asks for it, and no
longer when a trace function has raised or a call wasn't traced: then the next round asks again."""

ROUNDS_TO_BE_TRACED = 2 if TRACES_FROM_THE_NEXT_CALL else 1

MAX_PROBLEMS = 5
"""After this many problems a hunt ends: the rest would be the same."""


class Interrupt(KeyboardInterrupt):
    """What the signal handler of a hunt raises: an exception like that of Ctrl-C."""


class TimeLimit(Exception):
    """What it raises every second time: an exception like that of a test runner's or a task queue's time limit."""


class Hang(BaseException):
    """Work or check took longer than the deadline."""


class HuntReport(NamedTuple):
    """What a hunt found."""

    rounds: int
    """How often the work was done."""
    interrupts: int
    """How often it was interrupted. In the other rounds it ended first."""
    points: int
    """At how many different points, if the hunt knows."""
    problems: list[str]
    """What was wrong, each with where the interrupt was and how to repeat it."""

    def __str__(self) -> str:
        summary = f"{self.rounds} rounds, {self.interrupts} interrupts, {self.points} points"
        return "\n\n".join([summary, *self.problems])


Work = Callable[[], object]
Check = Callable[[], object]


def hunt_at_random(
    work: Work, check: Check, count: int, *, seed: int = 0, deadline: float = DEADLINE, signum: int = 0
) -> HuntReport:
    """Interrupt `work` at random moments until it was interrupted `count` times.

    `signum` is the signal whose handler is run instead of raising, such as SIGINT under `asyncio.run`.
    """
    with _Hunt(deadline, signum) as hunt:
        return hunt.at_random(work, check, count, random.Random(seed))


def hunt_at_every_point(
    work: Work,
    check: Check,
    packages: Sequence[str],
    *,
    deadline: float = DEADLINE,
    seed: int = 0,
    limit: int | None = None,
) -> HuntReport:
    """Interrupt `work` at every point of these packages that it reaches, or at `limit` of them, chosen by the seed.

    A package is named by a part of the paths of its files, such as "limpet/stores".
    """
    with _Hunt(deadline) as hunt:
        return hunt.at_every_point(work, check, tuple(packages), random.Random(seed), limit)


class _Hunt:
    """One hunt: its deadline, and what it has found so far."""

    def __init__(self, deadline: float, signum: int = 0) -> None:
        self.deadline = deadline
        self.signum = signum
        self.rounds = 0
        self.interrupts = 0
        self.problems: list[str] = []
        self._worked = 0.0
        self._watchdog = _Watchdog(deadline)

    def __enter__(self) -> _Hunt:
        self._watchdog.__enter__()
        self._unraisable_hook = sys.unraisablehook
        sys.unraisablehook = self._report_unraisable
        return self

    def __exit__(self, *_: object) -> None:
        sys.unraisablehook = self._unraisable_hook
        self._watchdog.__exit__()

    def _report_unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Python can't raise out of a destructor or a weak reference's callback: an interrupt there has no effect."""
        if not isinstance(unraisable.exc_value, (Interrupt, KeyboardInterrupt, TimeLimit)):
            self._unraisable_hook(unraisable)

    def at_random(self, work: Work, check: Check, count: int, chance: random.Random) -> HuntReport:
        """See `hunt_at_random`."""
        # The first round isn't interrupted: it loads what is imported late, and shows how long the work takes.
        self._round(work, check, None, "without an interrupt")
        longest = self._worked
        while self.interrupts < count and len(self.problems) < MAX_PROBLEMS:
            delay = max(chance.uniform(0, longest), 2e-6)
            timer = _Timer(delay, self._exception(), self.signum)
            self._round(work, check, timer, f"after {delay * 1e6:.0f} µs")
            # It follows what the work takes when it isn't interrupted, by and by.
            if not timer.struck:
                longest += (self._worked - longest) / 4
        return HuntReport(self.rounds, self.interrupts, 0, self.problems)

    def at_every_point(
        self, work: Work, check: Check, packages: tuple[str, ...], chance: random.Random, limit: int | None
    ) -> HuntReport:
        """See `hunt_at_every_point`."""
        self._round(work, check, None, "without an interrupt")
        for _ in range(ROUNDS_TO_BE_TRACED):
            survey = _Tracer(packages, None, 0, None)
            self._round(work, check, survey, "without an interrupt")
        targets = [(point, 1) for point in survey.visits]
        targets += [(point, chance.randint(2, n)) for point, n in survey.visits.items() if n > 1]
        chance.shuffle(targets)
        for point, visit in targets[:limit]:
            if len(self.problems) >= MAX_PROBLEMS:
                break
            for _ in range(ROUNDS_TO_BE_TRACED):
                tracer = _Tracer(packages, point, visit, self._exception())
                self._round(work, check, tracer, f"at {point}, visit {visit}")
                if tracer.struck:
                    break
        return HuntReport(self.rounds, self.interrupts, len(survey.visits), self.problems)

    def _exception(self) -> BaseException:
        return TimeLimit("a time limit") if self.rounds % 2 else Interrupt("an interrupt")

    def _round(self, work: Work, check: Check, way: _Timer | _Tracer | None, where: str) -> None:
        self.rounds += 1
        self._watchdog.begin_round()
        try:
            began = time.perf_counter()
            self._work(work, way)
            self._worked = time.perf_counter() - began
            with _keep_tracing(way):
                check()
        except Hang as hang:
            trace = "".join(format_exception(hang))
            self.problems.append(f"hung for {self.deadline:g} s, interrupted {where}:\n{trace}")
        except Exception as problem:
            trace = "".join(format_exception(problem))
            self.problems.append(f"interrupted {where}:\n{trace}")
        finally:
            self._watchdog.end_round()
        if way is not None and way.struck:
            self.interrupts += 1

    def _work(self, work: Work, way: _Timer | _Tracer | None) -> None:
        if way is None:
            work()
            return
        try:
            with way:
                work()
        except (Interrupt, KeyboardInterrupt, TimeLimit):
            pass
        except Exception as error:
            # The work may have met the interrupt in its own way, such as a run that failed.
            if not _comes_of_interrupt(error):
                raise


class _Timer:
    """Raises an exception in the main thread, some time after the block has begun."""

    def __init__(self, delay: float, error: BaseException, signum: int) -> None:
        self.struck = False
        self._delay = delay
        self._error = error
        self._signum = signum
        self._is_over = False

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, self._strike)
        signal.setitimer(signal.ITIMER_REAL, self._delay)

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        # The handler stays until the hunt ends: a signal may be under way, and by default it ends the process.
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _strike(self, *_: object) -> None:
        if self._is_over:
            return
        self.struck = True
        if self._signum:
            signal.raise_signal(self._signum)
        else:
            raise self._error


def _keep_tracing(way: _Timer | _Tracer | None) -> AbstractContextManager[object]:
    """Between two rounds that are traced: a call that isn't would cost the second one its instructions."""
    if TRACES_FROM_THE_NEXT_CALL and isinstance(way, _Tracer):
        return way.without_point()
    return nullcontext()


class Point(NamedTuple):
    """A point where Python can run a signal handler: the instruction of a function that comes next."""

    file: str
    line: int
    function: str
    offset: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}, instruction {self.offset}"


class _Tracer:
    """Raises an exception at a point, at the n-th visit; without a point it counts the visits to all."""

    def __init__(
        self, packages: tuple[str, ...], point: Point | None, visit: int, error: BaseException | None
    ) -> None:
        self.struck = False
        self.visits: dict[Point, int] = {}
        self._packages = packages
        self._point = point
        self._remaining = visit
        self._error = error
        self._last: dict[FrameType, int] = {}

    def __enter__(self) -> None:
        # Python 3.12 traces instructions only if a frame asked for it before the trace function was set.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._enter_frame)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def without_point(self) -> _Tracer:
        """One that traces the same functions, and raises nothing."""
        return _Tracer(self._packages, None, 0, None)

    def _enter_frame(self, frame: FrameType, event: str, arg: object) -> Any:
        path = frame.f_code.co_filename
        if self.struck or not any(package in path for package in self._packages):
            return None
        if self._point is not None and not self._can_contain(frame):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        # A function looks for signals when it begins or resumes: that instruction has been carried out.
        self._last[frame] = frame.f_lasti
        return self._step

    def _can_contain(self, frame: FrameType) -> bool:
        code = frame.f_code
        assert self._point is not None
        return code.co_filename == self._point.file and code.co_qualname == self._point.function

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            code = frame.f_code
            checks = _checks_of(code)
            last = self._last.get(frame)
            offset = frame.f_lasti
            self._last[frame] = offset
            if last is not None and (last, offset) in checks:
                self._reach(frame, offset)
        elif event == "return":
            self._last.pop(frame, None)
        return self._step

    def _reach(self, frame: FrameType, offset: int) -> None:
        code = frame.f_code
        point = Point(code.co_filename, frame.f_lineno, code.co_qualname, offset)
        if self._point is None:
            self.visits[point] = self.visits.get(point, 0) + 1
        elif not self.struck and point == self._point:
            self._remaining -= 1
            if self._remaining <= 0:
                self.struck = True
                sys.settrace(None)
                assert self._error is not None
                raise self._error


class _Checks:
    """Where a function looks for signals: after an instruction of these kinds, before the one that follows.

    The exception of a handler counts as raised by the first of the two, and that of a trace function by the second.
    So only pairs that have the same handler for exceptions are points of a hunt; of the others, Python itself takes
    care: they are the last call of a `with` block and the release of its lock.
    """

    def __init__(self, code: CodeType) -> None:
        self._after = {
            instruction.offset
            for instruction in dis.get_instructions(code)
            if instruction.opname.startswith(("CALL", "JUMP_BACKWARD", "RESUME"))
        }
        parse: Any = getattr(dis, "_parse_exception_table")  # noqa: B009  # not in the type stubs
        self._handlers = [(entry.start, entry.end, entry.target) for entry in parse(code)]

    def __contains__(self, pair: tuple[int, int]) -> bool:
        last, following = pair
        return last in self._after and self._handler(last) == self._handler(following)

    def _handler(self, offset: int) -> int | None:
        for start, end, target in self._handlers:
            if start <= offset < end:
                return int(target)
        return None


_known_checks: dict[CodeType, _Checks] = {}


def _checks_of(code: CodeType) -> _Checks:
    found = _known_checks.get(code)
    if found is None:
        found = _known_checks[code] = _Checks(code)
    return found


def _comes_of_interrupt(error: BaseException) -> bool:
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop()
        if each is None or id(each) in seen:
            continue
        if isinstance(each, (Interrupt, TimeLimit, KeyboardInterrupt)):
            return True
        seen.add(id(each))
        todo += [each.__cause__, each.__context__]
    return False


class _Watchdog:
    """Raises `Hang` in the main thread when a round takes too long; if that has no effect, it ends the process."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends_at = math.inf
        self._main = threading.get_ident()
        self._stopped = False
        self._before: Any = None
        self._alarm_before: Any = None

    def __enter__(self) -> _Watchdog:
        self._alarm_before = signal.getsignal(signal.SIGALRM)
        self._before = signal.signal(signal.SIGUSR2, _raise_hang)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        faulthandler.cancel_dump_traceback_later()
        time.sleep(WATCH_INTERVAL)  # for a signal that is under way
        signal.signal(signal.SIGUSR2, self._before)
        signal.signal(signal.SIGALRM, self._alarm_before)

    def begin_round(self) -> None:
        """Count the time from here."""
        self._ends_at = time.monotonic() + self._seconds
        faulthandler.dump_traceback_later(self._seconds + GRACE, exit=True)

    def end_round(self) -> None:
        """Stop counting."""
        self._ends_at = math.inf

    def _watch(self) -> None:
        while not self._stopped:
            time.sleep(WATCH_INTERVAL)
            if time.monotonic() > self._ends_at:
                self._ends_at = math.inf
                signal.pthread_kill(self._main, signal.SIGUSR2)


def _raise_hang(*_: object) -> None:
    raise Hang
