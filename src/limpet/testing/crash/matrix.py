"""The crash matrix: a graph is killed at every point where that could matter, and must end as if it hadn't been.

It runs the graph uninterrupted (twice, to find what differs by nature), then once for each point: a process starts
the run and is killed there, another resumes it, and the result is compared with that of the uninterrupted run. The
processes are real, and so are the kills. Each run has its own SQLite file; time is skipped where a run sleeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from limpet.errors import UsageError
from limpet.testing.crash.child_processes import ChildOptions, ChildProcesses, ForkServer, pickled
from limpet.testing.crash.child_run import RunInput
from limpet.testing.crash.comparison import UninterruptedRun, compare, repeated_calls
from limpet.testing.crash.crash_points import (
    CrashPoint,
    KillMoment,
    Notes,
    chain_of,
    points_of,
    random_moments,
    sample,
)
from limpet.testing.crash.fork_server import LogLength
from limpet.testing.crash.graph_source import Target, source_of
from limpet.testing.crash.report import CrashReport, Finding, Kill
from limpet.testing.crash.watched_process import read_log

DRIVERS = ("sync", "async", "stream", "astream")
SAMPLE_SIZE = 8
"""At how many points a process is killed, unless all points are asked for."""
MAX_OUTPUT = 2000
"""Characters of the output of a process that are shown."""
MAX_TRACEBACK = 12
"""Lines of a traceback that are shown."""


class CrashMatrixFailed(AssertionError):
    """A graph doesn't survive a kill as it should. The message is the report; `report` has it as data."""

    def __init__(self, text: str, report: CrashReport | None = None) -> None:
        self.report = report
        super().__init__(text)


class CrashMatrix:
    """Kills runs of a graph, has them resumed, and compares the results. The fixture `crash_matrix` is one.

    Each run has a subfolder of `folder`, with its store, log and output. With `every`, a process is killed at every
    point, rather than at a few; `only` names one point. `repeat_hint` ends the report: how to repeat one `{point}`.

    Inside of `with`, calls with the same graph and input share the uninterrupted run, and the process that starts the
    others. So runs by different drivers are compared with the same one, and calls after the first are faster.
    """

    def __init__(
        self, folder: Path, *, every: bool = False, only: str | None = None, repeat_hint: str = ""
    ) -> None:
        self.folder = folder
        self.every = every
        self.only = only
        self._repeat_hint = repeat_hint
        self._numbers = count(1)
        self._server = ForkServer(folder / "processes")
        self._shared = False
        self._uninterrupted: dict[Hashable, UninterruptedRun] = {}

    def __enter__(self) -> Self:
        self._shared = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shared = False
        self._forget()

    def __call__(
        self,
        graph: Target,
        input: Any = None,
        config: Mapping[str, Any] | None = None,
        *,
        answers: Mapping[str, Any] | None = None,
        messages: Mapping[str, Sequence[Any]] | None = None,
        driver: Literal["sync", "async", "stream", "astream"] = "sync",
        by: Literal["resume", "checkpoint", "recover"] = "resume",
        level: Literal["process", "disk"] = "process",
        ignore: Collection[str] = (),
        repeatable: Collection[str] = (),
        point: str | None = None,
        kills: int = 1,
        chains: Sequence[Sequence[str]] = (),
        random_kills: int = 0,
        timeout: float = 60.0,
        fresh: bool = False,
    ) -> CrashReport:
        """Run a graph uninterrupted, then kill it at one point after the other, and return a report.

        `graph` is a function at the top of a module that makes it (it may take the store to compile with), or
        `"package.module:attribute"`: each process makes its own. `answers` are for its questions, and `messages` for
        what it waits for, as in `run_to_end`. `driver` is "async" for `aexecute` and `aresume`, "stream" for `stream`
        and "astream" for `astream`; there, an event is what acknowledges a commit. With `by="recover"` a supervisor
        resumes the runs, with "checkpoint" they are resumed by the id of a checkpoint, of a workflow by any that it
        keeps. `level` is that of the store. `ignore` names keys of the state that differ from run to run,
        `repeatable` effects that may happen again.

        `point` kills at this point only. `kills` is how many processes of each run are killed, one after the other:
        each that resumes the run is killed at the same point, counted from its own start. Each list of `chains` is
        one run: its first process is killed at the first point of the list, the one that resumes it at the second,
        and so on, as long as the run takes. `random_kills` is how many processes are killed from outside, at any
        moment: those of one run until it ends, then those of the next. `timeout` is how many seconds a process may
        take, and `fresh` starts a new Python for each, for libraries that don't tolerate a fork.

        Raises `CrashMatrixFailed` with a report if a run doesn't end like the uninterrupted one, or if that fails.
        """
        __tracebackhide__ = True
        _check_options(driver, by, level)
        _check_kills(point, kills, chains, random_kills)
        source = source_of(graph)
        given = pickled(RunInput(input, config, answers, messages))
        tolerated = Tolerated(_names(ignore, "ignore"), _names(repeatable, "repeatable"))
        options = ChildOptions(timeout, fresh, driver, by, level)
        try:
            children = ChildProcesses(self._server, source, given, options)
            runs = MatrixRuns(children, self.folder, self._numbers, tolerated)
            identity = (source, given, tolerated.ignore)
            if identity not in self._uninterrupted:
                self._uninterrupted[identity] = runs.uninterrupted()
            expected = self._uninterrupted[identity]
            if chains:
                results = [runs.killed_in_chain(each, expected) for each in chains]
            elif random_kills:
                chance = Random(f"{source} {driver} {level}")
                results = runs.killed_at_random(random_kills, expected, chance)
            else:
                points = self._points(expected.notes, point)
                results = [runs.killed_at(each, expected, kills) for each in points]
        finally:
            if not self._shared:
                self._forget()
        counts = Counter(each["note"] for each in expected.notes)
        report = CrashReport(str(source), counts["commit"], results, self._repeat_hint, counts["start"])
        if not report.ok:
            raise CrashMatrixFailed(f"{report}\nThe files of each run are in {self.folder}", report)
        if not report.killed:
            raise CrashMatrixFailed(f"{report}\nNo process was killed, so this proves nothing", report)
        return report

    def _forget(self) -> None:
        """End all processes, and forget what calls share."""
        self._server.close()
        self._uninterrupted.clear()

    def _points(self, notes: Notes, point: str | None) -> list[CrashPoint]:
        found = points_of(notes)
        wanted = point or self.only
        if wanted is None:
            if self.every:
                return found
            return sample(found, SAMPLE_SIZE)
        named = [each for each in found if each.name == wanted]
        if not named:
            raise UsageError(
                f"there is no point {wanted!r}; the points are {', '.join(each.name for each in found)}"
            )
        return named


class Tolerated(NamedTuple):
    """What may differ from the uninterrupted run: keys of the state, and effects that may happen again."""

    ignore: frozenset[str]
    repeatable: frozenset[str]


class MatrixRuns:
    """The runs of one matrix, each in a folder with its store, log and output."""

    def __init__(
        self, children: ChildProcesses, folder: Path, numbers: Iterable[int], tolerated: Tolerated
    ) -> None:
        self._children = children
        self._folder = folder
        self._numbers = iter(numbers)
        self._tolerated = tolerated

    def uninterrupted(self) -> UninterruptedRun:
        """The run without a kill. Raises `CrashMatrixFailed` if it doesn't always end with the same state."""
        __tracebackhide__ = True
        first = self._run_once("uninterrupted")
        second = self._run_once("uninterrupted-again")
        differing = [
            key
            for key in dict.fromkeys([*first.state, *second.state])
            if key not in self._tolerated.ignore and first.state.get(key) != second.state.get(key)
        ]
        if differing:
            values = "".join(
                f"\n  {key}: {first.state.get(key)} and {second.state.get(key)}" for key in differing
            )
            raise CrashMatrixFailed(
                "two uninterrupted runs don't end with the same state, so there is nothing to compare with:"
                f"{values}\nName keys that differ by nature in ignore={differing!r}"
            )
        return first

    def killed_at(self, point: CrashPoint, expected: UninterruptedRun, kills: int) -> Kill:
        """Kill processes of a new run at a point, one after the other, and compare the result."""
        return self._killed(point, [KillMoment(point.name, point.delay)] * kills, expected)

    def killed_in_chain(self, points: Sequence[str], expected: UninterruptedRun) -> Kill:
        """Kill each process of a new run at a point of its own, and compare the result."""
        return self._killed(chain_of(points), [KillMoment(each) for each in points], expected)

    def killed_at_random(self, kills: int, expected: UninterruptedRun, chance: Random) -> list[Kill]:
        """Kill processes of new runs at random moments, until this many were killed."""
        results: list[Kill] = []
        while sum(each.killed for each in results) < kills and len(results) < kills:
            folder = self._new_folder("random")
            point = CrashPoint(folder.name, "at random moments", repeated=f"random_kills={kills}")
            moments = random_moments(chance, len(expected.notes), LogLength(str(folder / "log")).lines)
            results.append(self._killed(point, moments, expected, folder))
        return results

    def _killed(
        self,
        point: CrashPoint,
        moments: Iterable[KillMoment],
        expected: UninterruptedRun,
        folder: Path | None = None,
    ) -> Kill:
        """Kill the processes of a run, one at each moment; then have another resume it, and compare the result."""
        if folder is None:
            folder = self._new_folder(point.name.partition(", ")[0].replace(":", "-"))
        killed = 0
        for moment in moments:
            result = self._children.run(folder, moment)
            if "killed" not in result:
                break
            killed += 1
        else:
            result = self._children.run(folder)
        notes = read_log(str(folder / "log"))
        if killed:
            problem = _problem(result, folder, "the resumed run")
        else:
            problem = _problem(result, folder, "the run, which wasn't killed,")
        if problem is not None:
            return Kill(point, killed, [problem], notes=notes, folder=folder)
        findings = compare(expected, result["ended"]["state"], notes, *self._tolerated)
        return Kill(point, killed, findings, repeated_calls(expected.notes, notes), notes, folder)

    def _run_once(self, name: str) -> UninterruptedRun:
        folder = self._new_folder(name)
        result = self._children.run(folder)
        problem = _problem(result, folder, "the uninterrupted run")
        if problem is not None:
            raise CrashMatrixFailed(f"there is nothing to compare with: {problem.text}")
        if result["ended"]["unused"]:
            raise CrashMatrixFailed(f"the run never asked for these answers: {result['ended']['unused']}")
        return UninterruptedRun(result["ended"]["state"], read_log(str(folder / "log")))

    def _new_folder(self, name: str) -> Path:
        folder = self._folder / f"{next(self._numbers):03}-{name}"
        folder.mkdir(parents=True)
        return folder


def _check_options(driver: str, by: str, level: str) -> None:
    known = driver in DRIVERS and by in ("resume", "checkpoint", "recover") and level in ("process", "disk")
    if not known or (by == "recover" and driver != "sync"):
        raise UsageError(
            f"driver is one of {', '.join(map(repr, DRIVERS))}; by is 'resume', 'checkpoint' or, with 'sync', "
            "'recover'; level is 'process' or 'disk'"
        )


def _check_kills(point: str | None, kills: int, chains: Sequence[Sequence[str]], random_kills: int) -> None:
    if type(kills) is not int or kills < 1:
        raise UsageError(f"kills is a whole number from 1, not {kills!r}")
    if type(random_kills) is not int or random_kills < 0:
        raise UsageError(f"random_kills is a whole number, not {random_kills!r}")
    if [point is not None or kills > 1, bool(chains), bool(random_kills)].count(True) > 1:
        raise UsageError("give a point and how many kills, or chains, or random_kills; not several of them")
    if isinstance(chains, str):
        raise UsageError(f"chains is a list of lists of points, not {chains!r}")
    for chain in chains:
        chain_of(chain)  # raises before any process is started


def _problem(result: Mapping[str, Any], folder: Path, which: str) -> Finding | None:
    """Why a run that should have ended didn't."""
    if "ended" in result:
        return None
    if "late" in result:
        return Finding("late", f"{which} didn't end in time")
    if "raised" in result:
        lines = result["traceback"].rstrip().splitlines()[-MAX_TRACEBACK:]
        trace = "".join(f"\n    | {line}" for line in lines)
        return Finding("failed", f"{which} failed: {result['raised']}{trace}")
    printed = (folder / "output").read_text(encoding="utf-8", errors="replace")[-MAX_OUTPUT:]
    exit_code = result.get("died", "killed")
    return Finding("failed", f"the process of {which} ended by itself ({exit_code}); it printed:\n{printed}")


def _names(given: Collection[str], what: str) -> frozenset[str]:
    if isinstance(given, str) or not all(isinstance(each, str) for each in given):
        raise UsageError(f"{what} is a list of names, not {given!r}")
    return frozenset(given)
