"""The report of a crash matrix: what each kill led to, and advice, to be read by people."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

from limpet.testing.crash.crash_points import CrashPoint, Notes

MAX_POINTS = 8
"""Points that are listed for a finding."""

ADVICE = {
    "effect": (
        "A node that was killed runs again. Give ctx.idempotency_key to the service, so that it counts the call "
        "once, and record it with the key: effects.record(name, ctx.idempotency_key). Or keep the result with "
        "once(key, function) where more of the node follows: when the result is saved, the call isn't repeated, "
        "though a kill just before the save repeats it. Name an effect that may happen twice in repeatable=[…]"
    ),
    "key": "A key that the node makes up is a new one each time; ctx.idempotency_key is the same for every attempt",
    "missing": (
        "Something made the resumed run believe that it was done: a file or a service that was updated before the "
        "effect happened, or a result that was saved before"
    ),
    "state": (
        "A resumed run is in a new process, and has only what nodes returned: keep what later nodes need in the "
        "state, not in globals, closures or objects"
    ),
    "failed": (
        "The node doesn't find what an earlier node left in its process, or can't run again after it was killed: "
        "let it make what it needs, and tolerate what it has done before"
    ),
    "again": "This is a defect of Limpet, or of something that changed its store: please report it",
    "late": "It waits for something that died with the process. timeout=… lets it take longer",
}


class Finding(NamedTuple):
    """A difference from the uninterrupted run: its kind, a key of `ADVICE`, and in words what and where."""

    kind: str
    text: str


class Kill(NamedTuple):
    """One run: where its processes were killed and how many, and what differs from the uninterrupted run.

    `repeated` is how many calls of nodes it took beyond those of the uninterrupted run, `notes` is its log, and
    `folder` has its files.
    """

    point: CrashPoint
    killed: int
    findings: list[Finding]
    repeated: int = 0
    notes: Notes = []  # noqa: RUF012  # of a kill without a log, and never changed
    folder: Path | None = None

    @property
    def reached(self) -> bool:
        """Whether a process was killed there."""
        return self.killed > 0


class CrashReport:
    """What a crash matrix found. `ok` says whether all is well, and `str()` of it is to be read.

    `commits` and `calls` are the numbers of commits and calls of nodes in the uninterrupted run. `points` is the
    number of points at which a process was to be killed, `killed` the number of those at which one was, and `kills`
    has the result of each. A chain, or a run that is killed at random, counts as one point: `killed_processes` is
    the number of all kills, and `repeated_per_kill` the highest number of calls that a run repeated for each of its
    kills.
    """

    def __init__(
        self, what: str, commits: int, kills: list[Kill], repeat_hint: str = "", calls: int = 0
    ) -> None:
        self.what = what
        self.commits = commits
        self.calls = calls
        self.kills = kills
        self._repeat_hint = repeat_hint

    @property
    def points(self) -> int:
        return len(self.kills)

    @property
    def killed(self) -> int:
        return sum(each.reached for each in self.kills)

    @property
    def killed_processes(self) -> int:
        return sum(each.killed for each in self.kills)

    @property
    def repeated_per_kill(self) -> float:
        return max((each.repeated / each.killed for each in self.kills if each.killed), default=0.0)

    @property
    def ok(self) -> bool:
        return not any(each.findings for each in self.kills)

    def __str__(self) -> str:
        counts = f"killed at {self.killed} of {self.points} points"
        headline = f"{self.what}: {counts}, {self.commits} commits in the uninterrupted run"
        if self.ok:
            return f"{headline}; every resumed run ended like it."
        bad = sum(bool(each.findings) for each in self.kills)
        points_of_finding = self._points_of_findings()
        lines = [f"{headline}; at {bad} of them the resumed run didn't end like it.", ""]
        advised: set[str] = set()
        kinds = list(ADVICE)
        for finding, points in sorted(points_of_finding.items(), key=lambda each: kinds.index(each[0].kind)):
            lines.append(f"- {finding.text}")
            lines += [f"    point={point.name}: killed {point.where}" for point in points[:MAX_POINTS]]
            if len(points) > MAX_POINTS:
                lines.append(f"    … and at {len(points) - MAX_POINTS} more points")
            if finding.kind not in advised:
                advised.add(finding.kind)
                advice = f"→ {ADVICE[finding.kind]}."
                lines += wrap(advice, 100, initial_indent="    ", subsequent_indent="      ")
        all_points = [point for points in points_of_finding.values() for point in points]
        # A point inside a call depends on timing. Name one that is exact, if there is one.
        first = min(all_points, key=lambda point: point.delay > 0.0)
        if first.repeated:
            return "\n".join([*lines, "", f"To see one of them again: {first.repeated}"])
        hint = self._repeat_hint.format(point=first.name)
        return "\n".join([*lines, "", f"To see one of them again: point={first.name!r}{hint}"])

    def __repr__(self) -> str:
        verdict = "ok" if self.ok else "not ok"
        return f"<CrashReport: {self.killed} of {self.points} points, {verdict}>"

    def _points_of_findings(self) -> dict[Finding, list[CrashPoint]]:
        """Each finding once, with all points that led to it."""
        found: dict[Finding, list[CrashPoint]] = {}
        for kill in self.kills:
            for finding in dict.fromkeys(kill.findings):
                found.setdefault(finding, []).append(kill.point)
        return found
