"""The crash matrix: your graph, killed at every point where that could matter, must end as if nothing had been.

It runs the graph uncut (twice, to know what differs by nature), then once for each point: a process begins the run
and is killed there, another goes on with it, and what came of it is compared with the uncut run. The processes are
real, and so are the kills. Each run has a SQLite file of its own; time is skipped where it sleeps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Literal

from limpet.errors import UsageError
from limpet.testing.crash.graph_source import Target, origin_of
from limpet.testing.crash.process_life import read_log
from limpet.testing.crash.processes import Children
from limpet.testing.crash.report import (
    Account,
    Expected,
    Finding,
    Killed,
    Notes,
    Point,
    compare,
    points_of,
    sample,
)

SAMPLE = 8
"""At how many points a process is killed, unless all are asked for."""
OUTPUT = 2000
"""Characters of what a process printed that are shown."""


class CrashMatrixFailed(AssertionError):
    """A graph doesn't survive what it should; the message is the account of it. `account` has it as data."""

    def __init__(self, text: str, account: Account | None = None) -> None:
        self.account = account
        super().__init__(text)


class CrashMatrix:
    """Kills runs of a graph, and compares what becomes of them. The fixture `crash_matrix` is one.

    `folder` is where it works; each run has a folder there with its store, log and output. `every` says that a
    process is killed at every point, rather than at a few; `only` names one point.
    """

    def __init__(self, folder: Path, *, every: bool = False, only: str | None = None, how: str = "") -> None:
        self.folder, self.every, self.only, self._how = folder, every, only, how
        self._numbers = count(1)

    def __call__(
        self,
        graph: Target,
        input: Any = None,
        config: Mapping[str, Any] | None = None,
        *,
        answers: Mapping[str, Any] | None = None,
        driver: Literal["sync", "async"] = "sync",
        by: Literal["resume", "recover"] = "resume",
        ignore: Collection[str] = (),
        repeatable: Collection[str] = (),
        point: str | None = None,
        timeout: float = 60.0,
        fresh: bool = False,
    ) -> Account:
        """Run a graph uncut, then kill it at one point after the other, and return the account of it.

        `graph` is a function at the top of a module that makes it (it may take the store to compile with), or
        `"package.module:attribute"`: each process makes its own. `answers` are for what it asks, as in `run_to_end`.
        `driver` is "async" for `aexecute` and `aresume`; `by` is "recover" to have runs gone on with as a
        supervisor does. `ignore` names keys of the state that differ from run to run, `repeatable` effects that may
        happen again. `point` kills at this point only. `timeout` is how many seconds a process may take, and `fresh`
        starts Python anew for each, for libraries that can't bear a fork.

        Raises `CrashMatrixFailed` with an account if a run doesn't end as the uncut one, or if that doesn't end.
        """
        __tracebackhide__ = True
        if (
            driver not in ("sync", "async")
            or by not in ("resume", "recover")
            or (driver, by) == ("async", "recover")
        ):
            raise UsageError("driver is 'sync' or 'async'; by is 'resume' or, with 'sync', 'recover'")
        place = origin_of(graph)
        given, said = (input, config, answers), self.folder / "processes"
        with Children(place, given, said, timeout, fresh, driver=driver, by=by) as children:
            trial = Trial(
                children,
                self.folder,
                self._numbers,
                _names(ignore, "ignore"),
                _names(repeatable, "repeatable"),
            )
            expected = trial.uncut()
            points = self._points(expected.notes, point)
            killings = [trial.kill(each, expected) for each in points]
        commits = sum(each["note"] == "commit" for each in expected.notes)
        account = Account(str(place), commits, killings, self._how)
        if not account.ok:
            raise CrashMatrixFailed(f"{account}\nWhat each run left is in {self.folder}", account)
        if not account.killed:
            raise CrashMatrixFailed(f"{account}\nNo process was killed, so this says nothing", account)
        return account

    def _points(self, notes: Notes, point: str | None) -> list[Point]:
        found, wanted = points_of(notes), point or self.only
        if wanted is None:
            return found if self.every else sample(found, SAMPLE)
        named = [each for each in found if each.name == wanted]
        if not named:
            raise UsageError(
                f"there is no point {wanted!r}; there are {', '.join(each.name for each in found)}"
            )
        return named


class Trial:
    """The runs of one matrix."""

    def __init__(
        self,
        children: Children,
        folder: Path,
        numbers: Iterable[int],
        ignore: Collection[str],
        repeatable: Collection[str],
    ) -> None:
        self._children, self._folder, self._numbers = children, folder, iter(numbers)
        self._ignore, self._repeatable = ignore, repeatable

    def uncut(self) -> Expected:
        """What the run comes to if nobody interferes. Raises `CrashMatrixFailed` if that isn't always the same."""
        __tracebackhide__ = True
        first, again = self._whole("uncut"), self._whole("uncut-again")
        differing = [each for each in dict.fromkeys([*first.state, *again.state]) if each not in self._ignore]
        differing = [key for key in differing if first.state.get(key) != again.state.get(key)]
        if differing:
            values = "".join(
                f"\n  {key}: {first.state.get(key)} and {again.state.get(key)}" for key in differing
            )
            raise CrashMatrixFailed(
                f"two uncut runs don't end with the same state, so there is nothing to compare with:{values}\n"
                f"Keys that differ by nature are named in ignore={differing!r}"
            )
        return first

    def kill(self, point: Point, expected: Expected) -> Killed:
        """Have a process killed at a point, and another go on; compare what came of it."""
        folder = self._new(point.name.replace(":", "-"))
        told = self._children.live(folder, point=point.name, delay=point.delay)
        reached = "killed" in told
        if reached:
            told = self._children.live(folder)
        problem = _problem(told, folder, "the resumed run" if reached else "the run, which wasn't killed,")
        if problem is not None:
            return Killed(point, reached, [problem])
        notes = read_log(str(folder / "log"))
        found = compare(expected, told["ended"]["state"], notes, self._ignore, self._repeatable)
        return Killed(point, reached, found)

    def _whole(self, name: str) -> Expected:
        folder = self._new(name)
        told = self._children.live(folder)
        problem = _problem(told, folder, "the uncut run")
        if problem is not None:
            raise CrashMatrixFailed(f"nothing can be compared: {problem.text}")
        if told["ended"]["unused"]:
            raise CrashMatrixFailed(f"the run never asked for these answers: {told['ended']['unused']}")
        return Expected(told["ended"]["state"], read_log(str(folder / "log")))

    def _new(self, name: str) -> Path:
        folder = self._folder / f"{next(self._numbers):03}-{name}"
        folder.mkdir(parents=True)
        return folder


def _problem(told: Mapping[str, Any], folder: Path, who: str) -> Finding | None:
    """Why a life that should have come to its end didn't."""
    if "ended" in told:
        return None
    if "late" in told:
        return Finding("late", f"{who} didn't end in time")
    if "raised" in told:
        trace = "".join(f"\n    | {line}" for line in told["traceback"].rstrip().splitlines()[-12:])
        return Finding("failed", f"{who} failed: {told['raised']}{trace}")
    printed = (folder / "output").read_text(encoding="utf-8", errors="replace")[-OUTPUT:]
    return Finding(
        "failed",
        f"the process of {who} ended by itself ({told.get('died', 'killed')}); it printed:\n{printed}",
    )


def _names(given: Collection[str], what: str) -> frozenset[str]:
    if isinstance(given, str) or not all(isinstance(each, str) for each in given):
        raise UsageError(f"{what} is a list of names, not {given!r}")
    return frozenset(given)
